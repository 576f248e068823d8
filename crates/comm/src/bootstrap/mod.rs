//! How ranks find each other, and what they can then do together outside of calls: say something to all, share memory,
//! and know at once when one of them is gone.
//!
//! A [`Bootstrap`] is one rank's end of the group. It is made in one of two ways:
//!
//! - [`Bootstrap::threads`]: the ranks are threads of this process and meet in a room (`room.rs`).
//! - [`Bootstrap::listen`] and [`Bootstrap::join`]: the ranks are processes, on one host or several. Rank 0 listens at a
//!   [`Place`], the others come and prove that they belong there (`meeting.rs`); then all take their places in a tree
//!   (`group.rs`), over which a thread of each rank keeps watch (`endpoint.rs`).
//!
//! From then on all ranks call [`Bootstrap::share`] and [`Bootstrap::exchange`] in the same order with the same arguments.
//! The first gives the ranks of a host a mapping of the same zeroed memory, and it is all or none: it returns memory only
//! when every rank has mapped it, and an error on one rank becomes the same error on all. So both are barriers too. Every
//! queue, counter and window of a communicator lies in memory that came this way.
//!
//! After an error the group is no longer in step, so the bootstrap is poisoned: it tells the others and answers every later
//! call with the cause. Start afresh with a new meeting.
//!
//! Deliberately absent: bytes of calls, which go through shared memory or connections of their own.

mod address;
mod channel;
mod deadline;
mod endpoint;
mod environment;
mod error;
mod fork;
mod found;
mod group;
mod host;
mod meeting;
mod message;
mod room;
mod roster;
mod secret;
mod terms;
mod tree;
mod wires;

pub use environment::{
    Environment, EnvironmentError, Launcher, Rendezvous, SECRET_BYTES_MAX, Secret, Surroundings,
    expand_nodelist,
};
pub(crate) use error::list;
pub use error::{Ask, BootstrapError, Refusal};
pub use host::Host;
pub use meeting::{Meeting, Network, Place};
pub use secret::Token;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use channel::Connection;
pub(crate) use deadline::Deadline;
use endpoint::Endpoint;
pub(crate) use fork::Kept;
pub(crate) use group::Alarm;
use group::{Group, HandOut};
pub(crate) use message::News;
use room::Room;
pub(crate) use secret::{Seal, TAG_BYTES};

use crate::failure::Reason;
use crate::knobs::Knobs;
use crate::log;
use crate::memory::SharedMemory;
use crate::wait::Waiter;

/// The reason that ranks read in the abort word when one of them could not go on outside of a call.
const NO_MEMORY: u32 = Reason::Memory as u32;

/// One rank's end of a group of ranks. Dropping it leaves the group.
#[derive(Debug)]
pub struct Bootstrap {
    rank: usize,
    pids: Vec<u32>,
    hosts: Vec<u32>,
    link: Link,
    failed: Option<String>,
    /// What each rank was in the group that this one came out of.
    origins: Vec<usize>,
    /// How many sweeps have been made.
    sweeps: u32,
    /// How many calls, as the last word to the others will tell.
    pub(crate) calls: u32,
}

#[derive(Debug)]
enum Link {
    Room(Arc<Room>),
    Tree {
        group: Arc<Group>,
        /// Where others find this rank; a rank alone has nobody to be found by.
        endpoint: Option<Arc<Endpoint>>,
    },
}

impl Bootstrap {
    /// A group of threads of this process: one end for each, to be moved to its thread.
    pub fn threads(size: usize) -> Vec<Bootstrap> {
        let room = Arc::new(Room::new(size));
        (0..size).map(|rank| Bootstrap::in_room(Arc::clone(&room), rank, size)).collect()
    }

    /// A group of one.
    pub(crate) fn alone() -> Bootstrap {
        Bootstrap::in_room(Arc::new(Room::new(1)), 0, 1)
    }

    /// This process's end of the job that its launcher made it part of.
    pub fn from_environment(knobs: &Knobs) -> Result<Bootstrap, BootstrapError> {
        let bad = |error: EnvironmentError| BootstrapError::BadCall { what: error.to_string() };
        let Environment { rank, size, place, secret, secret_is_guessable, .. } =
            Environment::of_this_process().map_err(bad)?;
        let place = match place {
            Rendezvous::Tcp { host, ports } => Place::Tcp { host, ports },
            Rendezvous::OneHost { name } => Place::Abstract(name),
        };
        if secret_is_guessable && rank == 0 && matches!(place, Place::Tcp { .. }) {
            log::warn!(
                Meet,
                rank,
                "no WEFT_SECRET is set: whoever reaches {place} can join; `weft run` sets one"
            );
        }
        let token = Token::new(secret.bytes())?;
        let meeting =
            Meeting { network: Network::of(knobs), ..Meeting::new(place, token, size, knobs.deadline) };
        if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) }
    }

    /// Rank 0 of a group of processes: listens at the place until every other rank has come.
    pub fn listen(meeting: &Meeting) -> Result<Bootstrap, BootstrapError> {
        let (endpoint, group) = meeting::listen(meeting)?;
        Ok(Bootstrap::in_group(group, endpoint.map(Arc::new)))
    }

    /// Another rank of a group of processes: goes to the place, as soon as rank 0 listens there, and waits for all.
    pub fn join(meeting: &Meeting, rank: usize) -> Result<Bootstrap, BootstrapError> {
        let (endpoint, group) = meeting::join(meeting, rank)?;
        Ok(Bootstrap::in_group(group, endpoint.map(Arc::new)))
    }

    fn in_group(group: Arc<Group>, endpoint: Option<Arc<Endpoint>>) -> Bootstrap {
        let members = group.members.get().map_or(&[][..], Vec::as_slice);
        Bootstrap {
            rank: group.rank as usize,
            pids: members.iter().map(|member| member.contact.pid).collect(),
            hosts: members.iter().map(|member| member.host).collect(),
            origins: (0..members.len()).collect(),
            link: Link::Tree { group, endpoint },
            failed: None,
            sweeps: 0,
            calls: 0,
        }
    }

    /// A number that all ranks of the group have, and no other group.
    pub fn id(&self) -> u64 {
        match &self.link {
            Link::Room(room) => room.id,
            Link::Tree { group, .. } => group.id,
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.pids.len()
    }

    /// The process of each rank, by the number it has in its own PID namespace.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The number of each rank's host; hosts are numbered in the order of their first ranks.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// How people call a rank: its number, host and process.
    pub fn name(&self, rank: usize) -> String {
        let pid = self.pids[rank];
        match &self.link {
            Link::Tree { group, .. } if self.hosts.iter().any(|host| *host > 0) => {
                let host =
                    group.members.get().map_or(String::new(), |all| all[rank].contact.host.to_string());
                format!("rank {rank} (host {host}, pid {pid})")
            }
            _ => format!("rank {rank} (pid {pid})"),
        }
    }

    /// Whether all ranks call processes by the same numbers, so that one can name another's to the kernel.
    pub(crate) fn knows_pids(&self) -> bool {
        match &self.link {
            Link::Room(_) => true,
            Link::Tree { group, .. } => group.members.get().is_some_and(|members| {
                let host = &members[self.rank].contact.host;
                members.iter().all(|member| host.knows_pids_of(&member.contact.host))
            }),
        }
    }

    /// All ranks of a host together allocate `bytes` of shared memory, and all hosts do; `purpose` names it in errors and
    /// in `/proc/<pid>/maps`.
    pub fn share(
        &mut self,
        purpose: &str,
        bytes: usize,
        deadline: Duration,
    ) -> Result<SharedMemory, BootstrapError> {
        self.share_unless_ended(purpose, bytes, deadline, None)
    }

    /// The same, but given up within milliseconds when somebody ends the communicator of this waiter on purpose. The error is
    /// then that of a wait that took too long; the caller, who has the waiter, knows better.
    pub(crate) fn share_unless_ended(
        &mut self,
        purpose: &str,
        bytes: usize,
        deadline: Duration,
        ended: Option<Waiter<'static>>,
    ) -> Result<SharedMemory, BootstrapError> {
        let ask = self.ask(purpose, bytes)?;
        let deadline = Deadline::new(deadline).unless_ended(ended);
        let number = self.next_sweeps(2);
        let shared = match &self.link {
            Link::Room(room) => room.share(&ask, deadline),
            Link::Tree { group, .. } => share(group, number, &ask, deadline),
        };
        shared.inspect_err(|error| self.poison(error))
    }

    /// All ranks say something, and each hears what all say, by rank.
    pub fn exchange(
        &mut self,
        purpose: &str,
        mine: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let ask = self.ask(purpose, 0)?;
        let deadline = Deadline::new(deadline);
        let number = self.next_sweeps(1);
        let heard = match &self.link {
            Link::Room(room) => room.exchange(&ask, mine, deadline),
            Link::Tree { group, .. } => group.sweep(number, &ask, mine, deadline, None),
        };
        heard.inspect_err(|error| self.poison(error))
    }

    /// What each rank was in the group that this one was split or shrunk from; its own number if there was none.
    pub fn origins(&self) -> &[usize] {
        &self.origins
    }

    /// Splits the group: all ranks that say the same part become a group of their own, in the order of their keys, and of their
    /// ranks where these are equal. Whoever says no part is in none.
    pub fn split(
        &mut self,
        part: Option<u32>,
        key: i64,
        deadline: Duration,
    ) -> Result<Option<Bootstrap>, BootstrapError> {
        let turn = self.sweeps.wrapping_add(1);
        let mut mine = part.map_or(u64::MAX, u64::from).to_le_bytes().to_vec();
        mine.extend(key.to_le_bytes());
        let said = self.exchange("a split", mine, deadline)?;
        let Some(part) = part.map(u64::from) else { return Ok(None) };
        let number =
            |bytes: &[u8], at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>().copied());
        let mut together: Vec<(i64, usize)> = (0..said.len())
            .filter(|&rank| number(&said[rank], 0).map(u64::from_le_bytes) == Some(part))
            .map(|rank| (number(&said[rank], 8).map_or(0, i64::from_le_bytes), rank))
            .collect();
        together.sort_unstable();
        let origins: Vec<usize> = together.into_iter().map(|(_, rank)| rank).collect();
        let rank = origins.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let mut bootstrap = match &self.link {
            Link::Room(room) => {
                let room = room.room_for(u64::from(turn), part, origins.len());
                Bootstrap::in_room(room, rank, origins.len())
            }
            Link::Tree { group, endpoint } => {
                let members = group.members.get().map_or(&[][..], Vec::as_slice);
                let contacts: Vec<_> = origins.iter().map(|rank| members[*rank].contact.clone()).collect();
                let id = part_of(group.id, turn, part);
                let group = match endpoint {
                    None => Group::alone(id, contacts),
                    Some(endpoint) => {
                        let over = || group.verdict().map_or(Ok(()), Err);
                        found::found(endpoint, id, rank as u32, contacts, Deadline::new(deadline), over)
                            .inspect_err(|error| self.poison(error))?
                    }
                };
                let endpoint =
                    if let Link::Tree { endpoint, .. } = &self.link { endpoint.clone() } else { None };
                Bootstrap::in_group(group, endpoint)
            }
        };
        bootstrap.origins = origins;
        Ok(Some(bootstrap))
    }

    /// A group of those who are left, after this one has failed: all who call this in time and live. Those who do not are out.
    pub fn shrink(self, deadline: Duration) -> Result<Bootstrap, BootstrapError> {
        let mut bootstrap = match &self.link {
            Link::Room(room) => {
                let (room, origins) = room.shrink(self.rank, Deadline::new(deadline));
                let rank = origins.iter().position(|rank| *rank as usize == self.rank);
                let too_late = || BootstrapError::Missing {
                    ranks: vec![self.rank],
                    purpose: "what is left of a group; the others went on without it".to_owned(),
                    limit: deadline,
                };
                let mut shrunk = Bootstrap::in_room(room, rank.ok_or_else(too_late)?, origins.len());
                shrunk.origins = origins.into_iter().map(|rank| rank as usize).collect();
                shrunk
            }
            Link::Tree { endpoint: None, group } => {
                let contacts = group.members.get().into_iter().flatten().map(|member| member.contact.clone());
                Bootstrap::in_group(Group::alone(group.id, contacts.collect()), None)
            }
            Link::Tree { group, endpoint: Some(endpoint) } => {
                let (shrunk, origins) = found::shrink(group, endpoint, deadline)?;
                let mut shrunk = Bootstrap::in_group(shrunk, Some(Arc::clone(endpoint)));
                shrunk.origins = origins.into_iter().map(|rank| rank as usize).collect();
                shrunk
            }
        };
        // What ranks were in the very first group is what people know them by.
        bootstrap.origins.iter_mut().for_each(|rank| *rank = self.origins[*rank]);
        Ok(bootstrap)
    }

    fn in_room(room: Arc<Room>, rank: usize, size: usize) -> Bootstrap {
        Bootstrap {
            rank,
            pids: vec![std::process::id(); size],
            hosts: vec![0; size],
            link: Link::Room(room),
            failed: None,
            origins: (0..size).collect(),
            sweeps: 0,
            calls: 0,
        }
    }

    /// Connections to ranks of other hosts, for messages of plans: so many to each, in the order of the ranks. The ranks all
    /// do this together.
    pub(crate) fn connect(
        &self,
        peers: &BTreeSet<u32>,
        streams: u32,
        deadline: Duration,
    ) -> Result<Vec<Vec<Connection>>, BootstrapError> {
        let Link::Tree { group, endpoint: Some(endpoint) } = &self.link else { return Ok(Vec::new()) };
        wires::connect(group, endpoint, peers, streams, Deadline::new(deadline))
    }

    /// What to do with news from now on, on the steward's thread; nothing after the bootstrap is dropped.
    pub(crate) fn set_alarm(&self, alarm: Alarm) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_alarm(Some(alarm));
        }
    }

    /// Nothing more is done with news. What the alarm points to may go.
    pub(crate) fn clear_alarm(&self) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_alarm(None);
        }
    }

    /// Tells all ranks something, from any thread; nothing once the bootstrap is dropped.
    pub(crate) fn teller(&self) -> impl Fn(News) + Send + 'static {
        let group = match &self.link {
            Link::Tree { group, .. } => Arc::downgrade(group),
            Link::Room(_) => Weak::new(),
        };
        move |news| {
            if let Some(group) = group.upgrade() {
                group.learn(news, None);
            }
        }
    }

    /// Says to all that this rank waits in a call that has failed, and gives the others a moment to say the same. Who does
    /// not: stopped, or busy with something else than the call.
    pub(crate) fn silent(&self, patience: Duration) -> Vec<usize> {
        match &self.link {
            Link::Room(_) => Vec::new(),
            Link::Tree { group, .. } => {
                let silent = group.silent(Deadline::new(patience));
                silent.into_iter().map(|rank| rank as usize).collect()
            }
        }
    }

    /// What the rank said that gave the group up, if that is heard in time; nothing if none did.
    pub(crate) fn cause(&self, patience: Duration) -> String {
        let Link::Tree { group, .. } = &self.link else { return String::new() };
        match group.await_failure(Deadline::new(patience)) {
            Some(BootstrapError::GaveUp { cause, .. }) => cause,
            _ => String::new(),
        }
    }

    /// Gives the group up because of something else than a call of this bootstrap, so that whoever calls it, or is waiting
    /// in it, need not wait for this rank. The culprit and the reason are for the abort word of ranks on other hosts.
    pub(crate) fn give_up(&mut self, cause: &str, culprit: u32, reason: u32) {
        if self.failed.is_none() {
            let error = BootstrapError::GaveUp { rank: self.rank, cause: cause.to_owned() };
            self.failed = Some(error.to_string());
            match &self.link {
                Link::Room(room) => room.fail(&error),
                Link::Tree { group, .. } => group.fail(reason, culprit, &error),
            }
        }
    }

    fn ask(&self, purpose: &str, bytes: usize) -> Result<Ask, BootstrapError> {
        if let Some(cause) = &self.failed {
            return Err(BootstrapError::Poisoned { cause: cause.clone() });
        }
        check(purpose)?;
        Ok(Ask { rank: self.rank, purpose: purpose.to_owned(), bytes })
    }

    fn next_sweeps(&mut self, count: u32) -> u32 {
        let next = self.sweeps.wrapping_add(1);
        self.sweeps = self.sweeps.wrapping_add(count);
        next
    }

    /// Tells the others why, as far as they still listen.
    fn poison(&mut self, error: &BootstrapError) {
        self.failed.get_or_insert_with(|| error.to_string());
        match &self.link {
            Link::Room(room) => room.fail(error),
            Link::Tree { group, .. } => group.fail(NO_MEMORY, self.rank as u32, error),
        }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        match &self.link {
            Link::Room(room) => room.leave(self.rank),
            Link::Tree { group, endpoint } => {
                group.set_alarm(None);
                // A process that was forked off shares our connections and must not speak for us.
                if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| endpoint.is_ours()) {
                    group.learn(News::Left { rank: self.rank as u32, calls: self.calls }, None);
                    endpoint.unwatch(group);
                }
            }
        }
    }
}

/// The kernel takes names of memfds up to 249 bytes, without zeros.
const PURPOSE_BYTES_MAX: usize = 200;

fn check(purpose: &str) -> Result<(), BootstrapError> {
    if purpose.len() > PURPOSE_BYTES_MAX || purpose.contains('\0') {
        let what =
            format!("the purpose {purpose:?} must be at most {PURPOSE_BYTES_MAX} bytes, without zeros");
        return Err(BootstrapError::BadCall { what });
    }
    Ok(())
}

/// Two sweeps: all want the same, and the first rank of each host hands the memory to the others there; all have it.
fn share(group: &Group, number: u32, ask: &Ask, deadline: Deadline) -> Result<SharedMemory, BootstrapError> {
    let rank = ask.rank;
    let failed =
        |error: crate::memory::MemoryError| BootstrapError::Memory { rank, reason: error.to_string() };
    let memory = Cell::new(None);
    let mut make = || {
        let (made, descriptor) = SharedMemory::create(&ask.purpose, ask.bytes).map_err(failed)?;
        memory.set(Some(made));
        Ok(descriptor)
    };
    let mut take = |descriptor: &_| {
        memory.set(Some(SharedMemory::from_fd(descriptor, ask.bytes).map_err(failed)?));
        Ok(())
    };
    let hand_out = HandOut { make: &mut make, take: &mut take };
    group.sweep(number, ask, Vec::new(), deadline, Some(hand_out))?;
    group.sweep(number.wrapping_add(1), ask, Vec::new(), deadline, None)?;
    memory.take().ok_or_else(|| BootstrapError::Protocol { rank, what: "no memory".to_owned() })
}

/// The number of a part of a group, which its ranks all work out and nobody else has.
fn part_of(group: u64, turn: u32, part: u64) -> u64 {
    let mix = |number: u64| (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix(mix(group ^ u64::from(turn) << 32).wrapping_add(part))
}

/// What is wrong, according to news.
fn error_of(news: News) -> BootstrapError {
    match news {
        News::Failed { error, .. } => error,
        other => BootstrapError::Protocol { rank: 0, what: format!("it said {other:?}") },
    }
}
