//! Reductions and copies of arrays, vectorised for each instruction set.
//!
//! A kernel combines k sources, element by element, into m targets: `(s0 + s1) + s2 ...`, always in this order and never fused or
//! reassociated, so that every instruction set produces the same bits as the reference (`weftlink_plan::Reducer`), NaNs included: every
//! result that is NaN is the canonical one. With one source, the kernel is a copy to all targets. [`Kernels::detect`] picks the instruction set once; each later call goes through a function pointer.
//!
//! Structure: conversions and operations on one element are branch-free scalar Rust (`convert.rs`, `operations.rs`). The loops over
//! elements are written once (`blocks.rs`, `copy.rs`) and compiled for each instruction set (`avx512.rs`, `avx2.rs`, `neon.rs`, and the
//! portable one in `set.rs`). Sums of f32, f64, f16 and bf16, the common case for small messages, have loops written with vector
//! registers (`combine.rs`, `vector.rs`). `table.rs` maps a type and a reduction to a loop, for all instruction sets.
//!
//! Deliberately absent: threads and cache detection. The caller states where data comes from and goes to ([`Access`]).
#![allow(unsafe_code)] // Intrinsics of instruction sets that need detection, and memory shared with other processes.

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

use self::combine::SCALAR_BYTES_MAX;
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
    scale: fn(DataType) -> Option<Scale>,
}

/// One reduction of one type in one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    element_bytes: usize,
    /// How many values of the loop's type make an element: two for a complex number.
    parts: usize,
    /// Whether this is the sum of f32: short ones are added inline, without a call.
    adds_f32: bool,
    combine: Combine,
    copy: Combine,
}

/// Where data comes from and goes to. It affects speed, never results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// Number of leading targets to write with streaming stores, which bypass the caches and do not read the lines they overwrite. Use
    /// it for results that are larger than the caches and are not sources. Ignored unless the instruction set has such stores and
    /// these targets have the same address modulo 64, a multiple of the element's size (for complex numbers, of one part's size).
    pub streamed: usize,
    /// Whether another core may have just written a source.
    pub from_peers: bool,
    /// Whether another core may have just read a target.
    pub to_peers: bool,
    /// Whether two cores alternate in reading and then writing the shared data (migratory sharing). The kernel then prefetches the lines it
    /// reads for writing, so that each is transferred once. Only copies and the sums of `combine.rs` do so.
    pub migratory: bool,
}

impl Kernels {
    /// The fastest kernels that this machine supports.
    pub fn detect() -> Kernels {
        Self::all_supported()[0]
    }

    /// All kernels that this machine supports, fastest first: for tests, which compare them.
    pub fn all_supported() -> Vec<Kernels> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::Avx512::is_supported() {
                all.push(Self::of::<avx512::Avx512>());
            }
            if avx2::Avx2::is_supported() {
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
            scale: table::scale::<S>,
        }
    }

    /// The instruction set's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The kernel that reduces elements of a type, or `None` if the reduction does not apply to the type or is user-defined. For
    /// an average and a pre-multiplied sum it is the sum; [`finish`](Self::finish) and [`scale`](Self::scale) do the rest.
    ///
    /// Logical operations treat every nonzero input as true and produce 1 or 0.
    pub fn reduction(&self, data_type: DataType, reduction: Reduction) -> Option<Kernel> {
        (self.reduction)(data_type, reduction)
    }

    /// The kernel that copies bytes from one source to all targets.
    pub fn copy(&self) -> Kernel {
        self.copy
    }

    /// The last pass over a result, in place, given the number of combined ranks (at least one): divides an average, and turns
    /// inputs that a logical operation only copied into 1 or 0. `None` if the reduction needs no such pass.
    pub fn finish(&self, data_type: DataType, reduction: Reduction) -> Option<Finish> {
        (self.finish)(data_type, reduction)
    }

    /// Scales a rank's input for a pre-multiplied sum: the target, which may be the source, gets the source times the factor (one
    /// element, the last argument). `None` if the type has no product.
    pub fn scale(&self, data_type: DataType) -> Option<Scale> {
        (self.scale)(data_type)
    }
}

impl Kernel {
    /// The size of the elements that `len` counts.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Combines `len` elements of all sources, in their order, into all targets.
    ///
    /// Any alignment and length is allowed; arrays with the same alignment are faster. On return, streaming stores are ordered
    /// before any later store, like ordinary ones.
    ///
    /// # Safety
    ///
    /// - Every source is valid for reads, and every target for writes, of `len` elements.
    /// - During the call, no other thread or process writes a source or accesses a target.
    /// - A target may equal a source exactly. Otherwise no target overlaps a source or another target.
    #[inline]
    pub unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        debug_assert!(!targets.is_empty() && !sources.is_empty() && access.streamed <= targets.len());
        if self.adds_f32 && len <= SCALAR_BYTES_MAX / size_of::<f32>() {
            // SAFETY: The caller's promise.
            return unsafe { blocks::scalar::<f32, Sum>(targets, sources, len) };
        }
        // SAFETY: The caller's promise is the kernel's; `all_supported` returns kernels only for instruction sets that the machine has.
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
