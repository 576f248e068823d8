//! Predicted times of calls: those of the simulator if each rank has a core of one host and the library chooses the plan. For other
//! calls, hops times the measured latency between two ranks plus bytes over the bandwidth.

use weftlink_plan::Collective;
use weftlink_plan::choose::measured::Memory;
use weftlink_sim::Constants;
use weftlink_sim::host::{self, Hosts};
use weftlink_sim::setup::{Library, Operation};

use super::job::{Case, Job, Machine, Work};

/// The predicted microseconds of a call, if there is a prediction.
pub(super) fn predicted_us(
    constants: &Constants,
    job: &Job,
    case: &Case,
    machine: &Machine,
    work: Option<&Work>,
    bytes: usize,
    is_one_host: bool,
) -> Option<f64> {
    let simulated = || {
        (is_one_host && job.spin && case.plan.is_none())
            .then(|| simulated_us(constants, job, case, machine, bytes))?
    };
    simulated().or_else(|| counted_us(machine, work?, bytes))
}

fn simulated_us(
    constants: &Constants,
    job: &Job,
    case: &Case,
    machine: &Machine,
    bytes: usize,
) -> Option<f64> {
    let operation = match case.collective {
        Collective::AllReduce => Operation::AllReduce,
        Collective::AllGather => Operation::AllGather,
        Collective::ReduceScatter => Operation::ReduceScatter,
        Collective::Broadcast { .. } => Operation::Broadcast,
        Collective::Reduce { .. } => Operation::Reduce,
        Collective::AllToAll => Operation::AllToAll,
        _ => return None,
    };
    let memory = match (case.symmetric, machine.reads_peers) {
        (true, _) => Memory::Symmetric,
        (false, true) => Memory::Readable,
        (false, false) => Memory::Ordinary,
    };
    let ranks = job.ranks as u32;
    let hosts = Hosts { memory, ..Hosts::one(Library::Weft, ranks, ranks) };
    let call = host::execute(constants, &hosts, operation, bytes.max(1) as u64).ok()?;
    Some(call.time.us())
}

fn counted_us(machine: &Machine, work: &Work, bytes: usize) -> Option<f64> {
    let transfer_us = work.share * bytes as f64 / machine.bandwidth_gb_per_s? / 1e3;
    Some(f64::from(work.hops) * machine.latency_us? + transfer_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_calls_are_predicted_from_hops_and_bytes() {
        let machine = Machine { latency_us: Some(1.0), bandwidth_gb_per_s: Some(20.0), ..Machine::default() };
        let work = Work { hops: 2, share: 1.0 };
        assert!((counted_us(&machine, &work, 200_000).unwrap() - 12.0).abs() < 1e-9);
        assert_eq!(counted_us(&Machine::default(), &work, 8), None);
    }
}
