//! Blocks of different lengths: the data of each step of a plan, relative to blocks of equal length.

use weftlink_plan::Partial;
use weftlink_plan::domain::chunks::{Origin, origins_of};

/// The data of each step, by lane and place in a tile, in chunks of equal blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Volumes {
    lanes: Vec<Vec<f64>>,
}

impl Volumes {
    /// The steps of a plan of all ranks, where `count(rank, block)` is the length of a block of a rank's input, relative to the mean. `None` if
    /// the plan deadlocks or stands for ranks without programs of their own.
    pub fn new(plan: &Partial, count: impl Fn(u32, u32) -> f64) -> Option<Self> {
        let checked = plan.well_formed();
        if plan.classes().representatives().len() != checked.ranks as usize {
            return None;
        }
        let per_block = checked.chunks_per_block().max(1);
        let length = |origin: &Option<Origin>| {
            origin.as_ref().map_or(0.0, |origin| count(origin.rank, origin.chunk / per_block))
        };
        let ranks = origins_of(checked)?;
        let lanes = ranks.iter().flatten().map(|steps| steps.iter().map(length).collect()).collect();
        Some(Self { lanes })
    }

    /// The data of a lane's step, counted over all tiles.
    pub(super) fn of(&self, lane: usize, step: u64) -> f64 {
        let steps = &self.lanes[lane];
        steps.get((step % steps.len().max(1) as u64) as usize).copied().unwrap_or(0.0)
    }
}
