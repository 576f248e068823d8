//! What the library detected of the machine, against the fabric and against itself.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::{DeviceKind, Fabric, LinkKind, PathType, Paths};

use super::{Context, INFO, LogCheck, counted, gpus_of, listed, ranks, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::{Rank, Seen};
use crate::log::topology::{Gpu, Topology};

pub(super) const CHECKS: &[LogCheck] = &[
    LogCheck {
        id: "log-topology",
        finds: "a machine that NCCL detects other than it is: NVLinks, PCIe width, paths",
        run: topology,
    },
    LogCheck { id: "log-duplicate-gpu", finds: "ranks that share a GPU", run: duplicates },
    LogCheck {
        id: "log-channels",
        finds: "ranks that disagree on their channels, rings or trees",
        run: channels,
    },
];

/// What NCCL needs to print its topology.
const GRAPH: &str = "a log of a run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH";
/// A rate is lower than another below this part of it.
const LOWER: f64 = 0.85;

fn topology(context: &Context<'_>) -> Vec<Outcome> {
    let topologies = &context.log.topologies;
    // Most logs do not have it, and nothing is missing unless the machine is to be compared.
    if topologies.is_empty() {
        return match context.fabric {
            Some(fabric) => {
                unknown(&format!("whether NCCL detected the machine as {}", fabric.name()), GRAPH)
            }
            None => Vec::new(),
        };
    }
    let mut found: Vec<Outcome> = Vec::new();
    for topology in topologies {
        let host = &context.log.processes[topology.process].host;
        found.extend(odd_gpus(topology, host).map(Outcome::Found));
        if let Some(fabric) = context.fabric {
            found.extend(fewer_links(topology, fabric, host).map(Outcome::Found));
            found.extend(other_paths(context, topology, fabric).map(Outcome::Found));
        }
    }
    if !found.is_empty() {
        return found;
    }
    let gpus: usize = topologies.iter().map(|topology| topology.gpus.len()).sum();
    let against = context.fabric.map_or_else(|| "each other".to_owned(), |fabric| fabric.name().to_owned());
    vec![Outcome::Fine(format!("the links of {} agree with {against}", counted(gpus, "GPU")))]
}

/// GPUs with slower links than the others of the host.
fn odd_gpus(topology: &Topology, host: &str) -> Option<Finding> {
    let most = |rate: fn(&Gpu) -> f64| topology.gpus.iter().map(rate).fold(0.0, f64::max);
    let (nvlink, pcie) = (most(|gpu| gpu.nvlink_gb_per_s), most(|gpu| gpu.pcie_gb_per_s));
    let mut words = Vec::new();
    let mut lines = Vec::new();
    for gpu in &topology.gpus {
        if gpu.nvlink_gb_per_s < nvlink * LOWER {
            words.push(format!("{} has {:.0} of {nvlink:.0} GB/s of NVLink", gpu.name, gpu.nvlink_gb_per_s));
            lines.push(&gpu.seen);
        }
        // Below a switch the rate is that of its upstream port, which GPUs share.
        if gpu.pcie_gb_per_s < pcie * 0.6 {
            words.push(format!("{} has {:.1} of {pcie:.1} GB/s of PCIe", gpu.name, gpu.pcie_gb_per_s));
            lines.push(&gpu.seen);
        }
    }
    if words.is_empty() {
        return None;
    }
    let what = format!("on {host} some GPUs have slower links than the others: {}", listed(words));
    let finding = Finding::new("log-topology", Severity::Warning, what);
    Some(with_fixes(shown_by(finding, lines)))
}

fn with_fixes(finding: Finding) -> Finding {
    finding
        .fixed_by("run `nvidia-smi nvlink -s` and `nvidia-smi topo -m`, and compare with `weft topo`; an inactive link needs a reset of the GPU or a reseated bridge")
        .fixed_by("run `nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max --format=csv` under load")
        .fixed_by("in a VM, give NCCL the real wiring: NCCL_TOPO_FILE=FILE (`weft topo MACHINE --xml FILE` writes one)")
}

/// GB/s that NCCL counts for one NVLink. Versions differ by a few percent, which the comparison allows for.
fn nccl_rate(generation: Option<u8>, architecture: Option<u32>) -> Option<f64> {
    match (generation?, architecture) {
        (_, Some(86)) => Some(12.0),
        (1, _) => Some(18.0),
        (2 | 3, _) => Some(20.0),
        (4, _) => Some(20.6),
        (5, _) => Some(40.1),
        _ => None,
    }
}

/// GPUs with fewer NVLinks than those of the fabric.
fn fewer_links(topology: &Topology, fabric: &Fabric, host: &str) -> Option<Finding> {
    let gpu = fabric.gpus().first().copied()?;
    let architecture = match &fabric.device(gpu).kind {
        DeviceKind::Gpu(gpu) => gpu.sm,
        _ => None,
    };
    let generation = fabric.links_from(gpu).iter().find_map(|link| match fabric.spec(link).kind {
        LinkKind::NvLink { generation } => Some(generation),
        _ => None,
    })?;
    let count = Paths::of(fabric).gpu_fabric_out(gpu).links;
    let expected = nccl_rate(generation, architecture)? * f64::from(count);
    let few: Vec<&Gpu> = topology.gpus.iter().filter(|gpu| gpu.nvlink_gb_per_s < expected * LOWER).collect();
    if few.is_empty() {
        return None;
    }
    let words = few.iter().map(|gpu| format!("{} with {:.0} GB/s", gpu.name, gpu.nvlink_gb_per_s));
    let what = format!(
        "on {host} NCCL detects less NVLink than {} has ({count} links, {expected:.0} GB/s as NCCL counts): {}",
        fabric.name(),
        listed(words)
    );
    let finding = Finding::new("log-topology", Severity::Critical, what);
    Some(with_fixes(shown_by(finding, few.iter().map(|gpu| &gpu.seen))))
}

/// Pairs of GPUs that NCCL connects by a worse path than the fabric.
fn other_paths(context: &Context<'_>, topology: &Topology, fabric: &Fabric) -> Option<Finding> {
    let known: Vec<&Rank> =
        context.log.largest().into_iter().flat_map(|largest| context.log.ranks_of(largest)).collect();
    let gpus = gpus_of(context.log, &known, fabric);
    let paths = Paths::of(fabric);
    let named = topology.ranks(context.log, &known);
    let of_name = |name: &str| gpus.get(named.get(name)?).copied();
    let mut worse: BTreeSet<(String, &str)> = BTreeSet::new();
    let mut lines = Vec::new();
    for path in topology.paths.iter().filter(|path| path.source < path.target) {
        let (Some(source), Some(target)) = (of_name(&path.source), of_name(&path.target)) else { continue };
        let usual = paths.path(source, target).kind;
        let has_nvlink = matches!(usual, PathType::Nvl | PathType::Nvb);
        let is_host = |kind: &str| matches!(kind, "PHB" | "SYS" | "NODE");
        let is_local = matches!(usual, PathType::Pix | PathType::Pxb);
        if (has_nvlink && !matches!(path.kind.as_str(), "NVL" | "NVB")) || (is_local && is_host(&path.kind)) {
            worse.insert((
                format!("{} to {} is {} instead of {usual}", path.source, path.target, path.kind),
                &path.kind,
            ));
            let text = format!("{} : {} ({}/{})", path.source, path.target, path.gb_per_s, path.kind);
            lines.push(Seen { line: path.line, text });
        }
    }
    if worse.is_empty() {
        return None;
    }
    let what = format!(
        "NCCL detects worse paths between GPUs than {} has: {}",
        fabric.name(),
        listed(worse.into_iter().map(|(words, _)| words))
    );
    Some(with_fixes(shown_by(Finding::new("log-topology", Severity::Critical, what), &lines)))
}

fn duplicates(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    let warned = log.warnings.iter().filter(|warning| warning.text.contains("Duplicate GPU detected"));
    let mut lines: Vec<&Seen> = warned.map(|warning| &warning.seen).collect();
    let mut shared: BTreeSet<String> = BTreeSet::new();
    for communicator in context.communicators() {
        let mut places: BTreeMap<(&str, &str), Vec<&Rank>> = BTreeMap::new();
        for rank in log.ranks_of(communicator) {
            if let Some(bus) = &rank.bus {
                places.entry((log.host_of(rank), bus)).or_default().push(rank);
            }
        }
        for ((host, bus), of) in places.into_iter().filter(|(_, of)| of.len() > 1) {
            let numbers: Vec<u32> = of.iter().filter_map(|rank| rank.rank).collect();
            shared.insert(format!("{} use GPU {bus} of {host}", ranks(&numbers)));
            lines.extend(of.iter().map(|rank| &rank.seen));
        }
    }
    if lines.is_empty() {
        let known = log.ranks.iter().filter(|rank| rank.bus.is_some()).count();
        return match known {
            0 => unknown("which GPU each rank uses", INFO),
            known => vec![Outcome::Fine(format!("{} use different GPUs", counted(known, "rank")))],
        };
    }
    let what = match shared.is_empty() {
        true => "two ranks use the same GPU, which NCCL refuses".to_owned(),
        false => format!("ranks share a GPU: {}", listed(shared)),
    };
    let finding = shown_by(Finding::new("log-duplicate-gpu", Severity::Critical, what), lines)
        .fixed_by("give each process its own GPU: `torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))` before the process group is created")
        .fixed_by("under Slurm use `--gpus-per-task=1 --gpu-bind=none`, and start no more processes on a host than it has GPUs");
    vec![Outcome::Found(finding)]
}

fn channels(context: &Context<'_>) -> Vec<Outcome> {
    let mut known = 0;
    for communicator in context.communicators() {
        let mut counts: BTreeMap<(u32, u32), Vec<&Rank>> = BTreeMap::new();
        let mut trees: Vec<&Rank> = Vec::new();
        for rank in context.log.ranks_of(communicator) {
            let Some((channels, _)) = &rank.channels else { continue };
            counts.entry((channels.collectives, channels.nvls)).or_default().push(rank);
            // Each channel has a tree and a ring.
            let rings = rank.rings.len().max(rank.orders.len());
            let is_fewer = |count: usize| count > 0 && count < channels.collectives as usize;
            if is_fewer(rank.trees.len()) || is_fewer(rings) {
                trees.push(rank);
            }
        }
        known += counts.values().map(Vec::len).sum::<usize>();
        if counts.len() > 1 {
            let words = counts.iter().map(|((collectives, nvls), of)| {
                let numbers: Vec<u32> = of.iter().filter_map(|rank| rank.rank).collect();
                format!("{collectives} channels and {nvls} of NVLS on {}", ranks(&numbers))
            });
            let what =
                format!("ranks of one communicator have different numbers of channels: {}", listed(words));
            let lines = counts.values().filter_map(|of| Some(&of.first()?.channels.as_ref()?.1));
            return vec![Outcome::Found(channel_finding(what, lines))];
        }
        if !trees.is_empty() {
            let numbers: Vec<u32> = trees.iter().filter_map(|rank| rank.rank).collect();
            let what = format!("{} printed fewer rings or trees than channels", ranks(&numbers));
            let lines = trees.iter().filter_map(|rank| Some(&rank.channels.as_ref()?.1));
            return vec![Outcome::Found(channel_finding(what, lines))];
        }
    }
    match known {
        0 => unknown("how many channels ranks use", INFO),
        known => vec![Outcome::Fine(format!("{} agree on their channels", counted(known, "rank")))],
    }
}

fn channel_finding<'s>(what: String, lines: impl Iterator<Item = &'s Seen>) -> Finding {
    shown_by(Finding::new("log-channels", Severity::Warning, what), lines)
        .fixed_by("set NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_MIN_CTAS, NCCL_MAX_CTAS and NCCL_TOPO_FILE to the same values on all ranks, or on none")
        .fixed_by("compare the hosts: `weft doctor --all-ranks`")
}
