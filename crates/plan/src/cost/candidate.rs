//! Candidates: the algorithms and protocols that can run a collective on a fabric, with all costs that do not depend on the bytes.

use std::ops::Deref;

use weftlink_fabric::DeviceId;

use super::carried::{ONE, part_of};
use super::form::{Flow, Form, Posting};
use super::hops::Hop;
use super::loads::{Loads, Medium, Side, Sides, Unconnected};
use super::usage::{Usage, messages_across};
use super::{Picoseconds, Placement};
use crate::algorithms::{Algorithm, Impossible};
use crate::domain::hops::hops;
use crate::plan::{Protocol, Switch};
use crate::{Collective, Layout, Plan, Recipe, Work};

/// The rate of one thread block through its GPU's links; see [`RINGS_ON_A_SWITCH`](crate::wiring::RINGS_ON_A_SWITCH).
const BLOCK_BYTES_PER_SECOND: u64 = 25_000_000_000;
/// The maximum number of thread blocks of a call: NCCL's `MAXCHANNELS`.
const BLOCKS_MAX: u32 = 64;

/// The bytes that justify one more thread block: 512 threads times NCCL's thread thresholds, 8 bytes with LL and LL128, 64
/// with Simple (`src/enqueue.cc`).
const fn block_bytes(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Ll | Protocol::Ll128 => 512 * 8,
        Protocol::Simple => 512 * 64,
    }
}

/// An algorithm and a protocol, with their costs on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The costs of its plan.
    pub terms: Terms,
}

impl Deref for Candidate {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// The costs of a plan on a fabric, as far as they do not depend on the bytes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The protocol of its messages; nothing if it sends none and uses peer memory or switches.
    pub protocol: Option<Protocol>,
    /// Lanes of a rank, at least one thread block each.
    pub lanes: u32,
    /// The time to start and to end.
    pub launch: Picoseconds,
    /// A hop inside an island.
    pub hop_inside: Hop,
    /// A hop between islands.
    pub hop_across: Hop,
    /// Messages that a lane sends into the network one after the other.
    pub messages_across: u64,
    /// The time to send one of them.
    pub message_across: Picoseconds,
    /// The rate of the busiest rank's data inside its island; nothing if no data moves there.
    pub inside_bytes_per_second: Option<u64>,
    /// The rate of the busiest island's data to the others.
    pub across_bytes_per_second: Option<u64>,
    /// The rates of the slowest lane's data inside and across, one after the other.
    pub serial_bytes_per_second: (Option<u64>, Option<u64>),
    /// The rates of the links inside and across, flags included.
    pub links_bytes_per_second: (Option<u64>, Option<u64>),
    /// The parts of the rates of links inside and across that data gets, in millionths: the rest is flags, or limited by lanes.
    pub parts: (u64, u64),
    /// The part of their rate that links to switches get which add or copy, in millionths.
    pub switch_part: u64,
    /// The part, in millionths, of the buffer that a rank moves in a step of all its lanes.
    pub message_part: u64,
    /// The part of the time to fill a pipeline of optimal steps that is not hidden, in millionths.
    pub fill: u64,
    /// How many times longer than a rank's own steps the way of a chunk is, in millionths, where whole buffers pass from rank to
    /// rank; nothing where each step moves another part. Relative to hops, it is independent of the number of ranks.
    pub path_per_hop: Option<u64>,
    /// Hops inside and across by which the plan differs from its header, whose formulas are for islands with a switch: without one, trees
    /// are chains or follow the links.
    pub more_hops: (i64, i64),
    /// Whether ranks wait for others to enter the call before they access their memory.
    pub enters: bool,
    /// Whether a lane sends to one rank only, as along a ring: its chunks overtake nothing and wait for the slowest link.
    pub one_target: bool,
    /// The switches that compute for it.
    pub switch: Option<Switch>,
    /// The links between islands.
    pub between: Medium,
    /// The upper bound for algorithms of its kind, in bytes of the call.
    pub bound_bytes_per_second: Option<u64>,
    /// For collectives made of messages: the parts of the call's bytes that the busiest rank moves inside its island, those that the
    /// busiest island moves to others, and the number of parts.
    pub counted: Option<(u64, u64, u64)>,
}

/// The candidates for a collective on a fabric, in the order of algorithms and protocols, and why the other algorithms are
/// impossible. With `uneven`, blocks may have different lengths.
pub fn candidates(
    collective: &Collective,
    uneven: bool,
    placement: &Placement<'_>,
) -> (Vec<Candidate>, Vec<(Algorithm, Impossible)>) {
    let mut loads = placement.loads(collective);
    let (mut possible, mut impossible) = (Vec::new(), Vec::new());
    for algorithm in Algorithm::ALL {
        match of(algorithm, collective, uneven, placement, &mut loads) {
            Ok(candidates) => possible.extend(candidates),
            Err(why) => impossible.push((algorithm, why)),
        }
    }
    (possible, impossible)
}

fn of(
    algorithm: Algorithm,
    collective: &Collective,
    uneven: bool,
    placement: &Placement<'_>,
    loads: &mut Loads<'_, '_>,
) -> Result<Vec<Candidate>, Impossible> {
    // A recipe may be possible on the model but not on the whole layout.
    let whole = algorithm.recipe(collective, placement.layout())?;
    let outline = whole.outline();
    if uneven && !outline.uneven {
        return Err(Impossible("its plan needs blocks of equal length".to_owned()));
    }
    let model = algorithm.recipe(&placement.modelled(collective), placement.model())?;
    let usage = Usage::of(&model);
    let sides = sides(&usage, loads, placement.model(), placement, |rank| placement.gpu_of_model(rank))?;
    let between = sides.across.map_or(Medium::Network, |side| side.medium);
    let messages = match between {
        Medium::Network => {
            let islands: Vec<u32> =
                placement.model().places().into_iter().map(|(island, _)| island).collect();
            // In a plan that only waits, a flag is a message of its own.
            let flags = usage.only_waits();
            let (_, busiest) = messages_across(&model, &placement.model().islands[0], &islands, flags);
            messages_across(&whole, &placement.busiest(collective, busiest), placement.island_of(), flags).0
        }
        Medium::GpuLinks | Medium::Pcie => 0,
    };
    let more_hops =
        if placement.layout().switched { (0, 0) } else { more_hops(algorithm, &model, placement) };
    let path_per_hop = path_per_hop(algorithm, &usage, placement, collective, more_hops);
    let candidate = |protocol: Option<Protocol>| Candidate {
        algorithm,
        terms: Terms {
            messages_across: messages,
            path_per_hop,
            more_hops,
            ..terms(protocol, outline, &usage, &sides, placement)
        },
    };
    Ok(protocols(algorithm, outline, &sides).into_iter().map(candidate).collect())
}

/// The rates of a plan's data, if the fabric lets its ranks reach each other: `layout` has its ranks, and `gpu` the GPU of each.
pub(super) fn sides(
    usage: &Usage,
    loads: &mut Loads<'_, '_>,
    layout: &Layout,
    placement: &Placement<'_>,
    gpu: impl Fn(u32) -> DeviceId,
) -> Result<Sides, Impossible> {
    let sides = loads.sides(usage).map_err(|Unconnected(a, b)| {
        let host = |gpu: DeviceId| placement.fabric().device(gpu).host;
        let next = match host(a) == host(b) {
            true => "describe the links, or leave out one of the GPUs",
            false => "add NICs to the spec, as in `2x hgx-h100 + 8x ndr`",
        };
        let (a, b) = (placement.fabric().device_name(a), placement.fabric().device_name(b));
        Impossible(format!("no links of known speed connect {a} to {b}; {next}"))
    })?;
    let between = sides.across.map_or(Medium::Network, |side| side.medium);
    if between == Medium::Network && usage.reaches_across(layout) {
        let why = "ranks access each other's memory, which is impossible over the network";
        return Err(Impossible(why.to_owned()));
    }
    if let Some((a, b)) = usage.peers().find(|(a, b)| !placement.can_access(gpu(*a), gpu(*b))) {
        let name = |rank: u32| placement.fabric().device_name(gpu(rank));
        return Err(Impossible(format!(
            "ranks access each other's memory, and {} cannot access that of {} over PCIe: the driver of GeForce cards refuses it, or it is turned off",
            name(b),
            name(a)
        )));
    }
    Ok(sides)
}

/// The protocols that a plan can run with. A plan that was written for LL supports no other.
fn protocols(algorithm: Algorithm, outline: &Plan, sides: &Sides) -> Vec<Option<Protocol>> {
    if outline.channels.is_empty() {
        return vec![None];
    }
    if outline.channels.iter().all(|channel| channel.protocol == Protocol::Ll) {
        return vec![Some(Protocol::Ll)];
    }
    // Sums by switches use chunks too large for flags in every line.
    if !outline.groups.is_empty() {
        return vec![Some(Protocol::Simple)];
    }
    // Only NVLink keeps 128 bytes together; a NIC stages whole lines and flags.
    let keeps_lines = sides.inside.is_none_or(|side| side.is_nvlink);
    let ll = (algorithm != Algorithm::Exchange).then_some(Protocol::Ll);
    let ll128 = keeps_lines.then_some(Protocol::Ll128);
    ll.into_iter().chain(ll128).chain([Protocol::Simple]).map(Some).collect()
}

/// The costs of a plan without those of its messages into the network, for hops without more than its header has, in one tile.
pub(super) fn terms(
    protocol: Option<Protocol>,
    outline: &Plan,
    usage: &Usage,
    sides: &Sides,
    placement: &Placement<'_>,
) -> Terms {
    let sums = |switch: Switch| outline.groups.iter().any(|group| group.switch == switch);
    let times = placement.hops();
    let (in_switch, in_network) = (sums(Switch::Nvswitch), sums(Switch::Network));
    let hop_inside = match protocol {
        _ if in_switch => times.nvls(placement.grid().1),
        _ if usage.reaches_in => times.peer(),
        Some(protocol) => times.inside(protocol),
        None => times.flag(),
    };
    let between = sides.across.map_or(Medium::Network, |side| side.medium);
    let is_networked = sides.across.is_some() && between == Medium::Network;
    let hop_across = match protocol {
        // Islands of a host are as near as the ranks of one.
        _ if between != Medium::Network => hop_inside,
        _ if in_switch || in_network => times.across_switched(),
        Some(protocol) => times.across(protocol),
        None => times.flag_across(),
    };
    let rate = |side: Option<Side>| side.and_then(|side| side.bytes_per_second);
    let switched =
        |rate: u64, is_switched: bool, part: u64| if is_switched { part_of(rate, part) } else { rate };
    let inside = rate(sides.inside).map(|rate| switched(rate, in_switch, placement.nvls_part()));
    let across = rate(sides.across).map(|rate| switched(rate, in_network, placement.collnet_part()));
    let collective = &outline.collective;
    let parts = (
        placement.part_inside(protocol, collective),
        match across.filter(|_| is_networked) {
            Some(rate) => placement.part_across(protocol, collective, rate),
            None => placement.part_inside(protocol, collective),
        },
    );
    let serial = |side: Option<Side>, part| {
        side.and_then(|side| side.serial_bytes_per_second).map(|rate| part_of(rate, part))
    };
    let bound = match outline.groups.is_empty() {
        true => placement.bounds().bound_without_switches(collective),
        false => placement.bounds().bound(collective),
    };
    let chunks = outline.chunks.input.max(outline.chunks.output).max(1);
    Terms {
        protocol,
        lanes: usage.lanes,
        launch: times.launch(protocol, is_networked),
        hop_inside,
        hop_across,
        messages_across: 0,
        message_across: times.message_across(),
        inside_bytes_per_second: inside.map(|rate| part_of(rate, parts.0)),
        across_bytes_per_second: across.map(|rate| part_of(rate, parts.1)),
        serial_bytes_per_second: (serial(sides.inside, parts.0), serial(sides.across, parts.1)),
        links_bytes_per_second: (inside, across),
        parts,
        switch_part: if in_switch { placement.nvls_part() } else { ONE },
        message_part: u64::from(usage.lanes.clamp(1, chunks)) * ONE / u64::from(chunks),
        fill: placement.fill(in_switch, is_networked, protocol),
        path_per_hop: None,
        more_hops: (0, 0),
        enters: usage.enters,
        one_target: usage.one_target && protocol.is_some(),
        switch: outline.groups.iter().map(|group| group.switch).max(),
        between,
        bound_bytes_per_second: bound.map(|bound| bound.bytes_per_second),
        counted: message_blocks(collective, placement),
    }
}

/// See [`Terms::more_hops`].
fn more_hops(algorithm: Algorithm, model: &Recipe<'_>, placement: &Placement<'_>) -> (i64, i64) {
    let ranks = model.outline().ranks;
    let islands: Vec<u32> = placement.model().places().into_iter().map(|(island, _)| island).collect();
    let plan = model.partial(ranks);
    let counted = hops(plan.well_formed(), &islands);
    let headed = placement.work_of_model(algorithm, &model.outline().collective);
    let (Some(counted), Some(headed)) = (counted, headed) else { return (0, 0) };
    let more = |counted: u32, headed: u64| i64::from(counted) - headed as i64;
    (more(counted.inside, headed.hops_inside), more(counted.across, headed.hops_across))
}

/// See [`Terms::path_per_hop`].
fn path_per_hop(
    algorithm: Algorithm,
    usage: &Usage,
    placement: &Placement<'_>,
    modelled: &Collective,
    more_hops: (i64, i64),
) -> Option<u64> {
    let work = placement.work_of_model(algorithm, modelled)?;
    let hops = (work.hops_inside + work.hops_across).saturating_add_signed(more_hops.0 + more_hops.1);
    path_of(hops, usage, modelled)
}

/// See [`Terms::path_per_hop`], for a plan of this many hops.
pub(super) fn path_of(hops: u64, usage: &Usage, collective: &Collective) -> Option<u64> {
    // An all-reduce goes up and down: the first tile has the links of one direction to itself.
    let phases = if matches!(collective, Collective::AllReduce) { 2 } else { 1 };
    (hops > 1 && usage.steps <= 1).then_some(ONE / phases)
}

/// For messages: the blocks that the busiest rank moves inside its island, those that the busiest island moves to others, and
/// the blocks of the call's bytes. Messages from a rank to itself do not count.
fn message_blocks(collective: &Collective, placement: &Placement<'_>) -> Option<(u64, u64, u64)> {
    if !matches!(collective, Collective::SendReceive { .. } | Collective::Neighbours { .. }) {
        return None;
    }
    let ranks = placement.layout().ranks();
    let island = |rank: u32| placement.island_of()[rank as usize];
    let (mut inside, mut across) = (vec![(0, 0); ranks as usize], vec![(0, 0); ranks as usize]);
    for (from, to) in collective.messages(ranks).into_iter().filter(|(from, to)| from != to) {
        let (ends, source, target) = match island(from) == island(to) {
            true => (&mut inside, from, to),
            false => (&mut across, island(from), island(to)),
        };
        ends[source as usize].0 += 1;
        ends[target as usize].1 += 1;
    }
    let most = |ends: Vec<(u64, u64)>| ends.into_iter().map(|(out, into)| out.max(into)).max().unwrap_or(0);
    let blocks = collective.blocks(ranks);
    let parts = u64::from(blocks.0.max(blocks.1));
    (parts > 0).then(|| (most(inside), most(across), parts))
}

impl Terms {
    /// The closed form of a call with these hops and bytes.
    pub fn form(&self, placement: &Placement<'_>, work: Work, bytes: u64) -> Form {
        let has_both = work.hops_inside > 0 && work.hops_across > 0;
        let flow = match self.path_per_hop.filter(|_| self.protocol.is_some()) {
            Some(per_hop) => Flow::Tiles(per_hop),
            None if !has_both => Flow::Steps,
            None if self.one_target => Flow::Ring,
            None => Flow::Phases,
        };
        let message = part_of(bytes, self.message_part);
        Form {
            bytes,
            work,
            launch: self.launch,
            hop_inside: self.hop_inside.of(message),
            hop_across: self.hop_across.of(message),
            posting: Posting::Beside(self.message_across.times(self.messages_across)),
            inside_bytes_per_second: self.inside_bytes_per_second,
            across_bytes_per_second: self.across_bytes_per_second,
            serial_bytes_per_second: self.serial_bytes_per_second,
            cut_bytes_per_second: self.bound_bytes_per_second,
            message,
            flow,
            fill: self.fill,
            fill_bytes: placement.fill_bytes(),
        }
    }
}

impl Candidate {
    /// Thread blocks for a call of `bytes`: enough to fill the links, if there is enough data for them, and a multiple of the
    /// lanes.
    pub fn thread_blocks(&self, bytes: u64) -> u32 {
        let rate = self.inside_bytes_per_second.or(self.across_bytes_per_second).unwrap_or(0);
        let useful = bytes.div_ceil(block_bytes(self.protocol.unwrap_or(Protocol::Simple)));
        let wanted = rate.div_ceil(BLOCK_BYTES_PER_SECOND).min(useful).min(BLOCKS_MAX.into());
        let lanes = self.lanes.max(1);
        (wanted as u32).div_ceil(lanes).max(1) * lanes
    }
}
