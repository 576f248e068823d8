//! Random elements of every type.

use weftlink_plan::element::{Complex, Element, F8E4m3, F8E5m2, bf16, f16};

/// A small generator: every machine tests the same cases.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    /// Mostly numbers of very different magnitudes, whose sum depends on the order of additions; some special values.
    fn f64(&mut self, tiny: f64, huge: f64) -> f64 {
        match self.below(32) {
            0 => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, huge, tiny, -tiny * 3.0]
                [self.below(8)],
            1 => huge * (self.below(1000) as f64 / 500.0 - 1.0),
            2 => tiny * (self.below(40) as f64 - 20.0),
            _ => (self.below(2001) as f64 - 1e3) * 2_f64.powi(self.below(13) as i32 - 10),
        }
    }
}

/// An element with random samples.
pub(super) trait Sample: Element {
    fn sample(random: &mut Random) -> Self;
}

macro_rules! samples {
    ($($type:ty: |$random:ident| $sample:expr;)*) => {$(
        impl Sample for $type {
            fn sample($random: &mut Random) -> Self {
                $sample
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty),*) => {
        samples! {$(
            $type: |random| [0, 1, 2, <$type>::MAX, <$type>::MIN, random.next() as $type, random.next() as $type, random.below(100) as $type][random.below(8)];
        )*}
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

samples! {
    f16: |random| match random.below(8) {
        0 => f16::from_bits(random.next() as u16),
        _ => f16::from_f64(random.f64(6e-8, 65504.0)),
    };
    bf16: |random| match random.below(8) {
        0 => bf16::from_bits(random.next() as u16),
        _ => bf16::from_f64(random.f64(1e-40, 3.38e38)),
    };
    f32: |random| match random.below(8) {
        0 => f32::from_bits(random.next() as u32),
        _ => random.f64(1e-45, f32::MAX.into()) as f32,
    };
    f64: |random| match random.below(8) {
        0 => f64::from_bits(random.next()),
        _ => random.f64(5e-324, f64::MAX),
    };
    F8E4m3: |random| F8E4m3::from_bits(random.next() as u8);
    F8E5m2: |random| F8E5m2::from_bits(random.next() as u8);
    bool: |random| random.below(2) == 1;
    Complex<f32>: |random| Complex::new(f32::sample(random), f32::sample(random));
    Complex<f64>: |random| Complex::new(f64::sample(random), f64::sample(random));
}
