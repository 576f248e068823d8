//! Messages between two ranks, beside the collectives: a mailbox that all ranks open together and then use alone.
//!
//! A [`Endpoint`] sends bytes to a rank under a tag, and receives them by rank and tag, or by tag from whoever comes first. Messages of
//! one rank with one tag arrive in the order in which they were sent; others pass each other. Both sides say the length, and
//! the type if they have one ([`Endpoint::of_type`]), and differing lengths or types are an error. It is used from any thread, and at the same time as the communicator's collectives.
//!
//! From the bottom: a [`link`] is the way between this rank and another, two [rings](ring) or a connection, made of FIFOs and counters; [`matching`] knows which
//! message goes to which receive; [`state`] puts them together and does what can be done at once; [`drive`] is whoever gives it
//! turns; [`fate`] and [`watch`] end what has no hope.
//!
//! **Order.** All that a rank sends to another goes through one queue and one ring, and is matched in the order of that ring. So
//! a blocking call never overtakes one that was made before.
//!
//! **Ends.** Every send and receive ends once: well, or with an error when its time is up, when the other rank has left or
//! died, or when the communicator is ended. A receive that nothing has come for can be given up alone, and so can a send that its
//! receiver has not heard of; any other send whose time is up ends the communicator, because the receiver may be reading it.
//!
//! **Deaths.** The death of any rank ends the communicator, and with it all messages that are not over, also those between two
//! ranks that live; their error names the rank that died. A receiver may be copying a message out of its sender's memory, and
//! the abort word is all that tells it when the sender has taken that memory back. The word is set once. If messages went on after
//! it was set for a death, a later abort could not be told from it, and a receiver could take bytes that are no longer the message.
//!
//! **Memory.** A host gives at most 32 MiB to a endpoint, however many ranks it has (up to 418). Unexpected messages are kept by
//! their receiver, at most 1 MiB of each sender; whatever is longer, or more, waits where it is.
//!
//! **Hosts.** Ranks on other hosts are reached over connections of the endpoint's own ([`wire`]), with the same frames; the messages of
//! one rank to another still keep their order.
//!
//! Deliberately absent: wildcards for tags; probing for what has come.

// The caller's memory is known by its address.
#![allow(unsafe_code)]

mod asked;
mod drive;
mod fate;
mod frame;
mod layout;
mod link;
mod matching;
mod outbox;
mod reading;
mod ring;
mod state;
mod watch;
mod wire;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::{Blame, Connection, Event};
use weftlink_kernels::Kernel;
use weftlink_plan::DataType;
use weftlink_shm::counter::Counter;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Waiter;

use asked::{Asked, Tell, Way};
use drive::Inner;
use fate::Fate;
use layout::Layout;
use link::Link;
pub(crate) use reading::Readers;
use ring::{Bell, Ring};
pub use state::MESSAGES_MAX;
use state::State;
use wire::Wires;

use crate::error::Error;
use crate::transport::cma::Process;

/// One rank's mailbox. Made by [`Communicator::endpoint`](crate::Communicator::endpoint); clones are the same one.
///
/// When the last clone is dropped, what is under way still goes on, each message until its time is up. When the communicator is
/// dropped, it ends.
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
    /// What messages consist of; nothing for bytes.
    data_type: Option<DataType>,
}

/// Everything of a communicator that its endpoint needs, which outlives it.
pub(crate) struct Parts {
    pub(crate) rank: usize,
    /// The endpoint's own.
    pub(crate) memory: SharedMemory,
    /// What waiters and departures point into.
    pub(crate) control: Arc<SharedMemory>,
    /// How a thread of the caller's waits, and one beside it.
    pub(crate) waiters: [Waiter<'static>; 2],
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) names: Vec<String>,
    pub(crate) processes: Vec<Process>,
    pub(crate) readers: Option<Readers>,
    /// How memory is copied.
    pub(crate) copy: Kernel,
    pub(crate) tell: Box<dyn Fn(Event) + Send>,
    pub(crate) hear: Box<dyn Fn() -> Option<(String, Vec<Blame>)> + Send>,
    /// To ranks on other hosts, and whether what goes over them is sealed.
    pub(crate) connections: Vec<(u32, Vec<Connection>)>,
    pub(crate) encrypt: bool,
}

/// All clones together.
struct Client {
    inner: Arc<Inner>,
    rank: usize,
    size: usize,
}

impl Endpoint {
    /// The bytes of shared memory that a endpoint needs where ranks are on these hosts.
    pub(crate) fn bytes(hosts: &[u32]) -> usize {
        layout_of(hosts).bytes()
    }

    /// The endpoint of a rank, whose memory has as many bytes.
    pub(crate) fn of(parts: Parts, hosts: &[u32]) -> Result<Endpoint, Error> {
        let ranks_of = |host: u32| (0..hosts.len()).filter(|rank| hosts[*rank] == host).collect::<Vec<_>>();
        let layout = layout_of(hosts);
        let Parts {
            rank,
            memory,
            control,
            waiters,
            departures,
            names,
            processes,
            readers,
            copy,
            tell,
            hear,
            connections,
            encrypt,
        } = parts;
        let here = ranks_of(hosts[rank]);
        let place = |rank: usize| here.iter().position(|one| *one == rank);
        let own_place = place(rank).unwrap_or(0);
        let ring = |other: usize| {
            let place = place(other).filter(|place| *place != own_place)?;
            Some(Link::of_ring(Ring::new(&memory, &layout, own_place, place, copy)))
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
                links[other as usize] = Some(Link::of_wire(wire));
            }
            wires = Some(all);
        }
        let bell = Bell::of(&memory, &layout, own_place);
        let fate = Fate { rank, waiter: waiters[0], departures, names, tell, hear, over: Cell::new(None) };
        let state = State::new(fate, (links, wires), readers, processes);
        let inner = Arc::new(Inner::new(state, bell, waiters, [Arc::new(memory), control]));
        Ok(Endpoint { client: Arc::new(Client { inner, rank, size: hosts.len() }), data_type: None })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.client.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.client.size
    }

    /// The same mailbox for messages that consist of elements of a type. Lengths are still in bytes. A message goes to a receive
    /// of the same type only; any other is an error of both, as differing lengths are.
    pub fn of_type(&self, data_type: DataType) -> Endpoint {
        Endpoint { client: Arc::clone(&self.client), data_type: Some(data_type) }
    }

    /// Sends bytes to a rank, and returns when they may be changed again. That is at once if they are few; others wait until
    /// they are received. After `timeout` it is an error.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8], timeout: Duration) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until it is over.
        unsafe { self.send_raw(to, tag, bytes.as_ptr(), bytes.len(), timeout) }
    }

    /// Receives bytes from a rank, or from whichever comes first, and tells who sent them.
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, Error> {
        // SAFETY: the bytes are borrowed, for this alone, until it is over.
        unsafe { self.receive_raw(from, tag, into.as_mut_ptr(), into.len(), timeout) }
    }

    /// [Sends](Endpoint::send) memory that is known by its address.
    ///
    /// # Safety
    /// So many bytes can be read there, and nobody writes them until this returns.
    pub unsafe fn send_raw(
        &self,
        to: usize,
        tag: u64,
        address: *const u8,
        bytes: usize,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.check(Some(to))?;
        let begin = |state: &mut State| {
            let id = state.begin(true)?;
            let asked = Asked::new(id, Way::To(to), tag, address.cast_mut(), bytes, timeout, Tell::Waiting);
            state.send(asked.of_type(self.data_type));
            Ok(id)
        };
        self.client.inner.drive(begin).map(|_| ())
    }

    /// [Receives](Endpoint::receive) into memory that is known by its address.
    ///
    /// # Safety
    /// So many bytes can be written there, and nobody else uses them until this returns.
    pub unsafe fn receive_raw(
        &self,
        from: Option<usize>,
        tag: u64,
        address: *mut u8,
        bytes: usize,
        timeout: Duration,
    ) -> Result<usize, Error> {
        self.check(from)?;
        let begin = |state: &mut State| {
            let id = state.begin(true)?;
            let asked = Asked::new(id, Way::From(from), tag, address, bytes, timeout, Tell::Waiting);
            state.receive(asked.of_type(self.data_type));
            Ok(id)
        };
        self.client.inner.drive(begin)
    }

    /// Sends without blocking: `done` is called when the memory may be changed again, by a thread of the endpoint's, by whichever
    /// other thread is just using the endpoint, or by this one before it returns. It may use the endpoint, but should not take long.
    ///
    /// # Safety
    /// So many bytes can be read there from any thread, and nobody writes them until `done` is called.
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
        let asked = (Way::To(to), tag, address.cast_mut(), bytes, timeout);
        self.start(Some(to), asked, done, State::send);
    }

    /// Receives without blocking: `done` is called when the message is there, and told who sent it; otherwise as by
    /// [`Endpoint::start_send`].
    ///
    /// # Safety
    /// So many bytes can be written there from any thread, and nobody else uses them until `done` is called.
    pub unsafe fn start_receive(
        &self,
        from: Option<usize>,
        tag: u64,
        address: *mut u8,
        bytes: usize,
        timeout: Duration,
        done: impl FnOnce(Result<usize, Error>) + Send + 'static,
    ) {
        self.start(from, (Way::From(from), tag, address, bytes, timeout), done, State::receive);
    }

    /// Waits for something that the end of a message brings about (its `done` was called, say), and makes the messages get on
    /// meanwhile, as the blocking calls do. Tells whether it came within the time.
    pub fn wait_until(&self, is_over: impl Fn() -> bool, time: Duration) -> bool {
        match self.client.inner.check_process() {
            Ok(()) => self.client.inner.drive_until(is_over, time),
            Err(_) => is_over(),
        }
    }

    /// Waits, at most so long, until all that this rank has sent is with its receivers or on its way to them, and tells whether it is.
    /// For who leaves next: what is not is lost when the communicator is dropped.
    pub fn settle(&self, time: Duration) -> bool {
        self.client.inner.check_process().is_err() || self.client.inner.settle(time)
    }

    fn start(
        &self,
        other: Option<usize>,
        (way, tag, address, bytes, timeout): (Way, u64, *mut u8, usize, Duration),
        done: impl FnOnce(Result<usize, Error>) + Send + 'static,
        ask: fn(&mut State, Asked),
    ) {
        let mut done: Option<asked::Callback> = Some(Box::new(done));
        let begin = |state: &mut State| {
            let id = state.begin(false)?;
            if let Some(done) = done.take() {
                let asked = Asked::new(id, way, tag, address, bytes, timeout, Tell::Call(done));
                ask(state, asked.of_type(self.data_type));
            }
            Ok(())
        };
        let begun = self.check(other).and_then(|()| self.client.inner.start(begin));
        if let (Err(error), Some(done)) = (begun, done.take()) {
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

/// The memory of a endpoint. All hosts have the same, for the host with the most ranks.
fn layout_of(hosts: &[u32]) -> Layout {
    let ranks = |host: &u32| hosts.iter().filter(|other| *other == host).count();
    Layout::of(hosts.iter().map(ranks).max().unwrap_or(1))
}
