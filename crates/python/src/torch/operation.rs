//! Maps torch's reductions to Weft's.

use pyo3::prelude::*;
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
    let multiplied = Operation::premultiplied_sum_of(data_type, factor);
    multiplied.ok_or_else(|| usage(py, "booleans cannot be multiplied by a factor"))
}
