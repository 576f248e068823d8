//! The interface of a vector register for the loops in `combine.rs`.

/// A register full of elements.
///
/// # Safety
///
/// An implementation accesses exactly the elements that each method names, at any alignment unless the method says otherwise.
pub(super) unsafe trait Vector: Copy + 'static {
    /// The type in memory.
    type Element: Copy;

    /// Elements per register.
    const LANES: usize;

    /// Whether the instruction set has streaming stores.
    const STREAMS: bool;

    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// `from` is valid for these reads, and the machine has the instruction set.
    unsafe fn load(from: *const Self::Element) -> Self;

    /// Reads the first `lanes` elements, fewer than `LANES`; the other lanes are unspecified.
    ///
    /// # Safety
    /// As for `load`, for `lanes` elements.
    unsafe fn load_part(from: *const Self::Element, lanes: usize) -> Self;

    /// The sum, lane by lane. The loops keep the order of the operands.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add(self, right: Self) -> Self;

    /// Replaces every NaN with the canonical one. Absent where storing does so.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn canonical<const N: usize>(_: &mut [Self; N]) {}

    /// Writes `LANES` elements.
    ///
    /// # Safety
    /// `to` is valid for these writes, and the machine has the instruction set.
    unsafe fn store(self, to: *mut Self::Element);

    /// Writes the first `lanes` elements, fewer than `LANES`.
    ///
    /// # Safety
    /// As for `store`, for `lanes` elements.
    unsafe fn store_part(self, to: *mut Self::Element, lanes: usize);

    /// Writes `LANES` elements with a streaming store.
    ///
    /// # Safety
    /// As for `store`, and `to` is aligned to the size of the write.
    unsafe fn stream(self, to: *mut Self::Element);

    /// Orders all earlier streaming stores before all later stores.
    fn fence();
}

/// Implements [`Vector`] for a register type; each method is an instruction or two.
macro_rules! vector {
    (
        $register:ty, $element:ty, $lanes:literal, streams: $streams:literal,
        load: |$load_from:ident| $load:expr,
        load_part: |$part_from:ident, $part_lanes:ident| $load_part:expr,
        add: |$left:ident, $right:ident| $add:expr,
        $(canonical: |$registers:ident| $canonical:expr,)?
        store: |$store:ident, $store_to:ident| $stored:expr,
        store_part: |$part:ident, $part_to:ident, $part_stored:ident| $stored_part:expr,
        stream: |$stream:ident, $stream_to:ident| $streamed:expr,
        fence: $fence:expr,
    ) => {
        // SAFETY: Each method consists of the given instructions, which do not access masked lanes.
        unsafe impl $crate::vector::Vector for $register {
            type Element = $element;
            const LANES: usize = $lanes;
            const STREAMS: bool = $streams;

            #[inline(always)]
            unsafe fn load($load_from: *const $element) -> Self {
                // SAFETY: The caller's promise; the instruction allows any alignment.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn load_part($part_from: *const $element, $part_lanes: usize) -> Self {
                // SAFETY: The caller's promise; it reads no other lanes.
                unsafe { $load_part }
            }

            #[inline(always)]
            unsafe fn add(self, $right: Self) -> Self {
                let $left = self;
                // SAFETY: The caller's promise.
                unsafe { $add }
            }

            $(#[inline(always)]
            unsafe fn canonical<const N: usize>($registers: &mut [Self; N]) {
                // SAFETY: The caller's promise.
                unsafe { $canonical }
            })?

            #[inline(always)]
            unsafe fn store(self, $store_to: *mut $element) {
                let $store = self;
                // SAFETY: The caller's promise; the instruction allows any alignment.
                unsafe { $stored }
            }

            #[inline(always)]
            unsafe fn store_part(self, $part_to: *mut $element, $part_stored: usize) {
                let $part = self;
                // SAFETY: The caller's promise; it writes no other lanes.
                unsafe { $stored_part }
            }

            #[inline(always)]
            unsafe fn stream(self, $stream_to: *mut $element) {
                let $stream = self;
                // SAFETY: The caller's promise, alignment included.
                unsafe { $streamed }
            }

            #[inline(always)]
            fn fence() {
                $fence
            }
        }
    };
}
pub(super) use vector;
