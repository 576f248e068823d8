//! Messages between pairs of ranks, and copies.

use weftlink_plan::plan::Protocol;

use super::{Case, Estimate};
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
        estimate.wire_us = Self::transfer_us(self.bytes * (island - 1.0) / ranks, port);
        // Half a hop for each peer: messages to several peers overlap.
        estimate.hops_us = case.hop_inside(message) * (island - 1.0).max(1.0) / 2.0;
        if machine.launched_by_thread == 0 {
            estimate.launch_us += enqueued;
        }
        if machine.islands > 1 {
            let remote = ranks - island;
            estimate.hops_us =
                case.message_across(message) + remote * machine.hop_across_us * self.peer_across();
            let nics = machine.nics * self.constant(self.all_to_all_share()) / island;
            estimate.wire_us = estimate.wire_us.max(Self::transfer_us(self.bytes * remote / ranks, nics));
            return self.with_fill(estimate, self.constant(Name::FillRing));
        }
        self.with_fill(estimate, self.constant(Name::Fill))
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
        estimate.hops_us = case.hop_inside(self.bytes);
        let port = machine.port_messages * self.messages_inside();
        let inside = self.message_carries(false).min(port);
        if machine.islands == 1 {
            estimate.wire_us = Self::transfer_us(self.bytes, inside);
            return self.with_fill(estimate, self.constant(Name::Fill));
        }
        let nic = machine.nics / machine.lanes.min(machine.island);
        estimate.hops_us = case.message_across(self.bytes);
        estimate.wire_us = Self::transfer_us(self.bytes, nic.min(self.message_carries(true)).min(inside));
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

    /// Latency of a message between islands to a receiver that is not waiting yet.
    fn message_across(&self, message: f64) -> f64 {
        self.constant(Name::MessageHops) * self.hop_across(message)
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
