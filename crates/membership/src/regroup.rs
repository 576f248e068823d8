//! Regrouping: the survivors of a group agree on a new one.
//!
//! No rank knows for sure who is left, so one decides: the lowest rank that is not known to be out *leads*. The others connect
//! to it; it waits for those that may still come, and proposes a group. The steps, over one connection from each follower to
//! the leader:
//!
//! ```text
//! follower -> leader   Hello      here I am; these are dead; these are the groups that I may be in
//! leader -> follower   Gathering  I lead, and wait this long for the others
//! leader -> follower   Propose    the new group: its number, epoch and ranks
//! follower -> leader   Forming    I heard it
//!                      (each rank connects to its parent in the new tree and awaits its children)
//! follower -> leader   Ready      all my connections are there
//! leader -> follower   Commit     all ranks are ready
//! ```
//!
//! Any rank that cannot continue says so (`Failed`, `Abort`) or closes its connection, and all begin again without the ranks
//! that turned out to be dead or out of reach. A rank that finds the leader dead goes to the next one. So it ends as long as
//! a rank is left, and no later than a few seconds after the deadline.
//!
//! *Silent leaders.* The lowest rank may live and not regroup: its process is stopped, or its program does something else, while its
//! monitor thread accepts connections. A leader that has not sent `Gathering` at a follower's deadline is *passed over*: it counts as
//! unreachable, and the next rank leads. The new leader waits a moment longer, because the deadlines of the others may be later. The
//! quorum keeps this safe if the silent leader regroups after all. A leader calls the ranks that are missing ([`Action::Call`]), so
//! that two leaders hear of each other: the higher one then follows the lower.
//!
//! *No two sides continue.* The leader proposes only with a quorum ([`crate::quorum`]) in every group that any of the ranks
//! which came may be in: the one it is in, and each for which it has said `Ready` without hearing how that ended. The leader of
//! such a group may have committed it, and its other ranks may have continued. A rank forgets it when the leader says `Abort`,
//! because that leader has not committed it and never will. If a rank comes or calls that is in such a group, the group stands, and
//! this rank is in it too: it chooses its leader among the ranks of that group from then on.
//!
//! *Out is out.* A rank that did not come in time is not in the new group, even if it lives. The ranks of the newest group that
//! anybody here is in are the only ones that a proposal may name. A rank that continues raises
//! [`Event::Continued`](crate::Event::Continued) in the old group, so that a rank which resumes after the others have exited does not
//! take them for dead.
//!
//! Ranks keep the numbers that they had in the first group, however often it has shrunk since.

mod action;
mod follow;
mod lead;
mod message;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::durations::{FOLLOW_FORM, FORM, HELLO, PROBE, REGROUP_RETRY_MAX, RETRY_MIN};
use crate::group::Probe;

pub use action::{Action, Error, Input, Unreached};
pub use message::{Abort, Connection, Hello, Message};
pub use view::View;

/// The silent leaders that a rank takes more time for.
const PASSED_MAX: usize = 4;

#[derive(Debug)]
enum Phase {
    /// Ranks whose connections failed are probed before a leader is chosen.
    Choosing,
    Pausing {
        until: Instant,
    },
    Gathering {
        probe_at: Instant,
    },
    Dialing {
        leader: u32,
    },
    Following {
        leader: u32,
        connection: Connection,
        since: Instant,
        until: Instant,
        /// Whether the leader has said that it leads.
        is_led: bool,
    },
    Forming(Forming),
    Done,
}

/// A proposal under way.
#[derive(Debug)]
struct Forming {
    view: View,
    /// The connection to the leader; none on the leader itself.
    leader: Option<(u32, Connection)>,
    /// Whether the parent is connected.
    is_linked: bool,
    children: BTreeSet<u32>,
    /// On the leader: the followers that heard the proposal, and those that are ready.
    heard: BTreeSet<u32>,
    ready: BTreeSet<u32>,
    has_said_ready: bool,
    until: Instant,
}

/// Ranks that are not in the new group, as far as this rank knows.
#[derive(Debug, Default)]
struct Out {
    /// Dead, or left the group for good: they need no vote.
    dead: BTreeSet<u32>,
    /// Cannot be reached, or did not come; may live.
    unreachable: BTreeSet<u32>,
}

impl Out {
    fn has(&self, rank: u32) -> bool {
        self.dead.contains(&rank) || self.unreachable.contains(&rank)
    }
}

/// One rank's part in regrouping.
#[derive(Debug)]
pub struct Regroup {
    rank: u32,
    /// The group that this rank is in, then those that it may be in.
    views: Vec<View>,
    /// Groups that it was in, or may have been in, before that one.
    past: BTreeSet<u64>,
    /// The host of each rank, by which the tree is drawn.
    hosts: Vec<u32>,
    deadline: Instant,
    /// How long a leader waits for the others: the deadline, or a moment after an attempt that failed.
    gather_until: Instant,
    /// The ranks of the proposal that this rank aborted last, and how long it waits for them to come again.
    returning: Option<(Instant, BTreeSet<u32>)>,
    out: Out,
    /// Ranks whose connections failed and that answer all the same.
    there: BTreeSet<u32>,
    /// Ranks that are being probed because their connections failed.
    checking: BTreeSet<u32>,
    /// Followers that came.
    arrived: BTreeMap<u32, (Connection, Hello)>,
    /// Pairs of which one could not connect to the other, once.
    apart: BTreeSet<(u32, u32)>,
    /// Hosts of which ranks could not connect twice.
    apart_hosts: BTreeSet<(Option<u32>, Option<u32>)>,
    /// The later ranks of pairs that could not connect twice. They are out, however often they come.
    barred: BTreeSet<u32>,
    /// Leaders that were silent at the deadline.
    passed: BTreeSet<u32>,
    /// The calls of each lower rank that this rank heeded since that rank last led it.
    heeded: BTreeMap<u32, u32>,
    /// Ranks that this rank has sent which leader it follows, and that leader.
    named: BTreeSet<(u32, u32)>,
    /// The leader that this rank last tried to follow.
    led_by: Option<u32>,
    /// Proposals that this rank has aborted.
    aborts: usize,
    /// How long a leader without a quorum looks for the others.
    minority_until: Option<Instant>,
    /// Since when the leader's address gave no clear answer.
    unclear_since: Option<Instant>,
    pause: Duration,
    phase: Phase,
    /// Source of the numbers of new groups.
    random: u64,
}

impl Regroup {
    /// Begins to regroup. `views` are the group that this rank is in and those that it may be in since an earlier attempt;
    /// `hosts` the host of each rank of the first group; `random` a number that no other rank has.
    pub fn new(rank: u32, views: Vec<View>, hosts: Vec<u32>, deadline: Instant, random: u64) -> Regroup {
        assert!(views.first().is_some_and(|view| view.ranks.contains(&rank)), "rank {rank} is in its group");
        Regroup {
            rank,
            views,
            past: BTreeSet::new(),
            hosts,
            deadline,
            gather_until: deadline,
            out: Out::default(),
            there: BTreeSet::new(),
            checking: BTreeSet::new(),
            arrived: BTreeMap::new(),
            apart: BTreeSet::new(),
            apart_hosts: BTreeSet::new(),
            barred: BTreeSet::new(),
            returning: None,
            passed: BTreeSet::new(),
            heeded: BTreeMap::new(),
            named: BTreeSet::new(),
            led_by: None,
            aborts: 0,
            minority_until: None,
            unclear_since: None,
            pause: RETRY_MIN,
            phase: Phase::Choosing,
            random,
        }
    }

    /// Takes in what happened. The actions are to be carried out in order.
    pub fn handle(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if !matches!(self.phase, Phase::Done) {
            self.take(input, now, &mut actions);
            self.proceed(now, &mut actions);
        }
        actions
    }

    /// When to call [`Regroup::handle`] with [`Input::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Choosing | Phase::Dialing { .. } | Phase::Done => None,
            Phase::Pausing { until } => Some(*until),
            Phase::Gathering { probe_at } => Some((*probe_at).min(self.gather_end())),
            Phase::Following { until, .. } => Some(*until),
            Phase::Forming(forming) => Some(forming.until),
        }
    }

    /// The ranks that this rank waits for.
    pub fn waits_for(&self) -> Vec<u32> {
        match &self.phase {
            Phase::Gathering { .. } => self.missing(),
            Phase::Dialing { leader } | Phase::Following { leader, .. } => vec![*leader],
            Phase::Forming(Forming { leader: Some((leader, _)), .. }) => vec![*leader],
            Phase::Forming(forming) => {
                self.followers(&forming.view).filter(|rank| !forming.ready.contains(rank)).collect()
            }
            Phase::Choosing | Phase::Pausing { .. } | Phase::Done => Vec::new(),
        }
    }

    /// The groups that this rank may be in: the one it was in when it began, and each for which it has said that it is ready
    /// without hearing how that ended. A later attempt begins with these.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// The group that is forming. Only its children may connect.
    pub fn forming(&self) -> Option<&View> {
        match &self.phase {
            Phase::Forming(forming) => Some(&forming.view),
            _ => None,
        }
    }

    fn view(&self) -> &View {
        &self.views[0]
    }

    fn followers<'a>(&'a self, view: &'a View) -> impl Iterator<Item = u32> + 'a {
        view.ranks.iter().copied().filter(|rank| *rank != self.rank)
    }

    fn take(&mut self, input: Input, now: Instant, actions: &mut Vec<Action>) {
        match input {
            Input::Known { dead, left, cut_off, continued } => {
                // A group that formed without this rank; of one that this rank is ready for it hears from the others.
                let is_other = |group: &u64| {
                    !self.past.contains(group) && self.views.iter().all(|view| view.group != *group)
                };
                if continued.iter().any(is_other) && !mutant!("continued-is-forgotten") {
                    return self.done(Err(Error::Excluded), actions);
                }
                self.out.dead.extend(dead.into_iter().chain(left).filter(|rank| *rank != self.rank));
                for rank in cut_off {
                    let is_known = self.out.has(rank) || self.there.contains(&rank) || rank == self.rank;
                    if !is_known && self.checking.insert(rank) {
                        actions.push(Action::Probe(rank));
                    }
                }
            }
            Input::Probed(rank, outcome) => {
                let was_checked = self.checking.remove(&rank);
                match outcome {
                    Probe::Refused => drop(self.out.dead.insert(rank)),
                    Probe::Answered if was_checked => drop(self.there.insert(rank)),
                    Probe::Silent | Probe::Unclear if was_checked => drop(self.out.unreachable.insert(rank)),
                    _ => {}
                }
            }
            Input::Arrived(connection, hello) => self.arrive(connection, hello, now, actions),
            Input::Closed(connection) => self.closed(connection, now, actions),
            Input::Dialed(dialed) => self.dialed(dialed, now, actions),
            Input::Linked(group, linked) => self.linked(group, linked, now, actions),
            Input::Child(group, rank) => {
                if let Phase::Forming(forming) = &mut self.phase
                    && forming.view.group == group
                {
                    forming.children.insert(rank);
                }
            }
            Input::Message(connection, message) => self.hear(connection, message, now, actions),
            Input::Timeout => self.time_out(now, actions),
        }
    }

    fn time_out(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let end = self.gather_end();
        match &mut self.phase {
            Phase::Following { leader, until, .. } if now >= *until => {
                let leader = *leader;
                self.pass_over(leader, now, actions);
            }
            Phase::Gathering { probe_at } if now >= *probe_at && now < end => {
                *probe_at = now + PROBE;
                let hello = self.hello();
                // They may wait for another leader, or not know that this rank's group stands.
                actions.extend(self.missing().into_iter().map(|rank| Action::Call(rank, hello.clone())));
            }
            Phase::Forming(forming) if now >= forming.until => {
                if forming.leader.is_some() {
                    return self.retry(now, actions);
                }
                // A rank that did not even hear the proposal is stopped, or cut off. If this rank was stopped, their answers are unread.
                let is_own_delay = now >= forming.until + PROBE;
                let (view, heard) = (forming.view.clone(), forming.heard.clone());
                let deaf: Vec<u32> = self.followers(&view).filter(|rank| !heard.contains(rank)).collect();
                for rank in &deaf {
                    if let Some((connection, _)) = self.arrived.remove(rank) {
                        let (group, why) = (Some(view.group), Abort::Retry);
                        actions.push(Action::Send(connection, Message::Abort { group, why }));
                        actions.push(Action::Close(connection));
                    }
                }
                if !is_own_delay {
                    self.out.unreachable.extend(deaf);
                }
                self.abort(Abort::Retry, now, actions);
            }
            _ => {}
        }
    }

    /// Takes the steps that need no further input.
    fn proceed(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if let Phase::Pausing { until } = self.phase
            && now >= until
        {
            self.phase = Phase::Choosing;
        }
        if matches!(self.phase, Phase::Choosing) && self.checking.is_empty() {
            self.choose(now, actions);
        }
        if matches!(self.phase, Phase::Gathering { .. }) {
            self.gather(now, actions);
        }
        if let Phase::Forming(_) = self.phase {
            self.check_ready(now, actions);
        }
    }

    /// The lowest rank that is not out.
    fn leader(&self) -> u32 {
        self.view().ranks.iter().copied().find(|rank| !self.out.has(*rank)).unwrap_or(self.rank)
    }

    /// Leads, or dials the leader.
    fn choose(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match self.leader() {
            leader if leader == self.rank => {
                // The others need a moment to find out that the leader before is gone or silent, even if the deadline has passed: one
                // that has just begun to dial it takes `HELLO`.
                if self.led_by.take().is_some() {
                    self.gather_until = self.gather_until.max(now + HELLO + PROBE);
                }
                self.phase = Phase::Gathering { probe_at: now + PROBE };
                let connections: Vec<Connection> = self.arrived.values().map(|(own, _)| *own).collect();
                connections.into_iter().for_each(|connection| self.lead(connection, now, actions));
            }
            // Others may have been found out of reach only after it was too late to look for the next.
            _ if now >= self.deadline + HELLO * (2 + self.passed.len().min(PASSED_MAX) as u32) => {
                let here = vec![self.rank];
                let others = self.others(&here);
                let error = match self.out.unreachable.is_empty() {
                    true => Error::Missing(others),
                    false => Error::Minority { here, others },
                };
                self.done(Err(error), actions);
            }
            leader => {
                self.phase = Phase::Dialing { leader };
                self.led_by = Some(leader);
                actions.push(Action::Dial(leader, self.hello()));
            }
        }
    }

    fn hello(&self) -> Hello {
        let (dead, views, passed) = (self.out.dead.clone(), self.views.clone(), self.passed.clone());
        Hello { from: self.rank, dead, views, passed }
    }

    fn form(
        &mut self,
        view: View,
        leader: Option<(u32, Connection)>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let parent = view.parent(&self.hosts, self.rank);
        if let Some(parent) = parent {
            actions.push(Action::Link { view: view.clone(), parent });
        }
        let limit = if leader.is_none() { FORM } else { FOLLOW_FORM };
        self.phase = Phase::Forming(Forming {
            view,
            leader,
            is_linked: parent.is_none(),
            children: BTreeSet::new(),
            heard: BTreeSet::new(),
            ready: BTreeSet::new(),
            has_said_ready: false,
            until: now + limit,
        });
    }

    fn check_ready(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        let children = forming.view.children(&self.hosts, self.rank);
        if !forming.is_linked || !children.iter().all(|child| forming.children.contains(child)) {
            return;
        }
        let view = forming.view.clone();
        match forming.leader {
            Some((_, connection)) => {
                if !forming.has_said_ready {
                    forming.has_said_ready = true;
                    // From here on the group may stand without this rank hearing of it.
                    if !mutant!("ready-is-forgotten") {
                        self.views.push(view.clone());
                    }
                    actions.push(Action::Send(connection, Message::Ready { group: view.group }));
                }
            }
            None => {
                let is_complete =
                    view.ranks.iter().all(|rank| *rank == self.rank || forming.ready.contains(rank));
                // A leader that was stopped may find followers ready that have given its proposal up since.
                let is_late = now >= forming.until && !mutant!("late-leader-commits");
                if is_complete && !is_late {
                    let members = self.arrived.iter().filter(|(rank, _)| view.ranks.contains(rank));
                    let commit = |(_, (connection, _)): (&u32, &(Connection, Hello))| {
                        Action::Send(*connection, Message::Commit { group: view.group })
                    };
                    actions.extend(members.map(commit));
                    self.done(Ok(view), actions);
                }
            }
        }
    }

    /// Begins again after a pause: others may not have noticed yet what this rank has.
    fn retry(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match &self.phase {
            Phase::Following { connection, .. } => actions.push(Action::Close(*connection)),
            Phase::Forming(forming) => {
                actions.push(Action::Abandon(forming.view.clone()));
                actions.extend(forming.leader.map(|(_, connection)| Action::Close(connection)));
            }
            _ => {}
        }
        self.phase = Phase::Pausing { until: now + self.pause };
        self.pause = (2 * self.pause).min(REGROUP_RETRY_MAX);
    }

    fn done(&mut self, result: Result<View, Error>, actions: &mut Vec<Action>) {
        if let (Err(_), Phase::Forming(forming)) = (&result, &self.phase) {
            actions.push(Action::Abandon(forming.view.clone()));
        }
        if let Phase::Following { connection, .. } = &self.phase {
            actions.push(Action::Close(*connection));
        }
        match &result {
            Err(_) => self.dismiss(None, &Abort::Retry, actions),
            // Those that came too late are excluded. Those that came to a rank that did not lead come again.
            Ok(view) => {
                let is_member = |rank: &u32, _: &mut (Connection, Hello)| view.ranks.contains(rank);
                let members: Vec<_> = self.arrived.extract_if(.., is_member).collect();
                actions.extend(members.into_iter().map(|(_, (connection, _))| Action::Close(connection)));
                self.dismiss(None, &Abort::Excluded, actions);
            }
        }
        self.phase = Phase::Done;
        actions.push(Action::Done(result));
    }
}
