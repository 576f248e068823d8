//! Predicts one copy from device to device: between GPUs of one or two hosts, or between a GPU and host memory or a drive.
//!
//! Each link on the path carries a fraction of its line rate, measured for its kind, and the narrowest link determines the time. GPUs
//! without peer access copy through host memory.

use thiserror::Error;
use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, LinkKind, Measure, PathType, Paths};
use weftlink_plan::cost::Picoseconds;

use crate::constants::{Constants, Name};

/// A predicted copy.
#[derive(Clone, Debug)]
pub struct CopyPrediction {
    /// The kind of path.
    pub path: PathType,
    /// The narrowest link of the path.
    pub narrowest: (DeviceId, DeviceId),
    /// The kind of that link.
    pub kind: LinkKind,
    /// Line rate of that link.
    pub nominal_gbytes_per_second: f64,
    /// Rate of the copy.
    pub gbytes_per_second: f64,
    /// Whether it goes through host memory because the GPUs have no peer access.
    pub is_staged: bool,
    /// Duration.
    pub time: Picoseconds,
}

/// Why a copy is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Source and target are the same device.
    #[error("{0} is both source and target; name two devices")]
    Same(String),
    /// No path connects the devices.
    #[error("no path of links with known rates connects {0} to {1}")]
    Unreachable(String, String),
}

/// Predicts a copy.
pub fn copy(
    constants: &Constants,
    paths: &Paths<'_>,
    (from, to): (DeviceId, DeviceId),
    bytes: u64,
) -> Result<CopyPrediction, CopyError> {
    let fabric = paths.fabric();
    if from == to {
        return Err(CopyError::Same(fabric.device_name(from)));
    }
    let unreachable = || CopyError::Unreachable(fabric.device_name(from), fabric.device_name(to));
    let route = paths.route(from, to);
    let is_gpu = |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::Gpu(_));
    let has_host = !matches!(route.path.kind, PathType::Net | PathType::Dis);
    let is_staged = is_gpu(from) && is_gpu(to) && has_host && !fabric.can_access(from, to, route.path.kind);
    let mut narrowest: Option<CopyPrediction> = None;
    for pair in route.stations.windows(2) {
        let links = pair[0].iter().flat_map(|id| fabric.links_from(*id));
        let between: Vec<_> = links.filter(|link| pair[1].contains(&link.target)).collect();
        // Where PCIe and a faster link connect the same devices, data takes the faster one.
        let best =
            between.iter().max_by_key(|link| fabric.rate(link, Measure::Nominal)).ok_or_else(unreachable)?;
        let kind = fabric.spec(best).kind;
        let parallel = between.iter().filter(|link| fabric.spec(link).kind == kind);
        let nominal = parallel
            .map(|link| {
                let nominal = fabric.rate(link, Measure::Nominal).bytes_per_second();
                nominal.max(fabric.rate(link, Measure::Effective).bytes_per_second()) as f64 / 1e9
            })
            .sum::<f64>();
        let gets = nominal * part(constants, kind, is_staged);
        if nominal > 0.0 && narrowest.as_ref().is_none_or(|before| gets < before.gbytes_per_second) {
            let us = constants[Name::LaunchUs] + bytes as f64 / gets / 1e3;
            narrowest = Some(CopyPrediction {
                path: route.path.kind,
                narrowest: (best.source, best.target),
                kind,
                nominal_gbytes_per_second: nominal,
                gbytes_per_second: gets,
                is_staged,
                time: Picoseconds::from_us(us),
            });
        }
    }
    narrowest.ok_or_else(unreachable)
}

/// The fraction of a link's line rate that a copy gets.
fn part(constants: &Constants, kind: LinkKind, is_staged: bool) -> f64 {
    match kind {
        LinkKind::Network { network, .. } => match network {
            Network::Slingshot => constants[Name::NetworkSlingshot],
            Network::TcpX => constants[Name::NetworkTcpx],
            Network::Ethernet => constants[Name::NetworkRdma],
            _ => constants[Name::NetworkRdma],
        },
        LinkKind::Pcie { .. } if is_staged => constants[Name::CopyHost],
        _ => constants[Name::Copy],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::resolve;

    fn gbytes_per_second(spec: &str, from: &str, to: &str) -> f64 {
        let fabric = resolve(spec).unwrap();
        let ends = (fabric.find(from).unwrap(), fabric.find(to).unwrap());
        copy(&Constants::shipped(), &Paths::of(&fabric), ends, 80_000_000_000).unwrap().gbytes_per_second
    }

    /// Published rates in GB/s: an H200 pair 396, pinned host memory to a Gen5 slot 55, two RTX 4090 through host memory 11 to 12.
    #[test]
    fn copies_match_published_rates() {
        for (spec, from, to, measured) in [
            ("hgx-h200", "gpu0", "gpu1", 396.0),
            ("hgx-h100", "numa0", "gpu0", 55.2),
            ("2x-rtx4090", "gpu0", "gpu1", 12.0),
            ("2x hgx-h100 + 8x ndr", "gpu0", "gpu8", 48.0),
        ] {
            let found = gbytes_per_second(spec, from, to);
            assert!(
                (found / measured - 1.0).abs() < 0.06,
                "{spec} {from} to {to}: {found:.1}, measured {measured}"
            );
        }
    }

    #[test]
    fn a_copy_needs_two_devices() {
        let fabric = resolve("hgx-h100").unwrap();
        let gpu = fabric.gpus()[0];
        let error = copy(&Constants::shipped(), &Paths::of(&fabric), (gpu, gpu), 8).unwrap_err();
        assert_eq!(error.to_string(), "gpu0 is both source and target; name two devices");
    }
}
