//! Bandwidths with scope and direction in the type.
//!
//! Published figures mix up the *scope* (one lane, one link, one GPU, one rack) and the *direction* (each way, or
//! both ways added up). "600 GB/s per link" for NVLink 3 is the both-ways sum over the twelve links of a GPU;
//! "32 GB/s per lane" for PCIe 4 is the one-way rate of a slot of sixteen lanes. With [`Rate`], such mistakes do not
//! compile:
//!
//! ```compile_fail
//! use weftlink_fabric::rate::{BothWays, Device, Link, Rate};
//! let per_gpu: Rate<Device, BothWays> = Rate::from_gb(600);
//! let per_link: Rate<Link, BothWays> = per_gpu; // expected `Link`, found `Device`
//! ```
//!
//! ```compile_fail
//! use weftlink_fabric::rate::{Lane, Link, OneWay, Rate};
//! let slot: Rate<Link, OneWay> = Rate::from_gb(32);
//! let lane: Rate<Lane, OneWay> = slot; // expected `Lane`, found `Link`
//! ```
//!
//! ```compile_fail
//! use weftlink_fabric::rate::{BothWays, Device, OneWay, Rate};
//! let in_rack: Rate<Device, BothWays> = Rate::from_gb(1800);
//! let network: Rate<Device, OneWay> = Rate::from_gb(100);
//! let gap = in_rack.ratio(network); // expected `BothWays`, found `OneWay`: the gap is 9, not 18
//! ```
//!
//! Conversions are explicit:
//!
//! ```
//! use weftlink_fabric::rate::{Link, OneWay, Rate};
//! let nvlink3: Rate<Link, OneWay> = Rate::from_gb(25);
//! assert_eq!(nvlink3.per_device(12).both_ways().to_string(), "600 GB/s both ways per GPU");
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

/// The thing a rate belongs to.
pub trait Scope {
    /// The word printed after "per".
    const NAME: &'static str;
}

/// The directions a rate adds up.
pub trait Direction {
    /// The words printed after the number.
    const NAME: &'static str;
}

macro_rules! markers {
    ($trait:ident: $($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {}
        impl $trait for $name { const NAME: &'static str = $text; }
    )+};
}

markers! { Scope:
    /// One lane of a serial link, such as one PCIe lane.
    Lane = "lane",
    /// One link: an NVLink, a PCIe slot of its full width, a network port.
    Link = "link",
    /// Everything between two devices: a bundle of parallel links, or a path.
    Pair = "pair",
    /// All links of one kind that a device has.
    Device = "GPU",
    /// All devices of a domain added up.
    Domain = "domain",
}

markers! { Direction:
    /// One direction.
    OneWay = "each way",
    /// Both directions added up, as most data sheets print.
    BothWays = "both ways",
}

/// A bandwidth in bytes per second, with scope and direction in its type.
pub struct Rate<S, D> {
    bytes_per_second: u64,
    marker: PhantomData<fn() -> (S, D)>,
}

impl<S, D> Rate<S, D> {
    /// No bandwidth at all.
    pub const ZERO: Self = Self::from_bytes(0);

    /// From bytes per second.
    pub const fn from_bytes(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, marker: PhantomData }
    }

    /// From GB/s, where GB is 1e9 bytes.
    pub const fn from_gb(gigabytes_per_second: u64) -> Self {
        Self::from_bytes(gigabytes_per_second * 1_000_000_000)
    }

    /// From MB/s, where MB is 1e6 bytes.
    pub const fn from_mb(megabytes_per_second: u64) -> Self {
        Self::from_bytes(megabytes_per_second * 1_000_000)
    }

    /// From Gb/s, where Gb is 1e9 bits.
    pub const fn from_gbit(gigabits_per_second: u64) -> Self {
        Self::from_bytes(gigabits_per_second * 125_000_000)
    }

    /// Bytes per second.
    pub const fn bytes_per_second(self) -> u64 {
        self.bytes_per_second
    }

    /// GB/s, where GB is 1e9 bytes.
    pub fn gb(self) -> f64 {
        self.bytes_per_second as f64 / 1e9
    }

    /// This rate divided by `other`, which has the same scope and direction.
    pub fn ratio(self, other: Self) -> f64 {
        self.bytes_per_second as f64 / other.bytes_per_second as f64
    }

    /// The sum of two rates of the same scope and direction.
    pub const fn plus(self, other: Self) -> Self {
        Self::from_bytes(self.bytes_per_second.saturating_add(other.bytes_per_second))
    }

    /// The share of one of `parts` equal users.
    pub const fn shared_by(self, parts: u64) -> Self {
        Self::from_bytes(self.bytes_per_second / parts)
    }

    const fn scaled<T>(self, factor: u64) -> Rate<T, D> {
        Rate::from_bytes(self.bytes_per_second.saturating_mul(factor))
    }
}

impl<D> Rate<Lane, D> {
    /// The rate of a link that is `lanes` wide.
    pub const fn per_link(self, lanes: u64) -> Rate<Link, D> {
        self.scaled(lanes)
    }
}

impl<D> Rate<Link, D> {
    /// The rate of `links` parallel links between two devices.
    pub const fn per_pair(self, links: u64) -> Rate<Pair, D> {
        self.scaled(links)
    }

    /// The rate of a device that has `links` such links.
    pub const fn per_device(self, links: u64) -> Rate<Device, D> {
        self.scaled(links)
    }
}

impl<D> Rate<Device, D> {
    /// The rate of `devices` such devices added up.
    pub const fn per_domain(self, devices: u64) -> Rate<Domain, D> {
        self.scaled(devices)
    }
}

impl<D> Rate<Pair, D> {
    /// The same rate as a contribution to the sum over all peers of a device.
    pub fn into_device(self) -> Rate<Device, D> {
        self.scaled(1)
    }
}

impl<S> Rate<S, OneWay> {
    /// Both directions added up.
    pub const fn both_ways(self) -> Rate<S, BothWays> {
        Rate::from_bytes(self.bytes_per_second.saturating_mul(2))
    }
}

impl<S> Rate<S, BothWays> {
    /// One direction of a symmetric link.
    pub const fn one_way(self) -> Rate<S, OneWay> {
        Rate::from_bytes(self.bytes_per_second / 2)
    }
}

// Derived implementations would require these traits of the markers, which are never values.
impl<S, D> Clone for Rate<S, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, D> Copy for Rate<S, D> {}
impl<S, D> PartialEq for Rate<S, D> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes_per_second == other.bytes_per_second
    }
}
impl<S, D> Eq for Rate<S, D> {}
impl<S, D> PartialOrd for Rate<S, D> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<S, D> Ord for Rate<S, D> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes_per_second.cmp(&other.bytes_per_second)
    }
}
impl<S, D> std::hash::Hash for Rate<S, D> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes_per_second.hash(state);
    }
}
impl<S: Scope, D: Direction> fmt::Debug for Rate<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `450 GB/s each way per GPU`: a rate always prints its direction and scope.
impl<S: Scope, D: Direction> fmt::Display for Rate<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} per {}", Amount(self.bytes_per_second), D::NAME, S::NAME)
    }
}

impl<S, D> Rate<S, D> {
    /// The number and its unit alone (`450 GB/s`), for tables whose heading gives scope and direction.
    pub fn amount(self) -> impl fmt::Display {
        Amount(self.bytes_per_second)
    }
}

struct Amount(u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0..1_000_000_000 => (self.0 as f64 / 1e6, "MB/s"),
            1_000_000_000..1_000_000_000_000 => (self.0 as f64 / 1e9, "GB/s"),
            _ => (self.0 as f64 / 1e12, "TB/s"),
        };
        // Three significant digits, the precision of the sources.
        let decimals = if value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        let text = format!("{value:.decimals$}");
        let text = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        f.pad(&format!("{text} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_multiply_up() {
        let lane: Rate<Lane, OneWay> = Rate::from_bytes(2_000_000_000);
        assert_eq!(lane.per_link(16), Rate::from_gb(32));
        let link: Rate<Link, OneWay> = Rate::from_gb(50);
        assert_eq!(link.per_device(18).per_domain(72).both_ways().gb(), 129_600.0);
        assert_eq!(link.both_ways().one_way(), link);
    }

    #[test]
    fn rates_print_scope_and_direction() {
        let rate: Rate<Link, OneWay> = Rate::from_mb(15_754);
        assert_eq!(rate.to_string(), "15.8 GB/s each way per link");
        assert_eq!(rate.per_device(1).per_domain(72).amount().to_string(), "1.13 TB/s");
        assert_eq!(Rate::<Link, OneWay>::from_gb(100).amount().to_string(), "100 GB/s");
        assert_eq!(Rate::<Link, OneWay>::ZERO.amount().to_string(), "0 MB/s");
        assert_eq!(Rate::<Link, OneWay>::from_gbit(400).amount().to_string(), "50 GB/s");
        assert_eq!(Rate::<Domain, BothWays>::from_gb(129_600).amount().to_string(), "130 TB/s");
    }

    #[test]
    fn overflowing_products_saturate() {
        let rate: Rate<Link, OneWay> = Rate::from_bytes(u64::MAX);
        assert_eq!(rate.per_device(18).both_ways(), Rate::from_bytes(u64::MAX));
    }
}
