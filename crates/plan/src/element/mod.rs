//! The element types and their reductions: one macro for the integers, one for the floats, one for the floats that are
//! combined as wider ones.
//!
//! A [`Reducer`](crate::Reducer) uses them; [`reduction`](crate::reduction) defines the resulting bits.

mod data_type;
mod fp8;

use std::fmt;

pub use half::{bf16, f16};
pub use num_complex::Complex;

pub use self::data_type::DataType;
pub use self::fp8::{F8E4m3, F8E5m2};
use crate::reduction::Reduction;

/// An element type, in Rust.
pub trait Element: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The type as a value.
    const TYPE: DataType;

    /// The type in which a step combines its inputs: f32 for narrower floats, otherwise the type itself.
    type Wide: Copy;

    /// The same number.
    fn widen(self) -> Self::Wide;

    /// The nearest number.
    fn narrow(wide: Self::Wide) -> Self;

    /// The function that combines two elements; nothing if the reduction is not defined for this type. An average and a
    /// pre-multiplied sum combine as a sum does.
    fn combining(reduction: Reduction) -> Option<Combining<Self::Wide>>;

    /// 1 or true for everything but zero, for integers and bool; other types are unchanged.
    fn truth(self) -> Self;

    /// A sum divided by the number of summands.
    fn divided(self, by: u32) -> Self;

    /// The same element, except that every NaN becomes the type's canonical one: positive, quiet, without payload.
    fn canonical(self) -> Self;
}

/// Combines two elements, the left one first.
pub type Combining<W> = fn(W, W) -> W;

/// Types that are combined as they are.
macro_rules! as_itself {
    ($data_type:ident) => {
        const TYPE: DataType = DataType::$data_type;
        type Wide = Self;

        fn widen(self) -> Self {
            self
        }

        fn narrow(wide: Self) -> Self {
            wide
        }
    };
}

macro_rules! integers {
    ($($type:ty: $data_type:ident),*) => {$(
        impl Element for $type {
            as_itself!($data_type);

            fn combining(reduction: Reduction) -> Option<Combining<Self>> {
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

            /// Rounds towards zero. The number of ranks may exceed the type's range, so the division is in a wider type.
            fn divided(self, by: u32) -> Self {
                (i128::from(self) / i128::from(by)) as Self
            }

            fn canonical(self) -> Self {
                self
            }
        }
    )*};
}

integers!(i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64);

macro_rules! floats {
    ($($type:ty: $data_type:ident),*) => {$(
        impl Element for $type {
            as_itself!($data_type);

            fn combining(reduction: Reduction) -> Option<Combining<Self>> {
                // The standard library's `min` prefers a number to NaN and may return either zero; both would make the
                // result depend on the order of the ranks.
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
                self
            }

            fn divided(self, by: u32) -> Self {
                (self / by as Self).canonical()
            }

            fn canonical(self) -> Self {
                if self.is_nan() { Self::NAN } else { self }
            }
        }
    )*};
}

floats!(f32: F32, f64: F64);

macro_rules! narrow_floats {
    ($($type:ty: $data_type:ident),*) => {$(
        impl Element for $type {
            const TYPE: DataType = DataType::$data_type;
            type Wide = f32;

            fn widen(self) -> f32 {
                self.to_f32()
            }

            fn narrow(wide: f32) -> Self {
                Self::from_f32(wide)
            }

            fn combining(reduction: Reduction) -> Option<Combining<f32>> {
                f32::combining(reduction)
            }

            fn truth(self) -> Self {
                self
            }

            fn divided(self, by: u32) -> Self {
                Self::narrow(self.widen().divided(by)).canonical()
            }

            fn canonical(self) -> Self {
                if self.is_nan() { Self::NAN } else { self }
            }
        }
    )*};
}

narrow_floats!(f16: F16, bf16: Bf16, F8E4m3: F8E4m3, F8E5m2: F8E5m2);

macro_rules! complex {
    ($($type:ty: $data_type:ident),*) => {$(
        impl Element for Complex<$type> {
            as_itself!($data_type);

            fn combining(reduction: Reduction) -> Option<Combining<Self>> {
                Some(match reduction {
                    Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum => |a, b| a + b,
                    Reduction::Product => |a, b| {
                        Self::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)
                    },
                    _ => return None,
                })
            }

            fn truth(self) -> Self {
                self
            }

            fn divided(self, by: u32) -> Self {
                Self::new(self.re.divided(by), self.im.divided(by))
            }

            fn canonical(self) -> Self {
                Self::new(self.re.canonical(), self.im.canonical())
            }
        }
    )*};
}

complex!(f32: Complex64, f64: Complex128);

impl Element for bool {
    as_itself!(Bool);

    fn combining(reduction: Reduction) -> Option<Combining<Self>> {
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

    fn canonical(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reducer::Reducer;

    fn combine<T: Element>(reduction: Reduction, a: T, b: T) -> T {
        T::narrow(T::combining(reduction).unwrap()(a.widen(), b.widen()))
    }

    #[test]
    fn types_have_the_reductions_of_their_kind() {
        fn agrees<T: Element>() {
            for reduction in Reduction::NAMED {
                assert_eq!(
                    reduction.is_for(T::TYPE.kind()),
                    T::combining(reduction).is_some(),
                    "{reduction} {}",
                    T::TYPE
                );
                assert_eq!(reduction.name().parse(), Ok(reduction));
            }
            assert_eq!(T::TYPE.bytes(), size_of::<T>(), "{}", T::TYPE);
        }
        agrees::<i8>();
        agrees::<u64>();
        agrees::<f16>();
        agrees::<bf16>();
        agrees::<f32>();
        agrees::<f64>();
        agrees::<F8E4m3>();
        agrees::<F8E5m2>();
        agrees::<bool>();
        agrees::<Complex<f32>>();
        agrees::<Complex<f64>>();
        let message = Reducer::<f32>::named(Reduction::BitXor).unwrap_err();
        assert_eq!(message, "bit-xor is not defined for f32");
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
    fn minimum_and_maximum_do_not_depend_on_the_order() {
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
    fn logical_results_are_one_or_zero() {
        let and = Reducer::<i32>::named(Reduction::LogicalAnd).unwrap();
        assert_eq!(and.before(0, 5), 1);
        assert_eq!(and.combine(and.before(0, 5), [and.before(1, 2)]), 1);
        assert_eq!(combine(Reduction::LogicalXor, 4_u8, 9), 0);
        assert_eq!(combine(Reduction::BitAnd, 4_u8, 2), 0);
    }

    #[test]
    fn a_step_rounds_once() {
        fn sum<T>(values: &[f32]) -> f32
        where
            T: Element<Wide = f32>,
        {
            let mut values = values.iter().map(|&value| T::narrow(value));
            let first = values.next().unwrap();
            Reducer::<T>::named(Reduction::Sum).unwrap().combine(first, values).widen()
        }
        // Rounded after each addition, the sum would not change.
        assert_eq!(sum::<f16>(&[2048.0, 1.0, 1.0]), 2050.0);
        assert_eq!(sum::<bf16>(&[256.0, 1.0, 1.0]), 258.0);
        assert_eq!(sum::<F8E4m3>(&[16.0, 0.5, 0.5, 1.0]), 18.0);
        assert_eq!(sum::<F8E5m2>(&[8.0, 0.5, 0.5, 1.0]), 10.0);
        // An overflow of a partial sum within a step does not count.
        assert_eq!(sum::<f16>(&[60000.0, 60000.0, -60000.0]), 60000.0);
        let average = Reducer::<f16>::named(Reduction::Average).unwrap();
        assert_eq!(average.after(f16::from_f32(1.0), 3), f16::from_f32(1.0 / 3.0));
    }

    #[test]
    fn a_single_input_is_copied_bit_by_bit() {
        let signalling = f16::from_bits(0x7c01);
        let sum = Reducer::<f16>::named(Reduction::Sum).unwrap();
        assert_eq!(sum.combine(signalling, []).to_bits(), 0x7c01);
    }

    #[test]
    fn the_minimum_of_narrow_floats_has_one_nan() {
        for strange in [0x7c01, 0x7e00, 0xfe00, 0xffff] {
            let found = combine(Reduction::Minimum, f16::from_bits(strange), f16::ONE);
            assert_eq!(found.to_bits(), 0x7e00);
        }
        assert_eq!(combine(Reduction::Maximum, bf16::from_bits(0xff81), bf16::ONE).to_bits(), 0x7fc0);
        assert_eq!(combine(Reduction::Maximum, F8E4m3::from_bits(0xff), F8E4m3::default()).to_bits(), 0x7f);
        assert_eq!(combine(Reduction::Maximum, F8E5m2::from_bits(0xfd), F8E5m2::default()).to_bits(), 0x7e);
    }

    #[test]
    fn sums_and_products_have_one_nan() {
        fn is_canonical<T: Element>(nans: &[T], number: T, is_nan: impl Fn(T) -> bool) {
            for reduction in [Reduction::Sum, Reduction::Product] {
                let reducer = Reducer::<T>::named(reduction).unwrap();
                for &nan in nans {
                    for found in [reducer.combine(nan, [number]), reducer.combine(number, [nan, number])] {
                        assert!(is_nan(found), "{reduction} of {nan:?}");
                    }
                }
            }
            let average = Reducer::<T>::named(Reduction::Average).unwrap();
            assert!(nans.iter().all(|&nan| is_nan(average.after(nan, 3))));
        }
        let all = [0x7c01, 0xfc01, 0x7e00, 0xfe00, 0xffff].map(f16::from_bits);
        is_canonical(&all, f16::ONE, |found| found.to_bits() == 0x7e00);
        is_canonical(&[0x7f81, 0xffc1].map(bf16::from_bits), bf16::ONE, |found| found.to_bits() == 0x7fc0);
        let other = f32::from_bits(0xffc1_2345);
        is_canonical(&[other, -f32::NAN], 1.0, |found| found.to_bits() == 0x7fc0_0000);
        is_canonical(&[-f64::NAN], 1.0, |found| found.to_bits() == 0x7ff8_0000_0000_0000);
        is_canonical(&[F8E4m3::from_bits(0xff)], F8E4m3::default(), |found| found.to_bits() == 0x7f);
        is_canonical(&[0x7d, 0xff].map(F8E5m2::from_bits), F8E5m2::default(), |found| {
            found.to_bits() == 0x7e
        });
        // An invalid operation, an overflow in the format without infinities, and one part of a complex number.
        assert_eq!(
            Reducer::named(Reduction::Sum).unwrap().combine(f32::INFINITY, [-f32::INFINITY]).to_bits(),
            0x7fc0_0000
        );
        let least = F8E4m3::from_bits(0xfe);
        assert_eq!(Reducer::named(Reduction::Sum).unwrap().combine(least, [least]).to_bits(), 0x7f);
        let half_nan = Complex::new(other, -1.0);
        let sum = Reducer::named(Reduction::Sum).unwrap().combine(half_nan, [half_nan]);
        assert_eq!((sum.re.to_bits(), sum.im), (0x7fc0_0000, -2.0));
    }

    #[test]
    fn complex_numbers_multiply() {
        let [a, b] = [Complex::new(1.0_f32, 2.0), Complex::new(3.0, -4.0)];
        assert_eq!(combine(Reduction::Product, a, b), Complex::new(11.0, 2.0));
        assert_eq!(combine(Reduction::Sum, a, b).divided(2), Complex::new(2.0, -1.0));
    }
}
