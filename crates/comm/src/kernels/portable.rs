//! Registers as the compiler likes them: an array that it turns into SSE2, NEON or whatever the target always has.
//!
//! Stores are always cached: there is no portable way to ask for others.

use std::ptr::copy_nonoverlapping;

use super::Store;
use super::combine::combine;
use super::vector::{Operation, Sum, Vector};

/// # Safety
/// As for [`super::Kernels::sum_f32`].
pub(super) unsafe fn sum_f32(targets: &[*mut f32], sources: &[*const f32], len: usize, _: Store) {
    // SAFETY: The caller's promise.
    unsafe { combine::<F32x4, Sum, 4, 8, 8>(targets, sources, len, Store::Cached) }
}

#[derive(Clone, Copy)]
struct F32x4([f32; 4]);

// SAFETY: Each method copies as many bytes as it is told elements, and bytes have no alignment.
unsafe impl Vector for F32x4 {
    type Element = f32;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: The caller's promise.
        F32x4(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, lanes: usize) -> Self {
        let mut all = [0.0; 4];
        // SAFETY: The caller's promise, and `lanes` is less than 4.
        unsafe { copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), lanes * 4) };
        F32x4(all)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: The caller's promise.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, lanes: usize) {
        // SAFETY: The caller's promise, and `lanes` is less than 4.
        unsafe { copy_nonoverlapping(self.0.as_ptr().cast::<u8>(), to.cast(), lanes * 4) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: The caller's promise.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    fn fence() {}
}

impl Operation<F32x4> for Sum {
    #[inline(always)]
    unsafe fn apply(left: F32x4, right: F32x4) -> F32x4 {
        F32x4(std::array::from_fn(|lane| left.0[lane] + right.0[lane]))
    }
}
