//! Registers of 64 bytes, a cache line each.

use std::arch::x86_64::{
    __m512, __mmask16, _mm_sfence, _mm512_add_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps,
};

use super::Store;
use super::combine::combine;
use super::vector::{Operation, Sum, Vector};

/// # Safety
/// As for [`super::Kernels::sum_f32`], on a machine with AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn sum_f32(targets: &[*mut f32], sources: &[*const f32], len: usize, store: Store) {
    // SAFETY: The caller's promise.
    unsafe { combine::<__m512, Sum, 1, 2, 8>(targets, sources, len, store) }
}

// SAFETY: Each method is the instruction it names; masked lanes are not touched.
unsafe impl Vector for __m512 {
    type Element = f32;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: The caller's promise; the instruction takes any alignment.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, lanes: usize) -> Self {
        // SAFETY: The caller's promise; lanes past the first `lanes` are masked out.
        unsafe { _mm512_maskz_loadu_ps(mask(lanes), from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: The caller's promise; the instruction takes any alignment.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, lanes: usize) {
        // SAFETY: The caller's promise; lanes past the first `lanes` are masked out.
        unsafe { _mm512_mask_storeu_ps(to, mask(lanes), self) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: The caller's promise, alignment included.
        unsafe { _mm512_stream_ps(to, self) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: Every x86-64 has it.
        unsafe { _mm_sfence() }
    }
}

impl Operation<__m512> for Sum {
    #[inline(always)]
    unsafe fn apply(left: __m512, right: __m512) -> __m512 {
        // SAFETY: The caller's promise.
        unsafe { _mm512_add_ps(left, right) }
    }
}

#[inline(always)]
fn mask(lanes: usize) -> __mmask16 {
    debug_assert!(lanes < 16);
    ((1_u32 << lanes) - 1) as __mmask16
}
