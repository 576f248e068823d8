use super::*;

/// A small generator of our own: the same cases everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    /// Mostly ordinary numbers of very different sizes, where the order of additions shows; some special ones.
    fn f32(&mut self) -> f32 {
        match self.below(16) {
            0 => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, 1e-45, -1e-40]
                [self.below(8)],
            1 => f32::from_bits(self.next() as u32),
            _ => (self.below(2_000_001) as f32 - 1e6) * 10_f32.powi(self.below(13) as i32 - 6),
        }
    }
}

/// An array somewhere in a larger one, at any address, with guards around it.
struct Array {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xA5;
const MARGIN: usize = 128;

impl Array {
    fn new(random: &mut Random, len: usize, misaligned_bytes: usize) -> Array {
        let bytes = vec![GUARD; len * 4 + 2 * MARGIN + 64];
        let start = MARGIN + (misaligned_bytes.wrapping_sub(bytes.as_ptr().addr() + MARGIN)) % 64;
        let mut array = Array { bytes, start, len };
        for index in 0..len {
            array.set(index, random.f32());
        }
        array
    }

    fn set(&mut self, index: usize, value: f32) {
        let at = self.start + index * 4;
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn values(&self) -> Vec<f32> {
        let bytes = &self.bytes[self.start..self.start + self.len * 4];
        bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    fn pointer(&mut self) -> *mut f32 {
        self.bytes[self.start..].as_mut_ptr().cast()
    }

    fn assert_guards(&self, case: &str) {
        let (before, rest) = self.bytes.split_at(self.start);
        let guards = before.iter().chain(&rest[self.len * 4..]);
        assert!(guards.copied().all(|byte| byte == GUARD), "{case}: wrote outside of the target");
    }
}

fn assert_same(case: &str, expected: &[f32], got: &[f32]) {
    for (index, (expected, got)) in expected.iter().zip(got).enumerate() {
        let same = expected.to_bits() == got.to_bits() || expected.is_nan() && got.is_nan();
        assert!(
            same,
            "{case}, element {index}: {expected:e} ({:#x}), not {got:e} ({:#x})",
            expected.to_bits(),
            got.to_bits()
        );
    }
}

/// Sums once and compares with a plain loop. `in_place` makes the first target the source of that number.
fn check(
    random: &mut Random,
    kernels: Kernels,
    shape: (usize, usize, usize),
    in_place: Option<usize>,
    store: Store,
) {
    let (k, m, len) = shape;
    // Aligned alike, any element's alignment, any byte's.
    let kind = random.below(3);
    let shift = random.below(16) * 4;
    let misaligned = |random: &mut Random| match kind {
        0 => shift,
        1 => random.below(16) * 4,
        _ => random.below(64),
    };
    let mut sources: Vec<Array> = (0..k)
        .map(|_| {
            let by = misaligned(random);
            Array::new(random, len, by)
        })
        .collect();
    let mut targets: Vec<Array> = (0..m)
        .map(|_| {
            let by = misaligned(random);
            Array::new(random, len, by)
        })
        .collect();
    let values: Vec<Vec<f32>> = sources.iter().map(Array::values).collect();
    let mut expected = values[0].clone();
    for source in &values[1..] {
        expected.iter_mut().zip(source).for_each(|(sum, value)| *sum += value);
    }
    let from: Vec<*const f32> = sources.iter_mut().map(|array| array.pointer().cast_const()).collect();
    let mut to: Vec<*mut f32> = targets.iter_mut().map(Array::pointer).collect();
    if let Some(source) = in_place {
        to[0] = from[source].cast_mut();
    }
    let case = format!("{} k={k} m={m} len={len} in place {in_place:?} {store:?}", kernels.name());
    // SAFETY: The arrays have `len` elements each, are ours alone, and a target is a source only as a whole.
    unsafe { kernels.sum_f32(&to, &from, len, store) };
    for (index, array) in targets.iter().enumerate() {
        array.assert_guards(&case);
        if index > 0 || in_place.is_none() {
            assert_same(&case, &expected, &array.values());
        }
    }
    for (index, array) in sources.iter().enumerate() {
        array.assert_guards(&case);
        let expected = if in_place == Some(index) { &expected } else { &values[index] };
        assert_same(&case, expected, &array.values());
    }
}

#[test]
fn every_set_gives_the_bits_of_a_plain_loop() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let rounds = if cfg!(debug_assertions) { 300 } else { 5000 };
    for _ in 0..rounds {
        let len_max = [20, 300, 3000][random.below(3)];
        let shape = (1 + random.below(9), 1 + random.below(5), random.below(len_max));
        let in_place = (random.below(3) == 0).then(|| random.below(shape.0));
        for kernels in Kernels::all_supported() {
            for store in [Store::Cached, Store::Streaming] {
                check(&mut random, kernels, shape, in_place, store);
            }
        }
    }
}

#[test]
fn every_length_around_registers_blocks_and_lines() {
    let mut random = Random(42);
    for kernels in Kernels::all_supported() {
        for len in (0..=200).chain([255, 256, 257, 511, 1023, 4096, 4133, 9001]) {
            for (k, m) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 3)] {
                for store in [Store::Cached, Store::Streaming] {
                    check(&mut random, kernels, (k, m, len), None, store);
                    check(&mut random, kernels, (k, m, len), Some(k - 1), store);
                }
            }
        }
    }
}

#[test]
fn the_order_of_the_sources_is_kept() {
    let mut arrays = [[1e30_f32; 100], [-1e30; 100], [1.0; 100]];
    for kernels in Kernels::all_supported() {
        let mut target = [0.0_f32; 100];
        for (order, expected) in [([0, 1, 2], 1.0), ([0, 2, 1], 0.0)] {
            let sources = order.map(|index: usize| arrays[index].as_mut_ptr().cast_const());
            // SAFETY: All arrays have 100 elements and are ours.
            unsafe { kernels.sum_f32(&[target.as_mut_ptr()], &sources, 100, Store::Cached) };
            assert_eq!(target, [expected; 100], "{}", kernels.name());
        }
    }
}

#[test]
fn the_fastest_is_chosen() {
    assert_eq!(Kernels::detect().name(), Kernels::all_supported()[0].name());
    assert_eq!(Kernels::all_supported().last().map(Kernels::name), Some("portable"));
}
