//! Elements and reductions

use std::ffi::{c_char, c_double};

use weftlink::{DataType, Operation, Reduction};

use crate::any::{Op, Type};
use crate::error::Failure;

/// The type of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum weft_type {
    WEFT_I8 = 0,
    WEFT_U8 = 1,
    WEFT_I16 = 2,
    WEFT_U16 = 3,
    WEFT_I32 = 4,
    WEFT_U32 = 5,
    WEFT_I64 = 6,
    WEFT_U64 = 7,
    WEFT_F16 = 8,
    WEFT_BF16 = 9,
    WEFT_F32 = 10,
    WEFT_F64 = 11,
    /// Four bits of exponent, three of mantissa, no infinities.
    WEFT_F8_E4M3 = 12,
    /// Five bits of exponent, two of mantissa.
    WEFT_F8_E5M2 = 13,
    /// A byte each, 0 or 1.
    WEFT_BOOL = 14,
    /// Two floats: real and imaginary part.
    WEFT_COMPLEX64 = 15,
    /// Two doubles: real and imaginary part.
    WEFT_COMPLEX128 = 16,
}

/// How a call combines elements. weft_op_premultiplied_sum makes more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum weft_op {
    WEFT_SUM = 0,
    WEFT_PROD = 1,
    WEFT_MIN = 2,
    WEFT_MAX = 3,
    /// The sum divided by the number of ranks.
    WEFT_AVG = 4,
    WEFT_LOGICAL_AND = 5,
    WEFT_LOGICAL_OR = 6,
    WEFT_LOGICAL_XOR = 7,
    WEFT_BIT_AND = 8,
    WEFT_BIT_OR = 9,
    WEFT_BIT_XOR = 10,
    /// For calls that combine nothing: weft_plan_run, weft_chosen_plan.
    WEFT_NO_OP = 11,
    /// The largest value; operations of weft_op_premultiplied_sum are below it.
    WEFT_OP_MAX = 0x7fff_ffff,
}

/// The first operation that a program makes.
const OWN_OPS: u32 = 1024;
/// A program makes a few. Each takes a number until it is freed.
const OWN_OPS_MAX: usize = 4096;

/// The factors of the pre-multiplied sums of a communicator; none where one was freed.
#[derive(Debug, Default)]
pub(crate) struct Factors(Vec<Option<c_double>>);

impl Factors {
    pub(crate) fn add(&mut self, factor: c_double) -> Result<Op, Failure> {
        let at = match self.0.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.0.len() < OWN_OPS_MAX => {
                self.0.push(None);
                self.0.len() - 1
            }
            None => {
                return Err(Failure::misuse(format!(
                    "{OWN_OPS_MAX} operations are in use; free some with weft_op_free"
                )));
            }
        };
        self.0[at] = Some(factor);
        Ok(OWN_OPS + at as u32)
    }

    pub(crate) fn remove(&mut self, op: Op) -> Result<(), Failure> {
        let at = op.checked_sub(OWN_OPS).map(|at| at as usize);
        let factor = at.and_then(|at| self.0.get_mut(at)).and_then(Option::take);
        factor.map(drop).ok_or_else(|| unknown_op(op))
    }

    /// The operation of a number, on elements of a type; none for `WEFT_NO_OP`.
    pub(crate) fn operation(
        &self,
        op: Op,
        data_type: DataType,
    ) -> Result<Option<Operation<'static>>, Failure> {
        if op == weft_op::WEFT_NO_OP as u32 {
            return Ok(None);
        }
        if let Some(reduction) = REDUCTIONS.get(op as usize) {
            return Ok(Some((*reduction).into()));
        }
        let at = op.checked_sub(OWN_OPS).ok_or_else(|| unknown_op(op))?;
        let factor = self.0.get(at as usize).copied().flatten().ok_or_else(|| unknown_op(op))?;
        let multiplied = Operation::premultiplied_sum_of(data_type, factor);
        let refused = || Failure::misuse("booleans cannot be multiplied by a factor");
        multiplied.map(Some).ok_or_else(refused)
    }
}

/// In the order of `weft_op`.
const REDUCTIONS: [Reduction; 11] = [
    Reduction::Sum,
    Reduction::Product,
    Reduction::Minimum,
    Reduction::Maximum,
    Reduction::Average,
    Reduction::LogicalAnd,
    Reduction::LogicalOr,
    Reduction::LogicalXor,
    Reduction::BitAnd,
    Reduction::BitOr,
    Reduction::BitXor,
];

fn unknown_op(op: Op) -> Failure {
    Failure::misuse(format!("there is no operation {op}; weft_op lists them"))
}

/// In the order of `weft_type`.
pub(crate) fn data_type(number: Type) -> Result<DataType, Failure> {
    let unknown = || Failure::misuse(format!("there is no element type {number}; weft_type lists them"));
    DataType::ALL.get(number as usize).copied().ok_or_else(unknown)
}

/// The bytes of an element; 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn weft_type_bytes(data_type: Type) -> usize {
    self::data_type(data_type).map_or(0, DataType::bytes)
}

/// The version of the library, as WEFT_VERSION is that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn weft_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_enums() {
        assert_eq!(data_type(weft_type::WEFT_I8 as u32).unwrap(), DataType::I8);
        assert_eq!(data_type(weft_type::WEFT_BF16 as u32).unwrap(), DataType::Bf16);
        assert_eq!(data_type(weft_type::WEFT_F8_E5M2 as u32).unwrap(), DataType::F8E5m2);
        assert_eq!(data_type(weft_type::WEFT_COMPLEX128 as u32).unwrap(), DataType::Complex128);
        let reduction = |op: weft_op| {
            let made = Factors::default().operation(op as u32, DataType::I32).unwrap();
            made.map(|operation| operation.reduction())
        };
        assert_eq!(reduction(weft_op::WEFT_AVG), Some(Reduction::Average));
        assert_eq!(reduction(weft_op::WEFT_LOGICAL_AND), Some(Reduction::LogicalAnd));
        assert_eq!(reduction(weft_op::WEFT_BIT_XOR), Some(Reduction::BitXor));
        assert_eq!(reduction(weft_op::WEFT_NO_OP), None);
    }

    #[test]
    fn freed_operations_are_used_again() {
        let mut factors = Factors::default();
        let (first, second) = (factors.add(1.0).unwrap(), factors.add(2.0).unwrap());
        factors.remove(first).unwrap();
        assert!(factors.remove(first).is_err() && factors.operation(first, DataType::F32).is_err());
        assert_eq!(factors.add(3.0).unwrap(), first);
        assert!(factors.operation(second, DataType::Bool).is_err());
        assert!((2..OWN_OPS_MAX).all(|_| factors.add(0.0).is_ok()));
        assert!(factors.add(0.0).is_err());
    }
}
