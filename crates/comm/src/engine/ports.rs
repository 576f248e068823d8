//! One rank's ports of all FIFOs of its communicator, whichever plan uses them.

// Operands are addresses in mapped memory and in the caller's buffers.
#![allow(unsafe_code)]

use std::collections::BTreeSet;

use weftlink_shm::memory::SharedMemory;

use crate::layout::{Fifos, Layout};
use crate::transport::{
    End, Fault, PACKET_WORDS, PacketReceivePort, PacketSendPort, Port, ReceivePort, SendPort, Transports, Way,
};

/// The ports, and what messages need on their way.
pub(crate) struct Ports {
    pub(super) fifos: Fifos,
    /// This rank's end of each FIFO, where it has one.
    pub(super) ends: Vec<Option<End>>,
    pub(super) senders: Vec<SendPort>,
    pub(super) receivers: Vec<ReceivePort>,
    pub(super) packet_senders: Vec<PacketSendPort>,
    pub(super) packet_receivers: Vec<PacketReceivePort>,
    /// A packet on its way out.
    pub(super) packet: Box<[u64; PACKET_WORDS]>,
    /// The operands of a step; as many places as any step needs.
    pub(super) sources: Vec<*const u8>,
    pub(super) targets: Vec<*mut u8>,
    /// Where pieces of peers' memory are put that is read by the kernel.
    pub(super) pieces: Vec<u8>,
    pub(super) piece_sources: Vec<*const u8>,
    pub(super) piece_targets: Vec<*mut u8>,
    /// What carries messages while this rank's thread waits.
    pub(super) transports: Transports,
    /// Unmapped last: the ports point into it.
    _memories: Vec<SharedMemory>,
}

// SAFETY: the raw addresses point into memory mapped for the ports' lifetime or, during a call, into the caller's buffers;
// no thread but the one that owns the ports uses them from here. Transports are shared by ports that are all in here, so that
// their counts of references are changed by that thread alone.
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

    /// Places a plan among the FIFOs there are. Call [`Ports::open`] with memory for those that are new.
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

    /// What is wrong with the connection to a rank, if anything is.
    pub(crate) fn fault(&self, rank: u32) -> Option<Fault> {
        self.transports.fault(Some(rank))
    }

    /// The connections to other ranks.
    pub(crate) fn transports(&mut self) -> &mut Transports {
        &mut self.transports
    }

    /// Opens this rank's ends of a plan's new FIFOs, in the plan's memory, and keeps that.
    pub(crate) fn open(&mut self, layout: &Layout, rank: u32, memory: SharedMemory) {
        for number in layout.new_fifos.clone() {
            let place = &self.fifos.places()[number];
            let opened = self.transports.open(number, place, rank, &memory);
            let end = opened.map(|port| match port {
                Port::Send(port, way) => End { number: add(&mut self.senders, port), way },
                Port::Receive(port, way) => End { number: add(&mut self.receivers, port), way },
                Port::SendPackets(port) => {
                    End { number: add(&mut self.packet_senders, port), way: Way::Packet }
                }
                Port::ReceivePackets(port) => {
                    End { number: add(&mut self.packet_receivers, port), way: Way::Packet }
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
