//! What `weft topo TARGET` means: this machine, a preset, a cluster, or a file.

use weftlink_fabric::Fabric;

use crate::Failure;

pub(crate) fn resolve(target: Option<&str>, gpu: Option<&str>) -> Result<Fabric, Failure> {
    weftlink_probe::open(target, gpu).map_err(|error| match error.is_misuse() {
        true => Failure::misuse(error),
        false => Failure::finding(error),
    })
}
