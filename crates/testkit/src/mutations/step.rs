//! Mistakes in one step.

use weftlink_plan::Affine;
use weftlink_plan::plan::{Buffer, Grouped, Input, Op, Output, Place, Remote, Step, Wait};

use super::{Site, index};

/// A step with one mistake.
pub(super) struct Variation {
    pub(super) kind: &'static str,
    pub(super) what: String,
    pub(super) step: Step,
}

/// All mistakes in a step inside `loops` loops.
pub(super) fn variations(step: &Step, loops: usize, site: &Site<'_>) -> Vec<Variation> {
    let mut found = Vec::new();
    let mut change = |kind, what: String, change: &dyn Fn(&mut Step)| {
        let mut step = step.clone();
        change(&mut step);
        found.push(Variation { kind, what, step });
    };
    for op in [Op::Sync, Op::Copy, Op::Reduce] {
        change("op changed", format!("{op:?} instead of {:?}", step.op), &|step| step.op = op);
    }
    for i in 0..step.waits.len() {
        change("wait dropped", format!("dropped wait {i}"), &|step| drop(step.waits.remove(i)));
        change("wait changed", format!("other sort of wait {i}"), &|step| other_sort(&mut step.waits[i]));
        if let Wait::Reached { counter, .. } = step.waits[i] {
            for other in other_counters(counter, site) {
                let what = format!("wait {i} for counter {other}");
                change("wait counter changed", what, &|step| {
                    if let Wait::Reached { counter, .. } = &mut step.waits[i] {
                        *counter = other;
                    }
                });
            }
        }
    }
    for i in 0..step.signals.len() {
        let signal = step.signals[i];
        change("signal dropped", format!("dropped signal {i}"), &|step| {
            step.signals.remove(i);
        });
        change("signal doubled", format!("doubled signal {i}"), &|step| step.signals.push(signal));
        for other in other_counters(signal, site) {
            let what = format!("signals {other} instead of {signal}");
            change("signal changed", what, &|step| step.signals[i] = other);
        }
    }
    for counter in (0..site.plan.counters).filter(|counter| !step.signals.contains(counter)) {
        change("signal added", format!("signals {counter} too"), &|step| step.signals.push(counter));
    }
    for i in 0..step.inputs.len() {
        change("input dropped", format!("dropped input {i}"), &|step| drop(step.inputs.remove(i)));
        change("input doubled", format!("doubled input {i}"), &|step| {
            step.inputs.insert(i, step.inputs[i].clone());
            step.op = Op::Reduce;
        });
        for j in i + 1..step.inputs.len() {
            change("inputs swapped", format!("swapped inputs {i} and {j}"), &|step| step.inputs.swap(i, j));
        }
        for (what, other) in other_inputs(&step.inputs[i], site) {
            change("input changed", format!("input {i} {what}"), &|step| step.inputs[i] = other.clone());
        }
    }
    for i in 0..step.outputs.len() {
        change("output dropped", format!("dropped output {i}"), &|step| drop(step.outputs.remove(i)));
        change("output doubled", format!("doubled output {i}"), &|step| {
            step.outputs.insert(i, step.outputs[i].clone());
        });
        for (what, other) in other_outputs(&step.outputs[i], site) {
            change("output changed", format!("output {i} {what}"), &|step| step.outputs[i] = other.clone());
        }
    }
    let mut copy = step.clone();
    for (i, (label, role, affine)) in index::indices(&mut copy).into_iter().enumerate() {
        for (what, other) in index::variations(affine, role, site.plan, loops) {
            change(role.kind(), format!("{label} {what}"), &|step| {
                if let Some((_, _, affine)) = index::indices(step).into_iter().nth(i) {
                    *affine = other.clone();
                }
            });
        }
    }
    found
}

/// Replaces an entry wait by a counter, or a counter by an entry wait.
fn other_sort(wait: &mut Wait) {
    *wait = match wait.clone() {
        Wait::Entered { rank } => Wait::Reached { rank, counter: 0, count: 1.into() },
        Wait::Reached { rank, .. } => Wait::Entered { rank },
    };
}

/// The other counters, and one that does not exist.
fn other_counters(counter: u32, site: &Site<'_>) -> impl Iterator<Item = u32> {
    (0..=site.plan.counters).filter(move |&other| other != counter)
}

/// The other groups, and one that does not exist.
fn other_groups(group: u32, site: &Site<'_>) -> impl Iterator<Item = u32> {
    (0..=site.plan.groups.len() as u32).filter(move |&other| other != group)
}

/// The rank after the one that runs the program.
fn next_rank(site: &Site<'_>) -> Affine {
    ((site.rank as u32 + 1) % site.plan.ranks).into()
}

fn other_buffers(buffer: Buffer, site: &Site<'_>) -> impl Iterator<Item = Buffer> {
    let scratch = site.plan.chunks.scratch > 0;
    let all = [Buffer::Input, Buffer::Output, Buffer::Scratch].into_iter();
    all.filter(move |&other| other != buffer && (scratch || other != Buffer::Scratch))
}

fn other_inputs(input: &Input, site: &Site<'_>) -> Vec<(String, Input)> {
    let mut found = Vec::new();
    let has_channels = !site.plan.channels.is_empty();
    match input.clone() {
        Input::Local(place) => {
            for buffer in other_buffers(place.buffer, site) {
                found.push((format!("from {buffer}"), Input::Local(Place { buffer, ..place.clone() })));
            }
            let remote = Remote { rank: next_rank(site), buffer: place.buffer, chunk: place.chunk };
            found.push(("from the next rank's memory".into(), Input::Peer(remote)));
            if has_channels {
                found.push(("received from the next rank".into(), Input::Received { from: next_rank(site) }));
            }
        }
        Input::Received { from } => {
            let remote = Remote { rank: from, buffer: Buffer::Input, chunk: 0.into() };
            found.push(("from the sender's input".into(), Input::Peer(remote)));
            found.push(("from own input".into(), Input::Local(Place::input(0))));
        }
        Input::Switch(all) => {
            for group in other_groups(all.group, site) {
                let other = Input::Switch(Grouped { group, ..all.clone() });
                found.push((format!("from group {group}"), other));
            }
            for buffer in other_buffers(all.buffer, site) {
                found.push((format!("from {buffer}"), Input::Switch(Grouped { buffer, ..all.clone() })));
            }
            let place = Place { buffer: all.buffer, chunk: all.chunk };
            found.push(("from own memory".into(), Input::Local(place)));
        }
        Input::Peer(remote) => {
            for buffer in other_buffers(remote.buffer, site) {
                let other = Remote { buffer, ..remote.clone() };
                found.push((format!("from {buffer}"), Input::Peer(other)));
            }
            let place = Place { buffer: remote.buffer, chunk: remote.chunk };
            found.push(("from own memory".into(), Input::Local(place)));
            if has_channels {
                found.push(("received".into(), Input::Received { from: remote.rank }));
            }
        }
    }
    found
}

fn other_outputs(output: &Output, site: &Site<'_>) -> Vec<(String, Output)> {
    let mut found = Vec::new();
    let has_channels = !site.plan.channels.is_empty();
    match output.clone() {
        Output::Local(place) => {
            for buffer in other_buffers(place.buffer, site) {
                found.push((format!("to {buffer}"), Output::Local(Place { buffer, ..place.clone() })));
            }
            let remote = Remote { rank: next_rank(site), buffer: place.buffer, chunk: place.chunk };
            found.push(("to the next rank's memory".into(), Output::Peer(remote)));
            if has_channels {
                found.push(("sent to the next rank".into(), Output::Sent { to: next_rank(site) }));
            }
        }
        Output::Sent { to } => {
            let remote = Remote { rank: to, buffer: Buffer::Output, chunk: 0.into() };
            found.push(("to the receiver's output".into(), Output::Peer(remote)));
            found.push(("to own output".into(), Output::Local(Place::output(0))));
        }
        Output::Multicast(all) => {
            for group in other_groups(all.group, site) {
                let other = Output::Multicast(Grouped { group, ..all.clone() });
                found.push((format!("to group {group}"), other));
            }
            for buffer in other_buffers(all.buffer, site) {
                found.push((format!("to {buffer}"), Output::Multicast(Grouped { buffer, ..all.clone() })));
            }
            let place = Place { buffer: all.buffer, chunk: all.chunk };
            found.push(("to own memory".into(), Output::Local(place)));
        }
        Output::Peer(remote) => {
            for buffer in other_buffers(remote.buffer, site) {
                let other = Remote { buffer, ..remote.clone() };
                found.push((format!("to {buffer}"), Output::Peer(other)));
            }
            let place = Place { buffer: remote.buffer, chunk: remote.chunk };
            found.push(("to own memory".into(), Output::Local(place)));
            if has_channels {
                found.push(("sent".into(), Output::Sent { to: remote.rank }));
            }
        }
    }
    found
}
