//! How a communicator comes to be: ranks that have met lay out what they share and find out what the machine allows.

use std::hash::{BuildHasher, RandomState};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Communicator;
use super::current::Current;
use crate::bootstrap::Bootstrap;
use crate::choose::Table;
use crate::counter::Counter;
use crate::engine::Ports;
use crate::error::Error;
use crate::kernels::Kernels;
use crate::knobs::{KnobError, Knobs};
use crate::layout::LINE;
use crate::log;
use crate::reach;
use crate::recorder::{Places, Recorder, Who};
use crate::shared::{HEADERS, Shared, lines_at};
use crate::wait::{Patience, Waiter};

/// How a communicator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call waits for other ranks, without getting on, before it fails and names them. A call of many steps
    /// may take longer. 300 s unless set.
    pub deadline: Duration,
    /// Whether ranks that wait keep their core: right when each has one of its own. Unset: when there are enough.
    pub spin: Option<bool>,
    /// Whether peers' ordinary memory is read by the kernel, which saves a copy. Unset: where it is allowed and faster.
    pub single_copy: Option<bool>,
    /// How long a call waits for other ranks before a warning names them. 10 s unless set.
    pub warn_after: Duration,
    /// Whether ranks of one host share memory. Otherwise they talk TCP, as those of different hosts do.
    pub shared_memory: bool,
    /// TCP connections between two ranks.
    pub streams: u32,
    /// Whether frames between hosts are encrypted. Otherwise they are checked by CRC32C and can be read on the way.
    pub encrypt: bool,
    /// Whether the same inputs give the same bits whatever the algorithm, transport and layout.
    pub deterministic: bool,
    /// How many calls the flight recorder keeps, rounded up to a power of two.
    pub record: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(300),
            spin: None,
            single_copy: None,
            warn_after: Duration::from_secs(10),
            shared_memory: true,
            streams: 2,
            encrypt: false,
            deterministic: false,
            record: 1024,
        }
    }
}

impl Options {
    /// As the environment says: [`knobs`](crate::knobs) lists the variables, and so does `weft knobs`.
    pub fn from_environment() -> Result<Options, KnobError> {
        Ok(Self::of(&Knobs::from_environment()?))
    }

    /// As settings say.
    pub fn of(knobs: &Knobs) -> Options {
        let &Knobs {
            deadline,
            spin,
            single_copy,
            warn_after,
            shared_memory,
            streams,
            encrypt,
            deterministic,
            record,
            ..
        } = knobs;
        Options {
            deadline,
            spin,
            single_copy,
            warn_after,
            shared_memory,
            streams,
            encrypt,
            deterministic,
            record,
        }
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

impl Communicator {
    /// A group whose ranks are threads of this process: one end each, to be moved to its thread.
    pub fn threads(size: usize, options: Options) -> Result<Vec<Communicator>, Error> {
        // Meeting needs all ranks at once, so each meets on a thread of its own.
        let meet = |bootstrap| std::thread::spawn(move || Communicator::new(bootstrap, options));
        let meeting: Vec<_> = Bootstrap::threads(size).into_iter().map(meet).collect();
        meeting.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// This rank's end of a group that has met. All ranks call it.
    pub fn new(mut bootstrap: Bootstrap, options: Options) -> Result<Communicator, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        // Neighbouring lines are fetched in pairs, so what different ranks write is kept two lines apart.
        let apart = |position: usize| position * 2 * LINE;
        let headers = apart(4 + size);
        let control = bootstrap.share("weft: headers", headers + size * HEADERS * LINE, options.deadline)?;
        let line = |at: usize| &lines_at(&control, at, 1)[0];
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = options.spin.unwrap_or(size <= cores);
        let patience =
            if spin { Patience::dedicated(options.deadline) } else { Patience::crowded(options.deadline) };
        let kernels = Kernels::detect();
        // Rank 0 names the communicator; agreeing on the table below is what the others wait for before they read it.
        let name = line(apart(3 + size));
        if rank == 0 {
            name.write_payload(&[RandomState::new().hash_one(std::process::id())]);
        }
        let table = Table::agreed(&mut bootstrap, line(apart(2 + size)), options.deadline)?;
        let mut job = [0];
        name.read_payload(&mut job);
        let who = Who { rank, size, job: job[0] & JOB_BITS };
        let recorder = Recorder::new(who, options.record, patience.yields, &Places::of_environment(rank));
        let shared = Shared {
            headers: lines_at(&control, headers, size * HEADERS).iter().map(Counter::new).collect(),
            departures: (0..size).map(|rank| Counter::new(line(apart(2 + rank)))).collect(),
            waiter: Waiter::new(line(0), line(apart(1)), patience),
            windows: Vec::new(),
            kernels,
            copy: kernels.copy(),
            pids: bootstrap.pids().to_vec(),
            recorder,
        };
        let readable = reach::probe(&mut bootstrap, options.single_copy, options.deadline)?;
        tell(rank, size, spin, readable, &table);
        Ok(Communicator {
            rank,
            size,
            options,
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            calls: 0,
            failed: None,
            engines: Vec::new(),
            ports: Ports::new(),
            table,
            readable,
            chosen: Vec::new(),
            current: Current::none(),
            shared,
            windows: Vec::new(),
            bootstrap,
            multiplied: Vec::new(),
            signals: None,
            _control: control,
        })
    }
}

/// Tells what a communicator starts with.
fn tell(rank: usize, size: usize, spin: bool, readable: bool, table: &Table) {
    let (version, host) = (env!("CARGO_PKG_VERSION"), log::host());
    let (reads, waits) = (
        if readable { "the kernel reads peers' memory" } else { "peers' memory is not read" },
        if spin { "ranks that wait keep their core" } else { "ranks that wait make way" },
    );
    log::info!(
        Meet,
        rank,
        "weft {version}, rank {rank} of {size} on {host}: shared memory, {reads}, {waits}"
    );
    if !log::is_told(log::Subsystem::Meet, log::Level::Info) {
        return;
    }
    match Knobs::from_environment() {
        Ok(knobs) => {
            let given: Vec<_> = knobs.given().collect();
            let given = if given.is_empty() { "none".to_owned() } else { given.join(", ") };
            log::info!(Meet, rank, "settings in the environment: {given}");
        }
        Err(error) => log::warn!(Meet, rank, "{error}"),
    }
    // All ranks have the same.
    if rank == 0 {
        table.lines().for_each(|line| log::info!(Plan, rank, "{line}"));
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
