//! Regrouping: the survivors of a group agree on a new one.
//!
//! No rank knows for sure who is left, so one decides: the lowest rank that is not known to be out *leads*. The others connect
//! to it; it waits for those that may still come, and proposes a group. The steps, over one connection from each follower to
//! the leader:
//!
//! ```text
//! follower -> leader   Hello      here I am; these are dead; these are the groups that I may be in
//! leader -> follower   Propose    the new group: its number, epoch and ranks
//! follower -> leader   Forming    I heard it
//!                      (each rank connects to its parent in the new tree and awaits its children)
//! follower -> leader   Ready      all my connections are there
//! leader -> follower   Commit     all ranks are ready
//! ```
//!
//! Any rank that cannot continue says so (`Failed`, `Abort`) or closes its connection, and all begin again without the ranks
//! that turned out to be dead or out of reach. A rank that finds the leader dead goes to the next one. So it ends as long as
//! somebody is left, and no later than a few seconds after the deadline.
//!
//! *No two sides continue.* The leader proposes only with a quorum ([`crate::quorum`]) in every group that any of the ranks
//! which came may be in: the one it is in, and each for which it has said `Ready` without hearing how that ended. The leader of
//! such a group may have committed it, and its other ranks may have continued. A rank forgets it when the leader says `Abort`,
//! because that leader has not committed it and never will.
//!
//! *Out is out.* A rank that did not come in time is not in the new group, even if it lives. The ranks of the newest group that
//! anybody here is in are the only ones that a proposal may name.
//!
//! Ranks are called by the numbers they had in the first group, however often it has shrunk since.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::durations::{HELLO, INQUIRY, MINORITY, PROBE, REGROUP_RETRY_MAX, RETRY_MIN};
use crate::group::Probe;
use crate::quorum::may_continue;
use crate::tree;

/// A connection, as the driver calls it.
pub type Connection = u64;

/// A group as regrouping sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct View {
    /// Grows with each group that came out of another. No two groups that any rank was in share an epoch.
    pub epoch: u64,
    /// The group's number.
    pub group: u64,
    /// Its ranks, in order.
    pub ranks: Vec<u32>,
}

/// The first message of a follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The follower.
    pub from: u32,
    /// Ranks that are proved dead.
    pub dead: BTreeSet<u32>,
    /// The group that it is in, then those that it may be in.
    pub views: Vec<View>,
}

/// What follows on the same connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From the leader: the new group.
    Propose(View),
    /// From a follower: it heard the proposal.
    Forming {
        /// The group's number.
        group: u64,
    },
    /// From a follower: its connections in the new tree are there.
    Ready {
        /// The group's number.
        group: u64,
    },
    /// From a follower: it could not connect to its parent.
    Failed {
        /// The group's number.
        group: u64,
        /// The parent.
        parent: u32,
        /// Whether the parent is proved dead.
        is_dead: bool,
    },
    /// From the leader: all are ready, and the group stands.
    Commit {
        /// The group's number.
        group: u64,
    },
    /// From the leader: the group of this proposal, if there was one, will not stand.
    Abort {
        /// The group's number.
        group: Option<u64>,
        /// Why, and what to do.
        why: Abort,
    },
}

/// Why a leader aborts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Abort {
    /// Come again.
    Retry,
    /// The ranks that came are too few to continue without the others.
    Minority {
        /// The ranks that came.
        here: Vec<u32>,
        /// Those that are missing and may live.
        others: Vec<u32>,
    },
    /// The others continued without this rank before.
    Excluded,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// What the old group knows: ranks proved dead, and ranks whose connections failed.
    Known {
        /// Proved dead.
        dead: BTreeSet<u32>,
        /// Their connections failed; they may live.
        cut_off: BTreeSet<u32>,
    },
    /// A follower came.
    Arrived(Connection, Hello),
    /// A message on a connection.
    Message(Connection, Message),
    /// A connection ended.
    Closed(Connection),
    /// The result of [`Action::Dial`].
    Dialed(Result<Connection, Unreached>),
    /// The result of [`Action::Link`].
    Linked(u64, Result<(), Unreached>),
    /// A child in the new tree connected.
    Child(u64, u32),
    /// The result of [`Action::Probe`].
    Probed(u32, Probe),
    /// The time that [`Regroup::next_timeout`] named has come.
    Timeout,
}

/// Why a rank could not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreached {
    /// Nobody listens where it was: it is dead.
    Refused,
    /// Something listens and does not answer: the rank may be stopped.
    Silent,
    /// No way leads there.
    NoRoute,
    /// The connection ended early, or somebody else answered.
    Unclear,
}

/// What the driver has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Connect to a rank as its follower, and report [`Input::Dialed`].
    Dial(u32, Hello),
    /// Send a message.
    Send(Connection, Message),
    /// Close a connection, once what was sent is written.
    Close(Connection),
    /// Connect to the parent in the tree of a new group, and report [`Input::Linked`].
    Link {
        /// The new group.
        view: View,
        /// The parent.
        parent: u32,
    },
    /// Close the connections in the tree of a group that will not form, or that this rank gives up.
    Abandon(View),
    /// Find out whether anybody answers at a rank's address, and report [`Input::Probed`].
    Probe(u32),
    /// Regrouping is over.
    Done(Result<View, Error>),
}

/// Why a rank is in no new group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The ranks that came are too few to continue without the others.
    Minority {
        /// The ranks that came.
        here: Vec<u32>,
        /// Those that are missing and may live.
        others: Vec<u32>,
    },
    /// The leader did not answer in time.
    NoAnswer(u32),
    /// These ranks did not come in time.
    Missing(Vec<u32>),
    /// The others continued without this rank.
    Excluded,
}

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
        until: Instant,
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
    /// The host of each rank, by which the tree is drawn.
    hosts: Vec<u32>,
    deadline: Instant,
    /// How long a leader waits for the others: the deadline, or a moment after an attempt that failed.
    gather_until: Instant,
    out: Out,
    /// Ranks whose connections failed and that answer all the same.
    there: BTreeSet<u32>,
    /// Ranks that are being probed because their connections failed.
    checking: BTreeSet<u32>,
    /// Followers that came.
    arrived: BTreeMap<u32, (Connection, Hello)>,
    /// Pairs of which one could not connect to the other, once.
    apart: BTreeSet<(u32, u32)>,
    minority_since: Option<Instant>,
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
            hosts,
            deadline,
            gather_until: deadline,
            out: Out::default(),
            there: BTreeSet::new(),
            checking: BTreeSet::new(),
            arrived: BTreeMap::new(),
            apart: BTreeSet::new(),
            minority_since: None,
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
            Phase::Gathering { probe_at } => Some((*probe_at).min(self.gather_until)),
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
            Input::Known { dead, cut_off } => {
                self.out.dead.extend(dead.into_iter().filter(|rank| *rank != self.rank));
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

    fn arrive(&mut self, connection: Connection, hello: Hello, now: Instant, actions: &mut Vec<Action>) {
        if !self.view().ranks.contains(&hello.from) {
            let why = Abort::Excluded;
            actions.push(Action::Send(connection, Message::Abort { group: None, why }));
            actions.push(Action::Close(connection));
            return;
        }
        let dead = hello.dead.iter().copied().filter(|rank| *rank != self.rank);
        self.out.dead.extend(dead);
        // A rank that came is there, whatever was known of it.
        self.out.unreachable.remove(&hello.from);
        let from = hello.from;
        if let Some((old, _)) = self.arrived.insert(from, (connection, hello)) {
            actions.push(Action::Close(old));
            // It gave the proposal up and came again.
            if let Phase::Forming(Forming { leader: None, view, .. }) = &self.phase
                && view.ranks.contains(&from)
            {
                self.abort(Abort::Retry, now, actions);
            }
        }
    }

    fn closed(&mut self, connection: Connection, now: Instant, actions: &mut Vec<Action>) {
        let from = self.arrived.iter().find(|(_, (other, _))| *other == connection).map(|(rank, _)| *rank);
        if let Some(from) = from {
            self.arrived.remove(&from);
            if let Phase::Forming(Forming { leader: None, view, .. }) = &self.phase
                && view.ranks.contains(&from)
            {
                // Whether it is dead is found out when it does not come again.
                self.abort(Abort::Retry, now, actions);
            }
            return;
        }
        match &self.phase {
            Phase::Following { connection: own, .. } if *own == connection => self.retry(now, actions),
            Phase::Forming(Forming { leader: Some((_, own)), .. }) if *own == connection => {
                self.retry(now, actions);
            }
            _ => {}
        }
    }

    fn dialed(&mut self, dialed: Result<Connection, Unreached>, now: Instant, actions: &mut Vec<Action>) {
        let Phase::Dialing { leader } = self.phase else {
            if let Ok(connection) = dialed {
                actions.push(Action::Close(connection));
            }
            return;
        };
        let unclear_since = self.unclear_since.take();
        match dialed {
            Ok(connection) => {
                // The leader answers when it has heard from all, or when its deadline has passed.
                let until = self.deadline.max(now) + HELLO;
                self.phase = Phase::Following { leader, connection, until };
            }
            // A rank that is stopped is not passed over: the others may be waiting there already.
            Err(Unreached::Silent) if now >= self.deadline => {
                self.done(Err(Error::NoAnswer(leader)), actions);
            }
            Err(Unreached::Silent) => self.retry(now, actions),
            Err(Unreached::Refused) => {
                self.out.dead.insert(leader);
                self.retry(now, actions);
            }
            Err(Unreached::Unclear) if unclear_since.is_none_or(|since| now < since + INQUIRY) => {
                self.unclear_since = Some(unclear_since.unwrap_or(now));
                self.retry(now, actions);
            }
            Err(Unreached::NoRoute | Unreached::Unclear) => {
                self.out.unreachable.insert(leader);
                self.retry(now, actions);
            }
        }
    }

    fn linked(&mut self, group: u64, linked: Result<(), Unreached>, now: Instant, actions: &mut Vec<Action>) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        if forming.view.group != group {
            return;
        }
        match linked {
            Ok(()) => forming.is_linked = true,
            Err(unreached) => {
                let parent = parent_in(&forming.view, &self.hosts, self.rank);
                if let (Some((_, connection)), Some(parent)) = (forming.leader, parent) {
                    let is_dead = unreached == Unreached::Refused;
                    actions.push(Action::Send(connection, Message::Failed { group, parent, is_dead }));
                }
                self.retry(now, actions);
            }
        }
    }

    fn hear(&mut self, connection: Connection, message: Message, now: Instant, actions: &mut Vec<Action>) {
        match message {
            Message::Propose(view) => {
                let Phase::Following { leader, connection: own, .. } = self.phase else { return };
                let is_right = own == connection && view.ranks.contains(&self.rank) && is_sorted(&view.ranks);
                if !is_right {
                    return;
                }
                actions.push(Action::Send(connection, Message::Forming { group: view.group }));
                self.form(view, Some((leader, connection)), now, actions);
            }
            Message::Commit { group } => {
                if let Phase::Forming(forming) = &self.phase
                    && forming.view.group == group
                    && forming.leader.is_some_and(|(_, own)| own == connection)
                {
                    let view = forming.view.clone();
                    actions.push(Action::Close(connection));
                    self.done(Ok(view), actions);
                }
            }
            Message::Abort { group, why } => self.aborted(connection, group, why, now, actions),
            Message::Forming { group } | Message::Ready { group } => {
                let from = self.sender(connection);
                if let Phase::Forming(forming) = &mut self.phase
                    && let Some(from) = from.filter(|_| forming.view.group == group)
                {
                    forming.heard.insert(from);
                    if matches!(message, Message::Ready { .. }) {
                        forming.ready.insert(from);
                    }
                }
            }
            Message::Failed { group, parent, is_dead } => {
                let from = self.sender(connection);
                if let (Phase::Forming(forming), Some(from)) = (&self.phase, from)
                    && forming.view.group == group
                {
                    let (lower, higher) = (from.min(parent), from.max(parent));
                    match is_dead {
                        true if parent != self.rank => drop(self.out.dead.insert(parent)),
                        // Once it may have been a proposal that others gave up. Twice, the later of the two is out.
                        false if !self.apart.insert((lower, higher)) => {
                            self.out.unreachable.insert(higher);
                        }
                        _ => {}
                    }
                    self.abort(Abort::Retry, now, actions);
                }
            }
        }
    }

    /// The follower at the other end of a connection.
    fn sender(&self, connection: Connection) -> Option<u32> {
        self.arrived.iter().find(|(_, (other, _))| *other == connection).map(|(rank, _)| *rank)
    }

    fn aborted(
        &mut self,
        connection: Connection,
        group: Option<u64>,
        why: Abort,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let own = match &self.phase {
            Phase::Following { connection, .. } => Some(*connection),
            Phase::Forming(Forming { leader: Some((_, connection)), .. }) => Some(*connection),
            _ => None,
        };
        if own != Some(connection) {
            return;
        }
        // The leader has not committed that group and never will.
        let current = self.view().group;
        self.views.retain(|view| Some(view.group) != group || view.group == current);
        match why {
            Abort::Retry => self.retry(now, actions),
            Abort::Minority { here, others } => self.done(Err(Error::Minority { here, others }), actions),
            Abort::Excluded => self.done(Err(Error::Excluded), actions),
        }
    }

    fn time_out(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Following { leader, until, .. } if now >= *until => {
                let leader = *leader;
                self.done(Err(Error::NoAnswer(leader)), actions);
            }
            Phase::Gathering { probe_at } if now >= *probe_at && now < self.gather_until => {
                *probe_at = now + PROBE;
                actions.extend(self.missing().into_iter().map(Action::Probe));
            }
            Phase::Forming(forming) if now >= forming.until => {
                if forming.leader.is_some() {
                    return self.retry(now, actions);
                }
                // A rank that did not even hear the proposal is stopped, or cut off.
                let (view, heard) = (forming.view.clone(), forming.heard.clone());
                let deaf: Vec<u32> = self.followers(&view).filter(|rank| !heard.contains(rank)).collect();
                for rank in &deaf {
                    if let Some((connection, _)) = self.arrived.remove(rank) {
                        let (group, why) = (Some(view.group), Abort::Retry);
                        actions.push(Action::Send(connection, Message::Abort { group, why }));
                        actions.push(Action::Close(connection));
                    }
                }
                self.out.unreachable.extend(deaf);
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
            self.check_ready(actions);
        }
    }

    /// Chooses the leader: the lowest rank that is not out.
    fn choose(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let leader = self.view().ranks.iter().copied().find(|rank| !self.out.has(*rank));
        match leader.unwrap_or(self.rank) {
            leader if leader == self.rank => self.phase = Phase::Gathering { probe_at: now + PROBE },
            // Others may have been found out of reach only after it was too late to look for the next.
            _ if now >= self.deadline + HELLO => {
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
                let hello = Hello { from: self.rank, dead: self.out.dead.clone(), views: self.views.clone() };
                actions.push(Action::Dial(leader, hello));
            }
        }
    }

    /// The ranks that have not come and are not out.
    fn missing(&self) -> Vec<u32> {
        let is_missing =
            |rank: &u32| *rank != self.rank && !self.out.has(*rank) && !self.arrived.contains_key(rank);
        self.view().ranks.iter().copied().filter(is_missing).collect()
    }

    /// The ranks of the group that are not here and may live.
    fn others(&self, here: &[u32]) -> Vec<u32> {
        let is_other = |rank: &u32| !here.contains(rank) && !self.out.dead.contains(rank);
        self.view().ranks.iter().copied().filter(is_other).collect()
    }

    /// Proposes a group once all have come that may, or when it is too late for the rest.
    fn gather(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.missing().is_empty() && now < self.gather_until {
            return;
        }
        let hellos = self.arrived.values().map(|(_, hello)| hello);
        let newest = hellos
            .clone()
            .filter_map(|hello| hello.views.first())
            .chain(self.views.first())
            .max_by_key(|view| view.epoch);
        let allowed: BTreeSet<u32> = newest.into_iter().flat_map(|view| view.ranks.iter().copied()).collect();
        let here: BTreeSet<u32> =
            self.arrived.keys().copied().chain([self.rank]).filter(|rank| allowed.contains(rank)).collect();
        let views: BTreeSet<&View> = hellos.flat_map(|hello| &hello.views).chain(&self.views).collect();
        let has_quorum = views.iter().all(|view| may_continue(&view.ranks, &here, &self.out.dead));
        let epoch = views.iter().map(|view| view.epoch).max().unwrap_or_default() + 1;
        let here: Vec<u32> = here.into_iter().collect();
        if !has_quorum {
            let since = *self.minority_since.get_or_insert(now);
            if now >= self.deadline || now >= since + MINORITY {
                let others = self.others(&here);
                let why = Abort::Minority { here: here.clone(), others: others.clone() };
                self.dismiss(None, &why, actions);
                return self.done(Err(Error::Minority { here, others }), actions);
            }
            // The others may only have been slow to answer.
            self.out.unreachable.clear();
            self.there.clear();
            self.dismiss(None, &Abort::Retry, actions);
            return self.retry(now, actions);
        }
        self.random = mix(self.random ^ u64::from(self.rank));
        let view = View { epoch, group: self.random, ranks: here };
        // Followers that may not be in the new group hear that, so that they do not wait for it.
        let excluded: Vec<u32> =
            self.arrived.keys().copied().filter(|rank| !view.ranks.contains(rank)).collect();
        for rank in excluded {
            if let Some((connection, _)) = self.arrived.remove(&rank) {
                let why = Abort::Excluded;
                actions.push(Action::Send(connection, Message::Abort { group: None, why }));
                actions.push(Action::Close(connection));
            }
        }
        let propose =
            |(connection, _): &(Connection, Hello)| Action::Send(*connection, Message::Propose(view.clone()));
        actions.extend(self.arrived.values().map(propose));
        self.form(view, None, now, actions);
    }

    fn form(
        &mut self,
        view: View,
        leader: Option<(u32, Connection)>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let parent = parent_in(&view, &self.hosts, self.rank);
        if let Some(parent) = parent {
            actions.push(Action::Link { view: view.clone(), parent });
        }
        // Followers wait longer: the leader knows better who is missing.
        let limit = if leader.is_none() { HELLO } else { 2 * HELLO };
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

    fn check_ready(&mut self, actions: &mut Vec<Action>) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        let children = children_in(&forming.view, &self.hosts, self.rank);
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
                if is_complete {
                    for (connection, _) in self.arrived.values() {
                        actions.push(Action::Send(*connection, Message::Commit { group: view.group }));
                        actions.push(Action::Close(*connection));
                    }
                    self.done(Ok(view), actions);
                }
            }
        }
    }

    /// The leader gives its proposal up.
    fn abort(&mut self, why: Abort, now: Instant, actions: &mut Vec<Action>) {
        let group = match &self.phase {
            Phase::Forming(forming) => Some(forming.view.group),
            _ => None,
        };
        self.dismiss(group, &why, actions);
        // They need a moment to come again, even if the deadline has passed.
        self.gather_until = self.gather_until.max(now + PROBE + REGROUP_RETRY_MAX);
        self.retry(now, actions);
    }

    /// Tells all followers why it did not come about, and closes their connections.
    fn dismiss(&mut self, group: Option<u64>, why: &Abort, actions: &mut Vec<Action>) {
        for (connection, _) in std::mem::take(&mut self.arrived).into_values() {
            actions.push(Action::Send(connection, Message::Abort { group, why: why.clone() }));
            actions.push(Action::Close(connection));
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
            // Those that came too late, or to a rank that did not lead.
            Ok(view) => {
                self.arrived.retain(|rank, _| !view.ranks.contains(rank));
                self.dismiss(None, &Abort::Excluded, actions);
            }
        }
        self.phase = Phase::Done;
        actions.push(Action::Done(result));
    }
}

/// The parent of a rank in the tree of a new group.
fn parent_in(view: &View, hosts: &[u32], rank: u32) -> Option<u32> {
    let place = view.ranks.iter().position(|other| *other == rank)?;
    let parent = tree::parents(&hosts_of(view, hosts))[place]?;
    view.ranks.get(parent as usize).copied()
}

fn children_in(view: &View, hosts: &[u32], rank: u32) -> Vec<u32> {
    let Some(place) = view.ranks.iter().position(|other| *other == rank) else { return Vec::new() };
    let parents = tree::parents(&hosts_of(view, hosts));
    let children = tree::children(&parents, place as u32);
    children.into_iter().filter_map(|place| view.ranks.get(place as usize).copied()).collect()
}

/// The hosts of a group's ranks, numbered in the order of their first ranks.
fn hosts_of(view: &View, hosts: &[u32]) -> Vec<u32> {
    let of: Vec<u32> =
        view.ranks.iter().map(|rank| hosts.get(*rank as usize).copied().unwrap_or_default()).collect();
    tree::number_hosts(&of, |one, other| one == other)
}

fn is_sorted(ranks: &[u32]) -> bool {
    ranks.windows(2).all(|pair| pair[0] < pair[1])
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
