//! What the command tells its ranks and what they answer. A rank that is a process reads one line of JSON from its
//! standard input ([`Orders`]) and writes one per [`Message`] to its standard output; a thread is handed the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weftlink_plan::{Collective, Plan};

/// The type of the elements, as nccl-tests calls it, and their size.
pub(super) const ELEMENT: (&str, usize) = ("float", size_of::<f32>());

/// What is measured, and how: the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) collective: Collective,
    pub(super) ranks: usize,
    /// The sizes to measure, in elements, in this order.
    pub(super) counts: Vec<usize>,
    /// Whether buffers are symmetric memory.
    pub(super) symmetric: bool,
    /// The plan to run; left out, each size runs what the library chooses for it.
    pub(super) plan: Option<Plan>,
    /// The hash of that plan.
    pub(super) plan_hash: Option<u64>,
    /// Calls before those that are timed.
    pub(super) warmup: u32,
    /// Calls that are timed; left out, rank 0 chooses for each size.
    pub(super) iterations: Option<u32>,
    /// Whether results are compared with what they should be.
    pub(super) check: bool,
    /// How long a call may wait for other ranks.
    pub(super) deadline: Duration,
    /// The core of each rank, if they are bound.
    pub(super) cores: Option<Vec<usize>>,
    /// Whether each rank has a core of its own, so that it may keep it while it waits.
    pub(super) spin: bool,
}

impl Job {
    /// Elements of the largest size.
    pub(super) fn count_max(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or_default()
    }

    /// The plan, if all sizes run the same: name, lanes of a rank, hash.
    pub(super) fn same_plan(&self) -> Option<(&str, usize, String)> {
        let plan = self.plan.as_ref()?;
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max()?;
        Some((&plan.name, lanes, format!("{:016x}", self.plan_hash?)))
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
    /// Rank 0 begins with a size; for showing progress.
    Started { count: usize },
    /// A size is done.
    Measured(RankRow),
    /// The rank gives up.
    Failed {
        error: String,
        /// Because another rank gave up first, which will say more.
        secondary: bool,
    },
}

/// What one rank measured at one size. A way of passing buffers that the plan does not claim is left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankRow {
    pub(super) count: usize,
    /// The name of the plan that ran.
    pub(super) plan: String,
    pub(super) out_of_place: Option<Timing>,
    pub(super) in_place: Option<Timing>,
}

/// A timed loop of calls on one rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Timing {
    pub(super) iterations: u32,
    /// Of the whole loop.
    pub(super) seconds: f64,
    /// Elements that were not what they should be, before and after the loop; unset if nobody looked.
    pub(super) wrong: Option<u64>,
}
