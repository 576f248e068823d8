//! Choices as JSON: whatever the tables show, in bytes, bytes per second and picoseconds.

use serde_json::{Value, json};
use weftlink_plan::Recipe;
use weftlink_plan::choose::{Candidate, Choice, Chooser, Range, Verdict};
use weftlink_plan::cost::{Ground, Limit};
use weftlink_plan::plan::Protocol;

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

pub(super) fn choice(choice: &Choice, chooser: &Chooser<'_, '_>) -> Value {
    let candidates: Vec<Value> = choice.candidates.iter().map(candidate).collect();
    json!({ "bytes": choice.bytes, "bound": bound(chooser), "candidates": candidates })
}

/// What is chosen for which sizes, with the candidates at both ends of each range.
pub(super) fn breakpoints(
    found: &[(&Range, [Candidate; 2])],
    digest: u64,
    chooser: &Chooser<'_, '_>,
) -> Value {
    let ranges = found.iter().map(|(range, ends)| {
        let [first, last] = ends;
        json!({
            "from": range.from,
            "to": range.to,
            "algorithm": range.algorithm.name(),
            "protocol": range.protocol.map(name),
            "switch": last.switch,
            "time_ps": ends.each_ref().map(|end| end.time().map(|time| time.0)),
            "algbw_bytes_per_second": [first.algbw, last.algbw],
            "busbw_bytes_per_second": [first.busbw, last.busbw],
            "bound_thousandths": [first.bound_thousandths, last.bound_thousandths],
        })
    });
    json!({
        "bound": bound(chooser),
        "ranges": ranges.collect::<Vec<_>>(),
        "hash": format!("{digest:016x}"),
    })
}

pub(super) fn summary(
    chosen: &Candidate,
    recipe: &Recipe<'_>,
    chooser: &Chooser<'_, '_>,
    bytes: u64,
) -> Value {
    let outline = recipe.outline();
    json!({
        "bytes": bytes,
        "bound": bound(chooser),
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
        "switch": candidate.switch,
        "thread_blocks": candidate.thread_blocks,
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

fn bound(chooser: &Chooser<'_, '_>) -> Value {
    chooser.bound().map_or(Value::Null, |bound| {
        json!({
            "algbw_bytes_per_second": bound.bytes_per_second,
            "cut": bound.cut,
            "switches_add": chooser.switches_add_in_bound(),
        })
    })
}

fn name(protocol: Protocol) -> String {
    protocol.to_string()
}
