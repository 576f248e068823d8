//! Messages between two ranks, beside the collectives: an [`Endpoint`] that all ranks open together and then use independently.
//!
//! An endpoint sends bytes to a rank under a tag, and receives them by rank and tag, or by tag from any rank. Messages of one rank
//! with one tag arrive in the order in which they were sent; others may overtake each other. Both sides state the length, and
//! the type if there is one ([`Endpoint::of_type`]); differing lengths or types are an error. Any thread may use it, also while the
//! communicator runs collectives.
//!
//! The protocol (matching, eager and rendezvous transfers, credit, timeouts) is a state machine of its own, [`weftlink_p2p`]. Here,
//! from the bottom: a [`link`] between two ranks, two [rings](ring) or a connection ([`wire`]), made of FIFOs and counters;
//! [`pull`], messages read out of the sender's memory; [`peer_status`], what is known of the communicator and its ranks; [`state`],
//! which drives the protocol; [`drive`], the threads that drive the state.
//!
//! **Deaths.** The death of any rank aborts the communicator, and with it all pending messages, also those between two living
//! ranks; their error names the rank that died. A receiver may be copying a message out of its sender's memory, and the abort word
//! is its only sign that the sender has taken that memory back. The word is set once. If messages continued after
//! it was set for a death, a later abort could not be told from it, and a receiver could take bytes that are no longer the message.
//!
//! **Memory.** An endpoint takes at most 32 MiB of a host, with up to 418 ranks on it. A receiver buffers unexpected messages, at most
//! 1 MiB of each sender; anything longer or beyond that stays with its sender.
//!
//! Deliberately absent: wildcards for tags; probing for messages.

// The caller's memory is known by its address.
#![allow(unsafe_code)]

mod completion;
mod drive;
mod in_flight;
mod layout;
mod link;
mod peer_status;
mod pull;
mod ring;
mod state;
mod wire;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::{Blame, Connection, Event};
use weftlink_kernels::Kernel;
use weftlink_p2p::Direction;
pub use weftlink_p2p::MESSAGES_MAX;
use weftlink_plan::DataType;
use weftlink_shm::counter::Counter;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Waiter;

pub(crate) use completion::address;
use completion::{Callback, Request};
use drive::Inner;
pub(crate) use in_flight::GroupMessage;
use layout::Layout;
use link::Link;
use peer_status::PeerStatus;
pub(crate) use pull::PullPolicy;
use ring::{Bell, Ring};
use state::State;
use wire::Wires;

use crate::error::Error;
use crate::identities::Identities;
use crate::transport::cma::Process;

/// One rank's end of all messages between two ranks. Opened by [`Communicator::endpoint`](crate::Communicator::endpoint); clones share it.
///
/// When the last clone is dropped, pending messages go on, each until its timeout. When the communicator is dropped, they end.
///
/// ```
/// use std::time::Duration;
///
/// let got = weftlink_comm::on_threads(2, |mut comm| {
///     let endpoint = comm.endpoint()?;
///     let (me, peer) = (comm.rank(), 1 - comm.rank());
///     let (mine, mut theirs, time) = ([me as u8; 3], [9; 3], Duration::from_secs(10));
///     endpoint.send(peer, 5, &mine, time)?;
///     endpoint.receive(Some(peer), 5, &mut theirs, time)?;
///     Ok(theirs)
/// })?;
/// assert_eq!(got, [[1; 3], [0; 3]]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone)]
pub struct Endpoint {
    client: Arc<Client>,
    /// The type of the messages' elements; nothing for bytes.
    data_type: Option<DataType>,
}

/// What an endpoint takes from its communicator, and keeps beyond it.
pub(crate) struct Parts {
    pub(crate) rank: usize,
    /// The endpoint's own memory.
    pub(crate) memory: SharedMemory,
    /// The memory that waiters and departures point into.
    pub(crate) control: Arc<SharedMemory>,
    /// For threads of the caller, and for the endpoint's.
    pub(crate) waiters: [Waiter<'static>; 2],
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) identities: Identities,
    pub(crate) processes: Vec<Process>,
    pub(crate) pulls: Option<PullPolicy>,
    /// The kernel that copies memory.
    pub(crate) copy: Kernel,
    /// Notifies ranks on other hosts.
    pub(crate) notify: Box<dyn Fn(Event) + Send>,
    /// Why a rank aborted and which ranks it blames, once this rank has heard it.
    pub(crate) abort_cause: Box<dyn Fn() -> Option<(String, Vec<Blame>)> + Send>,
    /// To ranks on other hosts, and whether they are encrypted.
    pub(crate) connections: Vec<(u32, Vec<Connection>)>,
    pub(crate) encrypt: bool,
}

/// What the clones of an endpoint share.
struct Client {
    inner: Arc<Inner>,
    rank: usize,
    size: usize,
}

impl Endpoint {
    /// The bytes of shared memory that an endpoint needs with ranks on these hosts.
    pub(crate) fn bytes(hosts: &[u32]) -> usize {
        layout_of(hosts).bytes()
    }

    /// The endpoint of a rank, in memory of that many bytes.
    pub(crate) fn of(parts: Parts, hosts: &[u32]) -> Result<Endpoint, Error> {
        let ranks_of = |host: u32| (0..hosts.len()).filter(|rank| hosts[*rank] == host).collect::<Vec<_>>();
        let layout = layout_of(hosts);
        let Parts {
            rank,
            memory,
            control,
            waiters,
            departures,
            identities,
            processes,
            pulls,
            copy,
            notify,
            abort_cause,
            connections,
            encrypt,
        } = parts;
        let here = ranks_of(hosts[rank]);
        let place = |rank: usize| here.iter().position(|one| *one == rank);
        let own_place = place(rank).unwrap_or(0);
        let ring = |other: usize| {
            let place = place(other).filter(|place| *place != own_place)?;
            Some(Link::Ring(Ring::new(&memory, &layout, own_place, place, copy)))
        };
        let mut links: Vec<Option<Link>> = (0..hosts.len()).map(ring).collect();
        let mut wires = None;
        if !connections.is_empty() {
            let elsewhere: Vec<u32> = connections.iter().map(|(other, _)| *other).collect();
            let opened = Wires::new(rank, hosts.len(), connections, encrypt);
            let (all, ends) = opened.map_err(|error| Error::System {
                rank: rank as u32,
                what: "watch connections",
                error: error.to_string(),
            })?;
            for (other, wire) in elsewhere.into_iter().zip(ends) {
                links[other as usize] = Some(Link::Wire(wire));
            }
            wires = Some(all);
        }
        let bell = Bell::of(&memory, &layout, own_place);
        let ended_at = Cell::new(None);
        let waiter = waiters[0];
        let status = PeerStatus { rank, waiter, departures, identities, notify, abort_cause, ended_at };
        let state = State::new(status, (links, wires), pulls, processes);
        let inner = Arc::new(Inner::new(state, bell, waiters, [Arc::new(memory), control]));
        Ok(Endpoint { client: Arc::new(Client { inner, rank, size: hosts.len() }), data_type: None })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.client.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.client.size
    }

    /// The same endpoint for messages of elements of a type. Lengths are still in bytes. If the receive that a message matches has
    /// another type, both fail, as with differing lengths.
    pub fn of_type(&self, data_type: DataType) -> Endpoint {
        Endpoint { client: Arc::clone(&self.client), data_type: Some(data_type) }
    }

    /// Sends bytes to a rank, and returns when they may be changed again: at once for a short message that the receiver has room to
    /// buffer, otherwise when it is received. Fails after `timeout`.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8], timeout: Duration) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until this returns.
        unsafe { self.send_raw(to, tag, bytes.as_ptr(), bytes.len(), timeout) }
    }

    /// Receives bytes from a rank, or from any, and returns the rank that sent them.
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, Error> {
        // SAFETY: the bytes are borrowed mutably until this returns.
        unsafe { self.receive_raw(from, tag, into.as_mut_ptr(), into.len(), timeout) }
    }

    /// [Sends](Endpoint::send) memory at an address.
    ///
    /// # Safety
    /// The memory is readable for `bytes`, and nobody writes to it until this returns.
    pub unsafe fn send_raw(
        &self,
        to: usize,
        tag: u64,
        address: *const u8,
        bytes: usize,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.check(Some(to))?;
        let request = self.request(Direction::SendTo(to), tag, address, bytes, timeout);
        self.client.inner.drive(request).map(|_| ())
    }

    /// [Receives](Endpoint::receive) into memory at an address.
    ///
    /// # Safety
    /// The memory is writable for `bytes`, and nobody else uses it until this returns.
    pub unsafe fn receive_raw(
        &self,
        from: Option<usize>,
        tag: u64,
        address: *mut u8,
        bytes: usize,
        timeout: Duration,
    ) -> Result<usize, Error> {
        self.check(from)?;
        let request = self.request(Direction::ReceiveFrom(from), tag, address, bytes, timeout);
        self.client.inner.drive(request)
    }

    /// Sends without blocking. `done` is called when the memory may be changed again: by the endpoint's thread, by another thread
    /// that is using the endpoint, or by this one before it returns. It may use the endpoint, but should not take long.
    ///
    /// # Safety
    /// Any thread can read `bytes` there, and nobody writes to them until `done` is called.
    pub unsafe fn start_send(
        &self,
        to: usize,
        tag: u64,
        address: *const u8,
        bytes: usize,
        timeout: Duration,
        done: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) {
        let done = move |result: Result<usize, Error>| done(result.map(|_| ()));
        let request = self.request(Direction::SendTo(to), tag, address, bytes, timeout);
        self.start(Some(to), request, Box::new(done));
    }

    /// Receives without blocking. `done` is called with the rank that sent, once the message is there; otherwise as
    /// [`Endpoint::start_send`].
    ///
    /// # Safety
    /// Any thread can write `bytes` there, and nobody else uses them until `done` is called.
    pub unsafe fn start_receive(
        &self,
        from: Option<usize>,
        tag: u64,
        address: *mut u8,
        bytes: usize,
        timeout: Duration,
        done: impl FnOnce(Result<usize, Error>) + Send + 'static,
    ) {
        let request = self.request(Direction::ReceiveFrom(from), tag, address, bytes, timeout);
        self.start(from, request, Box::new(done));
    }

    /// Waits up to `time` until a condition holds that a completion brings about (`done` was called, say), and advances all messages
    /// meanwhile, as blocking calls do. Returns whether it holds.
    pub fn wait_until(&self, is_over: impl Fn() -> bool, time: Duration) -> bool {
        match self.client.inner.check_process() {
            Ok(()) => self.client.inner.drive_until(is_over, time),
            Err(_) => is_over(),
        }
    }

    /// Waits up to `time` until everything that this rank has sent is with its receivers or on its way to them, and returns whether it
    /// is. Call it before dropping the communicator, which loses the rest.
    pub fn flush(&self, time: Duration) -> bool {
        self.client.inner.check_process().is_err() || self.client.inner.flush(time)
    }

    fn request(
        &self,
        direction: Direction,
        tag: u64,
        memory: *const u8,
        bytes: usize,
        timeout: Duration,
    ) -> Request {
        let (address, data_type) = (address(memory), self.data_type);
        Request { direction, tag, address, bytes, data_type, timeout }
    }

    fn start(&self, other: Option<usize>, request: Request, done: Callback) {
        let mut done = Some(done);
        let posted = self.check(other).and_then(|()| self.client.inner.start(request, &mut done));
        if let (Err(error), Some(done)) = (posted, done.take()) {
            done(Err(error));
        }
    }

    fn check(&self, other: Option<usize>) -> Result<(), Error> {
        let Client { inner, size, .. } = &*self.client;
        inner.check_process()?;
        match other {
            Some(other) if other >= *size => {
                Err(Error::Misuse(format!("there is no rank {other}: there are {size}")))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint(rank {} of {})", self.rank(), self.size())
    }
}

/// The memory of an endpoint. All hosts have the same, that of the host with the most ranks.
fn layout_of(hosts: &[u32]) -> Layout {
    let ranks = |host: &u32| hosts.iter().filter(|other| *other == host).count();
    Layout::of(hosts.iter().map(ranks).max().unwrap_or(1))
}
