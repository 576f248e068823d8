//! Creating a communicator: ranks that have met lay out their shared memory and detect what the machine allows.

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
use weftlink_recorder::recorder::{Outputs, Owner, Recorder};
use weftlink_shm::counter::Counter;
use weftlink_shm::limits;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{AbortCode, WaitPolicy, Waiter};

use super::Communicator;
use super::cores;
use super::current::Current;
use crate::abort_note::note;
use crate::choose::Table;
use crate::durations::{CALL, WARN_AFTER, WARN_AFTER_MIN};
use crate::engine::Ports;
use crate::error::Error;
use crate::shared::{HEADERS, Shared, StallReporter};
use crate::signatures::SignatureTable;
use crate::transport::cma::{self, Process};
use crate::transport::{LINE, Transports, lines_at};

/// How a communicator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call waits for other ranks without progress before it fails and names them. A call of many steps
    /// may take longer. 300 s unless set. With zero, a call fails unless the others are in it already.
    pub deadline: Duration,
    /// Whether waiting ranks spin, which is right when each has a core of its own. Unset: if there are enough cores.
    pub spin: Option<bool>,
    /// Whether the kernel reads peers' ordinary memory (CMA), which saves a copy. Unset: where it is allowed and faster.
    pub single_copy: Option<bool>,
    /// Log a stall warning after this long, and at this interval from then on. It names the ranks that a call waits for. 10 s unless set, 10
    /// ms at least.
    pub warn_after: Duration,
    /// Connections to each rank on another host.
    pub streams: u32,
    /// Whether data between hosts is encrypted with the job's secret. If not, a checksum guards it against accidental changes.
    pub encrypt: bool,
    /// Whether the bits of a result depend on the inputs and the order of the ranks alone, and not on the plan, the kind of
    /// memory, tiles or instruction sets. This excludes some plans. All ranks must set the same. See `docs/determinism.md`.
    pub deterministic: bool,
    /// The number of calls that the flight recorder keeps, rounded up to a power of two.
    pub record: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: CALL,
            warn_after: WARN_AFTER,
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
    /// Reads the options from the environment. [`knobs`](weftlink_knobs) and `weft knobs` list the variables.
    pub fn from_environment() -> Result<Options, KnobError> {
        Ok(Self::of(&Knobs::from_environment()?))
    }

    /// The options that `knobs` set.
    pub fn of(knobs: &Knobs) -> Options {
        let &Knobs {
            deadline, spin, single_copy, warn_after, streams, encrypt, deterministic, record, ..
        } = knobs;
        Options { deadline, spin, single_copy, warn_after, streams, encrypt, deterministic, record }
    }
}

/// The bits of a communicator's name: few enough to read out, enough to be unique.
const JOB_BITS: u64 = (1 << 48) - 1;

/// Runs `work` on `size` ranks, each a thread of this process, and returns their results by rank. The ranks have
/// [default options](Options::default); [`Communicator::threads`] takes others.
///
/// # Panics
/// If `work` panics on a rank.
pub fn on_threads<T: Send>(
    size: usize,
    work: impl Fn(Communicator) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let ranks = Communicator::threads(size, Options::default())?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        // Join all before returning the first error: if a rank panicked, the errors of the others only follow from that.
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

/// Handles events on the monitor thread: it publishes the deaths, failures and departures of other ranks where the ranks of this host
/// look for them.
fn event_handler(shared: &Shared, bootstrap: &Bootstrap) -> EventHandler {
    let (rank, hosts) = (bootstrap.rank(), bootstrap.hosts());
    let (waiter, departures) = (shared.waiter, shared.departures.clone());
    let headers = shared.headers.clone();
    let elsewhere: Vec<bool> = hosts.iter().map(|host| *host != hosts[rank]).collect();
    // Peers name the rank, which may not exist.
    let is_elsewhere = move |rank: u32| elsewhere.get(rank as usize) == Some(&true);
    let answer = own_call(shared, rank);
    Box::new(move |event| {
        match *event {
            Event::Died { rank } => {
                waiter.abort(AbortCode { rank, reason: Reason::Died.code() });
            }
            Event::Lost { rank, .. } => {
                waiter.abort(AbortCode { rank, reason: Reason::Lost.code() });
            }
            Event::Failed { culprit: rank, reason, ref error, .. } => {
                // The note of an abort on purpose must be there before the abort word is.
                if let (BootstrapError::GaveUp { cause, .. }, true) = (error, is_elsewhere(rank)) {
                    departures[rank as usize].line().write_payload(&note(cause));
                }
                if let Some(reason) = NonZeroU32::new(reason) {
                    waiter.abort(AbortCode { rank, reason });
                }
            }
            Event::Left { rank, calls } if is_elsewhere(rank) => {
                let departure = departures[rank as usize];
                // A rank that aborted on purpose has left a note there, for later calls.
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
            Event::Left { .. } | Event::Continued { .. } | Event::Calls { .. } | Event::Waits { .. } => {}
        }
        None
    })
}

/// The event that shows other hosts this rank's call of a number, if it has made it.
fn own_call(shared: &Shared, rank: usize) -> impl Fn(u32) -> Option<Event> + Send + 'static {
    let own: Vec<_> = shared.headers[rank * HEADERS..][..HEADERS].to_vec();
    move |number| {
        let header = own[number as usize % HEADERS];
        let signature = header.signature_at(number)?;
        Some(Event::Calls { rank: rank as u32, number, signature, words: header.announcement() })
    }
}

impl Communicator {
    /// The communicators of a group whose ranks are threads of this process, by rank.
    pub fn threads(size: usize, options: Options) -> Result<Vec<Communicator>, Error> {
        // The rendezvous needs all ranks at once, so each has a thread of its own.
        let meet = |bootstrap| {
            std::thread::Builder::new()
                .spawn(move || Communicator::new(bootstrap, options))
                .map_err(|error| Error::Bootstrap(BootstrapError::System { what: limits::no_thread(&error) }))
        };
        // If a thread cannot be started, its rank has left, which ends the wait of the others.
        let meeting: Vec<_> = Bootstrap::threads(size).into_iter().map(meet).collect::<Result<_, _>>()?;
        meeting.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// Joins the job that this process is part of, as its launcher (`weft run`, torchrun, mpirun, srun) or the variables
    /// `WEFT_RENDEZVOUS`, `RANK` and `WORLD_SIZE` describe it. Options come from the environment too (`weft knobs`).
    pub fn from_environment() -> Result<Communicator, Error> {
        let knobs = Knobs::from_environment()?;
        Communicator::new(Bootstrap::from_environment(&knobs)?, Options::of(&knobs))
    }

    /// The communicator of a group that has met. All ranks call it.
    pub fn new(bootstrap: Bootstrap, options: Options) -> Result<Communicator, Error> {
        Communicator::on(bootstrap, options).map_err(|(_, error)| error)
    }

    /// The same, returning the bootstrap on failure.
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

/// The parts of a communicator that have to be set up.
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
        // The prefetcher fetches lines in pairs, so lines that different ranks write are two lines apart.
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
        let wait_policy = if spin {
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
        // Last, when nothing can fail any more: until here a failure is reported to the launcher as that of a rank that did not start.
        let owner = Owner { rank, size, job: bootstrap.id() & JOB_BITS };
        let recorder =
            Recorder::new(owner, options.record, wait_policy.yields, &Outputs::from_environment(rank));
        let names = (0..size).map(|rank| bootstrap.name(rank)).collect();
        let mut shared = Shared {
            here,
            stall_reporter: StallReporter::new(rank as u32, warn_after, names, bootstrap.chain()),
            headers: lines_at(&control, headers, size * HEADERS).iter().map(Counter::new).collect(),
            departures: (0..size).map(|rank| Counter::new(line(apart(2 + rank)))).collect(),
            waiter: Waiter::new(line(0), line(apart(1)), wait_policy),
            windows: Vec::new(),
            kernels,
            copy: kernels.copy(),
            processes,
            recorder,
        };
        if spans_hosts {
            let (call, notify) = (own_call(&shared, rank), bootstrap.notifier());
            shared.stall_reporter.send_header =
                Some(Box::new(move |number| call(number).into_iter().for_each(&notify)));
        }
        log_start(bootstrap, spin, readable, &table);
        Ok(Parts { control, shared, table, readable, own_cores, transports, hosts, spans_hosts })
    }
}

impl Communicator {
    fn of(parts: Parts, bootstrap: Bootstrap, options: Options) -> Communicator {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Parts { control, shared, table, readable, own_cores, transports, hosts, spans_hosts } = parts;
        // From here on the memory it writes to lives as long as the bootstrap.
        bootstrap.set_event_handler(event_handler(&shared, &bootstrap));
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
            signatures: SignatureTable::new(),
            shared,
            windows: Vec::new(),
            bootstrap,
            multiplied: Vec::new(),
            signals: None,
            messages: None,
            control: Arc::new(control),
        }
    }
}

/// Logs what a communicator starts with.
fn log_start(bootstrap: &Bootstrap, spin: bool, readable: bool, table: &Table) {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let (version, host) = (env!("CARGO_PKG_VERSION"), weftlink_knobs::host());
    let hosts = 1 + bootstrap.hosts().iter().max().copied().unwrap_or(0);
    let ways = if hosts > 1 {
        format!("{hosts} hosts, shared memory inside and TCP between them")
    } else {
        "shared memory".to_owned()
    };
    let (reads, waits) = (
        if readable { "the kernel reads peers' memory" } else { "no single-copy reads" },
        if spin { "waiting ranks spin" } else { "waiting ranks yield" },
    );
    tracing::info!(target: "weft::meet", rank, "weft {version}, rank {rank} of {size} on {host}: {ways}, {reads}, {waits}");
    if tracing::enabled!(target: "weft::meet", tracing::Level::INFO) {
        match Knobs::from_environment() {
            Ok(knobs) => {
                let given: Vec<_> = knobs.given().collect();
                let given = if given.is_empty() { "none".to_owned() } else { given.join(", ") };
                tracing::info!(target: "weft::meet", rank, "settings in the environment: {given}");
            }
            Err(error) => tracing::warn!(target: "weft::meet", rank, "{error}"),
        }
    }
    // All ranks have the same.
    if rank == 0 && tracing::enabled!(target: "weft::plan", tracing::Level::INFO) {
        table.lines().for_each(|line| tracing::info!(target: "weft::plan", rank, "{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_environment_gives_the_default() {
        assert_eq!(Options::of(&Knobs::from(|_| None).unwrap()), Options::default());
        let said = |name: &str| (name == "WEFT_DEADLINE").then(|| "5s".into());
        let deadline = Duration::from_secs(5);
        assert_eq!(Options::of(&Knobs::from(said).unwrap()), Options { deadline, ..Options::default() });
    }
}
