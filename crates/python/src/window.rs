//! Symmetric memory as Python sees it.

#![allow(unsafe_code)] // Its address is handed out.

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use weftlink::DataType;

use crate::array::dlpack;

/// This rank's part of symmetric memory: elements in a row. It is an array to whoever knows ``__array_interface__`` (NumPy) or
/// DLPack (PyTorch and others), and it lives as long as one of these does.
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

    /// What the elements are.
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

    /// A capsule for whoever makes a tensor of it.
    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let Self { memory, data_type, length } = slf.get();
        let (address, data_type, length) = (memory.as_ptr().cast_mut(), *data_type, *length);
        // SAFETY: the window has so many elements, and its memory as long as it lives.
        unsafe { dlpack::export(slf.into_any(), address, data_type, length) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }
}

/// What NumPy calls a type, and how its interface of arrays does. What it lacks is shown as bits.
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
