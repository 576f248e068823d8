//! The memory of a plan on a GPU: what peers write and read of it, and what a rank keeps between calls. Every rank has an arena with
//! the same layout, so that an offset in one holds in all.
//!
//! A call cuts its elements into slices, each run by blocks of its own, so words and slots exist once for each slice:
//!
//! - *control*: words that peers write. Entries of ranks, counters by rank, and a word of each FIFO: arrivals in the arena of the
//!   receiver, credit in that of the sender.
//! - *state*: whether a call has failed, which peers write too, and the tiles that each block of this rank has run.
//! - *slots*: messages, in the arena of the receiver.
//! - *scratch*: chunks of memory that the plan asks for.

use std::collections::BTreeMap;

use weftlink_plan::Plan;
use weftlink_plan::plan::{Channel, Input, Lane, Output, Protocol, Step};

use crate::records::{ENTRY_WORDS, HEAD_BYTES};

/// Words that different ranks poll are this far apart: a sector of the L2 cache.
const SPACING: u32 = 4;
const WORD_BYTES: u64 = 8;
const PAGE: u64 = 4096;
/// The memory of all slots of an arena, unless the smallest slots need more.
const SLOTS_BYTES: u64 = 8 << 20;
/// At least what the threads of a block move at a time; of packets, elements of 16 bytes.
const SLOT_BYTES_MIN: u64 = 16 << 10;
const SLOT_BYTES_MAX: u64 = 128 << 10;
const PACKET_SLOT_BYTES_MAX: u64 = 16 << 10;
/// The bytes of a scratch chunk.
const SCRATCH_BYTES: u64 = 4 << 20;

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
    pub(crate) state: u64,
    pub(crate) scratch: u64,
    pub(crate) scratch_stride: u64,
    /// The most bytes of a chunk that one slice moves through a FIFO; nothing if there are none.
    pub(crate) slice_bytes_max: Option<u64>,
    pub(crate) bytes: u64,
}

/// The place of a FIFO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) number: u32,
    pub(crate) depth: u32,
    pub(crate) is_packets: bool,
    /// In the receiver's arena.
    pub(crate) slots: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) slice_stride: u64,
}

impl Arena {
    /// The arena of a plan whose calls have at most this many slices.
    pub(crate) fn new(plan: &Plan, slices_max: u32) -> Arena {
        let keys = fifos_of(plan);
        let (ranks, counters) = (plan.ranks, plan.counters);
        let words = ranks * ENTRY_WORDS + (ranks * counters + keys.len() as u32) * SPACING;
        let control_stride = (u64::from(words) * WORD_BYTES).next_multiple_of(128);
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).max().unwrap_or(0) as u64;
        let state_bytes = (4 + lanes * u64::from(slices_max)) * WORD_BYTES;
        let mut next = 0;
        let mut take = |bytes: u64| {
            let at = next;
            next = (at + bytes).next_multiple_of(PAGE);
            at
        };
        take(u64::from(slices_max) * control_stride);
        let state = take(state_bytes);
        let slots_of = |target: u32| {
            let into = keys.iter().filter(|(key, _)| key.1 == target);
            into.map(|(_, channel)| u64::from(slots_for(channel.depth))).sum::<u64>() * u64::from(slices_max)
        };
        let slots_max = (0..ranks).map(slots_of).max().unwrap_or(0).max(1);
        let fair = (SLOTS_BYTES / slots_max).max(1);
        let fair = (1 << fair.ilog2()).clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
        let slots = take(0);
        let mut taken = vec![0; ranks as usize];
        let mut fifos = BTreeMap::new();
        for (number, (key, channel)) in keys.iter().enumerate() {
            let is_packets = channel.protocol != Protocol::Simple;
            let data_bytes = if is_packets { fair.min(PACKET_SLOT_BYTES_MAX) } else { fair };
            let slot_bytes = data_bytes + HEAD_BYTES;
            let slice_stride = slot_bytes * u64::from(slots_for(channel.depth));
            let used = &mut taken[key.1 as usize];
            let place = Place {
                number: number as u32,
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
        let scratch_stride = if plan.chunks.scratch > 0 { SCRATCH_BYTES } else { 0 };
        let scratch = take(u64::from(plan.chunks.scratch) * scratch_stride);
        let data = |place: &Place| (place.slot_bytes - HEAD_BYTES) / if place.is_packets { 2 } else { 1 };
        let slice_bytes_max = fifos.values().map(data).min();
        Arena {
            ranks,
            slices_max,
            counters,
            fifos,
            control_stride,
            state,
            scratch,
            scratch_stride,
            slice_bytes_max,
            bytes: next,
        }
    }

    /// The word of a rank's counter, in the control memory of each rank that waits for it.
    pub(crate) fn counter_word(&self, rank: u32, counter: u32) -> u32 {
        self.ranks * ENTRY_WORDS + (rank * self.counters + counter) * SPACING
    }

    /// The word of a FIFO: arrivals at the receiver, credit at the sender.
    pub(crate) fn fifo_word(&self, number: u32) -> u32 {
        self.ranks * ENTRY_WORDS + (self.ranks * self.counters + number) * SPACING
    }
}

/// The slots of a FIFO: a power of two. No more than `depth` are in use.
pub(crate) fn slots_for(depth: u32) -> u32 {
    depth.next_power_of_two()
}

/// The steps of a lane in the order they run, with loops resolved.
pub(crate) fn steps_of(lane: &Lane) -> impl Iterator<Item = Step<u32>> {
    lane.walk().filter_map(|visit| visit.step.at(&visit.iterations))
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
                for ranks in [1, 2, 5, 8] {
                    let Ok(plan) = algorithm.flat(&collective, ranks, 2) else { continue };
                    let arena = Arena::new(&plan, 16);
                    for target in 0..ranks {
                        let into = arena.fifos.iter().filter(|(key, _)| key.1 == target);
                        let mut taken: Vec<_> =
                            into.map(|(_, place)| (place.slots, place.slice_stride * 16)).collect();
                        taken.push((0, 16 * arena.control_stride));
                        taken.push((arena.state, (4 + 2 * 16) * WORD_BYTES));
                        taken.push((arena.scratch, u64::from(plan.chunks.scratch) * arena.scratch_stride));
                        taken.retain(|(_, bytes)| *bytes > 0);
                        taken.sort_unstable();
                        assert!(
                            taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
                            "{algorithm}"
                        );
                        assert!(taken.iter().all(|(at, bytes)| at + bytes <= arena.bytes), "{algorithm}");
                    }
                    let last = arena.fifo_word(arena.fifos.len() as u32);
                    assert!(u64::from(last) * WORD_BYTES <= arena.control_stride, "{algorithm}");
                }
            }
        }
    }
}
