//! Answers as JSON: the content of the tables of `weft plan`, in bytes, bytes per second and picoseconds.

use serde_json::{Value, json};

use super::{Built, Chosen, ChosenSizes, RankedCandidate, Subject, Verdict};
use crate::cost::Limit;
use crate::plan::Protocol;

impl Chosen {
    /// Every candidate with its time, or the reason why it is out.
    pub fn to_json(&self) -> Value {
        let candidates: Vec<Value> = self.choice.candidates.iter().map(candidate).collect();
        let table =
            json!({ "bytes": self.choice.bytes, "bound": bound(&self.subject), "candidates": candidates });
        headed(&self.subject, table)
    }
}

impl ChosenSizes {
    /// Each range with the candidates at both of its ends.
    pub fn to_json(&self) -> Value {
        let ranges = self.breakpoints.ranges.iter().zip(&self.ends).map(|(range, ends)| {
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
        let table = json!({
            "bound": bound(&self.subject),
            "ranges": ranges.collect::<Vec<_>>(),
            "hash": format!("{:016x}", self.breakpoints.digest()),
        });
        headed(&self.subject, table)
    }
}

impl Built {
    /// The candidate, and the shape of its plan.
    pub fn to_json(&self) -> Result<Value, crate::algorithms::Impossible> {
        let recipe = self.recipe()?;
        let outline = recipe.outline();
        let table = json!({
            "bytes": self.bytes,
            "bound": bound(&self.subject),
            "candidate": candidate(&self.candidate),
            "chunks": outline.chunks,
            "aliasing": outline.aliasing,
            "lanes": recipe.program(0).lanes.len(),
        });
        Ok(headed(&self.subject, table))
    }
}

/// A table with its collective and fabric.
fn headed(subject: &Subject, table: Value) -> Value {
    let mut head = json!({
        "collective": subject.collective,
        "uneven": subject.uneven,
        "fabric": subject.fabric,
        "ranks": subject.ranks,
        "islands": subject.islands,
        "basis": "predicted",
    });
    if let (Value::Object(head), Value::Object(table)) = (&mut head, table) {
        head.extend(table);
    }
    head
}

fn candidate(candidate: &RankedCandidate) -> Value {
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
        Limit::Serial => "turns",
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
        "fill_ps": cost.fill.0,
        "hidden_ps": cost.hidden.0,
        "tiles": cost.tiles,
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

fn bound(subject: &Subject) -> Value {
    subject.bound.as_ref().map_or(Value::Null, |bound| {
        json!({
            "algbw_bytes_per_second": bound.bytes_per_second,
            "cut": bound.cut,
            "switches_add": subject.switches_add,
        })
    })
}

fn name(protocol: Protocol) -> String {
    protocol.to_string()
}
