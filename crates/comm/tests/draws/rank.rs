//! A rank of a draw: a process that joins the job, makes checked calls until one fails or it is asked to stop, and reports the outcome on
//! its standard output.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options};

use crate::calls::{Call, Outcome};
use crate::counts::Uneven;
use crate::draw::{Draw, Kind, Phase, Transport};
use crate::foreign;

/// The environment variable with the [`Role`] of a rank, as JSON.
pub(crate) const ROLE: &str = "WEFT_DRAW_ROLE";
/// The prefix of an [`Event`] on standard output.
pub(crate) const EVENT_PREFIX: &str = "event: ";
/// Rounds between two checks whether to finish.
const FINISH_CHECK_EVERY: usize = 8;
/// Ends a series that no fault and no command has ended.
const SERIES_MAX: Duration = Duration::from_secs(60);
/// Calls of the survivors after a shrink: fewer in a slow, unoptimised build.
pub(crate) const CALLS_AFTER_SHRINK: usize = if cfg!(debug_assertions) { 100 } else { 1000 };

/// What a rank process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) seed: u64,
    pub(crate) rank: usize,
    pub(crate) address: String,
    pub(crate) token: String,
    pub(crate) announced_port: Option<u16>,
    pub(crate) join_timeout: Duration,
    pub(crate) deadline: Duration,
    pub(crate) warn_after: Duration,
    /// The gates at which it waits for the harness.
    pub(crate) holds: Vec<Gate>,
    /// The round in which it makes a different call from the others, and how it differs.
    pub(crate) differs: Option<(usize, u64)>,
    /// A setting with which it first tries to join, and is refused.
    pub(crate) terms: Option<(String, String)>,
    /// An address at which it first tries to join, and is refused.
    pub(crate) wrong_address: Option<String>,
    /// Its limit of descriptors, if lower than the default.
    pub(crate) descriptors_max: Option<u64>,
    /// It runs as another user, and must be refused.
    pub(crate) is_foreign: bool,
}

/// A point at which a rank waits for the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gate {
    Join,
    Create,
    First,
    Next,
    Shrink,
}

/// A message from a rank to the harness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    Holding(Gate),
    Joined,
    Created,
    /// It has made every kind of call of its phase once.
    Warm,
    /// It was refused, as it should be, and tries again.
    Refused(String),
    /// The rendezvous, the communicator's creation or a call failed.
    Failed {
        error: String,
        variant: String,
        began: f64,
        at: f64,
        calls: usize,
    },
    Wrong(String),
    /// The other communicator of a `Lane` draw failed, as it should.
    Lane(String),
    /// The group after a shrink, as old ranks.
    Shrunk {
        origins: Vec<usize>,
        at: f64,
    },
    Done {
        calls: usize,
    },
}

/// Seconds since the epoch: comparable between processes.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The role of this process, if it has one.
pub(crate) fn role() -> Option<Role> {
    serde_json::from_str(&std::env::var(ROLE).ok()?).ok()
}

pub(crate) fn report(event: &Event) {
    let text = serde_json::to_string(event).unwrap();
    let mut out = std::io::stdout().lock();
    // The test harness may have written part of a line.
    let _ = writeln!(out, "\n{EVENT_PREFIX}{text}");
    let _ = out.flush();
}

/// Commands that the harness has sent.
static RELEASED: AtomicUsize = AtomicUsize::new(0);
static FINISH: AtomicBool = AtomicBool::new(false);

/// Reads commands of the harness; exits when its end of the pipe is closed.
fn read_commands() {
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("go") => drop(RELEASED.fetch_add(1, Ordering::SeqCst)),
                Ok("finish") => FINISH.store(true, Ordering::SeqCst),
                _ => break,
            }
        }
        std::process::exit(9);
    });
}

pub(crate) struct Rank {
    pub(crate) role: Role,
    pub(crate) draw: Draw,
    passed: usize,
    pub(crate) calls: usize,
    began: f64,
    has_reported: Cell<bool>,
}

/// Runs a role.
pub(crate) fn run(role: Role) {
    read_commands();
    if let Some(limit) = role.descriptors_max {
        let (current, maximum) = (Some(limit), Some(limit));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }
    let draw = Draw::new(role.seed);
    if role.is_foreign {
        return foreign::run(&role, &draw);
    }
    let mut rank = Rank { role, draw, passed: 0, calls: 0, began: now(), has_reported: Cell::new(false) };
    match rank.join().and_then(|comm| rank.work(comm)) {
        Ok(()) => report(&Event::Done { calls: rank.calls }),
        Err(Outcome::Wrong(what)) => report(&Event::Wrong(what)),
        // Already reported.
        Err(Outcome::Failed(_)) if rank.has_reported.get() => {}
        Err(Outcome::Failed(error)) => drop(rank.failed(error)),
    }
}

impl Rank {
    pub(crate) fn hold(&mut self, gate: Gate) {
        if self.role.holds.contains(&gate) {
            report(&Event::Holding(gate));
            self.passed += 1;
            while RELEASED.load(Ordering::SeqCst) < self.passed {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.began = now();
    }

    pub(crate) fn failed(&self, error: Error) -> Outcome {
        let variant = format!("{error:?}");
        let variant = variant.split([' ', '(', '{']).next().unwrap_or("").to_owned();
        let (began, calls) = (self.began, self.calls);
        self.has_reported.set(true);
        report(&Event::Failed { error: error.to_string(), variant, began, at: now(), calls });
        Outcome::Failed(error)
    }

    fn join(&mut self) -> Result<Communicator, Outcome> {
        self.hold(Gate::Join);
        let rendezvous = self.role.rendezvous(&self.draw);
        let refused = |rendezvous: Rendezvous| match Bootstrap::join(&rendezvous, self.role.rank) {
            Ok(_) => report(&Event::Wrong("it was not refused".to_owned())),
            Err(error) => report(&Event::Refused(error.to_string())),
        };
        if let Some(term) = self.role.terms.clone() {
            let network = Network { terms: vec![term], ..rendezvous.network.clone() };
            refused(Rendezvous { network, ..rendezvous.clone() });
        }
        if let Some(wrong) = &self.role.wrong_address {
            refused(Rendezvous { address: parse_address(wrong), ..rendezvous.clone() });
        }
        let bootstrap = match self.role.rank {
            0 => Bootstrap::listen(&rendezvous),
            rank => Bootstrap::join(&rendezvous, rank),
        };
        let bootstrap = bootstrap.map_err(|error| self.failed(error.into()))?;
        report(&Event::Joined);
        self.hold(Gate::Create);
        let options = Options {
            deadline: self.role.deadline,
            warn_after: self.role.warn_after,
            encrypt: self.draw.transport == Transport::Sealed,
            streams: 1 + (self.draw.way % 3) as u32,
            single_copy: single_copy(&self.draw),
            ..Options::default()
        };
        let made = Communicator::new(bootstrap, options).map_err(|error| self.failed(error))?;
        report(&Event::Created);
        Ok(made)
    }

    fn work(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        self.hold(Gate::First);
        match self.draw.kind {
            Kind::Counts => return self.disagree(comm),
            Kind::SingleCopy => return self.read_peers(comm),
            Kind::Lane => return self.fail_a_lane(comm),
            Kind::Handler => return self.abort_from_a_handler(comm),
            _ => {}
        }
        let phase = self.draw.phase;
        if !matches!(phase, Phase::Rendezvous | Phase::Creating | Phase::First) {
            let warm = if phase == Phase::Large { 1 } else { 7 };
            for round in 0..warm {
                let warming = call(phase, round, comm.size());
                self.call(&mut comm, warming, round)?;
            }
            self.call(&mut comm, Call { count: 1, ..Call::small(1, 1) }, 0)?;
            report(&Event::Warm);
        }
        self.hold(Gate::Next);
        let ended = self.series(&mut comm, phase);
        match (ended, self.draw.kind) {
            (Err(Outcome::Failed(_)), Kind::Shrink | Kind::Partition | Kind::Addresses) => self.shrink(comm),
            (ended, _) => ended,
        }
    }

    /// Makes calls until one fails, or until rank 0 broadcasts the harness's command to finish.
    fn series(&mut self, comm: &mut Communicator, phase: Phase) -> Result<(), Outcome> {
        let started = Instant::now();
        for round in 0.. {
            let usual = call(phase, round, comm.size());
            match self.role.differs {
                // Leaves, as a rank that returns early does.
                Some((when, 5)) if when == round => return Ok(()),
                // Skips a call: every later call differs from those of the others.
                Some((when, 6)) if when == round => {}
                Some((when, way)) if when == round => {
                    self.call(comm, usual.differently(way, comm.size()), round)?;
                }
                _ => self.call(comm, usual, round)?,
            }
            if round % FINISH_CHECK_EVERY == FINISH_CHECK_EVERY - 1 || phase == Phase::Large {
                self.began = now();
                let is_over = FINISH.load(Ordering::SeqCst) || started.elapsed() > SERIES_MAX;
                let mut over = [i32::from(is_over)];
                comm.broadcast(&mut over, 0).map_err(|error| self.failed(error))?;
                if over == [1] {
                    // No rank leaves before all are here.
                    return self.call(comm, Call::barrier(), 0);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn call(&mut self, comm: &mut Communicator, call: Call, round: usize) -> Result<(), Outcome> {
        self.began = now();
        let made = call.check(comm, round);
        self.made(made)
    }

    /// Counts a call that succeeded, and reports one that failed.
    pub(crate) fn made(&mut self, made: Result<(), Outcome>) -> Result<(), Outcome> {
        self.calls += usize::from(made.is_ok());
        made.map_err(|outcome| match outcome {
            Outcome::Failed(error) => self.failed(error),
            wrong => wrong,
        })
    }

    /// Makes uneven calls up to the mismatch. A rank that is not affected may complete that call; its next one fails.
    fn disagree(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        let (uneven, last) = (Uneven::new(&self.draw), Uneven::rounds(&self.draw));
        let mut windows = uneven.windows(&mut comm)?;
        for round in 0..=last {
            let made = uneven.check(&mut comm, &mut windows, round, round == last);
            self.made(made)?;
        }
        self.call(&mut comm, Call::barrier(), 0)
    }

    /// Shrinks, and makes calls in the new group.
    fn shrink(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        self.hold(Gate::Shrink);
        // Origins go back one step; the report has the ranks of the first communicator.
        let mut ranks: Vec<usize> = (0..self.draw.size).collect();
        for _ in 0..self.draw.size {
            comm = comm.shrink().map_err(|error| self.failed(error))?;
            ranks = comm.origins().iter().map(|rank| ranks[*rank]).collect();
            report(&Event::Shrunk { origins: ranks.clone(), at: now() });
            match self.calls_after_shrink(&mut comm) {
                // Another rank was killed.
                Err(Outcome::Failed(_)) => {}
                ended => return ended,
            }
        }
        Err(Outcome::Wrong("it shrank more times than there are ranks".to_owned()))
    }

    fn calls_after_shrink(&mut self, comm: &mut Communicator) -> Result<(), Outcome> {
        for round in 0..CALLS_AFTER_SHRINK {
            let usual = Call::small(round, comm.size());
            self.call(comm, usual, round)?;
        }
        // No rank leaves before all are done, so that errors name a rank that is killed now.
        self.call(comm, Call::barrier(), 0)
    }
}

/// Whether ranks read each other's memory through the kernel; none for the default.
fn single_copy(draw: &Draw) -> Option<bool> {
    match draw.kind {
        Kind::SingleCopy => Some(true),
        Kind::Counts => Some(Uneven::single_copy(draw)),
        _ => None,
    }
}

impl Role {
    /// The rendezvous of a draw.
    pub(crate) fn rendezvous(&self, draw: &Draw) -> Rendezvous {
        let is_pretended = draw.is_networked() && draw.kind != Kind::Addresses;
        let network = Network {
            pretended_host: is_pretended.then(|| 1 + draw.host(self.rank) as u64),
            announced_port: self.announced_port,
            ..Network::default()
        };
        let token = Token::new(self.token.clone()).unwrap();
        Rendezvous {
            network,
            ..Rendezvous::new(parse_address(&self.address), token, draw.size, self.join_timeout)
        }
    }
}

/// The call of a phase in a round.
fn call(phase: Phase, round: usize, size: usize) -> Call {
    match phase {
        Phase::Large => Call::large(),
        Phase::Uneven => Call::uneven(round),
        Phase::Barrier => Call::barrier(),
        _ => Call::small(round, size),
    }
}

/// `@name`, `/path` or `host:port`.
pub(crate) fn parse_address(text: &str) -> RendezvousAddress {
    if let Some(name) = text.strip_prefix('@') {
        return RendezvousAddress::Abstract(name.to_owned());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !text.starts_with('/') => {
            let port: u16 = port.parse().unwrap();
            RendezvousAddress::Tcp { host: host.to_owned(), ports: port..=port }
        }
        _ => RendezvousAddress::Path(text.into()),
    }
}
