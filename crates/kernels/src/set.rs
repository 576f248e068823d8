//! What an instruction set is: a few instructions that the loops cannot be written without, and the loops compiled for it.
//!
//! Every loop and every method is inlined into a function that is compiled for the instruction set (`compiled_for!` makes
//! them) and called from nowhere else: only there do intrinsics become single instructions.

use weftlink_plan::element::{bf16, f16};

use super::Access;
use super::blocks::Blocks;
use super::convert::Lane;
use super::instructions::{Instructions, Loops};
use super::operations::{Map, Operation, Sum};

/// A kernel, with the safety conditions of [`super::Kernel::combine`], on a machine that has its instruction set.
pub(super) type Combine = unsafe fn(&[*mut u8], &[*const u8], usize, Access);

/// Changes so many elements in place, given how many ranks were combined.
///
/// # Safety
/// They can be read and written, and nobody else touches them meanwhile.
pub type Finish = unsafe fn(*mut u8, usize, u32);

/// Multiplies so many elements of a source into a target by one element, which comes last.
///
/// # Safety
/// They can be read and written; nobody else touches the target or writes the others meanwhile; source and target are the
/// same or do not overlap.
pub type Scale = unsafe fn(*mut u8, *const u8, usize, *const u8);

/// An instruction set.
pub(super) trait Set: Instructions {
    /// What it is called.
    const NAME: &'static str;

    /// Loops, compiled for the set.
    fn combine<L: Loops>() -> Combine;
    /// A change of elements of one type, compiled for the set.
    fn finish<T: Lane, M: Map<T, By = u32>>() -> Finish;
    /// A change by an element, compiled for the set.
    fn scale<T: Lane, M: Map<T, By = T>>() -> Scale;

    /// The sums that have loops of their own, where registers gain.
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
    fn blocks<T: Lane, O: Operation<T::Wide>>() -> Combine {
        Self::combine::<Blocks<Self, T, O>>()
    }
}

/// The functions that hold the loops, with the instruction set's features; to be used in an `impl Set`.
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
            T: $crate::convert::Lane,
            M: $crate::operations::Map<T, By = u32>,
        {
            $(#[target_feature(enable = $features)])?
            unsafe fn compiled<T, M>(array: *mut u8, len: usize, by: u32)
            where
                T: $crate::convert::Lane,
                M: $crate::operations::Map<T, By = u32>,
            {
                // SAFETY: The caller's promise.
                unsafe { $crate::blocks::map::<T, M>(array, array, len, by) }
            }
            compiled::<T, M>
        }

        fn scale<T, M>() -> $crate::set::Scale
        where
            T: $crate::convert::Lane,
            M: $crate::operations::Map<T, By = T>,
        {
            $(#[target_feature(enable = $features)])?
            unsafe fn compiled<T, M>(target: *mut u8, source: *const u8, len: usize, factor: *const u8)
            where
                T: $crate::convert::Lane,
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

/// What every target of the compiler has: it makes SSE2, NEON or whatever that is of the loops. There is no portable way to
/// ask for stores past the caches.
pub(super) struct Portable;

impl Set for Portable {
    const NAME: &'static str = "portable";

    compiled_for!();
}

impl Instructions for Portable {
    const STREAMS: bool = false;

    unsafe fn stream(_: *const u8, _: *mut u8) {
        unreachable!("it does not stream")
    }

    fn fence() {}
}
