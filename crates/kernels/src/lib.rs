//! Arithmetic on arrays: what a plan's reducing steps spend their time in.
//!
//! A kernel combines k sources, element by element, into m targets: `(s0 + s1) + s2 ...`, always in this order and
//! never fused or reassociated, so that every instruction set gives the same bits, those of the oracle
//! (`weftlink_plan::Reducer`). One source is a copy, to as many targets as there are. [`Kernels::detect`] chooses once, for
//! the machine it runs on; after that a call is a call through a pointer.
//!
//! How it is built: elements and what is done to them are scalar Rust without branches (`convert.rs`, `operations.rs`). The
//! loops over them are written once (`blocks.rs`, `copy.rs`) and compiled for each instruction set, which is a file
//! (`avx512.rs`, `avx2.rs`, `neon.rs`; the portable one is in `set.rs`). Sums of f32, f64, f16 and bf16 have loops with registers
//! (`combine.rs`, `vector.rs`), because small messages are mostly those. Which loops a type and a reduction need is said in
//! `table.rs`, for all sets.
//!
//! Deliberately absent: threads, and what is where in the caches: the caller knows, and says so ([`Access`]).
#![allow(unsafe_code)] // Instruction sets that the compiler cannot assume, and memory that other processes write.

mod blocks;
mod combine;
mod convert;
mod copy;
mod instructions;
mod lines;
mod operations;
mod set;
mod table;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use weftlink_plan::{DataType, Reduction};

use self::combine::FEW_BYTES;
use self::operations::Sum;
use self::set::{Combine, Set};
pub use self::set::{Finish, Scale};

/// The kernels for one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    name: &'static str,
    copy: Kernel,
    reduction: fn(DataType, Reduction) -> Option<Kernel>,
    finish: fn(DataType, Reduction) -> Option<Finish>,
    settle: fn(DataType, Reduction) -> Option<Finish>,
    scale: fn(DataType) -> Option<Scale>,
}

/// One reduction of one type in one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    element_bytes: usize,
    /// How many of what `combine` knows make an element: a complex number is two.
    parts: usize,
    /// Whether it is the sum of f32, of which a few are added without a call.
    adds_f32: bool,
    combine: Combine,
    copy: Combine,
}

/// Where data comes from and goes to, which decides how it is moved best and nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// How many targets, from the first, are written past the caches: for results larger than those that are no source as
    /// well. It saves reading their lines before they are overwritten. Done where these targets have the same address modulo
    /// 64, a multiple of the element's size (of a complex number, its parts'), and where the instruction set can.
    pub streamed: usize,
    /// Whether another core may have just written a source.
    pub from_peers: bool,
    /// Whether another core may have just read a target.
    pub to_peers: bool,
    /// Whether what is shared with another core goes to and fro: whoever reads it writes it next. Its lines are taken for that
    /// when they are read, and do not have to come twice. Heeded by copies and by sums that have registers of their own.
    pub returned: bool,
}

impl Kernels {
    /// The fastest that this machine can run.
    pub fn detect() -> Kernels {
        Self::all_supported()[0]
    }

    /// All that this machine can run, the fastest first: for tests, which compare them.
    pub fn all_supported() -> Vec<Kernels> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::Avx512::is_here() {
                all.push(Self::of::<avx512::Avx512>());
            }
            if avx2::Avx2::is_here() {
                all.push(Self::of::<avx2::Avx2>());
            }
        }
        #[cfg(target_arch = "aarch64")]
        all.push(Self::of::<neon::Neon>());
        all.push(Self::of::<set::Portable>());
        all
    }

    fn of<S: Set>() -> Kernels {
        Kernels {
            name: S::NAME,
            copy: table::copy::<S>(),
            reduction: table::reduction::<S>,
            finish: table::finish::<S>,
            settle: table::settle::<S>,
            scale: table::scale::<S>,
        }
    }

    /// The instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What combines elements of a type; nothing if the reduction is not for it or is the caller's own. For an average and a
    /// pre-multiplied sum it is the sum: the rest is for [`finish`](Self::finish) and [`scale`](Self::scale).
    ///
    /// Logical operations take inputs as they are, everything but zero for true, and give 1 or 0.
    pub fn reduction(&self, data_type: DataType, reduction: Reduction) -> Option<Kernel> {
        (self.reduction)(data_type, reduction)
    }

    /// What copies bytes: one source to all targets.
    pub fn copy(&self) -> Kernel {
        self.copy
    }

    /// What is done to a result in the end, in place, and given how many ranks were combined, at least one: an average is
    /// divided, and what logical operations have only copied becomes 1 or 0. Nothing if there is nothing to do.
    pub fn finish(&self, data_type: DataType, reduction: Reduction) -> Option<Finish> {
        (self.finish)(data_type, reduction)
    }

    /// What is done to a result at the very end if its bits must not depend on the machine: whatever is not a number becomes
    /// one and the same NaN. Processors and compilers choose NaNs of sums and products as they like. Nothing if the result
    /// has none, or always the same.
    pub fn settle(&self, data_type: DataType, reduction: Reduction) -> Option<Finish> {
        (self.settle)(data_type, reduction)
    }

    /// What is done to a rank's input for a pre-multiplied sum: the target gets the source (it may be the source) times the
    /// factor, one element, which comes last. Nothing if the type has no products.
    pub fn scale(&self, data_type: DataType) -> Option<Scale> {
        (self.scale)(data_type)
    }
}

impl Kernel {
    /// The size of what lengths count.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Combines `len` elements of all sources, in their order, into all targets.
    ///
    /// Any alignment and any length will do. Aligned alike is faster. When this returns, results that were written past the
    /// caches are ordered before any later store, as others are.
    ///
    /// # Safety
    ///
    /// - Every source can be read, and every target written, for `len` elements.
    /// - Nobody else, in this process or another, writes a source or touches a target meanwhile.
    /// - A target may be exactly a source. Otherwise no target overlaps a source or another target.
    #[inline]
    pub unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        debug_assert!(!targets.is_empty() && !sources.is_empty() && access.streamed <= targets.len());
        if self.adds_f32 && len <= FEW_BYTES / size_of::<f32>() {
            // SAFETY: The caller's promise.
            return unsafe { blocks::few::<f32, Sum>(targets, sources, len) };
        }
        // SAFETY: The caller's promise is the kernel's; the machine has the instruction set, or this table would not
        // have been handed out.
        unsafe {
            if sources.len() == 1 {
                (self.copy)(targets, sources, len * self.element_bytes, access)
            } else {
                (self.combine)(targets, sources, len * self.parts, access)
            }
        }
    }
}

#[cfg(test)]
mod tests;
