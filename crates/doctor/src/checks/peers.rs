//! Whether GPUs can reach each other's memory, and whether this process runs on cores near its GPUs.

use std::collections::BTreeMap;

use weftlink_probe::cpu_list;

use super::gpus::{Gpu, Value, Verdict, each, gpus, short, without_driver};
use crate::check::{Check, Machine};
use crate::cost;
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "peer-access",
        finds: "Pairs of GPUs that cannot access each other's memory, as the driver reports",
        reads: "NVML (`nvidia-smi topo -p2p r`)",
        run: access,
    },
    Check {
        id: "cpu-affinity",
        finds: "A process that may not run on the cores near a GPU",
        reads: "/proc/self/status, NVML (`nvidia-smi topo -m`)",
        run: affinity,
    },
];

/// Pairs shown as evidence.
const PAIRS_MAX: usize = 8;

fn access(machine: &Machine<'_>) -> Vec<Outcome> {
    let all = gpus(machine);
    match all.len() {
        0 => return without_driver(machine, "peer access"),
        1 => return Vec::new(),
        _ => {}
    }
    let (mut refused, mut known) = (BTreeMap::<String, Vec<(&Gpu<'_>, &Gpu<'_>)>>::new(), 0);
    for (at, gpu) in all.iter().enumerate() {
        for peer in all.iter().skip(at + 1) {
            let Value::Is(status) = gpu.text(&format!("p2p/{}", peer.number)) else { continue };
            known += 1;
            let read = status.split_whitespace().find_map(|word| word.strip_prefix("read="));
            if let Some(reason) = read.filter(|read| *read != "ok") {
                refused.entry(short(reason)).or_default().push((gpu, peer));
            }
        }
    }
    if known == 0 {
        return vec![Outcome::Unknown {
            what: "peer access between the GPUs".to_owned(),
            needs: "a driver that reports it (`nvidia-smi topo -p2p r`)".to_owned(),
        }];
    }
    if refused.is_empty() {
        return vec![Outcome::Fine(format!("all {known} pairs of GPUs can access each other's memory"))];
    }
    refused.iter().map(|(reason, pairs)| Outcome::Found(refusal(machine, reason, pairs, known))).collect()
}

fn refusal(machine: &Machine<'_>, reason: &str, pairs: &[(&Gpu<'_>, &Gpu<'_>)], known: usize) -> Finding {
    // NVIDIA's driver allows none between GeForce cards, which is no fault.
    let never = |gpu: &Gpu<'_>| gpu.model.is_some_and(|model| !model.has_peer_access());
    let is_usual = pairs.iter().all(|(one, other)| never(one) || never(other));
    let severity = if is_usual { Severity::Note } else { Severity::Warning };
    let count = pairs.len();
    let what = format!(
        "{count} of {known} pairs of GPUs cannot access each other's memory, so their data goes through host memory"
    );
    let mut finding = Finding::new("peer-access", severity, what);
    for (one, other) in pairs.iter().take(PAIRS_MAX) {
        finding = finding
            .shown_by(format!("NVML, {} and {}", one.name, other.name), format!("peer read: {reason}"));
    }
    // The simulator has all pairs with access or none.
    let cost = (count == known && !is_usual).then(|| cost::of_lost_peer_access(machine.fabric)).flatten();
    let finding = finding.costing(cost);
    if is_usual {
        return finding.fixed_by(
            "Nothing is broken: the driver has no peer access between these cards. NCCL uses host memory.",
        );
    }
    match reason {
        "chipset-not-supported" | "topology-not-supported" => finding
            .fixed_by("Put the GPUs below one PCIe switch or one socket, as `nvidia-smi topo -m` shows them.")
            .fixed_by("In a virtual machine, ask for GPUs with peer access; the hypervisor decides."),
        "disabled-by-setting" => finding.fixed_by(
            "Remove the driver option that disables it: `grep -r NVreg /etc/modprobe.d`, then restart.",
        ),
        _ => finding
            .fixed_by("Turn MIG and confidential computing off, and use GPUs of one model: `nvidia-smi -q`.")
            .fixed_by("On bare metal, set the IOMMU to pass-through and turn ACS off on the bridges above the GPUs."),
    }
}

fn affinity(machine: &Machine<'_>) -> Vec<Outcome> {
    if gpus(machine).is_empty() {
        return Vec::new();
    }
    let status = machine.tree.read("proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(cpu_list);
    let Some(allowed) = allowed.filter(|allowed| !allowed.is_empty()) else {
        return vec![Outcome::Unknown {
            what: "which cores this process may use".to_owned(),
            needs: "/proc/self/status of a process of the job".to_owned(),
        }];
    };
    each(machine, "the cores near the GPU", "the process may run on cores near the GPU", |gpu| {
        let local = match gpu.text("cpu_affinity") {
            Value::Is(list) => Some(list),
            _ => machine.tree.read(&format!("sys/bus/pci/devices/{}/local_cpulist", gpu.bus)),
        };
        let Some(near) = local.as_deref().and_then(cpu_list).filter(|near| !near.is_empty()) else {
            return Verdict::Unknown("the GPU's CPU affinity (`nvidia-smi topo -m`)".to_owned());
        };
        if near.iter().any(|cpu| allowed.binary_search(cpu).is_ok()) {
            return Verdict::Fine;
        }
        let (near, allowed) = (weftlink_probe::cpu_ranges(&near), weftlink_probe::cpu_ranges(&allowed));
        let what = format!("{} is near cores {near}, but this process may run only on {allowed}", gpu.name);
        Verdict::found(
            Finding::new("cpu-affinity", Severity::Warning, what)
                .shown_by("/proc/self/status", format!("Cpus_allowed_list: {allowed}"))
                .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), format!("CPU affinity {near}"))
                .fixed_by(format!("Start the rank of this GPU there: `numactl --physcpubind={near} --localalloc ...`, or `weft run --bind none`."))
                .fixed_by("Under Slurm, `--gpu-bind=closest` or a job with whole nodes; in a container, `--cpuset-cpus`."),
        )
    })
}
