//! The bandwidth cliff: the bandwidth of a GPU at each distance from it, and how far it drops from one to the next.

use std::cmp::Reverse;

use crate::catalog::links;
use crate::device::{DeviceKind, Port, Tier};
use crate::fabric::Fabric;
use crate::figure::Basis;
use crate::id::DeviceId;
use crate::link::{LinkKind, Measure, Network};
use crate::paths::Paths;
use crate::rate::{Device, Link, OneWay, Rate};

/// One level of the cliff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The memory or link that carries the data.
    pub name: String,
    /// What it connects.
    pub detail: String,
    /// The nominal rate each way per GPU, of the slowest GPU.
    pub nominal: Rate<Device, OneWay>,
    /// The effective rate, where known.
    pub effective: Option<Rate<Device, OneWay>>,
}

/// The levels that the fabric's description includes, fastest first: memory, GPU fabric, CPU or PCIe, network, spine.
pub fn cliff(paths: &Paths<'_>) -> Vec<Level> {
    let fabric = paths.fabric();
    // A GPU with C2C moves its data over C2C; its PCIe function is for management.
    let slot = c2c(fabric).or_else(|| pcie(fabric)).filter(|level| level.nominal > Rate::ZERO);
    let network = network(fabric, slot.as_ref());
    let spine = network.as_ref().and_then(|network| spine(fabric, network));
    let levels = [memory(fabric), gpu_fabric(paths), slot, network, spine];
    levels.into_iter().flatten().filter(|level| level.nominal > Rate::ZERO).collect()
}

/// The name of the level past the leaf switches.
pub(crate) const PAST_THE_LEAF: &str = "past the leaf";

/// The bandwidth of each level divided by that of the next; none for the last.
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
    // GPUs without such links do not count.
    let linked = fabric.gpus().iter().filter(|gpu| paths.gpu_fabric_out(**gpu).links > 0);
    let slowest = linked.min_by_key(|gpu| paths.gpu_fabric_out(**gpu).nominal)?;
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
    let behind_switch = |gpu: &DeviceId| {
        let above = fabric.links_from(*gpu).iter().map(|link| &fabric.device(link.target).kind);
        above.into_iter().any(|kind| matches!(kind, DeviceKind::PcieSwitch))
    };
    let shared = fabric.gpus().iter().any(behind_switch);
    let detail = if shared { "the GPU's slot, below a PCIe switch" } else { "the GPU's slot" };
    from_links(fabric, |kind| matches!(kind, LinkKind::Pcie { .. }), detail)
}

fn from_links(fabric: &Fabric, wanted: impl Fn(LinkKind) -> bool, detail: &str) -> Option<Level> {
    let of_gpu = |gpu: &DeviceId| -> Option<&crate::Link> {
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

/// The network ports of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nics {
    /// Number of ports and their line rate, fastest first.
    pub ports: Vec<(u64, Rate<Link, OneWay>)>,
    /// GPUs on that host.
    pub gpus: u64,
    /// The technology, where all ports have the same.
    network: Option<Network>,
}

impl Nics {
    /// The number of ports.
    pub fn count(&self) -> u64 {
        self.ports.iter().map(|(count, _)| count).sum()
    }

    /// The line rate of all ports together.
    pub fn total(&self) -> Rate<Device, OneWay> {
        self.ports.iter().map(|(count, rate)| rate.per_device(*count)).fold(Rate::ZERO, Rate::plus)
    }

    /// The share of each GPU.
    pub fn per_gpu(&self) -> Rate<Device, OneWay> {
        self.total().shared_by(self.gpus)
    }

    /// `8 x 50 GB/s`, for `hosts` such hosts.
    pub fn describe(&self, hosts: u64) -> String {
        let group =
            |(count, rate): &(u64, Rate<Link, OneWay>)| format!("{} x {}", count * hosts, rate.amount());
        self.ports.iter().map(group).collect::<Vec<_>>().join(" + ")
    }

    fn add(&mut self, port: &Port) {
        if port.rate == Rate::ZERO {
            return;
        }
        self.network = if self.ports.is_empty() {
            port.network
        } else {
            self.network.filter(|n| Some(*n) == port.network)
        };
        match self.ports.iter_mut().find(|(_, rate)| *rate == port.rate) {
            Some((count, _)) => *count += 1,
            None => self.ports.push((1, port.rate)),
        }
    }
}

/// The NICs of the host with the least bandwidth per GPU, if every host with GPUs has some.
pub fn nics(fabric: &Fabric) -> Option<Nics> {
    let mut hosts = vec![Nics { ports: Vec::new(), gpus: 0, network: None }; fabric.hosts().len()];
    for device in fabric.devices() {
        let Some(host) = device.host.map(|host| &mut hosts[host.index()]) else { continue };
        match &device.kind {
            DeviceKind::Gpu(_) => host.gpus += 1,
            DeviceKind::Nic(ports) => ports.iter().for_each(|port| host.add(port)),
            _ => {}
        }
    }
    let mut slowest = hosts.into_iter().filter(|host| host.gpus > 0).min_by_key(Nics::per_gpu)?;
    slowest.ports.sort_by_key(|(_, rate)| Reverse(*rate));
    (slowest.total() > Rate::ZERO).then_some(slowest)
}

/// A GPU's share of its host's NICs, or the rate of its own slot if that is less.
fn network(fabric: &Fabric, slot: Option<&Level>) -> Option<Level> {
    let nics = nics(fabric)?;
    let share = nics.per_gpu();
    let passes = slot.map_or(share, |slot| slot.nominal.min(share));
    let mut detail = format!("{} for the {} GPUs of a host", nics.describe(1), nics.gpus);
    if passes < share {
        detail += &format!(", of which a GPU's slot passes {}", passes.amount());
    }
    // The efficiency of the first port is used for all of them.
    let spec = nics.network.zip(nics.ports.first()).map(|(network, (_, rate))| {
        links::network(network, (rate.bytes_per_second() / 125_000_000).min(u64::from(u32::MAX)) as u32)
    });
    let efficiency = spec.as_ref().and_then(|spec| {
        Some(spec.effective.as_ref()?.value.ratio(spec.nominal.as_ref()?.value))
            .filter(|ratio| ratio.is_finite())
    });
    let through_slot = slot.and_then(|slot| slot.effective);
    let effective = efficiency.map(|efficiency| {
        let network = Rate::from_bytes((share.bytes_per_second() as f64 * efficiency) as u64);
        through_slot.map_or(network, |slot| slot.min(network))
    });
    let name = spec.map_or_else(|| "network".to_owned(), |spec| spec.kind.to_string());
    Some(Level { name, detail, nominal: passes, effective })
}

/// A GPU's share past the leaf switches, where they have less bandwidth up than down.
fn spine(fabric: &Fabric, network: &Level) -> Option<Level> {
    let leaves = fabric.devices_where(|kind| *kind == DeviceKind::NetSwitch(Tier::Leaf));
    let mut tightest = 1.0_f64;
    for leaf in leaves {
        let (mut up, mut down) = (0_u64, 0_u64);
        for link in fabric.links_from(leaf) {
            let rate = fabric.rate(link, Measure::Nominal).bytes_per_second();
            match fabric.device(link.target).kind {
                DeviceKind::NetSwitch(_) => up += rate,
                _ => down += rate,
            }
        }
        // A leaf without uplinks is the whole network.
        if up > 0 && down > 0 {
            tightest = tightest.min(up as f64 / down as f64);
        }
    }
    let scaled =
        |rate: Rate<Device, OneWay>| Rate::from_bytes((rate.bytes_per_second() as f64 * tightest) as u64);
    (tightest < 1.0).then(|| Level {
        name: PAST_THE_LEAF.to_owned(),
        detail: format!("leaf switches with {:.2} times as much bandwidth down as up", 1.0 / tightest),
        nominal: scaled(network.nominal),
        effective: network.effective.map(scaled),
    })
}
