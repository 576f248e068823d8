//! Arithmetic on arrays: what a plan's reducing steps spend their time in.
//!
//! A kernel combines k sources, element by element, into m targets: `(s0 + s1) + s2 ...`, always in this order and
//! never fused or reassociated, so that every instruction set gives the same bits. One source is a copy, to as many
//! targets as there are. [`Kernels::detect`] chooses once, for the machine it runs on; after that a call is a call
//! through a pointer.
//!
//! How it is built: an instruction set is a file (`avx512.rs`, `avx2.rs`, `portable.rs`) that says what a register is
//! (`vector::Vector`) and how it is added (`vector::Operation`). The loops are written once (`combine.rs`),
//! generic over both, and compiled for each set. [`Kernels`] is the table of what came out; a further type or
//! operation is a further row: an implementation of the two traits in each file, and a field here. Types narrower
//! than what they are added in fit the same traits, by widening where they are loaded and narrowing where stored.
//!
//! Deliberately absent: threads, and the choice between [`Store::Cached`] and [`Store::Streaming`], which depends on
//! what else is in the caches. The caller knows.
#![allow(unsafe_code)] // Instruction sets that the compiler cannot assume, and memory that other processes write.

mod combine;
mod portable;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// The kernels for one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    name: &'static str,
    sum_f32: Combine<f32>,
}

/// One reduction of one type in one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    element_bytes: usize,
    run: unsafe fn(&[*mut u8], &[*const u8], usize, Store),
}

impl Kernel {
    /// Bytes of an element.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Combines `len` elements.
    ///
    /// # Safety
    /// As for `sum_f32`.
    #[inline]
    pub unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize, store: Store) {
        // SAFETY: The caller's promise.
        unsafe { (self.run)(targets, sources, len, store) }
    }
}

unsafe fn stub_copy(targets: &[*mut u8], sources: &[*const u8], len: usize, _: Store) {
    for target in targets {
        if !std::ptr::eq(*target, sources[0]) {
            unsafe { std::ptr::copy_nonoverlapping(sources[0], *target, len) }
        }
    }
}

unsafe fn stub_sum(targets: &[*mut u8], sources: &[*const u8], len: usize, store: Store) {
    unsafe {
        let targets = std::slice::from_raw_parts(targets.as_ptr().cast(), targets.len());
        let sources = std::slice::from_raw_parts(sources.as_ptr().cast(), sources.len());
        Kernels::detect().sum_f32(targets, sources, len, store)
    }
}

/// Where results go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Through the caches, where whoever reads them next will find them.
    Cached,
    /// Past the caches, which saves reading every target's lines before they are overwritten. For results larger than
    /// the caches that are no source as well. Done where all targets are misaligned alike (see
    /// [`Kernels::sum_f32`]) and the instruction set can; otherwise the same as `Cached`.
    Streaming,
}

/// Up to so many elements are added one by one: what is about to be read was just written in words, or will be read in
/// words at once, and neither waits for the other as it would with registers.
const FEW: usize = 4;

/// # Safety
/// As for [`Kernels::sum_f32`].
#[inline]
unsafe fn sum_few(targets: &[*mut f32], sources: &[*const f32], len: usize) {
    for at in 0..len {
        // SAFETY: The caller's promise.
        let value = |source: &*const f32| unsafe { source.add(at).read_unaligned() };
        let sum = sources[1..].iter().map(value).fold(value(&sources[0]), |sum, next| sum + next);
        for target in targets {
            // SAFETY: The caller's promise.
            unsafe { target.add(at).write_unaligned(sum) };
        }
    }
}

impl Kernels {
    /// The fastest that this machine can run.
    pub fn detect() -> Kernels {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return AVX512;
            }
            if is_x86_feature_detected!("avx2") {
                return AVX2;
            }
        }
        PORTABLE
    }

    /// All that this machine can run, the fastest first: for tests, which compare them.
    pub fn all_supported() -> Vec<Kernels> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                all.push(AVX512);
            }
            if is_x86_feature_detected!("avx2") {
                all.push(AVX2);
            }
        }
        all.push(PORTABLE);
        all
    }

    /// STUB
    pub fn reduction(
        &self,
        ty: weftlink_plan::DataType,
        reduction: weftlink_plan::Reduction,
    ) -> Option<Kernel> {
        (ty == weftlink_plan::DataType::F32 && reduction == weftlink_plan::Reduction::Sum)
            .then_some(Kernel { element_bytes: 4, run: stub_sum })
    }

    /// STUB
    pub fn copy(&self) -> Kernel {
        Kernel { element_bytes: 1, run: stub_copy }
    }

    /// STUB
    pub fn finish(
        &self,
        _: weftlink_plan::DataType,
        _: weftlink_plan::Reduction,
    ) -> Option<unsafe fn(*mut u8, usize, u32)> {
        None
    }

    /// STUB
    pub fn scale(
        &self,
        _: weftlink_plan::DataType,
    ) -> Option<unsafe fn(*mut u8, *const u8, usize, *const u8)> {
        None
    }

    /// The instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the sum of `len` elements of all sources, in their order, to all targets.
    ///
    /// Any alignment and any length will do. Aligned alike is faster, and [`Store::Streaming`] needs that all targets
    /// have the same address modulo 64 and that it is a multiple of 4. When this returns, streamed results are ordered
    /// before any later store, as cached ones are.
    ///
    /// # Safety
    ///
    /// - Every source can be read, and every target written, for `len` elements.
    /// - Nobody else, in this process or another, writes a source or touches a target meanwhile.
    /// - A target may be exactly a source. Otherwise no target overlaps a source or another target.
    #[inline]
    pub unsafe fn sum_f32(&self, targets: &[*mut f32], sources: &[*const f32], len: usize, store: Store) {
        debug_assert!(!targets.is_empty() && !sources.is_empty());
        if len <= FEW {
            // SAFETY: The caller's promise.
            return unsafe { sum_few(targets, sources, len) };
        }
        // SAFETY: The caller's promise is the kernel's; the machine has the instruction set, or this table would not
        // have been handed out.
        unsafe { (self.sum_f32)(targets, sources, len, store) }
    }
}

/// A kernel, with the safety conditions of [`Kernels::sum_f32`], on a machine that has its instruction set.
type Combine<Element> = unsafe fn(&[*mut Element], &[*const Element], usize, Store);

#[cfg(target_arch = "x86_64")]
const AVX512: Kernels = Kernels { name: "avx512", sum_f32: avx512::sum_f32 };
#[cfg(target_arch = "x86_64")]
const AVX2: Kernels = Kernels { name: "avx2", sum_f32: avx2::sum_f32 };
const PORTABLE: Kernels = Kernels { name: "portable", sum_f32: portable::sum_f32 };

#[cfg(test)]
mod tests;
