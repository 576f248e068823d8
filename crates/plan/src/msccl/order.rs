//! Distributes operations to tbs, with their dependencies.
//!
//! A lane's operations run in order even if they are in several tbs: each waits for the one before it. A wait for a counter
//! becomes a wait for the operation that signals it. MSCCL cannot wait for a step that only waits and signals, so a wait for
//! such a step becomes a wait for all that the step waits for.
//!
//! A wait with nothing after it in its lane is dropped. It could only order tiles that share scratch, and MSCCL's do not.

use std::collections::{BTreeMap, BTreeSet};

use super::error::MscclError;
use super::program::{self, Block, Kind};
use super::split::{Draft, Where};
use crate::plan::{Buffer, Wait};
use crate::refusal::Spot;

/// A step of the plan, or consecutive ones, as drafts of `count` chunks each.
pub(super) struct Drafted {
    pub(super) spot: Spot,
    pub(super) waits: Vec<Wait<u32>>,
    pub(super) drafts: Vec<Draft>,
    pub(super) count: u32,
    pub(super) signals: Vec<u32>,
}

/// A tb before its operations are numbered.
pub(super) struct BlockDraft {
    pub(super) send: Option<u32>,
    pub(super) receive: Option<u32>,
    pub(super) channel: u32,
    /// The lane's own chunks of scratch.
    pub(super) temporary: u32,
    pub(super) operations: Vec<Operation>,
}

/// A step of a tb before it is numbered: nops may precede it.
pub(super) struct Operation {
    draft: Draft,
    count: u32,
    after: Frontier,
}

/// The last finished operation of each tb.
type Frontier = BTreeMap<u32, u32>;

/// A lane whose steps are being distributed.
pub(super) struct LaneState {
    steps: std::vec::IntoIter<Drafted>,
    blocks: std::ops::Range<u32>,
    /// The tb of its last operation, and the operation's number there.
    last: Option<(u32, u32)>,
    /// The dependencies of its next operation.
    pending: Frontier,
}

impl LaneState {
    pub(super) fn new(steps: Vec<Drafted>, blocks: std::ops::Range<u32>) -> Self {
        Self { steps: steps.into_iter(), blocks, last: None, pending: Frontier::new() }
    }
}

/// A wait ends in the middle of a step of several chunks, so the chunks have to be separate steps.
pub(super) struct PartialWait;

/// Distributes every step of a rank's lanes to their tbs.
pub(super) fn place(
    mut lanes: Vec<LaneState>,
    blocks: &mut [BlockDraft],
    counters: u32,
) -> Result<Result<(), PartialWait>, MscclError> {
    // By counter, for each step that signals it: its value after the step, and the operations finished by then.
    let mut signalled: Vec<Vec<(u32, Frontier)>> = vec![Vec::new(); counters as usize];
    loop {
        let mut moved = false;
        for lane in &mut lanes {
            while let Some(step) = lane.steps.as_slice().first() {
                let Some(awaited) = awaited(step, &signalled) else { break };
                let Ok(awaited) = awaited else { return Ok(Err(PartialWait)) };
                if let Some(step) = lane.steps.next() {
                    lane.take(step, awaited, blocks, &mut signalled);
                }
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    match lanes.iter().find_map(|lane| lane.steps.as_slice().first()) {
        Some(stuck) => Err(MscclError::Stuck { spot: stuck.spot.clone() }),
        None => Ok(Ok(())),
    }
}

/// The operations that a step waits for; nothing if some have not been distributed yet.
fn awaited(step: &Drafted, signalled: &[Vec<(u32, Frontier)>]) -> Option<Result<Frontier, PartialWait>> {
    let mut all = Frontier::new();
    for wait in &step.waits {
        let Wait::Reached { counter, count, .. } = *wait else { continue };
        let signalled = signalled.get(counter as usize)?;
        let (total, frontier) = signalled.get(signalled.partition_point(|(total, _)| *total < count))?;
        if *total != count {
            return Some(Err(PartialWait));
        }
        merge(&mut all, frontier);
    }
    Some(Ok(all))
}

impl LaneState {
    fn take(
        &mut self,
        step: Drafted,
        awaited: Frontier,
        blocks: &mut [BlockDraft],
        signalled: &mut [Vec<(u32, Frontier)>],
    ) {
        merge(&mut self.pending, &awaited);
        for draft in step.drafts {
            let number = self.block_for(&draft, blocks);
            let mut after = std::mem::take(&mut self.pending);
            merge(&mut after, &self.last.into_iter().collect());
            let operations = &mut blocks[number as usize].operations;
            self.last = Some((number, operations.len() as u32));
            operations.push(Operation { draft, count: step.count, after });
        }
        let mut done = self.pending.clone();
        merge(&mut done, &self.last.into_iter().collect());
        for counter in step.signals {
            let signalled = &mut signalled[counter as usize];
            let before = signalled.last().map_or(0, |(total, _)| *total);
            signalled.push((before + step.count, done.clone()));
        }
    }

    /// The tb with the draft's peers; without peers, that of the operation before, so that no wait for it is needed.
    fn block_for(&self, draft: &Draft, blocks: &[BlockDraft]) -> u32 {
        let fits = |number: &u32| {
            let block = &blocks[*number as usize];
            (draft.receive.is_none() || draft.receive == block.receive)
                && (draft.send.is_none() || draft.send == block.send)
        };
        let last = self.last.map(|(block, _)| block).filter(fits);
        last.or_else(|| self.blocks.clone().find(fits)).unwrap_or(self.blocks.start)
    }
}

/// Numbers the operations of a rank's tbs, with a nop for every wait of an operation but the last.
pub(super) fn number(mut blocks: Vec<BlockDraft>) -> Vec<Block> {
    for (own, block) in (0..).zip(&mut blocks) {
        let mut seen = Frontier::new();
        for operation in &mut block.operations {
            let new = |other: &u32, position: &u32| {
                *other != own && seen.get(other).is_none_or(|seen| seen < position)
            };
            operation.after.retain(|other, position| new(other, position));
            merge(&mut seen, &operation.after);
        }
    }
    let awaited: BTreeSet<(u32, u32)> = blocks
        .iter()
        .flat_map(|block| &block.operations)
        .flat_map(|operation| &operation.after)
        .map(|(block, position)| (*block, *position))
        .collect();
    let numbers: Vec<Vec<u32>> = blocks.iter().map(numbers).collect();
    let named = |(block, position): (&u32, &u32)| (*block, numbers[*block as usize][*position as usize]);
    let finish = |(own, block): (u32, &BlockDraft)| {
        let steps = (0..).zip(&block.operations).flat_map(|(position, operation)| {
            let mut after: Vec<_> = operation.after.iter().map(named).collect();
            let last = after.pop();
            let mut steps: Vec<_> = after.into_iter().map(nop).collect();
            steps.push(operation.finish(last, awaited.contains(&(own, position)), block.temporary));
            steps
        });
        Block { send: block.send, receive: block.receive, channel: block.channel, steps: steps.collect() }
    };
    (0..).zip(&blocks).map(finish).collect()
}

/// The number of each operation among a tb's steps.
fn numbers(block: &BlockDraft) -> Vec<u32> {
    let mut next = 0;
    let number = |operation: &Operation| {
        next += operation.after.len().max(1) as u32;
        next - 1
    };
    block.operations.iter().map(number).collect()
}

fn nop(after: (u32, u32)) -> program::Step {
    let nowhere = |buffer| program::Place { buffer, chunk: None };
    program::Step {
        kind: Kind::Nop,
        source: nowhere(Buffer::Input),
        target: nowhere(Buffer::Output),
        count: 0,
        after: Some(after),
        has_dependents: false,
    }
}

impl Operation {
    fn finish(&self, after: Option<(u32, u32)>, has_dependents: bool, temporary: u32) -> program::Step {
        // Files name the place of a step twice if its kind has only one.
        let (source, target) = (self.draft.source, self.draft.target);
        let place = |place: Option<Where>| match place {
            Some(Where::Chunk(buffer, chunk)) => program::Place { buffer, chunk: Some(chunk) },
            Some(Where::Temporary) => program::Place { buffer: Buffer::Scratch, chunk: Some(temporary) },
            None => program::Place { buffer: Buffer::Input, chunk: None },
        };
        program::Step {
            kind: self.draft.kind,
            source: place(source.or(target)),
            target: place(target.or(source)),
            count: self.count,
            after,
            has_dependents,
        }
    }
}

/// The later operation of two, tb by tb.
fn merge(into: &mut Frontier, other: &Frontier) {
    for (&block, &position) in other {
        let furthest = into.entry(block).or_insert(position);
        *furthest = position.max(*furthest);
    }
}
