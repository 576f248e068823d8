//! The constants of the model, all of them: what a prediction charges that no data sheet says.
//!
//! Each belongs to a kind of link, a generation of GPUs, a kind of network, a protocol or a library, never to a system or a
//! table. Line rates are not here: the fabric says them. Values marked as fitted come from `examples/fit/` on the rows of
//! `testdata/measurements/published.csv`; each may move around a physical value by about its spread, no more.

use std::ops::{Index, IndexMut};

/// Where a constant comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// NCCL's sources, as they are.
    Nccl,
    /// Set by hand from a few rows, or from what is physically there; not fitted.
    Set,
    /// Fitted, starting at a physical value that it may leave by about the spread, a fraction.
    Fitted {
        /// Where the fit starts, and what it is drawn to.
        start: f64,
        /// How far it may go without good reason.
        spread: f64,
    },
}

/// A constant, described.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// What the value counts.
    pub unit: &'static str,
    /// What it belongs to.
    pub belongs_to: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// Where it comes from.
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
        pub const TABLE: &[Described] = &[$(
            Described {
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

/// How many there are.
pub const COUNT: usize = TABLE.len();

const _: () =
    assert!(COUNT <= 100, "a model with more constants than this fits anything and foretells nothing");

/// A number that changes when a fitted constant does: errors that were found with others are out of date.
pub fn fingerprint() -> u64 {
    let fitted = TABLE.iter().filter(|constant| matches!(constant.origin, Origin::Fitted { .. }));
    let letters = fitted.flat_map(|constant| format!("{} {};", constant.name, constant.value).into_bytes());
    // Fowler, Noll and Vo's hash, 1a.
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
    /// Those that are shipped.
    pub fn shipped() -> Self {
        Self { values: std::array::from_fn(|index| TABLE[index].value) }
    }

    /// Where a fit starts.
    pub fn start() -> Self {
        Self {
            values: std::array::from_fn(|index| match TABLE[index].origin {
                Origin::Fitted { start, .. } => start,
                Origin::Nccl | Origin::Set => TABLE[index].value,
            }),
        }
    }

    /// By position in [`TABLE`].
    pub fn at(&self, index: usize) -> f64 {
        self.values[index]
    }

    /// By position in [`TABLE`], to change it.
    pub fn at_mut(&mut self, index: usize) -> &mut f64 {
        &mut self.values[index]
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
    fn all_are_sound_and_near_where_they_start() {
        for constant in TABLE {
            assert!(constant.value.is_finite() && constant.value >= 0.0, "{}", constant.name);
            if let Origin::Fitted { start, spread } = constant.origin {
                let away = (constant.value / start).ln().abs();
                assert!(away <= 4.0 * spread, "{} went from {start} to {}", constant.name, constant.value);
            }
        }
    }
}
