//! Transports between GPUs of one host: host memory where they could access each other's.

use std::collections::BTreeSet;

use weftlink_fabric::{PathType, Paths};

use super::network::edge_seen;
use super::{Context, INFO, LogCheck, counted, gpus_of, listed, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::{Edge, Rank, Seen, TransportKind};

pub(super) const CHECKS: &[LogCheck] = &[
    LogCheck {
        id: "log-shared-memory",
        finds: "host memory between GPUs that NVLink or PCIe peer access connects",
        run: shared_memory,
    },
    LogCheck {
        id: "log-peer-access",
        finds: "peer access that ACS, an IOMMU, a VM or a setting refuses",
        run: refused,
    },
];

fn shared_memory(context: &Context<'_>) -> Vec<Outcome> {
    let edges = || context.log.ranks.iter().flat_map(|rank| &rank.edges);
    let peers = edges().filter(|edge| edge.transport.kind == TransportKind::Peer).count();
    let mut pairs = 0;
    let mut wrong: BTreeSet<String> = BTreeSet::new();
    let mut lines: Vec<Seen> = Vec::new();
    for communicator in context.communicators() {
        let ranks: Vec<&Rank> = context.log.ranks_of(communicator).collect();
        let edges = ranks.iter().flat_map(|rank| &rank.edges);
        let shared: Vec<&Edge> =
            edges.filter(|edge| edge.transport.kind == TransportKind::SharedMemory).collect();
        let all: BTreeSet<(u32, u32)> = shared.iter().map(|edge| pair(edge)).collect();
        let fast = fast_pairs(context, &ranks, &all);
        pairs += all.len();
        wrong.extend(fast.iter().map(|(one, other)| format!("{one}-{other}")));
        lines.extend(shared.iter().filter(|edge| fast.contains(&pair(edge))).map(|edge| edge_seen(edge)));
    }
    if pairs == 0 {
        return match peers {
            0 if edges().next().is_some() => Vec::new(),
            0 => unknown("how GPUs of one host communicate", INFO),
            peers => vec![Outcome::Fine(format!(
                "{} use peer access, none host memory",
                counted(peers, "connection")
            ))],
        };
    }
    let has_paths = context.log.topologies.iter().any(|topology| !topology.paths.is_empty());
    if wrong.is_empty() && context.fabric.is_none() && !has_paths {
        let what = format!(
            "whether NVLink or peer access connects GPUs that use host memory ({})",
            counted(pairs, "pair")
        );
        return unknown(&what, "--expect with the machine, or a log with NCCL_DEBUG_SUBSYS=INIT,GRAPH");
    }
    if wrong.is_empty() {
        let fine = format!(
            "host memory between {} of GPUs, for which no faster way is known",
            counted(pairs, "pair")
        );
        return vec![Outcome::Fine(fine)];
    }
    let what = format!(
        "GPUs that NVLink or PCIe peer access connects communicate through host memory (SHM): {}",
        listed(wrong)
    );
    let disabling = context.log.settings.iter().filter(|setting| is_disabling(&setting.name, &setting.value));
    let finding = Finding::new("log-shared-memory", Severity::Warning, what);
    let finding = shown_by(finding, disabling.map(|setting| &setting.seen).chain(&lines))
        .costing(context.cost(|options| options.no_peer_access = true))
        .fixed_by("unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL")
        .fixed_by("run `nvidia-smi topo -p2p r`: pairs that are not OK are refused by the driver, by ACS (`lspci -vvv | grep ACSCtl`), by an IOMMU or by a VM")
        .fixed_by("in containers, ranks need a common PID and IPC namespace for CUDA IPC (`docker run --ipc=host --pid=host`), or NCCL 2.19 with NCCL_CUMEM_ENABLE=1");
    vec![Outcome::Found(finding)]
}

/// The ranks of a connection, the lower first.
fn pair(edge: &Edge) -> (u32, u32) {
    (edge.source.min(edge.target), edge.source.max(edge.target))
}

/// The pairs that could access each other's memory, by the fabric or by what NCCL detected.
fn fast_pairs(context: &Context<'_>, ranks: &[&Rank], pairs: &BTreeSet<(u32, u32)>) -> BTreeSet<(u32, u32)> {
    let detected =
        context.log.topologies.iter().flat_map(|topology| topology.nvlink_pairs(context.log, ranks));
    let mut fast: BTreeSet<(u32, u32)> = detected.filter(|pair| pairs.contains(pair)).collect();
    let Some(fabric) = context.fabric.filter(|_| !pairs.is_empty()) else { return fast };
    let paths = Paths::of(fabric);
    let gpus = gpus_of(context.log, ranks, fabric);
    let has_access = |gpu| {
        let model = fabric.device(gpu).kind.gpu_model();
        fabric.peer_access().setting().unwrap_or_else(|| model.is_some_and(|model| model.has_peer_access()))
    };
    fast.extend(pairs.iter().filter(|(one, other)| {
        let (Some(one), Some(other)) = (gpus.get(one), gpus.get(other)) else { return false };
        match paths.path(*one, *other).kind {
            PathType::Nvl | PathType::Nvb => true,
            PathType::Pix | PathType::Pxb => has_access(*one) && has_access(*other),
            _ => false,
        }
    }));
    fast
}

/// Whether a setting turns peer access off.
fn is_disabling(name: &str, value: &str) -> bool {
    match name {
        "NCCL_P2P_DISABLE" => value != "0",
        "NCCL_P2P_LEVEL" => matches!(value, "LOC" | "0"),
        _ => false,
    }
}

fn refused(context: &Context<'_>) -> Vec<Outcome> {
    let by_driver: Vec<&Seen> = context.log.processes.iter().flat_map(|process| &process.refused).collect();
    let warned =
        context.log.warnings.iter().filter(|warning| warning.text.contains("P2P is disabled between NVLINK"));
    let by_hardware: Vec<&Seen> = warned.map(|warning| &warning.seen).collect();
    let settings: Vec<_> =
        context.log.settings.iter().filter(|setting| is_disabling(&setting.name, &setting.value)).collect();
    if by_driver.is_empty() && by_hardware.is_empty() && settings.is_empty() {
        return match context.has_ranks() {
            true => vec![Outcome::Fine("no line says that peer access is refused".to_owned())],
            false => unknown("whether the driver refuses peer access", INFO),
        };
    }
    let mut found = Vec::new();
    if !by_hardware.is_empty() {
        let what = "the driver refuses peer access between GPUs that NVLink connects, which points to a fault of the hardware or of Fabric Manager";
        let finding = Finding::new("log-peer-access", Severity::Critical, what);
        let finding = shown_by(finding, by_hardware)
            .fixed_by("run `nvidia-smi nvlink -s` and `systemctl status nvidia-fabricmanager`; restart Fabric Manager, and reset the GPUs (`nvidia-smi -r`)")
            .fixed_by("do not set NCCL_IGNORE_DISABLED_P2P: it hides the fault");
        found.push(Outcome::Found(finding));
    }
    if !by_driver.is_empty() {
        let what = format!(
            "the driver refuses peer access between GPUs ({}): ACS, an IOMMU, a VM or the GPU model forbids it",
            counted(by_driver.len(), "line")
        );
        let finding = Finding::new("log-peer-access", Severity::Warning, what);
        let finding = shown_by(finding, by_driver)
            .costing(context.cost(|options| options.no_peer_access = true))
            .fixed_by("run `nvidia-smi topo -p2p r`: CNS is a chipset that does not support it, GNS a GPU, TNS a topology")
            .fixed_by("run `sudo lspci -vvv | grep -i acsctl`; where SrcValid+ stands, turn ACS off on bridges, and set `iommu=pt` on the kernel's command line");
        found.push(Outcome::Found(finding));
    }
    if let [first, ..] = settings[..] {
        let what = format!(
            "{}={} turns peer access off: GPUs exchange data through host memory",
            first.name, first.value
        );
        let finding = Finding::new("log-peer-access", Severity::Warning, what);
        let finding = shown_by(finding, settings.iter().map(|setting| &setting.seen))
            .costing(context.cost(|options| options.no_peer_access = true))
            .fixed_by(format!(
                "unset {}, and keep it only if a data check fails without it (`weft doctor --measure`)",
                first.name
            ));
        found.push(Outcome::Found(finding));
    }
    found
}
