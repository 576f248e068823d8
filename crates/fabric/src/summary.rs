//! A fabric in a few numbers and one sentence that a person can act on.

use crate::bisection::{Bisection, bisection};
use crate::catalog::gpus::GpuLinks;
use crate::cliff::{Level, Nics, cliff, nics};
use crate::device::DeviceKind;
use crate::domains::gpu_domains;
use crate::link::{LinkKind, Measure};
use crate::paths::{PairClass, PathType, Paths};
use crate::rate::{BothWays, Device, Domain, OneWay, Rate};

/// What there is to say about a fabric.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Hosts that have GPUs, or all if none has.
    pub hosts: usize,
    /// GPUs.
    pub gpus: usize,
    /// NVSwitches.
    pub nvswitches: usize,
    /// Sizes of the GPU domains, largest first.
    pub domains: Vec<usize>,
    /// What a GPU can send other GPUs over its own links; the least of all GPUs.
    pub gpu_rate: Option<Rate<Device, OneWay>>,
    /// What the links of the GPU fabric are.
    pub gpu_link: Option<LinkKind>,
    /// All GPUs of the largest domain added up, both ways, as racks are advertised.
    pub domain_rate: Option<Rate<Domain, BothWays>>,
    /// The NICs of a host.
    pub nics: Option<Nics>,
    /// What the halves of the fabric can send each other.
    pub bisection: Option<Bisection>,
    /// The bandwidth cliff.
    pub cliff: Vec<Level>,
    /// The classes of GPU pairs.
    pub classes: Vec<PairClass>,
    /// Why GPUs that could be expected to have links of their own have none.
    pub no_links: Option<&'static str>,
    /// NICs in all, whether or not their speed is known.
    pub nic_count: usize,
}

impl Summary {
    /// Works a fabric out.
    pub fn of(paths: &Paths<'_>) -> Self {
        let fabric = paths.fabric();
        let mut domains: Vec<usize> = gpu_domains(fabric).iter().map(Vec::len).collect();
        domains.sort_unstable_by(|a, b| b.cmp(a));
        let outs = fabric.gpus().iter().map(|gpu| paths.gpu_fabric_out(*gpu).nominal.into_device());
        let gpu_rate = outs.min().filter(|rate| *rate > Rate::ZERO);
        let kinds = fabric.specs().iter().map(|spec| spec.kind);
        let models = fabric.gpus().iter().filter_map(|gpu| fabric.device(*gpu).kind.gpu_model());
        let mut reasons = models.map(|model| match model.links {
            GpuLinks::Absent(reason) => reason,
            GpuLinks::Bridge { .. } => "these cards have a bridge connector, but no bridge is fitted",
            GpuLinks::Wired(..) => "these GPUs have links, but the description leaves them out",
        });
        Self {
            hosts: fabric.hosts().len(),
            gpus: fabric.gpus().len(),
            nvswitches: fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).count(),
            domain_rate: gpu_rate
                .zip(domains.first())
                .map(|(rate, size)| rate.per_domain(*size as u64).both_ways()),
            domains,
            gpu_rate,
            gpu_link: kinds.clone().find(|kind| kind.is_gpu_fabric()),
            nics: nics(fabric),
            bisection: bisection(paths, Measure::Nominal),
            cliff: cliff(paths),
            classes: paths.classes(),
            no_links: reasons.next().filter(|_| gpu_rate.is_none()),
            nic_count: fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).count(),
        }
    }

    /// The step from the GPU fabric (or PCIe, without one) down to the network, per GPU.
    pub fn network_step(&self) -> Option<f64> {
        let nics = self.nics?;
        let above = self.gpu_rate.or_else(|| self.cliff.iter().rev().nth(1).map(|level| level.nominal))?;
        Some(above.ratio(nics.total.shared_by(nics.gpus_per_host)))
    }

    /// One sentence that a person can act on.
    pub fn sentence(&self) -> String {
        match self.gpus {
            0 => "No GPU here: nothing to plan a collective for.".to_owned(),
            1 => format!(
                "One GPU{}: nothing to talk to on this machine{}.",
                self.and_its_links(),
                self.past_the_node()
            ),
            _ => format!("{}{}.", self.inside(), self.past_the_node()),
        }
    }

    fn and_its_links(&self) -> String {
        self.gpu_rate.map_or_else(String::new, |rate| format!(" with {rate} of unused links"))
    }

    fn inside(&self) -> String {
        let count = self.gpus;
        let largest = self.domains.first().copied().unwrap_or(0);
        let link = self.gpu_link.map_or("GPU fabric", |kind| match kind {
            LinkKind::Xgmi { .. } => "xGMI",
            LinkKind::XeLink => "Xe Link",
            _ => "NVLink",
        });
        let Some(rate) = self.gpu_rate.filter(|_| largest > 1) else {
            return self.inside_without_links(link, largest);
        };
        let groups = if self.domains.len() == 1 {
            format!("one {link} domain")
        } else if self.domains.iter().all(|size| *size == largest) {
            format!("{} {link} domains of {largest}", self.domains.len())
        } else {
            format!("{} {link} domains of up to {largest}", self.domains.len())
        };
        let all = match self.domain_rate {
            Some(all) if largest > 16 => format!(" ({} both ways over all {largest})", all.amount()),
            _ => String::new(),
        };
        let relayed = self.classes.iter().any(|class| class.path.kind == PathType::Nvb);
        let relayed = if relayed { ", some pairs only through another GPU" } else { "" };
        format!("{count} GPUs in {groups}, {rate}{all}{relayed}")
    }

    fn inside_without_links(&self, link: &str, largest: usize) -> String {
        let count = self.gpus;
        if largest > 1 {
            return format!("{count} GPUs joined by {link} of unknown speed");
        }
        let why = self.no_links.map_or_else(String::new, |reason| format!(" ({reason})"));
        let worst =
            self.classes.iter().rev().find(|class| !matches!(class.path.kind, PathType::Net | PathType::Dis));
        let reach = match worst {
            Some(class) if class.path.width.nominal > Rate::ZERO => format!(
                ", they reach each other at {} each way at most, through {}",
                class.path.width.nominal.amount(),
                class.path.kind.meaning()
            ),
            Some(class) => format!(", they reach each other through {}", class.path.kind.meaning()),
            None => String::new(),
        };
        format!("{count} GPUs, no NVLink between them{why}{reach}")
    }

    fn past_the_node(&self) -> String {
        let Some(nics) = self.nics else {
            return match self.nic_count {
                0 => "; no NIC is described, so nothing is known past the node".to_owned(),
                1 => "; past the node one NIC of unknown speed".to_owned(),
                count => format!("; past the node {count} NICs of unknown speed"),
            };
        };
        let port = nics.total.shared_by(nics.per_host.max(1));
        // A domain that spans hosts, such as a rack, leaves through the NICs of all of them.
        let largest = self.domains.first().copied().unwrap_or(0) as u64;
        let (past, ports) = match largest / nics.gpus_per_host {
            0 | 1 => ("node", nics.per_host),
            hosts => ("domain", nics.per_host * hosts),
        };
        let reach = format!("; past the {past} {ports} x {} each way", port.amount());
        match self.network_step() {
            Some(step) if step >= 1.5 => format!("{reach}: {} cliff", times(step)),
            _ => reach,
        }
    }
}

/// `a 9x`, `an 18x`: eight, eleven and eighteen start with a vowel.
fn times(step: f64) -> String {
    let text = format!("{step:.0}");
    let article = if text.starts_with('8') || matches!(text.as_str(), "11" | "18") { "an" } else { "a" };
    format!("{article} {text}x")
}
