//! All constants of the model: costs that no data sheet gives.
//!
//! Each belongs to a kind of link, a GPU generation, a kind of network, a protocol or a library, never to a system or a table. Line
//! rates are not here: the fabric has them. Fitted values come from `examples/fit/` on the rows of
//! `testdata/measurements/published.csv`; each may move away from a physical value by about its spread.

use std::ops::{Index, IndexMut};

/// Where a constant comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// Taken from NCCL's sources.
    Nccl,
    /// Set by hand from a few rows or from the hardware; not fitted.
    Set,
    /// Fitted, with a prior around a physical value.
    Fitted {
        /// The prior's centre, where the fit starts.
        start: f64,
        /// The prior's width, as a fraction.
        spread: f64,
    },
}

/// A constant with its description.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// The value's unit, empty for a ratio.
    pub unit: &'static str,
    /// The hardware or library that it belongs to.
    pub belongs_to: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// Its origin.
    pub origin: Origin,
}

macro_rules! constants {
    ($($name:ident = $value:literal, $unit:literal, $belongs:literal, $meaning:literal, $origin:expr;)+) => {
        /// A constant's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Name {
            $(#[doc = $meaning] $name,)+
        }

        /// All constants, as shipped.
        pub const TABLE: &[Constant] = &[$(
            Constant {
                name: stringify!($name),
                value: $value,
                unit: $unit,
                belongs_to: $belongs,
                meaning: $meaning,
                origin: $origin,
            },
        )+];
    };
}

const fn fitted(start: f64, spread: f64) -> Origin {
    Origin::Fitted { start, spread }
}

include!("constants/table.rs");

/// Number of constants.
pub const COUNT: usize = TABLE.len();

const _: () = assert!(COUNT <= 100, "a model with more constants fits anything and predicts nothing");

/// A hash of the fitted constants: intervals from predictions with another fingerprint are out of date.
pub fn fingerprint() -> u64 {
    let fitted = TABLE.iter().filter(|constant| matches!(constant.origin, Origin::Fitted { .. }));
    let letters = fitted.flat_map(|constant| format!("{} {};", constant.name, constant.value).into_bytes());
    hash(letters)
}

/// Fowler, Noll and Vo's hash, 1a.
pub fn hash(letters: impl Iterator<Item = u8>) -> u64 {
    letters.fold(0xcbf2_9ce4_8422_2325, |hash: u64, letter| {
        (hash ^ u64::from(letter)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A value for each constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    values: [f64; COUNT],
}

impl Constants {
    /// The shipped values.
    pub fn shipped() -> Self {
        Self { values: std::array::from_fn(|index| TABLE[index].value) }
    }

    /// The values at which a fit starts.
    pub fn start() -> Self {
        Self {
            values: std::array::from_fn(|index| match TABLE[index].origin {
                Origin::Fitted { start, .. } => start,
                Origin::Nccl | Origin::Set => TABLE[index].value,
            }),
        }
    }

    /// The value at a position in [`TABLE`].
    pub fn at(&self, index: usize) -> f64 {
        self.values[index]
    }

    /// The value at a position in [`TABLE`], mutable.
    pub fn at_mut(&mut self, index: usize) -> &mut f64 {
        &mut self.values[index]
    }
}

impl Default for Constants {
    fn default() -> Self {
        Self::shipped()
    }
}

impl Index<Name> for Constants {
    type Output = f64;

    fn index(&self, name: Name) -> &f64 {
        &self.values[name as usize]
    }
}

impl IndexMut<Name> for Constants {
    fn index_mut(&mut self, name: Name) -> &mut f64 {
        &mut self.values[name as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_finite_and_near_their_start() {
        for constant in TABLE {
            assert!(constant.value.is_finite() && constant.value >= 0.0, "{}", constant.name);
            if let Origin::Fitted { start, spread } = constant.origin {
                let away = libm::log(constant.value / start).abs();
                assert!(away <= 4.0 * spread, "{} moved from {start} to {}", constant.name, constant.value);
            }
        }
    }
}
