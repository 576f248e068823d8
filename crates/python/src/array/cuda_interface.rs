//! `__cuda_array_interface__`: arrays of GPUs that Numba, CuPy and others share.

use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use weftlink::DataType;

use super::{Described, Place};

/// The memory of an object, which the object itself keeps alive; nothing if it lacks the interface.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<(Described, Py<PyAny>)>> {
    let py = object.py();
    let Ok(interface) = object.getattr(intern!(py, "__cuda_array_interface__")) else { return Ok(None) };
    let entry = |name: &str| interface.get_item(name);
    if !interface.call_method1("get", ("mask",))?.is_none() {
        return Err(PyBufferError::new_err("the array has a mask: pass its data"));
    }
    let (address, read_only): (usize, bool) = entry("data")?.extract()?;
    let name: String = entry("typestr")?.extract()?;
    let strides: Option<Vec<isize>> = interface.call_method1("get", ("strides",))?.extract()?;
    let element_bytes = name.get(2..).and_then(|bytes| bytes.parse().ok()).unwrap_or(1);
    let described = Described {
        address: address as *mut u8,
        data_type: data_type(&name).ok_or(name),
        element_bytes,
        shape: entry("shape")?.extract()?,
        strides,
        read_only,
        place: Place::Gpu(None),
    };
    Ok(Some((described, object.clone().unbind())))
}

/// The type of a NumPy type string.
fn data_type(name: &str) -> Option<DataType> {
    Some(match name.strip_prefix(['<', '|', '='])? {
        "i1" => DataType::I8,
        "u1" => DataType::U8,
        "b1" => DataType::Bool,
        "i2" => DataType::I16,
        "u2" => DataType::U16,
        "f2" => DataType::F16,
        "i4" => DataType::I32,
        "u4" => DataType::U32,
        "f4" => DataType::F32,
        "i8" => DataType::I64,
        "u8" => DataType::U64,
        "f8" => DataType::F64,
        "c8" => DataType::Complex64,
        "c16" => DataType::Complex128,
        _ => return None,
    })
}
