//! Rings, trees, NVLS and reductions in the network.

use weftlink_plan::Work;
use weftlink_plan::cost::{Flow, Form};

use super::{Case, Over, Side, Through, View, whole};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::{LibraryAlgorithm, Operation};

/// What hops of NVLS go through.
const SWITCHES: &str = "through the NVSwitches";

impl Case<'_> {
    /// Rings, one for each lane: `2(n-1)` steps for an all-reduce, `n-1` for an all-gather, a reduce-scatter or a rooted collective. A
    /// port sends as much as it receives; so do the NICs of a node, over all rings.
    pub(super) fn ring(&self) -> (Form, Through) {
        let machine = self.machine;
        let ranks = machine.ranks;
        let rounds = if self.operation == Operation::AllReduce { 2.0 } else { 1.0 };
        let rooted = self.is_rooted();
        let steps = rounds * (ranks - 1.0);
        let hops_across = match (machine.islands, rooted || self.view == View::Tuner) {
            (1, _) => 0.0,
            // Tuners use this count for all collectives.
            (islands, true) => rounds * f64::from(islands - 1),
            // The data with the longest path leaves its island in the first step.
            (_, false) => 1.0 + ((steps - 1.0) / machine.island).floor(),
        };
        let (message, moved) =
            if rooted { (self.bytes, self.bytes) } else { (self.bytes / ranks, steps * self.bytes / ranks) };
        let on_the_wire = self.wire_fraction(LibraryAlgorithm::Ring);
        let is_alone = machine.island <= 1.0 && machine.islands > 1;
        let inside = Side {
            hops: steps - hops_across,
            hop_us: self.step_inside(message, LibraryAlgorithm::Ring),
            bytes: if is_alone { 0.0 } else { moved * on_the_wire },
            gbytes_per_second: self.ring_port(),
        };
        if machine.islands == 1 {
            let form = self.form_of(inside, Side::default(), self.constant(Name::Fill));
            return (form, Through::default());
        }
        let across = Side {
            hops: hops_across,
            hop_us: self.hop_across(message),
            bytes: moved * on_the_wire,
            gbytes_per_second: self.nics(machine.lanes),
        };
        // While data waits for the narrowest link, other data crosses the faster links. Tuners ignore that this hides hops.
        let hides = !rooted && !machine.waits_across && self.view == View::Actual;
        let form = Form {
            message: whole(message * on_the_wire),
            flow: if hides { Flow::Ring } else { Flow::Steps },
            ..self.form_of(inside, across, self.constant(Name::FillRing))
        };
        (form, self.through_lanes())
    }

    /// Bytes through ports, and through NICs or the lanes that feed them.
    pub(super) fn through_lanes(&self) -> Through {
        let bytes = [Over::Port, self.nics_or_lanes(self.machine.lanes)];
        Through { bytes, ..Through::default() }
    }

    /// GB/s of a GPU's port that rings use. Rooted collectives send data one way only; rings that leave the island divide its links
    /// better than rings that close inside it.
    pub(super) fn ring_port(&self) -> f64 {
        let machine = self.machine;
        let fraction = self.port() / machine.port;
        match (self.is_rooted(), machine.islands) {
            (true, _) => machine.port_one_way * fraction,
            (false, 1) => machine.port * fraction,
            (false, _) => machine.port_across * fraction,
        }
    }

    /// Two trees over the nodes, up and down, with chains inside. A GPU in a chain forwards all data twice. Between two nodes all data
    /// crosses once each way; between more nodes twice, since a node has two children in one tree and is a child in the other.
    pub(super) fn tree(&self) -> (Form, Through) {
        let machine = self.machine;
        let bytes = self.bytes * self.wire_fraction(LibraryAlgorithm::Tree);
        let inside = Side {
            hops: 2.0 * (machine.island - 1.0),
            hop_us: self.hop_inside(self.bytes),
            bytes: 2.0 * bytes,
            gbytes_per_second: 2.0 * self.tree_inside(),
        };
        let through = |across| Through { bytes: [Over::Chain, across], ..Through::default() };
        if machine.islands == 1 {
            let form = self.form_of(inside, Side::default(), self.constant(Name::Fill));
            return (form, through(Over::Nothing));
        }
        let lane = self.tree_lane() * machine.lanes / 2.0;
        let over = if lane <= self.tree_across() { Over::Lanes } else { self.nics_or_lanes(machine.lanes) };
        let times = self.times_across();
        let across = Side {
            hops: 2.0 * machine.levels,
            hop_us: self.hop_across(self.bytes),
            bytes: times * bytes,
            gbytes_per_second: times * self.tree_across(),
        };
        (self.form_of(inside, across, self.fill_network()), through(over))
    }

    /// GB/s of a call's bytes in a chain inside a node, where a GPU forwards data up and down.
    pub(super) fn tree_inside(&self) -> f64 {
        self.port() * self.constant(Name::TreeInside) / 2.0
    }

    /// GB/s of a call's bytes between nodes.
    pub(super) fn tree_across(&self) -> f64 {
        let machine = self.machine;
        let lane = self.tree_lane() * machine.lanes / 2.0;
        let part = match self.view {
            View::Tuner => self.constant(Name::TreeInside),
            View::Actual => self.tree_far(),
        };
        let nics = self.nics(machine.lanes) * part / self.times_across();
        lane.min(nics)
    }

    /// Fraction of the NICs' bandwidth that deep trees get.
    pub(super) fn tree_far(&self) -> f64 {
        let machine = self.machine;
        let near = self.constant(Name::TreeNearLevels);
        if machine.slingshot && machine.levels > near {
            libm::pow(self.constant(Name::TreeSlingshotFar), machine.levels - near)
        } else {
            1.0
        }
    }

    /// How often a tree's bytes cross a node's NICs each way. With sockets the CPU carries one direction at a time.
    pub(super) fn times_across(&self) -> f64 {
        if self.machine.islands == 2 && !self.machine.sockets { 1.0 } else { 2.0 }
    }

    /// GB/s of a tree's lane, in and out together.
    pub(super) fn tree_lane(&self) -> f64 {
        let lane = self.constant(match self.machine.generation {
            Generation::Pascal | Generation::Volta | Generation::Ampere => Name::TreeLaneAmpereGBps,
            Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::TreeLaneHopperGBps,
        });
        if self.machine.islands == 2 { lane } else { lane * self.constant(Name::TreeLaneMany) }
    }

    /// NVLS: the switch reduces all GPUs' data and multicasts the result; each GPU reads everything once and writes its share.
    pub(super) fn nvls(&self) -> (Form, Through) {
        (
            self.form_of(self.switched(), Side::default(), self.constant(Name::FillNvls)),
            Self::through_switches(Over::Nothing),
        )
    }

    /// A reduction of all data by the switches.
    fn switched(&self) -> Side {
        Side {
            hops: 1.0,
            hop_us: self.nvls_hops(),
            bytes: self.bytes * (1.0 + 1.0 / self.machine.island),
            gbytes_per_second: self.machine.nvls,
        }
    }

    fn through_switches(across: Over) -> Through {
        let [_, between] = Through::default().hops;
        Through { hops: [SWITCHES, between], bytes: [Over::Switches, across] }
    }

    /// NVLS for all-gather and reduce-scatter, at a ring's bandwidth.
    pub(super) fn nvls_parts(&self) -> (Form, Through) {
        let (ring, through) = self.ring();
        let switched = self.form_of(self.switched(), Side::default(), 0.0);
        if switched.hop_inside >= ring.latency() {
            return (ring, through);
        }
        let work = Work { hops_inside: 1, hops_across: 0, ..ring.work };
        let form = Form { work, hop_inside: switched.hop_inside, flow: Flow::Steps, ..ring };
        (form, Through { hops: [SWITCHES; 2], ..through })
    }

    pub(crate) fn nvls_hops(&self) -> f64 {
        2.0 * self.machine.hops.nvls(whole(self.machine.island) as u32).least.us()
    }

    /// NVLS inside, trees between islands: every GPU's share goes up and down its own tree.
    pub(super) fn nvls_tree(&self) -> (Form, Through) {
        let machine = self.machine;
        let times = self.times_across();
        let across = Side {
            hops: 2.0 * machine.levels,
            hop_us: self.hop_switched(),
            bytes: self.bytes * times,
            gbytes_per_second: self.nvls_across() * times,
        };
        let is_in_lanes = self.nvls_tree_lanes() < machine.nics / times;
        let over = if is_in_lanes { Over::Lanes } else { Over::Nics };
        let form = self.form_of(self.switched(), across, self.constant(Name::FillNvls));
        (form, Self::through_switches(over))
    }

    /// GB/s of a call's bytes through the NVSwitches.
    pub(super) fn nvls_inside(&self) -> f64 {
        self.machine.nvls / (1.0 + 1.0 / self.machine.island)
    }

    /// GB/s of a call's bytes between islands.
    pub(super) fn nvls_across(&self) -> f64 {
        (self.machine.nics / self.times_across()).min(self.nvls_tree_lanes())
    }

    /// GB/s of all lanes of an NVLSTree.
    pub(super) fn nvls_tree_lanes(&self) -> f64 {
        let machine = self.machine;
        let mut lane = self.constant(match machine.generation {
            Generation::Blackwell => Name::NvlsTreeLaneBlackwellGBps,
            _ => Name::NvlsTreeLaneHopperGBps,
        });
        if machine.islands > 2 {
            lane *= self.constant(Name::NvlsTreeLaneMany);
        }
        lane * machine.lanes * machine.ranks / (2.0 * (machine.ranks - 1.0))
    }

    /// Network switches reduce (SHARP).
    pub(super) fn collnet(&self, share: Name) -> (Form, Through) {
        let inside = Side {
            hops: 2.0 * (self.machine.island - 1.0).max(1.0),
            hop_us: self.hop_inside(self.bytes),
            ..Side::default()
        };
        let across = Side {
            hops: 2.0,
            hop_us: self.hop_switched(),
            bytes: self.bytes,
            gbytes_per_second: self.machine.nics * self.collnet_share(share),
        };
        (self.form_of(inside, across, self.fill_network()), Through::default())
    }

    /// Fraction of the NICs' bandwidth that reductions in the network get.
    pub(super) fn collnet_share(&self, share: Name) -> f64 {
        self.constant(share) / self.constant(Name::NetworkRdma)
    }
}
