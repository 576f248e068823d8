//! Registers of 32 bytes, half a cache line each: AVX2, and F16C, which has always come with it.

use std::arch::x86_64::*;
use std::ptr::copy_nonoverlapping;

use weftlink_plan::element::f16;

use super::combine::Sums;
use super::set::{Combine, Set, compiled_for};
use super::vector::vector;

pub(super) struct Avx2;

impl Avx2 {
    pub(super) fn is_here() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }
}

impl Set for Avx2 {
    const NAME: &'static str = "avx2";
    const STREAMS: bool = true;

    compiled_for!("avx2,f16c");

    #[inline(always)]
    unsafe fn stream(from: *const u8, to: *mut u8) {
        // SAFETY: The caller's promise, alignment included: a line is two registers.
        unsafe {
            _mm256_stream_si256(to.cast(), _mm256_loadu_si256(from.cast()));
            _mm256_stream_si256(to.add(32).cast(), _mm256_loadu_si256(from.add(32).cast()));
        }
    }

    #[inline(always)]
    fn fence() {
        fence();
    }

    fn sum_f32() -> Combine {
        Self::combine::<Sums<__m256, 2, 4, 8>>()
    }

    fn sum_f64() -> Combine {
        Self::combine::<Sums<__m256d, 2, 4, 8>>()
    }

    fn sum_f16() -> Combine {
        Self::combine::<Sums<Halves, 4, 8, 8>>()
    }
}

#[inline(always)]
fn fence() {
    // SAFETY: Every x86-64 has it.
    unsafe { _mm_sfence() }
}

/// The first `lanes` of 4 or 8, each of as many bytes as make 32: a window into ones followed by zeros.
#[inline(always)]
fn mask(lanes: usize, of: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = lanes * (8 / of);
    let window = &ONES_THEN_ZEROS[8 - words..16 - words];
    // SAFETY: The window has 8 elements, 32 bytes, and the instruction takes any alignment. Only functions that
    // require AVX2 call this.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

vector! {
    __m256, f32, 8, streams: true,
    load: |from| _mm256_loadu_ps(from),
    load_part: |from, lanes| _mm256_maskload_ps(from, mask(lanes, 8)),
    add: |left, right| _mm256_add_ps(left, right),
    store: |register, to| _mm256_storeu_ps(to, register),
    store_part: |register, to, lanes| _mm256_maskstore_ps(to, mask(lanes, 8), register),
    stream: |register, to| _mm256_stream_ps(to, register),
    fence: fence(),
}

vector! {
    __m256d, f64, 4, streams: true,
    load: |from| _mm256_loadu_pd(from),
    load_part: |from, lanes| _mm256_maskload_pd(from, mask(lanes, 4)),
    add: |left, right| _mm256_add_pd(left, right),
    store: |register, to| _mm256_storeu_pd(to, register),
    store_part: |register, to, lanes| _mm256_maskstore_pd(to, mask(lanes, 4), register),
    stream: |register, to| _mm256_stream_pd(to, register),
    fence: fence(),
}

/// Eight f16, widened.
#[derive(Clone, Copy)]
struct Halves(__m256);

impl Halves {
    /// # Safety
    /// The machine has F16C.
    #[inline(always)]
    unsafe fn narrow(self) -> __m128i {
        // SAFETY: The caller's promise.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0) }
    }

    /// There are no masks for 16 bits.
    ///
    /// # Safety
    /// `lanes` elements can be read, fewer than 8; the machine has F16C.
    #[inline(always)]
    unsafe fn load_part(from: *const f16, lanes: usize) -> Halves {
        let mut all = [0_u16; 8];
        // SAFETY: The caller's promise. As bytes they need no alignment.
        unsafe {
            copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), lanes * 2);
            Halves(_mm256_cvtph_ps(_mm_loadu_si128(all.as_ptr().cast())))
        }
    }

    /// # Safety
    /// `lanes` elements can be written, fewer than 8; the machine has F16C.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f16, lanes: usize) {
        let mut all = [0_u16; 8];
        // SAFETY: The caller's promise. As bytes they need no alignment.
        unsafe {
            _mm_storeu_si128(all.as_mut_ptr().cast(), self.narrow());
            copy_nonoverlapping(all.as_ptr().cast::<u8>(), to.cast(), lanes * 2);
        }
    }
}

vector! {
    Halves, f16, 8, streams: true,
    load: |from| Halves(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))),
    load_part: |from, lanes| Halves::load_part(from, lanes),
    add: |left, right| Halves(_mm256_add_ps(left.0, right.0)),
    store: |register, to| _mm_storeu_si128(to.cast(), register.narrow()),
    store_part: |register, to, lanes| Halves::store_part(register, to, lanes),
    stream: |register, to| _mm_stream_si128(to.cast(), register.narrow()),
    fence: fence(),
}
