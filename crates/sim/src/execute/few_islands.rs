//! Calls between many islands, simulated on few of them.
//!
//! Trees and chains have no symmetry, so that all their ranks would be simulated, and a rank of an all-to-all has messages for all
//! others. But more islands only make a tree higher, a chain or ring longer, and messages more: the time is that of few islands, and as
//! much more for each further level as the last one took. Where switches have less bandwidth up than
//! down, islands also share the cables above them, which few islands do not.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::{DeviceId, Fabric, Paths, SpecId};
use weftlink_plan::algorithms::Algorithm;
use weftlink_plan::cost::{Picoseconds, lines};
use weftlink_plan::{Layout, Partial};

use super::{ExecuteError, RANKS_WHOLE_MAX, is_regular};
use crate::engine::wires::Resource;
use crate::engine::{self, Conditions, CostModel, Job, Load, Outcome, is_net_switch};

/// Maximum number of islands that are all simulated.
const ISLANDS_ALL_MAX: u32 = 16;

/// Maximum number of ranks that are all simulated where islands differ or are disturbed.
const RANKS_IRREGULAR_MAX: u32 = RANKS_WHOLE_MAX / 4;

/// Maximum number of ranks below switches with less bandwidth up than down that are all simulated.
const RANKS_TAPERED_MAX: u32 = 4 * RANKS_WHOLE_MAX;

/// The same where one rank is simulated for all like it.
const RANKS_TAPERED_CLASSES_MAX: u32 = 16 * RANKS_WHOLE_MAX;

/// Two parts of a layout that stand for all of it.
pub(super) struct FewIslands {
    parts: [Part; 2],
    /// Levels that the larger part lacks, in units of those by which the parts differ.
    further: f64,
    /// All ranks.
    ranks: u32,
    /// Whether a rank has a block for each rank, so that calls on fewer ranks have fewer bytes.
    has_blocks: bool,
}

/// Some of the islands, with their ranks renumbered.
struct Part {
    layout: Layout,
    /// The GPU of each rank.
    gpus: Vec<u32>,
}

impl FewIslands {
    /// `None` if all islands are to be simulated.
    pub(super) fn of(
        paths: &Paths<'_>,
        layout: &Layout,
        algorithm: Algorithm,
        has_root: bool,
        conditions: &Conditions,
    ) -> Option<Self> {
        let (islands, ranks) = (layout.islands.len() as u32, layout.ranks());
        let has_blocks = match algorithm {
            Algorithm::Ring | Algorithm::Pairwise => true,
            Algorithm::Hierarchical => !has_root,
            _ => false,
        };
        let levels = |islands: u32| match algorithm {
            Algorithm::Tree => Some((islands - 1).ilog2() + 1),
            Algorithm::NvlsTree => Some(islands.ilog2()),
            Algorithm::Chain | Algorithm::Ring | Algorithm::Pairwise | Algorithm::Hierarchical => {
                Some(islands - 1)
            }
            _ => None,
        };
        layout.per_island().filter(|_| islands > ISLANDS_ALL_MAX && conditions.are_constant())?;
        // Islands that all exchange data share the cables above their switches.
        let shares_cables = matches!(algorithm, Algorithm::Pairwise | Algorithm::Hierarchical);
        let is_above = is_tapered(paths.fabric())
            || conditions
                .disturbances
                .iter()
                .any(|disturbance| disturbance.is_between_switches(paths.fabric()));
        let are_alike = is_regular(paths, layout) && conditions.is_empty();
        let most = match (are_alike, is_above) {
            (true, true) if shares_cables => RANKS_TAPERED_CLASSES_MAX,
            (true, true) => RANKS_TAPERED_MAX,
            (true, false) => 0,
            (false, true) => RANKS_WHOLE_MAX,
            (false, false) => RANKS_IRREGULAR_MAX,
        };
        if ranks <= most {
            return None;
        }
        let kinds = if are_alike { Vec::new() } else { one_of_each_kind(paths, layout, conditions) };
        // From this number on, the busiest island sends as much as with any number.
        let least = if algorithm == Algorithm::NvlsTree { 8 } else { 4 };
        let least = least.max(kinds.len() as u32);
        let counts = [least, 2 * least];
        let [few, more] = [levels(counts[0])?, levels(counts[1])?];
        (counts[1] < islands).then(|| Self {
            parts: counts.map(|count| Part::of(layout, count as usize, &kinds)),
            further: f64::from(levels(islands).unwrap_or(more) - more) / f64::from(more - few),
            ranks,
            has_blocks,
        })
    }

    /// Runs the plan of each part.
    pub(super) fn run(
        &self,
        plan: impl Fn(&Layout) -> Result<Partial, ExecuteError>,
        paths: &Paths<'_>,
        load: Load,
        costs: &dyn CostModel,
        conditions: &Conditions,
    ) -> Result<Outcome, ExecuteError> {
        let run = |Part { layout, gpus }: &Part| {
            let plan = plan(layout)?;
            let part = if self.has_blocks { gpus.len() as f64 / f64::from(self.ranks) } else { 1.0 };
            let load = Load { bytes: (load.bytes as f64 * part).ceil() as u64, ..load };
            let job =
                Job { plan: &plan, gpus: Some(gpus), load, volumes: None, costs, start: Picoseconds(0) };
            Ok::<_, ExecuteError>(engine::run_job(job, paths, conditions)?)
        };
        let [few, more] = [run(&self.parts[0])?, run(&self.parts[1])?];
        let each = more.time.0.saturating_sub(few.time.0) as f64;
        let all_per_part = f64::from(self.ranks) / self.parts[1].gpus.len() as f64;
        let times = if self.has_blocks { all_per_part } else { 1.0 };
        // All islands would use more of the cables between switches.
        let is_switch = |id| is_net_switch(paths.fabric(), id);
        let is_above = |resource: &Resource| is_switch(resource.link.0) && is_switch(resource.link.1);
        let busy = |resource: &Resource| resource.moved / resource.capacity;
        let below = more.resources.iter().filter(|resource| !is_above(resource));
        let busiest = below.map(busy).fold(0.0, f64::max);
        let known = more.resources.iter().filter(|resource| !is_above(resource) || busy(resource) > busiest);
        Ok(Outcome {
            resources: known.map(|known| Resource { moved: known.moved * times, ..known.clone() }).collect(),
            time: more.time + Picoseconds((each * self.further).round() as u64),
            steps: (more.steps as f64 * all_per_part * times) as u64,
            mode: more.mode,
        })
    }
}

impl Part {
    fn of(layout: &Layout, count: usize, kinds: &[usize]) -> Self {
        let chosen = chosen(layout, count, kinds);
        let mut gpus: Vec<u32> = chosen.iter().flat_map(|at| layout.islands[*at].iter().copied()).collect();
        gpus.sort_unstable();
        let number = |rank: &u32| gpus.binary_search(rank).ok().map(|at| at as u32);
        let kept = |order: &Vec<u32>| order.iter().filter_map(number).collect::<Vec<u32>>();
        let islands = chosen.iter().map(|at| kept(&layout.islands[*at])).collect();
        let rings = layout.rings.iter().map(kept).collect();
        Self { layout: Layout { islands, rings, trees: Vec::new(), ..layout.clone() }, gpus }
    }
}

/// One of each kind, the first islands and the last, at the ends of the network.
fn chosen(layout: &Layout, count: usize, kinds: &[usize]) -> BTreeSet<usize> {
    let all = layout.islands.len();
    let mut chosen: BTreeSet<usize> = kinds.iter().copied().collect();
    let ends = (0..all / 2).flat_map(|at| [at, all - 1 - at]);
    for at in ends {
        if chosen.len() < count {
            chosen.insert(at);
        }
    }
    chosen
}

/// The first island of each kind.
fn one_of_each_kind(paths: &Paths<'_>, layout: &Layout, conditions: &Conditions) -> Vec<usize> {
    let kind = kinds_of(paths, conditions);
    let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
    // A host may have several islands.
    let mut of_host: BTreeMap<u32, u32> = BTreeMap::new();
    for (at, island) in layout.islands.iter().enumerate() {
        let gpu = paths.fabric().gpus()[island[0] as usize];
        let host = paths.islands().place(gpu).map_or(u32::MAX, |place| place.island);
        let number = of_host.entry(host).or_insert(0);
        kinds.entry((*number, kind(island[0]))).or_insert(at);
        *number += 1;
    }
    kinds.into_values().collect()
}

/// What distinguishes the island of a rank from others: its shape, the cables of its NICs and of the switches above them, and what
/// disturbs any of these.
fn kinds_of<'p>(
    paths: &'p Paths<'_>,
    conditions: &'p Conditions,
) -> impl Fn(u32) -> (usize, BTreeSet<SpecId>, BTreeSet<usize>) + 'p {
    let fabric = paths.fabric();
    let is_switch = |id: DeviceId| is_net_switch(fabric, id);
    let mut cables: BTreeMap<DeviceId, BTreeSet<SpecId>> = BTreeMap::new();
    for link in fabric.links().iter().filter(|link| is_switch(link.source) || is_switch(link.target)) {
        cables.entry(link.source).or_default().insert(link.spec);
    }
    let mut disturbed: BTreeMap<DeviceId, BTreeSet<usize>> = BTreeMap::new();
    for (number, disturbance) in conditions.disturbances.iter().enumerate() {
        for device in disturbance.devices(fabric) {
            disturbed.entry(device).or_default().insert(number);
        }
    }
    move |rank| {
        let Some(place) = paths.islands().place(fabric.gpus()[rank as usize]) else {
            return Default::default();
        };
        let island = &paths.islands().all()[place.island as usize];
        let switches = island.members.iter().filter_map(|member| paths.switch_of(*member));
        let devices: Vec<DeviceId> = island.members.iter().copied().chain(switches).collect();
        let cables = devices.iter().filter_map(|id| cables.get(id)).flatten().copied();
        let disturbed = devices.iter().filter_map(|id| disturbed.get(id)).flatten().copied();
        (island.shape, cables.collect(), disturbed.collect())
    }
}

/// Whether a switch with cables to hosts has less bandwidth up than down.
fn is_tapered(fabric: &Fabric) -> bool {
    let is_switch = |id: DeviceId| is_net_switch(fabric, id);
    let mut rates: BTreeMap<DeviceId, [f64; 2]> = BTreeMap::new();
    for link in fabric.links().iter().filter(|link| is_switch(link.source)) {
        rates.entry(link.source).or_default()[usize::from(is_switch(link.target))] +=
            lines::line(fabric, link);
    }
    rates.into_values().any(|[down, up]| up > 0.0 && up < down * 0.999)
}
