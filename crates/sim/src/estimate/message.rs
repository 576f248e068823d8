//! Messages between pairs of ranks, and copies.

use weftlink_plan::cost::{Form, Picoseconds, Posting};
use weftlink_plan::plan::Protocol;

use super::{Case, Machine, Over, Side, Through};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::Operation;

impl Case<'_> {
    /// All-to-all: messages inside an island go through the ports, the others through the node's NICs.
    pub(super) fn all_to_all(&self) -> (Form, Through) {
        let machine = self.machine;
        let (ranks, island) = (machine.ranks, machine.island);
        let message = self.bytes / ranks;
        let case = self.as_messages(message);
        let inside = Side {
            // Half a hop for each peer: messages to several peers overlap.
            hops: (island - 1.0).max(1.0),
            hop_us: case.hop_inside(message) / 2.0,
            bytes: self.bytes * (island - 1.0) / ranks,
            gbytes_per_second: machine.port * self.messages_inside(),
        };
        if machine.islands == 1 {
            return (case.form_of(inside, Side::default(), self.constant(Name::Fill)), Through::default());
        }
        let remote = ranks - island;
        let all = machine.nics * self.constant(self.all_to_all_share());
        // With PXN, the root of a scatter sends through the NIC of each receiver's rail.
        let (nics, over) = match self.operation == Operation::Scatter && machine.pxn {
            true => (all, Over::Nics),
            false => (all / island, Over::NicsOfGpu),
        };
        let across = Side {
            hops: self.constant(Name::MessageHops),
            hop_us: case.hop_across(message),
            bytes: self.bytes * remote / ranks,
            gbytes_per_second: nics,
        };
        let hop_us = machine.hops.across(Protocol::Ll).least.us();
        let posting = Picoseconds::from_us(remote * self.peer_across() * hop_us);
        // Hops inside are hidden behind those between islands.
        let inside = Side { hops: 0.0, ..inside };
        let form = Form {
            posting: Posting::After(posting),
            ..case.form_of(inside, across, self.constant(Name::FillRing))
        };
        (form, Through { bytes: [Over::Port, over], ..Through::default() })
    }

    /// A gather or a scatter: as an all-to-all of which only the root's part is left, in one direction.
    pub(super) fn at_root(&self) -> (Form, Through) {
        let one_way = Machine { port: self.machine.port_one_way, ..self.machine.clone() };
        Case { machine: &one_way, ..*self }.all_to_all()
    }

    /// Fraction of the links inside that messages get; PCIe slots lose nothing more.
    pub(super) fn messages_inside(&self) -> f64 {
        if self.machine.pcie { 1.0 } else { self.constant(Name::MessagesPart) }
    }

    /// The constant for the fraction of the network that all-to-all gets.
    pub(super) fn all_to_all_share(&self) -> Name {
        if self.machine.slingshot { Name::AllToAllSlingshot } else { Name::MessagesPart }
    }

    /// A message to the next rank: only the last rank of each node uses the network, and one message has few lanes.
    pub(super) fn send_receive(&self) -> (Form, Through) {
        let machine = self.machine;
        let case = self.as_messages(self.bytes);
        let port = machine.port_messages * self.messages_inside();
        let inside = Side {
            hops: 1.0,
            hop_us: case.hop_inside(self.bytes),
            bytes: self.bytes,
            gbytes_per_second: self.message_carries(false).min(port),
        };
        let over = |lanes: f64, links: f64, over: Over| if lanes < links { Over::Lanes } else { over };
        let over_inside = over(self.message_carries(false), port, Over::Port);
        if machine.islands == 1 {
            let form = case.form_of(inside, Side::default(), self.constant(Name::Fill));
            return (form, Through { bytes: [over_inside, Over::Nothing], ..Through::default() });
        }
        let nic = machine.nics / machine.lanes.min(machine.island);
        let across = Side {
            hops: self.constant(Name::MessageHops),
            hop_us: case.hop_across(self.bytes),
            bytes: self.bytes,
            gbytes_per_second: self.message_carries(true).min(nic),
        };
        let over_across = over(self.message_carries(true), nic, Over::NicsOfGpu);
        let form = case.form_of(Side { hops: 0.0, ..inside }, across, self.constant(Name::FillRing));
        (form, Through { bytes: [over_inside, over_across], ..Through::default() })
    }

    /// GB/s of the lanes of one message.
    pub(super) fn message_carries(&self, across: bool) -> f64 {
        let generation = self.machine.generation;
        if across {
            return self.constant(match generation {
                _ if self.machine.ranks >= self.constant(Name::MessageOneLaneRanks) => {
                    Name::MessageNetworkGBps
                }
                Generation::Blackwell => Name::MessageNetworkFewBlackwellGBps,
                _ => Name::MessageNetworkFewGBps,
            });
        }
        let lanes = (self.bytes / self.constant(Name::MessageLaneBytes))
            .min(self.constant(Name::MessageLanesMost))
            .max(self.constant(Name::MessageLanesLeast));
        let lane = self.constant(match generation {
            Generation::Pascal | Generation::Volta | Generation::Ampere => Name::MessageLaneAmpereGBps,
            Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::MessageLaneGBps,
        });
        lanes * lane
    }

    /// This call with the protocol of messages between pairs.
    fn as_messages(&self, message: f64) -> Self {
        let protocol =
            if message <= self.constant(Name::LlMessageBytes) { Protocol::Ll } else { Protocol::Simple };
        Self { protocol, ..*self }
    }

    /// Cost of each remote peer, in hops. Without PXN the sender posts each message separately.
    fn peer_across(&self) -> f64 {
        if self.machine.pxn || self.machine.pcie || self.machine.island == 1.0 {
            return self.constant(Name::AllToAllPeer);
        }
        1.0
    }

    /// A copy by copy engines; for both directions the bandwidth is their sum.
    pub(super) fn copy(&self) -> (Form, Through) {
        let (one_way, each_way) = self.machine.copies;
        let rate = if self.operation == Operation::CopyBothWays { 2.0 * each_way } else { one_way };
        let inside = Side { bytes: self.bytes, gbytes_per_second: rate, ..Side::default() };
        (self.form_of(inside, Side::default(), 0.0), Through::default())
    }
}
