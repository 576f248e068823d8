//! Transports: what carries data between two ranks.
//!
//! | transport | between | fifo | put | get | multicast | switch-reduce |
//! |---|---|---|---|---|---|---|
//! | [shared memory](shared_memory) | ranks of one host | yes | mapped memory | mapped memory | | |
//! | [cma](cma) | ranks of one host, if the kernel allows it | | | any memory | | |
//! | [TCP](tcp) | ranks of different hosts | yes | | | | |
//!
//! The end of a FIFO is a [port](SendPort) with four operations: poll, place, publish, release. The engine works with ports and with the
//! [`Delivery`] that each declares; plans are chosen by [`Capabilities`]. This module is the one place where transports are listed: a new one is a
//! file here, a variant of [`Transport`] and of the ports in `port.rs`, and touches neither the engine nor the compiler.
//!
//! Deliberately absent: messages between two ranks outside of plans (`p2p/`), which have links of their own.

pub(crate) mod cma;
mod place;
mod port;
mod shared_memory;
pub(crate) mod tcp;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use weftlink_bootstrap::Connection;
use weftlink_plan::choose::measured::Memory;
use weftlink_shm::memory::SharedMemory;

pub(crate) use place::{FifoPlace, LINE, PACKET_BYTES, PACKET_LINES, PACKET_WORDS, lines_at};
pub(crate) use port::{Message, ReceivePort, SendPort, Signature};
pub(crate) use shared_memory::{PacketReceivePort, PacketSendPort};
use tcp::TcpTransport;

/// What a transport can do between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Messages in order, with credits.
    pub(crate) fifo: bool,
    /// Writing to a peer's memory; signalling a counter that the peer polls.
    pub(crate) put: bool,
    /// Reading a peer's memory.
    pub(crate) get: bool,
    /// Writing to the memory of several peers at once.
    pub(crate) multicast: bool,
    /// Reading the sum of several peers' memory.
    pub(crate) switch_reduce: bool,
}

impl Capabilities {
    pub(crate) const NONE: Capabilities =
        Capabilities { fifo: false, put: false, get: false, multicast: false, switch_reduce: false };

    /// Whether they include everything in `needed`.
    pub(crate) fn cover(self, needed: Capabilities) -> bool {
        let Capabilities { fifo, put, get, multicast, switch_reduce } = needed;
        (!fifo || self.fifo)
            && (!put || self.put)
            && (!get || self.get)
            && (!multicast || self.multicast)
            && (!switch_reduce || self.switch_reduce)
    }
}

/// The transports of FIFOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    SharedMemory,
    Tcp,
}

impl Transport {
    /// The transport between ranks on two hosts, or on one.
    pub(crate) fn between(one: u32, other: u32) -> Transport {
        if one == other { Transport::SharedMemory } else { Transport::Tcp }
    }

    pub(crate) fn capabilities(self) -> Capabilities {
        match self {
            Transport::SharedMemory => shared_memory::CAPABILITIES,
            Transport::Tcp => tcp::CAPABILITIES,
        }
    }

    /// Whether its FIFOs lie in memory that the ranks of a host share.
    pub(crate) fn is_mapped(self) -> bool {
        match self {
            Transport::SharedMemory => true,
            Transport::Tcp => false,
        }
    }
}

/// The capabilities that ranks of one host have on each other's buffers in a kind of memory.
pub(crate) fn to_buffers_in(memory: Memory) -> Capabilities {
    match memory {
        Memory::Ordinary => Capabilities::NONE,
        Memory::Readable => cma::CAPABILITIES,
        Memory::Symmetric => shared_memory::CAPABILITIES,
    }
}

/// How a port delivers messages, as its transport declares. The compiler asks this; the engine never asks which transport it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// In the lines of its flags.
    Packet,
    /// Through memory that both ends map: a step writes the message to the port's place, and reads it there.
    Mapped,
    /// By the transport: from wherever the message lies, straight to its destination if the receiver names one in time.
    Carried,
}

/// A rank's end of a FIFO: its number among the ports of its kind, and how it delivers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) number: u32,
    pub(crate) delivery: Delivery,
}

/// An open port.
pub(crate) enum Port {
    Send(SendPort, Delivery),
    Receive(ReceivePort, Delivery),
    SendPackets(PacketSendPort),
    ReceivePackets(PacketReceivePort),
}

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The peer closed or reset it.
    Ended,
    /// It carried bytes that the peer did not send.
    Corrupt(String),
}

/// The transports of a communicator that the rank's own thread drives, and their connections. Ports share the connections, so both
/// belong to one thread at a time.
pub(crate) struct Transports {
    tcp: Option<Rc<RefCell<TcpTransport>>>,
}

impl Transports {
    /// For ranks on these hosts.
    pub(crate) fn new(hosts: &[u32]) -> std::io::Result<Transports> {
        let uses_tcp = hosts.iter().any(|host| Transport::between(hosts[0], *host) == Transport::Tcp);
        let tcp = if uses_tcp { Some(Rc::new(RefCell::new(TcpTransport::new(hosts.len())?))) } else { None };
        Ok(Transports { tcp })
    }

    /// The rank at the other end of a FIFO, if this rank has to connect to it before it opens its end.
    pub(crate) fn unconnected(&self, place: &FifoPlace, rank: u32) -> Option<u32> {
        let (Transport::Tcp, Some(tcp)) = (place.transport, &self.tcp) else { return None };
        place.peer_of(rank).filter(|&peer| !tcp.borrow().is_connected(peer))
    }

    /// Takes connections to a rank into use, encrypted or not.
    pub(crate) fn connect(
        &mut self,
        rank: u32,
        connections: Vec<Connection>,
        encrypt: bool,
    ) -> std::io::Result<()> {
        let Some(tcp) = &self.tcp else { unreachable!("ranks are on several hosts") };
        tcp.borrow_mut().connect(rank, connections, encrypt)
    }

    /// Opens a rank's end of FIFO `number`, if it has one. The memory is that of the first plan that uses the FIFO.
    pub(crate) fn open(
        &mut self,
        number: usize,
        place: &FifoPlace,
        rank: u32,
        memory: &SharedMemory,
    ) -> Option<Port> {
        let sends = place.source == rank;
        place.peer_of(rank)?;
        Some(match (place.transport, &self.tcp) {
            (Transport::SharedMemory, _) => match (sends, place.slot_lines == PACKET_LINES) {
                (true, true) => Port::SendPackets(PacketSendPort::new(place, memory)),
                (false, true) => Port::ReceivePackets(PacketReceivePort::new(place, memory)),
                (true, false) => {
                    let port = shared_memory::SendPort::new(place, memory);
                    Port::Send(SendPort::SharedMemory(port), Delivery::Mapped)
                }
                (false, false) => {
                    let port = shared_memory::ReceivePort::new(place, memory);
                    Port::Receive(ReceivePort::SharedMemory(port), Delivery::Mapped)
                }
            },
            (Transport::Tcp, Some(tcp)) if sends => {
                Port::Send(SendPort::Tcp(tcp::SendPort::new(tcp, number, place)), Delivery::Carried)
            }
            (Transport::Tcp, Some(tcp)) => {
                Port::Receive(ReceivePort::Tcp(tcp::ReceivePort::new(tcp, number, place)), Delivery::Carried)
            }
            (Transport::Tcp, None) => unreachable!("ranks are on several hosts"),
        })
    }

    /// Whether any transport makes progress only on this rank's thread.
    #[inline]
    pub(crate) fn need_progress(&self) -> bool {
        self.tcp.is_some()
    }

    /// Reads what has arrived from a rank, or from all, and sends what can be sent.
    pub(crate) fn progress(&mut self, from: Option<u32>) {
        if let Some(tcp) = &self.tcp {
            tcp.borrow_mut().progress(from);
        }
    }

    /// Sends what can be sent.
    pub(crate) fn flush(&mut self) {
        if let Some(tcp) = &self.tcp {
            tcp.borrow_mut().flush();
        }
    }

    /// The wait for an expected message has ended: it arrived, or the wait failed.
    #[inline]
    pub(crate) fn end_wait(&mut self, has_arrived: bool) {
        if let Some(tcp) = &self.tcp {
            tcp.borrow_mut().end_wait(has_arrived);
        }
    }

    /// Whether everything that was published is in the kernel's hands.
    #[inline]
    pub(crate) fn are_idle(&self) -> bool {
        self.tcp.as_ref().is_none_or(|tcp| tcp.borrow().is_idle())
    }

    /// A rank for which something is still to be sent.
    pub(crate) fn awaited(&self) -> Option<u32> {
        self.tcp.as_ref()?.borrow().awaited()
    }

    /// The descriptor that becomes readable when something arrives or can be sent.
    pub(crate) fn watched(&self) -> Option<Arc<OwnedFd>> {
        Some(self.tcp.as_ref()?.borrow().watched())
    }

    /// Whether any connection has failed.
    pub(crate) fn have_faults(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.borrow().has_faults())
    }

    /// Why the connections to a rank failed, or the fault that concerns all ranks.
    pub(crate) fn fault(&self, rank: Option<u32>) -> Option<Fault> {
        self.tcp.as_ref()?.borrow().fault(rank).map(|(_, fault)| fault.clone())
    }

    /// Whether there is such a fault.
    pub(crate) fn is_broken(&self, rank: Option<u32>) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.borrow().fault(rank).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_cover_only_what_they_include() {
        let get = Capabilities { get: true, ..Capabilities::NONE };
        let put = Capabilities { put: true, ..Capabilities::NONE };
        let fifo = Capabilities { fifo: true, ..Capabilities::NONE };
        let switch = Capabilities { switch_reduce: true, ..Capabilities::NONE };
        let multicast = Capabilities { multicast: true, ..Capabilities::NONE };
        let covered = |capabilities: Capabilities| {
            [fifo, put, get, multicast, switch].map(|needed| capabilities.cover(needed))
        };
        assert_eq!(covered(Transport::between(0, 0).capabilities()), [true, true, true, false, false]);
        assert_eq!(covered(Transport::between(0, 1).capabilities()), [true, false, false, false, false]);
        assert_eq!(covered(to_buffers_in(Memory::Readable)), [false, false, true, false, false]);
        assert!(Capabilities::NONE.cover(Capabilities::NONE) && !to_buffers_in(Memory::Ordinary).cover(get));
    }
}
