//! Symmetric memory, as an array in Python.

#![allow(unsafe_code)] // Exports its address.

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use weftlink::DataType;

use crate::array::dlpack;

/// This rank's part of symmetric memory, a contiguous array. NumPy (``__array_interface__``) and PyTorch (DLPack) make arrays of it, which
/// keep it alive.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Window {
    memory: weftlink::Window<u8>,
    data_type: DataType,
    length: usize,
}

impl Window {
    pub(crate) fn new(memory: weftlink::Window<u8>, data_type: DataType, length: usize) -> Self {
        Self { memory, data_type, length }
    }
}

#[pymethods]
impl Window {
    fn __len__(&self) -> usize {
        self.length
    }

    /// The type of the elements.
    #[getter]
    fn dtype(&self) -> &'static str {
        name(self.data_type).0
    }

    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.length,))?;
        interface.set_item("typestr", name(self.data_type).1)?;
        interface.set_item("data", (self.memory.as_ptr() as usize, false))?;
        Ok(interface)
    }

    /// A capsule from which other libraries make a tensor.
    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let Self { memory, data_type, length } = slf.get();
        let (address, data_type, length) = (memory.as_ptr().cast_mut(), *data_type, *length);
        // SAFETY: the window has `length` elements, and its memory lives as long as it does.
        unsafe { dlpack::export(slf.into_any(), address, data_type, length) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }
}

/// The names of a type in NumPy and in its array interface. Types that NumPy lacks appear as unsigned integers.
fn name(data_type: DataType) -> (&'static str, &'static str) {
    match data_type {
        DataType::I8 => ("int8", "|i1"),
        DataType::U8 => ("uint8", "|u1"),
        DataType::I16 => ("int16", "<i2"),
        DataType::U16 => ("uint16", "<u2"),
        DataType::I32 => ("int32", "<i4"),
        DataType::U32 => ("uint32", "<u4"),
        DataType::I64 => ("int64", "<i8"),
        DataType::U64 => ("uint64", "<u8"),
        DataType::F16 => ("float16", "<f2"),
        DataType::Bf16 => ("bfloat16", "<u2"),
        DataType::F32 => ("float32", "<f4"),
        DataType::F64 => ("float64", "<f8"),
        DataType::F8E4m3 => ("float8_e4m3fn", "|u1"),
        DataType::F8E5m2 => ("float8_e5m2", "|u1"),
        DataType::Bool => ("bool", "|b1"),
        DataType::Complex64 => ("complex64", "<c8"),
        DataType::Complex128 => ("complex128", "<c16"),
    }
}
