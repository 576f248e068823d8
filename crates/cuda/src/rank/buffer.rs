//! Buffers of a rank, and how a call takes them.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::arrange::Lengths;
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

/// The buffers of a call.
#[derive(Debug)]
pub enum Buffers<'a, T> {
    /// Input and output in one buffer, or an output alone.
    InPlace(&'a mut Buffer<T>),
    /// An input alone, on ranks that get nothing.
    Input(&'a Buffer<T>),
    /// Input and output.
    Separate(&'a Buffer<T>, &'a mut Buffer<T>),
}

impl<'a, T> From<&'a mut Buffer<T>> for Buffers<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        Buffers::InPlace(buffer)
    }
}

impl<'a, T> From<&'a Buffer<T>> for Buffers<'a, T> {
    fn from(input: &'a Buffer<T>) -> Self {
        Buffers::Input(input)
    }
}

impl<'a, T> From<(&'a Buffer<T>, &'a mut Buffer<T>)> for Buffers<'a, T> {
    fn from((input, output): (&'a Buffer<T>, &'a mut Buffer<T>)) -> Self {
        Buffers::Separate(input, output)
    }
}

impl<T> Buffers<'_, T> {
    pub(super) fn each(&self) -> impl Iterator<Item = &Buffer<T>> {
        let (first, second): (&Buffer<T>, Option<&Buffer<T>>) = match self {
            Buffers::InPlace(buffer) => (buffer, None),
            Buffers::Input(input) => (input, None),
            Buffers::Separate(input, output) => (input, Some(output)),
        };
        std::iter::once(first).chain(second)
    }

    pub(super) fn lengths(&self) -> Lengths {
        match self {
            Buffers::InPlace(buffer) => Lengths::InPlace(buffer.len()),
            Buffers::Input(input) => Lengths::Input(input.len()),
            Buffers::Separate(input, output) => Lengths::Separate(input.len(), output.len()),
        }
    }

    /// Where the input's buffer and the output's begin.
    pub(super) fn addresses(&self) -> [DeviceAddress; 2] {
        match self {
            Buffers::InPlace(buffer) => [buffer.address(); 2],
            Buffers::Input(input) => [input.address(); 2],
            Buffers::Separate(input, output) => [input.address(), output.address()],
        }
    }
}
