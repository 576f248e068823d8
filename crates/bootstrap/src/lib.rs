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

#[macro_use]
extern crate weftlink_shm;

mod address;
mod blame;
mod broken;
mod channel;
mod deadline;
mod descriptors;
mod endpoint;
mod environment;
mod error;
mod fork;
mod group;
mod host;
pub mod launcher;
mod lobby;
mod meeting;
mod message;
mod outgoing;
mod peer;
mod reason;
mod regroup;
mod reparent;
mod room;
mod roster;
mod secret;
mod split;
mod stall;
mod terms;
mod waits;
mod wires;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use weftlink_knobs::{Knobs, log};
use weftlink_membership::durations::THREAD_CAUSE;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Waiter;

pub use blame::{Blame, BlameKind, Failure};
pub use channel::Connection;
pub use deadline::Deadline;
pub use environment::{
    Environment, EnvironmentError, Launcher, Rendezvous, SECRET_BYTES_MAX, Secret, Surroundings,
    expand_nodelist,
};
pub use error::{Ask, BootstrapError, Refusal, list};
pub use fork::{Kept, generation};
pub use group::Alarm;
pub use host::Host;
pub use meeting::{Meeting, Network, Place};
pub use message::Event;
pub use reason::{Reason, is_on_purpose};
pub use secret::{SEALED_BYTES_MAX, Seal, TAG_BYTES, Token, random_number};
pub use waits::Chain;
pub use weftlink_membership::durations::{NOTE_AFTER, ROOTS as ROOTS_LIMIT};

use endpoint::Endpoint;
use group::{Group, HandOut};
use launcher::report_start;
use regroup::Lineage;
use room::{Room, duplicate};
use waits::Kind;

/// One rank's end of a group of ranks. Dropping it leaves the group.
#[derive(Debug)]
pub struct Bootstrap {
    rank: usize,
    /// The process that made it, which a process that was forked is not.
    process: u32,
    pids: Vec<u32>,
    hosts: Vec<u32>,
    link: Link,
    failed: Option<Failure>,
    /// What each rank was in the group that this one came out of.
    origins: Vec<usize>,
    /// How many sweeps have been made.
    sweeps: u32,
    /// How many calls, as the last word to the others will tell.
    pub calls: u32,
}

#[derive(Debug)]
enum Link {
    Room(Arc<Room>),
    Tree {
        group: Arc<Group>,
        /// Where others find this rank; a rank alone has nobody to be found by.
        endpoint: Option<Arc<Endpoint>>,
        /// How its ranks find each other when they regroup.
        lineage: Lineage,
    },
}

impl Bootstrap {
    /// A group of threads of this process: one end for each, to be moved to its thread.
    pub fn threads(size: usize) -> Vec<Bootstrap> {
        log::install();
        let room = Arc::new(Room::new(size));
        (0..size).map(|rank| Bootstrap::in_room(Arc::clone(&room), rank, size)).collect()
    }

    /// A group of one.
    pub fn alone() -> Bootstrap {
        Bootstrap::in_room(Arc::new(Room::new(1)), 0, 1)
    }

    /// This process's end of the job that its launcher made it part of.
    pub fn from_environment(knobs: &Knobs) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let bad = |error: EnvironmentError| BootstrapError::BadCall { what: error.to_string() };
        let Environment { rank, size, place, secret, secret_is_guessable, .. } =
            Environment::of_this_process().map_err(bad)?;
        let place = match place {
            Rendezvous::Tcp { host, ports } => Place::Tcp { host, ports },
            Rendezvous::OneHost { name } => Place::Abstract(name),
        };
        if secret_is_guessable && rank == 0 && matches!(place, Place::Tcp { .. }) {
            tracing::warn!(target: "weft::meet", rank,
                "no WEFT_SECRET is set: whoever reaches {place} can join; `weft run` sets one"
            );
        }
        let token = Token::new(secret.bytes())?;
        let token = if secret_is_guessable { token.guessable() } else { token };
        let meeting =
            Meeting { network: Network::of(knobs), ..Meeting::new(place, token, size, knobs.deadline) };
        if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) }
    }

    /// Rank 0 of a group of processes: listens at the place until every other rank has come.
    pub fn listen(meeting: &Meeting) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let told = |error: &BootstrapError| report_start(0, meeting.size, &failure_of(error));
        let (endpoint, group) = meeting::listen(meeting).inspect_err(told)?;
        Ok(Bootstrap::in_group(group, endpoint.map(Arc::new)))
    }

    /// Another rank of a group of processes: goes to the place, as soon as rank 0 listens there, and waits for all.
    pub fn join(meeting: &Meeting, rank: usize) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let told = |error: &BootstrapError| report_start(rank, meeting.size, &failure_of(error));
        let (endpoint, group) = meeting::join(meeting, rank).inspect_err(told)?;
        Ok(Bootstrap::in_group(group, endpoint.map(Arc::new)))
    }

    fn in_group(group: Arc<Group>, endpoint: Option<Arc<Endpoint>>) -> Bootstrap {
        let members = group.members.get().map_or(&[][..], Vec::as_slice);
        Bootstrap {
            rank: group.rank as usize,
            process: std::process::id(),
            pids: members.iter().map(|member| member.contact.pid).collect(),
            hosts: members.iter().map(|member| member.host).collect(),
            origins: (0..members.len()).collect(),
            link: Link::Tree { lineage: Lineage::new(&group), group, endpoint },
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

    /// A rank that is the reason for a failure, with its host and process.
    pub fn blame(&self, rank: u32, kind: BlameKind) -> Blame {
        self.identified(Blame::new(rank, kind))
    }

    /// The same with its host, where there are several, and its process.
    pub fn identified(&self, mut blame: Blame) -> Blame {
        let rank = blame.rank as usize;
        blame.pid = blame.pid.or_else(|| self.pids.get(rank).copied());
        if let Link::Tree { group, .. } = &self.link
            && self.hosts.iter().any(|host| *host > 0)
        {
            let host = || Some(group.members.get()?.get(rank)?.contact.host.to_string());
            blame.host = blame.host.or_else(host);
        }
        blame
    }

    /// Whether all ranks call processes by the same numbers, so that one can name another's to the kernel.
    pub fn knows_pids(&self) -> bool {
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
    pub fn share_unless_ended(
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
        shared.map_err(|error| self.fall(error, &ask, deadline))
    }

    /// All ranks say something, and each hears what all say, by rank.
    pub fn exchange(
        &mut self,
        purpose: &str,
        mine: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.exchange_unless_ended(purpose, mine, deadline, None)
    }

    /// The same, given up as [`Bootstrap::share_unless_ended`] is.
    pub fn exchange_unless_ended(
        &mut self,
        purpose: &str,
        mine: Vec<u8>,
        deadline: Duration,
        ended: Option<Waiter<'static>>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let ask = self.ask(purpose, 0)?;
        let deadline = Deadline::new(deadline).unless_ended(ended);
        let number = self.next_sweeps(1);
        let heard = match &self.link {
            Link::Room(room) => room.exchange(&ask, mine, deadline),
            Link::Tree { group, .. } => group.sweep(number, &ask, mine, deadline, None),
        };
        heard.map_err(|error| self.fall(error, &ask, deadline))
    }

    /// All ranks give a descriptor to every rank of their host. Returns them by rank: nothing for ranks of other hosts, a
    /// duplicate for this one. All ranks call this together, and it is a barrier.
    pub fn pass_descriptors(
        &mut self,
        purpose: &str,
        own: BorrowedFd<'_>,
        deadline: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, BootstrapError> {
        let ask = self.ask(purpose, 0)?;
        let turn = self.sweeps.wrapping_add(1);
        if let Link::Room(room) = &self.link {
            let put = duplicate(own, self.rank).map(|own| room.put_descriptor(self.rank, Some(own)));
            put.map_err(|error| self.fall(error, &ask, Deadline::new(deadline)))?;
        }
        // Nobody has a descriptor of this turn before, and all have theirs after the second exchange.
        self.exchange(purpose, Vec::new(), deadline)?;
        let until = Deadline::new(deadline);
        let passed = match &self.link {
            Link::Room(room) => room.descriptors(self.rank),
            Link::Tree { endpoint: None, .. } => duplicate(own, self.rank).map(|own| vec![Some(own)]),
            Link::Tree { group, endpoint: Some(endpoint), .. } => {
                descriptors::pass(group, endpoint, turn, own, purpose, until)
            }
        };
        let passed = passed.map_err(|error| self.fall(error, &ask, until))?;
        self.exchange(purpose, Vec::new(), deadline)?;
        if let Link::Room(room) = &self.link {
            room.put_descriptor(self.rank, None);
        }
        Ok(passed)
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
            Link::Tree { group, endpoint, .. } => {
                let members = group.members.get().map_or(&[][..], Vec::as_slice);
                let contacts: Vec<_> = origins.iter().map(|rank| members[*rank].contact.clone()).collect();
                let id = part_of(group.id, turn, part);
                let group = match endpoint {
                    None => Group::alone(id, contacts),
                    Some(endpoint) => {
                        let over = || group.verdict().map_or(Ok(()), Err);
                        let called: Vec<u32> = origins.iter().map(|&rank| rank as u32).collect();
                        let (elder, deadline) = ((group, &called[..]), Deadline::new(deadline));
                        let formed = split::form(endpoint, id, rank as u32, contacts, elder, deadline, over);
                        // What ended the whole group is said in its own numbers.
                        let formed = formed
                            .map_err(|error| group.verdict().unwrap_or_else(|| renamed(error, &origins)));
                        formed.map_err(|error| {
                            let ask = Ask { rank: self.rank, purpose: "a split".to_owned(), bytes: 0 };
                            self.fall(error, &ask, deadline)
                        })?
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
                let rank = rank.ok_or(BootstrapError::Excluded { rank: self.rank })?;
                let mut shrunk = Bootstrap::in_room(room, rank, origins.len());
                shrunk.origins = origins.into_iter().map(|rank| rank as usize).collect();
                shrunk
            }
            Link::Tree { endpoint: None, group, .. } => {
                let contacts = group.members.get().into_iter().flatten().map(|member| member.contact.clone());
                Bootstrap::in_group(Group::alone(group.id, contacts.collect()), None)
            }
            Link::Tree { group, endpoint: Some(endpoint), lineage: old } => {
                let (group, lineage) = regroup::regroup(group, endpoint, old, deadline)?;
                let origins = old.origins(&lineage);
                let mut shrunk = Bootstrap::in_group(Arc::clone(&group), Some(Arc::clone(endpoint)));
                shrunk.link = Link::Tree { group, endpoint: Some(Arc::clone(endpoint)), lineage };
                shrunk.origins = origins;
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
            process: std::process::id(),
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
    pub fn connect(
        &mut self,
        peers: &BTreeSet<u32>,
        streams: u32,
        deadline: Duration,
    ) -> Result<Vec<Vec<Connection>>, BootstrapError> {
        let Link::Tree { group, endpoint: Some(endpoint), .. } = &self.link else { return Ok(Vec::new()) };
        let deadline = Deadline::new(deadline);
        let mut connections: Vec<Vec<_>> = peers.iter().map(|_| Vec::new()).collect();
        match wires::connect(group, endpoint, peers, streams, deadline, &mut connections) {
            Ok(()) => Ok(connections),
            // The connections stay open while `fall` tells the peers why. A peer that saw its connection close first would blame this rank.
            Err(error) => {
                let ask = Ask { rank: self.rank, purpose: wires::PURPOSE.to_owned(), bytes: 0 };
                Err(self.fall(error, &ask, deadline))
            }
        }
    }

    /// What to do with news from now on, on the steward's thread; nothing after the bootstrap is dropped.
    pub fn set_alarm(&self, alarm: Alarm) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_alarm(Some(alarm));
        }
    }

    /// Nothing more is done with news. What the alarm points to may go.
    pub fn clear_alarm(&self) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_alarm(None);
        }
    }

    /// Tells all ranks something, from any thread; nothing once the bootstrap is dropped. Threads of one process share memory, and
    /// have to be told of failures only.
    pub fn teller(&self) -> impl Fn(Event) + Send + 'static {
        let (group, room) = self.weak_link();
        move |news| match (group.upgrade(), room.upgrade(), news) {
            (Some(group), _, news) => group.learn(news),
            (None, Some(room), Event::Failed { error, .. }) => room.fail(&error),
            _ => {}
        }
    }

    /// What the rank said that gave the group up, and whom it blames, from any thread; nothing as long as that is not heard.
    pub fn hearer(&self) -> impl Fn() -> Option<(String, Vec<Blame>)> + Send + 'static {
        let (group, room) = self.weak_link();
        move || match (group.upgrade(), room.upgrade()) {
            (Some(group), _) => group.verdict().map(said),
            (None, Some(room)) => room.await_failure(Deadline::new(Duration::ZERO)).map(said),
            // The bootstrap is dropped, so no reason will arrive.
            (None, None) => Some((String::new(), Vec::new())),
        }
    }

    fn weak_link(&self) -> (Weak<Group>, Weak<Room>) {
        match &self.link {
            Link::Tree { group, .. } => (Arc::downgrade(group), Weak::new()),
            Link::Room(room) => (Weak::new(), Arc::downgrade(room)),
        }
    }

    /// Notes whom this rank waited for in a call that has failed, asks all others the same, and gives them a moment to say so.
    /// Who is waited for in the end: stopped, or busy with something else. Where this rank waits for nobody, the waits of
    /// another are followed.
    pub fn roots(&self, whom: Option<u32>, other: u32, patience: Duration) -> Vec<usize> {
        let roots = match &self.link {
            Link::Room(room) => {
                whom.into_iter().for_each(|whom| room.waits_for(self.rank as u32, &[whom]));
                room.roots(self.rank as u32, Some(other))
            }
            Link::Tree { group, .. } => {
                whom.into_iter().for_each(|whom| group.waits_for(&[whom]));
                group.ask_for_roots(Some(other), Deadline::new(patience))
            }
        };
        roots.into_iter().map(|rank| rank as usize).collect()
    }

    /// Who waits for whom, for those who wait in calls.
    pub fn chain(&self) -> Chain {
        Chain(match &self.link {
            Link::Room(room) => Kind::Room(Arc::downgrade(room), self.rank as u32),
            Link::Tree { group, .. } => Kind::Tree(Arc::downgrade(group)),
        })
    }

    /// After how long people are told of waits outside of calls.
    pub fn set_warn_after(&self, warn_after: Duration) {
        match &self.link {
            Link::Room(room) => room.warn_after(warn_after),
            Link::Tree { group, .. } => group.set_warn_after(warn_after),
        }
    }

    /// Between whom a connection was lost, if that is what went wrong first and is heard in time: who noticed, to whom, and
    /// what.
    pub fn lost(&self, patience: Duration) -> Option<(u32, u32, String)> {
        let Link::Tree { group, .. } = &self.link else { return None };
        match group.await_failure(Deadline::new(patience))? {
            BootstrapError::Lost { rank, by, what, .. } => Some((by as u32, rank as u32, what)),
            _ => None,
        }
    }

    /// What the rank said that gave the group up, and whom it blames, if that is heard in time.
    pub fn cause(&self, patience: Duration) -> Option<(String, Vec<Blame>)> {
        let error = match &self.link {
            Link::Room(room) => room.await_failure(Deadline::new(patience.min(THREAD_CAUSE))),
            Link::Tree { group, .. } => group.await_failure(Deadline::new(patience)),
        };
        error.map(said)
    }

    /// Gives the group up because of something else than a call of this bootstrap, so that whoever calls it, or is waiting
    /// in it, need not wait for this rank. The culprit and the reason are for the abort word of ranks on other hosts.
    pub fn give_up(&mut self, failure: &Failure, culprit: u32, reason: u32) {
        if self.failed.is_none() {
            let (cause, blamed) = (failure.why.clone(), failure.blamed.clone());
            let blamed = blamed.into_iter().map(|blame| self.identified(blame)).collect();
            let error = BootstrapError::GaveUp { rank: self.rank, cause, blamed };
            self.failed = Some(failure_of(&error));
            match &self.link {
                Link::Room(room) => room.fail(&error),
                Link::Tree { group, .. } => group.fail(reason, culprit, &error),
            }
        }
    }

    fn ask(&self, purpose: &str, bytes: usize) -> Result<Ask, BootstrapError> {
        if let Some(Failure { why, blamed, .. }) = &self.failed {
            return Err(BootstrapError::Poisoned { cause: why.clone(), blamed: blamed.clone() });
        }
        check(purpose)?;
        Ok(Ask { rank: self.rank, purpose: purpose.to_owned(), bytes })
    }

    fn next_sweeps(&mut self, count: u32) -> u32 {
        let next = self.sweeps.wrapping_add(1);
        self.sweeps = self.sweeps.wrapping_add(count);
        next
    }

    /// Tells the others why it is over, as far as they still listen. If that is that ranks waited for too long, finds out for
    /// whom in the end, and makes that the error.
    fn fall(&mut self, error: BootstrapError, ask: &Ask, deadline: Deadline) -> BootstrapError {
        use BootstrapError::{Late, Missing};
        let group = match &self.link {
            Link::Room(room) => {
                let error = match error {
                    Missing { ranks, purpose, limit } => {
                        let roots = room.roots(self.rank as u32, None);
                        let roots: Vec<usize> = roots.into_iter().map(|rank| rank as usize).collect();
                        Missing { ranks: if roots.is_empty() { ranks } else { roots }, purpose, limit }
                    }
                    other => other,
                };
                room.fail(&error);
                self.failed.get_or_insert_with(|| failure_of(&error));
                return error;
            }
            Link::Tree { group, .. } => group,
        };
        group.fail_for(&error);
        let error = match group.failed_late() {
            Some(by) if !deadline.is_ended() => {
                let ranks = group.ask_for_roots(Some(by), Deadline::new(ROOTS_LIMIT));
                let blamed: Vec<Blame> =
                    ranks.into_iter().map(|rank| self.blame(rank, BlameKind::Late)).collect();
                let (purpose, waited) = (ask.purpose.clone(), deadline.waited());
                if blamed.is_empty() { error } else { Late { blamed, purpose, waited } }
            }
            _ => error,
        };
        self.failed.get_or_insert_with(|| failure_of(&error));
        error
    }
}

/// What a rank said that gave up, and whom it blames.
fn said(error: BootstrapError) -> (String, Vec<Blame>) {
    let blamed = error.blamed();
    match error {
        BootstrapError::GaveUp { cause, .. } => (cause, blamed),
        error => (error.to_string(), blamed),
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        // A process that was forked off shares our connections and must not speak for us. It must not even take a lock: a thread that
        // held one when it was forked does not run there.
        if self.process != std::process::id() {
            return;
        }
        match &self.link {
            Link::Room(room) => room.leave(self.rank),
            Link::Tree { group, endpoint, .. } => {
                group.set_alarm(None);
                if let Some(endpoint) = endpoint {
                    group.leave(self.calls, || endpoint.wake());
                    endpoint.leave(group, self.calls);
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
        |error: weftlink_shm::memory::MemoryError| BootstrapError::Memory { rank, reason: error.to_string() };
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

/// An error of a part of a group, as the whole calls its ranks.
fn renamed(error: BootstrapError, origins: &[usize]) -> BootstrapError {
    use BootstrapError::{Died, Lost, Missing, NoAnswer};
    let of = |rank: usize| origins.get(rank).copied().unwrap_or(rank);
    match error {
        Died { rank, host, pid } => Died { rank: of(rank), host, pid },
        Lost { rank, host, pid, by, what } => Lost { rank: of(rank), host, pid, by: of(by), what },
        Missing { ranks, purpose, limit } => {
            Missing { ranks: ranks.into_iter().map(of).collect(), purpose, limit }
        }
        NoAnswer { rank, pid, purpose, limit } => NoAnswer { rank: of(rank), pid, purpose, limit },
        other => other,
    }
}

/// Why a bootstrap cannot be used any more.
fn failure_of(error: &BootstrapError) -> Failure {
    Failure { why: error.to_string(), blamed: error.blamed(), aborted_by: None }
}

/// What a rank says that gives a group up for an error.
fn gives_up(rank: u32, error: &BootstrapError) -> Event {
    let code = Reason::of(error, rank);
    Event::Failed { rank, reason: code.reason.get(), culprit: code.rank, error: error.clone() }
}

/// What is wrong, according to news.
fn error_of(news: Event) -> BootstrapError {
    match news {
        Event::Failed { error, .. } => error,
        other => BootstrapError::Protocol { rank: 0, what: format!("it said {other:?}") },
    }
}
