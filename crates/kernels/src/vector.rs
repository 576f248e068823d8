//! What a register must be for the loops in `combine.rs`.

/// One register full of elements.
///
/// # Safety
///
/// An implementation's methods touch exactly the elements that they are told, at any alignment but where said.
pub(super) unsafe trait Vector: Copy + 'static {
    /// What lies in memory.
    type Element: Copy;

    /// How many of them fit.
    const LANES: usize;

    /// Whether there are stores past the caches.
    const STREAMS: bool;

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

    /// The sum, lane by lane. The loops keep the order of the operands.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add(self, right: Self) -> Self;

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
    /// As for `store`, and `to` is aligned to what is written.
    unsafe fn stream(self, to: *mut Self::Element);

    /// Orders all that was streamed before all that will be stored.
    fn fence();
}

/// A register's methods, each an instruction or two. Names are the arguments; `$fence` orders streamed stores.
macro_rules! vector {
    (
        $register:ty, $element:ty, $lanes:literal, streams: $streams:literal,
        load: |$load_from:ident| $load:expr,
        load_part: |$part_from:ident, $part_lanes:ident| $load_part:expr,
        add: |$left:ident, $right:ident| $add:expr,
        store: |$store:ident, $store_to:ident| $stored:expr,
        store_part: |$part:ident, $part_to:ident, $part_stored:ident| $stored_part:expr,
        stream: |$stream:ident, $stream_to:ident| $streamed:expr,
        fence: $fence:expr,
    ) => {
        // SAFETY: Each method is the instructions it names; masked lanes are not touched.
        unsafe impl $crate::vector::Vector for $register {
            type Element = $element;
            const LANES: usize = $lanes;
            const STREAMS: bool = $streams;

            #[inline(always)]
            unsafe fn load($load_from: *const $element) -> Self {
                // SAFETY: The caller's promise; the instruction takes any alignment.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn load_part($part_from: *const $element, $part_lanes: usize) -> Self {
                // SAFETY: The caller's promise; no more lanes than that are read.
                unsafe { $load_part }
            }

            #[inline(always)]
            unsafe fn add(self, $right: Self) -> Self {
                let $left = self;
                // SAFETY: The caller's promise.
                unsafe { $add }
            }

            #[inline(always)]
            unsafe fn store(self, $store_to: *mut $element) {
                let $store = self;
                // SAFETY: The caller's promise; the instruction takes any alignment.
                unsafe { $stored }
            }

            #[inline(always)]
            unsafe fn store_part(self, $part_to: *mut $element, $part_stored: usize) {
                let $part = self;
                // SAFETY: The caller's promise; no more lanes than that are written.
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
