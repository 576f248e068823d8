//! AVX-512 (F, BW, DQ, VL), with registers of 64 bytes, a cache line.

use std::arch::x86_64::*;

use weftlink_plan::element::{bf16, f16};

use super::combine::Sums;
use super::instructions::Instructions;
use super::set::{Combine, Set, compiled_for};
use super::vector::vector;

pub(super) struct Avx512;

impl Avx512 {
    pub(super) fn is_supported() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }
}

impl Set for Avx512 {
    const NAME: &'static str = "avx512";

    compiled_for!("avx512f,avx512bw,avx512dq,avx512vl");

    fn sum_f32() -> Combine {
        Self::combine::<Sums<__m512, 1, 2, 8>>()
    }

    fn sum_f64() -> Combine {
        Self::combine::<Sums<__m512d, 1, 2, 8>>()
    }

    fn sum_f16() -> Combine {
        Self::combine::<Sums<WideF16, 2, 4, 8>>()
    }

    fn sum_bf16() -> Combine {
        Self::combine::<Sums<WideBf16, 1, 2, 4>>()
    }
}

impl Instructions for Avx512 {
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn stream(from: *const u8, to: *mut u8) {
        // SAFETY: The caller's promise, alignment included.
        unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) }
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

#[inline(always)]
fn mask(lanes: usize) -> u16 {
    debug_assert!(lanes < 16);
    ((1_u32 << lanes) - 1) as u16
}

vector! {
    __m512, f32, 16, streams: true,
    load: |from| _mm512_loadu_ps(from),
    load_part: |from, lanes| _mm512_maskz_loadu_ps(mask(lanes), from),
    add: |left, right| _mm512_add_ps(left, right),
    canonical: |registers| {
        let mut unordered = 0;
        for pair in registers.chunks(2) {
            unordered |= _mm512_cmpunord_ps_mask(pair[0], pair[pair.len() - 1]);
        }
        if unordered != 0 {
            for register in registers {
                let is_nan = _mm512_cmpunord_ps_mask(*register, *register);
                *register = _mm512_mask_mov_ps(*register, is_nan, _mm512_set1_ps(f32::NAN));
            }
        }
    },
    store: |register, to| _mm512_storeu_ps(to, register),
    store_part: |register, to, lanes| _mm512_mask_storeu_ps(to, mask(lanes), register),
    stream: |register, to| _mm512_stream_ps(to, register),
    fence: fence(),
}

vector! {
    __m512d, f64, 8, streams: true,
    load: |from| _mm512_loadu_pd(from),
    load_part: |from, lanes| _mm512_maskz_loadu_pd(mask(lanes) as u8, from),
    add: |left, right| _mm512_add_pd(left, right),
    canonical: |registers| {
        let mut unordered = 0;
        for pair in registers.chunks(2) {
            unordered |= _mm512_cmpunord_pd_mask(pair[0], pair[pair.len() - 1]);
        }
        if unordered != 0 {
            for register in registers {
                let is_nan = _mm512_cmpunord_pd_mask(*register, *register);
                *register = _mm512_mask_mov_pd(*register, is_nan, _mm512_set1_pd(f64::NAN));
            }
        }
    },
    store: |register, to| _mm512_storeu_pd(to, register),
    store_part: |register, to, lanes| _mm512_mask_storeu_pd(to, mask(lanes) as u8, register),
    stream: |register, to| _mm512_stream_pd(to, register),
    fence: fence(),
}

/// Sixteen f16, widened.
#[derive(Clone, Copy)]
struct WideF16(__m512);

impl WideF16 {
    /// # Safety
    /// The machine has AVX-512F.
    #[inline(always)]
    unsafe fn narrow(self) -> __m256i {
        // SAFETY: The caller's promise.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0) }
    }
}

vector! {
    WideF16, f16, 16, streams: true,
    load: |from| WideF16(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))),
    load_part: |from, lanes| WideF16(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(lanes), from.cast()))),
    add: |left, right| WideF16(_mm512_add_ps(left.0, right.0)),
    canonical: |registers| {
        let mut unordered = 0;
        for pair in registers.chunks(2) {
            unordered |= _mm512_cmpunord_ps_mask(pair[0].0, pair[pair.len() - 1].0);
        }
        if unordered != 0 {
            for register in registers {
                let is_nan = _mm512_cmpunord_ps_mask(register.0, register.0);
                register.0 = _mm512_mask_mov_ps(register.0, is_nan, _mm512_set1_ps(f32::NAN));
            }
        }
    },
    store: |register, to| _mm256_storeu_si256(to.cast(), register.narrow()),
    store_part: |register, to, lanes| _mm256_mask_storeu_epi16(to.cast(), mask(lanes), register.narrow()),
    stream: |register, to| _mm256_stream_si256(to.cast(), register.narrow()),
    fence: fence(),
}

/// Thirty-two bf16, widened in place: the even lanes, then the odd lanes. No data crosses lanes.
#[derive(Clone, Copy)]
struct WideBf16(__m512, __m512);

impl WideBf16 {
    /// # Safety
    /// The machine has AVX-512F.
    #[inline(always)]
    unsafe fn widen(both: __m512i) -> WideBf16 {
        // SAFETY: The caller's promise.
        unsafe {
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            WideBf16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
        }
    }

    /// # Safety
    /// The machine has AVX-512F and BW.
    #[inline(always)]
    unsafe fn narrow(self) -> __m512i {
        // SAFETY: The caller's promise.
        unsafe {
            let even = _mm512_srli_epi32::<16>(Self::rounded(self.0));
            _mm512_mask_blend_epi16(0xaaaa_aaaa, even, Self::rounded(self.1))
        }
    }

    /// Rounded to the upper halves, every NaN to the canonical one.
    ///
    /// # Safety
    /// The machine has AVX-512F.
    #[inline(always)]
    unsafe fn rounded(wide: __m512) -> __m512i {
        // SAFETY: The caller's promise.
        unsafe {
            let bits = _mm512_castps_si512(wide);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let nan = _mm512_set1_epi32(f32::NAN.to_bits() as i32);
            _mm512_mask_add_epi32(nan, _mm512_cmpord_ps_mask(wide, wide), bits, half)
        }
    }
}

#[inline(always)]
fn mask_of_32(lanes: usize) -> u32 {
    debug_assert!(lanes < 32);
    (1_u32 << lanes) - 1
}

vector! {
    WideBf16, bf16, 32, streams: true,
    load: |from| WideBf16::widen(_mm512_loadu_si512(from.cast())),
    load_part: |from, lanes| WideBf16::widen(_mm512_maskz_loadu_epi16(mask_of_32(lanes), from.cast())),
    add: |left, right| WideBf16(_mm512_add_ps(left.0, right.0), _mm512_add_ps(left.1, right.1)),
    store: |register, to| _mm512_storeu_si512(to.cast(), register.narrow()),
    store_part: |register, to, lanes| _mm512_mask_storeu_epi16(to.cast(), mask_of_32(lanes), register.narrow()),
    stream: |register, to| _mm512_stream_si512(to.cast(), register.narrow()),
    fence: fence(),
}
