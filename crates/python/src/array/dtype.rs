//! The types of elements that PyTorch names.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use weftlink::DataType;

/// torch's types by name: Weft's type, or the bytes of an element that Weft only moves.
pub(crate) type NamedType = (&'static str, Result<DataType, usize>);

const TYPES: [NamedType; 22] = [
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

/// The name of one of torch's types, and Weft's type, or the bytes of an element that Weft only moves; nothing for others.
pub(crate) fn named_type_of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<NamedType>> {
    let mut objects = objects(dtype.py())?.iter();
    let position = objects.position(|object| object.as_ref().is_some_and(|it| it.is(dtype)));
    Ok(position.map(|position| TYPES[position]))
}
