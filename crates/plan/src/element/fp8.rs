//! The two 8-bit floats that the Open Compute Project defines (OCP 8-bit Floating Point, revision 1.0).
//!
//! Every value is exactly an f32. Conversion from f32 rounds to nearest, ties to even, and **does not saturate**: a number that
//! is too large becomes infinite, or NaN in the format without infinities, as with PyTorch's casts. (The standard's saturating
//! mode would turn an infinite gradient into a finite one.)
//!
//! Deliberately absent: arithmetic, which happens in f32.

use std::fmt;

/// The parameters of a format.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// The largest finite number.
    max: u8,
    /// The bits of an overflow, and of NaN.
    overflow: u8,
    nan: u8,
}

const E4M3: Format = Format { mantissa_bits: 3, bias: 7, max: 0x7e, overflow: 0x7f, nan: 0x7f };
const E5M2: Format = Format { mantissa_bits: 2, bias: 15, max: 0x7b, overflow: 0x7c, nan: 0x7e };

const SIGN: u8 = 0x80;

impl Format {
    fn widen(&self, bits: u8) -> f32 {
        let magnitude = bits & !SIGN;
        let (exponent, mantissa) =
            (i32::from(magnitude >> self.mantissa_bits), magnitude & ((1 << self.mantissa_bits) - 1));
        let leading = if exponent > 0 { 1 << self.mantissa_bits } else { 0 };
        let steps = f32::from(leading + mantissa);
        let value = match magnitude {
            _ if magnitude <= self.max => steps * self.step(exponent.max(1) - self.bias) as f32,
            _ if magnitude == self.overflow && self.overflow != self.nan => f32::INFINITY,
            _ => f32::NAN,
        };
        if bits & SIGN == 0 { value } else { -value }
    }

    fn narrow(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { SIGN } else { 0 };
        if value.is_nan() {
            return sign | self.nan;
        }
        let value = f64::from(value.abs());
        // Subnormal numbers have the exponent of the smallest normal one.
        let exponent = ((value.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        // In steps of the mantissa between this power of two and the next: exact except for the rounding.
        let steps = (value / self.step(exponent)).round_ties_even();
        let below = f64::from((exponent - (1 - self.bias)) << self.mantissa_bits);
        // A mantissa that rounds up to the next power of two carries into the exponent.
        let bits = below + steps;
        sign | if bits > f64::from(self.max) { self.overflow } else { bits as u8 }
    }

    /// The distance between neighbours from 2^exponent on.
    fn step(&self, exponent: i32) -> f64 {
        f64::from_bits(((1023 + exponent - self.mantissa_bits as i32) as u64) << 52)
    }
}

macro_rules! fp8 {
    ($name:ident, $format:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The canonical NaN.
            pub const NAN: Self = Self($format.nan);

            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number, ties to even.
            pub fn from_f32(value: f32) -> Self {
                Self($format.narrow(value))
            }

            /// The same number.
            pub fn to_f32(self) -> f32 {
                $format.widen(self.0)
            }

            /// Whether it is NaN.
            pub fn is_nan(self) -> bool {
                self.to_f32().is_nan()
            }
        }

        /// IEEE comparison: both zeros are equal, and NaN equals nothing.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }
    };
}

fp8!(F8E4m3, E4M3, "Four bits of exponent, three of mantissa: up to 448, from 2^-9; no infinities.");
fp8!(F8E5m2, E5M2, "Five bits of exponent, two of mantissa: up to 57344, from 2^-16; with infinities.");

#[cfg(test)]
mod tests {
    use super::*;

    /// Every finite number but -0, in order, with its bits.
    fn line(format: &Format) -> Vec<(f64, u8)> {
        let positive = (0..=format.max).map(|bits| (f64::from(format.widen(bits)), bits));
        let negative = (1..=format.max).map(|bits| (f64::from(format.widen(bits | SIGN)), bits | SIGN));
        let mut all: Vec<_> = negative.chain(positive).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    #[test]
    fn special_values_match_the_standard() {
        assert_eq!(F8E4m3::from_bits(0x7e).to_f32(), 448.0);
        assert_eq!(F8E4m3::from_bits(0x08).to_f32(), 2_f32.powi(-6));
        assert_eq!(F8E4m3::from_bits(0x01).to_f32(), 2_f32.powi(-9));
        assert!(F8E4m3::from_bits(0x7f).is_nan() && F8E4m3::from_bits(0xff).is_nan());
        assert_eq!(F8E5m2::from_bits(0x7b).to_f32(), 57344.0);
        assert_eq!(F8E5m2::from_bits(0x04).to_f32(), 2_f32.powi(-14));
        assert_eq!(F8E5m2::from_bits(0x01).to_f32(), 2_f32.powi(-16));
        assert_eq!(F8E5m2::from_bits(0xfc).to_f32(), f32::NEG_INFINITY);
        assert!((0x7d..=0x7f).all(|bits| F8E5m2::from_bits(bits).is_nan()));
    }

    #[test]
    fn all_values_round_trip() {
        for format in [E4M3, E5M2] {
            for bits in 0..=u8::MAX {
                let value = format.widen(bits);
                if value.is_nan() {
                    assert_eq!(format.narrow(value), bits & SIGN | format.nan);
                } else {
                    assert_eq!(format.narrow(value), bits, "{value}");
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for format in [E4M3, E5M2] {
            for pair in line(&format).windows(2) {
                let [(low, low_bits), (high, high_bits)] = pair else { unreachable!() };
                let middle = ((low + high) / 2.0) as f32;
                let narrow = |value| format.narrow(value) & !SIGN;
                let even = if low_bits % 2 == 0 { low_bits } else { high_bits };
                assert_eq!(narrow(middle), even & !SIGN, "{low} {high}");
                assert_eq!(narrow(middle.next_down()), low_bits & !SIGN, "{low} {high}");
                assert_eq!(narrow(middle.next_up()), high_bits & !SIGN, "{low} {high}");
            }
        }
    }

    #[test]
    fn overflow_gives_nan_or_infinity() {
        for (value, e4m3, e5m2) in [
            (464.0, 0x7e, 0x5f),
            (464.0_f32.next_up(), 0x7f, 0x5f),
            (61440.0_f32.next_down(), 0x7f, 0x7b),
            (61440.0, 0x7f, 0x7c),
            (f32::MAX, 0x7f, 0x7c),
            (f32::INFINITY, 0x7f, 0x7c),
            (f32::NAN, 0x7f, 0x7e),
            (f32::MIN_POSITIVE / 4.0, 0, 0),
        ] {
            assert_eq!(F8E4m3::from_f32(value).to_bits(), e4m3, "{value}");
            assert_eq!(F8E5m2::from_f32(value).to_bits(), e5m2, "{value}");
            assert_eq!(F8E4m3::from_f32(-value).to_bits(), e4m3 | SIGN, "{value}");
            assert_eq!(F8E5m2::from_f32(-value).to_bits(), e5m2 | SIGN, "{value}");
        }
    }
}
