//! A rank of a draw: a process that meets the others, makes checked calls until something goes wrong or it is told to end, and
//! says on its standard output how it went.

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

/// In the environment of a rank: its [`Role`], as JSON.
pub(crate) const ROLE: &str = "WEFT_DRAW_ROLE";
/// What a rank says begins so.
pub(crate) const SAYS: &str = "rank says: ";
/// How many rounds between two looks whether to go on.
const LOOK_EVERY: usize = 8;
/// A series that nothing ends is a failure of the draw, not a reason to run for ever.
const SERIES_MAX: Duration = Duration::from_secs(60);
/// What survivors do when they have shrunk. Without optimisation a tenth of it takes as long.
pub(crate) const CALLS_AFTER_SHRINK: usize = if cfg!(debug_assertions) { 100 } else { 1000 };

/// What a process is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) seed: u64,
    pub(crate) rank: usize,
    pub(crate) place: String,
    pub(crate) token: String,
    pub(crate) announced_port: Option<u16>,
    pub(crate) meeting_limit: Duration,
    pub(crate) deadline: Duration,
    pub(crate) warn_after: Duration,
    /// Where it waits until it is told to go on.
    pub(crate) holds: Vec<Gate>,
    /// The round in which it makes another call than the others, and which.
    pub(crate) differs: Option<(usize, u64)>,
    /// It first comes set up like this, and is refused.
    pub(crate) terms: Option<(String, String)>,
    /// It first comes to this place.
    pub(crate) wrong_place: Option<String>,
    /// How many descriptors it may have, if not as many as usual.
    pub(crate) descriptors_max: Option<u64>,
    /// It is of another user, has no business here, and is to be refused.
    pub(crate) is_foreign: bool,
}

/// Where a rank can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gate {
    Meet,
    Make,
    First,
    Next,
    Shrink,
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    Holding(Gate),
    Met,
    Made,
    /// It has made all kinds of calls of its phase once.
    Warm,
    /// It was turned away, as it should be, and comes again.
    Refused(String),
    /// A call, or what comes before calls, failed.
    Failed {
        error: String,
        variant: String,
        began: f64,
        at: f64,
        calls: usize,
    },
    Wrong(String),
    /// The communicator beside the one that makes the calls failed, as it should.
    Lane(String),
    /// The group that is left, as old ranks.
    Shrunk {
        origins: Vec<usize>,
        at: f64,
    },
    Done {
        calls: usize,
    },
}

/// Seconds, the same for all processes of a machine.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The role of this process, if it has one.
pub(crate) fn role() -> Option<Role> {
    serde_json::from_str(&std::env::var(ROLE).ok()?).ok()
}

pub(crate) fn say(said: &Said) {
    let text = serde_json::to_string(said).unwrap();
    let mut out = std::io::stdout().lock();
    // The test's own output may stand before it.
    let _ = writeln!(out, "\n{SAYS}{text}");
    let _ = out.flush();
}

/// What the harness has told this process.
static LET_GO: AtomicUsize = AtomicUsize::new(0);
static FINISH: AtomicBool = AtomicBool::new(false);

/// Hears the harness. A harness that is gone ends the process.
fn listen_to_harness() {
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("go") => drop(LET_GO.fetch_add(1, Ordering::SeqCst)),
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
    has_told: Cell<bool>,
}

/// Runs a role to its end.
pub(crate) fn play(role: Role) {
    listen_to_harness();
    if let Some(limit) = role.descriptors_max {
        let (current, maximum) = (Some(limit), Some(limit));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }
    let draw = Draw::new(role.seed);
    if role.is_foreign {
        return foreign::play(&role, &draw);
    }
    let mut rank = Rank { role, draw, passed: 0, calls: 0, began: now(), has_told: Cell::new(false) };
    match rank.meet().and_then(|comm| rank.work(comm)) {
        Ok(()) => say(&Said::Done { calls: rank.calls }),
        Err(Outcome::Wrong(what)) => say(&Said::Wrong(what)),
        // Said where it happened.
        Err(Outcome::Failed(_)) if rank.has_told.get() => {}
        Err(Outcome::Failed(error)) => drop(rank.failed(error)),
    }
}

impl Rank {
    pub(crate) fn hold(&mut self, gate: Gate) {
        if self.role.holds.contains(&gate) {
            say(&Said::Holding(gate));
            self.passed += 1;
            while LET_GO.load(Ordering::SeqCst) < self.passed {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.began = now();
    }

    pub(crate) fn failed(&self, error: Error) -> Outcome {
        let variant = format!("{error:?}");
        let variant = variant.split([' ', '(', '{']).next().unwrap_or("").to_owned();
        let (began, calls) = (self.began, self.calls);
        self.has_told.set(true);
        say(&Said::Failed { error: error.to_string(), variant, began, at: now(), calls });
        Outcome::Failed(error)
    }

    fn meet(&mut self) -> Result<Communicator, Outcome> {
        self.hold(Gate::Meet);
        let meeting = self.role.meeting(&self.draw);
        let refused = |meeting: Rendezvous| match Bootstrap::join(&meeting, self.role.rank) {
            Ok(_) => say(&Said::Wrong("it was to be refused".to_owned())),
            Err(error) => say(&Said::Refused(error.to_string())),
        };
        if let Some(term) = self.role.terms.clone() {
            let network = Network { terms: vec![term], ..meeting.network.clone() };
            refused(Rendezvous { network, ..meeting.clone() });
        }
        if let Some(wrong) = &self.role.wrong_place {
            refused(Rendezvous { address: self::place(wrong), ..meeting.clone() });
        }
        let met = match self.role.rank {
            0 => Bootstrap::listen(&meeting),
            rank => Bootstrap::join(&meeting, rank),
        };
        let met = met.map_err(|error| self.failed(error.into()))?;
        say(&Said::Met);
        self.hold(Gate::Make);
        let options = Options {
            deadline: self.role.deadline,
            warn_after: self.role.warn_after,
            encrypt: self.draw.transport == Transport::Sealed,
            streams: 1 + (self.draw.way % 3) as u32,
            single_copy: single_copy(&self.draw),
            ..Options::default()
        };
        let made = Communicator::new(met, options).map_err(|error| self.failed(error))?;
        say(&Said::Made);
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
        if !matches!(phase, Phase::Meeting | Phase::Making | Phase::First) {
            let warm = if phase == Phase::Large { 1 } else { 7 };
            for round in 0..warm {
                let warming = call(phase, round, comm.size());
                self.call(&mut comm, warming, round)?;
            }
            self.call(&mut comm, Call { count: 1, ..Call::small(1, 1) }, 0)?;
            say(&Said::Warm);
        }
        self.hold(Gate::Next);
        let ended = self.series(&mut comm, phase);
        match (ended, self.draw.kind) {
            (Err(Outcome::Failed(_)), Kind::Shrink | Kind::Partition | Kind::Addresses) => self.shrink(comm),
            (ended, _) => ended,
        }
    }

    /// Calls until something goes wrong, or the harness tells rank 0 that it is enough, which tells the others.
    fn series(&mut self, comm: &mut Communicator, phase: Phase) -> Result<(), Outcome> {
        let started = Instant::now();
        for round in 0.. {
            let usual = call(phase, round, comm.size());
            match self.role.differs {
                // Leaves without a word, as a rank does that returns early.
                Some((when, 5)) if when == round => return Ok(()),
                // One call fewer: every later call is another than that of the others.
                Some((when, 6)) if when == round => {}
                Some((when, way)) if when == round => {
                    self.call(comm, usual.differently(way, comm.size()), round)?;
                }
                _ => self.call(comm, usual, round)?,
            }
            if round % LOOK_EVERY == LOOK_EVERY - 1 || phase == Phase::Large {
                self.began = now();
                let is_over = FINISH.load(Ordering::SeqCst) || started.elapsed() > SERIES_MAX;
                let mut over = [i32::from(is_over)];
                comm.broadcast(&mut over, 0).map_err(|error| self.failed(error))?;
                if over == [1] {
                    // Nobody leaves before all have come so far.
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

    /// Counts a call that was made, and tells of one that failed.
    pub(crate) fn made(&mut self, made: Result<(), Outcome>) -> Result<(), Outcome> {
        self.calls += usize::from(made.is_ok());
        made.map_err(|outcome| match outcome {
            Outcome::Failed(error) => self.failed(error),
            wrong => wrong,
        })
    }

    /// Makes uneven calls until one disagrees. A rank that has no part in what is disagreed about may have finished that call; the
    /// next one fails.
    fn disagree(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        let (uneven, last) = (Uneven::new(&self.draw), Uneven::rounds(&self.draw));
        let mut windows = uneven.windows(&mut comm)?;
        for round in 0..=last {
            let made = uneven.check(&mut comm, &mut windows, round, round == last);
            self.made(made)?;
        }
        self.call(&mut comm, Call::barrier(), 0)
    }

    /// Goes on with those who are left.
    fn shrink(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        self.hold(Gate::Shrink);
        for _ in 0..self.draw.size {
            comm = comm.shrink().map_err(|error| self.failed(error))?;
            say(&Said::Shrunk { origins: comm.origins().to_vec(), at: now() });
            match self.calls_after_shrink(&mut comm) {
                // One more was killed, whatever showed it.
                Err(Outcome::Failed(_)) => {}
                ended => return ended,
            }
        }
        Err(Outcome::Wrong("it shrank more often than there are ranks".to_owned()))
    }

    fn calls_after_shrink(&mut self, comm: &mut Communicator) -> Result<(), Outcome> {
        for round in 0..CALLS_AFTER_SHRINK {
            let usual = Call::small(round, comm.size());
            self.call(comm, usual, round)?;
        }
        // Nobody leaves before all are done: whoever is killed meanwhile is named.
        self.call(comm, Call::barrier(), 0)
    }
}

/// Whether ranks read each other's memory through the kernel, where the draw says so.
fn single_copy(draw: &Draw) -> Option<bool> {
    match draw.kind {
        Kind::SingleCopy => Some(true),
        Kind::Counts => Some(Uneven::single_copy(draw)),
        _ => None,
    }
}

impl Role {
    /// Where and how the ranks of a draw meet.
    pub(crate) fn meeting(&self, draw: &Draw) -> Rendezvous {
        let is_pretended = draw.is_networked() && draw.kind != Kind::Addresses;
        let network = Network {
            pretended_host: is_pretended.then(|| 1 + draw.host(self.rank) as u64),
            announced_port: self.announced_port,
            ..Network::default()
        };
        let token = Token::new(self.token.clone()).unwrap();
        Rendezvous { network, ..Rendezvous::new(place(&self.place), token, draw.size, self.meeting_limit) }
    }
}

/// What ranks of a phase call in a round.
fn call(phase: Phase, round: usize, size: usize) -> Call {
    match phase {
        Phase::Large => Call::large(),
        Phase::Uneven => Call::uneven(round),
        Phase::Barrier => Call::barrier(),
        _ => Call::small(round, size),
    }
}

/// `@name`, `/path` or `host:port`.
pub(crate) fn place(text: &str) -> RendezvousAddress {
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
