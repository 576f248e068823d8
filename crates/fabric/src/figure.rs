//! A number with its provenance: its basis (data sheet, experience, measurement), its source, and whether it was compared
//! with that source.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rate::{Device, Link, OneWay, Rate};

/// How a number was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The signalling rate of the specification or data sheet.
    Nominal,
    /// The rate that large transfers are known to reach.
    Effective,
    /// Measured on this link.
    Measured,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Basis::Nominal => "nominal",
            Basis::Effective => "effective",
            Basis::Measured => "measured",
        })
    }
}

/// The origin of a number: a specification, a data sheet, a program's constant, a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Source(Cow<'static, str>);

impl Source {
    /// A source given as a literal.
    pub const fn named(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A number of type `T` with its basis and source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Figure<T> {
    /// The number.
    pub value: T,
    /// How it was obtained.
    pub basis: Basis,
    /// Where it comes from.
    pub source: Source,
    /// Whether the number was compared with the text of its source. Otherwise the source is where the number is expected, and
    /// the number was written down from memory.
    pub checked: bool,
}

/// A link's bandwidth in each direction.
pub type LinkRate = Figure<Rate<Link, OneWay>>;

impl<T> Figure<T> {
    /// A nominal figure with a literal source.
    pub const fn nominal(value: T, source: &'static str) -> Self {
        Self { value, basis: Basis::Nominal, source: Source::named(source), checked: false }
    }

    /// An effective figure with a literal source.
    pub const fn effective(value: T, source: &'static str) -> Self {
        Self { value, basis: Basis::Effective, source: Source::named(source), checked: false }
    }

    /// The same figure, compared with its source.
    pub const fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// The source for people, with `checked` after it where the number was compared with it.
    pub fn provenance(&self) -> impl fmt::Display {
        Provenance { source: self.source.clone(), checked: self.checked }
    }

    /// Computes another number from this one, keeping basis and source.
    pub fn map<U>(self, compute: impl FnOnce(T) -> U) -> Figure<U> {
        Figure { value: compute(self.value), basis: self.basis, source: self.source, checked: self.checked }
    }
}

struct Provenance {
    source: Source,
    checked: bool,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.checked { ", checked" } else { "" };
        write!(f, "{}{mark}", self.source)
    }
}

impl LinkRate {
    /// The figure for a device with `links` such links.
    pub fn per_device(self, links: u64) -> Figure<Rate<Device, OneWay>> {
        self.map(|rate| rate.per_device(links))
    }
}

/// A time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        f.pad(&match self.0 {
            0..1_000 => format!("{ns} ns"),
            1_000..1_000_000 => format!("{:.3} us", ns / 1e3),
            1_000_000..1_000_000_000 => format!("{:.3} ms", ns / 1e6),
            _ => format!("{:.3} s", ns / 1e9),
        })
    }
}
