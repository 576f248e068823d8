//! Mistakes in one number: a rank, a chunk, a threshold.

use weftlink_plan::Affine;
use weftlink_plan::plan::{Buffer, Input, Output, Plan, Step, Wait};

/// The meaning of a number.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Rank,
    Chunk(Buffer),
    Count,
}

impl Role {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Role::Rank => "rank changed",
            Role::Chunk(_) => "chunk changed",
            Role::Count => "threshold changed",
        }
    }
}

/// All numbers of a step that may depend on loops, with their names.
pub(super) fn indices(step: &mut Step) -> Vec<(String, Role, &mut Affine)> {
    let mut found = Vec::new();
    for (index, wait) in step.waits.iter_mut().enumerate() {
        match wait {
            Wait::Entered { rank } => found.push((format!("wait {index} rank"), Role::Rank, rank)),
            Wait::Reached { rank, count, .. } => {
                found.push((format!("wait {index} rank"), Role::Rank, rank));
                found.push((format!("wait {index} threshold"), Role::Count, count));
            }
        }
    }
    for (index, input) in step.inputs.iter_mut().enumerate() {
        match input {
            Input::Local(place) => {
                found.push((format!("input {index} chunk"), Role::Chunk(place.buffer), &mut place.chunk));
            }
            Input::Switch(all) => {
                found.push((format!("input {index} chunk"), Role::Chunk(all.buffer), &mut all.chunk));
            }
            Input::Received { from } => found.push((format!("input {index} rank"), Role::Rank, from)),
            Input::Peer(remote) => {
                found.push((format!("input {index} rank"), Role::Rank, &mut remote.rank));
                found.push((format!("input {index} chunk"), Role::Chunk(remote.buffer), &mut remote.chunk));
            }
        }
    }
    for (index, output) in step.outputs.iter_mut().enumerate() {
        match output {
            Output::Local(place) => {
                found.push((format!("output {index} chunk"), Role::Chunk(place.buffer), &mut place.chunk));
            }
            Output::Multicast(all) => {
                found.push((format!("output {index} chunk"), Role::Chunk(all.buffer), &mut all.chunk));
            }
            Output::Sent { to } => found.push((format!("output {index} rank"), Role::Rank, to)),
            Output::Peer(remote) => {
                found.push((format!("output {index} rank"), Role::Rank, &mut remote.rank));
                found.push((format!("output {index} chunk"), Role::Chunk(remote.buffer), &mut remote.chunk));
            }
        }
    }
    found
}

/// Replacements of a number, with their descriptions. `loops` is its nesting depth.
pub(super) fn variations(affine: &Affine, role: Role, plan: &Plan, loops: usize) -> Vec<(String, Affine)> {
    let mut found = Vec::new();
    let constant = affine.at(&[]).filter(|&value| Affine::from(value) == *affine);
    if let Some(value) = constant {
        for other in other_constants(value, role, plan) {
            found.push((format!("{other} instead of {value}"), other.into()));
        }
    } else {
        found.push(("base + 1".into(), Affine { base: affine.base + 1, ..affine.clone() }));
        found.push(("base - 1".into(), Affine { base: affine.base - 1, ..affine.clone() }));
        if let Some(modulo) = affine.modulo {
            found.push(("modulo dropped".into(), Affine { modulo: None, ..affine.clone() }));
            found.push(("modulo + 1".into(), Affine { modulo: Some(modulo + 1), ..affine.clone() }));
            let less = Affine { modulo: Some(modulo.saturating_sub(1)), ..affine.clone() };
            found.push(("modulo - 1".into(), less));
        }
    }
    found.push(("offset + 1".into(), Affine { offset: affine.offset + 1, ..affine.clone() }));
    found.push(("offset - 1".into(), Affine { offset: affine.offset - 1, ..affine.clone() }));
    for depth in 0..loops {
        for change in [1, -1] {
            let mut by = affine.by.clone();
            by.resize(by.len().max(depth + 1), 0);
            by[depth] += change;
            found.push((format!("stride {depth} changed by {change}"), Affine { by, ..affine.clone() }));
        }
    }
    found
}

fn other_constants(value: u32, role: Role, plan: &Plan) -> Vec<u32> {
    match role {
        Role::Rank => (0..plan.ranks).filter(|&other| other != value).collect(),
        Role::Count => vec![value + 1, value.saturating_sub(1)],
        Role::Chunk(buffer) => {
            let chunks = match buffer {
                Buffer::Input => plan.chunks.input,
                Buffer::Output => plan.chunks.output,
                Buffer::Scratch => plan.chunks.scratch,
            };
            if chunks < 2 { vec![] } else { vec![(value + 1) % chunks, (value + chunks - 1) % chunks] }
        }
    }
}
