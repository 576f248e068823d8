//! The monitor of a rank: it listens for connections of other ranks, and its thread watches the neighbours in every group.
//!
//! The *monitor thread* (`monitor/thread.rs`) polls everything at once. A new connection waits in [`super::pending`] until it has
//! sent enough; then one of a few helper threads does the handshake, within a few seconds. A message from a neighbour goes to its group, and so does the
//! end of a neighbour's connection or process. The thread watches processes where the kernel allows it (a pidfd), because
//! a child that a neighbour forked may keep its connection open.
//!
//! Connections that prove to be of this job wait in a list until the rank takes them over. Others leave a note, for messages
//! about ranks that are missing, and nothing else.

mod dial;
mod thread;

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use weftlink_membership::Gone;
use weftlink_membership::durations::{ACCEPT_POLL, SEND};
use weftlink_membership::regroup;
use weftlink_shm::limits::{self, STACK_BYTES};
use weftlink_shm::poll_hook;

use super::address::{Listener, listen_abstract};
use super::broken::{Broken, PeerStatus};
use super::channel::{Channel, NAME_BYTES};
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::fork::ForkGuard;
use super::group::{Group, Link};
use super::host::Host;
use super::message::{Contact, Introduction, Message};
use super::peer::Peer;
use super::pending::Limits;
use super::process::Process;
use super::secret::{Token, random_number};

/// Groups that are remembered after this rank has left, abandoned or replaced them.
const REMEMBERED_MAX: usize = 256;
/// Up to this number, connections that wait for the rank are not checked for whether they have ended.
const ARRIVALS_MIN: usize = 64;
/// A bound on notes about refused connections.
const NOTES_MAX: usize = 8;

/// A rank's listeners and its monitor thread.
#[derive(Debug)]
pub(super) struct Monitor {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    /// The process that started it. A forked child has no monitor thread and must not touch anything.
    pid: u32,
}

#[derive(Debug)]
pub(super) struct Inner {
    token: Token,
    host: Host,
    /// The name of the socket for ranks of the same host. A rank that connects to an address checks it, to see whether this is the process that it means.
    name: [u8; NAME_BYTES],
    /// Written to when something is to be watched that was not, or something waits to be written.
    wake: Arc<OwnedFd>,
    quit: AtomicBool,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// A child that was forked off must not seem to listen when this process has died.
    listeners: Vec<(ForkGuard, Arc<Listener>)>,
    pub(super) links: Vec<(Arc<Link>, Weak<Group>)>,
    /// Groups that are watched, for ranks that connect because their parent left.
    groups: Vec<Weak<Group>>,
    arrivals: VecDeque<(Introduction, Channel)>,
    /// How many of them there may be before those that have ended are dropped.
    arrivals_max: usize,
    /// Groups that this rank has left, the last ones, and how.
    left: VecDeque<(u64, Gone)>,
    /// Groups whose trees this rank has abandoned while it regrouped.
    abandoned: VecDeque<u64>,
    /// First groups of lineages that this rank has left for good.
    left_lineages: VecDeque<u64>,
    /// The ranks that are left of each first group, by its number, once this rank has regrouped.
    regrouped: VecDeque<(u64, Vec<u32>)>,
    /// Eventfds of ranks that wait for connections.
    wakes: Vec<Weak<OwnedFd>>,
    helpers: usize,
    notes: Vec<String>,
    /// Whether ranks may join here: this is rank 0, and its rendezvous is not over.
    pub(super) is_admitting: bool,
}

impl Monitor {
    pub(super) fn new(token: &Token, host: Host) -> Result<Monitor, BootstrapError> {
        let failed = |what: &'static str| move |error: io::Error| failed(what, &error);
        let text = format!("weft-{:016x}{:016x}", random_number()?, random_number()?);
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(text.as_bytes());
        let listener = Listener::Unix(listen_abstract(&name).map_err(failed("listen for the others"))?);
        let listener = Arc::new(listener.with_backlog());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|error| failed("make an eventfd")(error.into()))?;
        let inner = Arc::new(Inner {
            token: token.clone(),
            host,
            name,
            wake: Arc::new(wake),
            quit: AtomicBool::new(false),
            limits: Limits::of_this_process(),
            state: Mutex::new(State { listeners: vec![noted(&listener)], ..State::default() }),
            changed: Condvar::new(),
        });
        let monitor = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("weft-monitor".to_owned()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn(move || monitor.run())
            .map_err(|error| BootstrapError::System { what: limits::no_thread(&error) })?;
        Ok(Monitor { inner, thread: Some(thread), pid: std::process::id() })
    }

    /// Whether this process made it, and has not got it from one that forked it off.
    pub(super) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    /// The contact of this process for other ranks.
    pub(super) fn contact(&self, addresses: Vec<std::net::SocketAddr>) -> Contact {
        let (host, name) = (self.inner.host.clone(), self.inner.name.to_vec());
        Contact { pid: self.pid, host, name, addresses }
    }

    /// Accepts connections at another listener.
    pub(super) fn listen(&self, listener: Listener) -> Arc<Listener> {
        let listener = Arc::new(listener.with_backlog());
        self.inner.state().listeners.push(noted(&listener));
        self.inner.wake();
        listener
    }

    /// The same for TCP sockets at one port, which is returned.
    pub(super) fn listen_tcp(&self, listeners: Vec<TcpListener>) -> Result<u16, BootstrapError> {
        let mut port = 0;
        for listener in listeners {
            port = listener.local_addr().map_err(|error| failed("listen for the others", &error))?.port();
            self.listen(Listener::Tcp(listener));
        }
        Ok(port)
    }

    pub(super) fn stop_listening(&self, listener: &Arc<Listener>) {
        self.inner.state().listeners.retain(|(_, other)| !Arc::ptr_eq(listener, other));
        self.inner.wake();
    }

    /// Keeps connections of ranks that want to join, or closes them.
    pub(super) fn set_admitting(&self, is_admitting: bool) {
        self.inner.state().is_admitting = is_admitting;
    }

    /// Watches all links of a group.
    pub(super) fn watch(&self, group: &Arc<Group>) {
        self.inner.state().groups.push(Arc::downgrade(group));
        group.links().iter().for_each(|link| self.inner.watch(link, group));
        self.inner.wake();
    }

    /// Stops watching a group that this rank leaves after `calls` calls, and remembers it, for ranks that ask later. This rank does not
    /// regroup with the ranks of that lineage any more.
    pub(super) fn leave(&self, group: &Arc<Group>, calls: u32, lineage: u64) {
        let mut state = self.inner.state();
        remember(&mut state.left, (group.id, Gone::Left { calls }));
        remember(&mut state.left_lineages, lineage);
        drop(state);
        self.unwatch(group);
        self.answer_late(lineage);
    }

    /// The same for a group that this rank leaves because it has continued in another.
    pub(super) fn continue_in(&self, group: &Arc<Group>, later: u64) {
        remember(&mut self.inner.state().left, (group.id, Gone::Continued { group: later }));
        self.unwatch(group);
    }

    /// Has the monitor thread carry out what groups want done.
    pub(super) fn wake(&self) {
        self.inner.wake();
    }

    /// Stops watching a group.
    pub(super) fn unwatch(&self, group: &Arc<Group>) {
        let gone = Arc::downgrade(group);
        let mut state = self.inner.state();
        state.links.retain(|(_, group)| !Weak::ptr_eq(group, &gone));
        state.groups.retain(|group| !Weak::ptr_eq(group, &gone));
        // Nobody will take over what others want in this group.
        state.arrivals.retain(|(introduction, _)| {
            !matches!(introduction, Introduction::Wire { group: id, .. } | Introduction::Descriptor { group: id, .. }
                | Introduction::Link { group: id, .. } if *id == group.id)
        });
        drop(state);
        self.inner.wake();
    }

    /// Waits for a connection whose introduction is wanted. `over` returns an error if none will come.
    pub(super) fn expect<T>(
        &self,
        deadline: Deadline,
        mut wanted: impl FnMut(&Introduction) -> Option<T>,
        mut over: impl FnMut() -> Result<(), BootstrapError>,
    ) -> Result<Option<(T, Channel)>, BootstrapError> {
        let mut state = self.inner.state();
        loop {
            let mut found = None;
            let position = state.arrivals.iter().position(|(introduction, _)| {
                found = wanted(introduction);
                found.is_some()
            });
            if let (Some(position), Some(found)) = (position, found) {
                let arrived = state.arrivals.remove(position);
                return Ok(arrived.map(|(_, channel)| (found, channel)));
            }
            let Some(left) = deadline.left() else { return Ok(None) };
            drop(state);
            poll_hook::poll();
            over()?;
            state = self.inner.state();
            let waited = self.inner.changed.wait_timeout(state, left.min(ACCEPT_POLL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes over the accepted connections whose introductions match, in the order in which they came.
    pub(super) fn arrivals(&self, matches: impl Fn(&Introduction) -> bool) -> Vec<(Introduction, Channel)> {
        let mut state = self.inner.state();
        let (taken, kept) = std::mem::take(&mut state.arrivals)
            .into_iter()
            .partition(|(introduction, _)| matches(introduction));
        state.arrivals = kept;
        taken.into()
    }

    /// Links to the children of a group that have connected, of those that `awaits` names.
    pub(super) fn children(&self, group: u64, awaits: impl Fn(u32) -> bool) -> Vec<Arc<Link>> {
        let child = |introduction: &Introduction| match introduction {
            Introduction::Link { group: theirs, from } if *theirs == group && awaits(*from) => Some(*from),
            _ => None,
        };
        let arrived = self.arrivals(|introduction| child(introduction).is_some()).into_iter();
        arrived.filter_map(|(introduction, channel)| Some(link(child(&introduction)?, channel))).collect()
    }

    /// Writes to an eventfd whenever a connection has been accepted, for as long as the eventfd is there.
    pub(super) fn wake_on_arrival(&self, wake: &Arc<OwnedFd>) {
        let mut state = self.inner.state();
        state.wakes.retain(|wake| wake.strong_count() > 0);
        state.wakes.push(Arc::downgrade(wake));
    }

    /// Closes connections of children in the tree of a group that this rank has abandoned.
    pub(super) fn refuse_children(&self, group: u64) {
        let mut state = self.inner.state();
        remember(&mut state.abandoned, group);
        state.arrivals.retain(|(introduction, _)| {
            !matches!(introduction, Introduction::Link { group: theirs, .. } if *theirs == group)
        });
    }

    /// Remembers which ranks of a lineage are left, and answers all others that come to regroup that they are excluded.
    pub(super) fn regrouped(&self, lineage: u64, ranks: &[u32]) {
        let mut state = self.inner.state();
        state.regrouped.retain(|(other, _)| *other != lineage);
        remember(&mut state.regrouped, (lineage, ranks.to_vec()));
        state.drop_ended();
        drop(state);
        self.answer_late(lineage);
    }

    /// Answers ranks that came to regroup with a lineage and that this rank does not regroup with any more.
    fn answer_late(&self, lineage: u64) {
        let of_lineage = |introduction: &Introduction| matches!(introduction, Introduction::Regroup { lineage: id, .. } if *id == lineage);
        let (late, early): (Vec<_>, Vec<_>) = self
            .arrivals(of_lineage)
            .into_iter()
            .map(|(introduction, channel)| {
                (self.inner.state().answer_to(&introduction), introduction, channel)
            })
            .partition(|(answer, ..)| answer.is_some());
        let mut state = self.inner.state();
        state.arrivals.extend(early.into_iter().map(|(_, introduction, channel)| (introduction, channel)));
        drop(state);
        for (answer, _, channel) in late {
            answer.into_iter().for_each(|answer| abort(&channel, answer));
        }
    }

    /// Connects to a rank and introduces this one.
    pub(super) fn dial(
        &self,
        contact: &Contact,
        introduction: &Introduction,
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        self.inner.dial(contact, introduction, deadline)
    }

    /// What processes that were refused wanted.
    pub(super) fn notes(&self) -> Vec<String> {
        self.inner.state().notes.clone()
    }

    /// A connection to a neighbour, with its process if that can be watched.
    pub(super) fn link(&self, rank: u32, channel: Channel) -> Arc<Link> {
        link(rank, channel)
    }

    /// What became of a rank whose connection has ended: its process has, too, or the two cannot reach each other any more.
    pub(super) fn inquire(&self, contact: &Contact) -> PeerStatus {
        self.inner.inquire(contact)
    }
}

/// A connection to a neighbour, with its process if that can be watched.
pub(super) fn link(rank: u32, channel: Channel) -> Arc<Link> {
    // The kernel says who is at the other end, in our own numbers.
    let peer = Peer::of(&channel);
    let is_local = peer.is_some();
    let pid = peer.and_then(|peer| peer.pid);
    let other = pid.filter(|pid| pid.as_raw_nonzero().get() as u32 != std::process::id());
    let process = other.and_then(Process::watch);
    Arc::new(Link { rank, channel, process, is_local, has_ended: AtomicBool::new(false) })
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.is_ours() {
            // A forked child does not have the thread.
            std::mem::forget(thread);
            return;
        }
        self.inner.quit.store(true, Ordering::Release);
        self.inner.wake();
        let _ = thread.join();
        // Helpers may still hold the rest. A listener that stays open would accept connections that no thread serves, and peers would
        // take this rank for stopped.
        let mut state = self.inner.state();
        let closed = (
            std::mem::take(&mut state.listeners),
            std::mem::take(&mut state.links),
            std::mem::take(&mut state.arrivals),
        );
        drop(state);
        drop(closed);
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl State {
    /// The answer to a rank that comes to regroup, if this rank does not regroup with it.
    fn answer_to(&self, introduction: &Introduction) -> Option<regroup::Abort> {
        let Introduction::Regroup { lineage, hello } = introduction else { return None };
        let excludes = |(id, ranks): &(u64, Vec<u32>)| id == lineage && !ranks.contains(&hello.from);
        match self.regrouped.iter().any(excludes) {
            true => Some(regroup::Abort::Excluded),
            false => self.left_lineages.contains(lineage).then_some(regroup::Abort::Left),
        }
    }

    /// Adds a connection for the rank to take over.
    fn arrive(&mut self, introduction: Introduction, channel: Channel) {
        // A rank that comes again has given its earlier connection up.
        if let Introduction::Regroup { lineage, hello } = &introduction {
            self.arrivals.retain(|(other, _)| {
                !matches!(other, Introduction::Regroup { lineage: id, hello: earlier } if id == lineage && earlier.from == hello.from)
            });
        }
        self.arrivals.push_back((introduction, channel));
        if self.arrivals.len() > self.arrivals_max.max(ARRIVALS_MIN) {
            self.drop_ended();
        }
    }

    /// Drops connections that their peers have closed, because nobody may ever take them over. The hello of a rank that regroups
    /// counts even then, and rank 0 reports what became of one that joins.
    fn drop_ended(&mut self) {
        self.arrivals.retain(|(introduction, channel)| {
            matches!(introduction, Introduction::Regroup { .. } | Introduction::Join(_))
                || !channel.has_ended()
        });
        self.arrivals_max = 2 * self.arrivals.len();
    }

    fn note(&mut self, what: String) {
        tracing::trace!(target: "weft::meet", "somebody was turned away: {what}");
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }
}

fn remember<T>(list: &mut VecDeque<T>, one: T) {
    list.push_back(one);
    if list.len() > REMEMBERED_MAX {
        list.pop_front();
    }
}

/// Answers a rank that comes to regroup.
fn abort(channel: &Channel, why: regroup::Abort) {
    let abort = regroup::Message::Abort { group: None, why };
    let _ = channel.send(&Message::Regroup(abort), None, Deadline::new(SEND));
}

fn noted(listener: &Arc<Listener>) -> (ForkGuard, Arc<Listener>) {
    (ForkGuard::new(&**listener), Arc::clone(listener))
}

fn failed(what: &str, error: &io::Error) -> BootstrapError {
    BootstrapError::System { what: format!("cannot {what}: {error}") }
}

#[cfg(test)]
pub(super) mod tests;
