//! Elements of a rank's memory, as its calls and copies take them: of a buffer, or its own elements of a window.

use std::ops::Range;

use super::{Buffer, Rank, Window};
use crate::Error;
use crate::driver::DeviceAddress;

/// Elements to be read: a buffer, this rank's elements of a window, or those that [`Buffer::part`] or [`Window::part`] selects.
#[derive(Clone, Debug)]
pub struct Part<'a, T> {
    of: Owner<'a, T>,
    range: Range<usize>,
}

/// Elements to be written: a buffer, this rank's elements of a window, or those that [`Buffer::part_mut`] or [`Window::part_mut`] selects.
#[derive(Debug)]
pub struct PartMut<'a, T>(Part<'a, T>);

#[derive(Clone, Debug)]
enum Owner<'a, T> {
    Buffer(&'a Buffer<T>),
    Window(&'a Window<T>),
}

impl<T> Buffer<T> {
    /// Some of its elements. A call that gets a range outside of the buffer refuses it.
    pub fn part(&self, range: Range<usize>) -> Part<'_, T> {
        Part { of: Owner::Buffer(self), range }
    }

    /// Some of its elements, to be written.
    pub fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_, T> {
        PartMut(self.part(range))
    }
}

impl<T> Window<T> {
    /// Some of this rank's elements. A call that gets a range outside of the window refuses it.
    pub fn part(&self, range: Range<usize>) -> Part<'_, T> {
        Part { of: Owner::Window(self), range }
    }

    /// Some of this rank's elements, to be written.
    pub fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_, T> {
        PartMut(self.part(range))
    }
}

impl<'a, T> Part<'a, T> {
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// The address of the first element.
    pub(super) fn address(&self) -> DeviceAddress {
        let start = match self.of {
            Owner::Buffer(buffer) => buffer.address(),
            Owner::Window(window) => window.own_address(),
        };
        start + (self.range.start * size_of::<T>()) as u64
    }

    /// Whether a switch can access these elements of all ranks.
    pub(super) fn is_multicast(&self) -> bool {
        matches!(self.of, Owner::Window(window) if window.is_multicast())
    }

    /// Refuses memory of other ranks, and elements outside of it.
    pub(super) fn check(&self, rank: &Rank) -> Result<(), Error> {
        let (length, what) = match self.of {
            Owner::Buffer(buffer) => {
                rank.owns(buffer)?;
                (buffer.len(), "buffer")
            }
            Owner::Window(window) => {
                rank.check_window(window)?;
                (window.len(), "window")
            }
        };
        let range = &self.range;
        if range.start <= range.end && range.end <= length {
            return Ok(());
        }
        let why = format!("it has {length} elements");
        Err(Error::Misuse { attempt: format!("use elements {range:?} of a {what}"), why })
    }
}

impl<'a, T> PartMut<'a, T> {
    pub(super) fn as_part(&self) -> &Part<'a, T> {
        &self.0
    }
}

impl<'a, T> From<&'a Buffer<T>> for Part<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.part(0..buffer.len())
    }
}

impl<'a, T> From<&'a mut Buffer<T>> for PartMut<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.part_mut(0..buffer.len())
    }
}

impl<'a, T> From<&'a Window<T>> for Part<'a, T> {
    fn from(window: &'a Window<T>) -> Self {
        window.part(0..window.len())
    }
}

impl<'a, T> From<&'a mut Window<T>> for PartMut<'a, T> {
    fn from(window: &'a mut Window<T>) -> Self {
        window.part_mut(0..window.len())
    }
}
