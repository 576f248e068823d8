//! The inputs of ranks, and the expected results.
//!
//! The elements of a block repeat after a prime number of them ([`Pattern`]), so that filling and comparing are plain memory
//! operations, and a shift by a power of two or by any length that plans use shows. Rank, block and check change all elements; the
//! *phase* of a call is where in the pattern its blocks begin, so that successive calls read different data.
//!
//! Collectives without a reduction move arbitrary bytes. Reductions use small whole numbers whose result is exact in any order:
//!
//! - sums of integers (which wrap) and of wide floats: a pseudo-random number plus the rank;
//! - sums of narrow floats: two ranks have a number for an element, the others zero;
//! - products: two ranks have 2 and 3, the others 1;
//! - minima, maxima, logical and bit operations: pseudo-random numbers.
//!
//! The expected result is computed in i64 or f64 by the rules of [`weftlink_plan::reduction`] and then encoded. Averages of floats may
//! be off by one in the last digit, because division and multiplication by the inverse are both correct.

use weftlink_comm::{DataType, Reduction};
use weftlink_plan::Element;

use super::encode::{self, Number, exact_up_to};
use super::names::{Op, Type, factor};

/// A unit of memory that buffers are made of: bytes, or f32 where nothing else is measured.
pub(super) trait Unit: weftlink_comm::Data + PartialEq {
    /// What no result is.
    const POISON: Self;
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
    fn to_bytes(units: &[Self]) -> Vec<u8>;
}

impl Unit for u8 {
    const POISON: u8 = 0xff;

    fn from_bytes(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn to_bytes(units: &[u8]) -> Vec<u8> {
        units.to_vec()
    }
}

impl Unit for f32 {
    const POISON: f32 = f32::NAN;

    fn from_bytes(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    fn to_bytes(units: &[f32]) -> Vec<u8> {
        units.iter().flat_map(|unit| unit.to_ne_bytes()).collect()
    }
}

/// Whose data it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) ranks: usize,
    /// Tells the data of one row from that of another.
    pub(super) salt: u64,
    pub(super) data_type: Type,
    /// Nothing if elements are only moved.
    pub(super) op: Option<Op>,
    /// After how many elements it repeats.
    pub(super) period: usize,
}

/// Prime numbers, of which the smallest that is enough is a period. Fewer where a rank has many blocks.
const PERIODS: [usize; 3] = [251, 4093, 65_521];
const BLOCKS_MANY: usize = 64;
/// How far apart the phases of calls are.
const PHASE: usize = 97;

/// After how many elements the data of blocks repeats.
pub(super) fn period(count: usize, blocks: usize) -> usize {
    let most = if blocks > BLOCKS_MANY { 1 } else { 2 };
    let enough = PERIODS.iter().position(|&period| period >= count).unwrap_or(most);
    PERIODS[enough.min(most)]
}

/// One period of elements, as memory.
pub(super) struct Pattern<T> {
    units: Vec<T>,
    /// Units of an element.
    element: usize,
    tolerance: Option<DataType>,
}

impl<T: Unit> Pattern<T> {
    fn of(origin: &Origin, elements: impl Iterator<Item = Number>, tolerance: Option<DataType>) -> Self {
        let data_type = origin.data_type.0;
        let mut bytes = Vec::with_capacity(origin.period * data_type.bytes());
        elements.for_each(|number| encode::push(&mut bytes, data_type, number));
        Self { units: T::from_bytes(&bytes), element: data_type.bytes() / size_of::<T>(), tolerance }
    }

    /// What a rank passes in as a block.
    pub(super) fn input(origin: &Origin, rank: usize, block: usize) -> Self {
        Self::of(origin, (0..origin.period).map(|at| origin.number(rank, block, at)), None)
    }

    /// The reduction of a block of the first `below` ranks.
    pub(super) fn reduced(origin: &Origin, op: Op, below: usize, block: usize) -> Self {
        let is_rounded = op.0 == Reduction::Average && exact_up_to(origin.data_type.0).is_some();
        let tolerance = is_rounded.then_some(origin.data_type.0);
        Self::of(origin, (0..origin.period).map(|at| origin.reduced(op.0, below, block, at)), tolerance)
    }

    /// Writes a block of a call.
    pub(super) fn fill(&self, block: &mut [T], call: usize) {
        let mut at = self.start(call);
        let mut rest = block;
        while !rest.is_empty() {
            let length = rest.len().min(self.units.len() - at);
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&self.units[at..at + length]);
            (rest, at) = (later, 0);
        }
    }

    /// How many elements of a call's block are not these.
    pub(super) fn wrong(&self, block: &[T], call: usize) -> u64 {
        let mut at = self.start(call);
        let mut rest = block;
        let mut wrong = 0;
        while !rest.is_empty() {
            let length = rest.len().min(self.units.len() - at);
            let (now, later) = rest.split_at(length);
            let wanted = &self.units[at..at + length];
            if now != wanted {
                let pairs = now.chunks(self.element).zip(wanted.chunks(self.element));
                wrong += pairs
                    .filter(|(found, wanted)| found != wanted && !self.is_near(found, wanted))
                    .count() as u64;
            }
            (rest, at) = (later, 0);
        }
        wrong
    }

    fn start(&self, call: usize) -> usize {
        call.wrapping_mul(PHASE) % (self.units.len() / self.element) * self.element
    }

    /// Whether two elements are neighbours among the floats of their type.
    fn is_near(&self, found: &[T], wanted: &[T]) -> bool {
        let Some(data_type) = self.tolerance else { return false };
        let part = match data_type {
            DataType::Complex64 => 4,
            DataType::Complex128 => 8,
            other => other.bytes(),
        };
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let (found, wanted) = (T::to_bytes(found), T::to_bytes(wanted));
        let mut parts = found.chunks(part).zip(wanted.chunks(part));
        parts.all(|(found, wanted)| word(found).abs_diff(word(wanted)) <= 1)
    }
}

impl Origin {
    /// The element of a rank's block at a place in the period.
    fn number(&self, rank: usize, block: usize, at: usize) -> Number {
        let data_type = self.data_type.0;
        let hash = |of: usize| hash(at as u64 ^ (block as u64) << 20 ^ (of as u64) << 40, self.salt);
        let is_one_of_two = || {
            let pair = hash(usize::MAX >> 24) as usize;
            let first = pair % self.ranks;
            let second = (first + 1 + pair / self.ranks % (self.ranks - 1).max(1)) % self.ranks;
            (rank == first, rank == second)
        };
        let Some(op) = self.op else {
            return match exact_up_to(data_type) {
                Some(most) => Number::Whole((hash(rank) % most.min(1 << 20) as u64) as i64),
                None => Number::Whole(hash(rank) as i64),
            };
        };
        Number::Whole(match (op.0, exact_up_to(data_type)) {
            (Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum, Some(most))
                if most < 1 << 24 =>
            {
                match is_one_of_two() {
                    (false, false) => 0,
                    _ => 1 + (hash(rank) % (most / 4) as u64) as i64,
                }
            }
            (Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum, _) => {
                (hash(usize::MAX >> 25) % 2048) as i64 + rank as i64
            }
            (Reduction::Product, _) => match is_one_of_two() {
                (true, _) => 2,
                (_, true) => 3,
                _ => 1,
            },
            (_, Some(most)) => (hash(rank) % most.min(2048) as u64) as i64,
            (_, None) => encode::wrapped(data_type, (hash(rank) & 0x7f) as i64),
        })
    }

    fn reduced(&self, reduction: Reduction, below: usize, block: usize, at: usize) -> Number {
        let data_type = self.data_type.0;
        let whole = |rank: usize| match self.number(rank, block, at) {
            Number::Whole(whole) if data_type == DataType::Bool => i64::from(whole != 0),
            Number::Whole(whole) => whole,
            Number::Real(real) => real as i64,
        };
        let input = |rank: usize| match reduction {
            Reduction::PremultipliedSum => whole(rank) * factor(rank),
            _ if reduction.changes_inputs() => whole(rank).truth(),
            _ => whole(rank),
        };
        let by = below as u32;
        match exact_up_to(data_type) {
            None => {
                let Some(combine) = i64::combining(reduction) else { return Number::Whole(0) };
                let all = (1..below).map(input).fold(input(0), combine);
                let all = encode::wrapped(data_type, all);
                Number::Whole(if reduction == Reduction::Average { all.divided(by) } else { all })
            }
            // Whole numbers are added and multiplied as complex ones are.
            Some(_) => {
                let Some(combine) = f64::combining(reduction) else { return Number::Whole(0) };
                let all = (1..below).map(|rank| input(rank) as f64).fold(input(0) as f64, combine);
                Number::Real(if reduction == Reduction::Average { all.divided(by) } else { all })
            }
        }
    }
}

/// Mixes all bits of both into the lower ones.
fn hash(value: u64, salt: u64) -> u64 {
    let mixed = (value ^ salt.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(data_type: DataType, op: Option<Reduction>, ranks: usize) -> Origin {
        Origin { ranks, salt: 5, data_type: Type(data_type), op: op.map(Op), period: 251 }
    }

    #[test]
    fn sums_are_exact() {
        for ranks in [1, 2, 3, 64, 1000] {
            let origin = origin(DataType::F32, Some(Reduction::Sum), ranks);
            let mut sum = vec![0_f32; 600];
            for rank in 0..ranks {
                let mut part = vec![0_f32; 600];
                Pattern::<f32>::input(&origin, rank, 0).fill(&mut part, 3);
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
            let wanted = Pattern::<f32>::reduced(&origin, Op(Reduction::Sum), ranks, 0);
            assert_eq!(wanted.wrong(&sum, 3), 0, "{ranks} ranks");
            assert!(wanted.wrong(&sum, 4) > 500, "another call's data");
            sum[7] = f32::POISON;
            assert_eq!(wanted.wrong(&sum, 3), 1);
        }
    }

    #[test]
    fn numbers_fit_their_types() {
        for data_type in DataType::ALL {
            let Some(most) = exact_up_to(data_type) else { continue };
            for reduction in
                [Reduction::Sum, Reduction::Product, Reduction::PremultipliedSum, Reduction::Maximum]
            {
                let origin = origin(data_type, Some(reduction), 1000);
                for at in 0..251 {
                    let Number::Real(all) = origin.reduced(reduction, 1000, 0, at) else { continue };
                    assert!(all as i64 <= most, "{} of {}: {all}", reduction, data_type.name());
                }
            }
        }
    }

    #[test]
    fn mistakes_show() {
        for data_type in [DataType::U8, DataType::F64, DataType::Bf16] {
            let origin = origin(data_type, None, 4);
            let pattern = |rank, block| Pattern::<u8>::input(&origin, rank, block);
            let mut block = vec![0; 512 * data_type.bytes()];
            pattern(1, 2).fill(&mut block, 0);
            assert_eq!(pattern(1, 2).wrong(&block, 0), 0);
            for other in [pattern(1, 3), pattern(2, 2)] {
                assert!(other.wrong(&block, 0) > 480, "{}", data_type.name());
            }
            let half = block.len() / 2;
            block.copy_within(half.., 0);
            assert!(pattern(1, 2).wrong(&block, 0) > 240, "what is moved by a power of two");
        }
    }

    #[test]
    fn averages_may_be_rounded_either_way() {
        let origin = origin(DataType::F32, Some(Reduction::Average), 3);
        let wanted = Pattern::<f32>::reduced(&origin, Op(Reduction::Average), 3, 0);
        let mut found = vec![0_f32; 251];
        wanted.fill(&mut found, 0);
        found[5] = found[5].next_up();
        assert_eq!(wanted.wrong(&found, 0), 0);
        found[5] = found[5].next_up();
        assert_eq!(wanted.wrong(&found, 0), 1);
    }
}
