//! One rank's ports of all FIFOs of its communicator, which plans share.

// Operands are addresses in mapped memory and in the caller's buffers.
#![allow(unsafe_code)]

use std::collections::BTreeSet;

use weftlink_shm::memory::SharedMemory;

use crate::layout::{Fifos, Layout};
use crate::transport::{
    Delivery, End, Fault, PACKET_WORDS, PacketReceivePort, PacketSendPort, Port, ReceivePort, SendPort,
    Transports,
};

/// The ports, and the buffers that messages need.
pub(crate) struct Ports {
    pub(super) fifos: Fifos,
    /// This rank's end of each FIFO, where it has one.
    pub(super) ends: Vec<Option<End>>,
    pub(super) senders: Vec<SendPort>,
    pub(super) receivers: Vec<ReceivePort>,
    pub(super) packet_senders: Vec<PacketSendPort>,
    pub(super) packet_receivers: Vec<PacketReceivePort>,
    /// The packet to send next.
    pub(super) packet: Box<[u64; PACKET_WORDS]>,
    /// The operands of a step, with room for those of any.
    pub(super) sources: Vec<*const u8>,
    pub(super) targets: Vec<*mut u8>,
    /// Buffers for pieces of peers' memory that the kernel reads.
    pub(super) pieces: Vec<u8>,
    pub(super) piece_sources: Vec<*const u8>,
    pub(super) piece_targets: Vec<*mut u8>,
    /// Transports that make progress while this rank's thread waits.
    pub(super) transports: Transports,
    /// Unmapped last: the ports point into it.
    _memories: Vec<SharedMemory>,
}

// SAFETY: the raw addresses point into memory mapped for the ports' lifetime or, during a call, into the caller's buffers;
// no thread but the one that owns the ports uses them from here. All ports that share a transport are in here, so only
// that thread changes its reference count.
unsafe impl Send for Ports {}

impl Ports {
    /// No ports yet.
    pub(crate) fn new(transports: Transports) -> Self {
        Self {
            transports,
            fifos: Fifos::default(),
            ends: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            packet_senders: Vec::new(),
            packet_receivers: Vec::new(),
            packet: Box::new([0; PACKET_WORDS]),
            sources: Vec::new(),
            targets: Vec::new(),
            pieces: Vec::new(),
            piece_sources: Vec::new(),
            piece_targets: Vec::new(),
            _memories: Vec::new(),
        }
    }

    /// Places a plan among the existing FIFOs. Call [`Ports::open`] with memory for the new ones.
    pub(crate) fn place(&mut self, plan: &weftlink_plan::Verified, hosts: &[u32], here: u32) -> Layout {
        let lanes = plan.programs.iter().flat_map(|program| &program.lanes);
        let operands =
            lanes.flat_map(|lane| lane.steps()).map(|step| step.inputs.len().max(step.outputs.len()));
        // One more: packets are made from a copy of the result.
        let operands = operands.max().unwrap_or(0).max(self.sources.len().saturating_sub(1)) + 1;
        self.sources.resize(operands, std::ptr::null());
        self.targets.resize(operands, std::ptr::null_mut());
        self.piece_sources.reserve(operands);
        self.piece_targets.reserve(operands);
        Layout::new(plan, &mut self.fifos, hosts, here)
    }

    /// The ranks to which this one has to connect before it opens its ends of a plan's new FIFOs.
    pub(crate) fn unconnected(&self, layout: &Layout, rank: u32) -> BTreeSet<u32> {
        let places = &self.fifos.places()[layout.new_fifos.clone()];
        places.iter().filter_map(|place| self.transports.unconnected(place, rank)).collect()
    }

    /// Why the connection to a rank failed, if it did.
    pub(crate) fn fault(&self, rank: u32) -> Option<Fault> {
        self.transports.fault(Some(rank))
    }

    /// The connections to other ranks.
    pub(crate) fn transports(&mut self) -> &mut Transports {
        &mut self.transports
    }

    /// Opens this rank's ends of a plan's new FIFOs, in the plan's memory, and keeps that mapped.
    pub(crate) fn open(&mut self, layout: &Layout, rank: u32, memory: SharedMemory) {
        for number in layout.new_fifos.clone() {
            let place = &self.fifos.places()[number];
            let opened = self.transports.open(number, place, rank, &memory);
            let end = opened.map(|port| match port {
                Port::Send(port, delivery) => End { number: add(&mut self.senders, port), delivery },
                Port::Receive(port, delivery) => End { number: add(&mut self.receivers, port), delivery },
                Port::SendPackets(port) => {
                    End { number: add(&mut self.packet_senders, port), delivery: Delivery::Packet }
                }
                Port::ReceivePackets(port) => {
                    End { number: add(&mut self.packet_receivers, port), delivery: Delivery::Packet }
                }
            });
            self.ends.push(end);
        }
        self._memories.push(memory);
    }
}

/// Adds a port to those of its kind. Returns its number among them.
fn add<T>(ports: &mut Vec<T>, port: T) -> u32 {
    ports.push(port);
    ports.len() as u32 - 1
}
