//! A fabric as costs see it: its layout, its bounds, and a few islands that stand for all of them.
//!
//! What a plan gets of the wiring is found by laying it on links, which is work for a thousand ranks and too much for a
//! hundred thousand. Clusters repeat themselves, so plans are laid on the first islands only, and the counts of
//! hops and bytes are taken for all. Oversubscribed networks show where many islands meet: that is what the
//! [bounds](Bounds) are for, and no prediction beats them.

use weftlink_fabric::{DeviceKind, Fabric, Paths};

use super::constants;
use super::loads::Loads;
use crate::wiring::{self, Bounds};
use crate::{Collective, Layout};

/// Islands that stand for all: two have no middle, and a tree has.
const MODEL_ISLANDS_MAX: usize = 4;
/// As long as they have no more ranks than this together; two islands always fit.
const MODEL_RANKS_MAX: usize = 64;

/// A fabric, digested.
pub struct Ground<'f> {
    fabric: &'f Fabric,
    layout: Layout,
    bounds: Bounds,
    paths: Paths<'f>,
    model: Model,
    /// The island of each rank.
    island_of: Vec<u32>,
}

/// Some of the islands as a layout of their own.
struct Model {
    layout: Layout,
    /// The ranks of the fabric that the model's ranks are, in rising order.
    ranks: Vec<u32>,
}

impl<'f> Ground<'f> {
    /// Looks at a fabric, whose ranks are its GPUs in order.
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

    /// How the ranks lie on it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How fast a collective can be on it at all.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// How many islands there are, and the ranks of the largest: what the counts of hops and bytes are for.
    pub fn grid(&self) -> (u32, u32) {
        let largest = self.layout.islands.iter().map(Vec::len).max().unwrap_or(0);
        (self.layout.islands.len() as u32, largest as u32)
    }

    /// The island of each rank.
    pub(super) fn island_of(&self) -> &[u32] {
        &self.island_of
    }

    /// The ranks to look for the busiest of: those of the root's island, or one, which was the busiest of the model's
    /// first island.
    pub(super) fn busiest(&self, collective: &Collective, of_model: u32) -> Vec<u32> {
        match collective.root().and_then(|root| self.island_of.get(root as usize)) {
            Some(island) => self.layout.islands[*island as usize].clone(),
            None => self.model.ranks.get(of_model as usize).copied().into_iter().collect(),
        }
    }

    /// The islands that stand for all.
    pub(super) fn model(&self) -> &Layout {
        &self.model.layout
    }

    /// A collective as the model has it: roots are its first rank, and what names ranks names those that it has.
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

    /// The model's routes.
    pub(super) fn loads(&self) -> Loads<'_, 'f> {
        let gpus = self.model.ranks.iter().map(|rank| self.fabric.gpus()[*rank as usize]).collect();
        let islands = self.model.layout.places().into_iter().map(|(island, _)| island).collect();
        Loads::new(&self.paths, gpus, islands)
    }

    /// What sums and multicasts of NVSwitches get of a port, in thousandths.
    pub(super) fn nvls_thousandths(&self) -> u64 {
        match self.compute_capability() >= constants::SM_BLACKWELL {
            true => constants::NVLS_THOUSANDTHS_BLACKWELL,
            false => constants::NVLS_THOUSANDTHS_HOPPER,
        }
    }

    /// The most payload per second that LL gets through.
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

    /// Of the first GPU, times ten; 0 for other makers' and where the description does not say.
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
            // A tree over more ranks is no tree over fewer.
            trees: if is_all { layout.trees.clone() } else { Vec::new() },
            ..layout.clone()
        };
        Self { layout, ranks }
    }
}
