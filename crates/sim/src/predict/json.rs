//! Predictions as JSON: everything that the tables of `weft sim` show.

use serde_json::{Map, Value, json};
use weftlink_fabric::Fabric;

use super::{Case, Predicted, Row};
use crate::library::version_of;

impl Predicted {
    /// The case and its rows.
    pub fn to_json(&self) -> Value {
        self.case.rows_to_json(&self.rows)
    }
}

impl Case {
    /// The case and the given rows.
    pub fn rows_to_json(&self, rows: &[Row]) -> Value {
        let mut value = self.to_json();
        value["collective"] = json!(self.collective());
        value["rows"] = rows.iter().map(|row| row.to_json(&self.fabric)).collect();
        value
    }

    /// The fabric and the library.
    pub fn to_json(&self) -> Value {
        let setup = &self.setup;
        json!({
            "fabric": self.name,
            "setup": setup.name(),
            "ranks": setup.ranks(),
            "library": setup.library.name(),
            "library_version": version_of(setup).map(|version| version.to_string()),
            "evidence": setup.library.evidence(),
            "plan": self.plan.as_ref().map(|plan| json!({ "name": plan.name, "hash": format!("{:016x}", plan.hash()) })),
            "assumed": self.assumptions(),
            "basis": "predicted",
        })
    }
}

impl Row {
    /// One call. `fabric` is the fabric of its [`Case`].
    pub fn to_json(&self, fabric: &Fabric) -> Value {
        let chosen = &self.execution.chosen;
        let outcome = self.execution.outcome.as_ref();
        let busiest = outcome.and_then(|outcome| outcome.busiest()).map(|(resource, part)| {
            let (from, to) = resource.link;
            json!({
                "kind": resource.kind.to_string(),
                "from": fabric.device_name(from),
                "to": fabric.device_name(to),
                "links": resource.count,
                "busy": part,
            })
        });
        let used: Map<String, Value> = outcome
            .map(|outcome| outcome.utilisation())
            .unwrap_or_default()
            .into_iter()
            .map(|(kind, part)| (kind.to_string(), json!(part)))
            .collect();
        let beside = self.undisturbed.as_ref().map(|(_, beside)| {
            let each = beside.iter().map(|other| {
                json!({
                    "collective": other.what,
                    "bytes": other.bytes,
                    "gpus": other.gpus,
                    "time_us": other.time_us,
                    "undisturbed_us": other.alone_us,
                })
            });
            each.collect::<Vec<_>>()
        });
        let intervals = self.intervals.map(|of| {
            json!({
                "low50": of.half_us.0,
                "high50": of.half_us.1,
                "low90": of.most_us.0,
                "high90": of.most_us.1,
            })
        });
        let outside: Vec<String> = self.outside.iter().map(ToString::to_string).collect();
        json!({
            "bytes": self.bytes,
            "time_us": self.time_us(),
            "correction": (self.execution.correction != 1.0).then_some(self.execution.correction),
            "algbw_gb_per_s": self.algbw_gb_per_s,
            "busbw_gb_per_s": self.busbw_gb_per_s,
            "algorithm": self.execution.algorithm,
            "protocol": chosen.protocol.to_string(),
            "limited_by": self.limited_by(fabric),
            "bottleneck": busiest,
            "utilisation": used,
            "parts_us": {
                "launch": chosen.estimate.launch_us,
                "hops": chosen.estimate.hops_us,
                "wire": chosen.estimate.wire_us,
                "fill": chosen.estimate.fill_us,
                "host": chosen.estimate.host_us,
            },
            "undisturbed_us": self.undisturbed.as_ref().map(|(alone_us, _)| alone_us),
            "beside": beside,
            "intervals_us": intervals,
            "outside_the_evidence": outside,
        })
    }
}
