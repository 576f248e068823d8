//! Mistakes that all ranks make: the mistake of one rank of a symmetric plan, applied to its whole class.

use weftlink_plan::classes::{Classes, Turn};
use weftlink_plan::plan::{Grouped, Input, Lane, Output, Place, Plan, Program, Remote, Step, Wait};

/// Applies the mistake of one rank of a mutant to every rank of its class, mapped by the plan's symmetry; loops are unrolled. A mistake
/// outside programs stays as it is. None if the plan declares no symmetry, or the symmetry cannot map the mistake.
pub fn turned(plan: &Plan, mutant: &Plan) -> Option<Plan> {
    plan.symmetry.as_ref()?;
    let classes = Classes::check(plan).ok()?;
    if mutant.programs == plan.programs {
        return Some(mutant.clone());
    }
    let mut different = (0..plan.ranks).filter(|&rank| {
        let rank = rank as usize;
        plan.programs[rank] != mutant.programs[rank]
    });
    let (Some(rank), None) = (different.next(), different.next()) else { return None };
    let back = classes.inverse(classes.turn_of(rank));
    let mut everywhere = plan.clone();
    for other in (0..plan.ranks).filter(|&other| classes.position(other) == classes.position(rank)) {
        let turn = classes.then(back, classes.turn_of(other));
        everywhere.programs[other as usize] = program(plan, &mutant.programs[rank as usize], &classes, turn)?;
    }
    Some(everywhere)
}

fn program(plan: &Plan, program: &Program, classes: &Classes, turn: Turn) -> Option<Program> {
    let lane = |lane: &Lane| {
        let steps = lane
            .walk()
            .map(|visit| Some(step(plan, &visit.step.at(&visit.iterations)?, classes, turn)?.into()));
        Some(Lane { channel: lane.channel, nodes: steps.collect::<Option<_>>()? })
    };
    Some(Program { lanes: program.lanes.iter().map(lane).collect::<Option<_>>()? })
}

/// A step with all its ranks, chunks and groups mapped; none if its group maps to no group.
fn step(plan: &Plan, step: &Step<u32>, classes: &Classes, turn: Turn) -> Option<Step> {
    let rank = |rank: u32| classes.rank(rank, turn).into();
    let place = |place: &Place<u32>| {
        let chunk = classes.chunk(place.buffer, place.chunk, turn).into();
        Place { buffer: place.buffer, chunk }
    };
    let remote = |remote: &Remote<u32>| {
        let chunk = classes.chunk(remote.buffer, remote.chunk, turn).into();
        Remote { rank: rank(remote.rank), buffer: remote.buffer, chunk }
    };
    let grouped = |all: &Grouped<u32>| {
        let mut members = plan.groups.get(all.group as usize)?.members.clone();
        members.iter_mut().for_each(|member| *member = classes.rank(*member, turn));
        members.sort_unstable();
        let group = plan.groups.iter().position(|group| group.members == members)? as u32;
        let chunk = classes.chunk(all.buffer, all.chunk, turn).into();
        Some(Grouped { group, buffer: all.buffer, chunk })
    };
    let wait = |wait: &Wait<u32>| match *wait {
        Wait::Entered { rank: of } => Wait::Entered { rank: rank(of) },
        Wait::Reached { rank: of, counter, count } => {
            Wait::Reached { rank: rank(of), counter, count: count.into() }
        }
    };
    let input = |input: &Input<u32>| {
        Some(match input {
            Input::Local(local) => Input::Local(place(local)),
            Input::Received { from } => Input::Received { from: rank(*from) },
            Input::Peer(peer) => Input::Peer(remote(peer)),
            Input::Switch(all) => Input::Switch(grouped(all)?),
        })
    };
    let output = |output: &Output<u32>| {
        Some(match output {
            Output::Local(local) => Output::Local(place(local)),
            Output::Sent { to } => Output::Sent { to: rank(*to) },
            Output::Peer(peer) => Output::Peer(remote(peer)),
            Output::Multicast(all) => Output::Multicast(grouped(all)?),
        })
    };
    Some(Step {
        waits: step.waits.iter().map(wait).collect(),
        inputs: step.inputs.iter().map(input).collect::<Option<_>>()?,
        op: step.op,
        outputs: step.outputs.iter().map(output).collect::<Option<_>>()?,
        signals: step.signals.clone(),
    })
}
