//! Where a plan's FIFOs, counters and scratch lie in the memory that its ranks share. Every rank computes the same
//! layout from the plan alone, so nothing has to be agreed on but the size.

use std::collections::BTreeSet;

use weftlink_plan::plan::{Input, Output, Protocol};
use weftlink_plan::{Cut, Verified};

use crate::line::{Line, PAYLOAD_WORDS};

/// Bytes of a line.
pub(crate) const LINE: usize = size_of::<Line>();
/// Elements of a line: cuts fall on its multiples, so that two ranks never write the same one.
pub(crate) const GRANULE: usize = LINE / size_of::<f32>();

/// Lines of a message whose payload rides with its flags.
const PACKET_LINES: usize = 8;
/// Words of such a message.
pub(crate) const PACKET_WORDS: usize = PACKET_LINES * PAYLOAD_WORDS;
/// Bytes of a message in a slot of its own: large enough to run at full speed, small enough that the slots of a FIFO
/// stay in a core's own cache.
const SLOT_BYTES: usize = 128 << 10;
const SLOT_BYTES_MIN: usize = 4 << 10;
/// The most that all slots of a plan may take together, before they become smaller.
const SLOTS_BYTES_MAX: usize = 64 << 20;
const PAGE: usize = 4096;

/// The places of everything a plan shares, in bytes from the start of its memory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Counters, rank by rank, a line each.
    pub(crate) counters: usize,
    pub(crate) fifos: Vec<FifoPlace>,
    /// Scratch, rank by rank.
    pub(crate) scratch: usize,
    pub(crate) scratch_stride: usize,
    /// The most elements a chunk may have; nothing if no message or scratch limits it.
    pub(crate) chunk_max: Option<usize>,
    pub(crate) bytes: usize,
}

/// One FIFO.
#[derive(Debug, Clone)]
pub(crate) struct FifoPlace {
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) channel: u32,
    pub(crate) depth: usize,
    /// The line with the credits, then the lines of the slots, then the slots' bulk memory, if any.
    pub(crate) released: usize,
    pub(crate) slots: usize,
    pub(crate) slot_lines: usize,
    pub(crate) bulk: usize,
    pub(crate) bulk_stride: usize,
}

impl FifoPlace {
    /// Whether payload rides with the flags.
    pub(crate) fn is_packet(&self) -> bool {
        self.bulk_stride == 0
    }
}

impl Layout {
    pub(crate) fn new(plan: &Verified) -> Self {
        let keys = fifos_of(plan);
        let is_packet = |channel: u32| plan.channels[channel as usize].protocol != Protocol::Simple;
        let depth = |channel: u32| plan.channels[channel as usize].depth as usize;
        let slots: usize =
            keys.iter().filter(|key| !is_packet(key.2)).map(|key| depth(key.2)).sum::<usize>().max(1);
        let slot_bytes = (SLOTS_BYTES_MAX / slots / PAGE * PAGE).clamp(SLOT_BYTES_MIN, SLOT_BYTES);

        let mut next = 0;
        let mut take = |bytes: usize, align: usize| {
            let at = usize::next_multiple_of(next, align);
            next = at + bytes;
            at
        };
        let ranks = plan.ranks as usize;
        let counters = take(ranks * plan.counters as usize * LINE, PAGE);
        let fifos: Vec<_> = keys
            .into_iter()
            .map(|(source, target, channel)| {
                let (depth, packet) = (depth(channel), is_packet(channel));
                let slot_lines = if packet { PACKET_LINES } else { 1 };
                let bulk_stride = if packet { 0 } else { slot_bytes };
                // Neighbouring lines are fetched in pairs: what different ranks write is kept two lines apart.
                let released = take(2 * LINE, 2 * LINE);
                let slots = take(depth * slot_lines * LINE, 2 * LINE);
                let bulk = take(depth * bulk_stride, if packet { LINE } else { PAGE });
                FifoPlace { source, target, channel, depth, released, slots, slot_lines, bulk, bulk_stride }
            })
            .collect();
        let of_packet = PACKET_WORDS * size_of::<u64>();
        let messages = fifos.iter().map(|fifo| if fifo.is_packet() { of_packet } else { slot_bytes });
        let scratch_chunks = plan.chunks.scratch as usize;
        let limit = messages.chain((scratch_chunks > 0).then_some(slot_bytes)).min();
        let chunk_max = limit.map(|bytes| bytes / size_of::<f32>() / GRANULE * GRANULE);
        let scratch_stride = scratch_chunks * chunk_max.unwrap_or(0) * size_of::<f32>();
        let scratch = take(ranks * scratch_stride, PAGE);
        let bytes = next.next_multiple_of(PAGE);
        Self { counters, fifos, scratch, scratch_stride, chunk_max, bytes }
    }

    /// How a buffer of so many elements is cut for this plan.
    pub(crate) fn cut(&self, plan: &Verified, count: usize) -> Cut {
        match self.chunk_max {
            Some(chunk_max) => Cut::new(count, plan.chunks.output, GRANULE, chunk_max),
            None => Cut::whole(count, plan.chunks.output, GRANULE),
        }
    }
}

/// Every FIFO that some step uses: source, target, channel.
fn fifos_of(plan: &Verified) -> BTreeSet<(u32, u32, u32)> {
    let mut fifos = BTreeSet::new();
    for (rank, program) in (0..).zip(&plan.programs) {
        for lane in &program.lanes {
            for step in lane.walk().filter_map(|visit| visit.step.at(&visit.iterations)) {
                for input in &step.inputs {
                    if let Input::Received { from } = *input {
                        fifos.insert((from, rank, lane.channel));
                    }
                }
                for output in &step.outputs {
                    if let Output::Sent { to } = *output {
                        fifos.insert((rank, to, lane.channel));
                    }
                }
            }
        }
    }
    fifos
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::{Algorithm, Collective, verify};

    #[test]
    fn nothing_overlaps() {
        for algorithm in Algorithm::doing(&Collective::AllReduce) {
            for ranks in [1, 2, 5, 9] {
                let plan = verify(algorithm.plan(ranks, 2).without_switches()).unwrap();
                let layout = Layout::new(&plan);
                let mut taken = vec![(layout.counters, ranks as usize * plan.counters as usize * LINE)];
                for fifo in &layout.fifos {
                    taken.push((fifo.released, LINE));
                    taken.push((fifo.slots, fifo.depth * fifo.slot_lines * LINE));
                    taken.push((fifo.bulk, fifo.depth * fifo.bulk_stride));
                }
                taken.push((layout.scratch, ranks as usize * layout.scratch_stride));
                taken.sort_unstable();
                assert!(
                    taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
                    "{algorithm} {ranks}"
                );
                assert!(taken.iter().all(|&(at, bytes)| at % LINE == 0 && at + bytes <= layout.bytes));
            }
        }
    }

    #[test]
    fn many_ranks_get_smaller_slots() {
        let plan = verify(Algorithm::Exchange.plan(32, 1)).unwrap();
        assert!(Layout::new(&plan).bytes < 80 << 20);
    }
}
