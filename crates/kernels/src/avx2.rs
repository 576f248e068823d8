//! AVX2, with registers of 32 bytes, half a cache line; and F16C, which every CPU with AVX2 has.

use std::arch::x86_64::*;
use std::ptr::copy_nonoverlapping;

use weftlink_plan::element::{bf16, f16};

use super::combine::Sums;
use super::instructions::Instructions;
use super::set::{Combine, Set, compiled_for};
use super::vector::vector;

pub(super) struct Avx2;

impl Avx2 {
    pub(super) fn is_supported() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }
}

impl Set for Avx2 {
    const NAME: &'static str = "avx2";

    compiled_for!("avx2,f16c");

    fn sum_f32() -> Combine {
        Self::combine::<Sums<__m256, 2, 4, 8>>()
    }

    fn sum_f64() -> Combine {
        Self::combine::<Sums<__m256d, 2, 4, 8>>()
    }

    fn sum_f16() -> Combine {
        Self::combine::<Sums<WideF16, 4, 8, 8>>()
    }

    fn sum_bf16() -> Combine {
        Self::combine::<Sums<WideBf16, 2, 4, 4>>()
    }
}

impl Instructions for Avx2 {
    const STREAMS: bool = true;

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
}

#[inline(always)]
fn fence() {
    // SAFETY: Every x86-64 CPU has this instruction.
    unsafe { _mm_sfence() }
}

/// A mask of the first `lanes` of `of` lanes (4 or 8) in 32 bytes: a window into ones followed by zeros.
#[inline(always)]
fn mask(lanes: usize, of: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = lanes * (8 / of);
    let window = &ONES_THEN_ZEROS[8 - words..16 - words];
    // SAFETY: The window has 8 elements, 32 bytes, and the instruction allows any alignment. Only functions that require AVX2 call this.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

vector! {
    __m256, f32, 8, streams: true,
    load: |from| _mm256_loadu_ps(from),
    load_part: |from, lanes| _mm256_maskload_ps(from, mask(lanes, 8)),
    add: |left, right| _mm256_add_ps(left, right),
    canonical: |registers| {
        let mut unordered = _mm256_setzero_ps();
        for pair in registers.chunks(2) {
            let either = _mm256_cmp_ps::<_CMP_UNORD_Q>(pair[0], pair[pair.len() - 1]);
            unordered = _mm256_or_ps(unordered, either);
        }
        if _mm256_movemask_ps(unordered) != 0 {
            for register in registers {
                let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(*register, *register);
                *register = _mm256_blendv_ps(*register, _mm256_set1_ps(f32::NAN), is_nan);
            }
        }
    },
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
    canonical: |registers| {
        let mut unordered = _mm256_setzero_pd();
        for pair in registers.chunks(2) {
            let either = _mm256_cmp_pd::<_CMP_UNORD_Q>(pair[0], pair[pair.len() - 1]);
            unordered = _mm256_or_pd(unordered, either);
        }
        if _mm256_movemask_pd(unordered) != 0 {
            for register in registers {
                let is_nan = _mm256_cmp_pd::<_CMP_UNORD_Q>(*register, *register);
                *register = _mm256_blendv_pd(*register, _mm256_set1_pd(f64::NAN), is_nan);
            }
        }
    },
    store: |register, to| _mm256_storeu_pd(to, register),
    store_part: |register, to, lanes| _mm256_maskstore_pd(to, mask(lanes, 4), register),
    stream: |register, to| _mm256_stream_pd(to, register),
    fence: fence(),
}

/// Eight f16, widened.
#[derive(Clone, Copy)]
struct WideF16(__m256);

impl WideF16 {
    /// # Safety
    /// The machine has F16C.
    #[inline(always)]
    unsafe fn narrow(self) -> __m128i {
        // SAFETY: The caller's promise.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0) }
    }
}

/// Reads part of a register of 16-bit elements through a buffer: there are no masked loads for them.
///
/// # Safety
/// `from` is valid for reads of `lanes` elements, fewer than `N`.
#[inline(always)]
unsafe fn part<T, const N: usize>(from: *const T, lanes: usize) -> [u16; N] {
    let mut all = [0; N];
    // SAFETY: The caller's promise. A copy of bytes needs no alignment.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), lanes * 2) };
    all
}

/// Writes part of a register through a buffer.
///
/// # Safety
/// `to` is valid for writes of `lanes` elements, fewer than `N`.
#[inline(always)]
unsafe fn put<T, const N: usize>(all: [u16; N], to: *mut T, lanes: usize) {
    // SAFETY: The caller's promise. A copy of bytes needs no alignment.
    unsafe { copy_nonoverlapping(all.as_ptr().cast::<u8>(), to.cast(), lanes * 2) }
}

vector! {
    WideF16, f16, 8, streams: true,
    load: |from| WideF16(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))),
    load_part: |from, lanes| {
        WideF16(_mm256_cvtph_ps(_mm_loadu_si128(part::<f16, 8>(from, lanes).as_ptr().cast())))
    },
    add: |left, right| WideF16(_mm256_add_ps(left.0, right.0)),
    canonical: |registers| {
        let mut unordered = _mm256_setzero_ps();
        for pair in registers.chunks(2) {
            let either = _mm256_cmp_ps::<_CMP_UNORD_Q>(pair[0].0, pair[pair.len() - 1].0);
            unordered = _mm256_or_ps(unordered, either);
        }
        if _mm256_movemask_ps(unordered) != 0 {
            for register in registers {
                let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(register.0, register.0);
                register.0 = _mm256_blendv_ps(register.0, _mm256_set1_ps(f32::NAN), is_nan);
            }
        }
    },
    store: |register, to| _mm_storeu_si128(to.cast(), register.narrow()),
    store_part: |register, to, lanes| {
        let mut all = [0; 8];
        _mm_storeu_si128(all.as_mut_ptr().cast(), register.narrow());
        put(all, to, lanes)
    },
    stream: |register, to| _mm_stream_si128(to.cast(), register.narrow()),
    fence: fence(),
}

/// Sixteen bf16, widened in place: the even lanes, then the odd lanes. No data crosses lanes.
#[derive(Clone, Copy)]
struct WideBf16(__m256, __m256);

impl WideBf16 {
    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn widen(both: __m256i) -> WideBf16 {
        // SAFETY: The caller's promise.
        unsafe {
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            WideBf16(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
        }
    }

    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn narrow(self) -> __m256i {
        // SAFETY: The caller's promise.
        unsafe {
            let even = _mm256_srli_epi32::<16>(Self::rounded(self.0));
            _mm256_blend_epi16::<0b1010_1010>(even, Self::rounded(self.1))
        }
    }

    /// Rounded to the upper halves, every NaN to the canonical one.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[inline(always)]
    unsafe fn rounded(wide: __m256) -> __m256i {
        // SAFETY: The caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(wide);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide);
            _mm256_castps_si256(_mm256_blendv_ps(rounded, _mm256_set1_ps(f32::NAN), is_nan))
        }
    }
}

vector! {
    WideBf16, bf16, 16, streams: true,
    load: |from| WideBf16::widen(_mm256_loadu_si256(from.cast())),
    load_part: |from, lanes| {
        WideBf16::widen(_mm256_loadu_si256(part::<bf16, 16>(from, lanes).as_ptr().cast()))
    },
    add: |left, right| WideBf16(_mm256_add_ps(left.0, right.0), _mm256_add_ps(left.1, right.1)),
    store: |register, to| _mm256_storeu_si256(to.cast(), register.narrow()),
    store_part: |register, to, lanes| {
        let mut all = [0; 16];
        _mm256_storeu_si256(all.as_mut_ptr().cast(), register.narrow());
        put(all, to, lanes)
    },
    stream: |register, to| _mm256_stream_si256(to.cast(), register.narrow()),
    fence: fence(),
}
