//! Numbers as bytes of a type that is known only when the program runs.
//!
//! Complex numbers are real here. Floats narrower than f32 are encoded here, bit by bit, so that expected results do not come from the
//! code that is measured.

use weftlink_comm::DataType;

/// A number that elements are made from: all types hold small whole ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(i64),
    Real(f64),
}

/// Appends a number; whole ones that do not fit wrap around.
pub(super) fn push(bytes: &mut Vec<u8>, data_type: DataType, number: Number) {
    let (whole, real) = match number {
        Number::Whole(whole) => (whole, whole as f64),
        Number::Real(real) => (real as i64, real),
    };
    match data_type {
        DataType::I8 | DataType::U8 => bytes.push(whole as u8),
        DataType::Bool => bytes.push(u8::from(whole != 0)),
        DataType::I16 | DataType::U16 => bytes.extend((whole as u16).to_ne_bytes()),
        DataType::I32 | DataType::U32 => bytes.extend((whole as u32).to_ne_bytes()),
        DataType::I64 | DataType::U64 => bytes.extend(whole.to_ne_bytes()),
        DataType::F32 => bytes.extend((real as f32).to_ne_bytes()),
        DataType::F64 => bytes.extend(real.to_ne_bytes()),
        DataType::F16 => bytes.extend((narrow(real, 5, 10) as u16).to_ne_bytes()),
        DataType::Bf16 => bytes.extend((narrow(real, 8, 7) as u16).to_ne_bytes()),
        DataType::F8E4m3 => bytes.push(narrow(real, 4, 3) as u8),
        DataType::F8E5m2 => bytes.push(narrow(real, 5, 2) as u8),
        DataType::Complex64 => bytes.extend([real as f32, 0.0].map(f32::to_ne_bytes).concat()),
        DataType::Complex128 => bytes.extend([real, 0.0].map(f64::to_ne_bytes).concat()),
    }
}

/// A whole number as the type holds it once it has wrapped around.
pub(super) fn wrapped(data_type: DataType, whole: i64) -> i64 {
    match data_type {
        DataType::I8 => i64::from(whole as i8),
        DataType::U8 => i64::from(whole as u8),
        DataType::I16 => i64::from(whole as i16),
        DataType::U16 => i64::from(whole as u16),
        DataType::I32 => i64::from(whole as i32),
        DataType::U32 => i64::from(whole as u32),
        _ => whole,
    }
}

/// Up to which whole number all are exact; nothing for types that are not floats.
pub(super) fn exact_up_to(data_type: DataType) -> Option<i64> {
    let digits = match data_type {
        DataType::F16 => 11,
        DataType::Bf16 => 8,
        DataType::F32 | DataType::Complex64 => 24,
        DataType::F64 | DataType::Complex128 => 53,
        DataType::F8E4m3 => 4,
        DataType::F8E5m2 => 3,
        _ => return None,
    };
    Some(1 << digits)
}

/// The nearest float with so many bits of exponent and fraction, ties to even. Only for numbers that are neither tiny nor
/// huge for it.
fn narrow(real: f64, exponent_bits: u32, fraction_bits: u32) -> u32 {
    let sign = u32::from(real.is_sign_negative()) << (exponent_bits + fraction_bits);
    if real == 0.0 {
        return sign;
    }
    let bits = real.abs().to_bits();
    let dropped = 52 - fraction_bits;
    let half = 1_u64 << (dropped - 1);
    let odd = bits >> dropped & 1;
    let rounded = (bits + half - 1 + odd) >> dropped;
    // The exponent is counted from another bias.
    let bias = (1023 - ((1_u64 << (exponent_bits - 1)) - 1)) << fraction_bits;
    sign | (rounded - bias) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_are_the_nearest() {
        for (real, half, bfloat, e4m3, e5m2) in [
            (1.0, 0x3c00, 0x3f80, 0x38, 0x3c),
            (-2.0, 0xc000, 0xc000, 0xc0, 0xc0),
            (3.0, 0x4200, 0x4040, 0x44, 0x42),
            (0.0, 0, 0, 0, 0),
            (1.0 / 3.0, 0x3555, 0x3eab, 0x2b, 0x35),
        ] {
            let found = [narrow(real, 5, 10), narrow(real, 8, 7), narrow(real, 4, 3), narrow(real, 5, 2)];
            assert_eq!(found, [half, bfloat, e4m3, e5m2], "{real}");
        }
        assert_eq!(narrow(2049.0, 5, 10), narrow(2048.0, 5, 10), "a tie goes to the even one");
        assert_eq!(narrow(2051.0, 5, 10), narrow(2052.0, 5, 10));
    }

    #[test]
    fn elements_have_the_size_of_their_type() {
        for data_type in DataType::ALL {
            let mut bytes = Vec::new();
            push(&mut bytes, data_type, Number::Whole(3));
            assert_eq!(bytes.len(), data_type.bytes(), "{}", data_type.name());
        }
        assert_eq!(wrapped(DataType::I8, 130), -126);
        assert_eq!(wrapped(DataType::U8, 260), 4);
    }
}
