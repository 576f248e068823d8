//! Branch-free operations on one element, which the compiler vectorises in the loops.
//!
//! The reference implementation is separate (`weftlink_plan::element`); tests compare the two.

use weftlink_plan::element::Complex;

use super::convert::Widen;

/// An operation on two elements. The left operand comes from the earlier source.
pub(super) trait Operation<W>: 'static {
    fn apply(left: W, right: W) -> W;
}

/// A function of one element and a parameter.
pub(super) trait Map<T: Widen>: 'static {
    type By: Copy;

    fn apply(value: T::Wide, by: Self::By) -> T::Wide;
}

macro_rules! names {
    ($($name:ident),*) => {$( pub(super) struct $name; )*};
}

names!(Sum, Product, Minimum, Maximum, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor);
names!(Scale, Divide, NonZero);

macro_rules! operations {
    ($type:ty; $($name:ident: |$left:ident, $right:ident| $result:expr;)*) => {$(
        impl Operation<$type> for $name {
            #[inline(always)]
            fn apply($left: $type, $right: $type) -> $type {
                $result
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty: $divided:expr),*) => {$(
        operations! { $type;
            Sum: |a, b| a.wrapping_add(b);
            Product: |a, b| a.wrapping_mul(b);
            Minimum: |a, b| a.min(b);
            Maximum: |a, b| a.max(b);
            LogicalAnd: |a, b| <$type>::from((a != 0) & (b != 0));
            LogicalOr: |a, b| <$type>::from(a | b != 0);
            LogicalXor: |a, b| <$type>::from((a != 0) ^ (b != 0));
            BitAnd: |a, b| a & b;
            BitOr: |a, b| a | b;
            BitXor: |a, b| a ^ b;
        }

        impl Map<$type> for NonZero {
            type By = u32;

            #[inline(always)]
            fn apply(value: $type, _: u32) -> $type {
                <$type>::from(value != 0)
            }
        }

        impl Map<$type> for Divide {
            type By = u32;

            #[inline(always)]
            fn apply(value: $type, by: u32) -> $type {
                let divided: fn($type, u32) -> $type = $divided;
                divided(value, by)
            }
        }
    )*};
}

// Up to 32 bits, a quotient of f64 never rounds up to the next integer, and f64 division is vectorised.
integers!(
    i8: |value, by| (f64::from(value) / f64::from(by)) as i8,
    u8: |value, by| (f64::from(value) / f64::from(by)) as u8,
    i16: |value, by| (f64::from(value) / f64::from(by)) as i16,
    u16: |value, by| (f64::from(value) / f64::from(by)) as u16,
    i32: |value, by| (f64::from(value) / f64::from(by)) as i32,
    u32: |value, by| (f64::from(value) / f64::from(by)) as u32,
    i64: |value, by| value / i64::from(by),
    u64: |value, by| value / u64::from(by)
);

macro_rules! floats {
    ($($type:ident),*) => {$(
        operations! { $type;
            Sum: |a, b| a + b;
            Product: |a, b| a * b;
            // Equal operands have the same bits, except zeros: or-ing the bits then yields -0, and-ing yields +0.
            Minimum: |a, b| {
                let equal = $type::from_bits(a.to_bits() | b.to_bits());
                let least = if a < b { a } else { b };
                let number = if a == b { equal } else { least };
                if a.is_nan() | b.is_nan() { $type::NAN } else { number }
            };
            Maximum: |a, b| {
                let equal = $type::from_bits(a.to_bits() & b.to_bits());
                let greatest = if a > b { a } else { b };
                let number = if a == b { equal } else { greatest };
                if a.is_nan() | b.is_nan() { $type::NAN } else { number }
            };
        }
        operations! { Complex<$type>;
            Product: |a, b| Complex::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
        }

        impl Map<Complex<$type>> for Divide {
            type By = u32;

            #[inline(always)]
            fn apply(value: Complex<$type>, by: u32) -> Complex<$type> {
                Complex::new(value.re / by as $type, value.im / by as $type)
            }
        }

        impl<T: Widen<Wide = $type>> Map<T> for DivideFloat<$type> {
            type By = u32;

            #[inline(always)]
            fn apply(value: $type, by: u32) -> $type {
                value / by as $type
            }
        }
    )*};
}

/// Division of floats, also of those narrower than `W`.
pub(super) struct DivideFloat<W>(std::marker::PhantomData<W>);

floats!(f32, f64);

/// Multiplication by a factor of the element's own type.
impl<T: Widen> Map<T> for Scale
where
    Product: Operation<T::Wide>,
{
    type By = T;

    #[inline(always)]
    fn apply(value: T::Wide, by: T) -> T::Wide {
        Product::apply(value, by.widen())
    }
}
