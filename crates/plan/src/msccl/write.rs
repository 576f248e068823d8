//! Converts a plan to a program: unrolls loops, splits lanes into tbs with one peer each way, and turns counters into
//! dependencies.

use super::error::MscclError;
use super::lanes::{Item, items};
use super::order::{BlockDraft, Drafted, LaneState, PartialWait, number, place};
use super::pairs;
use super::parse::CHUNK_STEPS_MAX;
use super::program::{Block, COLLECTIVES, Gpu, Program, with_root};
use super::split::{Context, Where, last_received, sent, split};
use crate::plan::{Aliasing, Buffer, Input, Lane, Plan, Protocol};
use crate::well_formed::WellFormed;

/// Converts a plan to a program.
pub(super) fn program(plan: &Plan) -> Result<Program, MscclError> {
    WellFormed::check(plan)?;
    let steps = plan.chunk_steps();
    if steps > CHUNK_STEPS_MAX {
        let what = format!(
            "it has {steps} steps with its loops unrolled, more than the {CHUNK_STEPS_MAX} of a file"
        );
        return Err(MscclError::InexpressiblePlan(what));
    }
    // A loop over consecutive chunks is one step if both ends of its messages are, and no wait ends in its middle.
    if let Ok(program) = build(plan, true)?
        && pairs::check(&program).is_ok()
    {
        return Ok(program);
    }
    let Ok(program) = build(plan, false)? else { unreachable!("no wait ends within a step of one chunk") };
    Ok(program)
}

fn build(plan: &Plan, roll: bool) -> Result<Result<Program, PartialWait>, MscclError> {
    let kind = with_root(&plan.collective, 0);
    if !COLLECTIVES.iter().any(|(_, known)| *known == kind) {
        return Err(MscclError::InexpressiblePlan(format!("it is a {}", plan.collective)));
    }
    let protocol = plan.channels.first().map_or(Protocol::Simple, |channel| channel.protocol);
    if plan.channels.iter().any(|channel| channel.protocol != protocol) {
        return Err(MscclError::InexpressiblePlan("its channels have different protocols".to_owned()));
    }
    let mut gpus = Vec::new();
    for rank in 0..plan.ranks {
        match (RankWriter { plan, rank, roll }).gpu()? {
            Ok(gpu) => gpus.push(gpu),
            Err(halfway) => return Ok(Err(halfway)),
        }
    }
    // A plan has one number for all ranks.
    let scratch = gpus.iter().map(|gpu| gpu.scratch_chunks).max().unwrap_or(0);
    gpus.iter_mut().for_each(|gpu| gpu.scratch_chunks = scratch);
    Ok(Ok(Program {
        name: plan.name.clone(),
        protocol,
        collective: plan.collective.clone(),
        chunks: plan.chunks.input.max(plan.chunks.output),
        aliasing: plan.aliasing.clone(),
        gpus,
    }))
}

struct RankWriter<'p> {
    plan: &'p Plan,
    rank: u32,
    roll: bool,
}

impl RankWriter<'_> {
    fn gpu(&self) -> Result<Result<Gpu, PartialWait>, MscclError> {
        let (mut blocks, mut lanes) = (Vec::new(), Vec::new());
        let mut scratch = self.plan.chunks.scratch;
        for (number, lane) in (0..).zip(&self.plan.programs[self.rank as usize].lanes) {
            let first = blocks.len() as u32;
            let (steps, makings) = self.lane(number, lane, scratch)?;
            blocks.extend(makings);
            scratch += temporary_chunks(&steps);
            lanes.push(LaneState::new(steps, first..blocks.len() as u32));
        }
        if let Err(halfway) = place(lanes, &mut blocks, self.plan.counters)? {
            return Ok(Err(halfway));
        }
        let mut blocks = number(blocks);
        if blocks.is_empty() {
            blocks.push(Block::default());
        }
        let Plan { collective, ranks, .. } = self.plan;
        let per_block = self.plan.chunks_per_block();
        Ok(Ok(Gpu {
            input_chunks: collective.gives(self.rank, *ranks) * per_block,
            output_chunks: collective.gets(self.rank, *ranks) * per_block,
            scratch_chunks: scratch,
            blocks,
        }))
    }

    /// A lane's steps, and its empty tbs.
    fn lane(
        &self,
        number: u32,
        lane: &Lane,
        temporary: u32,
    ) -> Result<(Vec<Drafted>, Vec<BlockDraft>), MscclError> {
        let items = items(self.rank, number, lane, self.roll)?;
        let peers = peers(&items);
        let joined = |from, to| peers.contains(&(Some(to), Some(from)));
        let aliased = |a: (Buffer, u32), b: (Buffer, u32)| a == b || self.alias(a) == Some(b);
        let context = Context { aliased: &aliased, joined: &joined };
        let steps: Vec<_> = items.into_iter().flat_map(|item| drafted(item, &context)).collect();
        let moves = steps.iter().any(|step| !step.drafts.is_empty());
        let block = |(send, receive)| BlockDraft {
            send,
            receive,
            channel: lane.channel,
            temporary,
            operations: Vec::new(),
        };
        Ok((steps, peers.into_iter().filter(|_| moves).map(block).collect()))
    }

    /// The chunk of the other buffer that is the same memory in place, if the plan supports calls in place.
    fn alias(&self, (buffer, chunk): (Buffer, u32)) -> Option<(Buffer, u32)> {
        if !self.plan.aliasing.contains(&Aliasing::InPlace) {
            return None;
        }
        let per_block = self.plan.chunks_per_block();
        let (other, block) = self.plan.collective.alias_in_place(self.rank, buffer, chunk / per_block)?;
        Some((other, block * per_block + chunk % per_block))
    }
}

/// The chunks of scratch that the drafts of a lane need for themselves.
fn temporary_chunks(steps: &[Drafted]) -> u32 {
    let uses = |step: &&Drafted| {
        let mut places = step.drafts.iter().flat_map(|draft| [draft.source, draft.target]);
        places.any(|place| place == Some(Where::Temporary))
    };
    steps.iter().filter(uses).map(|step| step.count).max().unwrap_or(0)
}

/// The drafts of an item: all its chunks at once if one draft is enough, else chunk by chunk.
fn drafted(item: Item, context: &Context<'_>) -> Vec<Drafted> {
    let Item { spot, steps } = item;
    let count = steps.len() as u32;
    let one = |step: &crate::plan::Step<u32>, count| Drafted {
        spot: spot.clone(),
        waits: step.waits.clone(),
        drafts: split(step, context),
        count,
        signals: step.signals.clone(),
    };
    match steps.as_slice() {
        [first, _, ..] if split(first, context).len() == 1 => vec![one(first, count)],
        steps => steps.iter().map(|step| one(step, 1)).collect(),
    }
}

/// The peers of a lane's tbs: to send to, to receive from. Pairs the peers that a step can serve at once, then those that are
/// the same rank, then the rest.
fn peers(items: &[Item]) -> Vec<(Option<u32>, Option<u32>)> {
    let (mut sends, mut receives, mut tbs) = (Vec::new(), Vec::new(), Vec::new());
    for step in items.iter().flat_map(|item| &item.steps) {
        let froms = step.inputs.iter().filter_map(|input| match input {
            Input::Received { from } => Some(*from),
            _ => None,
        });
        receives.extend(froms);
        sends.extend(sent(step));
    }
    for list in [&mut sends, &mut receives] {
        list.sort_unstable();
        list.dedup();
    }
    let mut join = |sends: &mut Vec<u32>, receives: &mut Vec<u32>, to: u32, from: u32| {
        let free =
            (sends.iter().position(|&peer| peer == to), receives.iter().position(|&peer| peer == from));
        if let (Some(send), Some(receive)) = free {
            tbs.push((Some(sends.remove(send)), Some(receives.remove(receive))));
        }
    };
    for step in items.iter().flat_map(|item| &item.steps) {
        for (to, from) in sent(step).zip(last_received(step).into_iter().cycle()) {
            join(&mut sends, &mut receives, to, from);
        }
    }
    for peer in sends.clone() {
        join(&mut sends, &mut receives, peer, peer);
    }
    let left = sends.len().max(receives.len());
    tbs.extend((0..left).map(|at| (sends.get(at).copied(), receives.get(at).copied())));
    if tbs.is_empty() {
        tbs.push((None, None));
    }
    tbs
}
