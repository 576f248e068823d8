//! GPUs with direct links: a multigraph whose edges are wires.
//!
//! A wire carries data one way; a link is a wire in each direction. All wires of a mesh have the same rate: the greatest
//! common divisor of the rates between GPUs. So the P100's single links and the bundles of six between GH200s both count
//! as one wire.
//!
//! Deliberately absent: switches, and PCIe beside the links, which no library uses in addition.

use weftlink_fabric::{DeviceId, Fabric};

/// The largest mesh of which every cut is tried.
pub const EXACT_RANKS_MAX: usize = 16;

/// The largest mesh of which every partition is tried: 21,147 of nine ranks.
const PARTITIONED_RANKS_MAX: usize = 9;

/// The maximum number of wires from one rank to another; with a smaller common divisor, rates are rounded.
const BUNDLE_WIRES_MAX: u64 = 64;

/// Ranks with direct links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    ranks: usize,
    /// Wires from each rank to each, row by row.
    wires: Vec<u32>,
    wire_bytes_per_second: u64,
}

/// A fraction of wires: `count / parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wires {
    /// The numerator.
    pub count: u64,
    /// The denominator.
    pub parts: u64,
}

/// Rings or trees side by side on a mesh, each using an equal part of its wires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing<T> {
    /// The rings or trees.
    pub items: Vec<T>,
    /// Each uses `1 / split` of a wire.
    pub split: u32,
}

impl Mesh {
    /// The direct links between some GPUs, numbered in the given order; nothing if they have none.
    pub fn of(fabric: &Fabric, gpus: &[DeviceId]) -> Option<Self> {
        Self::rounded(fabric, gpus, |width, unit| width / unit)
    }

    /// The same with fractions of wires rounded up: cuts must not look narrower than they are.
    pub(super) fn rounded_up(fabric: &Fabric, gpus: &[DeviceId]) -> Option<Self> {
        Self::rounded(fabric, gpus, u64::div_ceil)
    }

    fn rounded(fabric: &Fabric, gpus: &[DeviceId], round: fn(u64, u64) -> u64) -> Option<Self> {
        let mut rates = vec![0_u64; gpus.len() * gpus.len()];
        let mut counts = rates.clone();
        let mut numbers: Vec<(DeviceId, usize)> = gpus.iter().copied().zip(0..).collect();
        numbers.sort_unstable();
        for (row, gpu) in gpus.iter().enumerate() {
            for link in fabric.links_from(*gpu).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric()) {
                if let Ok(found) = numbers.binary_search_by_key(&link.target, |(id, _)| *id) {
                    let cell = row * gpus.len() + numbers[found].1;
                    rates[cell] += fabric.limit(link).bytes_per_second();
                    counts[cell] += u64::from(link.count);
                }
            }
        }
        // If rates are unknown, the number of links still is.
        let known = counts.iter().zip(&rates).all(|(count, rate)| *count == 0 || *rate > 0);
        let widths = if known { rates } else { counts };
        let unit = widths.iter().copied().fold(0, common_part);
        let widest = widths.iter().copied().max().filter(|widest| *widest > 0)?;
        let unit = unit.max(widest.div_ceil(BUNDLE_WIRES_MAX));
        Some(Self {
            ranks: gpus.len(),
            wires: widths.iter().map(|width| round(*width, unit) as u32).collect(),
            wire_bytes_per_second: if known { unit } else { 0 },
        })
    }

    /// Ranks with links `(a, b, count)`, each of `bytes_per_second` each way.
    pub fn linked(ranks: usize, links: &[(usize, usize, u32)], bytes_per_second: u64) -> Self {
        let mut wires = vec![0; ranks * ranks];
        for &(a, b, count) in links {
            wires[a * ranks + b] += count;
            wires[b * ranks + a] += count;
        }
        Self { ranks, wires, wire_bytes_per_second: bytes_per_second }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Wires from one rank to another.
    pub fn wires(&self, source: usize, target: usize) -> u32 {
        self.wires[source * self.ranks + target]
    }

    /// The number of all wires; a link counts twice, once each way.
    pub fn wire_count(&self) -> u64 {
        self.wires.iter().map(|count| u64::from(*count)).sum()
    }

    /// The rate of a wire; zero if it is unknown.
    pub fn wire_bytes_per_second(&self) -> u64 {
        self.wire_bytes_per_second
    }

    /// Wires out of a set of ranks, given as bits.
    pub fn out_of(&self, set: u32) -> u64 {
        let inside = |rank: &usize| set >> *rank & 1 == 1;
        let leaving = |source: usize| {
            let outside = (0..self.ranks).filter(|target| !inside(target));
            outside.map(move |target| u64::from(self.wires(source, target))).sum::<u64>()
        };
        (0..self.ranks).filter(inside).map(leaving).sum()
    }

    /// The wires of the narrowest cut, which limits rings and broadcasts. For many ranks, only cuts around single ranks count.
    pub fn least_cut(&self) -> u64 {
        if self.ranks > EXACT_RANKS_MAX {
            let degree =
                |wires: &dyn Fn(usize) -> u32| (0..self.ranks).map(|peer| u64::from(wires(peer))).sum();
            let least = |rank: usize| -> u64 {
                let out: u64 = degree(&|peer| self.wires(rank, peer));
                out.min(degree(&|peer| self.wires(peer, rank)))
            };
            return (0..self.ranks).map(least).min().unwrap_or(0);
        }
        let all = (1_u32 << self.ranks) - 1;
        (1..all).map(|set| self.out_of(set)).min().unwrap_or(0)
    }

    /// The bound of an all-reduce, in wires, and the partition that gives it: k parts send each other 2(k-1) times the data.
    /// Tries all partitions of up to nine ranks, beyond that those with one part of several ranks.
    pub fn all_reduce_bound(&self) -> Option<(Wires, Vec<u32>)> {
        let mut best: Option<(Wires, Vec<u32>)> = None;
        let mut consider = |parts: &[u32]| {
            let bound = Wires {
                count: parts.iter().map(|part| self.out_of(*part)).sum(),
                parts: 2 * (parts.len() as u64 - 1),
            };
            if best.as_ref().is_none_or(|(known, _)| bound.is_less(*known)) {
                best = Some((bound, parts.to_vec()));
            }
        };
        let singles =
            |set: u32| (0..self.ranks as u32).map(|rank| 1 << rank).filter(move |bit| set & bit != 0);
        let all = if self.ranks < 32 { (1_u32 << self.ranks) - 1 } else { return None };
        match self.ranks {
            0 | 1 => {}
            2..=PARTITIONED_RANKS_MAX => partitions(self.ranks, &mut Vec::new(), 0, &mut consider),
            _ => consider(&singles(all).collect::<Vec<_>>()),
        }
        if (PARTITIONED_RANKS_MAX + 1..=EXACT_RANKS_MAX).contains(&self.ranks) {
            for set in 1..all {
                consider(&std::iter::once(set).chain(singles(all & !set)).collect::<Vec<_>>());
                consider(&[set, all & !set]);
            }
        }
        best
    }
}

impl Wires {
    /// The rate of these wires.
    pub fn times(self, bytes_per_second: u64) -> u64 {
        let bytes = u128::from(self.count) * u128::from(bytes_per_second) / u128::from(self.parts.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The share of `whole` in thousandths, rounded down.
    pub fn thousandths_of(self, whole: Self) -> u64 {
        let (own, other) = (u128::from(self.count) * u128::from(whole.parts), self.parts_of(whole));
        u64::try_from(own * 1000 / other.max(1)).unwrap_or(u64::MAX)
    }

    /// Whether this is fewer than the other.
    pub fn is_less(self, other: Self) -> bool {
        u128::from(self.count) * u128::from(other.parts) < self.parts_of(other)
    }

    fn parts_of(self, other: Self) -> u128 {
        u128::from(other.count) * u128::from(self.parts)
    }
}

/// Calls `consider` with every partition of `ranks`, `placed` of which are in `parts` already.
fn partitions(ranks: usize, parts: &mut Vec<u32>, placed: usize, consider: &mut impl FnMut(&[u32])) {
    if placed == ranks {
        if parts.len() > 1 {
            consider(parts);
        }
        return;
    }
    for part in 0..parts.len() {
        parts[part] |= 1 << placed;
        partitions(ranks, parts, placed + 1, consider);
        parts[part] &= !(1 << placed);
    }
    parts.push(1 << placed);
    partitions(ranks, parts, placed + 1, consider);
    parts.pop();
}

fn common_part(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_part(b, a % b) }
}
