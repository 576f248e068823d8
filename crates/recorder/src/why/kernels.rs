//! Ranks on GPUs. A program enqueues calls long before they run, so a later call in the record of a rank does not say that the rank has
//! done its part of an earlier one: only what its kernels reported does.
//!
//! A rank that others wait for and that reports nothing is the likely cause: its kernel has not started, or runs without waiting, or is in a
//! graph that was not launched again.

use std::collections::BTreeMap;

use weftlink_shm::line::distance;

use super::sentences::{capital, named};
use super::{Picture, call_of, is_gone};
use crate::recorder::{CallState, RankState, Record, WaitRecord};

/// Why a kernel that was launched does not run.
const NOT_STARTED: &str = "work before it on its stream has not ended, or the GPU has no free queue for it \
                           (CUDA_DEVICE_MAX_CONNECTIONS) or no room";

/// Whether a kernel waits, and not the program.
pub(super) fn is_of_kernel(waiting: &WaitRecord) -> bool {
    waiting.blocks.is_some()
}

/// The wait of the kernel of a call.
pub(super) fn kernel_wait(record: &Record) -> Option<&WaitRecord> {
    record.waiting.as_ref().filter(|waiting| is_of_kernel(waiting) && !waiting.in_group)
}

/// The number of the call that a rank has surely begun; on a GPU nothing if its last call was only enqueued.
pub(super) fn begun(record: &Record) -> Option<u32> {
    let last = record.calls.last();
    let is_waiting = last.is_some_and(|call| matches!(call.state, CallState::Enqueued | CallState::Captured));
    match kernel_wait(record) {
        Some(waiting) => Some(waiting.call),
        None if is_waiting => None,
        None => record.last_number(),
    }
}

/// Whether a rank on a GPU has done its part of a call.
pub(super) fn has_done(record: &Record, call: u32) -> bool {
    let state = |number: u32| call_of(record, number).map(|call| call.state);
    match state(call) {
        // It loads a plan, which the program waits for.
        Some(CallState::Done) => true,
        // A graph runs its calls again.
        Some(CallState::Captured) => false,
        _ => {
            let started = kernel_wait(record).map(|waiting| waiting.call);
            let started = started.or_else(|| record.kernels?.started);
            let is_later =
                |started: u32| distance(started, call) > 0 && state(started) != Some(CallState::Captured);
            started.is_some_and(is_later)
        }
    }
}

/// What is known of a rank that others wait for and whose kernels do not wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Silence {
    NotStarted,
    NotStartedOrBusy,
    Started,
    InGraph,
}

impl Picture<'_> {
    /// Ranks on GPUs that others wait for, and whose kernels do not wait.
    pub(super) fn silent(&self, waiting: &[(&Record, &WaitRecord)], sentences: &mut Vec<String>) {
        let mut alike: BTreeMap<(u32, Silence), Vec<u32>> = BTreeMap::new();
        for record in self.records.iter().filter(|record| reports(record)) {
            let awaited = waiting.iter().filter(|(_, wait)| wait.rank == Some(record.rank) && !wait.in_group);
            let awaited: Vec<&WaitRecord> = awaited.map(|(_, wait)| *wait).collect();
            let first = awaited.iter().map(|wait| wait.call);
            let Some(call) = first.reduce(|one, other| if distance(other, one) < 0 { other } else { one })
            else {
                continue;
            };
            // A rank that has not enqueued the call fell behind, as another sentence says.
            let has_enqueued = record.last_number().is_some_and(|last| distance(last, call) >= 0);
            if record.waiting.as_ref().is_some_and(is_of_kernel) || !has_enqueued {
                continue;
            }
            let is_captured = call_of(record, call).is_some_and(|call| call.state == CallState::Captured);
            let has_started = record.kernels.is_some_and(|kernels| kernels.started == Some(call));
            // A kernel sends its entry before anything else.
            let is_entry = awaited.iter().any(|wait| wait.call == call && wait.what == "to make the call");
            let silence = match (is_captured, has_started, is_entry) {
                (true, ..) => Silence::InGraph,
                (_, true, _) => Silence::Started,
                (_, _, true) => Silence::NotStarted,
                _ => Silence::NotStartedOrBusy,
            };
            alike.entry((call, silence)).or_default().push(record.rank);
        }
        for ((call, silence), ranks) in alike {
            let (have, its, kernel, has) = match ranks.len() {
                1 => ("has", "its", "kernel", "has"),
                _ => ("have", "their", "kernels", "have"),
            };
            let ranks = capital(&named(&ranks));
            sentences.push(match silence {
                Silence::NotStarted => {
                    format!("{ranks} {have} enqueued #{call}, and {its} {kernel} {has} not started: {NOT_STARTED}.")
                }
                Silence::NotStartedOrBusy => format!(
                    "{ranks} {have} enqueued #{call}, and no block of {its} {kernel} waits: the {kernel} {has} not started \
                     ({NOT_STARTED}), or still moves data."
                ),
                Silence::Started => format!(
                    "{ranks} {have} started #{call}, and no block of {its} {kernel} waits: the {kernel} still moves data, or the GPU has no \
                     room for all blocks."
                ),
                Silence::InGraph => format!(
                    "{ranks} {have} captured #{call} in a graph, and no block of {its} {kernel} waits: the graph was not launched again, or \
                     the {kernel} {has} not started ({NOT_STARTED}), or still moves data."
                ),
            });
        }
    }

    /// Ranks on GPUs that run, and whose kernels cannot be read.
    pub(super) fn unreadable(&self) -> Vec<u32> {
        let is_unreadable =
            |record: &&&Record| record.is_on_gpu() && record.kernels.is_none() && is_live(record);
        self.records.iter().filter(is_unreadable).map(|record| record.rank).collect()
    }
}

/// Whether silence of a rank says something: its kernels can report.
fn reports(record: &Record) -> bool {
    record.kernels.is_some() && is_live(record)
}

fn is_live(record: &Record) -> bool {
    record.state == RankState::Running && !is_gone(record)
}
