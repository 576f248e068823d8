//! Bisection bandwidth: the bandwidth between two halves of the GPUs, for the worst way to halve them.
//!
//! Up to 16 GPUs every halving is tried, so the result is exact. Above that, the result is a pair of bounds:
//! - *upper*: the smallest of three obvious cuts (in order, interleaved, island by island); the minimum is no larger;
//! - *lower*: if all GPUs can send `f` to a hub at once, and the hub `f` to each of them, then any half can send `n/2 * f`
//!   to the other through the hub. Several hubs add up as long as their flows fit side by side.
//!
//! Often the bounds are equal, and the result is exact without trying every halving. Where one GPU fabric connects all
//! GPUs, only its links count, not the PCIe slots. Only links limit the flow: every device except a GPU forwards
//! without a limit.

use crate::device::{DeviceKind, Tier};
use crate::fabric::Fabric;
use crate::id::DeviceId;
use crate::link::{Link, Measure};
use crate::maxflow::FlowGraph;
use crate::paths::Paths;
use crate::rate::{Domain, OneWay, Rate};

/// Up to this many GPUs every halving is tried.
const EXACT_GPUS_MAX: usize = 16;

/// The bisection bandwidth of a fabric, or bounds on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bisection {
    /// It is at least this.
    pub lower: Rate<Domain, OneWay>,
    /// It is at most this.
    pub upper: Rate<Domain, OneWay>,
}

impl Bisection {
    /// True when the bounds are equal within one millionth.
    pub fn is_exact(self) -> bool {
        let (lower, upper) = (self.lower.bytes_per_second(), self.upper.bytes_per_second());
        upper.saturating_sub(lower) <= upper / 1_000_000
    }
}

/// The bisection bandwidth of all GPUs of a fabric; none for fewer than two GPUs or more than 3,000,000 links.
pub fn bisection(paths: &Paths<'_>, measure: Measure) -> Option<Bisection> {
    let (mut network, bounds) = bounded(paths, measure)?;
    if bounds.is_exact() || paths.fabric().gpus().len() > EXACT_GPUS_MAX {
        return Some(bounds);
    }
    let exact = halvings(paths.fabric().gpus().len()).map(|half| network.flow(&half)).min()?;
    Some(Bisection { lower: Rate::from_bytes(exact), upper: Rate::from_bytes(exact) })
}

/// Bounds on the bisection bandwidth without trying every halving.
pub fn bounds(paths: &Paths<'_>, measure: Measure) -> Option<Bisection> {
    bounded(paths, measure).map(|(_, bounds)| bounds)
}

fn bounded(paths: &Paths<'_>, measure: Measure) -> Option<(Halves, Bisection)> {
    let fabric = paths.fabric();
    if fabric.gpus().len() < 2 || fabric.links().len() > LINKS_MAX {
        return None;
    }
    let over_gpu_fabric = crate::domains::gpu_domains(fabric).len() == 1;
    let wanted = |link: &Link| !over_gpu_fabric || fabric.spec(link).kind.is_gpu_fabric();
    let mut network = Halves::of(fabric, measure, wanted);
    let upper = natural_cuts(paths).into_iter().map(|half| network.flow(&half)).min()?;
    let lower = if upper > 0 { network.hub_bound(&hubs(fabric, over_gpu_fabric)) } else { 0 };
    Some((network, Bisection { lower: Rate::from_bytes(lower), upper: Rate::from_bytes(upper) }))
}

/// Above this many links the flows take too long.
const LINKS_MAX: usize = 3_000_000;
/// Hubs that are tried: each costs a flow, and further ones hardly raise the bound.
const HUBS_MAX: usize = 64;

/// The halves behind the upper bound; `true` marks the sending half.
fn natural_cuts(paths: &Paths<'_>) -> Vec<Vec<bool>> {
    let gpus = paths.fabric().gpus();
    let count = gpus.len();
    let in_order = (0..count).map(|gpu| gpu < count / 2).collect();
    let interleaved = (0..count).map(|gpu| gpu % 2 == 1).collect();
    let island = |gpu: &DeviceId| paths.islands().place(*gpu).map_or(0, |place| place.island);
    let mut by_island: Vec<usize> = (0..count).collect();
    by_island.sort_by_key(|gpu| (island(&gpus[*gpu]) % 2, *gpu));
    let mut alternating = vec![false; count];
    by_island[..count / 2].iter().for_each(|gpu| alternating[*gpu] = true);
    vec![in_order, interleaved, alternating]
}

/// Every choice of half of `count` GPUs (rounded down); for even `count`, one of each pair of complements.
fn halvings(count: usize) -> impl Iterator<Item = Vec<bool>> {
    let half = (count / 2) as u32;
    let ends = if count.is_multiple_of(2) { 1_u32 << (count - 1) } else { 1 << count };
    (0..ends)
        .filter(move |set| set.count_ones() == half)
        .map(move |set| (0..count).map(|gpu| set >> gpu & 1 == 1).collect())
}

/// The fabric as a flow graph, with a source and a sink that can be connected to any GPU.
struct Halves {
    graph: FlowGraph,
    /// The fabric's links in the graph.
    links: Vec<usize>,
    from_source: Vec<usize>,
    to_sink: Vec<usize>,
    source: usize,
    sink: usize,
    /// For each link the equal one in the other direction, if every link has one.
    reverse: Option<Vec<usize>>,
}

/// More than any rate, with room to add.
const OPEN: u64 = u64::MAX / 4;

impl Halves {
    fn of(fabric: &Fabric, measure: Measure, wanted: impl Fn(&Link) -> bool) -> Self {
        // A GPU is two nodes, one that sends and one that receives, so that no flow passes through it.
        let devices = fabric.devices().len();
        let (source, sink) = (devices, devices + 1);
        let mut arrival: Vec<usize> = (0..devices).collect();
        for (number, gpu) in fabric.gpus().iter().enumerate() {
            arrival[gpu.index()] = devices + 2 + number;
        }
        let mut graph = FlowGraph::new(devices + 2 + fabric.gpus().len());
        let wires: Vec<&Link> = fabric.links().iter().filter(|link| wanted(link)).collect();
        let edge = |link: &&Link| {
            let rate = fabric.rate(link, measure).bytes_per_second().min(OPEN);
            graph.edge(link.source.index(), arrival[link.target.index()], rate)
        };
        let links = wires.iter().map(edge).collect();
        // Links are sorted, so a binary search finds the reverse link.
        let back = |link: &&Link| {
            let wanted = (link.target, link.source, link.spec);
            let found =
                wires.binary_search_by_key(&wanted, |other| (other.source, other.target, other.spec)).ok()?;
            (wires[found].count == link.count).then_some(found)
        };
        let reverse: Option<Vec<usize>> = wires.iter().map(back).collect();
        let mut edge_for_gpu =
            |gpu: &DeviceId| (graph.edge(source, gpu.index(), 0), graph.edge(arrival[gpu.index()], sink, 0));
        let (from_source, to_sink) = fabric.gpus().iter().map(&mut edge_for_gpu).unzip();
        Self { graph, links, reverse, from_source, to_sink, source, sink }
    }

    /// The flow from the marked GPUs to the others, in the worse direction.
    fn flow(&mut self, half: &[bool]) -> u64 {
        let there = self.flow_from(|gpu| half[gpu]);
        if self.reverse.is_some() { there } else { there.min(self.flow_from(|gpu| !half[gpu])) }
    }

    fn flow_from(&mut self, sends: impl Fn(usize) -> bool) -> u64 {
        for gpu in 0..self.from_source.len() {
            let (out, back) = if sends(gpu) { (OPEN, 0) } else { (0, OPEN) };
            self.graph.set_capacity(self.from_source[gpu], out);
            self.graph.set_capacity(self.to_sink[gpu], back);
        }
        self.graph.max_flow(self.source, self.sink)
    }

    /// The lower bound: half the GPUs times what each of them can send to the hubs while all send.
    fn hub_bound(&mut self, hubs: &[DeviceId]) -> u64 {
        let Some(reverse) = self.reverse.take() else { return 0 };
        let mut load = vec![0_u64; self.links.len()];
        let mut per_gpu = 0_u64;
        for hub in hubs.iter().take(HUBS_MAX) {
            per_gpu = per_gpu.saturating_add(self.share_at(*hub));
            for (link, back) in reverse.iter().enumerate() {
                let (there, here) = (self.graph.flow(self.links[link]), self.graph.flow(self.links[*back]));
                // Opposite flows cancel. The rest goes up over the link and down over its reverse.
                let net = there.saturating_sub(here);
                load[link] = load[link].saturating_add(net);
                load[*back] = load[*back].saturating_add(net);
            }
        }
        self.reverse = Some(reverse);
        // If the hubs' flows together overload a link, all of them are scaled down until they fit.
        let fit = |(load, link): (&u64, &usize)| self.graph.capacity(*link) as f64 / (*load).max(1) as f64;
        let scale = load.iter().zip(&self.links).map(fit).fold(1.0, f64::min);
        ((per_gpu as f64 * scale) as u64).saturating_mul(self.from_source.len() as u64 / 2)
    }

    /// The most that every GPU can send to one device while all send; leaves that flow in the graph.
    fn share_at(&mut self, hub: DeviceId) -> u64 {
        let count = self.from_source.len() as u64;
        self.to_sink.iter().for_each(|edge| self.graph.set_capacity(*edge, 0));
        let mut flow_at = |share: u64| {
            self.from_source.iter().for_each(|edge| self.graph.set_capacity(*edge, share));
            self.graph.max_flow(self.source, hub.index())
        };
        if flow_at(1) < count {
            // Clear the partial flow.
            flow_at(0);
            return 0;
        }
        // An upper limit, which regular wiring reaches.
        let (mut low, mut high) = (0, flow_at(OPEN / count) / count);
        if flow_at(high) == high * count {
            return high;
        }
        for _ in 0..SHARE_STEPS {
            let middle = low + (high - low) / 2;
            if flow_at(middle) == middle * count { low = middle } else { high = middle }
        }
        flow_at(low);
        low
    }
}

/// Steps of the binary search for a GPU's share: the error is one millionth.
const SHARE_STEPS: usize = 20;

/// The devices through which all GPUs can reach each other: the top switches, or else the CPUs.
fn hubs(fabric: &Fabric, over_gpu_fabric: bool) -> Vec<DeviceId> {
    let choose = |wanted: fn(&DeviceKind) -> bool| fabric.devices_where(wanted).collect::<Vec<_>>();
    if over_gpu_fabric {
        let switches = choose(|kind| matches!(kind, DeviceKind::NvSwitch { .. }));
        let touches_gpu = |id: &DeviceId| {
            fabric
                .links_from(*id)
                .iter()
                .any(|link| matches!(fabric.device(link.target).kind, DeviceKind::Gpu(_)))
        };
        let upper: Vec<DeviceId> = switches.iter().copied().filter(|id| !touches_gpu(id)).collect();
        return if upper.is_empty() { switches } else { upper };
    }
    let by_rank: [fn(&DeviceKind) -> bool; 3] = [
        |kind| matches!(kind, DeviceKind::NetSwitch(Tier::Spine)),
        |kind| matches!(kind, DeviceKind::NetSwitch(Tier::Leaf)),
        |kind| matches!(kind, DeviceKind::Numa(_)),
    ];
    by_rank.into_iter().map(choose).find(|found| !found.is_empty()).unwrap_or_default()
}
