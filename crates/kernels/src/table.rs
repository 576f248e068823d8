//! Maps a type and a reduction to a loop, for all instruction sets.
//!
//! Types share a loop where the resulting bits are the same: sums and products of signed and unsigned integers, logical operations on
//! types of the same width, bitwise operations on any type. A sum of complex numbers is a sum of twice as many floats.

use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::{DataType, Reduction};

use super::Kernel;
use super::convert::Widen;
use super::copy::Copies;
use super::operations::{
    BitAnd, BitOr, BitXor, Divide, DivideFloat, LogicalAnd, LogicalOr, LogicalXor, Maximum, Minimum, NonZero,
    Operation, Product, Scale as Scaling, Sum,
};
use super::set::{Combine, Finish, Scale, Set};

pub(super) fn copy<S: Set>() -> Kernel {
    let copy = S::combine::<Copies<S>>();
    Kernel { element_bytes: 1, parts: 1, adds_f32: false, combine: copy, copy }
}

pub(super) fn reduction<S: Set>(data_type: DataType, reduction: Reduction) -> Option<Kernel> {
    use Reduction as R;
    if !reduction.is_for(data_type.kind()) {
        return None;
    }
    let element_bytes = data_type.bytes();
    let (combine, parts) = match reduction {
        R::Sum | R::Average | R::PremultipliedSum => sum::<S>(data_type)?,
        R::Product => (product::<S>(data_type)?, 1),
        R::Minimum if data_type != DataType::Bool => (min_max::<S, Minimum>(data_type)?, 1),
        R::Maximum if data_type != DataType::Bool => (min_max::<S, Maximum>(data_type)?, 1),
        R::BitAnd if data_type != DataType::Bool => (S::blocks::<u8, BitAnd>(), element_bytes),
        R::BitOr if data_type != DataType::Bool => (S::blocks::<u8, BitOr>(), element_bytes),
        R::BitXor if data_type != DataType::Bool => (S::blocks::<u8, BitXor>(), element_bytes),
        R::LogicalAnd | R::BitAnd | R::Minimum => (logical::<S, LogicalAnd>(element_bytes)?, 1),
        R::LogicalOr | R::BitOr | R::Maximum => (logical::<S, LogicalOr>(element_bytes)?, 1),
        R::LogicalXor | R::BitXor => (logical::<S, LogicalXor>(element_bytes)?, 1),
        R::UserDefined { .. } => return None,
    };
    let adds_f32 =
        data_type == DataType::F32 && matches!(reduction, R::Sum | R::Average | R::PremultipliedSum);
    Some(Kernel { element_bytes, parts, adds_f32, combine, copy: S::combine::<Copies<S>>() })
}

fn sum<S: Set>(data_type: DataType) -> Option<(Combine, usize)> {
    Some(match data_type {
        DataType::I8 | DataType::U8 => (S::blocks::<u8, Sum>(), 1),
        DataType::I16 | DataType::U16 => (S::blocks::<u16, Sum>(), 1),
        DataType::I32 | DataType::U32 => (S::blocks::<u32, Sum>(), 1),
        DataType::I64 | DataType::U64 => (S::blocks::<u64, Sum>(), 1),
        DataType::F16 => (S::sum_f16(), 1),
        DataType::Bf16 => (S::sum_bf16(), 1),
        DataType::F32 => (S::sum_f32(), 1),
        DataType::F64 => (S::sum_f64(), 1),
        DataType::F8E4m3 => (S::blocks::<F8E4m3, Sum>(), 1),
        DataType::F8E5m2 => (S::blocks::<F8E5m2, Sum>(), 1),
        DataType::Complex64 => (S::sum_f32(), 2),
        DataType::Complex128 => (S::sum_f64(), 2),
        DataType::Bool => return None,
    })
}

fn product<S: Set>(data_type: DataType) -> Option<Combine> {
    Some(match data_type {
        DataType::I8 | DataType::U8 => S::blocks::<u8, Product>(),
        DataType::I16 | DataType::U16 => S::blocks::<u16, Product>(),
        DataType::I32 | DataType::U32 => S::blocks::<u32, Product>(),
        DataType::I64 | DataType::U64 => S::blocks::<u64, Product>(),
        DataType::F16 => S::blocks::<f16, Product>(),
        DataType::Bf16 => S::blocks::<bf16, Product>(),
        DataType::F32 => S::blocks::<f32, Product>(),
        DataType::F64 => S::blocks::<f64, Product>(),
        DataType::F8E4m3 => S::blocks::<F8E4m3, Product>(),
        DataType::F8E5m2 => S::blocks::<F8E5m2, Product>(),
        DataType::Complex64 => S::blocks::<Complex<f32>, Product>(),
        DataType::Complex128 => S::blocks::<Complex<f64>, Product>(),
        DataType::Bool => return None,
    })
}

/// Minimum or maximum.
fn min_max<S: Set, O>(data_type: DataType) -> Option<Combine>
where
    O: Operation<i8> + Operation<i16> + Operation<i32> + Operation<i64> + Operation<f32> + Operation<f64>,
    O: Operation<u8> + Operation<u16> + Operation<u32> + Operation<u64>,
{
    Some(match data_type {
        DataType::I8 => S::blocks::<i8, O>(),
        DataType::U8 => S::blocks::<u8, O>(),
        DataType::I16 => S::blocks::<i16, O>(),
        DataType::U16 => S::blocks::<u16, O>(),
        DataType::I32 => S::blocks::<i32, O>(),
        DataType::U32 => S::blocks::<u32, O>(),
        DataType::I64 => S::blocks::<i64, O>(),
        DataType::U64 => S::blocks::<u64, O>(),
        DataType::F16 => S::blocks::<f16, O>(),
        DataType::Bf16 => S::blocks::<bf16, O>(),
        DataType::F32 => S::blocks::<f32, O>(),
        DataType::F64 => S::blocks::<f64, O>(),
        DataType::F8E4m3 => S::blocks::<F8E4m3, O>(),
        DataType::F8E5m2 => S::blocks::<F8E5m2, O>(),
        DataType::Bool | DataType::Complex64 | DataType::Complex128 => return None,
    })
}

/// Logical operations on elements of a width.
fn logical<S: Set, O>(element_bytes: usize) -> Option<Combine>
where
    O: Operation<u8> + Operation<u16> + Operation<u32> + Operation<u64>,
{
    Some(match element_bytes {
        1 => S::blocks::<u8, O>(),
        2 => S::blocks::<u16, O>(),
        4 => S::blocks::<u32, O>(),
        8 => S::blocks::<u64, O>(),
        _ => return None,
    })
}

pub(super) fn finish<S: Set>(data_type: DataType, reduction: Reduction) -> Option<Finish> {
    use DataType as D;
    if !reduction.is_for(data_type.kind()) {
        return None;
    }
    let is_logical =
        matches!(reduction, Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor);
    if is_logical {
        return Some(match data_type.bytes() {
            1 => S::finish::<u8, NonZero>(),
            2 => S::finish::<u16, NonZero>(),
            4 => S::finish::<u32, NonZero>(),
            _ => S::finish::<u64, NonZero>(),
        });
    }
    if reduction != Reduction::Average {
        return None;
    }
    Some(match data_type {
        D::I8 => S::finish::<i8, Divide>(),
        D::U8 => S::finish::<u8, Divide>(),
        D::I16 => S::finish::<i16, Divide>(),
        D::U16 => S::finish::<u16, Divide>(),
        D::I32 => S::finish::<i32, Divide>(),
        D::U32 => S::finish::<u32, Divide>(),
        D::I64 => S::finish::<i64, Divide>(),
        D::U64 => S::finish::<u64, Divide>(),
        D::F16 => S::finish::<f16, DivideFloat<f32>>(),
        D::Bf16 => S::finish::<bf16, DivideFloat<f32>>(),
        D::F32 => S::finish::<f32, DivideFloat<f32>>(),
        D::F64 => S::finish::<f64, DivideFloat<f64>>(),
        D::F8E4m3 => S::finish::<F8E4m3, DivideFloat<f32>>(),
        D::F8E5m2 => S::finish::<F8E5m2, DivideFloat<f32>>(),
        D::Complex64 => S::finish::<Complex<f32>, Divide>(),
        D::Complex128 => S::finish::<Complex<f64>, Divide>(),
        D::Bool => return None,
    })
}

pub(super) fn scale<S: Set>(data_type: DataType) -> Option<Scale> {
    fn by<S: Set, T: Widen>() -> Option<Scale>
    where
        Product: Operation<T::Wide>,
    {
        Some(S::scale::<T, Scaling>())
    }
    match data_type {
        DataType::I8 | DataType::U8 => by::<S, u8>(),
        DataType::I16 | DataType::U16 => by::<S, u16>(),
        DataType::I32 | DataType::U32 => by::<S, u32>(),
        DataType::I64 | DataType::U64 => by::<S, u64>(),
        DataType::F16 => by::<S, f16>(),
        DataType::Bf16 => by::<S, bf16>(),
        DataType::F32 => by::<S, f32>(),
        DataType::F64 => by::<S, f64>(),
        DataType::F8E4m3 => by::<S, F8E4m3>(),
        DataType::F8E5m2 => by::<S, F8E5m2>(),
        DataType::Complex64 => by::<S, Complex<f32>>(),
        DataType::Complex128 => by::<S, Complex<f64>>(),
        DataType::Bool => None,
    }
}
