//! Processes of one job in one process, under virtual time and a seed.
//!
//! Messages take random times and keep their order on one connection, not between connections. Processes start at any time, are
//! stopped, resumed, killed and started again under the same rank; two processes may be one rank; hosts are cut off from the
//! others for a while, and what was in flight is lost with its connection. Each process drives its machine as the real driver
//! does: one action at a time, with a backlog while it is stopped or an action blocks. The barrier at the end runs over the
//! links that the machines made (`settle.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use weftlink_membership::rendezvous::{
    Admit, AdmitError, AdmitInput, Hello, Join, JoinError, JoinInput, Message, Plan, Refusal, Settings,
};
use weftlink_membership::tree::Shape;
use weftlink_testkit::random::Random;
use weftlink_testkit::schedules::Queue;

use crate::settle::{Settling, Tree};

/// How a process is found: its number and its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) process: usize,
    pub(crate) host: u32,
}

impl weftlink_membership::rendezvous::Contact for Contact {
    fn is_on_host_of(&self, other: &Contact) -> bool {
        self.host == other.host
    }

    fn is_process_of(&self, other: &Contact) -> bool {
        self.process == other.process
    }

    fn pid(&self) -> u32 {
        self.process as u32
    }
}

/// Why a process was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    Secret,
    User,
    Root(Refusal),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Why a process failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    Root(Box<AdmitError<Why>>),
    Closed,
    Unreached,
    Barrier,
}

pub(crate) type RootMessage = Message<Contact, Reason, Why>;
pub(crate) type Failure = JoinError<Reason, Why>;

#[derive(Debug, Clone)]
pub(crate) enum Packet {
    Hello(Hello<Contact>),
    Root(RootMessage),
    Link(u64, u32),
    Tree(Tree),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(usize),
    Stop(usize, Duration),
    /// A host is cut off from the others for this long.
    Cut(u32, Duration),
}

#[derive(Debug, Clone)]
pub(crate) enum Happens {
    Start(usize),
    Fault(Fault),
    Resume(usize),
    Heal(u32),
    /// A packet reaches an end of a connection.
    Packet(u64, usize, Packet),
    Input(usize, Input),
    /// An attempt to reach rank 0 has a result, within the limit.
    Dial(usize, Instant),
    /// The same for an attempt to reach the parent.
    Link(usize, Contact, Instant),
    Inquire(usize, u32, Contact),
    SettleTimeout(usize),
    Wake(usize),
}

#[derive(Debug, Clone)]
pub(crate) enum Input {
    Root(AdmitInput<Contact, Why>),
    Rank(JoinInput<Contact, Reason, Why>),
}

pub(crate) enum Machine {
    Root(Admit<Contact, Why>),
    Rank(Join<Contact, Reason, Why>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    NotStarted,
    Runs,
    Stopped,
    Dead,
    /// Ended with an error.
    Gone,
}

/// What a process is given when it starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) host: u32,
    pub(crate) start: Duration,
    pub(crate) regroup_timeout: Duration,
    pub(crate) terms: &'static str,
    pub(crate) has_secret: bool,
}

pub(crate) struct Process {
    pub(crate) spec: Spec,
    pub(crate) life: Life,
    pub(crate) machine: Option<Machine>,
    pub(crate) deadline: Instant,
    pub(crate) resumed: Instant,
    pub(crate) backlog: Vec<Happens>,
    /// An action blocks; inputs wait.
    pub(crate) is_busy: bool,
    pub(crate) waiting: VecDeque<Input>,
    /// Places that were tried in this round.
    pub(crate) place: usize,
    /// Children that connected and that the machine has not taken over.
    pub(crate) arrivals: Vec<(u64, u32, u64)>,
    pub(crate) parent: Option<u64>,
    pub(crate) children: BTreeMap<u32, u64>,
    pub(crate) settling: Option<Settling>,
    /// What came over links before this process settles.
    pub(crate) inbox: Vec<(u64, Tree)>,
    /// The number of its group and the members, or what went wrong.
    pub(crate) result: Option<Result<(u64, Vec<Contact>), Failure>>,
    pub(crate) root_error: Option<AdmitError<Why>>,
    pub(crate) wakes_at: Option<Instant>,
}

/// A connection: the process that dialed and the one that accepted.
pub(crate) struct Wire {
    pub(crate) ends: [usize; 2],
    pub(crate) is_closed: [bool; 2],
    pub(crate) is_cut: bool,
    pub(crate) last: [Instant; 2],
}

/// What became of schedules.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) steps: usize,
    pub(crate) joined: usize,
    /// Schedules in which all ranks had to join.
    pub(crate) calm: usize,
    pub(crate) refused: usize,
    pub(crate) missing: usize,
    pub(crate) died: usize,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.joined += other.joined;
        self.calm += other.calm;
        self.refused += other.refused;
        self.missing += other.missing;
        self.died += other.died;
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) size: u32,
    pub(crate) is_network: bool,
    pub(crate) is_star: bool,
    /// Another job listens at the first of two places.
    pub(crate) has_several_places: bool,
    pub(crate) processes: Vec<Process>,
    pub(crate) queue: Queue<Happens>,
    pub(crate) wires: BTreeMap<u64, Wire>,
    pub(crate) listening: Option<usize>,
    /// A process of another user listens there until then.
    pub(crate) other_user_until: Option<Instant>,
    pub(crate) cuts: BTreeSet<u32>,
    /// The processes that a rank 0 has admitted and whose end it has not heard of: their connections and numbers.
    pub(crate) admitted: BTreeMap<(usize, u32), (u64, usize)>,
    /// Processes that rank 0 must report its error to.
    pub(crate) informed: Vec<(usize, AdmitError<Why>)>,
    pub(crate) has_faults: bool,
    pub(crate) outcome: Outcome,
}

const STEPS_MAX: usize = 400_000;
/// Delays are up to one of these: mostly short, sometimes long.
pub(crate) const DELAYS_US: [u64; 6] = [50, 500, 500, 5_000, 50_000, 300_000];

impl World {
    pub(crate) fn new(seed: u64, size: u32) -> World {
        World {
            random: Random(seed),
            size,
            is_network: false,
            is_star: false,
            has_several_places: false,
            processes: Vec::new(),
            queue: Queue::new(STEPS_MAX),
            wires: BTreeMap::new(),
            listening: None,
            other_user_until: None,
            cuts: BTreeSet::new(),
            admitted: BTreeMap::new(),
            informed: Vec::new(),
            has_faults: false,
            outcome: Outcome::default(),
        }
    }

    /// Adds a process that starts later.
    pub(crate) fn process(&mut self, spec: Spec) -> usize {
        let number = self.processes.len();
        self.processes.push(Process {
            spec,
            life: Life::NotStarted,
            machine: None,
            deadline: self.queue.start() + spec.start + spec.regroup_timeout,
            resumed: self.queue.start(),
            backlog: Vec::new(),
            is_busy: false,
            waiting: VecDeque::new(),
            place: 0,
            arrivals: Vec::new(),
            parent: None,
            children: BTreeMap::new(),
            settling: None,
            inbox: Vec::new(),
            result: None,
            root_error: None,
            wakes_at: None,
        });
        self.queue.at(self.queue.start() + spec.start, Happens::Start(number));
        number
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn root_start(&self) -> Duration {
        let starts = self.processes.iter().filter(|process| process.spec.rank == 0);
        starts.map(|process| process.spec.start).min().unwrap_or_default()
    }

    /// A process of another user listens at the address for this long.
    pub(crate) fn other_user(&mut self, time: Duration) {
        self.other_user_until = Some(self.queue.start() + time);
    }

    pub(crate) fn fault(&mut self, at: Duration, fault: Fault) {
        self.has_faults = true;
        self.queue.at(self.queue.start() + at, Happens::Fault(fault));
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

    fn process_of(&self, happens: &Happens) -> Option<usize> {
        match happens {
            Happens::Packet(wire, end, _) => self.wires.get(wire).map(|wire| wire.ends[*end]),
            Happens::Input(process, _)
            | Happens::Dial(process, _)
            | Happens::Link(process, ..)
            | Happens::Inquire(process, ..)
            | Happens::SettleTimeout(process)
            | Happens::Wake(process) => Some(*process),
            Happens::Start(_) | Happens::Fault(_) | Happens::Resume(_) | Happens::Heal(_) => None,
        }
    }

    fn happen(&mut self, happens: Happens) -> Result<(), String> {
        if let Some(process) = self.process_of(&happens) {
            match self.processes[process].life {
                Life::Runs => {}
                Life::Stopped => {
                    self.processes[process].backlog.push(happens);
                    return Ok(());
                }
                Life::NotStarted | Life::Dead | Life::Gone => return Ok(()),
            }
        }
        match happens {
            Happens::Start(process) => self.begin(process),
            Happens::Fault(fault) => {
                self.fail(fault);
                Ok(())
            }
            Happens::Resume(process) => {
                if self.processes[process].life == Life::Stopped {
                    self.processes[process].life = Life::Runs;
                    self.processes[process].resumed = self.queue.now();
                    for happens in std::mem::take(&mut self.processes[process].backlog) {
                        self.happen(happens)?;
                    }
                    self.wake(process)?;
                }
                Ok(())
            }
            Happens::Heal(host) => {
                self.cuts.remove(&host);
                Ok(())
            }
            Happens::Packet(wire, end, packet) => self.receive(wire, end, packet),
            Happens::Input(process, input) => self.input(process, input),
            Happens::Dial(process, until) => self.dial(process, until),
            Happens::Link(process, contact, until) => self.link(process, contact, until),
            Happens::Inquire(process, rank, contact) => {
                let is_dead = matches!(self.processes[contact.process].life, Life::Dead | Life::Gone)
                    && !self.is_cut(process, contact.process);
                self.input(process, Input::Root(AdmitInput::Inquired { rank, is_dead }))
            }
            Happens::SettleTimeout(process) => self.settled(process, Err(Why::Barrier)),
            Happens::Wake(process) => self.wake(process),
        }
    }

    /// Starts a process.
    fn begin(&mut self, number: usize) -> Result<(), String> {
        // The address is in use.
        if self.processes[number].spec.rank == 0 && self.listening.is_some()
            || self.processes[number].life != Life::NotStarted
        {
            return Ok(());
        }
        let Spec { rank, size, host, .. } = self.processes[number].spec;
        self.processes[number].life = Life::Runs;
        let settings = Settings {
            rank,
            size,
            deadline: self.processes[number].deadline,
            warn_after: Duration::from_secs(2),
        };
        if rank == 0 {
            let shape = if self.is_star { Shape::Star } else { Shape::Binomial };
            let plan = Plan { group: self.random.draw(), shape, is_network: self.is_network };
            let terms = vec![("terms".to_owned(), self.processes[number].spec.terms.to_owned())];
            let own = Contact { process: number, host };
            let machine = Admit::new(own, terms, settings, plan, self.queue.now());
            self.processes[number].machine = Some(Machine::Root(machine));
            self.listening = Some(number);
            self.schedule_wake(number);
            return Ok(());
        }
        let (machine, actions) = Join::new(settings, !self.has_several_places, self.queue.now());
        self.processes[number].machine = Some(Machine::Rank(machine));
        for action in actions {
            self.rank_action(number, action)?;
        }
        Ok(())
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(process) => {
                if self.processes[process].life != Life::Gone {
                    self.processes[process].life = Life::Dead;
                    self.end(process);
                }
            }
            Fault::Stop(process, time) => {
                if self.processes[process].life == Life::Runs {
                    self.processes[process].life = Life::Stopped;
                    self.queue.at(self.queue.now() + time, Happens::Resume(process));
                }
            }
            Fault::Cut(host, time) => {
                self.cuts.insert(host);
                self.queue.at(self.queue.now() + time, Happens::Heal(host));
                let wires: Vec<u64> = self.wires.keys().copied().collect();
                for id in wires {
                    let ends = self.wires[&id].ends;
                    if self.is_cut(ends[0], ends[1]) && !self.wires[&id].is_cut {
                        if let Some(wire) = self.wires.get_mut(&id) {
                            wire.is_cut = true;
                        }
                        for end in 0..2 {
                            let delay = self.random.delay(&DELAYS_US);
                            self.queue.at(self.queue.now() + delay, Happens::Packet(id, end, Packet::End));
                        }
                    }
                }
            }
        }
    }

    /// A process has ended: its connections close.
    pub(crate) fn end(&mut self, process: usize) {
        if self.listening == Some(process) {
            self.listening = None;
        }
        let ids: Vec<u64> =
            self.wires.iter().filter(|(_, wire)| wire.ends.contains(&process)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.close(id, process));
    }

    pub(crate) fn is_cut(&self, one: usize, other: usize) -> bool {
        let hosts = [one, other].map(|process| self.processes[process].spec.host);
        hosts[0] != hosts[1] && hosts.iter().any(|host| self.cuts.contains(host))
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize) -> u64 {
        let id = self.queue.number();
        let wire =
            Wire { ends: [from, to], is_closed: [false; 2], is_cut: false, last: [self.queue.now(); 2] };
        self.wires.insert(id, wire);
        id
    }

    /// Sends a packet over a connection, if its own end is open.
    pub(crate) fn send(&mut self, id: u64, from: usize, packet: Packet) {
        let delay = self.random.delay(&DELAYS_US);
        let now = self.queue.now();
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let end = usize::from(wire.ends[0] == from);
        if wire.is_closed[1 - end] || wire.is_cut {
            return;
        }
        wire.last[end] = (now + delay).max(wire.last[end]);
        let when = wire.last[end];
        self.queue.at(when, Happens::Packet(id, end, packet));
    }

    /// Closes one end of a connection. The other hears it after what was sent before.
    pub(crate) fn close(&mut self, id: u64, process: usize) {
        self.send(id, process, Packet::End);
        if let Some(wire) = self.wires.get_mut(&id) {
            wire.is_closed[usize::from(wire.ends[1] == process)] = true;
        }
    }

    fn receive(&mut self, id: u64, end: usize, packet: Packet) -> Result<(), String> {
        let Some(wire) = self.wires.get_mut(&id) else { return Ok(()) };
        let is_end = matches!(packet, Packet::End);
        if wire.is_closed[end] || wire.is_cut && !is_end {
            return Ok(());
        }
        let process = wire.ends[end];
        if is_end {
            wire.is_closed[end] = true;
            return self.ended(process, id);
        }
        match packet {
            Packet::Hello(hello) => match self.processes[process].result {
                None => self.input(process, Input::Root(AdmitInput::Arrived(id, hello))),
                Some(_) => {
                    self.close(id, process);
                    Ok(())
                }
            },
            Packet::Root(message) => self.input(process, Input::Rank(JoinInput::Message(id, message))),
            Packet::Link(group, from) => {
                self.processes[process].arrivals.push((group, from, id));
                self.take_children(process)
            }
            Packet::Tree(message) => self.hear(process, id, message),
            Packet::End => Ok(()),
        }
    }
}
