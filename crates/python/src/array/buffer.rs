//! The buffer protocol.
//!
//! It is part of Python's stable interface since 3.11, and this module is built for 3.10 too, for which the headers lack it. But
//! the functions are there, and the structure is as it is today since 3.3, so both are declared here.

#![allow(unsafe_code)] // Asks Python for addresses by its C interface.

use std::ffi::{CStr, c_char, c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use weftlink::DataType;

use super::Described;

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

/// `PyBUF_RECORDS_RO`: strides and format, not necessarily to be written.
const RECORDS: c_int = 0x0018 | 0x0004;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
}

/// An object's memory, and what keeps it where it is; nothing if the object does not know the protocol, or not for its elements.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<(Described, Py<PyAny>)>> {
    // SAFETY: the object is one, and Python is attached.
    if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    // NumPy has types that the protocol has no letter for.
    let Ok(kept) = PyMemoryView::from(object) else { return Ok(None) };
    let mut view = std::mem::MaybeUninit::<View>::zeroed();
    // SAFETY: as above; Python fills the view if it says 0.
    if unsafe { PyObject_GetBuffer(kept.as_ptr(), view.as_mut_ptr(), RECORDS) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: it was filled.
    let view = unsafe { view.assume_init_mut() };
    let described = view.described();
    // The memory stays where it is as long as the memoryview has it.
    // SAFETY: it was filled, and is not used again.
    unsafe { PyBuffer_Release(view) };
    Ok(Some((described, kept.into_any().unbind())))
}

impl View {
    fn described(&self) -> Described {
        let dimensions = self.dimensions.max(0) as usize;
        let numbers = |first: *const isize| {
            // SAFETY: Python gives as many numbers as there are dimensions, or none.
            (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, dimensions) })
        };
        let element_bytes = self.element_bytes.max(1) as usize;
        let shape = match numbers(self.shape) {
            Some(shape) => shape.iter().map(|length| *length as usize).collect(),
            None => vec![self.bytes as usize / element_bytes],
        };
        // SAFETY: a format is text that ends with a zero byte, or there is none.
        let format = (!self.format.is_null()).then(|| unsafe { CStr::from_ptr(self.format) });
        let format = format.map_or("B".into(), CStr::to_string_lossy);
        Described {
            address: self.address.cast(),
            data_type: data_type(&format, element_bytes).ok_or_else(|| format!("{format:?}")),
            element_bytes,
            shape,
            strides: numbers(self.strides).map(<[isize]>::to_vec),
            read_only: self.read_only != 0,
        }
    }
}

/// What a format of the module `struct` stands for, if it is one number in this machine's order.
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
