//! NEON, which every 64-bit ARM has: registers of 16 bytes, a quarter of a cache line.
//!
//! Deliberately absent: streaming stores. Rust has no intrinsic for them.

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
        Self::combine::<Sums<WideF16, 8, 8, 8>>()
    }
}

impl Instructions for Neon {
    const STREAMS: bool = false;

    unsafe fn stream(_: *const u8, _: *mut u8) {
        unreachable!("the set has no streaming stores")
    }

    fn fence() {}
}

/// Reads part of a register through a buffer: there are no masked loads.
///
/// # Safety
/// `from` is valid for reads of `lanes` elements, fewer than `N`.
#[inline(always)]
unsafe fn part<T: Copy, const N: usize>(from: *const T, lanes: usize, zero: T) -> [T; N] {
    let mut all = [zero; N];
    // SAFETY: The caller's promise. A copy of bytes needs no alignment.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), lanes * size_of::<T>()) };
    all
}

/// Writes part of a register through a buffer.
///
/// # Safety
/// `to` is valid for writes of `lanes` elements, fewer than `N`.
#[inline(always)]
unsafe fn put<T, const N: usize>(all: [T; N], to: *mut T, lanes: usize) {
    // SAFETY: The caller's promise. A copy of bytes needs no alignment.
    unsafe { copy_nonoverlapping(all.as_ptr().cast::<u8>(), to.cast(), lanes * size_of::<T>()) }
}

vector! {
    float32x4_t, f32, 4, streams: false,
    load: |from| vld1q_f32(from),
    load_part: |from, lanes| vld1q_f32(part::<f32, 4>(from, lanes, 0.0).as_ptr()),
    add: |left, right| vaddq_f32(left, right),
    canonical: |registers| {
        for register in registers {
            let is_number = vceqq_f32(*register, *register);
            *register = vbslq_f32(is_number, *register, vdupq_n_f32(f32::NAN));
        }
    },
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
    canonical: |registers| {
        for register in registers {
            let is_number = vceqq_f64(*register, *register);
            *register = vbslq_f64(is_number, *register, vdupq_n_f64(f64::NAN));
        }
    },
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
struct WideF16(float32x4_t);

impl WideF16 {
    /// # Safety
    /// `from` is valid for reads of four elements.
    #[inline(always)]
    unsafe fn widen(from: *const u16) -> WideF16 {
        // SAFETY: The caller's promise; every 64-bit ARM has the conversion.
        unsafe { WideF16(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))) }
    }

    /// # Safety
    /// `to` is valid for writes of four elements.
    #[inline(always)]
    unsafe fn narrow(self, to: *mut u16) {
        // SAFETY: As above. It rounds to nearest, ties to even, unless the process changed the rounding mode.
        unsafe { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(self.0))) }
    }
}

vector! {
    WideF16, f16, 4, streams: false,
    load: |from| WideF16::widen(from.cast()),
    load_part: |from, lanes| WideF16::widen(part::<u16, 4>(from.cast(), lanes, 0).as_ptr()),
    add: |left, right| WideF16(vaddq_f32(left.0, right.0)),
    canonical: |registers| {
        for register in registers {
            let is_number = vceqq_f32(register.0, register.0);
            register.0 = vbslq_f32(is_number, register.0, vdupq_n_f32(f32::NAN));
        }
    },
    store: |register, to| register.narrow(to.cast()),
    store_part: |register, to, lanes| {
        let mut all = [0; 4];
        register.narrow(all.as_mut_ptr());
        put(all, to.cast(), lanes)
    },
    stream: |register, to| register.narrow(to.cast()),
    fence: (),
}
