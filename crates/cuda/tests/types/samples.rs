//! Elements as bytes, and random ones.

use weftlink_plan::element::{Complex, Element, F8E4m3, F8E5m2, bf16, f16};

/// A small generator: every machine tests the same cases.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[(self.next() >> 16) as usize % values.len()]
    }
}

/// An element that can be written to the program and read back.
pub(crate) trait Sample: Element {
    /// A random element: special values, any bits, and numbers of similar magnitudes.
    fn sample(random: &mut Random) -> Self;

    fn push(self, bytes: &mut Vec<u8>);

    fn read(bytes: &[u8]) -> Self;

    /// All elements, for types of at most 16 bits.
    fn all() -> Vec<Self> {
        match Self::TYPE.bytes() {
            1 => (0..=u8::MAX).map(|bits| Self::read(&[bits])).collect(),
            2 => (0..=u16::MAX).map(|bits| Self::read(&bits.to_le_bytes())).collect(),
            _ => Vec::new(),
        }
    }
}

macro_rules! samples {
    ($($type:ty: |$random:ident| $sample:expr;)*) => {$(
        impl Sample for $type {
            fn sample($random: &mut Random) -> Self {
                $sample
            }

            fn push(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the size of the type"))
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty),*) => {
        samples! {$(
            $type: |random| {
                let any = random.next() as $type;
                random.pick(&[0, 1, 2, 100, <$type>::MAX, <$type>::MIN, any, any, any, any])
            };
        )*}
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Both signs of the bits of zero, the least subnormal number, the largest one, the least normal number, one, the largest number, infinity, a
/// signalling NaN and a quiet one with a payload.
macro_rules! floats {
    ($($type:ty, $bits:ty: $mantissa:literal, $bias:literal;)*) => {
        samples! {$(
            $type: |random| {
                const LEAST: $bits = 1 << $mantissa;
                const ONE: $bits = $bias << $mantissa;
                const INFINITE: $bits = (2 * $bias + 1) << $mantissa;
                let special = random.pick(&[
                    0, 1, LEAST - 1, LEAST, ONE, INFINITE - 1, INFINITE, INFINITE + 1, INFINITE + LEAST / 2 + 3,
                ]);
                let any = random.next() as $bits;
                let near_one = ONE - (3 << $mantissa) + (any % (6 << $mantissa));
                let magnitude = random.pick(&[special, any, near_one, near_one, near_one]);
                let sign = (random.next() as $bits) & !(<$bits>::MAX >> 1);
                <$type>::from_bits(magnitude ^ sign)
            };
        )*}
    };
}

floats! {
    f16, u16: 10, 15;
    bf16, u16: 7, 127;
    f32, u32: 23, 127;
    f64, u64: 52, 1023;
}

macro_rules! bytes {
    ($($type:ty: |$bits:ident| $from:expr, |$value:ident| $to:expr;)*) => {$(
        impl Sample for $type {
            fn sample(random: &mut Random) -> Self {
                Self::read(&[random.next() as u8])
            }

            fn push(self, bytes: &mut Vec<u8>) {
                let $value = self;
                bytes.push($to);
            }

            fn read(bytes: &[u8]) -> Self {
                let $bits = bytes[0];
                $from
            }
        }
    )*};
}

bytes! {
    F8E4m3: |bits| F8E4m3::from_bits(bits), |value| value.to_bits();
    F8E5m2: |bits| F8E5m2::from_bits(bits), |value| value.to_bits();
    bool: |bits| bits % 2 == 1, |value| u8::from(value);
}

macro_rules! complex {
    ($($part:ty),*) => {$(
        impl Sample for Complex<$part> {
            fn sample(random: &mut Random) -> Self {
                Complex::new(<$part>::sample(random), <$part>::sample(random))
            }

            fn push(self, bytes: &mut Vec<u8>) {
                self.re.push(bytes);
                self.im.push(bytes);
            }

            fn read(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(size_of::<$part>());
                Complex::new(<$part>::read(re), <$part>::read(im))
            }
        }
    )*};
}

complex!(f32, f64);
