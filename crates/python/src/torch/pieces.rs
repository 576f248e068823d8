//! Lists of tensors as one buffer, with a staging copy unless they are adjacent in memory.

// Copies the memory of tensors, which is known by its address.
#![allow(unsafe_code)]

use std::thread;

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::tensor::{Tensor, usage};

/// One side of a call: a tensor, or a list of tensors as one.
pub(super) struct Side {
    pub(super) tensor: Tensor,
    pub(super) staged: Option<Staged>,
}

/// A staging copy of a list of tensors, which the call reads or writes.
pub(super) struct Staged {
    bytes: Vec<u8>,
    /// The address and the bytes of each tensor.
    pieces: Vec<(usize, usize)>,
    access: Access,
}

/// How a call uses a side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// In place.
    ReadWrite,
}

impl Side {
    /// A tensor, or a list of tensors, as a side of a call.
    pub(super) fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let Ok(list) = object.cast::<PyList>() else {
            return Ok(Self { tensor: Tensor::of(object)?, staged: None });
        };
        let tensors = list.iter().map(|tensor| Tensor::of(&tensor)).collect::<PyResult<Vec<_>>>()?;
        let Some(first) = tensors.first() else {
            return Err(usage(object.py(), "the list of tensors is empty"));
        };
        if tensors.iter().any(|tensor| tensor.name != first.name) {
            return Err(usage(object.py(), "the tensors of the list have different types"));
        }
        let length = tensors.iter().map(|tensor| tensor.length).sum();
        if are_adjacent(&tensors) {
            return Ok(Self { tensor: Tensor { length, ..*first }, staged: None });
        }
        let staged = Staged::new(&tensors, access);
        let address = staged.bytes.as_ptr() as usize;
        Ok(Self { tensor: Tensor { address, length, ..*first }, staged: Some(staged) })
    }
}

/// Fewer bytes are not worth a thread, which takes about 20 us to start.
const BYTES_PER_THREAD: usize = 1 << 20;

/// Copies a tensor to another of as many bytes, with up to `threads` threads unless they overlap.
pub(super) fn copy(source: &Tensor, target: &Tensor, threads: usize) {
    let ((from, bytes), (to, _)) = (source.bytes(), target.bytes());
    let threads = if source.overlaps(target) { 1 } else { threads.max(1) };
    let part = bytes.div_ceil(threads).max(BYTES_PER_THREAD);
    let copy = |at: usize| {
        let (from, to) = ((from + at) as *const u8, (to + at) as *mut u8);
        // SAFETY: both tensors have that many bytes and are borrowed; the program must not use them in the meantime.
        unsafe { std::ptr::copy(from, to, part.min(bytes - at)) };
    };
    thread::scope(|scope| {
        for at in (part..bytes).step_by(part) {
            if thread::Builder::new().spawn_scoped(scope, move || copy(at)).is_err() {
                copy(at);
            }
        }
        copy(0);
    });
}

/// The tensors of a side, which the call keeps alive: the caller may change the list.
pub(super) fn tensors_of(object: &Bound<'_, PyAny>) -> Vec<Py<PyAny>> {
    match object.cast::<PyList>() {
        Ok(list) => list.iter().map(Bound::unbind).collect(),
        Err(_) => vec![object.clone().unbind()],
    }
}

fn are_adjacent(tensors: &[Tensor]) -> bool {
    tensors.windows(2).all(|pair| pair[0].address + pair[0].bytes().1 == pair[1].address)
}

impl Staged {
    fn new(tensors: &[Tensor], access: Access) -> Self {
        let pieces: Vec<_> = tensors.iter().map(Tensor::bytes).collect();
        let total = pieces.iter().map(|(_, bytes)| bytes).sum();
        let mut bytes = vec![0; total];
        if access != Access::Write {
            let mut rest = &mut bytes[..];
            for &(address, length) in &pieces {
                let (here, later) = rest.split_at_mut(length);
                // SAFETY: the tensor has that many bytes, and is borrowed.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, here.as_mut_ptr(), length) };
                rest = later;
            }
        }
        Self { bytes, pieces, access }
    }

    /// Copies the result to the tensors.
    pub(super) fn copy_back(&self) {
        if self.access == Access::Read {
            return;
        }
        let mut rest = &self.bytes[..];
        for &(address, length) in &self.pieces {
            let (here, later) = rest.split_at(length);
            // SAFETY: the tensor lives until the call is done, and only the call uses it.
            unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), address as *mut u8, length) };
            rest = later;
        }
    }
}
