//! The types that reductions know: what each can be combined with, one macro for the integers and one for the floats.
//!
//! [`Reducer`](crate::reduction::Reducer) is how these are used; [`reduction`](crate::reduction) says what the bits are.

use std::fmt;

use crate::reduction::{Kind, Reduction};

/// The types that elements can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DataType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    F8E4m3,
    F8E5m2,
    Bool,
    Complex64,
    Complex128,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 17] = [
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::U16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::Bf16,
        DataType::F32,
        DataType::F64,
        DataType::F8E4m3,
        DataType::F8E5m2,
        DataType::Bool,
        DataType::Complex64,
        DataType::Complex128,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        [
            "i8",
            "u8",
            "i16",
            "u16",
            "i32",
            "u32",
            "i64",
            "u64",
            "f16",
            "bf16",
            "f32",
            "f64",
            "f8e4m3",
            "f8e5m2",
            "bool",
            "complex64",
            "complex128",
        ][self as usize]
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 8, 16][self as usize]
    }
}

/// A type of element.
pub trait Element: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// What it is called, as Rust does.
    const NAME: &'static str;
    /// Which reductions are for it.
    const KIND: Kind;

    /// What a reduction makes of two elements; nothing if it is not for this type. An average and a pre-multiplied sum
    /// combine as a sum does.
    fn combining(reduction: Reduction) -> Option<fn(Self, Self) -> Self>;

    /// 1 or true for everything but zero.
    fn truth(self) -> Self;

    /// A sum of so many, as their average.
    fn divided(self, by: u32) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const NAME: &'static str = stringify!($type);
            const KIND: Kind = Kind::Integer;

            fn combining(reduction: Reduction) -> Option<fn(Self, Self) -> Self> {
                Some(match reduction {
                    Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum => Self::wrapping_add,
                    Reduction::Product => Self::wrapping_mul,
                    Reduction::Minimum => |a, b| a.min(b),
                    Reduction::Maximum => |a, b| a.max(b),
                    Reduction::LogicalAnd => |a, b| Self::from(a != 0 && b != 0),
                    Reduction::LogicalOr => |a, b| Self::from(a != 0 || b != 0),
                    Reduction::LogicalXor => |a, b| Self::from((a != 0) != (b != 0)),
                    Reduction::BitAnd => |a, b| a & b,
                    Reduction::BitOr => |a, b| a | b,
                    Reduction::BitXor => |a, b| a ^ b,
                    Reduction::UserDefined { .. } => return None,
                })
            }

            fn truth(self) -> Self {
                Self::from(self != 0)
            }

            /// Rounds towards zero. There may be more ranks than the type can count, so it is done in a wider one.
            fn divided(self, by: u32) -> Self {
                (i128::from(self) / i128::from(by)) as Self
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const NAME: &'static str = stringify!($type);
            const KIND: Kind = Kind::Float;

            fn combining(reduction: Reduction) -> Option<fn(Self, Self) -> Self> {
                // The standard library's `min` prefers a number to NaN and may take either zero; both would let the order
                // of ranks show.
                Some(match reduction {
                    Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum => |a, b| a + b,
                    Reduction::Product => |a, b| a * b,
                    Reduction::Minimum => |a, b| match (a.is_nan() || b.is_nan(), a.total_cmp(&b).is_le()) {
                        (true, _) => Self::NAN,
                        (_, true) => a,
                        (_, false) => b,
                    },
                    Reduction::Maximum => |a, b| match (a.is_nan() || b.is_nan(), a.total_cmp(&b).is_ge()) {
                        (true, _) => Self::NAN,
                        (_, true) => a,
                        (_, false) => b,
                    },
                    _ => return None,
                })
            }

            fn truth(self) -> Self {
                if self == 0.0 { 0.0 } else { 1.0 }
            }

            fn divided(self, by: u32) -> Self {
                self / by as Self
            }
        }
    )*};
}

floats!(f32, f64);

impl Element for bool {
    const NAME: &'static str = "bool";
    const KIND: Kind = Kind::Bool;

    fn combining(reduction: Reduction) -> Option<fn(Self, Self) -> Self> {
        Some(match reduction {
            Reduction::LogicalAnd | Reduction::BitAnd | Reduction::Minimum => |a, b| a && b,
            Reduction::LogicalOr | Reduction::BitOr | Reduction::Maximum => |a, b| a || b,
            Reduction::LogicalXor | Reduction::BitXor => |a, b| a != b,
            _ => return None,
        })
    }

    fn truth(self) -> Self {
        self
    }

    fn divided(self, _by: u32) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduction::Reducer;

    fn combine<T: Element>(reduction: Reduction, a: T, b: T) -> T {
        T::combining(reduction).unwrap()(a, b)
    }

    #[test]
    fn types_have_the_reductions_that_are_for_them() {
        fn agrees<T: Element>() {
            for reduction in Reduction::NAMED {
                assert_eq!(
                    reduction.is_for(T::KIND),
                    T::combining(reduction).is_some(),
                    "{reduction} {}",
                    T::NAME
                );
                assert_eq!(reduction.name().parse(), Ok(reduction));
            }
        }
        agrees::<i8>();
        agrees::<u64>();
        agrees::<f32>();
        agrees::<f64>();
        agrees::<bool>();
        let message = Reducer::<f32>::named(Reduction::BitXor).unwrap_err();
        assert_eq!(message, "there is no bit-xor of f32");
        assert!("xor".parse::<Reduction>().unwrap_err().contains("logical-xor, bit-and"));
    }

    #[test]
    fn integers_wrap_and_averages_round_towards_zero() {
        assert_eq!(combine(Reduction::Sum, 127_i8, 1), -128);
        assert_eq!(combine(Reduction::Product, 1_u64 << 63, 2), 0);
        assert_eq!((-7_i32).divided(2), -3);
        assert_eq!(7_u8.divided(300), 0);
        assert_eq!(u64::MAX.divided(1), u64::MAX);
    }

    #[test]
    fn least_and_greatest_do_not_depend_on_the_order() {
        let other_nan = f32::from_bits(0x7fc0_1234);
        let values = [1.0_f32, -0.0, 0.0, f32::NAN, other_nan, -other_nan, f32::INFINITY, f32::NEG_INFINITY];
        for reduction in [Reduction::Minimum, Reduction::Maximum] {
            for a in values {
                for b in values {
                    let [ab, ba] = [(a, b), (b, a)].map(|(a, b)| combine(reduction, a, b).to_bits());
                    assert_eq!(ab, ba, "{reduction} of {a} and {b}");
                    for c in values {
                        let left = combine(reduction, combine(reduction, a, b), c).to_bits();
                        assert_eq!(left, combine(reduction, a, combine(reduction, b, c)).to_bits());
                    }
                }
            }
        }
        assert!(combine(Reduction::Minimum, 0.0_f32, -0.0).is_sign_negative());
        assert!(combine(Reduction::Maximum, f64::NAN, 1.0).is_nan());
    }

    #[test]
    fn truths_are_one_or_zero() {
        let and = Reducer::<i32>::named(Reduction::LogicalAnd).unwrap();
        assert_eq!(and.before(0, 5), 1);
        assert_eq!(and.combine(and.before(0, 5), and.before(1, 2)), 1);
        assert_eq!(combine(Reduction::LogicalXor, 4_u8, 9), 0);
        assert_eq!(combine(Reduction::BitAnd, 4_u8, 2), 0);
    }
}
