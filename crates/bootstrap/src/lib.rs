//! How ranks find each other, and what they do together outside of calls: exchange bytes, share memory, and learn at once when
//! one of them is gone.
//!
//! A [`Bootstrap`] is one rank's end of the group. There are two kinds:
//!
//! - [`Bootstrap::threads`]: the ranks are threads of this process and share an in-process group (`in_process.rs`).
//! - [`Bootstrap::listen`] and [`Bootstrap::join`]: the ranks are processes, on one host or several. Rank 0 listens at an
//!   address (`listen.rs`), the others connect and prove that they belong to the job (`join.rs`); then all take their slots
//!   in a tree (`group.rs`), whose links a thread of each rank watches (`monitor.rs`).
//!
//! From then on all ranks call [`Bootstrap::share`] and [`Bootstrap::exchange`] in the same order with the same arguments.
//! `share` gives the ranks of a host a mapping of the same zeroed memory. It returns memory only when every rank has mapped it,
//! and an error on one rank becomes the same error on all. So both are barriers too. Every queue, counter and window of a
//! communicator lies in such memory.
//!
//! After an error the ranks are no longer in step, so the bootstrap is poisoned: it reports the error to the other ranks and
//! returns it from every later call. Recover with [`Bootstrap::shrink`] or a new rendezvous.
//!
//! Deliberately absent: the data of calls, which goes through shared memory or connections of its own.

#[macro_use]
extern crate weftlink_shm;

mod address;
mod blame;
mod broken;
mod channel;
mod connections;
mod deadline;
mod descriptors;
mod environment;
mod error;
mod failure;
mod fork;
mod greeting;
mod group;
mod host;
mod in_process;
mod join;
pub mod launcher;
mod listen;
mod message;
mod monitor;
mod outgoing;
mod peer;
mod pending;
mod process;
mod rank_link;
mod reason;
mod regroup;
mod rendezvous;
mod rendezvous_address;
mod reparent;
mod secret;
mod slots;
mod split;
mod subgroups;
mod sweep;
mod terms;
mod waits;
mod wires;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use weftlink_knobs::{Knobs, log};
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Waiter;

pub use blame::{Blame, BlameKind, Failure};
pub use channel::Connection;
pub use deadline::Deadline;
pub use environment::{
    Environment, EnvironmentError, EnvironmentSource, Launcher, SECRET_BYTES_MAX, Secret, expand_nodelist,
};
pub use error::{BootstrapError, Refusal, Request, list};
pub use fork::{CloseOnFork, generation};
pub use group::EventHandler;
pub use host::Host;
pub use message::Event;
pub use rank_link::{LinkEnded, Parcel, RankLink};
pub use reason::{Reason, is_on_purpose};
pub use rendezvous::{Network, Rendezvous};
pub use rendezvous_address::RendezvousAddress;
pub use secret::{SEALED_BYTES_MAX, Seal, TAG_BYTES, Token, random_number};
pub use waits::Chain;
pub use weftlink_membership::durations::{NOTE_AFTER, ROOTS as ROOTS_LIMIT};

use failure::failure_of;
use group::Group;
use in_process::InProcessGroup;
use launcher::report_start;
use monitor::Monitor;
use regroup::Lineage;

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
    /// The group that this rank is in now, if it has regrouped.
    continued_in: Option<u64>,
    /// How many sweeps have been made.
    sweeps: u32,
    /// The number of calls, which this rank announces when it leaves.
    pub calls: u32,
}

#[derive(Debug)]
enum Link {
    InProcess(Arc<InProcessGroup>),
    Tree {
        group: Arc<Group>,
        /// Where others find this rank; a rank alone has nobody to be found by.
        monitor: Option<Arc<Monitor>>,
        /// How its ranks find each other when they regroup.
        lineage: Lineage,
    },
}

impl Bootstrap {
    /// A group of threads of this process: one end for each, to be moved to its thread.
    pub fn threads(size: usize) -> Vec<Bootstrap> {
        log::install();
        let local = Arc::new(InProcessGroup::new(size));
        (0..size).map(|rank| Bootstrap::in_process(Arc::clone(&local), rank, size)).collect()
    }

    /// A group of one.
    pub fn alone() -> Bootstrap {
        Bootstrap::in_process(Arc::new(InProcessGroup::new(1)), 0, 1)
    }

    /// This process's end of the job that its launcher made it part of.
    pub fn from_environment(knobs: &Knobs) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let bad = |error: EnvironmentError| BootstrapError::BadCall { what: error.to_string() };
        let Environment { rank, size, address, secret, secret_is_guessable, .. } =
            Environment::of_this_process().map_err(bad)?;
        if secret_is_guessable && rank == 0 && matches!(address, RendezvousAddress::Tcp { .. }) {
            tracing::warn!(target: "weft::meet", rank,
                "WEFT_SECRET is not set: any process that reaches {address} can join. `weft run` sets a secret"
            );
        }
        let token = Token::new(secret.bytes())?;
        let token = if secret_is_guessable { token.guessable() } else { token };
        let rendezvous = Rendezvous {
            network: Network::of(knobs),
            ..Rendezvous::new(address, token, size, knobs.deadline)
        };
        if rank == 0 { Bootstrap::listen(&rendezvous) } else { Bootstrap::join(&rendezvous, rank) }
    }

    /// Rank 0 of a group of processes: listens until every other rank has joined.
    pub fn listen(rendezvous: &Rendezvous) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let report = |error: &BootstrapError| report_start(0, rendezvous.size, &failure_of(error));
        let (monitor, group) = listen::listen(rendezvous).inspect_err(report)?;
        Ok(Bootstrap::in_group(group, monitor.map(Arc::new)))
    }

    /// Another rank of a group of processes: connects as soon as rank 0 listens, and waits for all.
    pub fn join(rendezvous: &Rendezvous, rank: usize) -> Result<Bootstrap, BootstrapError> {
        log::install();
        let report = |error: &BootstrapError| report_start(rank, rendezvous.size, &failure_of(error));
        let (monitor, group) = join::join(rendezvous, rank).inspect_err(report)?;
        Ok(Bootstrap::in_group(group, monitor.map(Arc::new)))
    }

    fn in_group(group: Arc<Group>, monitor: Option<Arc<Monitor>>) -> Bootstrap {
        let members = group.members.get().map_or(&[][..], Vec::as_slice);
        Bootstrap {
            rank: group.rank as usize,
            process: std::process::id(),
            pids: members.iter().map(|member| member.contact.pid).collect(),
            hosts: members.iter().map(|member| member.host).collect(),
            origins: (0..members.len()).collect(),
            link: Link::Tree { lineage: Lineage::new(&group), group, monitor },
            failed: None,
            continued_in: None,
            sweeps: 0,
            calls: 0,
        }
    }

    /// A number that all ranks of the group have, and no other group.
    pub fn id(&self) -> u64 {
        match &self.link {
            Link::InProcess(local) => local.id,
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

    /// The name of a rank in messages: its number, host and process.
    pub fn name(&self, rank: usize) -> String {
        // A peer may name a rank that does not exist.
        let Some(&pid) = self.pids.get(rank) else { return format!("rank {rank}") };
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
            Link::InProcess(_) => true,
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

    /// The same, but given up within milliseconds when a caller aborts the communicator of this waiter on purpose. The error is
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
            Link::InProcess(local) => local.share(&ask, deadline),
            Link::Tree { group, .. } => sweep::share(group, number, &ask, deadline),
        };
        shared.map_err(|error| self.fall(error, &ask, deadline))
    }

    /// All ranks contribute bytes, and each gets the bytes of all, by rank.
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
            Link::InProcess(local) => local.exchange(&ask, mine, deadline),
            Link::Tree { group, .. } => group.sweep(number, &ask, mine, deadline, None),
        };
        heard.map_err(|error| self.fall(error, &ask, deadline))
    }

    /// What each rank was in the group that this one was split or shrunk from; its own number if there was none.
    pub fn origins(&self) -> &[usize] {
        &self.origins
    }

    fn in_process(local: Arc<InProcessGroup>, rank: usize, size: usize) -> Bootstrap {
        Bootstrap {
            rank,
            process: std::process::id(),
            pids: vec![std::process::id(); size],
            hosts: vec![0; size],
            link: Link::InProcess(local),
            failed: None,
            continued_in: None,
            origins: (0..size).collect(),
            sweeps: 0,
            calls: 0,
        }
    }

    /// Connections to ranks of other hosts, for messages of plans: `streams` to each, in the order of the ranks. The ranks all
    /// do this together.
    pub fn connect(
        &mut self,
        peers: &BTreeSet<u32>,
        streams: u32,
        deadline: Duration,
    ) -> Result<Vec<Vec<Connection>>, BootstrapError> {
        let Link::Tree { group, monitor: Some(monitor), .. } = &self.link else { return Ok(Vec::new()) };
        let deadline = Deadline::new(deadline);
        let mut connections: Vec<Vec<_>> = peers.iter().map(|_| Vec::new()).collect();
        match wires::connect(group, monitor, peers, streams, deadline, &mut connections) {
            Ok(()) => Ok(connections),
            // The connections stay open while `fall` reports the error to the peers. A peer that saw its connection close first would blame this rank.
            Err(error) => {
                let ask = Request { rank: self.rank, purpose: wires::PURPOSE.to_owned(), bytes: 0 };
                Err(self.fall(error, &ask, deadline))
            }
        }
    }

    /// Sets the function that the monitor thread calls for every event, until the bootstrap is dropped.
    pub fn set_event_handler(&self, alarm: EventHandler) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_event_handler(Some(alarm));
        }
    }

    /// Removes the event handler. What it refers to may be dropped afterwards.
    pub fn clear_event_handler(&self) {
        if let Link::Tree { group, .. } = &self.link {
            group.set_event_handler(None);
        }
    }

    /// Sets the time after which a wait outside of calls is logged.
    pub fn set_warn_after(&self, warn_after: Duration) {
        match &self.link {
            Link::InProcess(local) => local.warn_after(warn_after),
            Link::Tree { group, .. } => group.set_warn_after(warn_after),
        }
    }

    fn ask(&self, purpose: &str, bytes: usize) -> Result<Request, BootstrapError> {
        if let Some(Failure { why, blamed, .. }) = &self.failed {
            return Err(BootstrapError::Poisoned { cause: why.clone(), blamed: blamed.clone() });
        }
        check(purpose)?;
        Ok(Request { rank: self.rank, purpose: purpose.to_owned(), bytes })
    }

    fn next_sweeps(&mut self, count: u32) -> u32 {
        let next = self.sweeps.wrapping_add(1);
        self.sweeps = self.sweeps.wrapping_add(count);
        next
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
            Link::InProcess(local) => local.leave(self.rank),
            Link::Tree { group, monitor, lineage } => {
                group.set_event_handler(None);
                let Some(monitor) = monitor else { return };
                match self.continued_in {
                    // It has not left, as the others have heard.
                    Some(later) => {
                        group.drain();
                        monitor.continue_in(group, later);
                    }
                    None => {
                        group.leave(self.calls, || monitor.wake());
                        monitor.leave(group, self.calls, lineage.id);
                    }
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
