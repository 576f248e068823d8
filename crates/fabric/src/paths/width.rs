//! The width of a path: links, and bytes per second by both measures.

use crate::link::{LinkSpec, Measure};
use crate::rate::{OneWay, Pair, Rate};

/// The width of a path or bundle. Unknown rates are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Width {
    /// Parallel links at the narrowest point.
    pub links: u32,
    /// The signalling rate.
    pub nominal: Rate<Pair, OneWay>,
    /// The rate that large transfers reach.
    pub effective: Rate<Pair, OneWay>,
}

impl Width {
    pub(crate) const NONE: Self = Self { links: 0, nominal: Rate::ZERO, effective: Rate::ZERO };
    pub(crate) const UNLIMITED: Self =
        Self { links: u32::MAX, nominal: Rate::from_bytes(u64::MAX), effective: Rate::from_bytes(u64::MAX) };

    pub(crate) fn of(spec: &LinkSpec, count: u32) -> Self {
        Self {
            links: count,
            nominal: spec.rate(Measure::Nominal, count),
            effective: spec.rate(Measure::Effective, count),
        }
    }

    /// Two widths in parallel.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            links: self.links.saturating_add(other.links),
            nominal: self.nominal.plus(other.nominal),
            effective: self.effective.plus(other.effective),
        }
    }

    /// Two widths in series.
    pub(crate) fn then(self, other: Self) -> Self {
        Self {
            links: self.links.min(other.links),
            nominal: self.nominal.min(other.nominal),
            effective: self.effective.min(other.effective),
        }
    }

    /// The rate by a measure.
    pub fn rate(self, measure: Measure) -> Rate<Pair, OneWay> {
        match measure {
            Measure::Nominal => self.nominal,
            Measure::Effective => self.effective,
        }
    }
}
