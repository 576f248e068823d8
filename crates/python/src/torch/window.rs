//! Symmetric memory as Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use weftlink::Window;

/// This rank's part of symmetric memory. It has the array interface, so that NumPy and torch make arrays of it without a copy.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Memory {
    window: Window<u8>,
}

impl Memory {
    pub(super) fn new(window: Window<u8>) -> Self {
        Self { window }
    }
}

#[pymethods]
impl Memory {
    /// What NumPy asks for: where the bytes are, and that they may be written.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.window.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.window.as_ptr() as usize, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    fn __len__(&self) -> usize {
        self.window.len()
    }
}
