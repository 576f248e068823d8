//! What `weft topo TARGET` means: this machine, a preset, a cluster, or a file.

use anyhow::anyhow;
use weftlink_fabric::Fabric;
use weftlink_probe::TargetError;

use crate::Failure;

pub(crate) fn resolve(target: Option<&str>, gpu: Option<&str>) -> Result<Fabric, Failure> {
    if target.is_some_and(|target| target.trim().is_empty()) {
        return Err(Failure::misuse(anyhow!(
            "the name of the fabric is empty; `weft topo --list` prints the systems"
        )));
    }
    weftlink_probe::open(target, gpu).map_err(|error| match &error {
        TargetError::UnexpectedGpu => Failure::misuse(anyhow!("--gpu: {error}")),
        TargetError::Content { name, .. } if is_plan(name) => Failure::misuse(anyhow!(
            "{name} is a plan, not a topology; `weft plan verify {name}` proves it, `weft bench --plan {name}` runs it"
        )),
        _ if error.is_misuse() => Failure::misuse(error),
        _ => Failure::finding(error),
    })
}

/// Whether a file holds a plan, which says so in its first lines.
fn is_plan(file: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().take(3).any(|line| line.contains("\"weft\": \"plan/"))
}
