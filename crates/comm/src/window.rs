//! Symmetric memory: windows that all ranks allocate together.
//!
//! A window gives every rank a part of the same length, which the other ranks can access. Between calls a rank sees its own part
//! as a slice; peers access it only while the rank is in a call on it, which the verifier has proved of every plan. After a
//! failed call peers may still be in that call, so the rank keeps a private copy of its part (`failure.rs`).

// A part of a window becomes a slice, and slices become addresses for the engine.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use weftlink_plan::Aliasing;
use weftlink_recorder::header::Location;

use crate::buffers::{Buffers, Side};
use crate::data::Data;
use crate::symmetric::Symmetric;

/// One rank's part of symmetric memory, as a slice. Made by
/// [`Communicator::window`](crate::Communicator::window). It may outlive its communicator; its memory lasts until both
/// are dropped.
#[derive(Debug)]
pub struct Window<T> {
    address: *mut T,
    length: usize,
    number: u16,
    /// The communicator it belongs to.
    owner: u64,
    rank: usize,
    stride: usize,
    memory: Arc<Symmetric>,
}

// SAFETY: the window owns its part of the memory: no other window or thread of this process gives access to it.
unsafe impl<T: Data> Send for Window<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Data> Sync for Window<T> {}

impl<T: Data> Window<T> {
    /// The part of rank `rank` of zeroed memory that gives each rank `stride` bytes.
    pub(crate) fn new(
        memory: Arc<Symmetric>,
        rank: usize,
        stride: usize,
        length: usize,
        number: u16,
        owner: u64,
    ) -> Self {
        assert!(
            (rank + 1) * stride <= memory.memory().len() && length * size_of::<T>() <= stride,
            "parts lie within"
        );
        assert!(stride.is_multiple_of(align_of::<T>()), "parts are whole pages");
        // SAFETY: checked above.
        let address = unsafe { memory.memory().as_ptr().add(rank * stride) }.cast();
        Self { address, length, number, owner, rank, stride, memory }
    }

    /// Elements that a call reads.
    ///
    /// # Panics
    /// If the range is not within the window.
    #[inline]
    pub fn part(&self, range: Range<usize>) -> Part<'_, T> {
        Part { side: self.at(&range), _window: PhantomData }
    }

    /// Elements that a call writes.
    ///
    /// # Panics
    /// If the range is not within the window.
    #[inline]
    pub fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_, T> {
        PartMut { side: self.at(&range), _window: PhantomData }
    }

    /// The parts of all ranks, and the bytes of each.
    pub(crate) fn whole(&self) -> (&Arc<Symmetric>, usize) {
        (&self.memory, self.stride)
    }

    /// The communicator it belongs to, and its number there.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The rank whose part it is.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn at(&self, range: &Range<usize>) -> Side {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "{range:?} of {} elements",
            self.length
        );
        let offset = (range.start * size_of::<T>()) as u64;
        // SAFETY: checked above.
        let address = unsafe { self.address.add(range.start) }.cast();
        let location = Location::Window { number: self.number, offset };
        Side { address, length: range.len(), location, owner: self.owner }
    }
}

impl<T: Data> Deref for Window<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the part is mapped, aligned and only ours between calls; it began as zeros, which are a value of all plain
        // data that windows are made of, and holds what ranks wrote since.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl<T: Data> DerefMut for Window<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }
}

/// Elements of a window that a call reads.
#[derive(Debug)]
pub struct Part<'a, T> {
    side: Side,
    _window: PhantomData<&'a T>,
}

/// Elements of a window that a call writes.
#[derive(Debug)]
pub struct PartMut<'a, T> {
    side: Side,
    _window: PhantomData<&'a mut T>,
}

impl<T> Clone for Part<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Part<'_, T> {}

impl<T> Part<'_, T> {
    #[inline]
    pub(crate) fn side(self) -> Side {
        self.side
    }
}

impl<T> PartMut<'_, T> {
    #[inline]
    pub(crate) fn side(self) -> Side {
        self.side
    }
}

impl<'a, T: Data> From<PartMut<'a, T>> for Buffers<'a> {
    #[inline]
    fn from(part: PartMut<'a, T>) -> Self {
        Self::in_place::<T>(part.side())
    }
}

impl<'a, T: Data> From<&'a mut Window<T>> for Buffers<'a> {
    #[inline]
    fn from(window: &'a mut Window<T>) -> Self {
        let length = window.len();
        window.part_mut(0..length).into()
    }
}

impl<'a, T: Data> From<(Part<'a, T>, PartMut<'a, T>)> for Buffers<'a> {
    #[inline]
    fn from((input, output): (Part<'a, T>, PartMut<'a, T>)) -> Self {
        Self::new::<T>(input.side(), output.side(), Aliasing::OutOfPlace)
    }
}

impl<'a, T: Data> From<(&'a Window<T>, &'a mut Window<T>)> for Buffers<'a> {
    #[inline]
    fn from((input, output): (&'a Window<T>, &'a mut Window<T>)) -> Self {
        let (inputs, outputs) = (input.len(), output.len());
        (input.part(0..inputs), output.part_mut(0..outputs)).into()
    }
}

impl<'a, T: Data> From<Part<'a, T>> for Buffers<'a> {
    #[inline]
    fn from(input: Part<'a, T>) -> Self {
        Self::new::<T>(input.side(), Side::NONE, Aliasing::OutOfPlace)
    }
}

impl<'a, T: Data> From<&'a Window<T>> for Buffers<'a> {
    #[inline]
    fn from(window: &'a Window<T>) -> Self {
        window.part(0..window.len()).into()
    }
}
