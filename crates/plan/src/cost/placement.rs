//! The placement of ranks on a fabric, for the cost model: layout, bounds, and a model of a few islands.
//!
//! The load that a plan puts on the links is feasible to count for a thousand ranks, but not for a hundred thousand. Clusters
//! are regular, so loads are counted on the first islands only, while hops and bytes are those of all ranks. A few islands do
//! not show oversubscription of the network; the [bounds](Bounds) do, and no prediction is faster than them.

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Paths};

use super::constants;
use super::loads::Loads;
use crate::wiring::{self, Bounds};
use crate::{Collective, Layout};

/// Islands of the model: more than two, so that trees have inner nodes.
const MODEL_ISLANDS_MAX: usize = 4;
/// Ranks of the model, unless two islands have more.
const MODEL_RANKS_MAX: usize = 64;

/// Ranks placed on a fabric: one per GPU, in order.
pub struct Placement<'f> {
    fabric: &'f Fabric,
    layout: Layout,
    bounds: Bounds,
    paths: Paths<'f>,
    model: Model,
    /// The island of each rank.
    island_of: Vec<u32>,
}

/// The first islands as a layout of their own.
struct Model {
    layout: Layout,
    /// For each of the model's ranks, the rank of the fabric, in rising order.
    ranks: Vec<u32>,
}

impl<'f> Placement<'f> {
    /// Places ranks on the GPUs of a fabric, in order.
    pub fn of(fabric: &'f Fabric) -> Self {
        let (layout, bounds, paths) = wiring::digest(fabric);
        let model = Model::of(&layout);
        let island_of = layout.places().into_iter().map(|(island, _)| island).collect();
        Self { fabric, layout, bounds, paths, model, island_of }
    }

    /// The fabric.
    pub fn fabric(&self) -> &'f Fabric {
        self.fabric
    }

    /// The layout of the ranks.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The upper bounds on the speed of collectives.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The number of islands, and the ranks of the largest: the arguments of the formulas for hops and bytes.
    pub fn grid(&self) -> (u32, u32) {
        let largest = self.layout.islands.iter().map(Vec::len).max().unwrap_or(0);
        (self.layout.islands.len() as u32, largest as u32)
    }

    /// The island of each rank.
    pub(super) fn island_of(&self) -> &[u32] {
        &self.island_of
    }

    /// The ranks among which the busiest is: those of the root's island or, without a root, the rank that was the busiest of
    /// the model's first island.
    pub(super) fn busiest(&self, collective: &Collective, of_model: u32) -> Vec<u32> {
        match collective.root().and_then(|root| self.island_of.get(root as usize)) {
            Some(island) => self.layout.islands[*island as usize].clone(),
            None => self.model.ranks.get(of_model as usize).copied().into_iter().collect(),
        }
    }

    /// The layout of the model.
    pub(super) fn model(&self) -> &Layout {
        &self.model.layout
    }

    /// A collective on the model: roots become its first rank, and messages of ranks outside the model are dropped.
    pub(super) fn modelled(&self, collective: &Collective) -> Collective {
        let ranks = self.model.layout.ranks();
        if ranks == self.layout.ranks() {
            return collective.clone();
        }
        let place = |rank: &u32| self.model.ranks.binary_search(rank).ok().map(|place| place as u32);
        match collective {
            Collective::Reduce { .. } => Collective::Reduce { root: 0 },
            Collective::Broadcast { .. } => Collective::Broadcast { root: 0 },
            Collective::Gather { .. } => Collective::Gather { root: 0 },
            Collective::Scatter { .. } => Collective::Scatter { root: 0 },
            Collective::Neighbours { .. } => Collective::Neighbours { torus: [1, 1, ranks] },
            Collective::SendReceive { messages } => {
                let kept = messages.iter().filter_map(|(from, to)| Some((place(from)?, place(to)?)));
                Collective::SendReceive { messages: kept.collect() }
            }
            same => same.clone(),
        }
    }

    /// The GPU of a rank of the model.
    pub(super) fn gpu_of_model(&self, rank: u32) -> DeviceId {
        self.fabric.gpus()[self.model.ranks[rank as usize] as usize]
    }

    /// Whether two ranks of the model can access each other's memory.
    pub(super) fn can_access(&self, one: u32, other: u32) -> bool {
        let (one, other) = (self.gpu_of_model(one), self.gpu_of_model(other));
        self.fabric.can_access(one, other, self.paths.path(one, other).kind)
    }

    /// The model's routes.
    pub(super) fn loads(&self) -> Loads<'_, 'f> {
        let gpus = self.model.ranks.iter().map(|rank| self.fabric.gpus()[*rank as usize]).collect();
        let islands = self.model.layout.places().into_iter().map(|(island, _)| island).collect();
        Loads::new(&self.paths, gpus, islands)
    }

    /// The efficiency of sums and multicasts by NVSwitches, in thousandths of a port's rate.
    pub(super) fn nvls_thousandths(&self) -> u64 {
        match self.compute_capability() >= constants::SM_BLACKWELL {
            true => constants::NVLS_THOUSANDTHS_BLACKWELL,
            false => constants::NVLS_THOUSANDTHS_HOPPER,
        }
    }

    /// The maximum rate of LL's payload.
    pub(super) fn ll_bytes_per_second(&self) -> u64 {
        let sm = self.compute_capability();
        match self.layout.islands.len() {
            0 | 1 => {
                constants::LL_BYTES_PER_SECOND.iter().find(|(up_to, _)| sm <= *up_to).map_or(0, |row| row.1)
            }
            2 => constants::LL_BYTES_PER_SECOND_ACROSS[0],
            _ => constants::LL_BYTES_PER_SECOND_ACROSS[1],
        }
    }

    /// The first GPU's compute capability, times ten; 0 for other vendors' GPUs or if it is unknown.
    fn compute_capability(&self) -> u32 {
        let gpu = self.fabric.gpus().first().map(|gpu| &self.fabric.device(*gpu).kind);
        match gpu {
            Some(DeviceKind::Gpu(gpu)) => gpu.sm.unwrap_or(0),
            _ => 0,
        }
    }
}

impl Model {
    fn of(layout: &Layout) -> Self {
        let largest = layout.islands.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let count = (MODEL_RANKS_MAX / largest).clamp(2, MODEL_ISLANDS_MAX).min(layout.islands.len());
        let mut ranks = layout.islands[..count].concat();
        ranks.sort_unstable();
        let place = |rank: &u32| ranks.binary_search(rank).ok().map(|place| place as u32);
        let places = |all: &Vec<u32>| all.iter().filter_map(place).collect::<Vec<u32>>();
        let is_all = count == layout.islands.len();
        let layout = Layout {
            islands: layout.islands[..count].iter().map(places).collect(),
            rings: layout.rings.iter().map(places).collect(),
            // A tree over more ranks is not a tree over fewer.
            trees: if is_all { layout.trees.clone() } else { Vec::new() },
            ..layout.clone()
        };
        Self { layout, ranks }
    }
}
