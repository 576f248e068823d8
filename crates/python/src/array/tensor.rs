//! Tensors of PyTorch on a GPU, by their attributes: PyTorch's DLPack is written in Python, and takes longer than a launch.

use pyo3::intern;
use pyo3::prelude::*;
use weftlink::DataType;

use super::dtype::named_type_of;
use super::library::is_tensor;
use super::{Described, Place};

/// The memory of a plain tensor on a GPU; nothing for other objects, and for tensors that DLPack refuses or describes with strides.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<(Described, Py<PyAny>)>> {
    let py = object.py();
    if !is_tensor(object)? || !object.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
        return Ok(None);
    }
    let is = |method| object.call_method0(method).and_then(|found| found.is_truthy());
    if object.getattr(intern!(py, "requires_grad"))?.is_truthy()?
        || !is(intern!(py, "is_contiguous"))?
        || is(intern!(py, "is_conj"))?
        || is(intern!(py, "is_neg"))?
    {
        return Ok(None);
    }
    let Some((_, Ok(data_type))) = named_type_of(&object.getattr(intern!(py, "dtype"))?)? else {
        return Ok(None);
    };
    let device: usize = object.call_method0(intern!(py, "get_device"))?.extract()?;
    Ok(Some((described(object, data_type, device)?, object.clone().unbind())))
}

fn described(object: &Bound<'_, PyAny>, data_type: DataType, device: usize) -> PyResult<Described> {
    let py = object.py();
    let address: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let elements: usize = object.call_method0(intern!(py, "numel"))?.extract()?;
    Ok(Described {
        address: address as *mut u8,
        data_type: Ok(data_type),
        element_bytes: data_type.bytes(),
        shape: vec![elements],
        strides: None,
        read_only: false,
        place: Place::Gpu(Some(device)),
    })
}
