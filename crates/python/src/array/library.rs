//! The library that an array belongs to, which decides the stream that the array's memory is used on.

use pyo3::prelude::*;
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
