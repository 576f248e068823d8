//! Where a plan's FIFOs, counters and scratch lie in the memory that its ranks share. Every rank computes the same
//! layout from the plans that were loaded so far, so ranks need to agree on the size only.
//!
//! Counters and scratch belong to one plan. FIFOs do not: both ends count a FIFO's messages across plans, and calls run one
//! after the other, so plans that need the same kind of FIFO between the same two ranks share it.

use std::collections::BTreeMap;

use weftlink_plan::plan::{Input, Output, Protocol};
use weftlink_plan::{Blocks, Shape, Verified};

use crate::transport::{FifoPlace, LINE, PACKET_BYTES, PACKET_LINES, Transport};

const _: () =
    assert!(PACKET_BYTES == weftlink_plan::choose::measured::PACKET_BYTES, "choices are made by it");
/// The most bytes of a message in bulk memory: large enough for full speed, small enough that a FIFO's messages stay in a
/// core's own cache.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
const MESSAGE_BYTES_MIN: usize = 4 << 10;
/// The most memory of all messages when all ranks send to all; beyond it messages become smaller.
const BULK_BYTES_MAX: usize = 64 << 20;
const MESSAGES_PER_FIFO: usize = 5;
const PAGE: usize = 4096;

/// The FIFOs of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Fifos {
    places: Vec<FifoPlace>,
    /// By kind; the last part of the key numbers those that one plan uses side by side.
    by_key: BTreeMap<(u32, u32, FifoKind, u32), usize>,
}

/// The kind of a FIFO between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FifoKind {
    depth: u32,
    /// Whether its messages are packets.
    packets: bool,
}

/// The places of everything a plan needs, in bytes from the start of its memory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Counters, rank by rank, a line each.
    pub(crate) counters: usize,
    /// The number of the FIFO for each source, target and channel.
    pub(crate) fifos: BTreeMap<(u32, u32, u32), usize>,
    /// FIFOs that no earlier plan had, which lie in this plan's memory.
    pub(crate) new_fifos: std::ops::Range<usize>,
    /// Scratch, rank by rank.
    pub(crate) scratch: usize,
    pub(crate) scratch_stride: usize,
    /// The most bytes a chunk may have; nothing if no message or scratch limits it.
    pub(crate) chunk_bytes_max: Option<usize>,
    pub(crate) bytes: usize,
}

impl Layout {
    /// Places a plan in the memory of the host `here`, and adds the FIFOs that it needs and that do not exist. `hosts` has the host of
    /// every rank.
    pub(crate) fn new(plan: &Verified, fifos: &mut Fifos, hosts: &[u32], here: u32) -> Self {
        let message_bytes = message_bytes(plan.ranks as usize);
        let mut next = 0;
        let mut take = |bytes: usize, align: usize| {
            let at = usize::next_multiple_of(next, align);
            next = at + bytes;
            at
        };
        let ranks = plan.ranks as usize;
        let counters = take(ranks * plan.counters as usize * LINE, PAGE);
        let known = fifos.places.len();
        let mut used: BTreeMap<(u32, u32, FifoKind), u32> = BTreeMap::new();
        let mut number = |(source, target, channel): (u32, u32, u32)| {
            let channel = &plan.channels[channel as usize];
            let kind = FifoKind { depth: channel.depth, packets: channel.protocol != Protocol::Simple };
            let side_by_side = used.entry((source, target, kind)).or_insert(0);
            let key = (source, target, kind, *side_by_side);
            *side_by_side += 1;
            *fifos.by_key.entry(key).or_insert_with(|| {
                let (depth, packets) = (channel.depth as usize, kind.packets);
                let [from, to] = [source, target].map(|rank| hosts[rank as usize]);
                let transport = Transport::between(from, to);
                if !transport.is_mapped() || from != here {
                    // A FIFO between two ranks elsewhere has a number here too, so that all ranks number alike.
                    let bytes = if packets { PACKET_BYTES } else { message_bytes };
                    fifos.places.push(FifoPlace::elsewhere((source, target), transport, depth, bytes));
                    return fifos.places.len() - 1;
                }
                let slot_lines = if packets { PACKET_LINES } else { 1 };
                let message_bytes_max = if packets { 0 } else { message_bytes };
                // One more than are in flight: see `Bulk`.
                let bulk_bytes = (depth + 1) * message_bytes_max;
                // Processors fetch neighbouring lines in pairs: lines that different ranks write are two apart.
                let released = take(2 * LINE, 2 * LINE);
                let slots = take(depth * slot_lines * LINE, 2 * LINE);
                let bulk = take(bulk_bytes, if packets { LINE } else { PAGE });
                fifos.places.push(FifoPlace {
                    source,
                    target,
                    depth,
                    transport,
                    released,
                    slots,
                    slot_lines,
                    bulk,
                    bulk_bytes,
                    message_bytes_max,
                });
                fifos.places.len() - 1
            })
        };
        let numbers: BTreeMap<_, _> = keys_of(plan).into_iter().map(|key| (key, number(key))).collect();
        let message = |number: &usize| match fifos.places[*number].message_bytes_max {
            0 => PACKET_BYTES,
            bytes => bytes,
        };
        let scratch_chunks = plan.chunks.scratch as usize;
        let chunk_bytes_max =
            numbers.values().map(message).chain((scratch_chunks > 0).then_some(message_bytes)).min();
        let scratch_stride = scratch_chunks * chunk_bytes_max.unwrap_or(0).next_multiple_of(LINE);
        let scratch = take(ranks * scratch_stride, PAGE);
        let bytes = next.next_multiple_of(PAGE);
        let new_fifos = known..fifos.places.len();
        Self { counters, fifos: numbers, new_fifos, scratch, scratch_stride, chunk_bytes_max, bytes }
    }

    /// Where the plan's chunks lie in a call; nothing if not even one element fits into a message.
    pub(crate) fn blocks<'a>(&self, plan: &'a Verified, rank: u32, shape: &'a Shape) -> Option<Blocks<'a>> {
        let granule = LINE / common_divisor(LINE, shape.element_bytes);
        let whole = Blocks { plan, rank, shape, granule, chunk_max: None };
        let Some(bytes_max) = self.chunk_bytes_max else { return Some(whole) };
        let fitting = bytes_max / shape.element_bytes;
        // Elements of odd sizes whose lines end together only after a whole message are cut anywhere.
        let granule = if granule <= fitting { granule } else { 1 };
        (fitting > 0).then(|| Blocks { granule, chunk_max: Some(fitting / granule * granule), ..whole })
    }
}

impl Fifos {
    /// All of them.
    pub(crate) fn places(&self) -> &[FifoPlace] {
        &self.places
    }
}

/// The bytes of a message that keep all messages together within the limit if every rank sends to every other.
fn message_bytes(ranks: usize) -> usize {
    let messages = (MESSAGES_PER_FIFO * ranks * ranks.saturating_sub(1)).max(1);
    // The largest power of two that is not more.
    let power = 1 << (BULK_BYTES_MAX / messages).max(1).ilog2();
    usize::clamp(power, MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX)
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Every FIFO that some step uses: source, target, channel.
fn keys_of(plan: &Verified) -> std::collections::BTreeSet<(u32, u32, u32)> {
    let mut keys = std::collections::BTreeSet::new();
    for (rank, program) in (0..).zip(&plan.programs) {
        for lane in &program.lanes {
            for step in lane.walk().filter_map(|visit| visit.step.at(&visit.iterations)) {
                for input in &step.inputs {
                    if let Input::Received { from } = *input {
                        keys.insert((from, rank, lane.channel));
                    }
                }
                for output in &step.outputs {
                    if let Output::Sent { to } = *output {
                        keys.insert((rank, to, lane.channel));
                    }
                }
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::{Algorithm, Aliasing, Collective, verify};

    #[test]
    fn nothing_overlaps() {
        for collective in Collective::KINDS {
            for algorithm in Algorithm::doing(&collective) {
                for ranks in [1, 2, 5, 9] {
                    let Ok(plan) = algorithm.flat(&collective, ranks, 2) else { continue };
                    let plan = verify(plan.without_switches()).unwrap();
                    let mut fifos = Fifos::default();
                    let layout = Layout::new(&plan, &mut fifos, &vec![0; ranks as usize], 0);
                    let mut taken = vec![(layout.counters, ranks as usize * plan.counters as usize * LINE)];
                    for fifo in fifos.places() {
                        taken.push((fifo.released, LINE));
                        taken.push((fifo.slots, fifo.depth * fifo.slot_lines * LINE));
                        taken.push((fifo.bulk, fifo.bulk_bytes));
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
    }

    #[test]
    fn plans_share_fifos_but_a_plan_does_not_share_with_itself() {
        let mut fifos = Fifos::default();
        let mut place = |plan| Layout::new(&verify(plan).unwrap(), &mut fifos, &[0; 4], 0);
        let one = place(Algorithm::Ring.plan(4, 1));
        let other = place(Algorithm::Ring.flat(&Collective::AllGather, 4, 1).unwrap());
        let two = place(Algorithm::Ring.plan(4, 2));
        assert_eq!((one.new_fifos.len(), other.new_fifos.len()), (4, 0));
        assert_eq!(one.fifos, other.fifos);
        let mut numbers: Vec<_> = two.fifos.values().collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), two.fifos.len());
    }

    #[test]
    fn only_local_fifos_are_in_host_memory() {
        let plan = verify(Algorithm::Ring.plan(4, 1)).unwrap();
        let hosts = [0, 0, 1, 1];
        let mut numbers = Vec::new();
        for here in [0, 1] {
            let mut fifos = Fifos::default();
            let layout = Layout::new(&plan, &mut fifos, &hosts, here);
            numbers.push(layout.fifos.clone());
            for place in fifos.places() {
                let [from, to] = [place.source, place.target].map(|rank| hosts[rank as usize]);
                assert_eq!(place.transport, Transport::between(from, to));
                assert_eq!(place.bulk_bytes > 0, from == to && from == here);
            }
        }
        assert_eq!(numbers[0], numbers[1], "all ranks number FIFOs alike");
    }

    #[test]
    fn many_ranks_get_smaller_slots() {
        let plan = verify(Algorithm::Exchange.plan(32, 1)).unwrap();
        assert!(Layout::new(&plan, &mut Fifos::default(), &[0; 32], 0).bytes < 80 << 20);
    }

    #[test]
    fn elements_of_any_size_are_cut() {
        let plan = verify(Algorithm::Ring.plan(2, 1)).unwrap();
        let layout = Layout::new(&plan, &mut Fifos::default(), &[0; 2], 0);
        let shape =
            |count, element_bytes| Shape { aliasing: Aliasing::InPlace, element_bytes, count, uneven: None };
        for bytes in [1, 2, 3, 4, 12, 16, 100, 4096, 60_001] {
            let cut = layout.blocks(&plan, 0, &shape(1000, bytes)).unwrap().longest();
            let all: usize =
                (0..cut.tiles()).flat_map(|tile| (0..2).map(move |chunk| cut.range(tile, chunk).len())).sum();
            assert_eq!(all, 1000);
            assert!(cut.range(0, 0).len() * bytes <= MESSAGE_BYTES_MAX);
        }
        assert!(layout.blocks(&plan, 0, &shape(1, MESSAGE_BYTES_MAX + 1)).is_none());
    }
}
