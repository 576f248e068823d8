//! An instruction set: its loops, compiled with its target features.
//!
//! Every loop and method is inlined into a function that `compiled_for!` compiles for the instruction set, and is called from nowhere
//! else: only there do intrinsics become single instructions.

use weftlink_plan::element::{bf16, f16};

use super::Access;
use super::blocks::Blocks;
use super::convert::Widen;
use super::instructions::{Instructions, Loops};
use super::operations::{Map, Operation, Sum};

/// A kernel. Safety: as for [`super::Kernel::combine`], on a machine that has the instruction set.
pub(super) type Combine = unsafe fn(&[*mut u8], &[*const u8], usize, Access);

/// Changes elements in place. Arguments: the array, its length in elements, the number of combined ranks.
///
/// # Safety
/// The array is valid for reads and writes, and nothing else accesses it during the call.
pub type Finish = unsafe fn(*mut u8, usize, u32);

/// Multiplies an array by a factor. Arguments: target, source, length in elements, the factor (one element).
///
/// # Safety
/// The arrays are valid for the length; during the call nothing else accesses the target or writes the source or the factor; source
/// and target are the same array or do not overlap.
pub type Scale = unsafe fn(*mut u8, *const u8, usize, *const u8);

/// An instruction set.
pub(super) trait Set: Instructions {
    /// The set's name.
    const NAME: &'static str;

    /// Loops compiled for the set.
    fn combine<L: Loops>() -> Combine;
    /// A map with the number of ranks as its argument, compiled for the set.
    fn finish<T: Widen, M: Map<T, By = u32>>() -> Finish;
    /// A map with an element as its argument, compiled for the set.
    fn scale<T: Widen, M: Map<T, By = T>>() -> Scale;

    /// Sums; a set overrides those that are faster with its own registers.
    fn sum_f32() -> Combine {
        Self::blocks::<f32, Sum>()
    }
    fn sum_f64() -> Combine {
        Self::blocks::<f64, Sum>()
    }
    fn sum_f16() -> Combine {
        Self::blocks::<f16, Sum>()
    }
    fn sum_bf16() -> Combine {
        Self::blocks::<bf16, Sum>()
    }

    /// The general loops.
    fn blocks<T: Widen, O: Operation<T::Wide>>() -> Combine {
        Self::combine::<Blocks<Self, T, O>>()
    }
}

/// The methods of `Set` that compile loops with the given target features; used in an `impl Set`.
macro_rules! compiled_for {
    ($($features:literal)?) => {
        fn combine<L: $crate::instructions::Loops>() -> $crate::set::Combine {
            $(#[target_feature(enable = $features)])?
            unsafe fn compiled<L: $crate::instructions::Loops>(
                targets: &[*mut u8],
                sources: &[*const u8],
                len: usize,
                access: $crate::Access,
            ) {
                // SAFETY: The caller's promise.
                unsafe { L::run(targets, sources, len, access) }
            }
            compiled::<L>
        }

        fn finish<T, M>() -> $crate::set::Finish
        where
            T: $crate::convert::Widen,
            M: $crate::operations::Map<T, By = u32>,
        {
            $(#[target_feature(enable = $features)])?
            unsafe fn compiled<T, M>(array: *mut u8, len: usize, by: u32)
            where
                T: $crate::convert::Widen,
                M: $crate::operations::Map<T, By = u32>,
            {
                // SAFETY: The caller's promise.
                unsafe { $crate::blocks::map::<T, M>(array, array, len, by) }
            }
            compiled::<T, M>
        }

        fn scale<T, M>() -> $crate::set::Scale
        where
            T: $crate::convert::Widen,
            M: $crate::operations::Map<T, By = T>,
        {
            $(#[target_feature(enable = $features)])?
            unsafe fn compiled<T, M>(target: *mut u8, source: *const u8, len: usize, factor: *const u8)
            where
                T: $crate::convert::Widen,
                M: $crate::operations::Map<T, By = T>,
            {
                // SAFETY: The caller's promise; the factor may lie anywhere.
                unsafe {
                    let factor = factor.cast::<T>().read_unaligned();
                    $crate::blocks::map::<T, M>(target, source, len, factor)
                }
            }
            compiled::<T, M>
        }
    };
}
pub(super) use compiled_for;

/// The compiler's baseline for the target (SSE2, NEON, ...). Portable Rust has no streaming stores.
pub(super) struct Portable;

impl Set for Portable {
    const NAME: &'static str = "portable";

    compiled_for!();
}

impl Instructions for Portable {
    const STREAMS: bool = false;

    unsafe fn stream(_: *const u8, _: *mut u8) {
        unreachable!("the set has no streaming stores")
    }

    fn fence() {}
}
