//! Splits one step of a plan into MSCCL's kinds of steps, which have at most one peer each way and one place to write.
//!
//! The result accumulates in one place: the first of the step's local outputs, unless a later input is the same memory, or
//! else a chunk of scratch of the lane's own. Other outputs are copied or sent from there.

use super::program::Kind;
use crate::plan::{Buffer, Input, Op, Output, Place, Step};

/// An MSCCL step without number and dependencies.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) kind: Kind,
    pub(super) source: Option<Where>,
    pub(super) target: Option<Where>,
    pub(super) receive: Option<u32>,
    pub(super) send: Option<u32>,
}

/// The memory of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// A chunk of the plan.
    Chunk(Buffer, u32),
    /// The lane's own chunk of scratch.
    Temporary,
}

/// The rank's context.
pub(super) struct Context<'a> {
    /// Whether two places are the same memory under some aliasing of the plan.
    pub(super) aliased: &'a dyn Fn((Buffer, u32), (Buffer, u32)) -> bool,
    /// Whether a tb receives from the first and sends to the second.
    pub(super) joined: &'a dyn Fn(u32, u32) -> bool,
}

/// The peer whose message the last draft receives. A tb with this peer and one of those that the result is sent to does both
/// in one step.
pub(super) fn last_received(step: &Step<u32>) -> Option<u32> {
    match step.inputs.as_slice() {
        [.., Input::Received { from }] | [Input::Received { from }, Input::Local(_)] => Some(*from),
        _ => None,
    }
}

/// The peers a step sends to.
pub(super) fn sent(step: &Step<u32>) -> impl Iterator<Item = u32> {
    step.outputs.iter().filter_map(|output| match output {
        Output::Sent { to } => Some(*to),
        _ => None,
    })
}

/// The drafts of a step whose places are all local, in the order they must run.
pub(super) fn split(step: &Step<u32>, context: &Context<'_>) -> Vec<Draft> {
    let stores: Vec<(Buffer, u32)> = step.outputs.iter().filter_map(local_output).collect();
    let mut sends: Vec<u32> = sent(step).collect();
    let mut drafts = Vec::new();
    let (held, others) = match (step.op, step.inputs.as_slice()) {
        (Op::Sync, _) => return drafts,
        (Op::Copy, [Input::Local(Place { buffer, chunk })]) => (Where::Chunk(*buffer, *chunk), &stores[..]),
        (_, inputs) => {
            let taken = first_taken(inputs);
            let rest: Vec<_> = inputs[taken..].iter().filter_map(local_input).collect();
            let safe = |store: &(Buffer, u32)| !rest.iter().any(|&input| (context.aliased)(*store, input));
            let held = match stores.first().filter(|store| safe(store)) {
                Some((buffer, chunk)) => Where::Chunk(*buffer, *chunk),
                None => Where::Temporary,
            };
            drafts.extend(begin(&inputs[..taken], held));
            drafts.extend(inputs[taken..].iter().map(|input| add(input, held)));
            join_send(&mut drafts, &stores, &mut sends, context);
            (held, if held == Where::Temporary { &stores[..] } else { &stores[1..] })
        }
    };
    drafts.extend(others.iter().map(|&(buffer, chunk)| Draft {
        source: Some(held),
        ..Draft::to(Kind::Copy, Where::Chunk(buffer, chunk))
    }));
    drafts.extend(sends.into_iter().map(|to| Draft {
        kind: Kind::Send,
        source: Some(held),
        target: None,
        receive: None,
        send: Some(to),
    }));
    drafts
}

impl Draft {
    fn to(kind: Kind, target: Where) -> Self {
        Self { kind, source: None, target: Some(target), receive: None, send: None }
    }
}

/// The number of inputs of the first draft: it can take a message and a local chunk at once.
fn first_taken(inputs: &[Input<u32>]) -> usize {
    match inputs {
        [Input::Received { .. }, Input::Local(_), ..] | [Input::Local(_), Input::Received { .. }, ..] => 2,
        _ => 1,
    }
}

/// The first draft; none if the input is already where the result accumulates.
fn begin(inputs: &[Input<u32>], held: Where) -> Option<Draft> {
    let received = inputs.iter().find_map(|input| match input {
        Input::Received { from } => Some(*from),
        _ => None,
    });
    let own = inputs.iter().find_map(local_input).map(|(buffer, chunk)| Where::Chunk(buffer, chunk));
    let kind = match (received, own) {
        (Some(_), Some(_)) => Kind::ReceiveReduceCopy,
        (Some(_), None) => Kind::Receive,
        (None, _) => Kind::Copy,
    };
    let needed = kind != Kind::Copy || own != Some(held);
    needed.then(|| Draft { source: own, receive: received, ..Draft::to(kind, held) })
}

/// Adds one more input to the accumulated result.
fn add(input: &Input<u32>, held: Where) -> Draft {
    match input {
        Input::Received { from } => {
            Draft { source: Some(held), receive: Some(*from), ..Draft::to(Kind::ReceiveReduceCopy, held) }
        }
        _ => Draft {
            source: local_input(input).map(|(buffer, chunk)| Where::Chunk(buffer, chunk)),
            ..Draft::to(Kind::Reduce, held)
        },
    }
}

/// Lets the last draft send as well, if its tb can; it does not store if there is no other output.
fn join_send(drafts: &mut [Draft], stores: &[(Buffer, u32)], sends: &mut Vec<u32>, context: &Context<'_>) {
    let Some(draft) = drafts.last_mut() else { return };
    let Some(from) = draft.receive else { return };
    let Some(position) = sends.iter().position(|&to| (context.joined)(from, to)) else { return };
    draft.kind = match draft.kind {
        Kind::Receive => Kind::ReceiveCopySend,
        _ if stores.is_empty() && sends.len() == 1 => {
            draft.target = None;
            Kind::ReceiveReduceSend
        }
        _ => Kind::ReceiveReduceCopySend,
    };
    draft.send = Some(sends.remove(position));
}

fn local_input(input: &Input<u32>) -> Option<(Buffer, u32)> {
    match input {
        Input::Local(Place { buffer, chunk }) => Some((*buffer, *chunk)),
        _ => None,
    }
}

fn local_output(output: &Output<u32>) -> Option<(Buffer, u32)> {
    match output {
        Output::Local(Place { buffer, chunk }) => Some((*buffer, *chunk)),
        _ => None,
    }
}
