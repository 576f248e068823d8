//! The memory of a Python object, as a call needs it: address, length and type of the elements.
//!
//! Plain tensors of PyTorch on a GPU are read by their attributes. Of the others, the buffer protocol comes first (NumPy arrays, bytes, bytearray, memoryview, array.array), then DLPack (tensors of PyTorch and other
//! libraries), then `__cuda_array_interface__`. None of them needs NumPy.

mod buffer;
mod cuda_interface;
pub(crate) mod dlpack;
pub(crate) mod dtype;
pub(crate) mod library;
mod tensor;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use weftlink::{DataType, Error};

/// The memory of a Python object, which is valid as long as `keep` lives.
pub(crate) struct Array {
    pub(crate) address: *mut u8,
    pub(crate) data_type: DataType,
    /// In elements.
    pub(crate) length: usize,
    pub(crate) read_only: bool,
    pub(crate) place: Place,
    pub(crate) keep: Py<PyAny>,
}

/// Where the memory of an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// On the GPU with this number, if the object says it.
    Gpu(Option<usize>),
}

/// How an object describes its memory.
struct Described {
    address: *mut u8,
    /// The type of the elements, or its name if Weft does not support it.
    data_type: Result<DataType, String>,
    element_bytes: usize,
    shape: Vec<usize>,
    /// In bytes; none if the array is contiguous.
    strides: Option<Vec<isize>>,
    read_only: bool,
    place: Place,
}

impl Array {
    /// The memory of an object, with the type of its elements overridden by `data_type`.
    pub(crate) fn of(object: &Bound<'_, PyAny>, data_type: Option<&str>) -> PyResult<Result<Self, Error>> {
        let py = object.py();
        let described = match tensor::describe(object) {
            Ok(None) => buffer::describe(object),
            described => described,
        };
        let described = match described {
            Ok(None) => dlpack::describe(object),
            described => described,
        };
        let described = match described {
            Ok(None) => cuda_interface::describe(object),
            described => described,
        };
        match described {
            Ok(Some((described, keep))) => Ok(described.array(data_type, keep)),
            Ok(None) => Ok(misuse(unknown(object)?)),
            // The owner of the memory says why it is not available.
            Err(why) if why.is_instance_of::<PyBufferError>(py) => Ok(misuse(why.value(py).to_string())),
            Err(error) => Err(error),
        }
    }
}

impl Array {
    pub(crate) fn bytes(&self) -> usize {
        self.length * self.data_type.bytes()
    }

    /// Whether two arrays share no memory; false if they are the same, an error if they overlap partly.
    pub(crate) fn is_apart_from(&self, other: &Array) -> Result<bool, Error> {
        let (one, two) = (self.address as usize, other.address as usize);
        let is_apart =
            self.length == 0 || other.length == 0 || one + self.bytes() <= two || two + other.bytes() <= one;
        if !is_apart && (one != two || self.bytes() != other.bytes()) {
            return misuse("array and out overlap: pass the whole array without out, for a call in place");
        }
        Ok(is_apart)
    }
}

impl Described {
    fn array(self, wanted: Option<&str>, keep: Py<PyAny>) -> Result<Array, Error> {
        if !self.is_contiguous() {
            return misuse(
                "the array is not contiguous: pass numpy.ascontiguousarray(array), or tensor.contiguous()",
            );
        }
        let bytes = self.shape.iter().product::<usize>() * self.element_bytes;
        let data_type = match (wanted, self.data_type) {
            (Some(name), _) => name.parse().map_err(Error::Misuse)?,
            (None, Ok(data_type)) => data_type,
            (None, Err(name)) => {
                return misuse(format!(
                    "elements of type {name} are not supported: convert them, or pass their type as dtype="
                ));
            }
        };
        if !bytes.is_multiple_of(data_type.bytes()) {
            return misuse(format!(
                "the array has {bytes} bytes, which is not a multiple of the size of {data_type}"
            ));
        }
        let Self { address, read_only, place, .. } = self;
        Ok(Array { address, data_type, length: bytes / data_type.bytes(), read_only, place, keep })
    }

    /// Whether the array is contiguous in C order.
    fn is_contiguous(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        if self.shape.contains(&0) {
            return true;
        }
        let mut next = self.element_bytes as isize;
        self.shape.iter().zip(strides).rev().all(|(length, stride)| {
            let fits = *length == 1 || *stride == next;
            next *= *length as isize;
            fits
        })
    }
}

fn misuse<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Misuse(what.into()))
}

fn unknown(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(format!(
        "an object of type {} is not an array: pass a NumPy array, a tensor, or an object with the buffer protocol, DLPack or __cuda_array_interface__",
        object.get_type().name()?
    ))
}
