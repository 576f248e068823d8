//! Buffers of a rank, and how a call takes them.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::Window;
use super::arrange::Lengths;
use super::part::{Part, PartMut};
use crate::driver::{DeviceAddress, DeviceBuffer, Mapping};
use crate::pool::Pool;

/// Elements in the memory of a rank's GPU.
#[derive(Debug)]
pub struct Buffer<T> {
    /// The pool gets it back.
    memory: ManuallyDrop<Mapping>,
    length: usize,
    pool: Arc<Pool<Mapping>>,
    of: PhantomData<T>,
}

impl<T> Buffer<T> {
    pub(super) fn new(memory: Mapping, length: usize, pool: &Arc<Pool<Mapping>>) -> Buffer<T> {
        Buffer { memory: ManuallyDrop::new(memory), length, pool: Arc::clone(pool), of: PhantomData }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of its first element, for kernels of the program.
    pub fn address(&self) -> DeviceAddress {
        self.memory.address()
    }

    pub(super) fn memory(&self) -> &Mapping {
        &self.memory
    }

    pub(super) fn is_from(&self, pool: &Arc<Pool<Mapping>>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        self.pool.give(memory.bytes(), memory);
    }
}

/// The buffers of a call, or windows in their place.
#[derive(Debug)]
pub enum Buffers<'a, T> {
    /// Input and output in one place, or an output alone.
    InPlace(PartMut<'a, T>),
    /// An input alone, on ranks that get nothing.
    Input(Part<'a, T>),
    /// Input and output.
    Separate(Part<'a, T>, PartMut<'a, T>),
}

impl<'a, T> From<PartMut<'a, T>> for Buffers<'a, T> {
    fn from(part: PartMut<'a, T>) -> Self {
        Buffers::InPlace(part)
    }
}

impl<'a, T> From<Part<'a, T>> for Buffers<'a, T> {
    fn from(part: Part<'a, T>) -> Self {
        Buffers::Input(part)
    }
}

impl<'a, T> From<&'a mut Buffer<T>> for Buffers<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        Buffers::InPlace(buffer.into())
    }
}

impl<'a, T> From<&'a Buffer<T>> for Buffers<'a, T> {
    fn from(input: &'a Buffer<T>) -> Self {
        Buffers::Input(input.into())
    }
}

impl<'a, T> From<&'a mut Window<T>> for Buffers<'a, T> {
    fn from(window: &'a mut Window<T>) -> Self {
        Buffers::InPlace(window.into())
    }
}

impl<'a, T> From<&'a Window<T>> for Buffers<'a, T> {
    fn from(input: &'a Window<T>) -> Self {
        Buffers::Input(input.into())
    }
}

impl<'a, T, I: Into<Part<'a, T>>, O: Into<PartMut<'a, T>>> From<(I, O)> for Buffers<'a, T> {
    fn from((input, output): (I, O)) -> Self {
        Buffers::Separate(input.into(), output.into())
    }
}

impl<'a, T> Buffers<'a, T> {
    /// The input's elements and the output's.
    pub(super) fn both(&self) -> [&Part<'a, T>; 2] {
        match self {
            Buffers::InPlace(part) => [part.as_part(); 2],
            Buffers::Input(input) => [input; 2],
            Buffers::Separate(input, output) => [input, output.as_part()],
        }
    }

    pub(super) fn lengths(&self) -> Lengths {
        let [input, output] = self.both().map(Part::len);
        match self {
            Buffers::InPlace(_) => Lengths::InPlace(input),
            Buffers::Input(_) => Lengths::Input(input),
            Buffers::Separate(..) => Lengths::Separate(input, output),
        }
    }
}
