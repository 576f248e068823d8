//! The buffer protocol.
//!
//! It is part of Python's stable ABI since 3.11, and this module supports 3.10 too, whose headers lack it. But the functions exist
//! there, and the structure has not changed since 3.3, so both are declared here.

#![allow(unsafe_code)] // Calls Python's C API for addresses.

use std::ffi::{CStr, c_char, c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use weftlink::DataType;

use super::{Described, Place};

/// `Py_buffer`.
#[repr(C)]
struct View {
    address: *mut c_void,
    object: *mut ffi::PyObject,
    bytes: isize,
    element_bytes: isize,
    read_only: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// `PyBUF_RECORDS_RO`: strides and format, possibly read-only.
const RECORDS: c_int = 0x0018 | 0x0004;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
}

/// The memory of an object, and a memoryview that keeps it in place; nothing if the object or its element type lacks the protocol.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<(Described, Py<PyAny>)>> {
    // SAFETY: it is an object, and Python is attached.
    if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    // The protocol has no format for some types of NumPy.
    let Ok(kept) = PyMemoryView::from(object) else { return Ok(None) };
    let mut view = std::mem::MaybeUninit::<View>::zeroed();
    // SAFETY: as above; Python fills the view if it returns 0.
    if unsafe { PyObject_GetBuffer(kept.as_ptr(), view.as_mut_ptr(), RECORDS) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: it was filled.
    let view = unsafe { view.assume_init_mut() };
    let described = view.described();
    // The memoryview keeps the memory in place.
    // SAFETY: it was filled, and is not used again.
    unsafe { PyBuffer_Release(view) };
    Ok(Some((described, kept.into_any().unbind())))
}

impl View {
    fn described(&self) -> Described {
        let dimensions = self.dimensions.max(0) as usize;
        let numbers = |first: *const isize| {
            // SAFETY: Python provides one number per dimension, or a null pointer.
            (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, dimensions) })
        };
        let element_bytes = self.element_bytes.max(1) as usize;
        let shape = match numbers(self.shape) {
            Some(shape) => shape.iter().map(|length| *length as usize).collect(),
            None => vec![self.bytes as usize / element_bytes],
        };
        // SAFETY: a format is a C string, or a null pointer.
        let format = (!self.format.is_null()).then(|| unsafe { CStr::from_ptr(self.format) });
        let format = format.map_or("B".into(), CStr::to_string_lossy);
        Described {
            address: self.address.cast(),
            data_type: data_type(&format, element_bytes).ok_or_else(|| format!("{format:?}")),
            element_bytes,
            shape,
            strides: numbers(self.strides).map(<[isize]>::to_vec),
            read_only: self.read_only != 0,
            place: Place::Host,
        }
    }
}

/// The type for a format of the module `struct`, if it is a single number in native byte order.
fn data_type(format: &str, bytes: usize) -> Option<DataType> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let letters = format.strip_prefix(['@', '=', native]).unwrap_or(format);
    Some(match (letters, bytes) {
        ("?", 1) => DataType::Bool,
        ("b", 1) => DataType::I8,
        ("B" | "c", 1) => DataType::U8,
        ("h", 2) => DataType::I16,
        ("H", 2) => DataType::U16,
        ("i" | "l", 4) => DataType::I32,
        ("I" | "L", 4) => DataType::U32,
        ("q" | "l" | "n", 8) => DataType::I64,
        ("Q" | "L" | "N", 8) => DataType::U64,
        ("e", 2) => DataType::F16,
        ("f", 4) => DataType::F32,
        ("d", 8) => DataType::F64,
        ("Zf", 8) => DataType::Complex64,
        ("Zd", 16) => DataType::Complex128,
        _ => return None,
    })
}
