//! The parts of an instruction set that loops are written against: streaming stores, and the interface of a loop.
//!
//! `set.rs` compiles the loops for each instruction set; nothing here depends on a particular loop.

use super::Access;

/// The instructions of a set that portable Rust cannot express.
pub(super) trait Instructions: 'static + Sized {
    /// Whether the set has streaming stores, which bypass the caches.
    const STREAMS: bool;

    /// Copies one cache line with a streaming store.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of one line, `to` is aligned to a line, and the machine has the instruction set.
    unsafe fn stream(from: *const u8, to: *mut u8);

    /// Orders all earlier streaming stores before all later stores.
    fn fence();
}

/// A loop over all elements of a call.
pub(super) trait Loops: 'static {
    /// # Safety
    /// As for [`super::Kernel::combine`], on a machine that has the instruction set.
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access);
}

/// Casts pointers to bytes to pointers to elements.
#[inline(always)]
pub(super) fn cast<'a, T>(
    targets: &'a [*mut u8],
    sources: &'a [*const u8],
) -> (&'a [*mut T], &'a [*const T]) {
    // SAFETY: Pointers to sized types have the same layout.
    unsafe {
        (
            std::slice::from_raw_parts(targets.as_ptr().cast(), targets.len()),
            std::slice::from_raw_parts(sources.as_ptr().cast(), sources.len()),
        )
    }
}
