//! The JSON that `weft topo --json` prints. Keys end in their unit; rates say their direction.

use serde_json::{Value, json};
use weftlink_fabric::cliff::{self, Nics};
use weftlink_fabric::format::document;
use weftlink_fabric::rate::{OneWay, Pair, Rate};
use weftlink_fabric::summary::{NoLinks, Summary};
use weftlink_fabric::{Path, PathType, Paths};

/// A fabric and what there is to say about it.
pub(super) fn fabric(paths: &Paths<'_>, summary: &Summary) -> anyhow::Result<Value> {
    let fabric = paths.fabric();
    Ok(json!({
        "fabric": serde_json::from_str::<Value>(&document::write_json(fabric)?)?,
        "summary": {
            "name": fabric.name(),
            "hosts": summary.hosts,
            "gpus": summary.gpus,
            "nvswitches": summary.nvswitches,
            "nvlink_domains": summary.domains,
            "gpu_link": summary.gpu_link.map(|kind| kind.to_string()),
            "gpu_gb_per_s_each_way": summary.gpu_rate.map(Rate::gb),
            "gpu_gb_per_s_both_ways": summary.gpu_rate.map(|rate| rate.both_ways().gb()),
            "domain_gb_per_s_both_ways": summary.domain_rate.map(Rate::gb),
            "nics_per_host": summary.nics.as_ref().map(Nics::count),
            "nics_per_gpu": summary.nics.as_ref().map(|nics| nics.count() as f64 / nics.gpus as f64),
            "network_gb_per_s_each_way_per_gpu": summary.nics.as_ref().map(|nics| nics.per_gpu().gb()),
            "network_gb_per_s_each_way_per_host": summary.nics.as_ref().map(|nics| nics.total().gb()),
            "network_step": summary.network_step(),
            "bisection_gb_per_s_each_way": summary.bisection.filter(|b| b.is_exact()).map(|b| b.upper.gb()),
            "bisection_at_least_gb_per_s_each_way": summary.bisection.map(|b| b.lower.gb()),
            "bisection_at_most_gb_per_s_each_way": summary.bisection.map(|b| b.upper.gb()),
            "cliff": levels(summary),
            "pairs": summary.classes.iter().map(|class| {
                let mut value = path(&class.path);
                value["pairs"] = json!(class.pairs);
                value
            }).collect::<Vec<_>>(),
            "no_links_because": summary.no_links.map(NoLinks::reason),
            "sentence": summary.sentence(),
            "notes": fabric.notes(),
            "pcie_peer_access": !fabric.lacks_peer_access(),
        }
    }))
}

/// What a path amounts to.
pub(super) fn path(path: &Path) -> Value {
    // A device's way to itself has no width, and zero stands for a rate that nobody named.
    let is_between = !matches!(path.kind, PathType::Loc | PathType::Dis);
    let known = |rate: Rate<Pair, OneWay>| (is_between && rate > Rate::ZERO).then(|| rate.gb());
    json!({
        "type": path.kind.name(),
        "cell": path.cell(),
        "hops": path.hops,
        "links": is_between.then_some(path.width.links),
        "nominal_gb_per_s_each_way": known(path.width.nominal),
        "effective_gb_per_s_each_way": known(path.width.effective),
    })
}

fn levels(summary: &Summary) -> Vec<Value> {
    let steps = cliff::steps(&summary.cliff);
    let level = |(level, step): (&cliff::Level, &Option<f64>)| {
        json!({
            "level": level.name,
            "detail": level.detail,
            "gb_per_s_each_way_per_gpu": level.nominal.gb(),
            "effective_gb_per_s_each_way_per_gpu": level.effective.map(Rate::gb),
            "step_down": step,
        })
    };
    summary.cliff.iter().zip(&steps).map(level).collect()
}
