//! DLPack, both ways: importing tensors of other libraries, and exporting Weft's memory to them.

#![allow(unsafe_code)] // Reads and makes the C structures in capsules.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};
use weftlink::DataType;

use super::library::Library;
use super::{Described, Place};

const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const CPU: i32 = 1;
/// Pinned memory of CUDA and ROCm, which the CPU can access.
const PINNED: [i32; 2] = [3, 11];
/// Memory of an NVIDIA GPU, and memory that its driver moves.
const GPU: [i32; 2] = [2, 13];
const READ_ONLY: u64 = 1;

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The codes of `DLDataTypeCode`, with bits.
const TYPES: [(u8, u8, DataType); 17] = [
    (0, 8, DataType::I8),
    (0, 16, DataType::I16),
    (0, 32, DataType::I32),
    (0, 64, DataType::I64),
    (1, 8, DataType::U8),
    (1, 16, DataType::U16),
    (1, 32, DataType::U32),
    (1, 64, DataType::U64),
    (2, 16, DataType::F16),
    (2, 32, DataType::F32),
    (2, 64, DataType::F64),
    (4, 16, DataType::Bf16),
    (5, 64, DataType::Complex64),
    (5, 128, DataType::Complex128),
    (6, 8, DataType::Bool),
    (10, 8, DataType::F8E4m3),
    (12, 8, DataType::F8E5m2),
];

/// The memory of an object, and the capsule that keeps it alive; nothing if the object lacks DLPack.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<(Described, Py<PyAny>)>> {
    let py = object.py();
    let Ok(dlpack) = object.getattr(intern!(py, "__dlpack__")) else { return Ok(None) };
    let options = PyDict::new(py);
    let device = object.call_method0(intern!(py, "__dlpack_device__")).and_then(|device| device.extract());
    if device.is_ok_and(|(kind, _): (i32, i32)| GPU.contains(&kind)) {
        // The call runs on the current stream of these, so nothing needs to wait; for others on the default stream, number 1, which
        // the library makes wait for its own.
        let is_current = matches!(Library::of(object)?, Library::Torch | Library::Cupy);
        options.set_item("stream", if is_current { -1 } else { 1 })?;
    }
    let older = options.copy()?;
    options.set_item("max_version", (1, 1))?;
    let capsule = match dlpack.call((), Some(&options)) {
        // Older versions take no `max_version`.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => dlpack.call((), Some(&older)),
        capsule => capsule,
    };
    let capsule = capsule?.cast_into::<PyCapsule>()?;
    // SAFETY: DLPack defines what a capsule of these names holds, and it stays valid until a consumer takes it.
    let (tensor, read_only) = unsafe {
        match capsule.pointer_checked(Some(VERSIONED)) {
            Ok(pointer) => {
                let managed = pointer.cast::<ManagedVersioned>().as_ref();
                if managed.major != 1 {
                    return Err(PyBufferError::new_err("only DLPack version 1 is supported"));
                }
                (&managed.tensor, managed.flags & READ_ONLY != 0)
            }
            Err(_) => {
                let pointer = capsule.pointer_checked(Some(UNVERSIONED))?;
                (&pointer.cast::<Managed>().as_ref().tensor, false)
            }
        }
    };
    Ok(Some((tensor.described(read_only)?, capsule.into_any().unbind())))
}

impl Tensor {
    fn described(&self, read_only: bool) -> PyResult<Described> {
        let place = match self.device_type {
            CPU => Place::Host,
            kind if PINNED.contains(&kind) => Place::Host,
            kind if GPU.contains(&kind) => Place::Gpu(usize::try_from(self.device_number).ok()),
            _ => {
                let what = "the tensor is neither in CPU memory nor on an NVIDIA GPU: pass tensor.cpu()";
                return Err(PyBufferError::new_err(what));
            }
        };
        let found =
            TYPES.into_iter().find(|(code, bits, _)| (*code, *bits, 1) == (self.code, self.bits, self.lanes));
        let element_bytes = usize::from(self.bits).div_ceil(8) * usize::from(self.lanes);
        let numbers = |first: *const i64| {
            // SAFETY: DLPack has one number per dimension, or a null pointer.
            (!first.is_null() && self.dimensions > 0)
                .then(|| unsafe { std::slice::from_raw_parts(first, self.dimensions as usize) })
        };
        let shape = numbers(self.shape).unwrap_or(&[]).iter().map(|length| *length as usize).collect();
        let strides = numbers(self.strides)
            .map(|strides| strides.iter().map(|stride| *stride as isize * element_bytes as isize).collect());
        Ok(Described {
            address: self.data.cast::<u8>().wrapping_add(self.byte_offset as usize),
            data_type: found
                .map(|(_, _, data_type)| data_type)
                .ok_or_else(|| format!("{} of {} bits in DLPack", self.code, self.bits)),
            element_bytes,
            shape,
            strides,
            read_only,
            place,
        })
    }
}

/// An exported tensor, with the data that it points to.
struct Exported {
    managed: Managed,
    shape: [i64; 1],
    _keep: Py<PyAny>,
}

/// A capsule from which other libraries make a tensor. It keeps the object alive.
///
/// # Safety
/// The address has `length` elements as long as the object lives.
pub(crate) unsafe fn export<'py>(
    keep: Bound<'py, PyAny>,
    address: *mut u8,
    data_type: DataType,
    length: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    let py = keep.py();
    let unknown = || PyBufferError::new_err(format!("DLPack has no name for {data_type}"));
    let (code, bits, _) = TYPES.into_iter().find(|(_, _, known)| *known == data_type).ok_or_else(unknown)?;
    let tensor = Tensor {
        data: address.cast(),
        device_type: CPU,
        device_number: 0,
        dimensions: 1,
        code,
        bits,
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor, context: std::ptr::null_mut(), deleter: Some(delete) };
    let exported = Box::leak(Box::new(Exported { managed, shape: [length as i64], _keep: keep.unbind() }));
    exported.managed.tensor.shape = exported.shape.as_mut_ptr();
    exported.managed.context = (&raw mut *exported).cast();
    let pointer = NonNull::from(&mut exported.managed).cast();
    // SAFETY: the destructor fits capsules of this name, and the structure lives until the deleter is called.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, UNVERSIONED, Some(destroy)) }
}

/// Frees a capsule without a consumer. A consumer renames the capsule and calls the deleter itself.
unsafe extern "C" fn destroy(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls it with the capsule, attached.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `export` stored the box there, and the deleter runs once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported>()) });
}
