//! How much longer the calls of a collective take on a machine than its calibrated constants say.
//!
//! The collectives of one machine err differently, above all beyond 64 KiB, and constants that follow one of them make the others worse. What
//! they leave of the error of a measured collective is corrected for that collective alone, on machines of the same nodes.

use std::collections::BTreeMap;

use crate::constants::Constants;
use crate::setup::{Operation, Setup};

const MIB: u64 = 1 << 20;

/// How near a measured size must be to count in full, in powers of two.
const REACH: f64 = 1.0;

/// The weight of no correction, in measured calls of the same size.
const NONE: f64 = 0.5;

/// Sizes up to which a correction holds on another number of nodes, and from which it does not. Longer calls are limited by links, whose
/// load depends on the number of nodes.
const ELSEWHERE: [u64; 2] = [MIB, 4 * MIB];

/// A collective on a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) library: String,
    pub(crate) collective: String,
    /// A node and its network, in words.
    pub(crate) node: String,
    pub(crate) nodes: u32,
}

impl Key {
    fn of(setup: &Setup, operation: Operation) -> Self {
        Self {
            library: setup.library.name().to_owned(),
            collective: operation.name().to_owned(),
            node: Setup { nodes: 1, missing_gpus: 0, ..setup.clone() }.name(),
            nodes: setup.nodes,
        }
    }

    /// Whether the other is the same collective on another number of nodes, with a network between them on both.
    fn is_scaled(&self, other: &Self) -> bool {
        Self { nodes: other.nodes, ..self.clone() } == *other && self.nodes > 1 && other.nodes > 1
    }
}

/// What predictions rest on: the shipped constants, or a calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibrated {
    /// The constants.
    pub constants: Constants,
    /// What they leave of the errors of measured collectives.
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
    /// By collective: `ln(measured / predicted)` of calls, by size.
    pub(crate) curves: BTreeMap<Key, Vec<(u64, f64)>>,
}

impl Corrections {
    /// From calls, each with its bytes and `measured / predicted`. Those with a forced algorithm or protocol say nothing about others.
    pub fn of<'s>(calls: impl Iterator<Item = (&'s Setup, Operation, u64, f64)>) -> Self {
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
        Self { curves: sums.into_iter().map(|(key, sums)| (key, curve(sums))).collect() }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.curves.is_empty()
    }

    /// By how much to multiply a predicted time: 1 for what was not measured.
    pub fn factor(&self, setup: &Setup, operation: Operation, bytes: u64) -> f64 {
        if is_forced(setup) {
            return 1.0;
        }
        let key = Key::of(setup, operation);
        if let Some(curve) = self.curves.get(&key) {
            return libm::exp(at(curve, bytes));
        }
        let apart = |other: &Key| (libm::log2(other.nodes.into()) - libm::log2(key.nodes.into())).abs();
        let nearest = self
            .curves
            .iter()
            .filter(|(other, _)| key.is_scaled(other))
            .min_by(|(one, _), (other, _)| apart(one).total_cmp(&apart(other)));
        nearest.map_or(1.0, |(_, curve)| libm::exp(elsewhere(bytes) * at(curve, bytes)))
    }

    /// For each collective that is corrected: its name, the nodes, and the smallest and largest factor.
    pub fn ranges(&self) -> Vec<(&str, u32, (f64, f64))> {
        let range = |curve: &[(u64, f64)]| {
            let factors = curve.iter().map(|(bytes, _)| libm::exp(at(curve, *bytes)));
            factors.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), factor| {
                (least.min(factor), most.max(factor))
            })
        };
        self.curves.iter().map(|(key, curve)| (key.collective.as_str(), key.nodes, range(curve))).collect()
    }
}

fn is_forced(setup: &Setup) -> bool {
    setup.algorithm.is_some() || setup.protocol.is_some()
}

/// The correction at a size, from those of measured sizes around it.
fn at(curve: &[(u64, f64)], bytes: u64) -> f64 {
    let place = |bytes: u64| libm::log2(bytes.max(1) as f64);
    let (mut sum, mut weights) = (0.0, NONE);
    for (size, log_ratio) in curve {
        let away = (place(*size) - place(bytes)) / REACH;
        let weight = libm::exp(-0.5 * away * away);
        (sum, weights) = (sum + weight * log_ratio, weights + weight);
    }
    sum / weights
}

/// The part of a correction that holds on another number of nodes.
fn elsewhere(bytes: u64) -> f64 {
    let [from, to] = ELSEWHERE.map(|bytes| libm::log2(bytes as f64));
    ((to - libm::log2(bytes.max(1) as f64)) / (to - from)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gpu;
    use crate::setup::{Intra, LibraryAlgorithm, Network};

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
        Corrections::of((3..34).map(|power| (&setup, Operation::AllReduce, 1 << power, 1.2)))
    }

    #[test]
    fn a_measured_collective_is_corrected_on_its_machine_alone() {
        let corrections = corrections();
        let of = |setup: &Setup, operation, bytes| corrections.factor(setup, operation, bytes);
        for bytes in [8, 1 << 20, 3 << 20, 1 << 30] {
            let factor = of(&cluster(2), Operation::AllReduce, bytes);
            assert!((1.15..1.2).contains(&factor), "{bytes}: {factor}");
        }
        assert_eq!(of(&cluster(2), Operation::AllGather, 1 << 20), 1.0);
        let other = Setup { gpu: gpu("a100"), ..cluster(2) };
        assert_eq!(of(&other, Operation::AllReduce, 1 << 20), 1.0);
        let forced = Setup { algorithm: Some(LibraryAlgorithm::Tree), ..cluster(2) };
        assert_eq!(of(&forced, Operation::AllReduce, 1 << 20), 1.0);
        // Far beyond the measured sizes nothing is known.
        assert!(of(&cluster(2), Operation::AllReduce, 1 << 44) < 1.001);
    }

    #[test]
    fn small_calls_are_corrected_on_other_numbers_of_nodes() {
        let corrections = corrections();
        let of = |nodes, bytes| corrections.factor(&cluster(nodes), Operation::AllReduce, bytes);
        assert_eq!(of(16, 8), of(2, 8));
        assert!(of(16, 2 << 20) > 1.05 && of(16, 2 << 20) < of(2, 2 << 20));
        assert_eq!(of(16, 64 << 20), 1.0);
        assert_eq!(of(1, 8), 1.0, "without a network, a call is another");
    }
}
