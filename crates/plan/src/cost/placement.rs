//! The placement of ranks on a fabric, for the cost model: layout, bounds, and a model of a few islands.
//!
//! The load that a plan puts on the links is feasible to count for a thousand ranks, but not for a hundred thousand. Clusters
//! are regular, so loads are counted on the first islands only, while hops and bytes are those of all ranks. A few islands do
//! not show oversubscription of the network; the [bounds](Bounds) do, and no prediction is faster than them.

use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, Paths};

use super::carried::{Carried, ONE, millionths, part_of};
use super::constants::{Constants, Name};
use super::hops::Hops;
use super::loads::Loads;
use crate::plan::Protocol;
use crate::wiring::{self, Bounds};
use crate::{Algorithm, Collective, Layout, Work};

/// Islands of the model: more than two, so that trees have inner nodes.
const MODEL_ISLANDS_MAX: usize = 4;
/// Ranks of the model, unless two islands have more.
const MODEL_RANKS_MAX: usize = 64;

/// The lowest compute capability, times ten, of Blackwell.
const SM_BLACKWELL: u32 = 100;
/// GPUs of an NVLink domain above which it is a rack.
const RACKS_ABOVE: usize = 8;

/// Ranks placed on a fabric: one per GPU, in order.
pub struct Placement<'f> {
    fabric: &'f Fabric,
    layout: Layout,
    bounds: Bounds,
    paths: Paths<'f>,
    model: Model,
    /// The island of each rank.
    island_of: Vec<u32>,
    carried: Carried,
    hops: Hops,
    parts: Parts,
}

/// The parts of the rates of links that protocols and calls get.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// LL and LL128 inside an island.
    ll: u64,
    ll128: u64,
    /// The most that LL and LL128 carry between islands.
    ll_across_bytes_per_second: u64,
    ll128_across_bytes_per_second: u64,
    /// Sums and multicasts by NVSwitches.
    nvls: u64,
    /// An all-to-all, inside and across.
    all_to_all: (u64, u64),
    /// Sums by switches of the network.
    collnet: u64,
    /// The part of filling a pipeline that is not hidden: inside, across, and through NVSwitches that add.
    fill: [u64; 3],
    fill_bytes: u64,
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
        Self::with(fabric, &Constants::shipped())
    }

    /// The same with other constants.
    pub fn with(fabric: &'f Fabric, constants: &Constants) -> Self {
        let (layout, bounds, paths) = wiring::digest(fabric);
        let model = Model::of(&layout);
        let island_of = layout.places().into_iter().map(|(island, _)| island).collect();
        let (carried, hops) = (Carried::of(constants, fabric), Hops::of(constants, fabric));
        let parts = Parts::of(constants, fabric, &layout);
        Self { fabric, layout, bounds, paths, model, island_of, carried, hops, parts }
    }

    /// The rates that collectives get of links.
    pub fn carried(&self) -> &Carried {
        &self.carried
    }

    /// The times of launches and hops.
    pub(super) fn hops(&self) -> &Hops {
        &self.hops
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

    /// Hops and bytes of an algorithm on the model, as its header has them.
    pub(super) fn work_of_model(&self, algorithm: Algorithm, modelled: &Collective) -> Option<Work> {
        let islands = &self.model.layout.islands;
        let largest = islands.iter().map(Vec::len).max().unwrap_or(0);
        algorithm.work(modelled, islands.len() as u32, largest as u32, 1 << 30)
    }

    /// The GPU of a rank of the model.
    pub(super) fn gpu_of_model(&self, rank: u32) -> DeviceId {
        self.fabric.gpus()[self.model.ranks[rank as usize] as usize]
    }

    /// Whether two GPUs can access each other's memory.
    pub(super) fn can_access(&self, one: DeviceId, other: DeviceId) -> bool {
        self.fabric.can_access(one, other, self.paths.path(one, other).kind)
    }

    /// The model's routes.
    pub(super) fn loads(&self, collective: &Collective) -> Loads<'_, 'f> {
        let gpus = self.model.ranks.iter().map(|rank| self.fabric.gpus()[*rank as usize]).collect();
        let islands = self.model.layout.places().into_iter().map(|(island, _)| island).collect();
        Loads::new(&self.paths, &self.carried, is_one_way(collective), gpus, islands)
    }

    /// The routes of all ranks.
    pub(super) fn loads_of_all(&self, collective: &Collective) -> Loads<'_, 'f> {
        let (gpus, islands) = (self.fabric.gpus().to_vec(), self.island_of.clone());
        Loads::new(&self.paths, &self.carried, is_one_way(collective), gpus, islands)
    }

    /// The part of their links' rate that sums and multicasts by NVSwitches get, in millionths.
    pub(super) fn nvls_part(&self) -> u64 {
        self.parts.nvls
    }

    /// The part of their links' rate that sums by switches of the network get.
    pub(super) fn collnet_part(&self) -> u64 {
        self.parts.collnet
    }

    /// The part of the rate of links inside an island that a protocol's payload gets in a collective.
    pub(super) fn part_inside(&self, protocol: Option<Protocol>, collective: &Collective) -> u64 {
        let part = match protocol {
            Some(Protocol::Ll) => self.parts.ll,
            Some(Protocol::Ll128) => self.parts.ll128,
            Some(Protocol::Simple) | None => ONE,
        };
        match collective {
            Collective::AllToAll => part_of(part, self.parts.all_to_all.0),
            _ => part,
        }
    }

    /// The same between islands, where `bytes_per_second` is what the links of an island carry.
    pub(super) fn part_across(
        &self,
        protocol: Option<Protocol>,
        collective: &Collective,
        bytes_per_second: u64,
    ) -> u64 {
        let most = |payload: u64, lanes: u64| {
            let filled = u128::from(lanes) * u128::from(ONE) / u128::from(bytes_per_second.max(1));
            payload.min(u64::try_from(filled).unwrap_or(ONE))
        };
        let part = match protocol {
            // Half of LL's bytes are flags.
            Some(Protocol::Ll) => most(ONE / 2, self.parts.ll_across_bytes_per_second),
            Some(Protocol::Ll128) => most(ONE, self.parts.ll128_across_bytes_per_second),
            Some(Protocol::Simple) | None => ONE,
        };
        match collective {
            Collective::AllToAll => part_of(part, self.parts.all_to_all.1),
            _ => part,
        }
    }

    /// The part of the time to fill a pipeline that is not hidden. Accesses to the memory of peers form no pipeline.
    pub(super) fn fill(&self, in_switch: bool, is_across: bool, protocol: Option<Protocol>) -> u64 {
        match protocol {
            _ if in_switch => self.parts.fill[2],
            None => 0,
            Some(_) => self.parts.fill[usize::from(is_across)],
        }
    }

    /// The bytes from which steps are as long as buffers and grow no further.
    pub(super) fn fill_bytes(&self) -> u64 {
        self.parts.fill_bytes
    }

    /// How long the steps of a call are, relative to steps that grow with any size.
    pub fn step_growth(&self, bytes: u64) -> f64 {
        (self.fill_bytes() as f64 / bytes.max(1) as f64).min(1.0)
    }
}

/// Whether data flows in one direction only: to a root, or from it.
pub(super) fn is_one_way(collective: &Collective) -> bool {
    collective.root().is_some()
}

impl Parts {
    fn of(constants: &Constants, fabric: &Fabric, layout: &Layout) -> Self {
        let island = layout.islands.iter().map(Vec::len).max().unwrap_or(1);
        let gpu = fabric.gpus().first().map(|gpu| &fabric.device(*gpu).kind);
        let sm = match gpu {
            Some(DeviceKind::Gpu(gpu)) => gpu.sm.unwrap_or(0),
            _ => 0,
        };
        let networks = || {
            fabric.links().iter().filter_map(|link| match fabric.spec(link).kind {
                LinkKind::Network { network, .. } => Some(network),
                _ => None,
            })
        };
        let is_slingshot = networks().any(|network| network == Network::Slingshot);
        let copies = |network| {
            matches!(
                network,
                Network::Slingshot | Network::Ethernet | Network::Unknown | Network::TcpX | Network::TcpXo
            )
        };
        let (ll_lane, nics) = (
            if networks().any(copies) { Name::LlLaneSlowGBps } else { Name::LlLaneGBps },
            fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).count()
                / layout.islands.len().max(1),
        );
        let lanes = nics.clamp(2, island.max(2)) as f64;
        let is_pcie = !fabric.links().iter().any(|link| fabric.spec(link).kind.is_gpu_fabric());
        let nvls = match sm {
            SM_BLACKWELL.. if island > RACKS_ABOVE => {
                constants[Name::NvlsRack] / constants[Name::NvlinkBlackwell]
            }
            SM_BLACKWELL.. => constants[Name::NvlsBlackwell] / constants[Name::NvlinkBlackwell],
            _ => constants[Name::NvlsHopper] / constants[Name::NvlinkHopper],
        };
        let messages = millionths(constants[Name::MessagesPart]);
        let across = if is_slingshot { millionths(constants[Name::AllToAllSlingshot]) } else { messages };
        Self {
            ll: millionths(constants[Name::LlPart]),
            ll128: millionths(constants[Name::Ll128Part]),
            ll_across_bytes_per_second: (lanes * constants[ll_lane] * 1e9) as u64,
            ll128_across_bytes_per_second: (lanes * constants[Name::Ll128LaneGBps] * 1e9) as u64,
            nvls: millionths(nvls.min(1.0)),
            // PCIe slots lose nothing more.
            all_to_all: (if is_pcie { ONE } else { messages }, across),
            collnet: millionths((constants[Name::CollnetDirect] / constants[Name::NetworkRdma]).min(1.0)),
            fill: [Name::Fill, Name::FillRing, Name::FillNvls].map(|name| millionths(constants[name])),
            fill_bytes: constants[Name::FillBytes] as u64,
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
