//! The properties of a tensor that a call needs.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use weftlink::DataType;

/// A contiguous tensor on the CPU.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub(super) address: usize,
    /// In elements of `data_type`.
    pub(super) length: usize,
    pub(super) data_type: DataType,
    /// Whether its type can be reduced. Others are moved as bytes.
    pub(super) is_reducible: bool,
    /// torch's name of its type.
    pub(super) name: &'static str,
}

/// torch's types by name: Weft's type, or the bytes of an element that Weft only moves.
const TYPES: [(&str, Result<DataType, usize>); 22] = [
    ("float32", Ok(DataType::F32)),
    ("bfloat16", Ok(DataType::Bf16)),
    ("float16", Ok(DataType::F16)),
    ("float64", Ok(DataType::F64)),
    ("int64", Ok(DataType::I64)),
    ("int32", Ok(DataType::I32)),
    ("uint8", Ok(DataType::U8)),
    ("int8", Ok(DataType::I8)),
    ("bool", Ok(DataType::Bool)),
    ("int16", Ok(DataType::I16)),
    ("uint16", Ok(DataType::U16)),
    ("uint32", Ok(DataType::U32)),
    ("uint64", Ok(DataType::U64)),
    ("complex64", Ok(DataType::Complex64)),
    ("complex128", Ok(DataType::Complex128)),
    ("float8_e4m3fn", Ok(DataType::F8E4m3)),
    ("float8_e5m2", Ok(DataType::F8E5m2)),
    ("complex32", Err(4)),
    ("float8_e4m3fnuz", Err(1)),
    ("float8_e5m2fnuz", Err(1)),
    ("float8_e8m0fnu", Err(1)),
    ("float4_e2m1fn_x2", Err(1)),
];

/// torch's objects for these types, in the same order; nothing for a type that this torch lacks.
static OBJECTS: PyOnceLock<Vec<Option<Py<PyAny>>>> = PyOnceLock::new();

fn objects(py: Python<'_>) -> PyResult<&Vec<Option<Py<PyAny>>>> {
    OBJECTS.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        Ok(TYPES.iter().map(|(name, _)| torch.getattr(*name).ok().map(Bound::unbind)).collect())
    })
}

/// Weft's type for one of torch's, or the bytes of an element that Weft only moves; nothing for others.
pub(crate) fn type_of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<Result<DataType, usize>>> {
    Ok(position_of(dtype)?.map(|position| TYPES[position].1))
}

fn position_of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let objects = objects(dtype.py())?;
    Ok(objects.iter().position(|object| object.as_ref().is_some_and(|it| it.is(dtype))))
}

impl Tensor {
    pub(super) fn of(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let Some((name, kind)) = position_of(&dtype)?.map(|position| TYPES[position]) else {
            return Err(usage(py, &format!("tensors of type {dtype} are not supported")));
        };
        if !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            let device = tensor.getattr(intern!(py, "device"))?;
            return Err(usage(
                py,
                &format!("the tensor is on {device}, and Weft takes CPU tensors only: pass tensor.cpu()"),
            ));
        }
        let elements: usize = tensor.call_method0(intern!(py, "numel"))?.extract()?;
        let address: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        if !tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
            return Err(usage(py, "the tensor is not contiguous: pass tensor.contiguous()"));
        }
        let (data_type, length) = match kind {
            Ok(data_type) => (data_type, elements),
            Err(bytes) => (DataType::U8, elements * bytes),
        };
        Ok(Self { address, length, data_type, is_reducible: kind.is_ok(), name })
    }

    /// Its address, and its size in bytes.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.address, self.length * self.data_type.bytes())
    }

    /// Whether both share memory.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let ((at, bytes), (other_at, other_bytes)) = (self.bytes(), other.bytes());
        at < other_at + other_bytes && other_at < at + bytes
    }

    /// No tensor.
    pub(super) const NONE: Self =
        Self { address: 0, length: 0, data_type: DataType::U8, is_reducible: true, name: "uint8" };
}

/// The exception for wrong arguments.
pub(super) fn usage(py: Python<'_>, what: &str) -> PyErr {
    crate::error::raised(py, &weftlink::Error::Misuse(what.to_owned()), None)
}
