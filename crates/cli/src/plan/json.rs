//! Choices as JSON: whatever the tables show, in bytes, bytes per second and picoseconds.

use serde_json::{Value, json};
use weftlink_plan::Recipe;
use weftlink_plan::choose::{Breakpoints, Candidate, Choice, Chooser, Verdict};
use weftlink_plan::cost::{Ground, Limit};
use weftlink_plan::plan::Protocol;
use weftlink_plan::wiring::Bound;

/// A table, and what it is of.
pub(super) fn headed(chooser: &Chooser<'_, '_>, ground: &Ground<'_>, uneven: bool, table: Value) -> Value {
    let mut head = json!({
        "collective": chooser.collective(),
        "uneven": uneven,
        "fabric": ground.fabric().name(),
        "ranks": ground.layout().ranks(),
        "islands": ground.layout().islands.len(),
        "basis": "predicted",
    });
    if let (Value::Object(head), Value::Object(table)) = (&mut head, table) {
        head.extend(table);
    }
    head
}

pub(super) fn choice(choice: &Choice, bound: Option<&Bound>) -> Value {
    let candidates: Vec<Value> = choice.candidates.iter().map(candidate).collect();
    json!({ "bytes": choice.bytes, "bound": about_bound(bound), "candidates": candidates })
}

pub(super) fn breakpoints(found: &Breakpoints) -> Value {
    let ranges = found.ranges.iter().map(|range| {
        json!({
            "from": range.from,
            "to": range.to,
            "algorithm": range.algorithm.name(),
            "protocol": range.protocol.map(name),
        })
    });
    json!({ "ranges": ranges.collect::<Vec<_>>(), "hash": format!("{:016x}", found.digest()) })
}

pub(super) fn summary(chosen: &Candidate, recipe: &Recipe<'_>, bound: Option<&Bound>, bytes: u64) -> Value {
    let outline = recipe.outline();
    json!({
        "bytes": bytes,
        "bound": about_bound(bound),
        "candidate": candidate(chosen),
        "chunks": outline.chunks,
        "aliasing": outline.aliasing,
        "lanes": recipe.program(0).lanes.len(),
    })
}

fn candidate(candidate: &Candidate) -> Value {
    let (verdict, why) = match &candidate.verdict {
        Verdict::Chosen => ("chosen", None),
        Verdict::Lost(why) => ("lost", Some(why)),
        Verdict::RuledOut(why) => ("ruled out", Some(why)),
    };
    let mut value = json!({
        "algorithm": candidate.algorithm.name(),
        "protocol": candidate.protocol.map(name),
        "verdict": verdict,
        "why": why,
    });
    let (Value::Object(fields), Some(cost)) = (&mut value, candidate.cost) else { return value };
    let limit = match cost.limit {
        Limit::Inside => "inside",
        Limit::Across => "across",
        Limit::Turns => "turns",
        Limit::Cut => "cut",
    };
    let known = json!({
        "channels": candidate.channels,
        "time_ps": cost.time().0,
        "launch_ps": cost.launch.0,
        "inside_ps": cost.inside.0,
        "across_ps": cost.across.0,
        "messages_ps": cost.messages.0,
        "transfer_ps": cost.transfer.0,
        "limit": limit,
        "hops_inside": cost.work.hops_inside,
        "hops_across": cost.work.hops_across,
        "rank_bytes": cost.work.rank_bytes,
        "island_bytes": cost.work.island_bytes,
        "algbw_bytes_per_second": candidate.algbw,
        "busbw_bytes_per_second": candidate.busbw,
        "bound_thousandths": candidate.bound_thousandths,
    });
    if let Value::Object(known) = known {
        fields.extend(known);
    }
    value
}

fn about_bound(bound: Option<&Bound>) -> Value {
    bound.map_or(
        Value::Null,
        |bound| json!({ "algbw_bytes_per_second": bound.bytes_per_second, "cut": bound.cut }),
    )
}

fn name(protocol: Protocol) -> String {
    protocol.to_string()
}
