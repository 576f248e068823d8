//! Operations into tbs, with what each must wait for.
//!
//! A lane's operations run in order even where they end up in several tbs: each waits for the one before it. A counter
//! that has been signalled so many times becomes a wait for the operation that did it. A step that only waits and signals
//! is nothing MSCCL can wait for, so whoever does waits for what it waited for.
//!
//! A wait with nothing after it in its lane is dropped. All it could order are tiles that share scratch, and MSCCL's do
//! not share any.

use std::collections::{BTreeMap, BTreeSet};

use super::error::MscclError;
use super::program::{self, Block, Kind};
use super::split::{Draft, Where};
use crate::plan::{Buffer, Wait};
use crate::refusal::Spot;

/// A step of the plan, or several in a row, as drafts that move so many chunks each.
pub(super) struct Drafted {
    pub(super) spot: Spot,
    pub(super) waits: Vec<Wait<u32>>,
    pub(super) drafts: Vec<Draft>,
    pub(super) count: u32,
    pub(super) signals: Vec<u32>,
}

/// A tb in the making.
pub(super) struct Making {
    pub(super) send: Option<u32>,
    pub(super) receive: Option<u32>,
    pub(super) channel: u32,
    /// Its lane's own chunks of scratch.
    pub(super) temporary: u32,
    pub(super) operations: Vec<Operation>,
}

/// A step of a tb before its number is known: nops may come before it.
pub(super) struct Operation {
    draft: Draft,
    count: u32,
    after: Frontier,
}

/// How far tbs have come: the last operation of each that is done.
type Frontier = BTreeMap<u32, u32>;

/// A lane on its way into its tbs.
pub(super) struct LaneState {
    steps: std::vec::IntoIter<Drafted>,
    blocks: std::ops::Range<u32>,
    /// Where its last operation went, and which of the tb's it is.
    last: Option<(u32, u32)>,
    /// What its next operation has to wait for.
    pending: Frontier,
}

impl LaneState {
    pub(super) fn new(steps: Vec<Drafted>, blocks: std::ops::Range<u32>) -> Self {
        Self { steps: steps.into_iter(), blocks, last: None, pending: Frontier::new() }
    }
}

/// A wait ends within a step of several chunks, so that these have to be steps of their own.
pub(super) struct Halfway;

/// Puts every step of a rank's lanes into their tbs.
pub(super) fn place(
    mut lanes: Vec<LaneState>,
    blocks: &mut [Making],
    counters: u32,
) -> Result<Result<(), Halfway>, MscclError> {
    // By counter: how often it has been signalled after each step that does, and what is done by then.
    let mut told: Vec<Vec<(u32, Frontier)>> = vec![Vec::new(); counters as usize];
    loop {
        let mut moved = false;
        for lane in &mut lanes {
            while let Some(step) = lane.steps.as_slice().first() {
                let Some(awaited) = awaited(step, &told) else { break };
                let Ok(awaited) = awaited else { return Ok(Err(Halfway)) };
                if let Some(step) = lane.steps.next() {
                    lane.take(step, awaited, blocks, &mut told);
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

/// What a step waits for, once all of it has been signalled.
fn awaited(step: &Drafted, told: &[Vec<(u32, Frontier)>]) -> Option<Result<Frontier, Halfway>> {
    let mut all = Frontier::new();
    for wait in &step.waits {
        let Wait::Reached { counter, count, .. } = *wait else { continue };
        let told = told.get(counter as usize)?;
        let (total, frontier) = told.get(told.partition_point(|(total, _)| *total < count))?;
        if *total != count {
            return Some(Err(Halfway));
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
        blocks: &mut [Making],
        told: &mut [Vec<(u32, Frontier)>],
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
            let told = &mut told[counter as usize];
            let before = told.last().map_or(0, |(total, _)| *total);
            told.push((before + step.count, done.clone()));
        }
    }

    /// The tb with the draft's peers; without any, that of the operation before, which then need not be waited for.
    fn block_for(&self, draft: &Draft, blocks: &[Making]) -> u32 {
        let fits = |number: &u32| {
            let block = &blocks[*number as usize];
            (draft.receive.is_none() || draft.receive == block.receive)
                && (draft.send.is_none() || draft.send == block.send)
        };
        let last = self.last.map(|(block, _)| block).filter(fits);
        last.or_else(|| self.blocks.clone().find(fits)).unwrap_or(self.blocks.start)
    }
}

/// Numbers the operations of a rank's tbs, with a nop for each wait but the last of an operation.
pub(super) fn number(mut blocks: Vec<Making>) -> Vec<Block> {
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
    let finish = |(own, block): (u32, &Making)| {
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
fn numbers(block: &Making) -> Vec<u32> {
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
        tells: false,
    }
}

impl Operation {
    fn finish(&self, after: Option<(u32, u32)>, tells: bool, temporary: u32) -> program::Step {
        // Where a kind of step has only one place, files name it twice.
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
            tells,
        }
    }
}

/// Takes the further of two, tb by tb.
fn merge(into: &mut Frontier, other: &Frontier) {
    for (&block, &position) in other {
        let furthest = into.entry(block).or_insert(position);
        *furthest = position.max(*furthest);
    }
}
