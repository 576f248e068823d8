//! Programs whose kernel needs no records but for addresses and lengths: one lane, all messages are packets, and a tile sends no more
//! of them than a FIFO has slots. A call of one tile then waits for credit once, and moves packets step by step (`device/direct.h`).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::sequences::Shape;
use super::steps::Draft;
use crate::records;

/// The most polls, inputs or outputs: threads of a warp take one each.
const WIDTH: usize = 16;
/// The most steps, each of which is code.
const STEPS_MAX: usize = 32;

/// The constants of such a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Direct {
    ranks: u32,
    /// The end of its steps in the program.
    bytes: usize,
    /// The offset of FIFO ends in the program.
    fifos: usize,
    per_tile: u32,
    slot_mask: u32,
    slot_bytes: u32,
    slice_stride: u64,
    /// The credit that a call needs: the first word, the words from one to the next, how many, and the value in tile 0.
    credit: Credit,
    /// Whether the first step has one input, which is this rank's.
    preloads: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Credit {
    word: u32,
    spacing: u32,
    count: usize,
    value: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Step {
    /// The offset of its record in the program.
    at: usize,
    /// Whether its inputs in buffers are that of the first step.
    is_ready: bool,
    ordinal: u32,
    shape: Shape,
    inputs: Packets,
    outputs: Packets,
}

/// The packets among the inputs or outputs of a step: the first FIFO end, others follow it, and the number of the message in its tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Packets {
    first: u16,
    number: u32,
}

impl Direct {
    /// The constants of a program with these FIFO ends and these steps in its only lane, if it has this form. `is_preserved`: steps that read
    /// the input read what the user has stored, also where outputs replace it.
    pub(super) fn of(
        ranks: u32,
        fifos: &[records::Fifo],
        fifos_at: usize,
        steps: &[Draft],
        steps_at: usize,
        is_preserved: bool,
    ) -> Option<Direct> {
        let &records::Fifo { per_tile, slot_mask, slot_bytes, slice_stride, .. } = fifos.first()?;
        let are_alike = fifos.iter().all(|fifo| {
            (fifo.per_tile, fifo.slot_mask, fifo.slot_bytes, fifo.slice_stride)
                == (per_tile, slot_mask, slot_bytes, slice_stride)
        });
        if !are_alike || steps.len() > STEPS_MAX || !has_ordered_posts(steps) {
            return None;
        }
        let credit = Credit::of(steps)?;
        let first = steps.first()?;
        let preloads = matches!(&*first.inputs, [records::Operand { kind: records::INPUT, .. }]);
        let is_ready = |draft: &Draft| {
            (is_preserved || draft.step.ordinal == first.step.ordinal) && has_inputs_of(draft, first)
        };
        let mut at = steps_at;
        let mut place = |draft: &Draft| {
            let mut step = Step::of(draft, at);
            step.iter_mut().for_each(|step| step.is_ready = preloads && is_ready(draft));
            at += usize::from(draft.step.bytes);
            step
        };
        let steps = steps.iter().map(&mut place).collect::<Option<_>>()?;
        Some(Direct {
            ranks,
            bytes: at,
            fifos: fifos_at,
            per_tile,
            slot_mask,
            slot_bytes,
            slice_stride,
            credit,
            preloads,
            steps,
        })
    }

    /// The macros that `device/direct.h` expands.
    pub(super) fn macros(&self) -> String {
        let Direct {
            ranks, bytes, fifos, per_tile, slot_mask, slot_bytes, slice_stride, credit, steps, ..
        } = self;
        let Credit { word, spacing, count, value } = credit;
        let preloads = self.preloads;
        let mut text = format!(
            "#define WEFT_DIRECT {ranks}, {bytes}, {preloads}, {fifos}, {per_tile}, {slot_mask}, {slot_bytes}, {slice_stride}ull, {word}, {spacing}, {count}, {value}\n#define WEFT_DIRECT_STEPS"
        );
        for Step { at, is_ready, ordinal, shape, inputs, outputs } in steps {
            let (Packets { first: from, number: received }, Packets { first: to, number: sent }) =
                (inputs, outputs);
            _ = write!(
                text,
                " DIRECT({at}, {is_ready}, {ordinal}, {from}, {received}, {to}, {sent}, {})",
                shape.arguments()
            );
        }
        text + "\n"
    }
}

impl Credit {
    /// What all steps poll before they send, if it is the same number of tiles' worth of messages in words at equal distances.
    fn of(steps: &[Draft]) -> Option<Credit> {
        let mut polls: Vec<_> = steps.iter().flat_map(|draft| &draft.polls).collect();
        let Some(first) = polls.first().copied() else { return Some(Credit::default()) };
        // Credit of this tile's own messages would have to be awaited between its steps.
        let is_fit = |poll: &&records::Poll| {
            poll.kind == records::CREDIT && poll.value == first.value && poll.value <= 0
        };
        if polls.len() > WIDTH || !polls.iter().all(is_fit) {
            return None;
        }
        polls.sort_by_key(|poll| poll.word);
        let word = polls[0].word;
        let spacing = polls.get(1).map_or(0, |second| second.word - word);
        let is_affine = (0..).zip(&polls).all(|(number, poll)| poll.word == word + number * spacing);
        is_affine.then_some(Credit { word, spacing, count: polls.len(), value: first.value })
    }
}

impl Step {
    fn of(draft: &Draft, at: usize) -> Option<Step> {
        let is_fit = draft.step.flags & (records::MOVES | records::PACKETS | records::RELAXED)
            == records::MOVES | records::PACKETS | records::RELAXED
            && draft.posts.len() <= WIDTH
            && draft.step.tile == 0;
        let shape = Shape::of(draft).filter(|_| is_fit)?;
        let [inputs, outputs] = [&draft.inputs, &draft.outputs].map(|operands| Packets::of(operands));
        Some(Step {
            at,
            is_ready: false,
            ordinal: draft.step.ordinal,
            shape,
            inputs: inputs?,
            outputs: outputs?,
        })
    }
}

/// Whether one thread posts to each word: threads take the posts of each step by their order.
fn has_ordered_posts(steps: &[Draft]) -> bool {
    let mut thread_of = BTreeMap::new();
    let posts = steps.iter().flat_map(|draft| draft.posts.iter().enumerate());
    posts.into_iter().all(|(thread, post)| *thread_of.entry(post.word).or_insert(thread) == thread)
}

/// Whether the inputs of a step that are in buffers are those of another.
fn has_inputs_of(draft: &Draft, first: &Draft) -> bool {
    let mut inputs = draft.inputs.iter().filter(|input| input.kind != records::PACKET);
    draft.step.elements == first.step.elements && inputs.all(|input| first.inputs.contains(input))
}

impl Packets {
    fn of(operands: &[records::Operand]) -> Option<Packets> {
        let known = [records::INPUT, records::OUTPUT, records::PACKET];
        let packets: Vec<_> = operands.iter().filter(|operand| operand.kind == records::PACKET).collect();
        let Some(&&records::Operand { index: first, number, .. }) = packets.first() else {
            return operands.iter().all(|operand| known.contains(&operand.kind)).then(Packets::default);
        };
        let follow =
            (first..).zip(&packets).all(|(index, packet)| (packet.index, packet.number) == (index, number));
        let is_fit = operands.len() <= WIDTH && operands.iter().all(|operand| known.contains(&operand.kind));
        (follow && is_fit).then_some(Packets { first, number })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weftlink_plan::{Aliasing, Collective, Shape, verify};

    use crate::adapted;
    use crate::choose::choose;
    use crate::program::{Arenas, Compiler, Spread};

    /// The source of a kernel does not depend on the count.
    #[test]
    fn small_calls_of_chosen_plans_run_directly() {
        for ranks in 2..=8 {
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
                let choice = choose(&collective, 8, ranks as usize, true);
                let plan = choice.algorithm.flat_with(&collective, ranks, 1, choice.protocol).unwrap();
                let plan = verify(adapted(plan)).unwrap();
                for rank in 0..ranks {
                    let compiler = Compiler::new(plan.clone(), rank, 16);
                    let arenas = Arenas { of_ranks: vec![0; ranks as usize], private: 0 };
                    let sequences = [2, 1000].map(|count| {
                        let shape =
                            Shape { aliasing: Aliasing::OutOfPlace, element_bytes: 4, count, uneven: None };
                        let spread = Spread { slices: 2, threads: 32, chunk_bytes: 1 << 20 };
                        compiler.compile(&shape, spread, &arenas).unwrap().sequences
                    });
                    assert!(sequences[0].direct.is_some(), "{collective}, rank {rank} of {ranks}");
                    assert_eq!(sequences[0], sequences[1], "{collective}, rank {rank} of {ranks}");
                }
            }
        }
    }
}
