//! Inputs and expected outputs of a case, as bytes.
//!
//! Integers are random in all bits. Floats lie between 1 and 2 or between -2 and -1, with full mantissas, so that another order of additions
//! changes the last bits; a few are zero, infinite, NaN, the largest or the smallest value. [`with_type!`](crate::with_type) maps a data type to
//! a Rust type.

use weftlink_plan::domain::elements::oracle_with;
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::interpret::Event;
use weftlink_plan::{Cut, Element, Reducer, Reduction, Verified};

use super::{Case, mix};

/// Evaluates an expression with the Rust type of a [`DataType`](weftlink_plan::DataType).
#[macro_export]
macro_rules! with_type {
    ($data_type:expr, $type:ident => $body:expr) => {{
        use weftlink_plan::DataType;
        use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
        macro_rules! with {
            ($of:ty) => {{
                type $type = $of;
                $body
            }};
        }
        match $data_type {
            DataType::I8 => with!(i8),
            DataType::U8 => with!(u8),
            DataType::I16 => with!(i16),
            DataType::U16 => with!(u16),
            DataType::I32 => with!(i32),
            DataType::U32 => with!(u32),
            DataType::I64 => with!(i64),
            DataType::U64 => with!(u64),
            DataType::F16 => with!(f16),
            DataType::Bf16 => with!(bf16),
            DataType::F32 => with!(f32),
            DataType::F64 => with!(f64),
            DataType::F8E4m3 => with!(F8E4m3),
            DataType::F8E5m2 => with!(F8E5m2),
            DataType::Bool => with!(bool),
            DataType::Complex64 => with!(Complex<f32>),
            DataType::Complex128 => with!(Complex<f64>),
        }
    }};
}

/// An element type that can be read, written and generated.
pub trait Value: Element {
    /// Reads an element from its bytes.
    fn read(bytes: &[u8]) -> Self;

    /// Appends its bytes.
    fn write(self, bytes: &mut Vec<u8>);

    /// An ordinary value, from 64 random bits.
    fn from_random(word: u64) -> Self;

    /// A special value, if the type has any.
    fn special(word: u64) -> Self {
        Self::from_random(word)
    }

    /// An ordinary value times a power of two, large or small. In a sum in f32, or in the type itself if it is wider, rounding to a large
    /// value loses a small one; except in f8e4m3, whose sums f32 represents exactly.
    fn of_size(word: u64, is_large: bool) -> Self {
        let _ = is_large;
        Self::from_random(word)
    }

    /// The negative.
    fn negated(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap_or_else(|_| panic!("an element has all its bytes")))
            }

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_ne_bytes());
            }

            fn from_random(word: u64) -> Self {
                word as Self
            }

            fn special(word: u64) -> Self {
                [0, Self::MIN, Self::MAX, 1][word as usize % 4]
            }
        }
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

/// A float from the bits of its type: `one` is 1.0, and `mantissa` all bits of the mantissa.
macro_rules! floats {
    ($($type:ty: $bits:ty, $one:literal, $mantissa:literal, $sizes:expr, $special:expr;)*) => {$(
        impl Value for $type {
            fn read(bytes: &[u8]) -> Self {
                Self::from_bits(<$bits>::read(bytes))
            }

            fn write(self, bytes: &mut Vec<u8>) {
                self.to_bits().write(bytes);
            }

            fn from_random(word: u64) -> Self {
                let sign = ((word >> 63) as $bits) << (<$bits>::BITS - 1);
                Self::from_bits(sign | $one | (word as $bits & $mantissa))
            }

            fn special(word: u64) -> Self {
                let all: &[$bits] = &$special;
                let sign = ((word >> 63) as $bits) << (<$bits>::BITS - 1);
                Self::from_bits(sign | all[word as usize % all.len()])
            }

            fn of_size(word: u64, is_large: bool) -> Self {
                let (large, small): (i64, i64) = $sizes;
                let exponent = if is_large { large } else { small } << <$bits>::count_ones($mantissa);
                let bits = (Self::from_random(word).to_bits() as i64).wrapping_add(exponent);
                Self::from_bits(bits as $bits)
            }

            fn negated(self) -> Self {
                Self::from_bits(self.to_bits() ^ 1 << (<$bits>::BITS - 1))
            }
        }
    )*};
}

// Exponents of large and small values; zero, infinity (if the type has it), NaN, the largest and the smallest value.
floats!(
    f32: u32, 0x3f80_0000, 0x007f_ffff, (20, 0), [0, 0x7f80_0000, 0x7fc0_0000, 0x7f7f_ffff, 1];
    f64: u64, 0x3ff0_0000_0000_0000, 0x000f_ffff_ffff_ffff, (44, 0),
        [0, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000, 0x7fef_ffff_ffff_ffff, 1];
    f16: u16, 0x3c00, 0x03ff, (14, -8), [0, 0x7c00, 0x7e00, 0x7bff, 1];
    bf16: u16, 0x3f80, 0x007f, (22, 0), [0, 0x7f80, 0x7fc0, 0x7f7f, 1];
    F8E4m3: u8, 0x38, 0x07, (7, -6), [0, 0x7f, 0x7e, 1];
    F8E5m2: u8, 0x3c, 0x03, (14, -12), [0, 0x7c, 0x7e, 0x7b, 1];
);

impl Value for bool {
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }

    fn from_random(word: u64) -> Self {
        word % 2 == 1
    }
}

impl<T: Value> Value for Complex<T>
where
    Complex<T>: Element,
{
    fn read(bytes: &[u8]) -> Self {
        let (real, imaginary) = bytes.split_at(bytes.len() / 2);
        Complex::new(T::read(real), T::read(imaginary))
    }

    fn write(self, bytes: &mut Vec<u8>) {
        self.re.write(bytes);
        self.im.write(bytes);
    }

    fn from_random(word: u64) -> Self {
        Complex::new(T::from_random(word), T::from_random(mix(word)))
    }

    fn of_size(word: u64, is_large: bool) -> Self {
        Complex::new(T::of_size(word, is_large), T::of_size(mix(word), is_large))
    }

    fn negated(self) -> Self {
        Complex::new(self.re.negated(), self.im.negated())
    }
}

/// One in this many elements is special, on average.
const SPECIAL_EVERY: u64 = 41;

/// The input of a rank, its blocks one after the other.
pub fn input(case: &Case, rank: u32) -> Vec<u8> {
    with_type!(case.data_type, T => {
        let count: usize = case.given(rank).iter().sum();
        let mut bytes = Vec::with_capacity(count * size_of::<T>());
        for at in 0..count as u64 {
            let word = mix(u64::from(rank + 1) << 40 | at);
            let value = if word.is_multiple_of(SPECIAL_EVERY) { T::special(mix(word)) } else { T::from_random(mix(word)) };
            value.write(&mut bytes);
        }
        bytes
    })
}

/// Inputs whose sum depends on the order of additions: for each element, one rank has a large value and another its negative, so that
/// rounding loses the values that are added between the two.
pub fn order_dependent_input(case: &Case, rank: u32) -> Vec<u8> {
    /// Fewer than in other inputs, because a sum with a NaN does not depend on the order.
    const SPECIAL_EVERY: u64 = 211;
    // Such products would be infinite or zero, and after pre-multiplication the two large values do not cancel.
    let adds = !matches!(case.reduction, Some(Reduction::Product | Reduction::PremultipliedSum));
    with_type!(case.data_type, T => {
        let count: usize = case.given(rank).iter().sum();
        let mut bytes = Vec::with_capacity(count * size_of::<T>());
        for at in 0..count as u64 {
            let word = |rank: u32| mix(u64::from(rank + 1) << 40 | at);
            let first = (mix(at) % u64::from(case.ranks)) as u32;
            let apart = 1 + (mix(at ^ 1 << 50) % u64::from(case.ranks.max(2) - 1)) as u32;
            let second = (first + apart) % case.ranks;
            let large = || T::of_size(mix(at << 20), true);
            let value = if word(rank).is_multiple_of(SPECIAL_EVERY) {
                T::special(mix(word(rank)))
            } else if !adds {
                T::from_random(word(rank))
            } else if case.ranks > 2 && rank == first {
                large()
            } else if case.ranks > 2 && rank == second {
                large().negated()
            } else {
                T::of_size(word(rank), false)
            };
            value.write(&mut bytes);
        }
        bytes
    })
}

/// A rank's factor in a pre-multiplied sum.
pub fn factor<T: Value>(rank: u32) -> T {
    T::from_random(mix(u64::from(rank) << 20))
}

/// The expected output of each rank, block after block, and the steps in a valid order.
///
/// `cut` returns how the backend cuts a block, given its elements and the bytes of each. Collectives without a reduction move bytes.
pub fn expected(
    case: &Case,
    plan: &Verified,
    cut: impl Fn(usize, usize) -> Cut,
) -> (Vec<Vec<u8>>, Vec<Event>) {
    let inputs: Vec<Vec<u8>> = (0..case.ranks).map(|rank| input(case, rank)).collect();
    let Some(reduction) = case.reduction else {
        let bytes = case.data_type.bytes();
        let cuts = |rank, block| cut(case.length(rank, block) * bytes, 1);
        let reducer = Reducer::user_defined(true, |_, _| unreachable!("nothing is reduced"));
        return oracle_with(plan, cuts, case.aliasing, &inputs, &reducer);
    };
    with_type!(case.data_type, T => {
        let read = |bytes: &Vec<u8>| bytes.chunks_exact(size_of::<T>()).map(T::read).collect::<Vec<T>>();
        let inputs: Vec<Vec<T>> = inputs.iter().map(read).collect();
        let reducer = match reduction {
            Reduction::PremultipliedSum => {
                Reducer::premultiplied_sum((0..case.ranks).map(factor::<T>).collect())
            }
            reduction => Reducer::named(reduction),
        };
        let reducer = reducer.unwrap_or_else(|why| panic!("{why}"));
        let cuts = |rank, block| cut(case.length(rank, block), size_of::<T>());
        let (outputs, events) = oracle_with(plan, cuts, case.aliasing, &inputs, &reducer);
        let write = |output: Vec<T>| {
            let mut bytes = Vec::with_capacity(output.len() * size_of::<T>());
            output.into_iter().for_each(|value| value.write(&mut bytes));
            bytes
        };
        (outputs.into_iter().map(write).collect(), events)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{By, Counts, Memory};
    use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, verify};

    fn case(data_type: DataType, reduction: Reduction) -> Case {
        Case {
            collective: Collective::AllReduce,
            ranks: 3,
            counts: Counts::Even(500),
            data_type,
            reduction: Some(reduction),
            aliasing: Aliasing::OutOfPlace,
            memory: Memory::Ordinary,
            by: By::Algorithm { algorithm: Algorithm::Ring, packets: false, lanes: 1 },
        }
    }

    #[test]
    fn every_type_has_distinct_inputs_and_all_its_reductions() {
        let plan = verify(Algorithm::Ring.plan(3, 1)).unwrap();
        for data_type in DataType::ALL {
            for reduction in Reduction::NAMED.into_iter().filter(|it| it.is_for(data_type.kind())) {
                let case = case(data_type, reduction);
                assert_ne!(input(&case, 0), input(&case, 1));
                let (outputs, _) = expected(&case, &plan, |count, _| Cut::whole(count, 3, 1));
                assert!(outputs.iter().all(|output| output.len() == 500 * data_type.bytes()));
                assert_eq!(outputs[0], outputs[1], "{case}");
            }
        }
    }
}
