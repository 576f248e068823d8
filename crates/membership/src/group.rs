//! One rank's view of its group: its neighbours in the tree, and what every rank must know.
//!
//! *Events* go to all ranks: a rank that hears one for the first time passes it on to its other neighbours. A death cuts the
//! tree, but each part that is left has a neighbour of the dead rank, so all hear of it.
//!
//! *Inquiries.* A connection that fails proves nothing: the process behind it may have ended, or only the connection. The
//! rank watches the process (`Exited`, or `ExitChecked`) or probes its address for [`INQUIRY`]; the outcome is `Died` or `Lost`. A process that exits
//! runs none of its program any more, so it has died, although a GPU's driver may delay its end for a second.
//!
//! *Reparenting.* A rank that leaves in good order passes nothing on any more. Its children connect to the next rank above that
//! is there, or else to the lowest rank that is; a rank that has no neighbour left and finds no lower rank tries the higher
//! ones. A rank that answers that it is not in the group any more counts as having left. Both ends then send each other every
//! lasting event, since one of them may have missed some. It happens a moment later, because ranks mostly leave
//! together. A child that ends before it has reconnected has no neighbour that could notice; so the rank that it should have
//! connected to probes it, less and less often, until it connects or has ended.
//!
//! *Departure.* A rank that leaves stays until its neighbours have confirmed that they heard of it (`group/depart.rs`).
//!
//! Deliberately absent: sockets, threads and clocks. The driver feeds inputs and carries out the actions in order.

mod action;
mod depart;
mod reparent;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::durations::{INQUIRY, PROBE_CHILDREN_AFTER, REPARENT_AFTER};
use crate::event::Event;
use crate::waits::{Roots, Waits};
use depart::Departure;

pub use action::{Action, Gone, Input, Probe};

/// The last calls of a rank that are remembered as heard: more than a rank announces at once.
const CALLS_MAX: usize = 128;
/// The fewest attempts to find out what became of a rank whose connection failed, however long they take: this rank may have been
/// stopped meanwhile.
const INQUIRY_ATTEMPTS_MIN: u32 = 3;
/// What a lost connection is reported as when nothing more is known.
pub const WAS_LOST: &str = "was lost";
/// What is reported of a rank that has regrouped with others without this rank.
const HAS_CONTINUED: &str = "was lost, and that rank continued in another group";

#[derive(Debug, Clone)]
enum Timer {
    /// Ends an inquiry, or tries again.
    Inquiry(u32),
    Reparent,
    /// Children of a rank that left are missed; they were probed this number of times.
    Children(u32, u32),
    /// This rank has waited long enough for its departure to be confirmed.
    Departure,
}

#[derive(Debug, Clone)]
struct Inquiry {
    until: Instant,
    /// Attempts that gave no answer.
    attempts: u32,
    is_watched: bool,
}

/// The search for a new parent.
#[derive(Debug, Clone, Default)]
struct Seeking {
    /// The rank that is being tried.
    candidate: u32,
    /// Those that were tried, and the candidate.
    tried: BTreeSet<u32>,
    /// Those whose processes have ended.
    refused: BTreeSet<u32>,
    /// Whether one of them did not answer: it may be stopped.
    is_worth_retrying: bool,
}

/// One rank's view of its group. `F` is the error of a rank that gave the group up.
#[derive(Debug, Clone)]
pub struct Group<F> {
    rank: u32,
    /// The parent of each rank; empty as long as the tree is unknown.
    parents: Vec<Option<u32>>,
    neighbours: BTreeSet<u32>,
    /// The rank that this rank's events go up to.
    parent: Option<u32>,
    /// Events that were heard, by kind, the rank they are about and the rank that noticed.
    heard: BTreeSet<(u8, u32, u32)>,
    calls: BTreeMap<u32, VecDeque<u32>>,
    left: BTreeSet<u32>,
    left_before_failure: BTreeSet<u32>,
    /// Ranks that continued in another group, and its number.
    continued: BTreeMap<u32, u64>,
    dead: BTreeSet<u32>,
    lost: BTreeSet<(u32, u32)>,
    lasting: Vec<Event<F>>,
    cause: Option<Event<F>>,
    waits: Waits,
    inquiries: BTreeMap<u32, Inquiry>,
    /// The search for a new parent, while it lasts.
    seeking: Option<Seeking>,
    /// Searches that ended without one.
    searches: u32,
    /// Ranks that are probed because they did not reconnect.
    missed: BTreeSet<u32>,
    /// Whether a rank answered that it has left, which does not say what it knew of others.
    has_gaps: bool,
    departure: Option<Departure>,
    timers: Vec<(Instant, Timer)>,
}

impl<F: Clone> Group<F> {
    /// A rank with its parent and children in the tree.
    pub fn new(rank: u32, parent: Option<u32>, children: impl IntoIterator<Item = u32>) -> Group<F> {
        Group {
            rank,
            parents: Vec::new(),
            neighbours: parent.into_iter().chain(children).collect(),
            parent,
            heard: BTreeSet::new(),
            calls: BTreeMap::new(),
            left: BTreeSet::new(),
            left_before_failure: BTreeSet::new(),
            continued: BTreeMap::new(),
            dead: BTreeSet::new(),
            lost: BTreeSet::new(),
            lasting: Vec::new(),
            cause: None,
            waits: Waits::default(),
            inquiries: BTreeMap::new(),
            seeking: None,
            searches: 0,
            missed: BTreeSet::new(),
            has_gaps: false,
            departure: None,
            timers: Vec::new(),
        }
    }

    /// Sets the parent of each rank in the tree that the group began with.
    pub fn set_parents(&mut self, parents: Vec<Option<u32>>) {
        self.parents = parents;
    }

    /// Takes in what happened. The actions are to be carried out in order.
    pub fn handle(&mut self, input: Input<F>, now: Instant) -> Vec<Action<F>> {
        let mut actions = Vec::new();
        match input {
            Input::Raise(event) => self.learn(event, None, now, &mut actions),
            Input::Heard { from, event } => {
                let leaves = matches!(&event, Event::Left { rank, .. } if *rank == from);
                self.learn(event, Some(from), now, &mut actions);
                // After it was passed on.
                if leaves {
                    actions.push(Action::Confirm(from));
                }
            }
            Input::Leave { calls } => self.leave(calls, now, &mut actions),
            Input::Confirmed(rank) => self.confirmed(rank),
            Input::Connected(rank) => self.connect(rank, now, &mut actions),
            Input::Disconnected { rank, is_watched } => {
                self.disconnect(rank);
                if !self.is_gone(rank) && !self.inquiries.contains_key(&rank) {
                    let until = now + INQUIRY;
                    self.inquiries.insert(rank, Inquiry { until, attempts: 0, is_watched });
                    actions.push(match is_watched {
                        true => Action::CheckExit(rank),
                        false => Action::Probe(rank),
                    });
                }
            }
            Input::Corrupt { rank, what } => {
                self.disconnect(rank);
                self.lose(rank, what, now, &mut actions);
            }
            Input::Exited(rank) => self.exited(rank, now, &mut actions),
            Input::ExitChecked { rank, is_exiting } => self.exit_checked(rank, is_exiting, now, &mut actions),
            Input::Probed(rank, outcome) => self.probed(rank, outcome, now, &mut actions),
            Input::NotReparented { rank, why, gone } => {
                self.not_reparented(rank, why, gone, now, &mut actions);
            }
            Input::Timeout => self.time_out(now, &mut actions),
        }
        self.proceed_departure(&mut actions);
        actions
    }

    /// When to call [`Group::handle`] with [`Input::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.iter().map(|(when, _)| *when).min()
    }

    /// The event that ended the group: the first failure that this rank heard of.
    pub fn cause(&self) -> Option<&Event<F>> {
        self.cause.as_ref()
    }

    /// Every event that a rank which connects later must hear, in order.
    pub fn lasting(&self) -> &[Event<F>] {
        &self.lasting
    }

    /// The ranks that left in good order.
    pub fn left(&self) -> &BTreeSet<u32> {
        &self.left
    }

    /// Those of them that left before this rank heard of a failure. A rank that leaves after that may have tried to regroup in vain.
    pub fn left_before_failure(&self) -> &BTreeSet<u32> {
        &self.left_before_failure
    }

    /// The groups in which ranks of this one continued.
    pub fn continued(&self) -> BTreeSet<u64> {
        self.continued.values().copied().collect()
    }

    /// The ranks whose processes have ended.
    pub fn dead(&self) -> &BTreeSet<u32> {
        &self.dead
    }

    /// Connections that failed: to which rank, and which rank noticed.
    pub fn lost(&self) -> &BTreeSet<(u32, u32)> {
        &self.lost
    }

    /// Whether a rank has left, continued elsewhere or died, so that nothing is expected of it.
    pub fn is_gone(&self, rank: u32) -> bool {
        self.has_left(rank) || self.dead.contains(&rank)
    }

    /// Whether a rank has left or continued elsewhere, so that the end of its process is no failure.
    fn has_left(&self, rank: u32) -> bool {
        self.left.contains(&rank) || self.continued.contains_key(&rank)
    }

    /// The ranks that this rank is connected to.
    pub fn neighbours(&self) -> &BTreeSet<u32> {
        &self.neighbours
    }

    /// Whether the process of a rank decides an inquiry that is under way, so that it must still be watched.
    pub fn is_watching(&self, rank: u32) -> bool {
        self.inquiries.get(&rank).is_some_and(|inquiry| inquiry.is_watched)
    }

    /// Records the ranks that this rank waits for; none if it no longer waits.
    pub fn set_waits(&mut self, whom: &[u32]) {
        self.waits.set_own(whom);
    }

    /// This rank's announcement of the ranks that it waits for. Raising it asks every rank for its own.
    pub fn announce_waits(&mut self, now: Instant) -> Event<F> {
        let (turn, whom) = self.waits.announce(now);
        let neighbours = self.neighbours.iter().copied().collect();
        Event::Waits { rank: self.rank, turn, whom, neighbours }
    }

    /// The ranks that are waited for in the end, by what was announced since `asked`. Follows this rank's waits, or those of
    /// `other` if it has none.
    pub fn roots(&self, other: Option<u32>, asked: Instant) -> Roots {
        let other: Vec<u32> = other.into_iter().collect();
        let begin = if self.waits.own().is_empty() { &other[..] } else { self.waits.own() };
        self.waits.roots(self.rank, begin, asked, |rank| self.is_gone(rank))
    }

    /// Takes in an event and passes it on, unless it was heard before.
    fn learn(&mut self, event: Event<F>, from: Option<u32>, now: Instant, actions: &mut Vec<Action<F>>) {
        if !self.is_new(&event, now) {
            return;
        }
        if !mutant!("news-not-passed-on") {
            let others = self.neighbours.iter().filter(|rank| Some(**rank) != from);
            actions.extend(others.map(|&to| Action::Send { to, event: event.clone() }));
        }
        if event.is_lasting() {
            self.lasting.push(event.clone());
        }
        if event.is_failure() {
            self.cause.get_or_insert_with(|| event.clone());
        }
        match &event {
            Event::Died { rank } => drop(self.dead.insert(*rank)),
            Event::Lost { rank, by, .. } => drop(self.lost.insert((*rank, *by))),
            Event::Continued { rank, group } => drop(self.continued.insert(*rank, *group)),
            Event::Left { rank, .. } => {
                self.left.insert(*rank);
                if self.cause.is_none() {
                    self.left_before_failure.insert(*rank);
                }
                self.timers.push((now + PROBE_CHILDREN_AFTER, Timer::Children(*rank, 0)));
                if self.parent == Some(*rank) {
                    self.parent = None;
                    self.timers.push((now + REPARENT_AFTER, Timer::Reparent));
                }
            }
            Event::Failed { .. } | Event::Calls { .. } | Event::Waits { .. } => {}
        }
        let answers = matches!(&event, Event::Waits { rank, .. } if *rank != self.rank);
        actions.push(Action::Deliver(event));
        if answers && !self.waits.is_announced(now) {
            let own = self.announce_waits(now);
            self.learn(own, None, now, actions);
        }
    }

    fn is_new(&mut self, event: &Event<F>, now: Instant) -> bool {
        self.heard.insert(match event {
            Event::Died { rank } => (0, *rank, 0),
            Event::Left { rank, .. } => (1, *rank, 0),
            Event::Failed { rank, .. } => (2, *rank, 0),
            Event::Lost { rank, by, .. } => (3, *rank, *by),
            Event::Continued { rank, .. } => (4, *rank, 0),
            Event::Calls { rank, number, .. } => {
                let heard = self.calls.entry(*rank).or_default();
                let is_new = !heard.contains(number);
                if is_new {
                    heard.push_back(*number);
                }
                if heard.len() > CALLS_MAX {
                    heard.pop_front();
                }
                return is_new;
            }
            Event::Waits { rank, turn, whom, neighbours } => {
                return self.waits.hear(*rank, *turn, (whom, neighbours), now);
            }
        })
    }

    fn die(&mut self, rank: u32, now: Instant, actions: &mut Vec<Action<F>>) {
        if !self.has_left(rank) {
            self.learn(Event::Died { rank }, None, now, actions);
        }
    }

    /// The process of a rank has ended that is not known to have left. A rank that took the departures of others with it may have
    /// known better.
    fn end(&mut self, rank: u32, now: Instant, actions: &mut Vec<Action<F>>) {
        match self.has_gaps {
            true => self.lose(rank, WAS_LOST.to_owned(), now, actions),
            false => self.die(rank, now, actions),
        }
    }

    fn lose(&mut self, rank: u32, what: String, now: Instant, actions: &mut Vec<Action<F>>) {
        if mutant!("lost-counts-as-dead") {
            return self.die(rank, now, actions);
        }
        if !self.has_left(rank) {
            self.learn(Event::Lost { rank, by: self.rank, what }, None, now, actions);
        }
    }

    fn disconnect(&mut self, rank: u32) {
        self.neighbours.remove(&rank);
        self.unconfirmed(rank);
    }

    /// A new connection: both ends send each other every lasting event.
    fn connect(&mut self, rank: u32, now: Instant, actions: &mut Vec<Action<F>>) {
        actions.extend(self.lasting.iter().map(|event| Action::Send { to: rank, event: event.clone() }));
        let is_sought = self.seeking.as_ref().is_some_and(|seeking| seeking.candidate == rank);
        // A rank that leaves takes no other in. It connects to another only to hand its departure over. Two ranks that connect to each
        // other at the same time have two connections.
        if self.left.contains(&self.rank) && !is_sought && !self.neighbours.contains(&rank) {
            actions.push(Action::Close(rank));
            return;
        }
        self.neighbours.insert(rank);
        self.inquiries.remove(&rank);
        if let Some(departure) = &mut self.departure {
            departure.unconfirmed.insert(rank);
        }
        if is_sought {
            let missed_one = self.seeking.take().is_some_and(|seeking| seeking.is_worth_retrying);
            self.parent = Some(rank).filter(|rank| !self.is_gone(*rank));
            match self.parent {
                // It accepted before this rank heard that it leaves.
                None => self.timers.push((now + REPARENT_AFTER, Timer::Reparent)),
                // A higher rank may have this one for its parent, and the rest of the group hang on the lower one that did not answer.
                Some(parent) if missed_one && parent > self.rank => drop(self.search_again(now)),
                Some(_) => self.searches = 0,
            }
        }
    }

    /// Whether this rank seeks a new parent, or will again.
    fn is_seeking(&self) -> bool {
        let is_reparent = |(_, timer): &(Instant, Timer)| matches!(timer, Timer::Reparent);
        self.seeking.is_some() || self.timers.iter().any(is_reparent)
    }

    fn time_out(&mut self, now: Instant, actions: &mut Vec<Action<F>>) {
        let (due, later) = std::mem::take(&mut self.timers).into_iter().partition(|(when, _)| *when <= now);
        self.timers = later;
        let mut due: Vec<(Instant, Timer)> = due;
        due.sort_by_key(|(when, _)| *when);
        for (_, timer) in due {
            match timer {
                Timer::Inquiry(rank) => match self.inquiries.get(&rank) {
                    Some(inquiry) if inquiry.is_watched => actions.push(Action::CheckExit(rank)),
                    Some(_) => actions.push(Action::Probe(rank)),
                    None => {}
                },
                Timer::Reparent => {
                    if !self.left.contains(&self.rank) && !mutant!("orphans-stay") {
                        self.seeking = None;
                        self.reparent(now, actions);
                    }
                }
                Timer::Departure => {
                    if let Some(departure) = &mut self.departure {
                        departure.is_overdue = true;
                    }
                }
                // A rank that leaves takes nobody in.
                Timer::Children(..) if self.left.contains(&self.rank) => {}
                // A rank that seeks a new parent may have missed that they left.
                Timer::Children(left, probes) if self.is_seeking() => {
                    self.timers.push((now + PROBE_CHILDREN_AFTER, Timer::Children(left, probes)));
                }
                Timer::Children(left, probes) => self.probe_children(left, probes, now, actions),
            }
        }
    }
}
