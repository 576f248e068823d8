//! Tensors that lie apart as one: what lists of tensors are for a call.

// Tensors are memory that is known by its address.
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

/// A copy of tensors that lie apart. It is where a call reads or writes.
pub(super) struct Staged {
    bytes: Vec<u8>,
    /// Where they are, and how many bytes each has.
    pieces: Vec<(usize, usize)>,
    way: Way,
}

/// What a call does with a side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Reads,
    Writes,
    /// In place.
    Both,
}

impl Side {
    /// What a call reads, writes, or both.
    pub(super) fn of(object: &Bound<'_, PyAny>, way: Way) -> PyResult<Self> {
        let Ok(list) = object.cast::<PyList>() else {
            return Ok(Self { tensor: Tensor::of(object)?, staged: None });
        };
        let tensors = list.iter().map(|tensor| Tensor::of(&tensor)).collect::<PyResult<Vec<_>>>()?;
        let Some(first) = tensors.first() else {
            return Err(usage(object.py(), "a list of tensors is empty"));
        };
        if tensors.iter().any(|tensor| tensor.name != first.name) {
            return Err(usage(object.py(), "the tensors of a list have different types"));
        }
        let length = tensors.iter().map(|tensor| tensor.length).sum();
        if are_neighbours(&tensors) {
            return Ok(Self { tensor: Tensor { length, ..*first }, staged: None });
        }
        let staged = Staged::new(&tensors, way);
        let address = staged.bytes.as_ptr() as usize;
        Ok(Self { tensor: Tensor { address, length, ..*first }, staged: Some(staged) })
    }
}

/// What is worth a thread of its own, which takes some 20 us to start.
const BYTES_PER_THREAD: usize = 1 << 20;

/// Copies a tensor to another of as many bytes, by so many threads if it is long and they are not partly the same.
pub(super) fn copy(source: &Tensor, target: &Tensor, threads: usize) {
    let ((from, bytes), (to, _)) = (source.bytes(), target.bytes());
    let threads = if source.overlaps(target) { 1 } else { threads.max(1) };
    let part = bytes.div_ceil(threads).max(BYTES_PER_THREAD);
    let copy = |at: usize| {
        let (from, to) = ((from + at) as *const u8, (to + at) as *mut u8);
        // SAFETY: both tensors hold so many bytes and are borrowed; that nobody uses them meanwhile is the program's part.
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

/// The tensors of a side, which a call keeps: its list is the caller's to change.
pub(super) fn tensors_of(object: &Bound<'_, PyAny>) -> Vec<Py<PyAny>> {
    match object.cast::<PyList>() {
        Ok(list) => list.iter().map(Bound::unbind).collect(),
        Err(_) => vec![object.clone().unbind()],
    }
}

fn are_neighbours(tensors: &[Tensor]) -> bool {
    tensors.windows(2).all(|pair| pair[0].address + pair[0].bytes().1 == pair[1].address)
}

impl Staged {
    fn new(tensors: &[Tensor], way: Way) -> Self {
        let pieces: Vec<_> = tensors.iter().map(Tensor::bytes).collect();
        let total = pieces.iter().map(|(_, bytes)| bytes).sum();
        let mut bytes = vec![0; total];
        if way != Way::Writes {
            let mut rest = &mut bytes[..];
            for &(address, length) in &pieces {
                let (here, later) = rest.split_at_mut(length);
                // SAFETY: the tensor holds so many bytes, and is borrowed.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, here.as_mut_ptr(), length) };
                rest = later;
            }
        }
        Self { bytes, pieces, way }
    }

    /// Copies what was written to where it belongs.
    pub(super) fn bring_back(&self) {
        if self.way == Way::Reads {
            return;
        }
        let mut rest = &self.bytes[..];
        for &(address, length) in &self.pieces {
            let (here, later) = rest.split_at(length);
            // SAFETY: the tensor is kept until the call is over, and is the call's alone.
            unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), address as *mut u8, length) };
            rest = later;
        }
    }
}
