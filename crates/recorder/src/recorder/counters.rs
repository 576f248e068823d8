//! Counters of a rank, and their text format for Prometheus.

use std::fmt::Write;

use weftlink_plan::Collective;
use weftlink_shm::sync::Ordering;

use super::Lineage;
use super::ring::{self, Ring};

/// The counters of a rank's communicator since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The rank in the job that `weft run` started; otherwise in the communicator.
    pub rank: u32,
    /// The communicator: `world` for the job's own, its number in records for any other.
    pub communicator: String,
    /// By collective, in a fixed order; windows and setup follow.
    pub by_collective: Vec<CollectiveCounters>,
}

/// The counters of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveCounters {
    /// Its name: `all-reduce`, `window`; `setup` counts loaded plans and splits.
    pub collective: &'static str,
    /// Successful calls.
    pub calls: u64,
    /// Bytes of successful calls: the larger of the rank's buffers for each.
    pub bytes: u64,
    /// Failed calls: at most one, which breaks the communicator.
    pub errors: u64,
    /// Waits for other ranks that took longer than spinning.
    pub waits: u64,
    /// Waits that went to sleep.
    pub slept: u64,
    /// The time of all these waits.
    pub waited_ns: u64,
}

/// A metric: its name, its help text, and its value as text.
type Metric = (&'static str, &'static str, fn(&CollectiveCounters) -> String);

const METRICS: [Metric; 6] = [
    ("weft_calls_total", "Calls that ended well.", |counted| counted.calls.to_string()),
    ("weft_bytes_total", "Bytes of the larger buffer of each call that ended well.", |counted| {
        counted.bytes.to_string()
    }),
    ("weft_errors_total", "Calls that failed.", |counted| counted.errors.to_string()),
    ("weft_waits_total", "Waits for other ranks that took longer than spinning.", |counted| {
        counted.waits.to_string()
    }),
    ("weft_sleeps_total", "Waits for other ranks that went to sleep.", |counted| counted.slept.to_string()),
    ("weft_waited_seconds_total", "Time spent in waits that took longer than spinning.", |counted| {
        format!("{}.{:09}", counted.waited_ns / 1_000_000_000, counted.waited_ns % 1_000_000_000)
    }),
];

impl Counters {
    pub(super) fn of(ring: &Ring, lineage: &Lineage) -> Self {
        let names = Collective::NAMES.into_iter().chain(["window", "setup"]);
        let read = |(collective, counted): (&'static str, &ring::CounterWords)| {
            let ring::CounterWords { calls, bytes, errors, waits, slept, waited_ns } = counted;
            let [calls, bytes, errors, waits, slept, waited_ns] =
                [calls, bytes, errors, waits, slept, waited_ns].map(|word| word.load(Ordering::Relaxed));
            CollectiveCounters { collective, calls, bytes, errors, waits, slept, waited_ns }
        };
        let (rank, communicator) = (lineage.world_rank as u32, lineage.name.clone());
        Self { rank, communicator, by_collective: names.zip(&ring.head.counters).map(read).collect() }
    }

    /// All successful calls.
    pub fn calls(&self) -> u64 {
        self.by_collective.iter().map(|counted| counted.calls).sum()
    }

    /// The counters of a collective, by name.
    pub fn of_collective(&self, name: &str) -> Option<&CollectiveCounters> {
        self.by_collective.iter().find(|counted| counted.collective == name)
    }

    /// Adds the counters of another communicator of the same rank.
    pub fn add(&mut self, other: &Counters) {
        for (mine, theirs) in self.by_collective.iter_mut().zip(&other.by_collective) {
            mine.calls += theirs.calls;
            mine.bytes += theirs.bytes;
            mine.errors += theirs.errors;
            mine.waits += theirs.waits;
            mine.slept += theirs.slept;
            mine.waited_ns += theirs.waited_ns;
        }
    }

    /// The counters of several ranks in Prometheus' text format. Unused collectives have no line.
    pub fn prometheus(all: &[Counters]) -> String {
        let mut text = String::new();
        for (name, help, value) in METRICS {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for counters in all {
                let is_used =
                    |counted: &&CollectiveCounters| counted.calls + counted.errors + counted.waits > 0;
                for counted in counters.by_collective.iter().filter(is_used) {
                    let (collective, rank, of) = (counted.collective, counters.rank, &counters.communicator);
                    let labels = format!("collective=\"{collective}\",communicator=\"{of}\",rank=\"{rank}\"");
                    let _ = writeln!(text, "{name}{{{labels}}} {}", value(counted));
                }
            }
        }
        text
    }
}
