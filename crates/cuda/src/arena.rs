//! The memory of a plan on a GPU. Every rank has an arena that its peers write and read, with the same layout, so that an offset in one
//! holds in all; and private memory, which stays on the GPU where arenas are in host memory.
//!
//! A call cuts its elements into slices, each run by blocks of its own, so words and slots exist once for each slice:
//!
//! - *control*: words that peers write. Entries of ranks, counters by rank, and a word of each end of a FIFO: arrivals in the arena of
//!   the receiver, credit in that of the sender.
//! - *failure*: a word that is set when a call of the plan has failed on some rank.
//! - *slots*: messages, in the arena of the receiver.
//! - *scratch*: chunks of memory that the plan asks for, private unless peers access them.
//! - *tiles* (private): how many tiles each block has run.

use std::collections::BTreeMap;

use weftlink_plan::Plan;
use weftlink_plan::plan::{Buffer, Channel, Input, Lane, Output, Protocol, Remote, Step};

use crate::records::{ENTRY_WORDS, HEAD_BYTES};

/// Words that different ranks poll are this far apart: a sector of the L2 cache.
const SPACING: u32 = 4;
const WORD_BYTES: u64 = 8;
const PAGE: u64 = 4096;
/// The memory of all slots of an arena. Where the smallest slots of all slices need more, there are fewer slices.
const SLOTS_BYTES: u64 = 8 << 20;
/// At least what the threads of a block move at a time; of packets, elements of 16 bytes.
const SLOT_BYTES_MIN: u64 = 16 << 10;
const SLOT_BYTES_MAX: u64 = 128 << 10;
const PACKET_SLOT_BYTES_MAX: u64 = 16 << 10;
/// The memory of all scratch chunks.
const SCRATCH_BYTES: u64 = 4 << 20;
/// Packet FIFOs of more slots fall out of the L2 cache.
const PACKET_DEPTH_MAX: u32 = 4;

/// A FIFO of a plan: source, target and channel.
pub(crate) type FifoKey = (u32, u32, u32);

/// Where everything lies.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(crate) ranks: u32,
    pub(crate) slices_max: u32,
    counters: u32,
    /// In the order of their numbers.
    pub(crate) fifos: BTreeMap<FifoKey, Place>,
    /// Bytes from the start of a slice's words to the next.
    pub(crate) control_stride: u64,
    pub(crate) failure: u64,
    pub(crate) scratch: u64,
    pub(crate) scratch_stride: u64,
    pub(crate) scratch_is_private: bool,
    /// The most bytes of a chunk that one slice moves through a FIFO; nothing if there are none.
    pub(crate) slice_bytes_max: Option<u64>,
    pub(crate) bytes: u64,
    /// Private memory. It begins with the tiles.
    pub(crate) private_bytes: u64,
}

/// The place of a FIFO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its number among the ends of FIFOs of the sender, and of the receiver.
    pub(crate) ends: [u32; 2],
    pub(crate) depth: u32,
    pub(crate) is_packets: bool,
    /// In the receiver's arena.
    pub(crate) slots: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) slice_stride: u64,
}

impl Arena {
    /// The arena of a plan whose calls have at most this many slices, or as many as fit.
    pub(crate) fn new(plan: &Plan, slices_wanted: u32) -> Arena {
        let keys = fifos_of(plan);
        let (ranks, counters) = (plan.ranks, plan.counters);
        let mut ends = vec![0; ranks as usize];
        let mut number = |rank: u32| {
            let next = &mut ends[rank as usize];
            *next += 1;
            *next - 1
        };
        let numbers: Vec<_> =
            keys.keys().map(|&(source, target, _)| [number(source), number(target)]).collect();
        let words = ranks * ENTRY_WORDS + (ranks * counters + ends.into_iter().max().unwrap_or(0)) * SPACING;
        let slots_of = |target: u32| {
            let into = keys.iter().filter(|(key, _)| key.1 == target);
            into.map(|(_, channel)| u64::from(slots_for(channel.depth))).sum::<u64>()
        };
        let slots_per_slice = (0..ranks).map(slots_of).max().unwrap_or(0).max(1);
        let slices_fit = SLOTS_BYTES / (slots_per_slice * SLOT_BYTES_MIN);
        let slices_max = (slices_fit.min(u64::from(slices_wanted)) as u32).max(1);
        let control_stride = (u64::from(words) * WORD_BYTES).next_multiple_of(128);
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max().unwrap_or(0) as u64;
        let tiles_bytes = (lanes * u64::from(slices_max) * WORD_BYTES).next_multiple_of(PAGE);
        let mut next = 0;
        let mut take = |bytes: u64| {
            let at = next;
            next = (at + bytes).next_multiple_of(PAGE);
            at
        };
        take(u64::from(slices_max) * control_stride);
        let failure = take(WORD_BYTES);
        let fair = (SLOTS_BYTES / (slots_per_slice * u64::from(slices_max))).max(1);
        let fair = (1 << fair.ilog2()).clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
        let slots = take(0);
        let mut taken = vec![0; ranks as usize];
        let mut fifos = BTreeMap::new();
        for ((key, channel), ends) in std::iter::zip(&keys, numbers) {
            let is_packets = channel.protocol != Protocol::Simple;
            let data_bytes = if is_packets { fair.min(PACKET_SLOT_BYTES_MAX) } else { fair };
            let slot_bytes = data_bytes + HEAD_BYTES;
            let slice_stride = slot_bytes * u64::from(slots_for(channel.depth));
            let used = &mut taken[key.1 as usize];
            let place = Place {
                ends,
                depth: channel.depth,
                is_packets,
                slots: slots + *used,
                slot_bytes,
                slice_stride,
            };
            *used += slice_stride * u64::from(slices_max);
            fifos.insert(*key, place);
        }
        take(taken.into_iter().max().unwrap_or(0));
        let scratch_stride = SCRATCH_BYTES
            .checked_div(u64::from(plan.chunks.scratch))
            .map_or(0, |bytes| (bytes / PAGE).max(1) * PAGE);
        let scratch_bytes = u64::from(plan.chunks.scratch) * scratch_stride;
        let scratch_is_private = !peers_access_scratch(plan);
        let scratch = if scratch_is_private { tiles_bytes } else { take(scratch_bytes) };
        let private_bytes = tiles_bytes + if scratch_is_private { scratch_bytes } else { 0 };
        let data = |place: &Place| (place.slot_bytes - HEAD_BYTES) / if place.is_packets { 2 } else { 1 };
        let slice_bytes_max = fifos.values().map(data).min();
        Arena {
            ranks,
            slices_max,
            counters,
            fifos,
            control_stride,
            failure,
            scratch,
            scratch_stride,
            scratch_is_private,
            slice_bytes_max,
            bytes: next,
            private_bytes,
        }
    }

    /// The word of a rank's counter, in the control memory of each rank that waits for it.
    pub(crate) fn counter_word(&self, rank: u32, counter: u32) -> u32 {
        self.ranks * ENTRY_WORDS + (rank * self.counters + counter) * SPACING
    }

    /// The words of a FIFO: credit in the sender's control memory, and arrivals in the receiver's.
    pub(crate) fn fifo_words(&self, place: &Place) -> [u32; 2] {
        place.ends.map(|end| self.ranks * ENTRY_WORDS + (self.ranks * self.counters + end) * SPACING)
    }
}

/// A plan as it runs best on GPUs, to be proved: with few slots for packets.
pub fn adapted(mut plan: Plan) -> Plan {
    let has_packets = |channel: &&mut Channel| channel.protocol != Protocol::Simple;
    plan.channels
        .iter_mut()
        .filter(has_packets)
        .for_each(|channel| channel.depth = channel.depth.min(PACKET_DEPTH_MAX));
    plan
}

/// The slots of a FIFO: a power of two. No more than `depth` are in use.
pub(crate) fn slots_for(depth: u32) -> u32 {
    depth.next_power_of_two()
}

/// The steps of a lane in the order they run, with loops resolved.
pub(crate) fn steps_of(lane: &Lane) -> impl Iterator<Item = Step<u32>> {
    lane.walk().filter_map(|visit| visit.step.at(&visit.iterations))
}

fn peers_access_scratch(plan: &Plan) -> bool {
    let is_scratch = |remote: &Remote<u32>| remote.buffer == Buffer::Scratch;
    let mut steps = plan.programs.iter().flat_map(|program| &program.lanes).flat_map(steps_of);
    steps.any(|step| {
        step.inputs.iter().any(|input| matches!(input, Input::Peer(remote) if is_scratch(remote)))
            || step.outputs.iter().any(|output| matches!(output, Output::Peer(remote) if is_scratch(remote)))
    })
}

/// Every FIFO that some step uses, with its channel.
fn fifos_of(plan: &Plan) -> BTreeMap<FifoKey, Channel> {
    let mut fifos = BTreeMap::new();
    for (rank, program) in (0..).zip(&plan.programs) {
        for lane in &program.lanes {
            for step in steps_of(lane) {
                let received = step.inputs.iter().filter_map(|input| match *input {
                    Input::Received { from } => Some((from, rank, lane.channel)),
                    _ => None,
                });
                let sent = step.outputs.iter().filter_map(|output| match *output {
                    Output::Sent { to } => Some((rank, to, lane.channel)),
                    _ => None,
                });
                for key in received.chain(sent) {
                    fifos.insert(key, plan.channels[lane.channel as usize]);
                }
            }
        }
    }
    fifos
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::{Algorithm, Collective};

    #[test]
    fn nothing_overlaps_and_the_arenas_stay_small() {
        for collective in Collective::KINDS {
            for algorithm in Algorithm::doing(&collective) {
                for (ranks, slices) in [(1, 132), (2, 132), (5, 16), (8, 132), (64, 132)] {
                    for protocol in [Protocol::Simple, Protocol::Ll] {
                        let Ok(plan) = algorithm.flat_with(&collective, ranks, 2, protocol) else { continue };
                        check(&adapted(plan), slices);
                    }
                }
            }
        }
    }

    fn check(plan: &Plan, slices_wanted: u32) {
        let arena = Arena::new(plan, slices_wanted);
        let (name, slices) = (format!("{} on {} ranks", plan.name, plan.ranks), u64::from(arena.slices_max));
        assert!(arena.bytes + arena.private_bytes <= 16 << 20, "{name}: {} bytes", arena.bytes);
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max().unwrap_or(0) as u64;
        for target in 0..plan.ranks {
            let into = arena.fifos.iter().filter(|(key, _)| key.1 == target);
            let mut taken: Vec<_> =
                into.map(|(_, place)| (place.slots, place.slice_stride * slices)).collect();
            taken.push((0, slices * arena.control_stride));
            taken.push((arena.failure, WORD_BYTES));
            let scratch_bytes = u64::from(plan.chunks.scratch) * arena.scratch_stride;
            if arena.scratch_is_private {
                assert!(lanes * slices * WORD_BYTES <= arena.scratch, "{name}");
                assert_eq!(arena.scratch + scratch_bytes, arena.private_bytes, "{name}");
            } else {
                taken.push((arena.scratch, scratch_bytes));
            }
            taken.retain(|(_, bytes)| *bytes > 0);
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{name}");
            assert!(taken.iter().all(|(at, bytes)| at + bytes <= arena.bytes), "{name}");
            let ends = arena.fifos.iter().flat_map(|((source, to, _), place)| {
                std::iter::zip([*source, *to], arena.fifo_words(place)).filter(|(rank, _)| *rank == target)
            });
            let mut words: Vec<_> = ends.map(|(_, word)| word).collect();
            assert!(words.iter().all(|&word| u64::from(word) * WORD_BYTES < arena.control_stride), "{name}");
            words.sort_unstable();
            assert!(words.windows(2).all(|pair| pair[0] < pair[1]), "{name}: ends share a word");
        }
    }
}
