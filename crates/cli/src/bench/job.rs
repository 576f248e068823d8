//! What the command tells its ranks and what they answer. A rank that is a process reads one line of JSON from its
//! standard input ([`Orders`]) and writes one per [`Message`] to its standard output; a thread is handed the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weftlink_plan::{Collective, Order, Plan, Verified};

use super::names::{Op, Type};

/// What is measured, and how: the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) ranks: usize,
    /// What kinds of call there are.
    pub(super) cases: Vec<Case>,
    /// What to measure, in this order: a case and the elements of a block.
    pub(super) rows: Vec<(usize, usize)>,
    /// Plans that cases name by their position; what names none runs what the library chooses.
    pub(super) plans: Vec<Plan>,
    /// The hashes of these plans.
    pub(super) plan_hashes: Vec<u64>,
    /// In which order these plans combine ranks; for whoever gives the orders.
    #[serde(skip)]
    pub(super) orders: Vec<Order>,
    /// Every two ranks by themselves, instead of rows.
    pub(super) pairs: Option<Pairs>,
    /// Calls before those that are timed.
    pub(super) warmup: u32,
    /// Calls that are timed; left out, rank 0 chooses for each row.
    pub(super) iterations: Option<u32>,
    /// How long a timed loop should take, if it may choose.
    pub(super) loop_seconds: f64,
    /// Whether results are compared with what they should be.
    pub(super) check: bool,
    /// Whether calls are timed one by one, too.
    pub(super) stats: Option<Stats>,
    /// Whether a further call of each row is recorded, step by step.
    pub(super) trace: bool,
    /// Whether buffers are passed in place, too.
    pub(super) in_place: bool,
    /// What the caches of this machine hold.
    pub(super) cache_bytes: usize,
    /// How long a call may wait for other ranks.
    pub(super) deadline: Duration,
    /// The core of each rank, if they are bound.
    pub(super) cores: Option<Vec<usize>>,
    /// Whether each rank has a core of its own, so that it may keep it while it waits.
    pub(super) spin: bool,
    /// Whether results have the same bits whatever the plan.
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
    /// Whether each call uses other buffers, which together are larger than the caches.
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
    /// Those whose calls take so long that reading the clock does not count
    Undisturbed,
    /// All
    All,
}

impl Job {
    /// The plan, if all rows run the same: name, lanes of a rank, hash.
    pub(super) fn same_plan(&self) -> Option<(&str, usize, String)> {
        let ([plan], [hash]) = (self.plans.as_slice(), self.plan_hashes.as_slice()) else { return None };
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max()?;
        Some((&plan.name, lanes, format!("{hash:016x}")))
    }

    /// The position of a plan, which is added unless it is there.
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

/// What a rank that is a process is told when it starts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) job: Job,
    pub(super) rank: usize,
    /// Where the ranks meet: a name in the kernel's table.
    pub(super) place: String,
    /// What only they know. It travels here because command lines and environments can be read by others.
    pub(super) token: String,
    /// The process that gave the orders. Without it nobody would read the answers.
    pub(super) parent: u32,
}

/// What a rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Rank 0 has found out what this machine is like.
    Probed(Machine),
    /// Rank 0 begins with a row; for showing progress.
    Started { row: usize },
    /// A row is done.
    Measured(RankRow),
    /// A pair of ranks is done; the first of them says so.
    Paired { from: usize, to: usize, pair: Pair },
    /// A rank has done all it was told to.
    Done,
    /// The rank gives up.
    Failed {
        error: String,
        /// Because another rank gave up first, which will say more.
        secondary: bool,
    },
}

/// What predictions are made from, measured between ranks 0 and 1; and how ranks reach each other.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Machine {
    /// One way, of 8 bytes; nothing where there is one rank.
    pub(super) latency_us: Option<f64>,
    pub(super) bandwidth_gb_per_s: Option<f64>,
    /// What reading the clock takes.
    pub(super) clock_ns: f64,
    /// Whether ordinary memory of peers is read through the kernel.
    pub(super) reads_peers: bool,
}

/// What a rank measured with another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Pair {
    LatencyUs(f64),
    GbPerS(f64),
    BothWaysGbPerS(f64),
}

/// What one rank measured of one row. A way of passing buffers that the plan does not claim is left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankRow {
    pub(super) row: usize,
    /// The name of the plan that ran.
    pub(super) plan: String,
    /// What it takes, as rank 0 has counted on the plan.
    pub(super) work: Option<Work>,
    pub(super) out_of_place: Option<Timing>,
    pub(super) in_place: Option<Timing>,
    /// Steps of a further call, if it was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) steps: Vec<Recorded>,
}

/// A step of a plan that a rank has taken: times are those of a clock that all processes of this host share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Recorded {
    pub(super) name: String,
    pub(super) lane: u32,
    pub(super) tile: u32,
    pub(super) bytes: usize,
    /// Since when it waited, when it could begin, when it was done.
    pub(super) times_ns: [u64; 3],
}

/// What a plan takes.
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
    /// Elements that were not what they should be, before, within and after the loop; unset if nobody looked.
    pub(super) wrong: Option<u64>,
    /// Of calls one by one, if they were timed so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) calls_us: Vec<f32>,
}
