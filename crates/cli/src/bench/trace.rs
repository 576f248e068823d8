//! `weft bench --trace`: one more call of each row, as Perfetto and chrome://tracing show it.
//!
//! A process is a rank, a thread one of its lanes. Each row is an event that contains the waits (`wait`) and steps of a lane, with
//! their bytes. Times are microseconds since the first event.

use serde_json::{Value, json};
use weftlink_comm::TimedStep;
use weftlink_plan::Verified;
use weftlink_plan::plan::{Input, Op, Output};

use super::job::{Job, Recorded};
use super::results::Row;

/// The steps that a rank took, by the names that the plan gives them.
pub(super) fn recorded(plan: &Verified, rank: usize, steps: &[TimedStep]) -> Vec<Recorded> {
    let lanes: Vec<Vec<String>> = plan.programs[rank]
        .lanes
        .iter()
        .map(|lane| {
            lane.walk()
                .map(|visit| {
                    visit.step.at(&visit.iterations).map_or(String::new(), |step| {
                        let from = step.inputs.iter().filter_map(|input| match input {
                            Input::Received { from } => Some(format!("received from {from}")),
                            Input::Peer(place) => Some(format!("read from {}", place.rank)),
                            Input::Local(_) | Input::Switch(_) => None,
                        });
                        let to = step.outputs.iter().filter_map(|output| match output {
                            Output::Sent { to } => Some(format!("sent to {to}")),
                            Output::Peer(place) => Some(format!("written to {}", place.rank)),
                            Output::Local(_) | Output::Multicast(_) => None,
                        });
                        let what = match step.op {
                            Op::Sync => "sync",
                            Op::Copy => "copy",
                            Op::Reduce => "reduce",
                        };
                        std::iter::once(what.to_owned()).chain(from).chain(to).collect::<Vec<_>>().join(", ")
                    })
                })
                .collect()
        })
        .collect();
    let name = |step: &TimedStep| lanes.get(step.lane as usize)?.get(step.ordinal as usize).cloned();
    steps
        .iter()
        .map(|step| Recorded {
            name: name(step).unwrap_or_default(),
            lane: step.lane,
            tile: step.tile,
            bytes: step.bytes,
            times_ns: [step.waiting_ns, step.began_ns, step.done_ns],
        })
        .collect()
}

/// All rows, in the form of trace events.
pub(super) fn document(job: &Job, rows: &[Row]) -> Value {
    let all = || rows.iter().flat_map(|row| &row.steps).flatten();
    let first_ns = all().map(|step| step.times_ns[0]).min().unwrap_or(0);
    let us = |ns: u64| ns.saturating_sub(first_ns) as f64 / 1e3;
    let mut events: Vec<Value> = (0..job.ranks)
        .map(|rank| json!({ "ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": { "name": format!("rank {rank}") } }))
        .collect();
    for row in rows {
        let case = &job.cases[row.case];
        for (rank, steps) in row.steps.iter().enumerate() {
            for lane in 0..=steps.iter().map(|step| step.lane).max().unwrap_or(0) {
                let steps: Vec<&Recorded> = steps.iter().filter(|step| step.lane == lane).collect();
                let (Some(first), Some(last)) = (steps.first(), steps.last()) else { continue };
                let event = |name: &str, from: u64, to: u64, args: Value| {
                    json!({
                        "ph": "X", "name": name, "cat": "weft", "pid": rank, "tid": lane,
                        "ts": us(from), "dur": us(to) - us(from), "args": args,
                    })
                };
                let call = format!("{} of {} bytes, {}", case.collective.name(), row.bytes, row.plan);
                let whole = json!({ "bytes": row.bytes, "count": row.count });
                events.push(event(&call, first.times_ns[0], last.times_ns[2], whole));
                for step in steps {
                    let [waiting, began, done] = step.times_ns;
                    let args = json!({ "bytes": step.bytes, "tile": step.tile });
                    events.push(event("wait", waiting, began, args.clone()));
                    events.push(event(&step.name, began, done, args));
                }
            }
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
