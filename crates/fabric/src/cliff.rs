//! The bandwidth cliff: what a GPU can move at each distance from it, and how steep the steps are.

use crate::device::{DeviceId, DeviceKind};
use crate::fabric::Fabric;
use crate::figure::Basis;
use crate::link::{Link, LinkKind, Measure};
use crate::paths::Paths;
use crate::rate::{Device, OneWay, Rate};

/// One ledge of the cliff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// What carries the data there.
    pub name: String,
    /// Where it leads and over what.
    pub detail: String,
    /// What the wires signal, each way per GPU; the least of all GPUs.
    pub nominal: Rate<Device, OneWay>,
    /// What transfers get, where that is known.
    pub effective: Option<Rate<Device, OneWay>>,
}

/// The levels of a fabric that its description knows, steepest first: memory, GPU fabric, CPU, PCIe, network.
pub fn cliff(paths: &Paths<'_>) -> Vec<Level> {
    let fabric = paths.fabric();
    // Behind C2C, PCIe is a side entrance that carries no data to speak of.
    let to_cpu = c2c(fabric).or_else(|| pcie(fabric));
    let levels = [memory(fabric), gpu_fabric(paths), to_cpu, network(fabric)];
    levels.into_iter().flatten().filter(|level| level.nominal > Rate::ZERO).collect()
}

/// How many times wider each level is than the one below it; none for the last.
pub fn steps(levels: &[Level]) -> Vec<Option<f64>> {
    let below = |index: usize| levels.get(index + 1).map(|below| levels[index].nominal.ratio(below.nominal));
    (0..levels.len()).map(below).collect()
}

fn memory(fabric: &Fabric) -> Option<Level> {
    let models = fabric.gpus().iter().map(|gpu| fabric.device(*gpu).kind.gpu_model());
    let slowest =
        models.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|model| model.memory_rate.value)?;
    Some(Level {
        name: "GPU memory".to_owned(),
        detail: format!("{} of {}", slowest.memory, slowest.name),
        nominal: slowest.memory_rate.value,
        effective: (slowest.memory_rate.basis != Basis::Nominal).then_some(slowest.memory_rate.value),
    })
}

fn gpu_fabric(paths: &Paths<'_>) -> Option<Level> {
    let fabric = paths.fabric();
    let slowest = fabric.gpus().iter().min_by_key(|gpu| paths.gpu_fabric_out(**gpu).nominal)?;
    let width = paths.gpu_fabric_out(*slowest);
    let link = fabric.links_from(*slowest).iter().find(|link| fabric.spec(link).kind.is_gpu_fabric())?;
    let switched = matches!(fabric.device(link.target).kind, DeviceKind::NvSwitch { .. });
    let reach = if switched { "through NVSwitches" } else { "direct to other GPUs" };
    Some(Level {
        name: fabric.spec(link).kind.to_string(),
        detail: format!("{} links {reach}", width.links),
        nominal: width.nominal.into_device(),
        effective: Some(width.effective.into_device()).filter(|_| fabric.spec(link).effective.is_some()),
    })
}

fn c2c(fabric: &Fabric) -> Option<Level> {
    from_links(fabric, |kind| kind == LinkKind::C2c, "to the CPU and its memory")
}

fn pcie(fabric: &Fabric) -> Option<Level> {
    from_links(
        fabric,
        |kind| matches!(kind, LinkKind::Pcie { .. }),
        "the GPU's slot, shared with what is behind its switch",
    )
}

fn from_links(fabric: &Fabric, wanted: impl Fn(LinkKind) -> bool, detail: &str) -> Option<Level> {
    let of_gpu = |gpu: &DeviceId| -> Option<&Link> {
        fabric.links_from(*gpu).iter().find(|link| wanted(fabric.spec(link).kind))
    };
    let links = fabric.gpus().iter().map(of_gpu).collect::<Option<Vec<_>>>()?;
    let slowest = links.into_iter().min_by_key(|link| fabric.rate(link, Measure::Nominal))?;
    let spec = fabric.spec(slowest);
    Some(Level {
        name: spec.kind.to_string(),
        detail: detail.to_owned(),
        nominal: fabric.rate(slowest, Measure::Nominal).into_device(),
        effective: spec.effective.is_some().then(|| fabric.rate(slowest, Measure::Effective).into_device()),
    })
}

/// The NICs of a fabric, counted per host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nics {
    /// Ports on a host.
    pub per_host: u64,
    /// GPUs on that host.
    pub gpus_per_host: u64,
    /// Line rate of all its ports.
    pub total: Rate<Device, OneWay>,
}

/// The NICs of the host that gives its GPUs the least, if every host with GPUs has some.
pub fn nics(fabric: &Fabric) -> Option<Nics> {
    let mut hosts = vec![Nics { per_host: 0, gpus_per_host: 0, total: Rate::ZERO }; fabric.hosts().len()];
    for id in fabric.device_ids() {
        let device = fabric.device(id);
        let Some(host) = device.host.map(|host| &mut hosts[host.index()]) else {
            continue;
        };
        match &device.kind {
            DeviceKind::Gpu(_) => host.gpus_per_host += 1,
            DeviceKind::Nic(ports) => {
                host.per_host += ports.len() as u64;
                let line = ports.iter().map(|port| port.rate.per_device(1)).fold(Rate::ZERO, Rate::plus);
                host.total = host.total.plus(line);
            }
            _ => {}
        }
    }
    let with_gpus = hosts.into_iter().filter(|host| host.gpus_per_host > 0);
    let poorest = with_gpus.min_by_key(|host| host.total.shared_by(host.gpus_per_host))?;
    (poorest.total > Rate::ZERO).then_some(poorest)
}

fn network(fabric: &Fabric) -> Option<Level> {
    let nics = nics(fabric)?;
    let kind =
        fabric.specs().iter().map(|spec| spec.kind).find(|kind| matches!(kind, LinkKind::Network { .. }));
    let effective = fabric.specs().iter().find(|spec| Some(spec.kind) == kind).and_then(|spec| {
        let (effective, nominal) = (spec.effective.as_ref()?.value, spec.nominal.as_ref()?.value);
        let share = nics.total.shared_by(nics.gpus_per_host);
        Some(Rate::from_bytes((share.bytes_per_second() as f64 * effective.ratio(nominal)) as u64))
    });
    let port = nics.total.shared_by(nics.per_host.max(1));
    Some(Level {
        name: kind.map_or_else(|| "network".to_owned(), |kind| kind.to_string()),
        detail: format!(
            "{} x {} for the {} GPUs of a host",
            nics.per_host,
            port.amount(),
            nics.gpus_per_host
        ),
        nominal: nics.total.shared_by(nics.gpus_per_host),
        effective,
    })
}
