//! Conversions between the type in memory and the type of the arithmetic.
//!
//! Narrow floats widen to f32 and narrow to nearest, ties to even, without branches, so that the compiler vectorises loops over them.
//! No multiplication has a subnormal f32 operand: processors take a hundred times as long for those.
//!
//! Narrowing replaces every NaN with the type's canonical one, also where the type is its own wide type.

use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};

/// An element in memory, and the type its arithmetic is done in.
pub(super) trait Widen: Copy + 'static {
    /// The type of the arithmetic.
    type Wide: Copy + 'static;

    /// Whether `Wide` is the type itself.
    const IS_WIDE: bool = false;

    fn widen(self) -> Self::Wide;

    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! identity {
    ($($type:ty: |$wide:ident| $narrow:expr;)*) => {$(
        impl Widen for $type {
            type Wide = Self;
            const IS_WIDE: bool = true;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow($wide: Self) -> Self {
                $narrow
            }
        }
    )*};
}

identity! {
    i8: |wide| wide;
    u8: |wide| wide;
    i16: |wide| wide;
    u16: |wide| wide;
    i32: |wide| wide;
    u32: |wide| wide;
    i64: |wide| wide;
    u64: |wide| wide;
    f32: |wide| if wide.is_nan() { f32::NAN } else { wide };
    f64: |wide| if wide.is_nan() { f64::NAN } else { wide };
    Complex<f32>: |wide| Complex::new(f32::narrow(wide.re), f32::narrow(wide.im));
    Complex<f64>: |wide| Complex::new(f64::narrow(wide.re), f64::narrow(wide.im));
}

const INFINITE: u32 = f32::INFINITY.to_bits();

/// The bits of an f32 for the magnitude of a narrow float. `LAST` is the largest finite pattern; larger ones are infinite or NaN.
#[inline(always)]
fn widened<const MANTISSA: u32, const BIAS: u32, const LAST: u32>(magnitude: u32) -> u32 {
    let bits = magnitude << (23 - MANTISSA);
    let normal = bits + ((127 - BIAS) << 23);
    // The least normal exponent adds a leading one; subtracting it again leaves the mantissa.
    let least = (128 - BIAS) << 23;
    let subnormal = (f32::from_bits(bits + least) - f32::from_bits(least)).to_bits();
    let ordinary = if magnitude >> MANTISSA == 0 { subnormal } else { normal };
    if magnitude > LAST { bits | INFINITE } else { ordinary }
}

/// The bits of a narrow float for the magnitude of an f32. `OVERFLOW` is the pattern after the largest finite one.
#[inline(always)]
fn narrowed<const MANTISSA: u32, const BIAS: u32, const OVERFLOW: u32, const NAN: u32>(
    magnitude: u32,
) -> u32 {
    let shift = 23 - MANTISSA;
    let odd = (magnitude >> shift) & 1;
    let rounded = magnitude + ((1 << (shift - 1)) - 1) + odd;
    let normal = rounded.wrapping_sub((127 - BIAS) << 23) >> shift;
    // Adding a number whose last bit is the least subnormal rounds all smaller bits away.
    let large = f32::from_bits((127 + 1 - BIAS + shift) << 23);
    let subnormal = (f32::from_bits(magnitude) + large).to_bits() - large.to_bits();
    let ordinary = if magnitude < (128 - BIAS) << 23 { subnormal } else { normal };
    let finite = if ordinary > OVERFLOW { OVERFLOW } else { ordinary };
    if magnitude > INFINITE { NAN } else { finite }
}

macro_rules! narrow_floats {
    ($($type:ty, $bits:ty, $mantissa:literal, $bias:literal, $last:literal, $overflow:literal, $nan:literal;)*) => {$(
        impl Widen for $type {
            type Wide = f32;

            #[inline(always)]
            fn widen(self) -> f32 {
                const SIGN: u32 = 1 << (<$bits>::BITS - 1);
                let bits = u32::from(self.to_bits());
                let magnitude = widened::<$mantissa, $bias, $last>(bits & !SIGN);
                f32::from_bits(magnitude | (bits & SIGN) << (32 - <$bits>::BITS))
            }

            #[inline(always)]
            fn narrow(wide: f32) -> Self {
                const SIGN: u32 = 1 << 31;
                /// The largest pattern that is not NaN.
                const NUMBERS: u32 = if $overflow == $nan { $last } else { $overflow };
                let bits = wide.to_bits();
                let magnitude = narrowed::<$mantissa, $bias, $overflow, $nan>(bits & !SIGN);
                let number = magnitude | (bits & SIGN) >> (32 - <$bits>::BITS);
                Self::from_bits(if magnitude > NUMBERS { $nan } else { number } as $bits)
            }
        }
    )*};
}

narrow_floats! {
    f16, u16, 10, 15, 0x7bff, 0x7c00, 0x7e00;
    F8E4m3, u8, 3, 7, 0x7e, 0x7f, 0x7f;
    F8E5m2, u8, 2, 15, 0x7b, 0x7c, 0x7e;
}

/// The upper half of an f32.
impl Widen for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let odd = (bits >> 16) & 1;
        let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
        Self::from_bits(if wide.is_nan() { 0x7fc0 } else { rounded } as u16)
    }
}
