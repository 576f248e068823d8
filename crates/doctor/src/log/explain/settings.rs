//! Settings that NCCL reported, and their effect.

use std::collections::BTreeMap;

use super::{Context, INFO, LogCheck, listed, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::Setting;

pub(super) const CHECKS: &[LogCheck] = &[LogCheck {
    id: "log-settings",
    finds: "NCCL_* variables that cost speed, hide faults or differ between ranks",
    run: settings,
}];

/// Settings that the checks of peer access, network and interfaces explain.
const ELSEWHERE: [&str; 2] = ["NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME"];

/// Settings that may differ between hosts: they name devices.
const OF_HOSTS: [&str; 6] = [
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_COMM_ID",
    "NCCL_HOSTID",
    "NCCL_OOB_NET_IFNAME",
    "NCCL_DEBUG_FILE",
];

const ALGORITHMS: [&str; 8] =
    ["tree", "ring", "collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat"];
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];

/// The effect of a setting: how bad it is, and in words.
fn effect(name: &str, value: &str) -> Option<(Severity, String)> {
    use Severity::{Note, Warning};
    let number = value.parse::<i64>().ok();
    let is_on = number.is_some_and(|number| number != 0);
    let is_off = number == Some(0);
    let (severity, words) = match name {
        "NCCL_SHM_DISABLE" if is_on => (Warning, "ranks of one host that have no peer access communicate over the network".to_owned()),
        "NCCL_IB_DISABLE" if is_on => (Warning, "InfiniBand and RoCE are not used: hosts communicate over sockets".to_owned()),
        "NCCL_NET" if value.eq_ignore_ascii_case("socket") => (Warning, "hosts communicate over sockets even if they have RDMA".to_owned()),
        "NCCL_NET_GDR_LEVEL" if matches!(value, "LOC" | "0") => (Warning, "GPUDirect RDMA is off: data to the network passes through host memory".to_owned()),
        "NCCL_NET_DISABLE_INTRA" if is_on => (Note, "ranks of one host do not use the network between them".to_owned()),
        "NCCL_PROTO" => return protocol(value),
        "NCCL_ALGO" => return algorithm(value),
        "NCCL_BUFFSIZE" if number.is_some_and(|bytes| bytes < 1 << 20) => (Warning, "buffers below 1 MiB lower the bandwidth of large calls".to_owned()),
        "NCCL_MAX_NCHANNELS" | "NCCL_MAX_CTAS" if number.is_some_and(|count| count < 8) => (Warning, "few channels limit the bandwidth: NVLink nodes need 16 to 32".to_owned()),
        "NCCL_NTHREADS" if number.is_some_and(|count| count < 256) => (Warning, "few threads in each kernel limit the bandwidth".to_owned()),
        "NCCL_NVLS_ENABLE" if is_off => (Note, "NVLink switches do not reduce: large all-reduces of NVSwitch nodes of Hopper or later are slower".to_owned()),
        "NCCL_CUMEM_ENABLE" if is_off => (Note, "buffers are not CUDA virtual memory: no NVLS, and CUDA IPC between processes".to_owned()),
        "NCCL_IGNORE_DISABLED_P2P" if is_on => (Warning, "peer access that the driver refuses between NVLinked GPUs is not reported: it hides a fault".to_owned()),
        "NCCL_IGNORE_CPU_AFFINITY" if is_on => (Note, "NCCL moves its threads to the GPU's cores whatever the launcher set".to_owned()),
        "NCCL_TOPO_FILE" => (Note, "NCCL believes this file instead of the machine".to_owned()),
        "NCCL_GRAPH_FILE" => (Note, "rings and trees come from this file instead of the search".to_owned()),
        "NCCL_IB_TIMEOUT" if number.is_some_and(|timeout| timeout < 14) => (Warning, "a timeout this short makes congestion an error".to_owned()),
        "NCCL_IB_RETRY_CNT" if number.is_some_and(|count| count < 7) => (Note, "fewer retries than the usual 7".to_owned()),
        "NCCL_IB_PCI_RELAXED_ORDERING" if is_off => (Note, "without relaxed ordering NICs in VMs and on AMD hosts are slower".to_owned()),
        "NCCL_LAUNCH_MODE" => (Note, "the launch mode is fixed; GROUP serialises launches of one process".to_owned()),
        "NCCL_PXN_DISABLE" if is_on => (Note, "all-to-alls between hosts do not use the NICs of other GPUs".to_owned()),
        _ => return None,
    };
    Some((severity, words))
}

/// The names in a list such as `^Tree,Ring` or `allreduce:ring;broadcast:tree`.
fn names(value: &str) -> Vec<String> {
    let each = value.split([';', ',']).map(|part| part.rsplit(':').next().unwrap_or(part));
    each.map(|name| name.trim().trim_start_matches('^').to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}

fn protocol(value: &str) -> Option<(Severity, String)> {
    let given = names(value);
    if let Some(unknown) = given.iter().find(|name| !PROTOCOLS.contains(&name.as_str())) {
        return Some((
            Severity::Warning,
            format!("`{unknown}` is no protocol; NCCL knows LL, LL128 and Simple"),
        ));
    }
    let is_forbidden = value.trim_start().starts_with('^');
    let words = match (is_forbidden, &given[..]) {
        (false, [one]) if one == "ll" => {
            "LL alone reaches half of the bandwidth or less: large calls are slow"
        }
        (false, [one]) if one == "simple" => {
            "Simple alone costs several microseconds per step: small calls are slow"
        }
        _ => {
            return Some((
                Severity::Note,
                "protocols are restricted: NCCL's tuner does not choose the fastest of all".to_owned(),
            ));
        }
    };
    Some((Severity::Warning, words.to_owned()))
}

fn algorithm(value: &str) -> Option<(Severity, String)> {
    if let Some(unknown) = names(value).iter().find(|name| !ALGORITHMS.contains(&name.as_str())) {
        return Some((
            Severity::Warning,
            format!(
                "`{unknown}` is no algorithm; NCCL knows Tree, Ring, CollnetDirect, CollnetChain, NVLS, NVLSTree and PAT"
            ),
        ));
    }
    Some((
        Severity::Note,
        "algorithms are restricted: NCCL's tuner does not choose the fastest of all".to_owned(),
    ))
}

fn settings(context: &Context<'_>) -> Vec<Outcome> {
    let all = &context.log.settings;
    if all.is_empty() && !context.has_ranks() {
        return unknown("which NCCL_* variables are set", INFO);
    }
    let mut found = differing(context);
    for setting in all.iter().filter(|setting| !ELSEWHERE.contains(&setting.name.as_str())) {
        let Some((severity, words)) = effect(&setting.name, &setting.value) else { continue };
        let what = format!("{}={}: {words}", setting.name, setting.value);
        let finding = shown_by(Finding::new("log-settings", severity, what), [&setting.seen]);
        let fix = format!(
            "unset {} and measure both (`all_reduce_perf -b 8 -e 8G -f 2`, or `weft sim` for the prediction)",
            setting.name
        );
        found.push(Outcome::Found(finding.fixed_by(fix)));
    }
    if found.is_empty() {
        let names = listed(all.iter().map(|setting| &setting.name));
        let fine = if all.is_empty() {
            "NCCL reports no variable".to_owned()
        } else {
            format!("nothing wrong with {names}")
        };
        return vec![Outcome::Fine(fine)];
    }
    found
}

/// Variables that have several values, or that only some ranks have.
fn differing(context: &Context<'_>) -> Vec<Outcome> {
    let mut names: BTreeMap<&str, Vec<&Setting>> = BTreeMap::new();
    for setting in &context.log.settings {
        names.entry(&setting.name).or_default().push(setting);
    }
    let is_common = |(name, settings): &(&str, Vec<&Setting>)| settings.len() > 1 && !OF_HOSTS.contains(name);
    let of = |(name, settings): (&str, Vec<&Setting>)| {
        let words = settings.iter().map(|setting| {
            let first = setting.processes.first().map(|process| context.process(*process));
            format!("{} on {}", setting.value, first.unwrap_or_default())
        });
        let what = format!("{name} differs between ranks: {}", listed(words));
        let finding = shown_by(
            Finding::new("log-settings", Severity::Warning, what),
            settings.iter().map(|setting| &setting.seen),
        );
        let fix = format!(
            "pass {name} to all ranks alike: `mpirun -x {name}`, `srun --export=ALL`, or the same container environment"
        );
        Outcome::Found(finding.fixed_by(fix))
    };
    names.into_iter().filter(is_common).map(of).collect()
}
