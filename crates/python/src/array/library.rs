//! The library that an array belongs to, which decides the stream that the array's memory is used on.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A library whose current stream is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Torch,
    Cupy,
    Other,
}

impl Library {
    /// The library of an object's type, or of a type that it is derived from.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Library> {
        if is_tensor(object)? {
            return Ok(Library::Torch);
        }
        for class in object.get_type().mro() {
            let module = class.cast::<PyType>()?.module()?.to_string();
            match module.split('.').next() {
                Some("torch") => return Ok(Library::Torch),
                Some("cupy") => return Ok(Library::Cupy),
                _ => {}
            }
        }
        Ok(Library::Other)
    }
}

/// Whether an object is a tensor of PyTorch, and of no derived type.
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TENSOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (py, class) = (object.py(), object.get_type());
    // Does not import PyTorch: without it, the object is no tensor.
    if TENSOR.get(py).is_none() {
        let modules = py.import("sys")?.getattr("modules")?;
        let Ok(torch) = modules.get_item("torch") else { return Ok(false) };
        let Ok(tensor) = torch.getattr(intern!(py, "Tensor")) else { return Ok(false) };
        let _ = TENSOR.set(py, tensor.unbind());
    }
    Ok(TENSOR.get(py).is_some_and(|tensor| tensor.is(&class)))
}
