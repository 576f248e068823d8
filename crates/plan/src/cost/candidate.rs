//! Candidates: the algorithms and protocols that can run a collective on a fabric, with all costs that do not depend on the bytes.

use weftlink_fabric::DeviceId;

use super::constants::{
    BLOCK_BYTES_PER_SECOND, BLOCKS_MAX, HOP_FLAG, HOP_IN_A_ROW, HOP_NETWORK_SUM, HOP_PEER,
    HOP_TO_ONE_OF_SEVERAL, LAUNCH_MESSAGES, LAUNCH_PEER, MESSAGE_ACROSS, block_bytes, payload,
};
use super::loads::{Loads, Medium, Sides, Unconnected};
use super::usage::{Usage, messages_across};
use super::{Picoseconds, Placement, over};
use crate::algorithms::{Algorithm, Impossible};
use crate::plan::{Protocol, Switch};
use crate::{Collective, Plan};

/// An algorithm and a protocol, with their costs on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol of its messages; nothing if it sends none and uses peer memory or switches.
    pub protocol: Option<Protocol>,
    /// Lanes of a rank, at least one thread block each.
    pub lanes: u32,
    /// The time to start and to end.
    pub launch: Picoseconds,
    /// A hop inside an island.
    pub hop_inside: Picoseconds,
    /// A hop between islands.
    pub hop_across: Picoseconds,
    /// Messages that a lane sends into the network one after the other.
    pub messages_across: u64,
    /// The time to send one of them.
    pub message_across: Picoseconds,
    /// The rate of the busiest rank inside its island; nothing if no data moves there.
    pub inside_bytes_per_second: Option<u64>,
    /// The rate of the busiest island to the others.
    pub across_bytes_per_second: Option<u64>,
    /// The rates of the slowest lane inside and across, one after the other.
    pub serial_bytes_per_second: (Option<u64>, Option<u64>),
    /// The rates of the links inside and across, without the limit of LL's small words.
    pub links_bytes_per_second: (Option<u64>, Option<u64>),
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
    let mut loads = placement.loads();
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
    let sides = loads.sides(&usage).map_err(|Unconnected(a, b)| {
        let host = |gpu: DeviceId| placement.fabric().device(gpu).host;
        let next = match host(a) == host(b) {
            true => "describe the links, or leave out one of the GPUs",
            false => "add NICs to the spec, as in `2x hgx-h100 + 8x ndr`",
        };
        let (a, b) = (placement.fabric().device_name(a), placement.fabric().device_name(b));
        Impossible(format!("no links of known speed connect {a} to {b}; {next}"))
    })?;
    let between = sides.across.map_or(Medium::Network, |side| side.medium);
    if between == Medium::Network && usage.reaches_across(placement.model()) {
        let why = "ranks access each other's memory, which is impossible over the network";
        return Err(Impossible(why.to_owned()));
    }
    if let Some((a, b)) = usage.peers().find(|(a, b)| !placement.can_access(*a, *b)) {
        let name = |rank: u32| placement.fabric().device_name(placement.gpu_of_model(rank));
        return Err(Impossible(format!(
            "ranks access each other's memory, and {} cannot access that of {} over PCIe: the driver of GeForce cards refuses it, or it is turned off",
            name(b),
            name(a)
        )));
    }
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
    let candidate = |protocol: Option<Protocol>| Candidate {
        messages_across: messages,
        ..candidate(algorithm, protocol, outline, &usage, &sides, placement)
    };
    Ok(protocols(algorithm, outline, &sides).into_iter().map(candidate).collect())
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

fn candidate(
    algorithm: Algorithm,
    protocol: Option<Protocol>,
    outline: &Plan,
    usage: &Usage,
    sides: &Sides,
    placement: &Placement<'_>,
) -> Candidate {
    let sums = |switch: Switch| outline.groups.iter().any(|group| group.switch == switch);
    let medium = |medium: Option<Medium>, otherwise: Medium| medium.unwrap_or(otherwise) as usize;
    let (inside, across) = (sides.inside.map(|side| side.medium), sides.across.map(|side| side.medium));
    let row = if usage.one_target { HOP_IN_A_ROW } else { HOP_TO_ONE_OF_SEVERAL };
    let signal = if usage.only_waits() { HOP_FLAG } else { HOP_PEER };
    let message = |medium: usize| protocol.map_or(signal[medium], |protocol| row[medium].of(protocol));
    let (inside_at, across_at) = (medium(inside, Medium::GpuLinks), medium(across, Medium::Network));
    let hop_inside = if usage.reaches_in { HOP_PEER[inside_at] } else { message(inside_at) };
    let hop_across = if sums(Switch::Network) { HOP_NETWORK_SUM } else { message(across_at) };
    let launch = protocol.map_or(LAUNCH_PEER, |protocol| LAUNCH_MESSAGES.of(protocol));
    let thousandths = if sums(Switch::Nvswitch) { placement.nvls_thousandths() } else { 1000 };
    // LL's small words limit the rate on any links.
    let most = if protocol == Some(Protocol::Ll) { placement.ll_bytes_per_second() * 2 } else { u64::MAX };
    let inside_rate =
        sides.inside.and_then(|side| side.bytes_per_second).map(|rate| rate / 1000 * thousandths);
    let across_rate = sides.across.and_then(|side| side.bytes_per_second);
    let bound = match outline.groups.is_empty() {
        true => placement.bounds().bound_without_switches(&outline.collective),
        false => placement.bounds().bound(&outline.collective),
    };
    Candidate {
        algorithm,
        protocol,
        lanes: usage.lanes,
        launch,
        hop_inside,
        hop_across,
        messages_across: 0,
        message_across: MESSAGE_ACROSS.of(protocol.unwrap_or(Protocol::Ll)),
        serial_bytes_per_second: (
            sides.inside.and_then(|side| side.serial_bytes_per_second),
            sides.across.and_then(|side| side.serial_bytes_per_second),
        ),
        links_bytes_per_second: (inside_rate, across_rate),
        switch: outline.groups.iter().map(|group| group.switch).max(),
        inside_bytes_per_second: inside_rate.map(|rate| rate.min(most)),
        across_bytes_per_second: across_rate.map(|rate| rate.min(most)),
        between: across.unwrap_or(Medium::Network),
        bound_bytes_per_second: bound.map(|bound| bound.bytes_per_second),
        counted: message_blocks(&outline.collective, placement),
    }
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

impl Candidate {
    /// The time of bytes with this protocol, flags included.
    pub(super) fn over(&self, bytes: u64, bytes_per_second: Option<u64>) -> Picoseconds {
        let (part, whole) = self.protocol.map_or((1, 1), payload);
        let on_the_wire = (u128::from(bytes) * u128::from(whole)).div_ceil(part.into());
        over(u64::try_from(on_the_wire).unwrap_or(u64::MAX), bytes_per_second)
    }

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
