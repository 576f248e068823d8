//! The messages between the command and its ranks. A rank that is a process reads one line of JSON from its standard input
//! ([`Orders`]) and writes one per [`Message`] to its standard output; a thread gets the same values.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weftlink_plan::{Collective, Order, Plan, Verified};

use super::names::{Op, Type};

/// What to measure and how; the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) ranks: usize,
    /// Whether ranks share a GPU, with buffers in its memory.
    pub(super) on_gpu: bool,
    /// The kinds of calls.
    pub(super) cases: Vec<Case>,
    /// The rows in order: a case, and the elements of a block.
    pub(super) rows: Vec<(usize, usize)>,
    /// Plans, which cases name by position; the library chooses for a case without one.
    pub(super) plans: Vec<Plan>,
    /// The hashes of these plans.
    pub(super) plan_hashes: Vec<u64>,
    /// The order in which each plan reduces ranks; for the command only.
    #[serde(skip)]
    pub(super) orders: Vec<Order>,
    /// Measure pairs of ranks instead of rows.
    pub(super) pairs: Option<Pairs>,
    /// Untimed calls before the timed ones.
    pub(super) warmup: u32,
    /// Timed calls; by default rank 0 chooses for each row.
    pub(super) iterations: Option<u32>,
    /// The duration of a timed loop if rank 0 chooses.
    pub(super) loop_seconds: f64,
    /// Whether results are checked.
    pub(super) check: bool,
    /// Whether calls are timed one by one, too.
    pub(super) stats: Option<Stats>,
    /// Whether a further call of each row is recorded, step by step.
    pub(super) trace: bool,
    /// Whether buffers are passed in place, too.
    pub(super) in_place: bool,
    /// The size of the last-level cache.
    pub(super) cache_bytes: usize,
    /// The timeout of a call.
    pub(super) deadline: Duration,
    /// The core of each rank, if they are bound.
    pub(super) cores: Option<Vec<usize>>,
    /// Whether each rank has a core of its own, so that it may spin while it waits.
    pub(super) spin: bool,
    /// Whether results have the same bits for every plan.
    pub(super) deterministic: bool,
}

/// A kind of call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) collective: Collective,
    pub(super) data_type: Type,
    /// For those that reduce.
    pub(super) op: Option<Op>,
    /// Whether buffers are symmetric memory.
    pub(super) symmetric: bool,
    /// Whether calls rotate through buffers that together are larger than the caches.
    pub(super) rotating: bool,
    /// The plan that all its rows run.
    pub(super) plan: Option<usize>,
}

/// Messages between every two ranks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Pairs {
    /// Of the message whose latency is measured.
    pub(super) small_bytes: usize,
    /// Of the message whose bandwidth is measured.
    pub(super) large_bytes: usize,
}

/// For which rows calls are timed one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(super) enum Stats {
    /// Only rows whose calls are so long that reading the clock does not matter
    Undisturbed,
    /// All rows
    All,
}

impl Job {
    /// The plan, if all rows run the same: name, lanes of a rank, hash.
    pub(super) fn same_plan(&self) -> Option<(&str, usize, String)> {
        let ([plan], [hash]) = (self.plans.as_slice(), self.plan_hashes.as_slice()) else { return None };
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max()?;
        Some((&plan.name, lanes, format!("{hash:016x}")))
    }

    /// The position of a plan, which is added if missing.
    pub(super) fn add_plan(&mut self, plan: Verified) -> usize {
        let hash = plan.hash();
        let known = self.plan_hashes.iter().position(|known| *known == hash);
        known.unwrap_or_else(|| {
            self.plan_hashes.push(hash);
            self.orders.push(plan.order());
            self.plans.push(plan.into_plan());
            self.plans.len() - 1
        })
    }
}

impl Case {
    /// The bytes of a row as nccl-tests counts them: of a buffer, or of all ranks' blocks together.
    pub(super) fn bytes(&self, count: usize, ranks: usize) -> usize {
        count * self.data_type.bytes() * self.blocks(ranks)
    }

    /// The most blocks that a rank has on one side.
    pub(super) fn blocks(&self, ranks: usize) -> usize {
        let (gives, gets) = self.collective.blocks(ranks as u32);
        gives.max(gets) as usize
    }
}

/// The orders for a rank that is a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) job: Job,
    pub(super) rank: usize,
    /// The rendezvous: the name of an abstract socket.
    pub(super) place: String,
    /// The secret. Other users can read command lines and environments, so it travels here.
    pub(super) token: String,
    /// The process that gave the orders and reads the messages.
    pub(super) parent: u32,
}

/// A message of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Rank 0 has measured the link between two ranks.
    Probed(Machine),
    /// Rank 0 begins with a row; for showing progress.
    Started { row: usize },
    /// A row is done.
    Measured(RankRow),
    /// A pair of ranks is done; sent by the first of them.
    Paired { from: usize, to: usize, pair: Pair },
    /// A rank is done.
    Done,
    /// The rank failed.
    Failed {
        error: String,
        /// Because another rank failed first, which reports the cause.
        secondary: bool,
    },
}

/// The link between ranks 0 and 1, for predictions, and whether ranks read each other's memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Machine {
    /// One way, of 8 bytes; nothing where there is one rank.
    pub(super) latency_us: Option<f64>,
    pub(super) bandwidth_gb_per_s: Option<f64>,
    /// The cost of reading the clock.
    pub(super) clock_ns: f64,
    /// Whether ranks read ordinary memory of peers through the kernel.
    pub(super) reads_peers: bool,
}

/// What a rank measured with another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Pair {
    LatencyUs(f64),
    GbPerS(f64),
    BothWaysGbPerS(f64),
}

/// The measurements of one row on one rank, without a way of passing buffers that the plan does not support.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankRow {
    pub(super) row: usize,
    /// The name of the plan that ran.
    pub(super) plan: String,
    /// The hops and bytes of the plan, counted by rank 0.
    pub(super) work: Option<Work>,
    pub(super) out_of_place: Option<Timing>,
    pub(super) in_place: Option<Timing>,
    /// Steps of a further call, if it was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) steps: Vec<Recorded>,
}

/// A step that a rank executed. All processes of the host share the clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Recorded {
    pub(super) name: String,
    pub(super) lane: u32,
    pub(super) tile: u32,
    pub(super) bytes: usize,
    /// When it began to wait, when it began, when it was done.
    pub(super) times_ns: [u64; 3],
}

/// The cost of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Work {
    /// In a row.
    pub(super) hops: u32,
    /// The most that a rank sends or receives, as a share of the row's bytes.
    pub(super) share: f64,
}

/// A timed loop of calls on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timing {
    pub(super) iterations: u32,
    /// Of the whole loop.
    pub(super) seconds: f64,
    /// Wrong elements before, within and after the loop; unset without a check.
    pub(super) wrong: Option<u64>,
    /// Of calls one by one, if they were timed so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) calls_us: Vec<f32>,
}
