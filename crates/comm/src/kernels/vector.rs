//! What an instruction set must provide for the loops in `combine.rs`.
//!
//! Every method is inlined into a function that is compiled for the instruction set, and called from nowhere else:
//! only there do the intrinsics become single instructions.

/// One register full of elements.
///
/// # Safety
///
/// An implementation's methods touch exactly the elements that they are told, at any alignment but where said.
pub(super) unsafe trait Vector: Copy {
    /// What lies in memory.
    type Element: Copy;

    /// How many of them fit.
    const LANES: usize;

    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// They can be read, and the machine has the instruction set.
    unsafe fn load(from: *const Self::Element) -> Self;

    /// Reads the first `lanes` elements, fewer than `LANES`; what the others are does not matter.
    ///
    /// # Safety
    /// As for `load`, for so many.
    unsafe fn load_part(from: *const Self::Element, lanes: usize) -> Self;

    /// Writes `LANES` elements.
    ///
    /// # Safety
    /// They can be written, and the machine has the instruction set.
    unsafe fn store(self, to: *mut Self::Element);

    /// Writes the first `lanes` elements, fewer than `LANES`.
    ///
    /// # Safety
    /// As for `store`, for so many.
    unsafe fn store_part(self, to: *mut Self::Element, lanes: usize);

    /// Writes `LANES` elements past the caches.
    ///
    /// # Safety
    /// As for `store`, and `to` is aligned to the size of the register.
    unsafe fn stream(self, to: *mut Self::Element);

    /// Orders all that was streamed before all that will be stored.
    fn fence();
}

/// How two registers are combined. The loops keep the order of the operands.
pub(super) trait Operation<V: Vector> {
    /// Lane by lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn apply(left: V, right: V) -> V;
}

/// Addition.
pub(super) struct Sum;
