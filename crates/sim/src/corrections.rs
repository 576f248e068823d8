//! How much longer the calls of a collective take on a machine than its calibrated constants say.
//!
//! The collectives of one machine err differently, above all beyond 64 KiB, and constants that follow one of them make the others worse. A
//! correction therefore multiplies the calls of one measured collective by the error that remains after the fit, on machines of the same nodes.
//! For other collectives, it undoes small changes beyond 64 KiB.

use std::collections::BTreeMap;

use crate::constants::Constants;
use crate::setup::{Operation, Setup};
use crate::what_if::WhatIf;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// How near a measured size must be to count in full, in powers of two.
const REACH: f64 = 1.0;

/// The weight of no correction, in measured sizes.
const NONE: f64 = 0.5;

/// Sizes up to which a correction holds on another number of nodes, and from which it does not. Longer calls are limited by links, whose
/// load depends on the number of nodes.
const ELSEWHERE: [u64; 2] = [MIB, 4 * MIB];

/// Sizes up to which moved constants count in full for collectives that were not measured, and from which small changes do not count.
const OTHERS: [u64; 2] = [64 * KIB, MIB];

/// Changes of the logarithm of a time up to this are undone there, and those of twice as much count in full: by that much the errors of two
/// collectives of one machine differ anyway.
const UNRELATED: f64 = 0.1;

/// A collective on a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) library: String,
    /// As measured; empty if the measurements do not say.
    pub(crate) version: String,
    pub(crate) collective: String,
    /// A node and its network, in words.
    pub(crate) node: String,
    pub(crate) nodes: u32,
    /// Nodes, or racks whose GPUs all reach each other without the network.
    pub(crate) islands: u32,
    pub(crate) ranks: u32,
}

impl Key {
    fn of(setup: &Setup, operation: Operation) -> Self {
        Self {
            library: setup.library.name().to_owned(),
            version: setup.version.map_or_else(String::new, |version| version.to_string()),
            collective: operation.name().to_owned(),
            node: Setup { nodes: 1, missing_gpus: 0, ..setup.clone() }.name(),
            nodes: setup.nodes,
            islands: setup.islands(),
            ranks: setup.ranks(),
        }
    }

    /// Whether the other is the same collective of the same library on nodes like these.
    fn is_like(&self, other: &Self) -> bool {
        let versions = [&self.version, &other.version];
        (&self.library, &self.collective, &self.node) == (&other.library, &other.collective, &other.node)
            && (versions[0] == versions[1] || versions.iter().any(|version| version.is_empty()))
    }

    /// How much of what was measured on the other holds here, for a size: everything on as many nodes, small calls on other numbers of
    /// nodes if a network is between them on both.
    fn part(&self, other: &Self, bytes: u64) -> f64 {
        match (self.nodes == other.nodes && self.ranks == other.ranks, self.islands > 1 && other.islands > 1)
        {
            (true, _) => 1.0,
            (false, true) => 1.0 - between(ELSEWHERE, bytes),
            (false, false) => 0.0,
        }
    }
}

/// What predictions rest on: the shipped constants, or a calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibrated {
    /// The constants.
    pub constants: Constants,
    /// The errors of measured collectives that remain after the fit.
    pub corrections: Corrections,
}

impl From<Constants> for Calibrated {
    fn from(constants: Constants) -> Self {
        Self { constants, corrections: Corrections::default() }
    }
}

/// The corrections of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections {
    /// The constants before the calibration.
    pub(crate) base: Constants,
    /// By collective: `ln(measured / predicted)` of calls, by size.
    pub(crate) curves: BTreeMap<Key, Vec<(u64, f64)>>,
}

impl Corrections {
    /// From calls, each with its bytes and `measured / predicted`. Those with a forced algorithm or protocol say nothing about others.
    pub fn of<'s>(base: &Constants, calls: impl Iterator<Item = (&'s Setup, Operation, u64, f64)>) -> Self {
        let mut sums: BTreeMap<Key, BTreeMap<u64, (f64, f64)>> = BTreeMap::new();
        for (setup, operation, bytes, ratio) in calls {
            let log_ratio = libm::log(ratio);
            if is_forced(setup) || !log_ratio.is_finite() {
                continue;
            }
            let sums = sums.entry(Key::of(setup, operation)).or_default();
            let (sum, calls) = sums.entry(bytes).or_default();
            (*sum, *calls) = (*sum + log_ratio, *calls + 1.0);
        }
        let curve = |sums: BTreeMap<u64, (f64, f64)>| {
            sums.into_iter().map(|(bytes, (sum, calls))| (bytes, sum / calls)).collect()
        };
        let curves = sums.into_iter().map(|(key, sums)| (key, curve(sums))).collect();
        Self { base: base.clone(), curves }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.curves.is_empty()
    }

    /// By how much to multiply a predicted time of a collective that was measured, there or on another number of nodes. What measurements on
    /// as many nodes do not say, those on the nearest number do.
    pub fn factor(&self, setup: &Setup, operation: Operation, bytes: u64) -> Option<f64> {
        if is_forced(setup) {
            return None;
        }
        let key = Key::of(setup, operation);
        let apart = |other: &Key| (libm::log2(other.ranks.into()) - libm::log2(key.ranks.into())).abs();
        let mut like: Vec<_> = self.curves.iter().filter(|(other, _)| key.is_like(other)).collect();
        like.retain(|(other, _)| key.part(other, 0) > 0.0);
        like.sort_by(|(one, _), (other, _)| apart(one).total_cmp(&apart(other)));
        let mut rest = 1.0;
        let log_ratio = like.iter().map(|(other, curve)| {
            let (mean, known) = at(curve, bytes);
            let part = known * key.part(other, bytes);
            let log_ratio = rest * part * mean;
            rest *= 1.0 - part;
            log_ratio
        });
        let log_ratio: f64 = log_ratio.sum();
        (!like.is_empty()).then(|| libm::exp(log_ratio))
    }

    /// For each collective that is corrected: the library with its collective and machine in words, and the smallest and largest factor.
    pub fn ranges(&self) -> Vec<(String, (f64, f64))> {
        let range = |curve: &[(u64, f64)]| {
            let at = |bytes: u64| at(curve, bytes);
            let factors =
                curve.iter().map(|(bytes, _)| at(*bytes)).map(|(mean, known)| libm::exp(mean * known));
            factors.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), factor| {
                (least.min(factor), most.max(factor))
            })
        };
        let name = |key: &Key| {
            let nodes = if key.nodes > 1 { format!("{} nodes of ", key.nodes) } else { String::new() };
            format!("{} on {nodes}{}", key.collective.replace('_', "-"), key.node)
        };
        self.curves.iter().map(|(key, curve)| (name(key), range(curve))).collect()
    }
}

/// Whether settings rule the library's own choice out, so that what was measured without them does not count.
fn is_forced(setup: &Setup) -> bool {
    setup.algorithm.is_some() || setup.protocol.is_some() || setup.what_if != WhatIf::default()
}

/// The correction at a size, as the mean of those of measured sizes around it, and how much is known: 0 to 1.
fn at(curve: &[(u64, f64)], bytes: u64) -> (f64, f64) {
    let place = |bytes: u64| libm::log2(bytes.max(1) as f64);
    let (mut sum, mut weights) = (0.0, 0.0);
    for (size, log_ratio) in curve {
        let away = (place(*size) - place(bytes)) / REACH;
        let weight = libm::exp(-0.5 * away * away);
        (sum, weights) = (sum + weight * log_ratio, weights + weight);
    }
    // Far from all measured sizes, all weights are 0.
    (if weights > 0.0 { sum / weights } else { 0.0 }, weights / (weights + NONE))
}

/// Where a size lies between two: 0 up to the first, 1 from the second.
fn between(sizes: [u64; 2], bytes: u64) -> f64 {
    let [from, to] = sizes.map(|bytes| libm::log2(bytes as f64));
    ((libm::log2(bytes.max(1) as f64) - from) / (to - from)).clamp(0.0, 1.0)
}

/// By how much to multiply the time of a collective that was not measured, which the constants of a calibration made `times` as long.
pub(crate) fn undone(times: f64, bytes: u64) -> f64 {
    let (change, slack) = (libm::log(times), UNRELATED * between(OTHERS, bytes));
    let kept = if slack > 0.0 { ((change.abs() - slack) / slack).clamp(0.0, 1.0) } else { 1.0 };
    libm::exp(change * (kept - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gpu;
    use crate::setup::{Intra, LibraryAlgorithm, Network, Version};

    fn cluster(nodes: u32) -> Setup {
        Setup {
            nodes,
            gpus_per_node: 8,
            network: Network::InfiniBand,
            nics_per_node: 8,
            nic_gbits_per_second: 400.0,
            ..Setup::pair(gpu("h100"), Intra::NvSwitch)
        }
    }

    /// All-reduces on two nodes take 20 % longer than predicted.
    fn corrections() -> Corrections {
        let setup = cluster(2);
        let calls = (3..34).map(|power| (&setup, Operation::AllReduce, 1 << power, 1.2));
        Corrections::of(&Constants::shipped(), calls)
    }

    #[test]
    fn a_measured_collective_is_corrected_on_its_machine_alone() {
        let corrections = corrections();
        let of = |setup: &Setup, operation, bytes| corrections.factor(setup, operation, bytes);
        for bytes in [8, 1 << 20, 3 << 20, 1 << 30] {
            let factor = of(&cluster(2), Operation::AllReduce, bytes).unwrap();
            assert!((1.15..1.2).contains(&factor), "{bytes}: {factor}");
        }
        assert_eq!(of(&cluster(2), Operation::AllGather, 1 << 20), None);
        let other = Setup { gpu: gpu("a100"), ..cluster(2) };
        assert_eq!(of(&other, Operation::AllReduce, 1 << 20), None);
        let older = Setup { version: Some(Version { major: 2, minor: 10 }), ..cluster(2) };
        let of_version = |measured: &Setup, asked: &Setup| {
            let calls = [(measured, Operation::AllReduce, 1 << 20, 1.2)].into_iter();
            Corrections::of(&Constants::shipped(), calls).factor(asked, Operation::AllReduce, 1 << 20)
        };
        let newer = Setup { version: Some(Version { major: 2, minor: 28 }), ..cluster(2) };
        assert_eq!(of_version(&newer, &older), None);
        assert!(of_version(&newer, &cluster(2)) > Some(1.1) && of_version(&newer, &newer) > Some(1.1));
        let symmetric = Setup { what_if: WhatIf { symmetric: true, ..WhatIf::default() }, ..cluster(2) };
        assert_eq!(of(&symmetric, Operation::AllReduce, 1 << 20), None);
        let forced = Setup { algorithm: Some(LibraryAlgorithm::Tree), ..cluster(2) };
        assert_eq!(of(&forced, Operation::AllReduce, 1 << 20), None);
        // Far beyond the measured sizes nothing is known.
        assert!(of(&cluster(2), Operation::AllReduce, 1 << 44).unwrap() < 1.001);
    }

    #[test]
    fn small_calls_are_corrected_on_other_numbers_of_nodes() {
        let corrections = corrections();
        let of = |nodes, bytes| corrections.factor(&cluster(nodes), Operation::AllReduce, bytes);
        assert_eq!(of(16, 8), of(2, 8));
        assert!(of(16, 2 << 20) > Some(1.05) && of(16, 2 << 20) < of(2, 2 << 20));
        assert_eq!(of(16, 64 << 20), Some(1.0));
        assert_eq!(of(1, 8), None, "without a network, a call is another");
        // Few calls on four nodes do not hide what two nodes say about others.
        let (two, four) = (cluster(2), cluster(4));
        let small = (3..34).map(|power| (&two, Operation::AllReduce, 1 << power, 1.2));
        let both = Corrections::of(
            &Constants::shipped(),
            small.chain([(&four, Operation::AllReduce, 1 << 30, 1.1)]),
        );
        let small = both.factor(&four, Operation::AllReduce, 1 << 10).unwrap();
        let large = both.factor(&four, Operation::AllReduce, 1 << 30).unwrap();
        assert!((1.15..1.2).contains(&small) && (1.05..1.1).contains(&large), "{small} {large}");
    }

    #[test]
    fn small_changes_of_large_calls_of_other_collectives_are_undone() {
        let now = |times: f64, bytes| times * undone(times, bytes);
        for bytes in [8, 64 << 10] {
            assert_eq!(now(1.05, bytes), 1.05, "{bytes}");
        }
        for bytes in [1 << 20, 1 << 30] {
            assert!(
                (now(1.05, bytes) - 1.0).abs() < 1e-9 && (now(0.95, bytes) - 1.0).abs() < 1e-9,
                "{bytes}"
            );
            assert!((now(2.0, bytes) - 2.0).abs() < 1e-9 && (now(0.5, bytes) - 0.5).abs() < 1e-9, "{bytes}");
            assert!((1.0..1.16).contains(&now(1.16, bytes)), "{bytes}");
        }
    }
}
