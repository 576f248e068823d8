//! Copies of GPUs: from and to host memory, and between every two.

use weftlink_cuda::copies::{Copied, between, from_host, to_host};
use weftlink_cuda::driver::{Context, Device, Driver};
use weftlink_cuda::{Error, devices};
use weftlink_doctor::{Outcome, Report};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Paths};
use weftlink_sim::Constants;
use weftlink_sim::copy::copy;

use super::{Measured, Measurements};

const COPY_BYTES: usize = 256 << 20;
/// The most pairs: of larger machines, each GPU with the next.
const PAIRS_MAX: usize = 64;

pub(super) fn measure(fabric: &Fabric, into: &mut Measurements, report: &mut Report) {
    if fabric.gpus().is_empty() && Driver::load().is_err() {
        return;
    }
    if let Err(error) = measure_all(fabric, into) {
        let (what, needs) = ("copies of GPUs".to_owned(), error.to_string());
        report.add("slow-path", vec![Outcome::Unknown { what, needs }]);
    }
}

fn measure_all(fabric: &Fabric, into: &mut Measurements) -> Result<(), Error> {
    let all = devices()?;
    let contexts: Vec<Context> = all.iter().map(Context::primary).collect::<Result<_, _>>()?;
    let paths = Paths::of(fabric);
    let usual = |from: Option<DeviceId>, to: Option<DeviceId>| {
        let copied = copy(&Constants::shipped(), &paths, (from?, to?), COPY_BYTES as u64).ok()?;
        Some(copied.gbytes_per_second)
    };
    let places: Vec<Option<DeviceId>> = all.iter().map(|device| place(fabric, device)).collect();
    let memory = |gpu: Option<DeviceId>| nearest_memory(&paths, gpu?);
    // The names of `weft topo`: CUDA may number GPUs otherwise.
    let name =
        |at: usize| places[at].map_or_else(|| format!("CUDA device {at}"), |gpu| fabric.device_name(gpu));
    for (number, (context, gpu)) in contexts.iter().zip(&places).enumerate() {
        let numa = memory(*gpu);
        let mut push =
            |path: String, copied: Copied, expected| into.paths.push(measured(path, copied, expected));
        push(format!("host memory to {}", name(number)), from_host(context, COPY_BYTES)?, usual(numa, *gpu));
        push(format!("{} to host memory", name(number)), to_host(context, COPY_BYTES)?, usual(*gpu, numa));
    }
    let count = contexts.len();
    let is_all = count * count.saturating_sub(1) <= PAIRS_MAX;
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let chosen = pairs.filter(|(from, to)| from != to && (is_all || *to == (from + 1) % count));
    for (from, to) in chosen {
        let copied = between(&contexts[from], &contexts[to], COPY_BYTES)?;
        into.paths.push(measured(
            format!("{} to {}", name(from), name(to)),
            copied,
            usual(places[from], places[to]),
        ));
    }
    Ok(())
}

fn measured(path: String, copied: Copied, expected_gb_per_s: Option<f64>) -> Measured {
    Measured {
        path,
        gb_per_s: copied.bytes_per_s / 1e9,
        expected_gb_per_s,
        basis: "a copy over the probed wiring, predicted by weft sim copy",
        is_right: copied.wrong_at.is_none(),
    }
}

/// The GPU of the fabric at the PCI address of a device.
fn place(fabric: &Fabric, device: &Device) -> Option<DeviceId> {
    let bus = device.pci.parse().ok()?;
    fabric.gpus().iter().copied().find(|gpu| fabric.device(*gpu).bus == Some(bus))
}

/// The NUMA node on the shortest path from a GPU.
fn nearest_memory(paths: &Paths<'_>, gpu: DeviceId) -> Option<DeviceId> {
    let nodes = paths.fabric().devices_where(|kind| matches!(kind, DeviceKind::Numa(_)));
    nodes.min_by_key(|node| paths.route(gpu, *node).stations.len())
}
