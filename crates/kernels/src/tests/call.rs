//! Calls of a kernel at random addresses, with guards around the arrays.

use weftlink_plan::element::Element;

use super::samples::{Random, Sample};
use crate::{Access, Kernel};

pub(super) fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: Elements have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// An array at a given misalignment, with guard bytes around it.
pub(super) struct Array {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xA5;
const MARGIN: usize = 128;

impl Array {
    pub(super) fn new(contents: &[u8], misaligned_bytes: usize) -> Array {
        let mut bytes = vec![GUARD; contents.len() + 2 * MARGIN + 64];
        let start = MARGIN + (misaligned_bytes.wrapping_sub(bytes.as_ptr().addr() + MARGIN)) % 64;
        bytes[start..start + contents.len()].copy_from_slice(contents);
        Array { bytes, start, len: contents.len() }
    }

    pub(super) fn contents(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(super) fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub(super) fn assert_holds<T: Sample>(&self, expected: &[T], case: &dyn Fn() -> String) {
        let (before, rest) = self.bytes.split_at(self.start);
        let is_untouched = |guards: &[u8]| guards.iter().all(|&byte| byte == GUARD);
        assert!(
            is_untouched(before) && is_untouched(&rest[self.len..]),
            "{}: wrote outside the array",
            case()
        );
        if self.contents() == bytes_of(expected) {
            return;
        }
        for (index, &expected) in expected.iter().enumerate() {
            // SAFETY: In bounds, and a kernel writes valid elements only.
            let found: T = unsafe { self.contents().as_ptr().cast::<T>().add(index).read_unaligned() };
            let (found_bytes, bytes) = (bytes_of(&[found]).to_vec(), bytes_of(&[expected]).to_vec());
            let case = || format!("{}, element {index}", case());
            assert!(
                found_bytes == bytes,
                "{}: expected {expected:?} {bytes:02x?}, got {found:?} {found_bytes:02x?}",
                case()
            );
        }
    }
}

/// Every combination that kernels treat differently.
pub(super) const ACCESSES: [Access; 9] = [
    Access { streamed: 0, from_peers: false, to_peers: false, migratory: false },
    Access { streamed: 0, from_peers: true, to_peers: false, migratory: false },
    Access { streamed: 0, from_peers: true, to_peers: true, migratory: false },
    Access { streamed: 1, from_peers: true, to_peers: true, migratory: false },
    Access { streamed: 3, from_peers: false, to_peers: false, migratory: false },
    Access { streamed: 0, from_peers: false, to_peers: false, migratory: true },
    Access { streamed: 0, from_peers: true, to_peers: false, migratory: true },
    Access { streamed: 0, from_peers: true, to_peers: true, migratory: true },
    Access { streamed: 1, from_peers: true, to_peers: false, migratory: true },
];

/// A kernel with its sources and the expected result; [`check`](Self::check) calls it at random addresses.
pub(super) struct Call<'a, T> {
    pub(super) kernel: Kernel,
    pub(super) name: String,
    pub(super) sources: &'a [Vec<T>],
    pub(super) expected: &'a [T],
}

impl<T: Sample> Call<'_, T> {
    /// Calls the kernel with `m` targets; `in_place` is the source that is also the first target.
    pub(super) fn check(
        &self,
        random: &mut Random,
        m: usize,
        len: usize,
        in_place: Option<usize>,
        access: Access,
    ) {
        // All arrays aligned alike, each aligned to elements, each at any byte.
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
        // SAFETY: The arrays have `len` elements each, nothing else accesses them, and a target equals a source exactly or not at all.
        unsafe {
            self.kernel.combine(&to, &from, len, Access { streamed: access.streamed.min(m), ..access })
        };
        let case = || {
            let k = self.sources.len();
            format!("{} {k} to {m}, {len} elements, in place {in_place:?}, {access:?}", self.name)
        };
        for (index, array) in targets.iter().enumerate() {
            let is_unused = index == 0 && in_place.is_some();
            let expected = if is_unused { &self.sources[0] } else { self.expected };
            array.assert_holds(&expected[..len], &case);
        }
        for (index, array) in sources.iter().enumerate() {
            let is_target = in_place == Some(index);
            let expected = if is_target { self.expected } else { &self.sources[index] };
            array.assert_holds(&expected[..len], &case);
        }
    }
}
