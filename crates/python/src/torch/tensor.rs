//! The properties of a tensor that a call needs.

use pyo3::intern;
use pyo3::prelude::*;
use weftlink::DataType;

use crate::array::dtype::named_type_of;

/// A contiguous tensor.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub(super) address: usize,
    /// In elements of `data_type`.
    pub(super) length: usize,
    pub(super) data_type: DataType,
    /// Whether its type can be reduced. Others are moved as bytes.
    pub(super) is_reducible: bool,
    /// torch's name of its type.
    pub(super) name: &'static str,
}

impl Tensor {
    /// A tensor on the CPU.
    pub(super) fn of(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        if !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            let device = tensor.getattr(intern!(py, "device"))?;
            let what =
                format!("the tensor is on {device}: pass tensors of the CPU, or all of one GPU of CUDA");
            return Err(usage(py, &what));
        }
        Self::anywhere(tensor)
    }

    /// A tensor on a GPU, which is the one of this number.
    pub(super) fn on_gpu(tensor: &Bound<'_, PyAny>, number: usize) -> PyResult<Self> {
        let py = tensor.py();
        let is_there = tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()?
            && tensor.call_method0(intern!(py, "get_device"))?.extract::<i64>()? == number as i64;
        if !is_there {
            let device = tensor.getattr(intern!(py, "device"))?;
            return Err(usage(py, &format!("a tensor is on {device}, and another on cuda:{number}")));
        }
        Self::anywhere(tensor)
    }

    fn anywhere(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let Some((name, kind)) = named_type_of(&dtype)? else {
            return Err(usage(py, &format!("tensors of type {dtype} are not supported")));
        };
        let elements: usize = tensor.call_method0(intern!(py, "numel"))?.extract()?;
        let address: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        if !tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
            return Err(usage(py, "the tensor is not contiguous: pass tensor.contiguous()"));
        }
        let (data_type, length) = match kind {
            Ok(data_type) => (data_type, elements),
            Err(bytes) => (DataType::U8, elements * bytes),
        };
        Ok(Self { address, length, data_type, is_reducible: kind.is_ok(), name })
    }

    /// Its address, and its size in bytes.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.address, self.length * self.data_type.bytes())
    }

    /// Whether both share memory.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let ((at, bytes), (other_at, other_bytes)) = (self.bytes(), other.bytes());
        at < other_at + other_bytes && other_at < at + bytes
    }

    /// No tensor.
    pub(super) const NONE: Self =
        Self { address: 0, length: 0, data_type: DataType::U8, is_reducible: true, name: "uint8" };
}

/// The exception for wrong arguments.
pub(super) fn usage(py: Python<'_>, what: &str) -> PyErr {
    crate::error::raised(py, &weftlink::Error::Misuse(what.to_owned()), None)
}
