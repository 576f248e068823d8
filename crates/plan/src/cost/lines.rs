//! Rates of a fabric's links in the terms of the model: its constants are fractions of line rates.

use weftlink_fabric::catalog::links;
use weftlink_fabric::figure::LinkRate;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link, LinkKind, Measure};

/// Bytes per second of a link: its line rate. A link whose effective rate is lower than that of such links in the catalog, because it was
/// measured or a file says so, counts as a fraction of one.
pub fn line(fabric: &Fabric, link: &Link) -> f64 {
    let spec = fabric.spec(link);
    if matches!(spec.kind, LinkKind::Socket(_)) {
        return fabric.limit(link).bytes_per_second() as f64;
    }
    let nominal = fabric.rate(link, Measure::Nominal).bytes_per_second() as f64;
    let (Some(line), Some(own)) = (&spec.nominal, &spec.effective) else { return nominal };
    let per_second = |rate: &LinkRate| rate.value.bytes_per_second() as f64;
    let all = std::iter::once(links::spec_of(spec.kind)).chain(links::variants_of(spec.kind).cloned());
    let reached = all.map(|usual| {
        let rates = usual.nominal.as_ref().zip(usual.effective.as_ref());
        rates.map_or(1.0, |(nominal, effective)| per_second(effective) / per_second(nominal))
    });
    let part = per_second(own) / (per_second(line) * reached.fold(1.0, f64::min));
    // Rates are rounded to whole bytes per second.
    if part > 1.0 - 1e-6 { nominal } else { nominal * part }
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

#[cfg(test)]
mod tests {
    use weftlink_fabric::catalog::systems;
    use weftlink_fabric::figure::Basis;
    use weftlink_fabric::format::{self, document};

    use super::*;

    /// The effective rates of the catalog are those that its constants are fractions of.
    #[test]
    fn links_of_the_catalog_have_their_line_rates() {
        for system in systems::all() {
            let fabric = system.fabric();
            for link in fabric.links() {
                let spec = fabric.spec(link);
                let is_measured = spec.effective.as_ref().is_some_and(|rate| rate.basis == Basis::Measured);
                if is_measured || matches!(spec.kind, LinkKind::Socket(_)) {
                    continue;
                }
                let nominal = fabric.rate(link, Measure::Nominal).bytes_per_second() as f64;
                assert_eq!(line(&fabric, link), nominal, "{}: {}", system.name, links::id_of(spec));
            }
        }
    }

    #[test]
    fn an_effective_rate_of_a_file_counts() {
        let usual = systems::by_name("4x-rtx4090").expect("a preset").fabric();
        let text = document::write_toml(&usual).expect("a document");
        let quarter = text.replace("gb_per_s_each_way = 24.0", "gb_per_s_each_way = 6.0");
        let slow = format::read(quarter.as_bytes(), "slow.toml", None).expect("a fabric");
        let slots = |fabric: &Fabric| slot(fabric, fabric.gpus()[0]).expect("a slot").0;
        assert_eq!(slots(&slow), slots(&usual) / 4.0);
    }
}
