//! Predicted times of calls on host memory, as `weft sim` predicts them: for a host on which each rank has a core.

use std::sync::Arc;

use weftlink::plan::Collective;
use weftlink::plan::choose::measured::Memory;
use weftlink::sim::Constants;
use weftlink::sim::host::{self, Hosts};
use weftlink::sim::setup::{Library, Operation};

use crate::comm::Comm;
use crate::failure::Failure;
use crate::open::Open;
use crate::work::{Call, What, Work};

/// Longer calls are not predicted: their time, in picoseconds, may exceed a number.
const BYTES_MAX: u64 = 1 << 40;

/// The predicted time of the calls of a group: that of the communicator whose calls take longest, because communicators work at the same time.
pub(crate) fn microseconds(calls: &[(Arc<Comm>, Call)]) -> Result<f64, Failure> {
    if calls.is_empty() {
        return Err(Failure::usage("the group has no calls to predict"));
    }
    let mut totals: Vec<(&Arc<Comm>, f64)> = Vec::new();
    for (comm, call) in calls {
        let Call::Work(work) = call else {
            return Err(Failure::usage("one-sided calls are not predicted"));
        };
        let predicted = of_call(&*comm.open()?, work)?;
        match totals.iter_mut().find(|(known, _)| Arc::ptr_eq(known, comm)) {
            Some((_, total)) => *total += predicted,
            None => totals.push((comm, predicted)),
        }
    }
    Ok(totals.into_iter().map(|(_, total)| total).fold(0.0, f64::max))
}

fn of_call(open: &Open, work: &Work) -> Result<f64, Failure> {
    let refused = |what: &str| {
        Failure::usage(format!("{what} are not predicted here: `weft sim` predicts calls on a fabric"))
    };
    if work.is_on_gpu() {
        return Err(refused("calls on memory of a GPU"));
    }
    if open.spans_hosts {
        return Err(refused("calls between hosts"));
    }
    let What::Collective { collective, .. } = &work.what else { return Err(refused("messages")) };
    let operation = match collective {
        Collective::AllReduce => Operation::AllReduce,
        Collective::AllGather => Operation::AllGather,
        Collective::ReduceScatter => Operation::ReduceScatter,
        Collective::Broadcast { .. } => Operation::Broadcast,
        Collective::Reduce { .. } => Operation::Reduce,
        Collective::AllToAll => Operation::AllToAll,
        other => return Err(refused(&format!("calls of {other}"))),
    };
    let ranks = open.size as u32;
    // The larger buffer of a rank, as nccl-tests count.
    let blocks = (0..ranks).map(|rank| collective.gives(rank, ranks).max(collective.gets(rank, ranks))).max();
    let bytes = u64::from(blocks.unwrap_or(1)).saturating_mul(work.bytes() as u64);
    if bytes > BYTES_MAX {
        return Err(refused("calls of more than 1 TiB"));
    }
    let reads_peers = open.background()?.with(|comm| Ok(comm.reads_peers()))?;
    let memory = if reads_peers { Memory::Readable } else { Memory::Ordinary };
    let hosts = Hosts { memory, ..Hosts::one(Library::Weft, ranks, ranks) };
    let call = host::execute(&Constants::shipped(), &hosts, operation, bytes);
    let call = call.map_err(|error| Failure::usage(format!("no prediction: {error}")))?;
    Ok(call.time.us())
}
