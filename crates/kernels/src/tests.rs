//! Every kernel of every instruction set, held to the oracle bit by bit.

use weftlink_plan::element::{Complex, Element, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::reduction::Kind;
use weftlink_plan::{DataType, Reducer, Reduction};

use super::convert::Lane;
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
    fn f64(&mut self, tiny: f64, huge: f64) -> f64 {
        match self.below(32) {
            0 => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, huge, tiny, -tiny * 3.0]
                [self.below(8)],
            1 => huge * (self.below(1000) as f64 / 500.0 - 1.0),
            2 => tiny * (self.below(40) as f64 - 20.0),
            _ => (self.below(2001) as f64 - 1e3) * 2_f64.powi(self.below(13) as i32 - 10),
        }
    }
}

/// An element that tests can make up and compare.
trait Sample: Element {
    fn sample(random: &mut Random) -> Self;

    /// The same bits, or both not a number where that is all that is promised.
    fn is_same(self, other: Self) -> bool;
}

macro_rules! samples {
    ($($type:ty: |$random:ident| $sample:expr, |$a:ident, $b:ident| $same:expr;)*) => {$(
        impl Sample for $type {
            fn sample($random: &mut Random) -> Self {
                $sample
            }

            fn is_same(self, other: Self) -> bool {
                let ($a, $b) = (self, other);
                $same
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty),*) => {
        samples! {$(
            $type: |random| [0, 1, 2, <$type>::MAX, <$type>::MIN, random.next() as $type, random.next() as $type, random.below(100) as $type][random.below(8)],
            |a, b| a == b;
        )*}
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

samples! {
    f16: |random| match random.below(8) {
        0 => f16::from_bits(random.next() as u16),
        _ => f16::from_f64(random.f64(6e-8, 65504.0)),
    }, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    bf16: |random| match random.below(8) {
        0 => bf16::from_bits(random.next() as u16),
        _ => bf16::from_f64(random.f64(1e-40, 3.38e38)),
    }, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    f32: |random| match random.below(8) {
        0 => f32::from_bits(random.next() as u32),
        _ => random.f64(1e-45, f32::MAX.into()) as f32,
    }, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    f64: |random| match random.below(8) {
        0 => f64::from_bits(random.next()),
        _ => random.f64(5e-324, f64::MAX),
    }, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    F8E4m3: |random| F8E4m3::from_bits(random.next() as u8),
        |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    F8E5m2: |random| F8E5m2::from_bits(random.next() as u8),
        |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    bool: |random| random.below(2) == 1, |a, b| a == b;
    Complex<f32>: |random| Complex::new(f32::sample(random), f32::sample(random)),
        |a, b| a.re.is_same(b.re) && a.im.is_same(b.im);
    Complex<f64>: |random| Complex::new(f64::sample(random), f64::sample(random)),
        |a, b| a.re.is_same(b.re) && a.im.is_same(b.im);
}

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: Every element is plain bytes without gaps.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
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
    fn new(contents: &[u8], misaligned_bytes: usize) -> Array {
        let mut bytes = vec![GUARD; contents.len() + 2 * MARGIN + 64];
        let start = MARGIN + (misaligned_bytes.wrapping_sub(bytes.as_ptr().addr() + MARGIN)) % 64;
        bytes[start..start + contents.len()].copy_from_slice(contents);
        Array { bytes, start, len: contents.len() }
    }

    fn contents(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn assert_holds<T: Sample>(&self, expected: &[T], is_exact: bool, case: &dyn Fn() -> String) {
        let (before, rest) = self.bytes.split_at(self.start);
        let is_untouched = |guards: &[u8]| guards.iter().all(|&byte| byte == GUARD);
        assert!(
            is_untouched(before) && is_untouched(&rest[self.len..]),
            "{}: wrote outside of the array",
            case()
        );
        if self.contents() == bytes_of(expected) {
            return;
        }
        for (index, &expected) in expected.iter().enumerate() {
            // SAFETY: In bounds, and bytes that a kernel has made of elements are elements.
            let found: T = unsafe { self.contents().as_ptr().cast::<T>().add(index).read_unaligned() };
            let same = bytes_of(&[found]) == bytes_of(&[expected]) || !is_exact && expected.is_same(found);
            assert!(same, "{}, element {index}: {expected:?}, not {found:?}", case());
        }
    }
}

/// All that is told apart.
const ACCESSES: [Access; 9] = [
    Access { streamed: 0, from_peers: false, to_peers: false, returned: false },
    Access { streamed: 0, from_peers: true, to_peers: false, returned: false },
    Access { streamed: 0, from_peers: true, to_peers: true, returned: false },
    Access { streamed: 1, from_peers: true, to_peers: true, returned: false },
    Access { streamed: 3, from_peers: false, to_peers: false, returned: false },
    Access { streamed: 0, from_peers: false, to_peers: false, returned: true },
    Access { streamed: 0, from_peers: true, to_peers: false, returned: true },
    Access { streamed: 0, from_peers: true, to_peers: true, returned: true },
    Access { streamed: 1, from_peers: true, to_peers: false, returned: true },
];

/// One call: the sources' beginnings combined, from any address to any address.
struct Call<'a, T> {
    kernel: Kernel,
    name: String,
    sources: &'a [Vec<T>],
    expected: &'a [T],
    /// Whether NaNs must be the oracle's as well.
    is_exact: bool,
}

impl<T: Sample> Call<'_, T> {
    /// `in_place` makes the first target the source of that number.
    fn check(&self, random: &mut Random, m: usize, len: usize, in_place: Option<usize>, access: Access) {
        // Aligned alike, any element's alignment, any byte's.
        let (kind, size) = (random.below(3), size_of::<T>());
        let shift = random.below(64 / size) * size;
        let mut misaligned = || match kind {
            0 => shift,
            1 => random.below(64 / size) * size,
            _ => random.below(64),
        };
        let array = |values: &Vec<T>, by| Array::new(bytes_of(&values[..len]), by);
        let mut sources: Vec<Array> = self.sources.iter().map(|source| array(source, misaligned())).collect();
        let mut targets: Vec<Array> = (0..m).map(|_| array(&self.sources[0], misaligned())).collect();
        let from: Vec<*const u8> = sources.iter_mut().map(|array| array.pointer().cast_const()).collect();
        let mut to: Vec<*mut u8> = targets.iter_mut().map(Array::pointer).collect();
        if let Some(source) = in_place {
            to[0] = from[source].cast_mut();
        }
        // SAFETY: The arrays have `len` elements each, are ours alone, and a target is a source only as a whole.
        unsafe {
            self.kernel.combine(&to, &from, len, Access { streamed: access.streamed.min(m), ..access })
        };
        let case = || {
            let k = self.sources.len();
            format!("{} {k} to {m}, {len} elements, in place {in_place:?}, {access:?}", self.name)
        };
        for (index, array) in targets.iter().enumerate() {
            let unused = index == 0 && in_place.is_some();
            let expected = if unused { &self.sources[0] } else { self.expected };
            array.assert_holds(&expected[..len], self.is_exact || unused, &case);
        }
        for (index, array) in sources.iter().enumerate() {
            let is_target = in_place == Some(index);
            let expected = if is_target { self.expected } else { &self.sources[index] };
            array.assert_holds(&expected[..len], self.is_exact || !is_target, &case);
        }
    }
}

/// What the kernel for a reduction combines with, before what is done in the beginning and the end.
fn oracle<T: Element>(reduction: Reduction) -> Reducer<'static, T> {
    let combining = match reduction {
        Reduction::Average | Reduction::PremultipliedSum => Reduction::Sum,
        other => other,
    };
    Reducer::named(combining).unwrap()
}

fn combines<T: Sample>() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ T::TYPE as u64);
    let per = |bytes: usize| bytes / size_of::<T>();
    let (line, block, page) = (per(64), per(1024), per(4096));
    let lens = [0, 1, 2, 3, 4, 5, line - 1, line, line + 1, 3 * line + 2, block - 1, block + line + 1];
    let large = 4 * page + block + line + 3;
    for reduction in Reduction::NAMED {
        if !reduction.is_for(T::TYPE.kind()) {
            continue;
        }
        let oracle = oracle::<T>(reduction);
        let is_exact = matches!(reduction, Reduction::Minimum | Reduction::Maximum);
        for k in [1, 2, 3, 7] {
            let sources: Vec<Vec<T>> =
                (0..k).map(|_| (0..large).map(|_| T::sample(&mut random)).collect()).collect();
            let at = |at: usize| oracle.combine(sources[0][at], sources[1..].iter().map(|other| other[at]));
            let expected: Vec<T> = (0..large).map(at).collect();
            for kernels in Kernels::all_supported() {
                let call = Call {
                    kernel: kernels.reduction(T::TYPE, reduction).unwrap(),
                    name: format!("{} {reduction} of {}", kernels.name(), T::TYPE),
                    sources: &sources,
                    expected: &expected,
                    is_exact: is_exact || k == 1,
                };
                assert_eq!(call.kernel.element_bytes(), T::TYPE.bytes());
                for access in ACCESSES {
                    for m in [1, 2, 3] {
                        for len in lens {
                            call.check(&mut random, m, len, None, access);
                            let source = random.below(k);
                            call.check(&mut random, m, len, Some(source), access);
                        }
                    }
                    call.check(&mut random, 1, large, None, access);
                    call.check(&mut random, 2, large, Some(k - 1), access);
                }
            }
        }
    }
}

fn changes<T: Sample>() {
    let mut random = Random(42 + T::TYPE as u64);
    let len = 1024 / size_of::<T>() * 2 + 5;
    let values: Vec<T> = (0..len).map(|_| T::sample(&mut random)).collect();
    for kernels in Kernels::all_supported() {
        let name = |what: &str| format!("{} {what} of {}", kernels.name(), T::TYPE);
        for reduction in Reduction::NAMED {
            let Some(finish) = kernels.finish(T::TYPE, reduction) else {
                let is_truth = reduction.changes_inputs() && reduction != Reduction::PremultipliedSum;
                let changes =
                    (is_truth || reduction == Reduction::Average) && reduction.is_for(T::TYPE.kind());
                assert!(!changes, "{}", name(reduction.name()));
                continue;
            };
            let reducer = Reducer::<T>::named(reduction).unwrap();
            for ranks in [1, 2, 3, 7, 300, u32::MAX] {
                for len in [0, 1, 5, len] {
                    let mut array = Array::new(bytes_of(&values[..len]), random.below(64));
                    // SAFETY: The array has `len` elements and is ours.
                    unsafe { finish(array.pointer(), len, ranks) };
                    let expected: Vec<T> = values[..len]
                        .iter()
                        .map(|&value| reducer.after(reducer.before(0, value), ranks))
                        .collect();
                    array
                        .assert_holds(&expected, false, &|| format!("{} by {ranks}", name(reduction.name())));
                }
            }
        }
        let Some(scale) = kernels.scale(T::TYPE) else {
            assert!(!Reduction::PremultipliedSum.is_for(T::TYPE.kind()));
            continue;
        };
        for _ in 0..4 {
            let factor = T::sample(&mut random);
            let reducer = Reducer::premultiplied_sum(vec![factor]).unwrap();
            let expected: Vec<T> = values.iter().map(|&value| reducer.before(0, value)).collect();
            let mut array = Array::new(bytes_of(&values), random.below(64));
            let mut target = Array::new(bytes_of(&values), random.below(64));
            let (from, factor) = (array.pointer(), Array::new(bytes_of(&[factor]), 1));
            // SAFETY: The arrays have `len` elements, the factor is one, and all are ours.
            unsafe {
                scale(target.pointer(), from.cast_const(), len, factor.contents().as_ptr());
                scale(from, from.cast_const(), len, factor.contents().as_ptr());
            }
            target.assert_holds(&expected, false, &|| name("scale"));
            array.assert_holds(&expected, false, &|| name("scale in place"));
        }
    }
}

fn settles<T: Sample>(nan: &[u8]) {
    let mut random = Random(17 + T::TYPE as u64);
    let len = 1024 / size_of::<T>() * 3 + 5;
    let part = nan.len();
    for kernels in Kernels::all_supported() {
        let settle = kernels.settle(T::TYPE, Reduction::Sum).unwrap();
        for round in 0..20 {
            let mut values: Vec<T> = (0..len).map(|_| T::sample(&mut random)).collect();
            if round % 2 == 0 {
                // Whole blocks without a NaN, which are left alone.
                let one = values.iter().copied().find(|value| value.is_same(*value)).unwrap();
                values[..2 * len / 3].fill(one);
            }
            let mut expected = bytes_of(&values).to_vec();
            for bytes in expected.chunks_exact_mut(part) {
                if is_nan(bytes, T::TYPE) {
                    bytes.copy_from_slice(nan);
                }
            }
            let mut array = Array::new(bytes_of(&values), random.below(64));
            // SAFETY: The array has `len` elements and is ours.
            unsafe { settle(array.pointer(), len, 3) };
            assert!(array.contents() == expected, "{} {}", kernels.name(), T::TYPE);
        }
    }
}

/// Whether a float, or a part of a complex number, is not a number: by its bits.
fn is_nan(bytes: &[u8], data_type: DataType) -> bool {
    let bits = bytes.iter().rev().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let magnitude = bits & !(1 << (8 * bytes.len() - 1));
    magnitude
        > match data_type {
            DataType::F16 | DataType::F8E5m2 => 0x7c << (8 * (bytes.len() - 1)),
            DataType::F8E4m3 => 0x7e,
            DataType::Bf16 => 0x7f80,
            DataType::F32 | DataType::Complex64 => 0x7f80_0000,
            _ => 0x7ff0_0000_0000_0000,
        }
}

#[test]
fn nans_become_one() {
    settles::<f16>(&0x7e00_u16.to_le_bytes());
    settles::<bf16>(&0x7fc0_u16.to_le_bytes());
    settles::<f32>(&0x7fc0_0000_u32.to_le_bytes());
    settles::<f64>(&0x7ff8_0000_0000_0000_u64.to_le_bytes());
    settles::<F8E4m3>(&[0x7f]);
    settles::<F8E5m2>(&[0x7e]);
    settles::<Complex<f32>>(&0x7fc0_0000_u32.to_le_bytes());
    settles::<Complex<f64>>(&0x7ff8_0000_0000_0000_u64.to_le_bytes());
    for kernels in Kernels::all_supported() {
        assert!(kernels.settle(DataType::I32, Reduction::Sum).is_none());
        assert!(kernels.settle(DataType::F32, Reduction::Maximum).is_none());
    }
}

macro_rules! each_type {
    ($($name:ident: $type:ty;)*) => {
        /// A test for each type, so that they run side by side.
        mod of {
            use super::*;

            $(#[test]
            fn $name() {
                combines::<$type>();
                changes::<$type>();
            })*
        }

        #[test]
        fn no_type_is_missing() {
            assert_eq!([$(<$type as Element>::TYPE),*], DataType::ALL);
        }
    };
}

each_type! {
    i8: i8; u8: u8; i16: i16; u16: u16; i32: i32; u32: u32; i64: i64; u64: u64;
    f16: f16; bf16: bf16; f32: f32; f64: f64; f8e4m3: F8E4m3; f8e5m2: F8E5m2;
    bool: bool; complex64: Complex<f32>; complex128: Complex<f64>;
}

#[test]
fn what_has_no_meaning_has_no_kernel() {
    for kernels in Kernels::all_supported() {
        for data_type in DataType::ALL {
            for reduction in Reduction::NAMED {
                let found = kernels.reduction(data_type, reduction).is_some();
                assert_eq!(found, reduction.is_for(data_type.kind()), "{reduction} of {data_type}");
                if !found {
                    assert!(kernels.finish(data_type, reduction).is_none());
                }
            }
            assert!(kernels.reduction(data_type, Reduction::UserDefined { commutes: true }).is_none());
            assert_eq!(kernels.scale(data_type).is_some(), data_type.kind() != Kind::Bool);
        }
    }
}

#[test]
fn copies_are_exact() {
    let mut random = Random(7);
    let bytes: Vec<u8> = (0..40_000).map(|_| random.next() as u8).collect();
    for kernels in Kernels::all_supported() {
        let call = Call {
            kernel: kernels.copy(),
            name: format!("{} copy", kernels.name()),
            sources: std::slice::from_ref(&bytes),
            expected: &bytes,
            is_exact: true,
        };
        assert_eq!(call.kernel.element_bytes(), 1);
        for len in (0..200).chain([1023, 4096, 8192, 8193, 16_384, 16_500, 40_000]) {
            for m in [1, 2, 3] {
                for access in ACCESSES {
                    call.check(&mut random, m, len, None, access);
                    call.check(&mut random, m, len, Some(0), access);
                }
            }
        }
    }
}

#[test]
fn the_order_of_the_sources_is_kept() {
    let mut arrays = [[1e30_f32; 100], [-1e30; 100], [1.0; 100]];
    for kernels in Kernels::all_supported() {
        let sum = kernels.reduction(DataType::F32, Reduction::Sum).unwrap();
        let mut target = [0.0_f32; 100];
        for (order, expected) in [([0, 1, 2], 1.0), ([0, 2, 1], 0.0)] {
            let sources = order.map(|index: usize| arrays[index].as_mut_ptr().cast_const().cast());
            // SAFETY: All arrays have 100 elements and are ours.
            unsafe { sum.combine(&[target.as_mut_ptr().cast()], &sources, 100, Access::default()) };
            assert_eq!(target, [expected; 100], "{}", kernels.name());
        }
    }
}

#[test]
fn the_fastest_is_chosen() {
    assert_eq!(Kernels::detect().name(), Kernels::all_supported()[0].name());
    assert_eq!(Kernels::all_supported().last().map(Kernels::name), Some("portable"));
}

/// All values of a narrow float, and all that it can be rounded from: values, middles between neighbours, and what lies next
/// to those.
fn converts<T>(all: impl Iterator<Item = T>)
where
    T: Sample + Lane<Wide = f32> + Element<Wide = f32>,
{
    let all: Vec<T> = all.collect();
    let mut values: Vec<f32> = all.iter().map(|&value| Element::widen(value)).collect();
    for (&narrow, &wide) in all.iter().zip(&values) {
        let found = Lane::widen(narrow);
        let same = found.to_bits() == wide.to_bits() || found.is_nan() && wide.is_nan();
        assert!(same, "{narrow:?} as f32 is {wide:e}, not {found:e}");
    }
    values.retain(|value| value.is_finite());
    values.sort_by(f32::total_cmp);
    let middles = values.windows(2).map(|pair| ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32);
    let beyond = [values[0], *values.last().unwrap()]
        .map(|most| [1.01_f32, 1.02, 1.04, 1.08, 1.2, 2.0].map(|by| most * by));
    let mut random = Random(3);
    let any = (0..100_000).map(|_| f32::from_bits(random.next() as u32));
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0001),
        f32::MAX,
        f32::MIN,
    ];
    for middle in
        middles.chain(beyond.into_iter().flatten()).chain(values.iter().copied()).chain(any).chain(special)
    {
        for value in [middle.next_down(), middle, middle.next_up()] {
            let (expected, found) = (<T as Element>::narrow(value), <T as Lane>::narrow(value));
            assert!(expected.is_same(found), "{value:e} is {expected:?}, not {found:?}");
        }
    }
}

#[test]
fn conversions_are_those_of_the_oracle() {
    converts((0..=u16::MAX).map(f16::from_bits));
    converts((0..=u16::MAX).map(bf16::from_bits));
    converts((0..=u8::MAX).map(F8E4m3::from_bits));
    converts((0..=u8::MAX).map(F8E5m2::from_bits));
}

#[test]
fn every_narrow_float_survives_a_sum() {
    fn survive<T: Sample>(all: Vec<T>, zero: T) {
        let zeros = vec![zero; all.len()];
        let mut random = Random(9);
        for kernels in Kernels::all_supported() {
            let call = Call {
                kernel: kernels.reduction(T::TYPE, Reduction::Sum).unwrap(),
                name: format!("{} nothing added to {}", kernels.name(), T::TYPE),
                sources: &[all.clone(), zeros.clone()],
                expected: &all,
                is_exact: false,
            };
            call.check(&mut random, 1, all.len(), None, Access::default());
        }
    }
    // What is added to -0 stays, even +0 and -0.
    survive((0..=u16::MAX).map(f16::from_bits).collect(), f16::NEG_ZERO);
    survive((0..=u16::MAX).map(bf16::from_bits).collect(), bf16::NEG_ZERO);
    survive((0..=u8::MAX).map(F8E4m3::from_bits).collect(), F8E4m3::from_bits(0x80));
    survive((0..=u8::MAX).map(F8E5m2::from_bits).collect(), F8E5m2::from_bits(0x80));
}
