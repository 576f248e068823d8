//! Ranks of one job in one process, under virtual time and a seed.
//!
//! Messages take random times and keep their order on one connection, not between connections. Processes are stopped, resumed
//! and killed; hosts are cut off from each other and connected again, and what was in flight between them is lost with its
//! connection. Each rank drives the machines as the real driver does, with a backlog while it is stopped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use weftlink_membership::durations::{HELLO, PROBE, REPARENT};
use weftlink_membership::regroup::{self, Regroup, Unreached, View};
use weftlink_membership::{Action, Event, Group, Input, Probe, tree};

/// A random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Mostly short, sometimes long.
    fn delay(&mut self) -> Duration {
        let longest = [50, 500, 500, 5_000, 50_000, 300_000][self.below(6) as usize];
        Duration::from_micros(1 + self.below(longest))
    }
}

/// The error of a rank that gave its group up: who, and in which group.
type Failure = u32;
type GroupId = u64;

/// A fault that begins at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(u32),
    Leave(u32),
    Abort(u32),
    Stop(u32, Duration),
    /// Hosts below this number and the others are cut off from each other for this long.
    Cut(u32, Duration),
    /// The same as soon as a leader commits a group.
    CutAtCommit(u32, Duration),
    /// The first rank that commits a group is killed while it does.
    KillAtCommit,
}

#[derive(Debug)]
enum Happens {
    Fault(Fault),
    Resume(u32),
    Heal(u32),
    /// For the group machine of a rank.
    Group(u32, GroupId, Input<Failure>),
    /// For the regrouping machine of a rank.
    Regroup(u32, u32, regroup::Input),
    /// A follower's hello reached the leader's endpoint.
    Arrives(u32, u64, regroup::Hello),
    /// A child's connection reached its parent's endpoint.
    Child(u32, GroupId, u32),
    /// A rank whose parent left reaches another, to be its child: its rank, and its place in the group.
    Orphan(u32, GroupId, u32, u32),
    Shrink(u32, GroupId),
    Wake(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Dead,
    /// Ended in good order, or with an error.
    Gone,
}

struct Node {
    life: Life,
    backlog: Vec<Happens>,
    view: View,
    group: Group<Failure>,
    /// The group's cause has been acted on.
    has_failed: bool,
    is_leaving: bool,
    regroup: Option<Regroup>,
    /// Counts attempts to regroup, so that results of an old one are not taken for those of a new one.
    attempt: u32,
    regroup_deadline: Instant,
    /// Followers that came while this rank was not regrouping.
    arrivals: Vec<(u64, regroup::Hello)>,
    /// Children that connected and were not given to the regrouping machine yet, by group.
    children: BTreeMap<GroupId, BTreeSet<u32>>,
    /// Regrouping waits for an action that blocks: actions that follow it, the result of an earlier one, and inputs that wait.
    blocked: Option<Blocked>,
    /// What the regrouping machine knows of the group: dead ranks, and ranks whose connections failed.
    known: Option<(BTreeSet<u32>, BTreeSet<u32>)>,
    /// Events that came before this rank heard that the group stands.
    early: BTreeMap<GroupId, Vec<Input<Failure>>>,
    wakes_at: Option<Instant>,
}

/// What waits while a rank carries out an action that blocks.
#[derive(Default)]
struct Blocked {
    actions: VecDeque<regroup::Action>,
    /// Results of actions that blocked before, in the same batch.
    results: VecDeque<regroup::Input>,
    inputs: VecDeque<regroup::Input>,
}

/// A connection between a follower and its leader.
struct Star {
    ends: [u32; 2],
    attempts: [u32; 2],
    is_open: bool,
    last: [Instant; 2],
}

/// What became of a schedule.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) groups: usize,
    pub(crate) deaths_heard: usize,
    pub(crate) confirmed: usize,
    pub(crate) steps: usize,
    pub(crate) slowest_regroup: Duration,
}

pub(crate) struct World {
    pub(crate) random: Random,
    start: Instant,
    now: Instant,
    hosts: Vec<u32>,
    nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, Happens>,
    sequence: u64,
    /// Cut-off hosts: those below the number from the others.
    cuts: BTreeSet<u32>,
    /// Tree connections that are there, with the time of the last delivery each way.
    links: BTreeMap<(GroupId, u32, u32), Instant>,
    stars: BTreeMap<u64, Star>,
    /// Processes that ended without leaving in good order.
    killed: BTreeSet<u32>,
    /// When processes ended.
    ended: BTreeMap<u32, Instant>,
    /// What first went wrong, by group.
    roots: BTreeMap<GroupId, Vec<Event<Failure>>>,
    /// Every group that a rank was in.
    epochs: Vec<View>,
    patience: Duration,
    /// Whether ranks that regroup carry out actions one by one, as the driver of processes does, or all at once.
    pub(crate) blocks: bool,
    at_commit: Vec<Fault>,
    faults: usize,
    had_cut: bool,
    outcome: Outcome,
    pub(crate) trace: Option<Vec<String>>,
}

const FIRST: GroupId = 1;
const STEPS_MAX: usize = 400_000;

impl World {
    pub(crate) fn new(seed: u64, size: u32, hosts: u32, patience: Duration) -> World {
        let random = Random(seed);
        let start = Instant::now();
        let hosts: Vec<u32> = (0..size).map(|rank| rank * hosts / size).collect();
        let view = View { epoch: 0, group: FIRST, ranks: (0..size).collect() };
        let mut world = World {
            random,
            start,
            now: start,
            hosts,
            nodes: Vec::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            cuts: BTreeSet::new(),
            links: BTreeMap::new(),
            stars: BTreeMap::new(),
            killed: BTreeSet::new(),
            ended: BTreeMap::new(),
            roots: BTreeMap::new(),
            epochs: vec![view.clone()],
            patience,
            blocks: false,
            at_commit: Vec::new(),
            faults: 0,
            had_cut: false,
            outcome: Outcome::default(),
            trace: None,
        };
        let parents = tree::parents(&world.hosts);
        for (rank, parent) in (0_u32..).zip(&parents) {
            if let Some(parent) = parent {
                world.links.insert((FIRST, *parent, rank), start);
                world.links.insert((FIRST, rank, *parent), start);
            }
        }
        world.nodes = (0..size)
            .map(|rank| Node {
                life: Life::Runs,
                backlog: Vec::new(),
                group: world.machine(&view, rank),
                view: view.clone(),
                has_failed: false,
                is_leaving: false,
                regroup: None,
                attempt: 0,
                regroup_deadline: start,
                arrivals: Vec::new(),
                children: BTreeMap::new(),
                blocked: None,
                known: None,
                early: BTreeMap::new(),
                wakes_at: None,
            })
            .collect();
        world
    }

    /// A rank's machine in a group, in which ranks are called by their places.
    fn machine(&self, view: &View, rank: u32) -> Group<Failure> {
        let hosts: Vec<u32> = view.ranks.iter().map(|rank| self.hosts[*rank as usize]).collect();
        let hosts = tree::number_hosts(&hosts, |one, other| one == other);
        let parents = tree::parents(&hosts);
        let place = place_of(view, rank);
        let mut group = Group::new(place, parents[place as usize], tree::children(&parents, place));
        group.set_hosts(&hosts);
        group
    }

    pub(crate) fn fault(&mut self, at: Duration, fault: Fault) {
        self.faults += 1;
        self.at(self.start + at, Happens::Fault(fault));
    }

    fn at(&mut self, when: Instant, happens: Happens) {
        self.sequence += 1;
        self.queue.push(Reverse((when.max(self.now), self.sequence)));
        self.events.insert(self.sequence, happens);
    }

    fn after_delay(&mut self, happens: Happens) {
        let delay = self.random.delay();
        self.at(self.now + delay, happens);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        while let Some(Reverse((when, number))) = self.queue.pop() {
            self.now = when;
            self.outcome.steps += 1;
            if self.outcome.steps > STEPS_MAX {
                return Err(format!("it does not end: {STEPS_MAX} steps"));
            }
            let Some(happens) = self.events.remove(&number) else { continue };
            if let Some(trace) = &mut self.trace {
                let at = (when - self.start).as_micros();
                trace.push(format!("{at:>10} {happens:?}"));
            }
            let result = self.happen(happens);
            if let Err(error) = result {
                if let Some(trace) = &self.trace {
                    trace.iter().for_each(|line| println!("{line}"));
                }
                return Err(error);
            }
        }
        let checked = self.check_end();
        if let (Err(_), Some(trace)) = (&checked, &self.trace) {
            trace.iter().for_each(|line| println!("{line}"));
        }
        checked?;
        Ok(self.outcome)
    }

    fn is_cut(&self, one: u32, other: u32) -> bool {
        let (one, other) = (self.hosts[one as usize], self.hosts[other as usize]);
        self.cuts.iter().any(|cut| (one < *cut) != (other < *cut))
    }

    fn rank_of(happens: &Happens) -> Option<u32> {
        match happens {
            Happens::Group(rank, ..) | Happens::Regroup(rank, ..) | Happens::Arrives(rank, ..) => Some(*rank),
            Happens::Child(rank, ..)
            | Happens::Orphan(rank, ..)
            | Happens::Shrink(rank, _)
            | Happens::Wake(rank) => Some(*rank),
            Happens::Fault(Fault::Leave(rank) | Fault::Abort(rank)) => Some(*rank),
            Happens::Fault(_) | Happens::Resume(_) | Happens::Heal(_) => None,
        }
    }

    fn happen(&mut self, happens: Happens) -> Result<(), String> {
        if let Some(rank) = World::rank_of(&happens) {
            match self.nodes[rank as usize].life {
                Life::Runs => {}
                Life::Stopped => {
                    match happens {
                        Happens::Orphan(_, group, orphan, _) => {
                            self.not_reparented(group, orphan, rank, None)
                        }
                        happens => self.nodes[rank as usize].backlog.push(happens),
                    }
                    return Ok(());
                }
                Life::Dead | Life::Gone => {
                    if let Happens::Orphan(_, group, orphan, _) = happens {
                        self.not_reparented(group, orphan, rank, None);
                    }
                    return Ok(());
                }
            }
        }
        match happens {
            Happens::Fault(fault) => self.begin(fault),
            Happens::Resume(rank) => {
                if self.nodes[rank as usize].life == Life::Stopped {
                    self.nodes[rank as usize].life = Life::Runs;
                    for happens in std::mem::take(&mut self.nodes[rank as usize].backlog) {
                        self.happen(happens)?;
                    }
                    self.wake(rank)?;
                }
                Ok(())
            }
            Happens::Heal(cut) => {
                self.cuts.remove(&cut);
                Ok(())
            }
            Happens::Group(rank, group, input) => self.group_input(rank, group, input),
            Happens::Regroup(rank, attempt, input) => match self.nodes[rank as usize].attempt == attempt {
                true => self.regroup_input(rank, input),
                false => Ok(()),
            },
            Happens::Arrives(rank, connection, hello) => match self.nodes[rank as usize].regroup {
                Some(_) => self.regroup_input(rank, regroup::Input::Arrived(connection, hello)),
                None if !self.nodes[rank as usize].view.ranks.contains(&hello.from) => {
                    self.exclude(rank, connection);
                    Ok(())
                }
                None => {
                    self.nodes[rank as usize].arrivals.push((connection, hello));
                    Ok(())
                }
            },
            Happens::Child(rank, group, child) => {
                self.nodes[rank as usize].children.entry(group).or_default().insert(child);
                self.accept_children(rank)
            }
            Happens::Orphan(rank, group, orphan, place) => self.take_in(rank, group, orphan, place),
            Happens::Shrink(rank, group) => self.shrink(rank, group),
            Happens::Wake(rank) => self.wake(rank),
        }
    }

    /// A rank that does not regroup, or no longer does, answers one that comes too late.
    fn exclude(&mut self, rank: u32, connection: u64) {
        let Some(star) = self.stars.get(&connection).filter(|star| star.is_open) else { return };
        let (to, attempt, when) = (star.ends[0], star.attempts[0], self.now + Duration::from_millis(1));
        let why = regroup::Message::Abort { group: None, why: regroup::Abort::Excluded };
        self.at(
            when.max(star.last[0]),
            Happens::Regroup(to, attempt, regroup::Input::Message(connection, why)),
        );
        self.close_star(connection, Some(rank));
    }

    /// Gives both machines of a rank the time, if it has come.
    fn wake(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        node.wakes_at = None;
        let group = node.view.group;
        if node.group.next_timeout().is_some_and(|when| when <= self.now) {
            self.group_input(rank, group, Input::Timeout)?;
        }
        let node = &self.nodes[rank as usize];
        if node.life != Life::Runs {
            return Ok(());
        }
        let is_due =
            node.regroup.as_ref().and_then(Regroup::next_timeout).is_some_and(|when| when <= self.now);
        if is_due && node.blocked.is_none() {
            self.regroup_input(rank, regroup::Input::Timeout)?;
        }
        self.schedule_wake(rank);
        Ok(())
    }

    fn schedule_wake(&mut self, rank: u32) {
        let node = &self.nodes[rank as usize];
        let next = node.group.next_timeout().into_iter();
        let regroup = node.regroup.as_ref().filter(|_| node.blocked.is_none());
        let next = next.chain(regroup.and_then(Regroup::next_timeout)).min();
        if let Some(next) = next
            && node.wakes_at.is_none_or(|at| next < at)
        {
            self.nodes[rank as usize].wakes_at = Some(next);
            self.at(next, Happens::Wake(rank));
        }
    }

    fn begin(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill(rank) => {
                let node = &mut self.nodes[rank as usize];
                if matches!(node.life, Life::Dead | Life::Gone) {
                    return Ok(());
                }
                node.life = Life::Dead;
                self.end(rank);
                Ok(())
            }
            Fault::Leave(rank) => {
                // A rank that has failed, or regroups, does not leave in good order.
                let node = &self.nodes[rank as usize];
                match node.has_failed || node.group.cause().is_some() {
                    true => Ok(()),
                    false => self.leave(rank),
                }
            }
            Fault::Abort(rank) => {
                let (view, place) = (self.nodes[rank as usize].view.clone(), self.place(rank));
                if self.nodes[rank as usize].group.cause().is_some() {
                    return Ok(());
                }
                let event = Event::Failed { rank: place, reason: 1, culprit: place, error: rank };
                self.root(view.group, event.clone());
                self.group_input(rank, view.group, Input::Raise(event))
            }
            Fault::Stop(rank, time) => {
                if self.nodes[rank as usize].life == Life::Runs {
                    self.nodes[rank as usize].life = Life::Stopped;
                    self.at(self.now + time, Happens::Resume(rank));
                }
                Ok(())
            }
            Fault::CutAtCommit(..) | Fault::KillAtCommit => {
                self.at_commit.push(fault);
                Ok(())
            }
            Fault::Cut(host, time) => {
                self.had_cut = true;
                self.cuts.insert(host);
                self.at(self.now + time, Happens::Heal(host));
                let cut: Vec<(GroupId, u32, u32)> =
                    self.links.keys().copied().filter(|(_, from, to)| self.is_cut(*from, *to)).collect();
                for (group, from, to) in cut {
                    self.links.remove(&(group, from, to));
                    self.notice_end(group, from, to);
                }
                let cut: Vec<u64> = self
                    .stars
                    .iter()
                    .filter(|(_, star)| star.is_open && self.is_cut(star.ends[0], star.ends[1]))
                    .map(|(id, _)| *id)
                    .collect();
                for connection in cut {
                    self.close_star(connection, None);
                }
                Ok(())
            }
        }
    }

    fn root(&mut self, group: GroupId, event: Event<Failure>) {
        self.roots.entry(group).or_default().push(event);
    }

    fn place(&self, rank: u32) -> u32 {
        place_of(&self.nodes[rank as usize].view, rank)
    }

    /// One end of a tree connection notices that it failed, some time later.
    fn notice_end(&mut self, group: GroupId, from: u32, to: u32) {
        let Some(view) = self.view_of(group) else { return };
        let (other, is_watched) =
            (place_of(&view, from), self.hosts[from as usize] == self.hosts[to as usize]);
        if !self.killed.contains(&from) {
            let event = Event::Lost { rank: other, by: place_of(&view, to), what: String::new() };
            self.root(group, event);
        }
        self.after_delay(Happens::Group(to, group, Input::Disconnected { rank: other, is_watched }));
    }

    fn view_of(&self, group: GroupId) -> Option<View> {
        self.epochs.iter().find(|view| view.group == group).cloned()
    }

    /// A process ends that others count on.
    fn end(&mut self, rank: u32) {
        self.killed.insert(rank);
        self.end_everywhere(rank);
        self.close_all(rank, true);
    }

    /// From now on a rank that reports this one as dead is right.
    fn end_everywhere(&mut self, rank: u32) {
        for view in self.epochs.clone().iter().filter(|view| view.ranks.contains(&rank)) {
            self.root(view.group, Event::Died { rank: place_of(view, rank) });
        }
    }

    /// A process ends: its connections do, and neighbours on its host see the process end.
    fn close_all(&mut self, rank: u32, is_death: bool) {
        self.ended.insert(rank, self.now);
        let ended: Vec<(GroupId, u32, u32)> =
            self.links.keys().copied().filter(|(_, from, to)| *from == rank || *to == rank).collect();
        for (group, from, to) in ended {
            // What was sent before arrives first.
            let last = self.links.remove(&(group, from, to));
            if from != rank {
                continue;
            }
            let Some(view) = self.view_of(group) else { continue };
            let place = place_of(&view, rank);
            let is_watched = self.hosts[from as usize] == self.hosts[to as usize];
            let delay = self.random.delay();
            let when = (self.now + delay).max(last.unwrap_or(self.now));
            self.at(when, Happens::Group(to, group, Input::Disconnected { rank: place, is_watched }));
            if is_watched && is_death {
                // The kernel reports it within the time that an inquiry takes, unless nobody runs there. The driver reads what
                // was sent before.
                let when = (self.now + self.random.delay()).max(last.unwrap_or(self.now));
                self.at(when, Happens::Group(to, group, Input::Exited(place)));
            }
        }
        let stars: Vec<u64> =
            self.stars.iter().filter(|(_, star)| star.ends.contains(&rank)).map(|(id, _)| *id).collect();
        for connection in stars {
            self.close_star(connection, Some(rank));
        }
    }

    /// Ends a connection to a leader; the end that closed it does not hear of that.
    fn close_star(&mut self, connection: u64, by: Option<u32>) {
        let Some(star) = self.stars.get_mut(&connection) else { return };
        if !std::mem::replace(&mut star.is_open, false) {
            return;
        }
        let (ends, attempts, last) = (star.ends, star.attempts, star.last);
        for end in [0, 1] {
            if Some(ends[end]) != by {
                let delay = self.random.delay();
                let when = (self.now + delay).max(last[end]);
                let input = regroup::Input::Closed(connection);
                self.at(when, Happens::Regroup(ends[end], attempts[end], input));
                self.nodes[ends[end] as usize].arrivals.retain(|(other, _)| *other != connection);
            }
        }
    }

    fn leave(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if std::mem::replace(&mut node.is_leaving, true) {
            return Ok(());
        }
        let group = node.view.group;
        self.group_input(rank, group, Input::Leave { calls: 0 })
    }

    /// A rank that left ends. Unless its departure was confirmed, ranks that stay may take it for dead.
    fn departed(&mut self, rank: u32, is_confirmed: bool) {
        self.outcome.confirmed += usize::from(is_confirmed);
        if !is_confirmed {
            self.end_everywhere(rank);
        }
        self.nodes[rank as usize].life = Life::Gone;
        self.close_all(rank, false);
    }

    fn group_input(&mut self, rank: u32, group: GroupId, input: Input<Failure>) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.view.group != group {
            // It may not have heard yet that the group stands.
            if node.regroup.is_some() {
                node.early.entry(group).or_default().push(input);
            }
            return Ok(());
        }
        let actions = node.group.handle(input, self.now);
        for action in actions {
            self.act(rank, group, action)?;
        }
        self.schedule_wake(rank);
        self.tell_known(rank)?;
        let node = &mut self.nodes[rank as usize];
        let goes_on = node.life == Life::Runs && !node.is_leaving;
        if node.group.cause().is_some() && !node.has_failed && goes_on {
            node.has_failed = true;
            let cause = node.group.cause().cloned();
            let roots = self.roots.get(&group).map_or(&[][..], Vec::as_slice);
            cause.map_or(Ok(()), |cause| self.check_cause(rank, &cause, roots))?;
            let delay = self.random.delay();
            self.at(self.now + delay, Happens::Shrink(rank, group));
        }
        Ok(())
    }

    fn act(&mut self, rank: u32, group: GroupId, action: Action<Failure>) -> Result<(), String> {
        let view = self.nodes[rank as usize].view.clone();
        let of = |place: u32| view.ranks[place as usize];
        match action {
            Action::Send { to, event } => {
                let (to, from) = (of(to), place_of(&view, rank));
                let delay = self.random.delay();
                if let Some(last) = self.links.get_mut(&(group, rank, to)) {
                    *last = (self.now + delay).max(*last);
                    let when = *last;
                    self.at(when, Happens::Group(to, group, Input::Heard { from, event }));
                }
            }
            Action::Deliver(Event::Died { rank: place }) => {
                self.outcome.deaths_heard += 1;
                if matches!(self.nodes[of(place) as usize].life, Life::Runs | Life::Stopped) {
                    return Err(format!("rank {rank} takes rank {} for dead, which lives", of(place)));
                }
            }
            Action::Deliver(_) => {}
            Action::Probe(place) => {
                let (outcome, time) = self.probe(rank, of(place));
                self.at(self.now + time, Happens::Group(rank, group, Input::Probed(place, outcome)));
            }
            Action::Reparent(place) => {
                let (to, own) = (of(place), place_of(&view, rank));
                match self.nodes[to as usize].life {
                    Life::Runs if !self.is_cut(rank, to) => {
                        self.after_delay(Happens::Orphan(to, group, rank, own));
                    }
                    _ => self.not_reparented(group, rank, to, None),
                }
            }
            Action::Close(place) => {
                let to = of(place);
                let last = self.links.remove(&(group, rank, to)).unwrap_or(self.now);
                self.links.remove(&(group, to, rank));
                let is_watched = self.hosts[rank as usize] == self.hosts[to as usize];
                let input = Input::Disconnected { rank: place_of(&view, rank), is_watched };
                self.at(last, Happens::Group(to, group, input));
            }
            Action::Confirm(place) => {
                let (to, from) = (of(place), place_of(&view, rank));
                let delay = self.random.delay();
                if let Some(last) = self.links.get_mut(&(group, rank, to)) {
                    *last = (self.now + delay).max(*last);
                    let when = *last;
                    self.at(when, Happens::Group(to, group, Input::Confirmed(from)));
                }
            }
            Action::Departed { is_confirmed } => self.departed(rank, is_confirmed),
        }
        Ok(())
    }

    /// A rank whose parent left comes to another, which takes it in or answers that it is not in the group.
    fn take_in(&mut self, rank: u32, group: GroupId, orphan: u32, place: u32) -> Result<(), String> {
        let node = &self.nodes[rank as usize];
        // The orphan has ended, or given up, if this rank was stopped for long.
        if self.nodes[orphan as usize].life != Life::Runs || self.nodes[orphan as usize].view.group != group {
            return Ok(());
        }
        if node.view.group != group || self.is_cut(rank, orphan) {
            self.not_reparented(group, orphan, rank, Some(0));
            return Ok(());
        }
        let own = place_of(&node.view, rank);
        for pair in [(group, rank, orphan), (group, orphan, rank)] {
            self.links.insert(pair, self.now);
        }
        let delay = self.random.delay();
        self.links.insert((group, rank, orphan), self.now + delay);
        self.at(self.now + delay, Happens::Group(orphan, group, Input::Connected(own)));
        self.group_input(rank, group, Input::Connected(place))
    }

    fn not_reparented(&mut self, group: GroupId, orphan: u32, to: u32, left_after: Option<u32>) {
        let Some(view) = self.view_of(group) else { return };
        let life = self.nodes[to as usize].life;
        let why = match life {
            _ if self.is_cut(orphan, to) => Probe::Silent,
            Life::Runs => Probe::Answered,
            Life::Stopped => Probe::Silent,
            Life::Dead | Life::Gone => Probe::Refused,
        };
        let left_after = left_after.filter(|_| why == Probe::Answered);
        let limit = if why == Probe::Silent { REPARENT } else { Duration::ZERO };
        let delay = self.random.delay() + limit;
        let input = Input::NotReparented { rank: place_of(&view, to), why, left_after };
        self.at(self.now + delay, Happens::Group(orphan, group, input));
    }

    /// What a probe finds, and after which time.
    fn probe(&mut self, from: u32, to: u32) -> (Probe, Duration) {
        let delay = self.random.delay();
        if self.is_cut(from, to) {
            return (Probe::Silent, PROBE);
        }
        match self.nodes[to as usize].life {
            Life::Runs if delay < PROBE => (Probe::Answered, delay),
            Life::Runs | Life::Stopped => (Probe::Silent, PROBE),
            // A process that has just ended may still have a socket.
            Life::Dead | Life::Gone if self.has_just_ended(to) => (Probe::Unclear, delay.min(PROBE / 8)),
            Life::Dead | Life::Gone => (Probe::Refused, delay),
        }
    }

    fn has_just_ended(&self, rank: u32) -> bool {
        self.ended.get(&rank).is_some_and(|when| self.now < *when + Duration::from_millis(20))
    }

    fn dial(&mut self, from: u32, to: u32) -> (Result<(), Unreached>, Duration) {
        let delay = self.random.delay();
        if self.is_cut(from, to) {
            let limit = if self.random.one_in(2) { HELLO } else { delay };
            return (Err(Unreached::NoRoute), limit);
        }
        match self.nodes[to as usize].life {
            Life::Runs => (Ok(()), delay),
            Life::Stopped => (Err(Unreached::Silent), HELLO),
            Life::Dead | Life::Gone if self.has_just_ended(to) => (Err(Unreached::Unclear), delay),
            Life::Dead | Life::Gone => (Err(Unreached::Refused), delay),
        }
    }

    fn shrink(&mut self, rank: u32, group: GroupId) -> Result<(), String> {
        let random = self.random.next();
        let node = &mut self.nodes[rank as usize];
        if node.view.group != group || node.regroup.is_some() {
            return Ok(());
        }
        let deadline = self.now + self.patience;
        node.attempt += 1;
        (node.blocked, node.known) = (None, None);
        node.regroup_deadline = deadline;
        node.regroup =
            Some(Regroup::new(rank, vec![node.view.clone()], self.hosts.clone(), deadline, random));
        self.tell_known(rank)?;
        for (connection, hello) in std::mem::take(&mut self.nodes[rank as usize].arrivals) {
            self.regroup_input(rank, regroup::Input::Arrived(connection, hello))?;
        }
        Ok(())
    }

    /// Gives the regrouping machine what the group knows, if that has changed.
    fn tell_known(&mut self, rank: u32) -> Result<(), String> {
        let node = &self.nodes[rank as usize];
        if node.regroup.is_none() {
            return Ok(());
        }
        let of = |place: &u32| node.view.ranks[*place as usize];
        let dead: BTreeSet<u32> = node.group.dead().iter().map(of).collect();
        let own = place_of(&node.view, rank);
        let cut_off: BTreeSet<u32> =
            node.group.lost().iter().filter(|(_, by)| *by == own).map(|(place, _)| of(place)).collect();
        let known = Some((dead.clone(), cut_off.clone()));
        if node.known == known {
            return Ok(());
        }
        self.nodes[rank as usize].known = known;
        self.regroup_input(rank, regroup::Input::Known { dead, cut_off })
    }

    /// Gives the regrouping machine the children that have connected, if it awaits them.
    fn accept_children(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.blocked.is_some() {
            return Ok(());
        }
        let Some(group) = node.regroup.as_ref().and_then(Regroup::forming).map(|view| view.group) else {
            return Ok(());
        };
        for child in node.children.remove(&group).unwrap_or_default() {
            self.regroup_input(rank, regroup::Input::Child(group, child))?;
        }
        Ok(())
    }

    fn regroup_input(&mut self, rank: u32, input: regroup::Input) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.life != Life::Runs {
            return Ok(());
        }
        if let regroup::Input::Arrived(connection, _) = &input
            && let Some(star) = self.stars.get_mut(connection)
        {
            star.attempts[1] = node.attempt;
            if !star.is_open {
                return Ok(());
            }
        }
        use regroup::Input as In;
        if self.blocks
            && let Some(blocked) = &mut node.blocked
        {
            let is_result = matches!(&input, In::Dialed(_) | In::Linked(..));
            if !is_result {
                blocked.inputs.push_back(input);
                return Ok(());
            }
            blocked.results.push_back(input);
            let blocked = node.blocked.take().unwrap_or_default();
            return self.carry_out(rank, blocked);
        }
        let Some(regroup) = &mut node.regroup else {
            // It came while this rank was busy, and has to come again.
            if let In::Arrived(connection, _) = input {
                self.close_star(connection, Some(rank));
            }
            return Ok(());
        };
        let actions = regroup.handle(input, self.now).into();
        self.carry_out(rank, Blocked { actions, ..Blocked::default() })
    }

    /// Carries out actions until one blocks, then takes in what waited.
    fn carry_out(&mut self, rank: u32, mut blocked: Blocked) -> Result<(), String> {
        while let Some(action) = blocked.actions.pop_front() {
            let is_commit = matches!(&action, regroup::Action::Send(_, regroup::Message::Commit { .. }));
            let blocks = matches!(&action, regroup::Action::Dial(..) | regroup::Action::Link { .. });
            self.regroup_act(rank, action)?;
            if is_commit && let Some(fault) = self.at_commit.pop() {
                match fault {
                    Fault::CutAtCommit(host, time) => self.begin(Fault::Cut(host, time))?,
                    _ => return self.begin(Fault::Kill(rank)),
                }
            }
            if self.blocks && blocks {
                self.nodes[rank as usize].blocked = Some(blocked);
                return Ok(());
            }
        }
        for input in blocked.results.into_iter().chain(blocked.inputs) {
            self.regroup_input(rank, input)?;
        }
        self.accept_children(rank)?;
        self.schedule_wake(rank);
        Ok(())
    }

    fn regroup_act(&mut self, rank: u32, action: regroup::Action) -> Result<(), String> {
        use regroup::Action as Act;
        let attempt = self.nodes[rank as usize].attempt;
        match action {
            Act::Dial(to, hello) => {
                let (dialed, time) = self.dial(rank, to);
                let when = self.now + time;
                let input = match dialed {
                    Ok(()) => {
                        self.sequence += 1;
                        let id = self.sequence;
                        let last = [when; 2];
                        let star = Star { ends: [rank, to], attempts: [attempt, 0], is_open: true, last };
                        self.stars.insert(id, star);
                        self.at(when, Happens::Arrives(to, id, hello));
                        Ok(id)
                    }
                    Err(unreached) => Err(unreached),
                };
                self.at(when, Happens::Regroup(rank, attempt, regroup::Input::Dialed(input)));
            }
            Act::Send(connection, message) => {
                let delay = self.random.delay();
                let now = self.now;
                if let Some(star) = self.stars.get_mut(&connection).filter(|star| star.is_open) {
                    let end = usize::from(star.ends[0] == rank);
                    star.last[end] = (now + delay).max(star.last[end]);
                    let (to, attempt, when) = (star.ends[end], star.attempts[end], star.last[end]);
                    let input = regroup::Input::Message(connection, message);
                    self.at(when, Happens::Regroup(to, attempt, input));
                }
            }
            Act::Close(connection) => self.close_star(connection, Some(rank)),
            Act::Link { view, parent } => {
                let (linked, time) = self.dial(rank, parent);
                let (group, when) = (view.group, self.now + time);
                if linked.is_ok() {
                    self.links.insert((group, rank, parent), when);
                    self.links.insert((group, parent, rank), when);
                    self.at(when, Happens::Child(parent, group, rank));
                }
                self.at(when, Happens::Regroup(rank, attempt, regroup::Input::Linked(group, linked)));
            }
            Act::Abandon(view) => self.abandon(rank, view.group),
            Act::Probe(to) => {
                let (outcome, time) = self.probe(rank, to);
                let input = regroup::Input::Probed(to, outcome);
                self.at(self.now + time, Happens::Regroup(rank, attempt, input));
            }
            Act::Done(result) => self.regrouped(rank, result)?,
        }
        Ok(())
    }

    /// A rank closes its connections in the tree of a group that it gives up.
    fn abandon(&mut self, rank: u32, group: GroupId) {
        let ended: Vec<(GroupId, u32, u32)> = self
            .links
            .keys()
            .copied()
            .filter(|(other, from, to)| *other == group && (*from == rank || *to == rank))
            .collect();
        for (group, from, to) in ended {
            self.links.remove(&(group, from, to));
            if from == rank
                && let Some(view) = self.view_of(group)
            {
                let place = place_of(&view, rank);
                let event = Event::Failed { rank: place, reason: 2, culprit: place, error: rank };
                self.root(group, event.clone());
                self.after_delay(Happens::Group(to, group, Input::Heard { from: place, event }));
            }
        }
    }

    fn regrouped(&mut self, rank: u32, result: Result<View, regroup::Error>) -> Result<(), String> {
        let deadline = self.nodes[rank as usize].regroup_deadline;
        let late = self.now.saturating_duration_since(deadline);
        self.outcome.slowest_regroup = self.outcome.slowest_regroup.max(late);
        let view = match result {
            Ok(view) => view,
            Err(_) => {
                // The program ends with an error.
                self.nodes[rank as usize].life = Life::Gone;
                self.end(rank);
                return Ok(());
            }
        };
        if !view.ranks.contains(&rank) {
            return Err(format!("rank {rank} is not in its own group {view:?}"));
        }
        let shares = |other: &&View| other.epoch == view.epoch && **other != view && self.has_living(other);
        if let Some(other) = self.epochs.iter().find(shares) {
            return Err(format!("two groups of epoch {}: {other:?} and {view:?}", view.epoch));
        }
        if !self.epochs.contains(&view) {
            self.outcome.groups += 1;
            // Ranks that died while it formed are causes that it begins with.
            for &other in &view.ranks {
                if matches!(self.nodes[other as usize].life, Life::Dead | Life::Gone) {
                    self.root(view.group, Event::Died { rank: place_of(&view, other) });
                }
            }
            self.epochs.push(view.clone());
        }
        let group = self.machine(&view, rank);
        let neighbours: Vec<u32> = group.neighbours().iter().copied().collect();
        let old = self.nodes[rank as usize].view.clone();
        let node = &mut self.nodes[rank as usize];
        (node.group, node.view, node.has_failed, node.regroup) = (group, view.clone(), false, None);
        node.blocked = None;
        node.attempt += 1;
        let early = node.early.remove(&view.group).unwrap_or_default();
        node.early.clear();
        // Nothing of the old group is used any more.
        self.abandon_old(rank, old.group);
        for place in neighbours {
            let other = view.ranks[place as usize];
            if !self.links.contains_key(&(view.group, other, rank)) {
                let is_watched = self.hosts[other as usize] == self.hosts[rank as usize];
                let place = place_of(&view, other);
                let event = Event::Lost { rank: place, by: place_of(&view, rank), what: String::new() };
                self.root(view.group, event);
                self.after_delay(Happens::Group(
                    rank,
                    view.group,
                    Input::Disconnected { rank: place, is_watched },
                ));
                if is_watched && self.killed.contains(&other) {
                    self.after_delay(Happens::Group(rank, view.group, Input::Exited(place)));
                }
            }
        }
        for input in early {
            self.group_input(rank, view.group, input)?;
        }
        self.check_split()
    }

    /// Whether a rank that lives is in this group now.
    fn has_living(&self, view: &View) -> bool {
        let is_in = |node: &Node| matches!(node.life, Life::Runs | Life::Stopped) && node.view == *view;
        self.nodes.iter().any(is_in)
    }

    fn abandon_old(&mut self, rank: u32, group: GroupId) {
        self.links.retain(|(other, from, to), _| *other != group || (*from != rank && *to != rank));
    }

    /// No two groups of which all living ranks are in.
    fn check_split(&self) -> Result<(), String> {
        let lives = |rank: &&u32| matches!(self.nodes[**rank as usize].life, Life::Runs | Life::Stopped);
        let operates = |view: &View| {
            let mut living = view.ranks.iter().filter(lives).peekable();
            living.peek().is_some() && living.all(|rank| self.nodes[*rank as usize].view.group == view.group)
        };
        let operating: Vec<&View> = self.epochs.iter().filter(|view| operates(view)).collect();
        match operating.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("more than one group continues: {operating:?}")),
        }
    }

    /// What must hold when nothing happens any more.
    fn check_end(&self) -> Result<(), String> {
        let runs: Vec<u32> = (0..self.nodes.len() as u32)
            .filter(|rank| self.nodes[*rank as usize].life == Life::Runs)
            .collect();
        if let Some(rank) = runs.iter().find(|rank| self.nodes[**rank as usize].regroup.is_some()) {
            let regroup = &self.nodes[*rank as usize].regroup;
            return Err(format!("rank {rank} regroups for ever: {regroup:?}"));
        }
        if self.outcome.slowest_regroup > 8 * HELLO {
            let late = self.outcome.slowest_regroup;
            return Err(format!("a rank regrouped until {late:?} after its deadline"));
        }
        if !self.had_cut {
            self.check_together(&runs)?;
        }
        Ok(())
    }

    /// The cause that a rank reports is something that went wrong, not what came of it.
    fn check_cause(&self, rank: u32, cause: &Event<Failure>, roots: &[Event<Failure>]) -> Result<(), String> {
        let is_same = |root: &Event<Failure>| match (root, cause) {
            (Event::Lost { rank: one, by, .. }, Event::Lost { rank: other, by: noticed, .. }) => {
                one == other && by == noticed
            }
            // Whether a rank beyond a broken network is dead cannot be known.
            (Event::Died { rank: one }, Event::Lost { rank: other, .. }) => self.had_cut && one == other,
            (root, cause) => root == cause,
        };
        match roots.iter().any(is_same) {
            true => Ok(()),
            false => Err(format!("rank {rank} reports {cause:?}, but what went wrong is {roots:?}")),
        }
    }

    /// Where the network holds, all ranks that run are in one group and know the same of it.
    fn check_together(&self, runs: &[u32]) -> Result<(), String> {
        for &rank in runs {
            let node = &self.nodes[rank as usize];
            let elsewhere = |other: &&u32| {
                let other = &self.nodes[**other as usize];
                other.life == Life::Runs && other.view.group != node.view.group
            };
            // A rank that was stopped while the others continued knows at least that they are gone.
            let is_known = |other: &u32| node.group.is_gone(place_of(&node.view, *other));
            if let Some(other) = node.view.ranks.iter().filter(elsewhere).find(|other| !is_known(other)) {
                let theirs = &self.nodes[*other as usize].view;
                return Err(format!("rank {rank} is in {:?}, rank {other} in {theirs:?}", node.view));
            }
        }
        let newest = runs.iter().map(|rank| self.nodes[*rank as usize].view.epoch).max();
        let is_newest = |rank: &&u32| Some(self.nodes[**rank as usize].view.epoch) == newest;
        let runs: Vec<u32> = runs.iter().filter(is_newest).copied().collect();
        let failed: Vec<u32> =
            runs.iter().copied().filter(|rank| self.nodes[*rank as usize].group.cause().is_some()).collect();
        match failed.is_empty() || runs.iter().all(|rank| failed.contains(rank)) {
            true => Ok(()),
            false => Err(format!("of {runs:?} only {failed:?} know that the group failed")),
        }
    }
}

/// A rank's place in a group.
fn place_of(view: &View, rank: u32) -> u32 {
    view.ranks.iter().position(|other| *other == rank).expect("in the group") as u32
}
