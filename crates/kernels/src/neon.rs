//! Registers of 16 bytes, a quarter of a cache line each: what every 64-bit ARM has.
//!
//! Deliberately absent: stores past the caches. The language has no intrinsic for them.

use std::arch::aarch64::*;
use std::ptr::copy_nonoverlapping;

use weftlink_plan::element::f16;

use super::combine::Sums;
use super::instructions::Instructions;
use super::set::{Combine, Set, compiled_for};
use super::vector::vector;

pub(super) struct Neon;

impl Set for Neon {
    const NAME: &'static str = "neon";

    compiled_for!("neon");

    fn sum_f32() -> Combine {
        Self::combine::<Sums<float32x4_t, 4, 8, 8>>()
    }

    fn sum_f64() -> Combine {
        Self::combine::<Sums<float64x2_t, 4, 8, 8>>()
    }

    fn sum_f16() -> Combine {
        Self::combine::<Sums<Halves, 8, 8, 8>>()
    }
}

impl Instructions for Neon {
    const STREAMS: bool = false;

    unsafe fn stream(_: *const u8, _: *mut u8) {
        unreachable!("it does not stream")
    }

    fn fence() {}
}

/// The first few elements of a register, by way of memory: there are no masks.
///
/// # Safety
/// `lanes` elements can be read, fewer than `N`.
#[inline(always)]
unsafe fn part<T: Copy, const N: usize>(from: *const T, lanes: usize, zero: T) -> [T; N] {
    let mut all = [zero; N];
    // SAFETY: The caller's promise. As bytes they need no alignment.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), lanes * size_of::<T>()) };
    all
}

/// The other way round.
///
/// # Safety
/// `lanes` elements can be written, fewer than `N`.
#[inline(always)]
unsafe fn put<T, const N: usize>(all: [T; N], to: *mut T, lanes: usize) {
    // SAFETY: The caller's promise. As bytes they need no alignment.
    unsafe { copy_nonoverlapping(all.as_ptr().cast::<u8>(), to.cast(), lanes * size_of::<T>()) }
}

vector! {
    float32x4_t, f32, 4, streams: false,
    load: |from| vld1q_f32(from),
    load_part: |from, lanes| vld1q_f32(part::<f32, 4>(from, lanes, 0.0).as_ptr()),
    add: |left, right| vaddq_f32(left, right),
    store: |register, to| vst1q_f32(to, register),
    store_part: |register, to, lanes| {
        let mut all = [0.0; 4];
        vst1q_f32(all.as_mut_ptr(), register);
        put(all, to, lanes)
    },
    stream: |register, to| vst1q_f32(to, register),
    fence: (),
}

vector! {
    float64x2_t, f64, 2, streams: false,
    load: |from| vld1q_f64(from),
    load_part: |from, lanes| vld1q_f64(part::<f64, 2>(from, lanes, 0.0).as_ptr()),
    add: |left, right| vaddq_f64(left, right),
    store: |register, to| vst1q_f64(to, register),
    store_part: |register, to, lanes| {
        let mut all = [0.0; 2];
        vst1q_f64(all.as_mut_ptr(), register);
        put(all, to, lanes)
    },
    stream: |register, to| vst1q_f64(to, register),
    fence: (),
}

/// Four f16, widened.
#[derive(Clone, Copy)]
struct Halves(float32x4_t);

impl Halves {
    /// # Safety
    /// Four can be read.
    #[inline(always)]
    unsafe fn widen(from: *const u16) -> Halves {
        // SAFETY: The caller's promise; every 64-bit ARM has the conversion.
        unsafe { Halves(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))) }
    }

    /// # Safety
    /// Four can be written.
    #[inline(always)]
    unsafe fn narrow(self, to: *mut u16) {
        // SAFETY: As above. It rounds to nearest, ties to even, unless somebody has told the processor otherwise.
        unsafe { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(self.0))) }
    }
}

vector! {
    Halves, f16, 4, streams: false,
    load: |from| Halves::widen(from.cast()),
    load_part: |from, lanes| Halves::widen(part::<u16, 4>(from.cast(), lanes, 0).as_ptr()),
    add: |left, right| Halves(vaddq_f32(left.0, right.0)),
    store: |register, to| register.narrow(to.cast()),
    store_part: |register, to, lanes| {
        let mut all = [0; 4];
        register.narrow(all.as_mut_ptr());
        put(all, to.cast(), lanes)
    },
    stream: |register, to| register.narrow(to.cast()),
    fence: (),
}
