//! Messages between pairs of ranks, and copies.

use weftlink_plan::plan::Protocol;

use super::collective::{ACROSS, INSIDE};
use super::{Case, Estimate, Machine, Over};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::Operation;

impl Case<'_> {
    /// All-to-all: messages inside an island go through the ports, the others through the node's NICs.
    pub(super) fn all_to_all(&self) -> Estimate {
        let machine = self.machine;
        let (ranks, island) = (machine.ranks, machine.island);
        let case = self.as_messages(self.bytes / ranks);
        let mut estimate = case.launch();
        let enqueued = machine.messages_by_thread * self.constant(Name::MessageCallUs);
        estimate.host_us += enqueued;
        let message = self.bytes / ranks;
        let port = machine.port * self.messages_inside();
        Self::set_wire(&mut estimate, self.bytes * (island - 1.0) / ranks, port, Over::Port);
        // Half a hop for each peer: messages to several peers overlap.
        Self::set_hops(&mut estimate, &[(INSIDE, (island - 1.0).max(1.0) / 2.0, case.hop_inside(message))]);
        if machine.launched_by_thread == 0 {
            estimate.launch_us += enqueued;
        }
        if machine.islands > 1 {
            let remote = ranks - island;
            let hops = [
                (ACROSS, self.constant(Name::MessageHops), case.hop_across(message)),
                ("for the remote peers", remote * self.peer_across(), machine.hop_across_us),
            ];
            Self::set_hops(&mut estimate, &hops);
            let all = machine.nics * self.constant(self.all_to_all_share());
            // With PXN, the root of a scatter sends through the NIC of each receiver's rail.
            let (nics, over) = match self.operation == Operation::Scatter && machine.pxn {
                true => (all, Over::Nics),
                false => (all / island, Over::NicsOfGpu),
            };
            let moved = self.bytes * remote / ranks;
            if Self::transfer_us(moved, nics) > estimate.wire_us {
                Self::set_wire(&mut estimate, moved, nics, over);
            }
            return self.with_fill(estimate, self.constant(Name::FillRing));
        }
        self.with_fill(estimate, self.constant(Name::Fill))
    }

    /// A gather or a scatter: as an all-to-all of which only the root's part is left, in one direction.
    pub(super) fn at_root(&self) -> Estimate {
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
    pub(super) fn send_receive(&self) -> Estimate {
        let machine = self.machine;
        let case = self.as_messages(self.bytes);
        let mut estimate = case.launch();
        Self::set_hops(&mut estimate, &[(INSIDE, 1.0, case.hop_inside(self.bytes))]);
        let port = machine.port_messages * self.messages_inside();
        let inside = self.message_carries(false).min(port);
        let over_inside = if inside < port { Over::Lanes } else { Over::Port };
        if machine.islands == 1 {
            Self::set_wire(&mut estimate, self.bytes, inside, over_inside);
            return self.with_fill(estimate, self.constant(Name::Fill));
        }
        let nic = machine.nics / machine.lanes.min(machine.island);
        let hops = [(ACROSS, self.constant(Name::MessageHops), case.hop_across(self.bytes))];
        Self::set_hops(&mut estimate, &hops);
        let lanes = self.message_carries(true);
        let (rate, over) = match nic.min(lanes) {
            across if inside < across => (inside, over_inside),
            across if lanes < nic => (across, Over::Lanes),
            across => (across, Over::NicsOfGpu),
        };
        Self::set_wire(&mut estimate, self.bytes, rate, over);
        self.with_fill(estimate, self.constant(Name::FillRing))
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
    pub(super) fn copy(&self) -> Estimate {
        let (one_way, each_way) = self.machine.copies;
        let rate = if self.operation == Operation::CopyBothWays { 2.0 * each_way } else { one_way };
        Estimate {
            launch_us: self.constant(Name::LaunchUs),
            wire_us: Self::transfer_us(self.bytes, rate),
            ..self.zero()
        }
    }
}
