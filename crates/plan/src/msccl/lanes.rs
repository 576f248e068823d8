//! The steps of a lane in the order they run, if the format can express them.

use super::error::MscclError;
use crate::plan::{Input, Lane, Output, Remote, Step, Wait};
use crate::refusal::Spot;
use crate::walk::Visit;

/// The maximum `cnt` of an MSCCL step.
const COUNT_MAX: usize = 71;

/// A step of a lane, or consecutive steps of which each uses the next chunk.
pub(super) struct Item {
    pub(super) spot: Spot,
    /// At least one.
    pub(super) steps: Vec<Step<u32>>,
}

/// The steps of a lane; `roll` joins those of a loop over consecutive chunks.
pub(super) fn items(rank: u32, number: u32, lane: &Lane, roll: bool) -> Result<Vec<Item>, MscclError> {
    let mut items: Vec<Item> = Vec::new();
    for Visit { step, index, iterations } in lane.walk() {
        let Some(step) = step.at(&iterations) else { continue };
        let spot = Spot { rank, lane: number, step: index, iterations };
        if let Some(reason) = inexpressible(&step, rank) {
            return Err(MscclError::Inexpressible { spot, reason });
        }
        match items.last_mut() {
            Some(item) if roll && continues(item, &spot, &step) => item.steps.push(step),
            _ => items.push(Item { spot, steps: vec![step] }),
        }
    }
    Ok(items)
}

/// The operation of a step that the format cannot express, if there is one.
fn inexpressible(step: &Step<u32>, rank: u32) -> Option<String> {
    for wait in &step.waits {
        match *wait {
            Wait::Entered { rank } => {
                return Some(format!("it waits until rank {rank} has entered the call"));
            }
            Wait::Reached { rank: other, .. } if other != rank => {
                return Some(format!("it waits for a counter of rank {other}"));
            }
            Wait::Reached { .. } => {}
        }
    }
    let reads = step.inputs.iter().find_map(|input| match input {
        Input::Peer(Remote { rank, .. }) => Some(format!("it reads the memory of rank {rank}")),
        Input::Switch(_) => Some("it lets a switch add".to_owned()),
        Input::Local(_) | Input::Received { .. } => None,
    });
    let writes = || {
        step.outputs.iter().find_map(|output| match output {
            Output::Peer(Remote { rank, .. }) => Some(format!("it writes the memory of rank {rank}")),
            Output::Multicast(_) => Some("it stores through a switch".to_owned()),
            Output::Local(_) | Output::Sent { .. } => None,
        })
    };
    reads.or_else(writes)
}

/// Whether a step is the next iteration of a loop over consecutive chunks.
fn continues(item: &Item, spot: &Spot, step: &Step<u32>) -> bool {
    let done = item.steps.len();
    let follows = spot.step == item.spot.step
        && spot.iterations.split_last().zip(item.spot.iterations.split_last()).is_some_and(
            |((now, outer), (first, outer_first))| *now == first + done as u32 && outer == outer_first,
        );
    follows
        && done < COUNT_MAX
        && item.steps[0].inputs.len() + item.steps[0].outputs.len() > 0
        && shifted(&item.steps[0], done as u32).as_ref() == Some(step)
}

/// The same step with all local chunks shifted.
fn shifted(step: &Step<u32>, by: u32) -> Option<Step<u32>> {
    let mut step = step.clone();
    let inputs = step.inputs.iter_mut().filter_map(|input| match input {
        Input::Local(place) => Some(&mut place.chunk),
        _ => None,
    });
    let outputs = step.outputs.iter_mut().filter_map(|output| match output {
        Output::Local(place) => Some(&mut place.chunk),
        _ => None,
    });
    for chunk in inputs.chain(outputs) {
        *chunk = chunk.checked_add(by)?;
    }
    Some(step)
}
