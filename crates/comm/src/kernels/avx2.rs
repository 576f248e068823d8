//! Registers of 32 bytes, half a cache line each.

use std::arch::x86_64::{
    __m256, __m256i, _mm_sfence, _mm256_add_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_ps,
    _mm256_maskstore_ps, _mm256_storeu_ps, _mm256_stream_ps,
};

use super::Store;
use super::combine::combine;
use super::vector::{Operation, Sum, Vector};

/// # Safety
/// As for [`super::Kernels::sum_f32`], on a machine with AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sum_f32(targets: &[*mut f32], sources: &[*const f32], len: usize, store: Store) {
    // SAFETY: The caller's promise.
    unsafe { combine::<__m256, Sum, 2, 4, 8>(targets, sources, len, store) }
}

// SAFETY: Each method is the instruction it names; masked lanes are not touched.
unsafe impl Vector for __m256 {
    type Element = f32;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: The caller's promise; the instruction takes any alignment.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, lanes: usize) -> Self {
        // SAFETY: The caller's promise; lanes past the first `lanes` are masked out.
        unsafe { _mm256_maskload_ps(from, mask(lanes)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: The caller's promise; the instruction takes any alignment.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, lanes: usize) {
        // SAFETY: The caller's promise; lanes past the first `lanes` are masked out.
        unsafe { _mm256_maskstore_ps(to, mask(lanes), self) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: The caller's promise, alignment included.
        unsafe { _mm256_stream_ps(to, self) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: Every x86-64 has it.
        unsafe { _mm_sfence() }
    }
}

impl Operation<__m256> for Sum {
    #[inline(always)]
    unsafe fn apply(left: __m256, right: __m256) -> __m256 {
        // SAFETY: The caller's promise.
        unsafe { _mm256_add_ps(left, right) }
    }
}

/// A window into ones followed by zeros.
#[inline(always)]
fn mask(lanes: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let window = &ONES_THEN_ZEROS[8 - lanes..16 - lanes];
    // SAFETY: The window has 8 elements, 32 bytes, and the instruction takes any alignment. Only functions that
    // require AVX2 call this.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}
