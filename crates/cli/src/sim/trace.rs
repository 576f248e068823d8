//! `weft sim --trace`: what every rank does when, as Perfetto and chrome://tracing show it.
//!
//! A process is a rank, a thread one of its lanes, an event a step with what it takes, sends and moves. Ranks that others are like
//! stand for them. Times are microseconds since the call.

use serde_json::{Value, json};
use weftlink_plan::plan::Op;
use weftlink_sim::engine::{Span, Spans};

/// Steps that are kept: what a browser still shows.
pub(super) const STEPS_MAX: usize = 300_000;

/// The calls of a run, each with what it is called.
pub(super) fn document(calls: &[String], spans: &Spans) -> Value {
    let many = calls.len() > 1;
    let process = |span: &Span| span.job as u64 * 10_000_000 + u64::from(span.rank);
    let mut ranks: Vec<(u64, usize, u32)> =
        spans.list.iter().map(|span| (process(span), span.job, span.rank)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut events: Vec<Value> = ranks
        .into_iter()
        .map(|(pid, job, rank)| {
            let name = if many { format!("job {job}, rank {rank}") } else { format!("rank {rank}") };
            json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } })
        })
        .collect();
    let us = |picoseconds: u64| picoseconds as f64 / 1e6;
    events.extend(spans.list.iter().map(|span| {
        json!({
            "ph": "X", "cat": "weft", "name": name(span), "pid": process(span), "tid": span.lane,
            "ts": us(span.began.0), "dur": us(span.ended.0 - span.began.0),
            "args": { "bytes": span.bytes, "channel": span.channel, "step": span.step },
        })
    }));
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "calls": calls, "steps_left_out": spans.dropped, "basis": "predicted" },
        "traceEvents": events,
    })
}

/// What a step does, in a few words.
fn name(span: &Span) -> String {
    let what = match span.op {
        Op::Sync => "sync",
        Op::Copy => "copy",
        Op::Reduce => "reduce",
    };
    let from = span.received_from.iter().map(|rank| format!("received from {rank}"));
    let to = span.sent_to.iter().map(|rank| format!("sent to {rank}"));
    let switch = span.by_switch.then(|| "by the switch".to_owned());
    std::iter::once(what.to_owned()).chain(from).chain(to).chain(switch).collect::<Vec<_>>().join(", ")
}
