//! Choices by the closed form of the simulator.
//!
//! The machine is that of a fabric, of which the communicator uses its nodes and, on each, as many GPUs as it has ranks there. NCCL's own
//! tuner compares estimates that hold for all networks; here the actual rates and latencies of the machine are compared, as `weft sim` does.

use weftlink_fabric::Fabric;
use weftlink_plan::plan::Protocol;
use weftlink_sim::Setup;
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::estimate::{Machine, View, estimate};
use weftlink_sim::setup::{Intra, LibraryAlgorithm, Network, Operation};

use crate::classes::Candidate;
use crate::costs::Way;

/// The operations of the functions that a tuner is asked about, by their numbers.
const OPERATIONS: [Operation; 5] = [
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllReduce,
];

/// The algorithms, by their numbers.
const ALGORITHMS: [LibraryAlgorithm; 7] = [
    LibraryAlgorithm::Tree,
    LibraryAlgorithm::Ring,
    LibraryAlgorithm::CollnetDirect,
    LibraryAlgorithm::CollnetChain,
    LibraryAlgorithm::Nvls,
    LibraryAlgorithm::NvlsTree,
    LibraryAlgorithm::Pat,
];

/// The protocols, by their numbers.
const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// The model of a communicator.
#[derive(Debug)]
pub(crate) struct Model {
    setup: Setup,
    machine: Machine,
    calibrated: Calibrated,
}

impl Model {
    /// The model of a communicator with that many ranks on that many nodes of a fabric.
    pub(crate) fn new(
        setup: &Setup,
        calibrated: Calibrated,
        ranks: usize,
        nodes: usize,
    ) -> Result<Self, String> {
        let setup = part(setup, ranks, nodes)?;
        let machine = Machine::new(&calibrated.constants, &setup);
        Ok(Self { setup, machine, calibrated })
    }

    /// The machine, in words.
    pub(crate) fn name(&self) -> String {
        self.setup.name()
    }

    /// Whether LL128 is safe there, by the rules of NCCL.
    pub(crate) fn supports_ll128(&self) -> bool {
        self.machine.ll128
    }

    /// All ways for a call of a function, the fastest first.
    pub(crate) fn rank(&self, function: usize, bytes: u64) -> Box<[Candidate]> {
        let Some(&operation) = OPERATIONS.get(function) else { return Box::new([]) };
        let factor = self.calibrated.corrections.factor(&self.setup, operation, bytes).unwrap_or(1.0);
        let mut candidates = Vec::new();
        for (algorithm, &known) in ALGORITHMS.iter().enumerate() {
            for (protocol, &with) in PROTOCOLS.iter().enumerate() {
                if (is_simple_only(known) && with != Protocol::Simple) || self.lacks(known) {
                    continue;
                }
                let constants = &self.calibrated.constants;
                let cost =
                    estimate(constants, &self.machine, View::Actual, operation, bytes as f64, known, with);
                let time_us = cost.map(|cost| (cost.total_us() * factor) as f32);
                if let Some(time_us) = time_us.filter(|time| time.is_finite() && *time >= 0.0) {
                    candidates.push(Candidate { way: Way { algorithm, protocol }, time_us });
                }
            }
        }
        // The order of equal times must be the same on all ranks: the sort is stable.
        candidates.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
        candidates.into()
    }
}

impl Model {
    /// Whether there is no such algorithm: switches of a network reduce between nodes.
    fn lacks(&self, algorithm: LibraryAlgorithm) -> bool {
        let is_of_network =
            matches!(algorithm, LibraryAlgorithm::CollnetDirect | LibraryAlgorithm::CollnetChain);
        is_of_network && self.setup.network == Network::None
    }
}

fn is_simple_only(algorithm: LibraryAlgorithm) -> bool {
    !matches!(algorithm, LibraryAlgorithm::Ring | LibraryAlgorithm::Tree)
}

/// The setup of a fabric, with the vendor's library.
pub(crate) fn survey(fabric: &Fabric) -> Result<Setup, String> {
    Setup::of(fabric).map_err(|error| format!("{}: {error}", fabric.name()))
}

/// The part of a machine that a communicator uses.
fn part(setup: &Setup, ranks: usize, nodes: usize) -> Result<Setup, String> {
    let number = |number: usize| u32::try_from(number).ok().filter(|number| *number > 0);
    let (Some(ranks), Some(nodes)) = (number(ranks), number(nodes)) else {
        return Err(format!("{ranks} ranks on {nodes} nodes"));
    };
    let per_node = ranks.div_ceil(nodes);
    if ranks < 2 || per_node > setup.gpus_per_node {
        let has = setup.gpus_per_node;
        return Err(format!(
            "it has {has} GPUs per node, and the communicator {ranks} ranks on {nodes} nodes"
        ));
    }
    let mut part = Setup { nodes, gpus_per_node: per_node, ..setup.clone() };
    part.missing_gpus = u64::from(per_node) * u64::from(nodes) - u64::from(ranks);
    if per_node == 1 && nodes > 1 && setup.intra != Intra::Nvl72 {
        part.intra = Intra::None;
    }
    if nodes == 1 {
        (part.network, part.nics_per_node, part.nic_gbits_per_second) = (Network::None, 0, 0.0);
    } else if part.nics_per_node > 0 {
        // Each NIC belongs to the GPUs near it.
        part.nics_per_node = (setup.nics_per_node * per_node).div_ceil(setup.gpus_per_node).max(1);
    }
    part.check().map_err(|why| format!("{why}, as in WEFT_TUNER_FABRIC=\"2x hgx-h100 + 8x ndr\""))?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spec: &str, ranks: usize, nodes: usize) -> Result<Model, String> {
        let setup = survey(&weftlink_fabric::resolve(spec).unwrap())?;
        Model::new(&setup, Calibrated::default(), ranks, nodes)
    }

    #[test]
    fn a_communicator_uses_a_part_of_a_machine() {
        for (spec, ranks, nodes, expected) in [
            ("hgx-h100", 8, 1, "8 x h100 (nvswitch)"),
            ("hgx-h100", 2, 1, "2 x h100 (nvswitch)"),
            ("4x hgx-h100 + 8x ndr", 8, 1, "8 x h100 (nvswitch)"),
            ("2x hgx-h100 + 8x ndr", 32, 4, "4 nodes of 8 x h100 (nvswitch), 8 x ib 400 Gb/s"),
            ("2x hgx-h100 + 8x ndr", 4, 2, "2 nodes of 2 x h100 (nvswitch), 2 x ib 400 Gb/s"),
        ] {
            assert_eq!(of(spec, ranks, nodes).unwrap().name(), expected, "{spec}");
        }
        for (spec, ranks, nodes, why) in [
            ("hgx-h100", 16, 2, "network between them"),
            ("hgx-h100", 9, 1, "it has 8 GPUs per node"),
            ("hgx-h100", 1, 1, "8 GPUs per node"),
            ("hgx-h100", 0, 0, "0 ranks"),
        ] {
            let error = of(spec, ranks, nodes).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn small_calls_use_ll_and_large_ones_bandwidth() {
        let model = of("hgx-h100", 8, 1).unwrap();
        let best = |bytes| model.rank(4, bytes)[0].way;
        assert_eq!(best(1 << 10).protocol, 0, "LL");
        assert_eq!(best(1 << 30), Way { algorithm: 4, protocol: 2 }, "NVLS");
        assert!(model.supports_ll128());
    }

    #[test]
    fn ways_are_ranked_and_exist() {
        for (spec, ranks, nodes) in
            [("hgx-h100", 8, 1), ("2x hgx-h100 + 8x ndr", 16, 2), ("2x-rtx4090", 2, 1)]
        {
            let model = of(spec, ranks, nodes).unwrap();
            for function in 0..5 {
                for bytes in [1, 4096, 1 << 20, 1 << 32] {
                    let ways = model.rank(function, bytes);
                    assert!(ways.windows(2).all(|pair| pair[0].time_us <= pair[1].time_us));
                    assert!(ways.iter().all(|one| one.way.algorithm < 7 && one.way.protocol < 3));
                    assert!(ways.iter().any(|one| one.way.algorithm == 1), "rings do everything");
                }
            }
            assert!(model.rank(5, 1).is_empty() && model.rank(usize::MAX, 1).is_empty());
        }
    }
}
