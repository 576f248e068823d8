//! One rank's view of a group of processes: its neighbours in a tree, the messages that they sent, and what all ranks know.
//!
//! Two threads use it. The rank's own thread exchanges bytes and waits (`sweep.rs`). The monitor thread (`monitor.rs`) brings in
//! messages from neighbours and notices when they are gone. A state machine, [`weftlink_membership::Group`], decides what that
//! means; this is its driver. Probes and connections that the machine asks for take time, so the monitor thread carries them out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use weftlink_membership::durations::{DEPARTURE, DRAIN as DRAIN_LIMIT, POLL, WARN_AFTER};
use weftlink_membership::tree::Shape;
use weftlink_membership::{Action, Input};
use weftlink_shm::poll_hook;

use super::channel::{Channel, Received};
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::message::{Event, Member, Message};
use super::process::Process;
use super::reason::{Reason, failed_event};

/// A connection to a neighbour.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: u32,
    pub(super) channel: Channel,
    /// Where the neighbour's process can be watched.
    pub(super) process: Option<Process>,
    pub(super) is_local: bool,
    pub(super) has_ended: AtomicBool,
}

/// Called on the monitor thread for every new event. The event that it returns is raised in the group.
pub type EventHandler = Box<dyn Fn(&Event) -> Option<Event> + Send>;

/// One rank's view of a group.
pub(super) struct Group {
    pub(super) id: u64,
    pub(super) rank: u32,
    pub(super) members: OnceLock<Vec<Member>>,
    /// The parent of each rank in the tree.
    pub(super) parents: OnceLock<Vec<Option<u32>>>,
    pub(super) parent: Option<Arc<Link>>,
    pub(super) children: Vec<Arc<Link>>,
    /// Links that replaced those to ranks that left (`reparent.rs`). They carry events only.
    pub(super) later: Mutex<Vec<Arc<Link>>>,
    state: Mutex<State>,
    changed: Condvar,
    alarm: Mutex<Option<EventHandler>>,
    /// Held while an input is handled and its actions are carried out: what a rank sends last must not overtake what it heard before.
    pub(super) driving: Mutex<()>,
}

pub(super) struct State {
    /// The state machine.
    pub(super) core: weftlink_membership::Group<BootstrapError>,
    /// Its actions that take time.
    pending_actions: Vec<Action<BootstrapError>>,
    pub(super) inbox: BTreeMap<u32, VecDeque<Received>>,
    /// The ranks that a child waits for, and in which sweep.
    pub(super) waiting: BTreeMap<u32, (u32, Vec<u32>)>,
    warn_after: Option<Duration>,
    pub(super) elder: Option<(Weak<Group>, Vec<u32>)>,
    /// This rank has left, and the others know, or need not.
    has_departed: bool,
}

impl Group {
    pub(super) fn new(id: u64, rank: u32, parent: Option<Arc<Link>>, children: Vec<Arc<Link>>) -> Arc<Group> {
        let above = parent.as_ref().map(|link| link.rank);
        let state = State {
            core: weftlink_membership::Group::new(rank, above, children.iter().map(|link| link.rank)),
            pending_actions: Vec::new(),
            inbox: BTreeMap::new(),
            waiting: BTreeMap::new(),
            warn_after: None,
            elder: None,
            has_departed: false,
        };
        Arc::new(Group {
            id,
            rank,
            members: OnceLock::new(),
            parents: OnceLock::new(),
            parent,
            children,
            later: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            alarm: Mutex::new(None),
            driving: Mutex::new(()),
        })
    }

    /// A group of one rank.
    pub(super) fn alone(id: u64, contacts: Vec<super::message::Contact>) -> Arc<Group> {
        let group = Group::new(id, 0, None, Vec::new());
        let members = contacts.into_iter().map(|contact| Member { contact, host: 0 });
        group.set_members(members.collect(), Shape::Binomial);
        group
    }

    /// Sets the members and the shape of their tree, once.
    pub(super) fn set_members(&self, members: Vec<Member>, shape: Shape) {
        let hosts: Vec<u32> = members.iter().map(|member| member.host).collect();
        let parents = shape.parents(&hosts);
        self.state().core.set_parents(parents.clone());
        let _ = self.parents.set(parents);
        let _ = self.members.set(members);
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        self.parent.iter().chain(&self.children).chain(&*later).cloned().collect()
    }

    /// Sets the handler of events. It is called for every lasting event of before.
    pub(super) fn set_event_handler(&self, alarm: Option<EventHandler>) {
        let mut place = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alarm) = &alarm
            && !mutant!("deaths-before-the-alarm-forgotten")
        {
            let lasting = self.state().core.lasting().to_vec();
            lasting.iter().for_each(|news| drop(alarm(news)));
        }
        *place = alarm;
    }

    /// The ranks that are proved dead.
    pub(super) fn dead(&self) -> BTreeSet<u32> {
        self.state().core.dead().iter().copied().filter(|rank| *rank != self.rank).collect()
    }

    /// The ranks that left in good order.
    pub(super) fn left_before_failure(&self) -> BTreeSet<u32> {
        self.state().core.left_before_failure().clone()
    }

    /// The groups in which ranks of this one continued.
    pub(super) fn continued(&self) -> BTreeSet<u64> {
        self.state().core.continued()
    }

    /// Whether the connection to a rank has not been read to its end.
    pub(super) fn is_neighbour(&self, rank: u32) -> bool {
        self.state().core.neighbours().contains(&rank)
    }

    /// The ranks whose connection failed and that may live: connections of this rank, and of its host to other hosts.
    pub(super) fn cut_off(&self) -> BTreeSet<u32> {
        let host = |rank: u32| self.members.get().and_then(|all| Some(all.get(rank as usize)?.host));
        let is_cut_off = |&&(rank, by): &&(u32, u32)| {
            let here = host(self.rank);
            rank != self.rank && (by == self.rank || host(by) == here && host(rank) != here)
        };
        self.state().core.lost().iter().filter(is_cut_off).map(|(rank, _)| *rank).collect()
    }

    /// The time after which a wait is logged.
    pub(super) fn warn_after(&self) -> Duration {
        self.state().warn_after.unwrap_or(WARN_AFTER)
    }

    pub(super) fn set_warn_after(&self, warn_after: Duration) {
        self.state().warn_after = Some(warn_after);
    }

    /// The rank that timed out, if that is what went wrong first.
    pub(super) fn failed_late(&self) -> Option<u32> {
        match self.state().core.cause() {
            Some(Event::Failed { rank, reason, .. }) if *reason == Reason::Deadline as u32 => Some(*rank),
            _ => None,
        }
    }

    /// What went wrong first, if anything has.
    pub(super) fn verdict(&self) -> Option<BootstrapError> {
        self.verdict_of(&self.state())
    }

    pub(super) fn verdict_of(&self, state: &State) -> Option<BootstrapError> {
        match state.core.cause()? {
            Event::Died { rank } => Some(self.died(*rank)),
            Event::Lost { rank, by, what } => Some(self.lost(*rank, *by, what.clone())),
            Event::Failed { error, .. } => Some(error.clone()),
            Event::Left { .. } | Event::Continued { .. } | Event::Calls { .. } | Event::Waits { .. } => None,
        }
    }

    /// Handles a message from a neighbour. Called by the monitor thread.
    pub(super) fn hear(&self, from: &Link, (message, descriptor): Received) {
        match message {
            Message::Event(event) => return self.drive(Input::Heard { from: from.rank, event }),
            Message::DepartureHeard => return self.drive(Input::Confirmed(from.rank)),
            Message::Waiting { number, ranks } => {
                self.state().waiting.insert(from.rank, (number, ranks));
            }
            message => self.state().inbox.entry(from.rank).or_default().push_back((message, descriptor)),
        }
        self.changed.notify_all();
    }

    /// Makes an event known to all ranks.
    pub(super) fn learn(&self, news: Event) {
        self.drive(Input::Raise(news));
    }

    /// Gives the state machine an input, and carries out its actions.
    pub(super) fn drive(&self, input: Input<BootstrapError>) {
        let _telling = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
        self.drive_locked(input);
    }

    fn drive_locked(&self, input: Input<BootstrapError>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let links = self.links();
            let mut delivered = Vec::new();
            let mut state = self.state();
            for action in state.core.handle(input, Instant::now()) {
                let send = |to: u32, message: Message| {
                    let is_it =
                        |link: &&Arc<Link>| link.rank == to && !link.has_ended.load(Ordering::Relaxed);
                    if let Some(link) = links.iter().rev().find(is_it) {
                        let _ = link.channel.post(&message);
                    }
                };
                match action {
                    // The state stays locked while events are sent: a caller that sees the failure may exit the process at once.
                    Action::Send { to, event } => send(to, Message::Event(event)),
                    Action::Confirm(to) => send(to, Message::DepartureHeard),
                    Action::Departed { .. } => state.has_departed = true,
                    Action::Deliver(event) => delivered.push(event),
                    action => state.pending_actions.push(action),
                }
            }
            drop(state);
            self.changed.notify_all();
            let alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(alarm) = &*alarm {
                inputs.extend(delivered.iter().filter_map(alarm).map(Input::Raise));
            }
        }
    }

    /// Adds a link to a rank, unless this rank has left. Either way the peer is sent every lasting event.
    pub(super) fn adopt(&self, link: &Arc<Link>) -> bool {
        // Under this lock, no event falls between those that are sent again and those that follow over the new link.
        let _telling = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
        let later = || self.later.lock().unwrap_or_else(PoisonError::into_inner);
        later().retain(|other| other.rank != link.rank);
        later().push(Arc::clone(link));
        self.drive_locked(Input::Connected(link.rank));
        let is_in = self.state().core.neighbours().contains(&link.rank);
        if !is_in {
            later().retain(|other| !Arc::ptr_eq(other, link));
        }
        is_in
    }

    /// Takes the actions of the state machine that take time.
    pub(super) fn take_actions(&self) -> Vec<Action<BootstrapError>> {
        std::mem::take(&mut self.state().pending_actions)
    }

    /// Leaves the group: announces it and waits until the ranks that stay know, [`DEPARTURE`] at most. `wake` has the monitor
    /// thread carry out what that takes.
    pub(super) fn leave(&self, calls: u32, wake: impl Fn()) {
        self.drive(Input::Leave { calls });
        wake();
        let deadline = Deadline::new(DEPARTURE);
        let mut state = self.state();
        // This runs while a communicator is dropped, so it does not call the poll hook.
        while !state.has_departed
            && let Some(left) = deadline.left()
        {
            let waited = self.changed.wait_timeout(state, left.min(POLL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.drain();
        let (rank, seconds) = (self.rank as usize, deadline.waited().as_secs_f64());
        tracing::trace!(target: "weft::meet", rank, "left the group within {seconds:.4} s");
    }

    /// Waits until what was sent to neighbours is written, [`DRAIN_LIMIT`] at most.
    pub(super) fn drain(&self) {
        let deadline = Deadline::new(DRAIN_LIMIT);
        for link in self.links().iter().filter(|link| !link.has_ended.load(Ordering::Relaxed)) {
            let _ = link.channel.drain(deadline);
        }
    }

    /// Aborts the group for all ranks, unless one has.
    pub(super) fn fail(&self, reason: u32, culprit: u32, error: &BootstrapError) {
        if self.verdict().is_none() {
            self.learn(Event::Failed { rank: self.rank, reason, culprit, error: error.clone() });
        }
    }

    /// The same for an error outside of calls.
    pub(super) fn fail_for(&self, error: &BootstrapError) {
        if self.verdict().is_none() {
            self.learn(failed_event(self.rank, error));
        }
    }

    /// What went wrong first, as soon as that is heard.
    pub(super) fn await_failure(&self, deadline: Deadline) -> Option<BootstrapError> {
        let mut state = self.state();
        while state.core.cause().is_none() && deadline.left().is_some() {
            state = self.wait(state, deadline);
        }
        self.verdict_of(&state)
    }

    pub(super) fn died(&self, rank: u32) -> BootstrapError {
        let host = self.members.get().and_then(|members| members.get(rank as usize));
        let host = host.map_or(String::new(), |member| member.contact.host.to_string());
        BootstrapError::Died { rank: rank as usize, host, pid: self.pid(rank) }
    }

    pub(super) fn lost(&self, rank: u32, by: u32, what: String) -> BootstrapError {
        let host = self.members.get().and_then(|members| members.get(rank as usize));
        let host = host.map_or(String::new(), |member| member.contact.host.to_string());
        BootstrapError::Lost { rank: rank as usize, host, pid: self.pid(rank), by: by as usize, what }
    }

    /// The number of a rank's process, as it calls itself; 0 if that is not known yet.
    pub(super) fn pid(&self, rank: u32) -> u32 {
        self.members
            .get()
            .and_then(|members| members.get(rank as usize))
            .map_or(0, |member| member.contact.pid)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, but not longer than a tick. The state is not locked all the time: what a caller does while it waits may
    /// need it.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> MutexGuard<'a, State> {
        let time = deadline.left().unwrap_or_default().min(POLL);
        drop(self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
        poll_hook::poll();
        self.state()
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {}, {} neighbours)", self.rank, self.links().len())
    }
}
