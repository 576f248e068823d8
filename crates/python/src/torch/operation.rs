//! Maps torch's reductions to Weft's.

use half::{bf16, f16};
use pyo3::prelude::*;
use weftlink::plan::element::{Complex, F8E4m3, F8E5m2};
use weftlink::{DataType, Operation, Reduction};

use super::tensor::{Tensor, usage};

/// The number of the pre-multiplied sum.
const PREMULTIPLIED_SUM: u8 = 8;
/// In the order of torch's `RedOpType`.
const REDUCTIONS: [Reduction; 9] = [
    Reduction::Sum,
    Reduction::Average,
    Reduction::Product,
    Reduction::Minimum,
    Reduction::Maximum,
    Reduction::BitAnd,
    Reduction::BitOr,
    Reduction::BitXor,
    Reduction::PremultipliedSum,
];

/// The operation for a reduction of torch on this tensor. `factor` is that of a pre-multiplied sum.
pub(super) fn operation(
    py: Python<'_>,
    number: u8,
    factor: Option<f64>,
    tensor: &Tensor,
) -> PyResult<Operation<'static>> {
    if !tensor.is_reducible {
        return Err(usage(py, &format!("tensors of type {} cannot be reduced", tensor.name)));
    }
    let Some(reduction) = reduction(number, tensor) else {
        return Err(usage(py, "unknown reduction"));
    };
    match (number, factor) {
        (PREMULTIPLIED_SUM, Some(factor)) => premultiplied(py, factor, tensor.data_type),
        (PREMULTIPLIED_SUM, None) => {
            Err(usage(py, "the factor of a pre-multiplied sum must be a single number"))
        }
        _ => Ok(reduction.into()),
    }
}

/// The reduction of a number of torch on this tensor.
pub(super) fn reduction(number: u8, tensor: &Tensor) -> Option<Reduction> {
    let reduction = *REDUCTIONS.get(usize::from(number))?;
    Some(if tensor.data_type == DataType::Bool { of_booleans(reduction) } else { reduction })
}

/// Booleans are combined as the numbers 0 and 1, where every result but 0 is true.
fn of_booleans(reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::Product | Reduction::Minimum | Reduction::BitAnd => Reduction::LogicalAnd,
        Reduction::BitXor => Reduction::LogicalXor,
        _ => Reduction::LogicalOr,
    }
}

fn premultiplied(py: Python<'_>, factor: f64, data_type: DataType) -> PyResult<Operation<'static>> {
    let narrow = factor as f32;
    Ok(match data_type {
        DataType::F32 => Operation::premultiplied_sum(narrow),
        DataType::F64 => Operation::premultiplied_sum(factor),
        DataType::F16 => Operation::premultiplied_sum(f16::from_f64(factor)),
        DataType::Bf16 => Operation::premultiplied_sum(bf16::from_f64(factor)),
        DataType::F8E4m3 => Operation::premultiplied_sum(F8E4m3::from_f32(narrow)),
        DataType::F8E5m2 => Operation::premultiplied_sum(F8E5m2::from_f32(narrow)),
        DataType::Complex64 => Operation::premultiplied_sum(Complex::new(narrow, 0.0)),
        DataType::Complex128 => Operation::premultiplied_sum(Complex::new(factor, 0.0)),
        DataType::I8 => Operation::premultiplied_sum(factor as i8),
        DataType::U8 => Operation::premultiplied_sum(factor as u8),
        DataType::I16 => Operation::premultiplied_sum(factor as i16),
        DataType::U16 => Operation::premultiplied_sum(factor as u16),
        DataType::I32 => Operation::premultiplied_sum(factor as i32),
        DataType::U32 => Operation::premultiplied_sum(factor as u32),
        DataType::I64 => Operation::premultiplied_sum(factor as i64),
        DataType::U64 => Operation::premultiplied_sum(factor as u64),
        DataType::Bool => return Err(usage(py, "booleans cannot be multiplied by a factor")),
    })
}
