//! Ranks of one job in one process, under virtual time and a seed.
//!
//! Messages take random times and keep their order on one connection, not between connections. Processes are stopped, resumed
//! and killed; hosts are cut off from each other and connected again, and what was in flight between them is lost with its
//! connection. Each rank drives the machines as the real driver does, with a backlog while it is stopped.

mod checks;
mod faults;
mod groups;
mod survivors;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use weftlink_membership::regroup::{self, Regroup, View};
use weftlink_membership::{Event, Group, Input, tree};
use weftlink_testkit::random::Random;
use weftlink_testkit::schedules::Queue;

/// The error of a rank that gave its group up: who, and in which group.
pub(crate) type Failure = u32;
pub(crate) type GroupId = u64;

/// A fault that begins at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(u32),
    Leave(u32),
    /// It leaves in good order, and its process lives on and answers connections.
    LeaveAndStay(u32),
    Abort(u32),
    /// The program of this rank does not regroup, though its process lives and answers connections.
    Ignore(u32),
    Stop(u32, Duration),
    /// Hosts below this number and the others are cut off from each other for this long.
    Cut(u32, Duration),
    /// Two hosts are cut off from each other for this long; both reach the others.
    CutPair(u32, u32, Duration),
    /// Like `Cut`, as soon as a leader commits a group.
    CutAtCommit(u32, Duration),
    /// The first rank that commits a group is killed while it does.
    KillAtCommit,
}

#[derive(Debug)]
pub(crate) enum Happens {
    Fault(Fault),
    Resume(u32),
    Heal(u32),
    HealPair(u32, u32),
    /// For the group machine of a rank.
    Group(u32, GroupId, Input<Failure>),
    /// For the regrouping machine of a rank.
    Regroup(u32, u32, regroup::Input),
    /// A rank refused a probe, and the prober reports that once it has read what the rank sent, at the latest at this time.
    Refused(u32, u32, u32, Instant),
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
    /// Left the group, in good order or after it failed to regroup, and runs.
    Away,
}

struct Node {
    life: Life,
    backlog: Vec<Happens>,
    view: View,
    group: Group<Failure>,
    /// The group's cause has been acted on.
    has_failed: bool,
    is_leaving: bool,
    /// It runs on after it has left.
    stays: bool,
    /// It does not regroup.
    ignores: bool,
    /// The groups that it was in, and the one that it continued in.
    past: BTreeMap<GroupId, GroupId>,
    regroup: Option<Regroup>,
    /// Counts attempts to regroup, so that results of an old one are not taken for those of a new one.
    attempt: u32,
    regroup_deadline: Instant,
    /// When it was last resumed, or will be.
    resumed: Instant,
    /// Followers that came while this rank was not regrouping.
    arrivals: Vec<(u64, regroup::Hello)>,
    /// Children that connected and were not given to the regrouping machine yet, by group.
    children: BTreeMap<GroupId, BTreeSet<u32>>,
    /// Regrouping waits for an action that blocks: actions that follow it, the result of an earlier one, and inputs that wait.
    blocked: Option<Blocked>,
    /// What the regrouping machine knows of the group.
    known: Option<regroup::Input>,
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
    /// It carries a call to regroup: the first end reads only whether the second has left.
    is_call: bool,
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

impl Outcome {
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.groups += other.groups;
        self.deaths_heard += other.deaths_heard;
        self.confirmed += other.confirmed;
        self.steps += other.steps;
        self.slowest_regroup = self.slowest_regroup.max(other.slowest_regroup);
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    hosts: Vec<u32>,
    nodes: Vec<Node>,
    pub(crate) queue: Queue<Happens>,
    /// Cut-off hosts: those below the number from the others.
    cuts: BTreeSet<u32>,
    /// Pairs of hosts that are cut off from each other.
    pairs: BTreeSet<(u32, u32)>,
    /// The higher host of every pair that was cut off, ever.
    apart: BTreeSet<u32>,
    /// Ranks that were killed, stopped, left, or do not regroup.
    faulty: BTreeSet<u32>,
    /// Ranks whose departure was confirmed, by group.
    departures: Vec<(GroupId, u32)>,
    /// Groups that a rank left without that.
    unconfirmed: BTreeSet<GroupId>,
    /// Ranks that a neighbour has sent that it continues without them, and the epoch of the first group that it continued in.
    excluded: BTreeMap<u32, u64>,
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
    regroup_timeout: Duration,
    /// Whether ranks that regroup carry out actions one by one, as the driver of processes does, or all at once.
    pub(crate) blocks: bool,
    at_commit: Vec<Fault>,
    /// The rank that committed a group, by its number.
    committed: BTreeMap<GroupId, u32>,
    faults: usize,
    had_cut: bool,
    /// Whether the hosts were cut into two sides.
    had_partition: bool,
    outcome: Outcome,
}

const FIRST: GroupId = 1;
const STEPS_MAX: usize = 400_000;
/// Delays are up to one of these: mostly short, sometimes long.
const DELAYS_US: [u64; 6] = [50, 500, 500, 5_000, 50_000, 300_000];

impl World {
    pub(crate) fn new(seed: u64, size: u32, hosts: u32, regroup_timeout: Duration) -> World {
        let random = Random(seed);
        let queue = Queue::new(STEPS_MAX);
        let start = queue.start();
        let hosts: Vec<u32> = (0..size).map(|rank| rank * hosts / size).collect();
        let view = View { epoch: 0, group: FIRST, ranks: (0..size).collect() };
        let mut world = World {
            random,
            hosts,
            nodes: Vec::new(),
            queue,
            cuts: BTreeSet::new(),
            pairs: BTreeSet::new(),
            apart: BTreeSet::new(),
            faulty: BTreeSet::new(),
            departures: Vec::new(),
            unconfirmed: BTreeSet::new(),
            excluded: BTreeMap::new(),
            links: BTreeMap::new(),
            stars: BTreeMap::new(),
            killed: BTreeSet::new(),
            ended: BTreeMap::new(),
            roots: BTreeMap::new(),
            epochs: vec![view.clone()],
            regroup_timeout,
            blocks: false,
            at_commit: Vec::new(),
            committed: BTreeMap::new(),
            faults: 0,
            had_cut: false,
            had_partition: false,
            outcome: Outcome::default(),
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
                stays: false,
                ignores: false,
                past: BTreeMap::new(),
                regroup: None,
                attempt: 0,
                regroup_deadline: start,
                resumed: start,
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
        group.set_parents(parents);
        group
    }

    pub(crate) fn fault(&mut self, at: Duration, fault: Fault) {
        self.faults += 1;
        self.queue.at(self.queue.start() + at, Happens::Fault(fault));
    }

    fn after_delay(&mut self, happens: Happens) {
        let delay = self.random.delay(&DELAYS_US);
        self.queue.at(self.queue.now() + delay, happens);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        let result = self.run_all();
        if result.is_err() {
            self.queue.print_trace();
        }
        self.outcome.steps = self.queue.steps();
        result.map(|()| self.outcome)
    }

    fn run_all(&mut self) -> Result<(), String> {
        while let Some(happens) = self.queue.pop()? {
            self.happen(happens)?;
        }
        self.check_end()
    }

    fn is_cut(&self, one: u32, other: u32) -> bool {
        let (one, other) = (self.hosts[one as usize], self.hosts[other as usize]);
        self.cuts.iter().any(|cut| (one < *cut) != (other < *cut))
            || self.pairs.contains(&(one.min(other), one.max(other)))
    }

    fn rank_of(happens: &Happens) -> Option<u32> {
        match happens {
            Happens::Group(rank, ..) | Happens::Regroup(rank, ..) | Happens::Arrives(rank, ..) => Some(*rank),
            Happens::Refused(rank, ..)
            | Happens::Child(rank, ..)
            | Happens::Orphan(rank, ..)
            | Happens::Shrink(rank, _)
            | Happens::Wake(rank) => Some(*rank),
            Happens::Fault(Fault::Leave(rank) | Fault::LeaveAndStay(rank) | Fault::Abort(rank)) => {
                Some(*rank)
            }
            Happens::Fault(_) | Happens::Resume(_) | Happens::Heal(_) | Happens::HealPair(..) => None,
        }
    }

    fn happen(&mut self, happens: Happens) -> Result<(), String> {
        if let Some(rank) = World::rank_of(&happens) {
            match self.nodes[rank as usize].life {
                Life::Runs => {}
                Life::Stopped => {
                    match happens {
                        Happens::Orphan(_, group, orphan, _) => self.not_reparented(group, orphan, rank),
                        happens => self.nodes[rank as usize].backlog.push(happens),
                    }
                    return Ok(());
                }
                Life::Dead | Life::Gone => {
                    if let Happens::Orphan(_, group, orphan, _) = happens {
                        self.not_reparented(group, orphan, rank);
                    }
                    return Ok(());
                }
                Life::Away => {
                    match happens {
                        Happens::Orphan(_, group, orphan, _) => {
                            self.not_reparented(group, orphan, rank);
                        }
                        Happens::Arrives(_, connection, hello) => self.answer_late(rank, connection, &hello),
                        _ => {}
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
            Happens::HealPair(one, other) => {
                self.pairs.remove(&(one, other));
                Ok(())
            }
            Happens::Group(rank, group, input) => self.group_input(rank, group, input),
            Happens::Regroup(rank, attempt, input) => match self.nodes[rank as usize].attempt == attempt {
                true => self.regroup_input(rank, input),
                false => Ok(()),
            },
            Happens::Refused(rank, attempt, other, until) => self.refused(rank, attempt, other, until),
            Happens::Arrives(rank, connection, hello) => match self.nodes[rank as usize].regroup {
                Some(_) => self.regroup_input(rank, regroup::Input::Arrived(connection, hello)),
                None if !self.nodes[rank as usize].view.ranks.contains(&hello.from) => {
                    self.answer_late(rank, connection, &hello);
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

    /// Gives both machines of a rank the time, if it has come.
    fn wake(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        node.wakes_at = None;
        let group = node.view.group;
        if node.group.next_timeout().is_some_and(|when| when <= self.queue.now()) {
            self.group_input(rank, group, Input::Timeout)?;
        }
        let node = &self.nodes[rank as usize];
        if node.life != Life::Runs {
            return Ok(());
        }
        let is_due = node
            .regroup
            .as_ref()
            .and_then(Regroup::next_timeout)
            .is_some_and(|when| when <= self.queue.now());
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
            self.queue.at(next, Happens::Wake(rank));
        }
    }
}

/// A rank's place in a group.
fn place_of(view: &View, rank: u32) -> u32 {
    view.ranks.iter().position(|other| *other == rank).expect("in the group") as u32
}
