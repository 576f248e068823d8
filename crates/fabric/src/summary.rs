//! A fabric in a few numbers and one sentence.

use crate::bisection::{Bisection, bisection};
use crate::catalog::gpus::GpuLinks;
use crate::catalog::switches::chips;
use crate::cliff::{Level, Nics, PAST_THE_LEAF, cliff, nics};
use crate::device::DeviceKind;
use crate::domains::gpu_domains;
use crate::link::{LinkKind, Measure};
use crate::paths::{PairClass, PathType, Paths};
use crate::rate::{BothWays, Device, Domain, OneWay, Rate};

/// The key figures of a fabric.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Hosts.
    pub hosts: usize,
    /// GPUs.
    pub gpus: usize,
    /// NVSwitch chips.
    pub nvswitches: usize,
    /// Sizes of the GPU domains, largest first.
    pub domains: Vec<usize>,
    /// Hosts that the largest domain spans.
    pub domain_hosts: usize,
    /// The rate of a GPU's links to other GPUs; the least of all GPUs that have some.
    pub gpu_rate: Option<Rate<Device, OneWay>>,
    /// The kind of link of the GPU fabric.
    pub gpu_link: Option<LinkKind>,
    /// The sum over all GPUs of the largest domain, both ways, as racks are advertised.
    pub domain_rate: Option<Rate<Domain, BothWays>>,
    /// The NICs of a host.
    pub nics: Option<Nics>,
    /// The bisection bandwidth.
    pub bisection: Option<Bisection>,
    /// The bandwidth cliff.
    pub cliff: Vec<Level>,
    /// The classes of GPU pairs.
    pub classes: Vec<PairClass>,
    /// Why no GPU has links to other GPUs.
    pub no_links: Option<NoLinks>,
    /// The number of NICs, including those of unknown speed.
    pub nic_count: usize,
}

/// Why GPUs have no links to other GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLinks {
    /// The model has none, for this reason.
    None(&'static str),
    /// The cards have bridge connectors, but no bridge is fitted.
    NoBridge,
    /// The description does not say.
    NotDescribed,
}

impl NoLinks {
    /// The reason as a clause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::None(reason) => reason,
            Self::NoBridge => "the cards have bridge connectors, but no bridge is fitted",
            Self::NotDescribed => "the description does not say whether there are any",
        }
    }
}

impl Summary {
    /// Summarizes a fabric.
    pub fn of(paths: &Paths<'_>) -> Self {
        let fabric = paths.fabric();
        let mut members = gpu_domains(fabric);
        members.sort_by_key(|gpus| std::cmp::Reverse(gpus.len()));
        let joined = members.iter().filter(|gpus| gpus.len() > 1 || fabric.gpus().len() == 1).flatten();
        let outs = joined.map(|gpu| paths.gpu_fabric_out(*gpu).nominal.into_device());
        let gpu_rate = outs.min().filter(|rate| *rate > Rate::ZERO);
        let domains: Vec<usize> = members.iter().map(Vec::len).collect();
        let largest = members.first().map_or(&[][..], Vec::as_slice);
        let mut hosts: Vec<_> = largest.iter().filter_map(|gpu| fabric.device(*gpu).host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let mut kinds = fabric.links().iter().map(|link| fabric.spec(link).kind);
        let models = fabric.gpus().iter().filter_map(|gpu| fabric.device(*gpu).kind.gpu_model());
        let mut reasons = models.map(|model| match model.links {
            GpuLinks::Absent(reason) => NoLinks::None(reason),
            GpuLinks::Bridge { .. } => NoLinks::NoBridge,
            GpuLinks::Wired(..) => NoLinks::NotDescribed,
        });
        Self {
            hosts: fabric.hosts().len(),
            gpus: fabric.gpus().len(),
            nvswitches: chips(fabric),
            domain_rate: gpu_rate
                .zip(domains.first())
                .map(|(rate, size)| rate.per_domain(*size as u64).both_ways()),
            domains,
            domain_hosts: hosts.len(),
            gpu_rate,
            gpu_link: kinds.find(|kind| kind.is_gpu_fabric()),
            nics: nics(fabric),
            bisection: bisection(paths, Measure::Nominal),
            cliff: cliff(paths),
            classes: paths.classes(),
            no_links: gpu_rate.is_none().then(|| reasons.next().unwrap_or(NoLinks::NotDescribed)),
            nic_count: fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).count(),
        }
    }

    /// The bandwidth of the GPU fabric (or, without one, of the GPU's slot) divided by that of the network, per GPU.
    pub fn network_step(&self) -> Option<f64> {
        let nics = self.nics.as_ref()?;
        let network = self.cliff.iter().position(|level| level.detail.starts_with(&nics.describe(1)))?;
        let above = self.gpu_rate.or_else(|| Some(self.cliff.get(network.checked_sub(1)?)?.nominal))?;
        Some(above.ratio(self.cliff[network].nominal))
    }

    /// The summary as one sentence.
    pub fn sentence(&self) -> String {
        match self.gpus {
            0 => {
                "No GPU. Weft plans, predicts and runs collectives between CPU ranks, too: try `weft bench`."
                    .to_owned()
            }
            1 => format!("One GPU{}: no peer on this machine{}.", self.unused_links(), self.past_the_node()),
            _ => format!("{}{}.", self.inside(), self.past_the_node()),
        }
    }

    fn unused_links(&self) -> String {
        self.gpu_rate.map_or_else(String::new, |rate| format!(" with {rate} of unused links"))
    }

    fn inside(&self) -> String {
        let count = self.gpus;
        let largest = self.domains.first().copied().unwrap_or(0);
        let link = self.gpu_link.map_or("GPU fabric", |kind| match kind {
            LinkKind::Xgmi { .. } => "xGMI",
            LinkKind::XeLink => "Xe Link",
            LinkKind::UaLink => "UALink",
            _ => "NVLink",
        });
        let Some(rate) = self.gpu_rate.filter(|_| largest > 1) else {
            return self.inside_without_links(link, largest);
        };
        let alone = self.domains.iter().filter(|size| **size == 1).count();
        let joined = self.domains.len() - alone;
        let groups = if joined == 1 && alone == 0 {
            format!("in one {link} domain")
        } else if joined == 1 {
            format!("in all, {largest} of them in one {link} domain")
        } else if self.domains.iter().all(|size| *size == largest || *size == 1) {
            format!("in {joined} {link} domains of {largest}")
        } else {
            format!("in {joined} {link} domains of up to {largest}")
        };
        let without = match alone {
            0 => String::new(),
            count => format!(", {count} without {link}"),
        };
        let all = match self.domain_rate {
            Some(all) if largest > 16 => format!(" ({} both ways over all {largest})", all.amount()),
            _ => String::new(),
        };
        let relayed = self.classes.iter().any(|class| class.path.kind == PathType::Nvb);
        let relayed = if relayed { ", some pairs only through another GPU" } else { "" };
        format!("{count} GPUs {groups}, {rate}{all}{relayed}{without}")
    }

    fn inside_without_links(&self, link: &str, largest: usize) -> String {
        let count = self.gpus;
        if largest > 1 {
            return format!("{count} GPUs joined by {link} of unknown speed");
        }
        let none = match self.no_links {
            Some(NoLinks::None(reason)) => format!("no NVLink between them ({reason})"),
            Some(NoLinks::NoBridge) => format!("no NVLink between them ({})", NoLinks::NoBridge.reason()),
            _ => "no NVLink between them in the description".to_owned(),
        };
        let local = |class: &&PairClass| !matches!(class.path.kind, PathType::Net | PathType::Dis);
        let reach = match self.classes.iter().rev().find(local) {
            Some(class) if class.path.width.effective > Rate::ZERO => format!(
                ", they reach each other at {} each way at worst (effective), through {}",
                class.path.width.effective.amount(),
                class.path.kind.meaning()
            ),
            Some(class) => format!(", they reach each other through {}", class.path.kind.meaning()),
            None => String::new(),
        };
        format!("{count} GPUs, {none}{reach}")
    }

    fn past_the_node(&self) -> String {
        let Some(nics) = &self.nics else {
            return match self.nic_count {
                0 => "; no NIC is described, so the bandwidth past the node is unknown".to_owned(),
                1 => "; past the node one NIC of unknown speed".to_owned(),
                count => format!("; past the node {count} NICs of unknown speed"),
            };
        };
        // Traffic leaves a domain that spans hosts, such as a rack, through the NICs of all of them.
        let (past, hosts) = match self.domain_hosts {
            0 | 1 => ("node", 1),
            hosts => ("domain", hosts as u64),
        };
        let mut reach = format!(
            "; past the {past} {} each way, {} per GPU",
            nics.describe(hosts),
            nics.per_gpu().amount()
        );
        if let Some(step) = self.network_step().filter(|step| *step >= 1.5) {
            reach += &format!(": {} cliff", times(step));
        }
        if let Some(spine) = self.cliff.iter().find(|level| level.name == PAST_THE_LEAF) {
            reach += &format!(", and past the leaf switches {} each way per GPU", spine.nominal.amount());
        }
        reach
    }
}

/// `a 9x`, `an 18x`: eight, eleven and eighteen start with a vowel.
fn times(step: f64) -> String {
    let text = format!("{step:.0}");
    let article = if text.starts_with('8') || matches!(text.as_str(), "11" | "18") { "an" } else { "a" };
    format!("{article} {text}x")
}
