//! How a communicator comes to be: ranks that have met lay out what they share and find out what the machine allows.

use std::num::NonZeroU32;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weftlink_bootstrap::{
    Bootstrap, BootstrapError, Event, EventHandler, Failure, Reason, is_on_purpose, launcher,
};
use weftlink_kernels::Kernels;
use weftlink_knobs::{KnobError, Knobs};
use weftlink_recorder::recorder::{Places, Recorder, Who};
use weftlink_shm::counter::Counter;
use weftlink_shm::limits;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{AbortCode, WaitPolicy, Waiter};

use super::Communicator;
use super::cores;
use super::current::Current;
use crate::choose::Table;
use crate::engine::Ports;
use crate::error::Error;
use crate::known::Known;
use crate::note::note;
use crate::shared::{Crier, HEADERS, Shared};
use crate::transport::cma::{self, Process};
use crate::transport::{LINE, Transports, lines_at};

/// Stall warnings come no sooner and no closer together than this, whatever the options say.
const WARN_AFTER_MIN: Duration = Duration::from_millis(10);

/// How a communicator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call waits for other ranks, without getting on, before it fails and names them. A call of many steps
    /// may take longer. 300 s unless set. With no time at all, a call fails unless the others are there already.
    pub deadline: Duration,
    /// Whether ranks that wait keep their core: right when each has one of its own. Unset: when there are enough.
    pub spin: Option<bool>,
    /// Whether peers' ordinary memory is read by the kernel, which saves a copy. Unset: where it is allowed and faster.
    pub single_copy: Option<bool>,
    /// Log a stall warning after this long, and then again and again, which says whom a call waits for. 10 s unless set, 10 ms at
    /// least.
    pub warn_after: Duration,
    /// Connections to each rank on another host.
    pub streams: u32,
    /// Whether what goes between hosts is encrypted with the job's secret. If not it is checked against change by accident.
    pub encrypt: bool,
    /// Whether the bits of a result depend on the inputs and the order of the ranks alone, and not on the plan, the kind of
    /// memory, tiles or instruction sets. Some plans are out then, and one pass over the result is made for NaNs. All ranks
    /// say the same. `docs/determinism.md` tells more.
    pub deterministic: bool,
    /// How many calls the flight recorder keeps, rounded up to a power of two.
    pub record: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(300),
            warn_after: Duration::from_secs(10),
            spin: None,
            single_copy: None,
            streams: 2,
            encrypt: false,
            deterministic: false,
            record: 1024,
        }
    }
}

impl Options {
    /// As the environment says: [`knobs`](weftlink_knobs) lists the variables, and so does `weft knobs`.
    pub fn from_environment() -> Result<Options, KnobError> {
        Ok(Self::of(&Knobs::from_environment()?))
    }

    /// As settings say.
    pub fn of(knobs: &Knobs) -> Options {
        let &Knobs {
            deadline, spin, single_copy, warn_after, streams, encrypt, deterministic, record, ..
        } = knobs;
        Options { deadline, spin, single_copy, warn_after, streams, encrypt, deterministic, record }
    }
}

/// A name of a communicator is so short that people can read it out, and long enough that no two are the same.
const JOB_BITS: u64 = (1 << 48) - 1;

/// Runs `work` on so many ranks, each a thread of this process, and returns what each gave, by rank. Ranks wait for each
/// other as [`Options::default`] says; [`Communicator::threads`] takes other options.
///
/// # Panics
/// If one of them does.
pub fn on_threads<T: Send>(
    size: usize,
    work: impl Fn(Communicator) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let ranks = Communicator::threads(size, Options::default())?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        // All are heard before the first error ends it: a rank that panicked is why the others have errors.
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    })
    .into_iter()
    .collect()
}

fn transports(rank: usize, hosts: &[u32]) -> Result<Transports, Error> {
    Transports::new(hosts).map_err(|error| Error::System {
        rank: rank as u32,
        what: "watch connections",
        error: error.to_string(),
    })
}

/// What a rank does at once when it hears of others, on its steward's thread: it puts what they cannot say themselves where
/// the ranks of this host look.
fn alarm(shared: &Shared, bootstrap: &Bootstrap) -> EventHandler {
    let (rank, hosts) = (bootstrap.rank(), bootstrap.hosts());
    let (waiter, departures) = (shared.waiter, shared.departures.clone());
    let headers = shared.headers.clone();
    let elsewhere: Vec<bool> = hosts.iter().map(|host| *host != hosts[rank]).collect();
    // Ranks are named by peers, and one that does not exist is nowhere.
    let is_elsewhere = move |rank: u32| elsewhere.get(rank as usize) == Some(&true);
    let answer = own_call(shared, rank);
    Box::new(move |news| {
        match *news {
            Event::Died { rank } => {
                waiter.abort(AbortCode { rank, reason: Reason::Died.code() });
            }
            Event::Lost { rank, .. } => {
                waiter.abort(AbortCode { rank, reason: Reason::Lost.code() });
            }
            Event::Failed { culprit: rank, reason, ref error, .. } => {
                // What it did on purpose is told by a note, which must be there before the word is.
                if let (BootstrapError::GaveUp { cause, .. }, true) = (error, is_elsewhere(rank)) {
                    departures[rank as usize].line().write_payload(&note(cause));
                }
                if let Some(reason) = NonZeroU32::new(reason) {
                    waiter.abort(AbortCode { rank, reason });
                }
            }
            Event::Left { rank, calls } if is_elsewhere(rank) => {
                let departure = departures[rank as usize];
                // A rank that ended the communicator on purpose has left a note there, for all who call later.
                let has_noted =
                    is_on_purpose(&waiter) && waiter.aborted().is_some_and(|code| code.rank == rank);
                let calls = [u64::from(calls), 0, 0, 0, 0, 0, 0];
                departure.follow(1, 0, &if has_noted { departure.announcement() } else { calls });
            }
            Event::Calls { rank, number, signature, words } if is_elsewhere(rank) => {
                headers[rank as usize * HEADERS + number as usize % HEADERS]
                    .follow(number, signature, &words);
                return answer(number);
            }
            Event::Left { .. } | Event::Calls { .. } | Event::Waits { .. } => {}
        }
        None
    })
}

/// What this rank calls under a number, if it does, as news for other hosts.
fn own_call(shared: &Shared, rank: usize) -> impl Fn(u32) -> Option<Event> + Send + 'static {
    let own: Vec<_> = shared.headers[rank * HEADERS..][..HEADERS].to_vec();
    move |number| {
        let header = own[number as usize % HEADERS];
        let signature = header.signature_at(number)?;
        Some(Event::Calls { rank: rank as u32, number, signature, words: header.announcement() })
    }
}

impl Communicator {
    /// A group whose ranks are threads of this process: one end each, to be moved to its thread.
    pub fn threads(size: usize, options: Options) -> Result<Vec<Communicator>, Error> {
        // The rendezvous needs all ranks at once, so each joins on a thread of its own.
        let meet = |bootstrap| {
            std::thread::Builder::new()
                .spawn(move || Communicator::new(bootstrap, options))
                .map_err(|error| Error::Bootstrap(BootstrapError::System { what: limits::no_thread(&error) }))
        };
        // Where a thread cannot be started, its rank has left, which ends the wait of the others.
        let meeting: Vec<_> = Bootstrap::threads(size).into_iter().map(meet).collect::<Result<_, _>>()?;
        meeting.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// This rank's end of the job that this process is part of, as its launcher tells: `weft run`, torchrun, mpirun, srun, or
    /// whoever sets `WEFT_RENDEZVOUS`, `RANK` and `WORLD_SIZE`. Settings come from the environment too (`weft knobs`).
    pub fn from_environment() -> Result<Communicator, Error> {
        let knobs = Knobs::from_environment()?;
        Communicator::new(Bootstrap::from_environment(&knobs)?, Options::of(&knobs))
    }

    /// This rank's end of a group that has met. All ranks call it.
    pub fn new(bootstrap: Bootstrap, options: Options) -> Result<Communicator, Error> {
        Communicator::on(bootstrap, options).map_err(|(_, error)| error)
    }

    /// The same; gives the bootstrap back if it fails.
    pub(super) fn on(
        mut bootstrap: Bootstrap,
        options: Options,
    ) -> Result<Communicator, (Box<Bootstrap>, Error)> {
        match Parts::of(&mut bootstrap, options) {
            Ok(parts) => Ok(Communicator::of(parts, bootstrap, options)),
            Err(error) => {
                launcher::report_start(bootstrap.rank(), bootstrap.size(), &Failure::from(&error));
                Err((Box::new(bootstrap), error))
            }
        }
    }
}

/// What a communicator is made of, beside what it was told.
struct Parts {
    control: SharedMemory,
    shared: Shared,
    table: Table,
    readable: bool,
    own_cores: usize,
    transports: Transports,
    hosts: Vec<u32>,
    spans_hosts: bool,
}

impl Parts {
    fn of(bootstrap: &mut Bootstrap, options: Options) -> Result<Parts, Error> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let warn_after = options.warn_after.max(WARN_AFTER_MIN);
        bootstrap.set_warn_after(warn_after);
        // Neighbouring lines are fetched in pairs, so what different ranks write is kept two lines apart.
        let apart = |position: usize| position * 2 * LINE;
        let headers = apart(2 + size);
        let control = bootstrap.share("weft: headers", headers + size * HEADERS * LINE, options.deadline)?;
        let line = |at: usize| &lines_at(&control, at, 1)[0];
        let kernels = Kernels::detect();
        let hosts = bootstrap.hosts().to_vec();
        let here: Vec<bool> = hosts.iter().map(|host| *host == hosts[rank]).collect();
        let spans_hosts = here.contains(&false);
        let ranks_here = here.iter().filter(|here| **here).count();
        let spin = options.spin.unwrap_or(ranks_here <= cores::available());
        let patience = if spin {
            WaitPolicy::dedicated(options.deadline)
        } else {
            WaitPolicy::crowded(options.deadline)
        };
        let table = Table::agreed(bootstrap, options.deadline)?;
        let own_cores = cores::own(bootstrap, &here, options.deadline)?;
        let processes = match !spans_hosts && bootstrap.knows_pids() {
            true => cma::probe(bootstrap, options.single_copy, options.deadline)?,
            false => None,
        };
        let readable = processes.is_some();
        let named = || bootstrap.pids().iter().map(|pid| Process::named(*pid)).collect();
        let processes = processes.unwrap_or_else(named);
        let transports = transports(rank, &hosts)?;
        // Last, when nothing can fail any more: a launcher is told of failures before this as of a rank that has not started.
        let who = Who { rank, size, job: bootstrap.id() & JOB_BITS };
        let recorder = Recorder::new(who, options.record, patience.yields, &Places::of_environment(rank));
        let names = (0..size).map(|rank| bootstrap.name(rank)).collect();
        let mut shared = Shared {
            here,
            crier: Crier::new(rank as u32, warn_after, names, bootstrap.chain()),
            headers: lines_at(&control, headers, size * HEADERS).iter().map(Counter::new).collect(),
            departures: (0..size).map(|rank| Counter::new(line(apart(2 + rank)))).collect(),
            waiter: Waiter::new(line(0), line(apart(1)), patience),
            windows: Vec::new(),
            kernels,
            copy: kernels.copy(),
            processes,
            recorder,
        };
        if spans_hosts {
            let (call, tell) = (own_call(&shared, rank), bootstrap.teller());
            shared.crier.tell = Some(Box::new(move |number| call(number).into_iter().for_each(&tell)));
        }
        tell(bootstrap, spin, readable, &table);
        Ok(Parts { control, shared, table, readable, own_cores, transports, hosts, spans_hosts })
    }
}

impl Communicator {
    fn of(parts: Parts, bootstrap: Bootstrap, options: Options) -> Communicator {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Parts { control, shared, table, readable, own_cores, transports, hosts, spans_hosts } = parts;
        // From here on the memory it writes to lives as long as the bootstrap.
        bootstrap.set_event_handler(alarm(&shared, &bootstrap));
        Communicator {
            rank: bootstrap.rank(),
            size: bootstrap.size(),
            options,
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            pid: std::process::id(),
            calls: 0,
            failed: None,
            engines: Vec::new(),
            ports: Ports::new(transports),
            hosts,
            spans_hosts,
            table,
            readable,
            own_cores,
            chosen: Vec::new(),
            current: Current::none(),
            known: Known::new(),
            shared,
            windows: Vec::new(),
            bootstrap,
            multiplied: Vec::new(),
            signals: None,
            patterns: Vec::new(),
            control: Arc::new(control),
        }
    }
}

/// Tells what a communicator starts with.
fn tell(bootstrap: &Bootstrap, spin: bool, readable: bool, table: &Table) {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let (version, host) = (env!("CARGO_PKG_VERSION"), weftlink_knobs::host());
    let hosts = 1 + bootstrap.hosts().iter().max().copied().unwrap_or(0);
    let ways = if hosts > 1 {
        format!("{hosts} hosts, shared memory inside and TCP between them")
    } else {
        "shared memory".to_owned()
    };
    let (reads, waits) = (
        if readable { "the kernel reads peers' memory" } else { "peers' memory is not read" },
        if spin { "ranks that wait keep their core" } else { "ranks that wait make way" },
    );
    tracing::info!(target: "weft::meet", rank, "weft {version}, rank {rank} of {size} on {host}: {ways}, {reads}, {waits}");
    if !tracing::enabled!(target: "weft::meet", tracing::Level::INFO) {
        return;
    }
    match Knobs::from_environment() {
        Ok(knobs) => {
            let given: Vec<_> = knobs.given().collect();
            let given = if given.is_empty() { "none".to_owned() } else { given.join(", ") };
            tracing::info!(target: "weft::meet", rank, "settings in the environment: {given}");
        }
        Err(error) => tracing::warn!(target: "weft::meet", rank, "{error}"),
    }
    // All ranks have the same.
    if rank == 0 {
        table.lines().for_each(|line| tracing::info!(target: "weft::plan", rank, "{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_says_nothing_is_the_default() {
        assert_eq!(Options::of(&Knobs::from(|_| None).unwrap()), Options::default());
        let said = |name: &str| (name == "WEFT_DEADLINE").then(|| "5s".into());
        let deadline = Duration::from_secs(5);
        assert_eq!(Options::of(&Knobs::from(said).unwrap()), Options { deadline, ..Options::default() });
    }
}
