//! Rates of a fabric's links in the terms of the model: its constants are fractions of line rates.

use weftlink_fabric::catalog::links;
use weftlink_fabric::figure::{Basis, LinkRate};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link, LinkKind, Measure};

/// Bytes per second of a link: its line rate. A link that was measured to be slower than such links usually are counts as a fraction of
/// one.
pub fn line(fabric: &Fabric, link: &Link) -> f64 {
    let spec = fabric.spec(link);
    if matches!(spec.kind, LinkKind::Socket(_)) {
        return fabric.limit(link).bytes_per_second() as f64;
    }
    let nominal = fabric.rate(link, Measure::Nominal).bytes_per_second() as f64;
    let Some(measured) = spec.effective.as_ref().filter(|rate| rate.basis == Basis::Measured) else {
        return nominal;
    };
    let (Some(line), usual) = (&spec.nominal, links::spec_of(spec.kind)) else { return nominal };
    let per_second = |rate: &LinkRate| rate.value.bytes_per_second() as f64;
    let reached = match (&usual.nominal, &usual.effective) {
        (Some(nominal), Some(effective)) => per_second(effective) / per_second(nominal),
        _ => 1.0,
    };
    nominal * (per_second(measured) / (per_second(line) * reached)).min(1.0)
}

/// Bytes per second of all links of a GPU to other GPUs.
pub fn port(fabric: &Fabric, gpu: DeviceId) -> f64 {
    let to_gpus = fabric.links_from(gpu).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
    to_gpus.map(|link| line(fabric, link)).sum()
}

/// The slowest PCIe link between a device and its CPU, or of the device's own links if no CPU is known: bytes per second, and its
/// generation. Nothing if it has no slot.
pub fn slot(fabric: &Fabric, device: DeviceId) -> Option<(f64, u32)> {
    // Each entry: a device, and the slowest link on the way to it.
    let mut reached: Vec<(DeviceId, Option<(f64, u32)>)> = vec![(device, None)];
    let mut next = 0;
    while let Some((at, before)) = reached.get(next).copied() {
        next += 1;
        for link in fabric.links_from(at) {
            let LinkKind::Pcie { generation, .. } = fabric.spec(link).kind else { continue };
            let own = Some((line(fabric, link), u32::from(generation))).filter(|(rate, _)| *rate > 0.0);
            let slowest = match (before, own) {
                (Some(before), Some(own)) if before.0 <= own.0 => Some(before),
                (before, own) => own.or(before),
            };
            match fabric.device(link.target).kind {
                DeviceKind::Numa(_) => return slowest,
                DeviceKind::RootPort | DeviceKind::PcieSwitch
                    if reached.iter().all(|(known, _)| *known != link.target) =>
                {
                    reached.push((link.target, slowest));
                }
                _ => {}
            }
        }
    }
    reached.get(1).and_then(|(_, slowest)| *slowest)
}
