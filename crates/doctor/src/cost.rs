//! What a fault costs: the same call on the fabric as it is and as it should be.

use weftlink_fabric::link::LinkSpec;
use weftlink_fabric::{DeviceId, Fabric, FabricBuilder, Paths};
use weftlink_plan::Kind;
use weftlink_sim::copy::copy;
use weftlink_sim::predict::{Options, predict};
use weftlink_sim::setup::LibraryAlgorithm;

use crate::finding::Cost;

/// Bytes of the call whose bandwidth is compared.
const BYTES: u64 = 1 << 30;

/// The bus bandwidth of an all-reduce of 1 GiB on both fabrics; None if neither can be predicted or they differ by less than 1 %.
pub fn of_all_reduce(now: &Fabric, usual: &Fabric) -> Option<Cost> {
    let options = Options::default();
    compare(
        "all-reduce of 1 GiB",
        "bus bandwidth, predicted",
        all_reduce(now, &options)?,
        all_reduce(usual, &options)?,
    )
}

/// The same of a fabric whose GPUs cannot access each other's memory, and of that fabric as it should be.
pub fn of_lost_peer_access(fabric: &Fabric) -> Option<Cost> {
    let lost = Options { no_peer_access: true, ..Options::default() };
    let (now, usual) = (all_reduce(fabric, &lost)?, all_reduce(fabric, &Options::default())?);
    compare("all-reduce of 1 GiB", "bus bandwidth, predicted", now, usual)
}

/// The rate of a copy of 1 GiB from one GPU to another on both fabrics.
pub fn of_copy(now: &Fabric, usual: &Fabric, from: DeviceId, to: DeviceId) -> Option<Cost> {
    let rate = |fabric: &Fabric| {
        let predicted = copy(&Options::default().constants, &Paths::of(fabric), (from, to), BYTES).ok()?;
        Some(predicted.gbytes_per_second)
    };
    let what = format!("copy of 1 GiB from {} to {}", now.device_name(from), now.device_name(to));
    compare(&what, "predicted", rate(now)?, rate(usual)?)
}

/// A copy of a fabric with more links, each in both directions. Devices keep their ids.
pub fn with_more_links(fabric: &Fabric, more: &[(DeviceId, DeviceId, u32, LinkSpec)]) -> Option<Fabric> {
    let mut builder = FabricBuilder::new(fabric.name());
    builder.append(fabric, |_, host| host.name.clone());
    for (one, other, count, spec) in more {
        let spec = builder.spec(spec.clone());
        builder.connect(*one, *other, *count, spec);
    }
    builder.finish().ok()
}

fn all_reduce(fabric: &Fabric, options: &Options) -> Option<f64> {
    // The algorithm for NVSwitches does not run where a GPU lacks all its links; rings run everywhere.
    let rings = Options { algorithm: Some(LibraryAlgorithm::Ring), ..options.clone() };
    let predict = |options: &Options| predict(Kind::AllReduce, fabric, &[BYTES], options).ok();
    Some(predict(options).or_else(|| predict(&rings))?.rows.first()?.busbw_gb_per_s)
}

fn compare(what: &str, unit: &str, now_gb_per_s: f64, usual_gb_per_s: f64) -> Option<Cost> {
    let differ =
        now_gb_per_s.is_finite() && usual_gb_per_s.is_finite() && now_gb_per_s <= usual_gb_per_s * 0.99;
    differ.then(|| Cost {
        sentence: format!("{what}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s ({unit})"),
        now_gb_per_s,
        usual_gb_per_s,
    })
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::catalog::links::NVLINK;

    use super::*;

    #[test]
    fn faults_cost_bandwidth_and_mended_fabrics_none() {
        let usual = weftlink_fabric::resolve("hgx-h100").unwrap();
        let (gpu, switch) = (usual.gpus()[3], usual.find("nvswitch1").unwrap());
        let now = usual.without(&[(gpu, switch)]);
        let cost = of_all_reduce(&now, &usual).unwrap();
        assert!(cost.now_gb_per_s < 0.9 * cost.usual_gb_per_s, "{cost:?}");
        assert!(cost.sentence.contains("instead of") && cost.sentence.contains("all-reduce of 1 GiB"));
        assert!(of_all_reduce(&usual, &usual).is_none());
        let links = usual.links_from(gpu).iter().find(|link| link.target == switch).unwrap().count;
        let mended = with_more_links(&now, &[(gpu, switch, links, NVLINK[3].clone())]).unwrap();
        assert!(of_all_reduce(&mended, &usual).is_none(), "the mended fabric is as fast");
        assert!(of_copy(&now, &usual, gpu, usual.gpus()[0]).is_some());
        let lost = of_lost_peer_access(&usual).unwrap();
        assert!(lost.now_gb_per_s < lost.usual_gb_per_s / 5.0, "{lost:?}");
    }

    #[test]
    fn one_gpu_costs_nothing() {
        let one = weftlink_fabric::resolve("hgx-h100").unwrap();
        let alone = one.with_links(|_, _| None);
        assert!(of_all_reduce(&alone, &alone).is_none());
        assert!(of_copy(&alone, &alone, one.gpus()[0], one.gpus()[0]).is_none());
    }
}
