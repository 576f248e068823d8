//! Symmetric memory: windows that all ranks allocate together, and buffers for calls.
//!
//! A window gives every rank a part of the same length, which the other ranks can reach. A rank sees its own part as a
//! slice between calls; peers touch it only while the rank is inside a call that passes it, which the verifier has
//! proved of every plan. A call that fails has no such end, so it leaves the rank with a copy of its part that peers
//! cannot reach (`failure.rs`).

// A part of a window becomes a slice, and slices become addresses for the engine.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use weftlink_plan::{Aliasing, Verified};

use crate::header::{Header, Location};
use crate::memory::SharedMemory;

/// One rank's part of symmetric memory, as a slice of `f32`. Made by
/// [`Communicator::window`](crate::Communicator::window). It may outlive its communicator; its memory lasts until both
/// are dropped.
#[derive(Debug)]
pub struct Window {
    address: *mut f32,
    length: usize,
    number: u16,
    /// Which communicator it belongs to.
    owner: u64,
    _memory: Arc<SharedMemory>,
}

// SAFETY: the window owns its part of the memory: no other window or thread of this process gives access to it.
unsafe impl Send for Window {}
// SAFETY: shared access only reads.
unsafe impl Sync for Window {}

impl Window {
    /// The part of rank `rank` of memory that gives each rank `stride` bytes.
    pub(crate) fn new(
        memory: Arc<SharedMemory>,
        rank: usize,
        stride: usize,
        length: usize,
        number: u16,
        owner: u64,
    ) -> Self {
        assert!(
            (rank + 1) * stride <= memory.len() && length * size_of::<f32>() <= stride,
            "parts lie within"
        );
        // SAFETY: checked above.
        let address = unsafe { memory.as_ptr().add(rank * stride) }.cast();
        Self { address, length, number, owner, _memory: memory }
    }

    /// Some elements of it, to be read by a call.
    ///
    /// # Panics
    /// If the range is not within the window.
    pub fn part(&self, range: Range<usize>) -> Part<'_> {
        let (address, location) = self.at(&range);
        Part { address, length: range.len(), location, owner: self.owner, _window: PhantomData }
    }

    /// Some elements of it, to be written by a call.
    ///
    /// # Panics
    /// If the range is not within the window.
    pub fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_> {
        let (address, location) = self.at(&range);
        PartMut { address, length: range.len(), location, owner: self.owner, _window: PhantomData }
    }

    fn at(&self, range: &Range<usize>) -> (*mut f32, Location) {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "{range:?} of {} elements",
            self.length
        );
        let offset = (range.start * size_of::<f32>()) as u64;
        // SAFETY: checked above.
        (unsafe { self.address.add(range.start) }, Location::Window { number: self.number, offset })
    }
}

impl Deref for Window {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the part is mapped, aligned and only ours between calls; every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }
}

/// Elements of a window that a call reads.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    address: *mut f32,
    length: usize,
    location: Location,
    owner: u64,
    _window: PhantomData<&'a f32>,
}

/// Elements of a window that a call writes.
#[derive(Debug)]
pub struct PartMut<'a> {
    address: *mut f32,
    length: usize,
    location: Location,
    owner: u64,
    _window: PhantomData<&'a mut f32>,
}

/// The owner of memory that is no window, and of windows that do not belong together. No communicator has these numbers.
pub(crate) const ORDINARY: u64 = 0;
pub(crate) const MIXED: u64 = u64::MAX;

/// What a collective reads and writes: made from a slice or a window (in place), or from a pair of slices or of windows
/// (out of place).
#[derive(Debug)]
pub struct Buffers<'a> {
    pub(crate) input: *const f32,
    pub(crate) output: *mut f32,
    pub(crate) input_length: usize,
    pub(crate) output_length: usize,
    pub(crate) aliasing: Aliasing,
    pub(crate) input_location: Location,
    pub(crate) output_location: Location,
    /// The communicator whose windows these are; [`ORDINARY`] if they are none, [`MIXED`] if they are of two.
    pub(crate) owner: u64,
    _borrow: PhantomData<&'a mut f32>,
}

impl Buffers<'_> {
    /// What a call of a plan on them announces.
    #[inline]
    pub(crate) fn header(&self, plan: &Verified) -> Header {
        Header::new(plan, self.output_length, self.aliasing, self.input_location, self.output_location)
    }

    /// Whether peers can reach them.
    #[inline]
    pub(crate) fn is_symmetric(&self) -> bool {
        self.owner != ORDINARY
    }

    fn in_place(address: *mut f32, length: usize, location: Location, owner: u64) -> Self {
        Self {
            input: address,
            output: address,
            input_length: length,
            output_length: length,
            aliasing: Aliasing::InPlace,
            input_location: location,
            output_location: location,
            owner,
            _borrow: PhantomData,
        }
    }
}

impl<'a> From<&'a mut [f32]> for Buffers<'a> {
    fn from(buffer: &'a mut [f32]) -> Self {
        Self::in_place(buffer.as_mut_ptr(), buffer.len(), Location::Private, ORDINARY)
    }
}

impl<'a> From<&'a mut Vec<f32>> for Buffers<'a> {
    fn from(buffer: &'a mut Vec<f32>) -> Self {
        buffer.as_mut_slice().into()
    }
}

impl<'a, const N: usize> From<&'a mut [f32; N]> for Buffers<'a> {
    fn from(buffer: &'a mut [f32; N]) -> Self {
        buffer.as_mut_slice().into()
    }
}

impl<'a> From<PartMut<'a>> for Buffers<'a> {
    fn from(part: PartMut<'a>) -> Self {
        Self::in_place(part.address, part.length, part.location, part.owner)
    }
}

impl<'a> From<&'a mut Window> for Buffers<'a> {
    fn from(window: &'a mut Window) -> Self {
        let length = window.len();
        window.part_mut(0..length).into()
    }
}

impl<'a> From<(&'a [f32], &'a mut [f32])> for Buffers<'a> {
    fn from((input, output): (&'a [f32], &'a mut [f32])) -> Self {
        Self {
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            input_length: input.len(),
            output_length: output.len(),
            aliasing: Aliasing::OutOfPlace,
            input_location: Location::Private,
            output_location: Location::Private,
            owner: ORDINARY,
            _borrow: PhantomData,
        }
    }
}

impl<'a> From<(&'a Vec<f32>, &'a mut Vec<f32>)> for Buffers<'a> {
    fn from((input, output): (&'a Vec<f32>, &'a mut Vec<f32>)) -> Self {
        (input.as_slice(), output.as_mut_slice()).into()
    }
}

impl<'a> From<(Part<'a>, PartMut<'a>)> for Buffers<'a> {
    fn from((input, output): (Part<'a>, PartMut<'a>)) -> Self {
        Self {
            input: input.address,
            output: output.address,
            input_length: input.length,
            output_length: output.length,
            aliasing: Aliasing::OutOfPlace,
            input_location: input.location,
            output_location: output.location,
            owner: if input.owner == output.owner { input.owner } else { MIXED },
            _borrow: PhantomData,
        }
    }
}

impl<'a> From<(&'a Window, &'a mut Window)> for Buffers<'a> {
    fn from((input, output): (&'a Window, &'a mut Window)) -> Self {
        let (inputs, outputs) = (input.len(), output.len());
        (input.part(0..inputs), output.part_mut(0..outputs)).into()
    }
}
