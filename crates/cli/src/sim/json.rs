//! Predictions as JSON: whatever the tables show.

use serde_json::{Map, Value, json};
use weftlink_fabric::Fabric;
use weftlink_sim::Setup;

use super::collective::Row;
use super::text;

pub(super) fn collective(what: &str, name: &str, fabric: &Fabric, setup: &Setup, rows: &[Row]) -> Value {
    let mut value = head(name, setup);
    value["collective"] = json!(what);
    value["rows"] = rows.iter().map(|each| row(fabric, each)).collect();
    value
}

/// Where, and by what.
pub(super) fn head(name: &str, setup: &Setup) -> Value {
    json!({
        "fabric": name,
        "setup": setup.name(),
        "ranks": setup.ranks(),
        "library": setup.library.name(),
        "library_version": setup.version.map(|version| version.to_string()),
        "evidence": setup.library.evidence(),
        "assumed": text::assumed(setup),
        "basis": "predicted",
    })
}

pub(super) fn row(fabric: &Fabric, row: &Row) -> Value {
    let chosen = &row.execution.chosen;
    let outcome = row.execution.outcome.as_ref();
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
    let beside = row.undisturbed.as_ref().map(|(_, beside)| {
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
    let error = row
        .expected_error
        .map(|(median, ninetieth)| json!({ "median": median, "ninetieth_percentile": ninetieth }));
    json!({
        "bytes": row.bytes,
        "time_us": row.time_us(),
        "algbw_gb_per_s": row.algbw_gb_per_s,
        "busbw_gb_per_s": row.busbw_gb_per_s,
        "algorithm": row.execution.algorithm,
        "protocol": chosen.protocol.to_string(),
        "limited_by": text::limit(fabric, row),
        "bottleneck": busiest,
        "utilisation": used,
        "parts_us": {
            "launch": chosen.estimate.launch_us,
            "hops": chosen.estimate.hops_us,
            "wire": chosen.estimate.wire_us,
            "fill": chosen.estimate.fill_us,
            "host": chosen.estimate.host_us,
        },
        "undisturbed_us": row.undisturbed.as_ref().map(|(alone_us, _)| alone_us),
        "beside": beside,
        "expected_error": error,
    })
}
