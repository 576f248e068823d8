//! The network between hosts: sockets instead of RDMA, GPUDirect, interfaces, plugins.

use weftlink_fabric::DeviceKind;
use weftlink_fabric::link::Network;

use super::{Context, INFO, LogCheck, counted, listed, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::{Edge, Interface, Process, Seen, TransportKind};

pub(super) const CHECKS: &[LogCheck] = &[
    LogCheck { id: "log-socket", finds: "TCP sockets between hosts instead of RDMA", run: sockets },
    LogCheck { id: "log-gpudirect", finds: "GPUDirect RDMA that is off", run: gpudirect },
    LogCheck {
        id: "log-interface",
        finds: "a network interface that other hosts cannot reach",
        run: interfaces,
    },
    LogCheck { id: "log-plugin", finds: "a network plugin that is missing or failed", run: plugins },
];

/// The names under which sockets are a network.
fn is_socket(name: &str) -> bool {
    name.eq_ignore_ascii_case("socket")
}

impl Context<'_> {
    /// Connections over networks.
    fn network_edges(&self) -> impl Iterator<Item = (&str, &Edge)> {
        self.log.ranks.iter().flat_map(|rank| &rank.edges).filter_map(|edge| match &edge.transport.kind {
            TransportKind::Network(name) => Some((name.as_str(), edge)),
            _ => None,
        })
    }

    /// Whether a fabric was given that has NICs of a kind.
    fn has_nics(&self, is_kind: impl Fn(Network) -> bool) -> bool {
        let Some(fabric) = self.fabric else { return false };
        fabric.devices().iter().any(|device| match &device.kind {
            DeviceKind::Nic(ports) => ports.iter().any(|port| port.network.is_some_and(&is_kind)),
            _ => false,
        })
    }

    fn setting(&self, name: &str) -> Option<(&str, &Seen)> {
        let setting = self.log.settings.iter().find(|setting| setting.name == name)?;
        Some((setting.value.as_str(), &setting.seen))
    }
}

/// A connection as evidence.
pub(super) fn edge_seen(edge: &Edge) -> Seen {
    let Edge { channel, source, target, transport, line, .. } = edge;
    Seen { line: *line, text: format!("Channel {channel:02} : {source} -> {target} via {}", transport.text) }
}

fn sockets(context: &Context<'_>) -> Vec<Outcome> {
    let over: Vec<Seen> = context
        .network_edges()
        .filter(|(name, _)| is_socket(name))
        .map(|(_, edge)| edge_seen(edge))
        .collect();
    let chosen: Vec<&Seen> = context
        .log
        .processes
        .iter()
        .filter_map(|process| process.network.as_ref())
        .filter(|(name, _)| is_socket(name))
        .map(|(_, seen)| seen)
        .collect();
    let is_distributed = context.log.is_distributed();
    if over.is_empty() && (chosen.is_empty() || is_distributed == Some(false)) {
        let other = context.log.processes.iter().find_map(|process| process.network.as_ref());
        return match (other, is_distributed) {
            (_, Some(false)) => vec![Outcome::Fine("one host, and no connection over a network".to_owned())],
            (Some((name, _)), _) => vec![Outcome::Fine(format!("the network is {name}"))],
            (None, _) => unknown("which network was chosen", INFO),
        };
    }
    if over.is_empty() && is_distributed.is_none() {
        return unknown(
            "whether ranks are on several hosts, where the network is sockets",
            "the output of all ranks",
        );
    }
    let reasons = why_sockets(context);
    let count =
        if over.is_empty() { String::new() } else { format!(" ({})", counted(over.len(), "connection")) };
    let why = if reasons.is_empty() {
        String::new()
    } else {
        format!(": {}", listed(reasons.iter().map(|(why, _)| why)))
    };
    let what = format!("hosts communicate over TCP sockets{count}{why}");
    let mut finding = Finding::new("log-socket", Severity::Warning, what);
    finding = shown_by(
        finding,
        reasons.iter().map(|(_, seen)| *seen).chain(chosen.into_iter().take(1)).chain(&over),
    );
    let is_disabled = context.setting("NCCL_IB_DISABLE").is_some_and(|(value, _)| value != "0");
    let first = match is_disabled {
        true => "unset NCCL_IB_DISABLE",
        false => {
            "run `ibv_devices` in the same container as the job; if it lists nothing, pass the devices through (`docker run --device=/dev/infiniband --cap-add=IPC_LOCK`) and install rdma-core"
        }
    };
    let finding = finding
        .costing(context.cost(|options| options.sockets = true))
        .fixed_by(first)
        .fixed_by("on AWS, Google Cloud or Slingshot install the provider's plugin, and check that NCCL prints its name after `Using network`")
        .fixed_by("if the hosts have no RDMA NICs, nothing is wrong: name the fastest interface with NCCL_SOCKET_IFNAME");
    vec![Outcome::Found(finding)]
}

/// Why sockets were chosen, as far as the log says.
fn why_sockets<'c>(context: &'c Context<'_>) -> Vec<(String, &'c Seen)> {
    let mut reasons = Vec::new();
    for (name, is_reason) in [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"), ("NCCL_NET", "socket")] {
        reasons.extend(
            context
                .setting(name)
                .filter(|(value, _)| *value == is_reason)
                .map(|(value, seen)| (format!("{name} is {value}"), seen)),
        );
    }
    let missing = context.log.processes.iter().find_map(|process| process.no_nics.as_ref());
    reasons.extend(missing.map(|seen| {
        let is_library = seen.text.contains("libibverbs");
        let why = if is_library {
            "libibverbs could not be opened"
        } else {
            "NCCL found no InfiniBand or RoCE device"
        };
        (why.to_owned(), seen)
    }));
    reasons
}

fn gpudirect(context: &Context<'_>) -> Vec<Outcome> {
    let rdma: Vec<(&str, &Edge)> = context.network_edges().filter(|(name, _)| !is_socket(name)).collect();
    let off: Vec<&(&str, &Edge)> = rdma.iter().filter(|(_, edge)| !edge.transport.gpudirect).collect();
    let disabled: Vec<(&String, &Seen)> = context
        .log
        .processes
        .iter()
        .flat_map(|process| &process.gpudirect)
        .filter(|(_, (is_on, _))| !is_on)
        .map(|(nic, (_, seen))| (nic, seen))
        .collect();
    // Ranks of one host need no network.
    if rdma.is_empty() && context.log.is_distributed() == Some(false) {
        return Vec::new();
    }
    if off.is_empty() && (disabled.is_empty() || !rdma.is_empty()) {
        let is_rdma = |process: &Process| process.network.as_ref().is_some_and(|(name, _)| !is_socket(name));
        if rdma.is_empty()
            && context.log.is_distributed() == Some(true)
            && context.log.processes.iter().any(is_rdma)
        {
            return unknown(
                "whether GPUDirect RDMA is on: no connection over the network is in the log",
                INFO,
            );
        }
        let fine = format!("all {} over RDMA use GPUDirect", counted(rdma.len(), "connection"));
        return if rdma.is_empty() { Vec::new() } else { vec![Outcome::Fine(fine)] };
    }
    let mut nics: Vec<&String> = disabled.iter().map(|(nic, _)| *nic).collect();
    nics.sort_unstable();
    nics.dedup();
    let what = match (off.len(), rdma.len()) {
        (0, _) => format!("GPUDirect RDMA is off for {}: data passes through host memory", listed(nics)),
        (off, all) => {
            format!("GPUDirect RDMA is off on {off} of {all} connections: data passes through host memory")
        }
    };
    let lines: Vec<Seen> = off.iter().map(|(_, edge)| edge_seen(edge)).collect();
    let finding = Finding::new("log-gpudirect", Severity::Warning, what);
    let finding = shown_by(finding, disabled.iter().map(|(_, seen)| *seen).take(2).chain(&lines));
    let is_far = disabled.iter().any(|(_, seen)| seen.text.contains("distance"));
    let level = context.setting("NCCL_NET_GDR_LEVEL");
    let first = match (is_far, level) {
        (_, Some((value, _))) => format!("unset NCCL_NET_GDR_LEVEL, which is {value}"),
        (true, None) => "the NIC is too far from the GPU: use the NIC below the same PCIe switch, or set NCCL_NET_GDR_LEVEL=SYS if your chipset forwards peer traffic well (measure both)".to_owned(),
        (false, None) => "run `lsmod | grep nvidia_peermem`; if it prints nothing, run `modprobe nvidia-peermem`, or use a driver and kernel with DMA-BUF (Linux 5.12, open kernel modules)".to_owned(),
    };
    let finding = finding
        .costing(context.cost(|options| options.what_if.no_gpudirect = true))
        .fixed_by(first)
        .fixed_by("run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH: a line `GPU Direct RDMA Disabled` gives the reason for each NIC");
    vec![Outcome::Found(finding)]
}

/// Prefixes of interfaces that exist on one host only.
const LOCAL: [&str; 10] =
    ["docker", "virbr", "veth", "br-", "cni", "flannel", "cali", "vnet", "podman", "lxc"];

fn interfaces(context: &Context<'_>) -> Vec<Outcome> {
    let mut used: Vec<(&Interface, &Seen)> = Vec::new();
    for process in &context.log.processes {
        let pairs = [&process.bootstrap, &process.out_of_band].into_iter().flatten();
        used.extend(pairs.map(|(interface, seen)| (interface, seen)));
        // The first interface carries data unless others are given.
        used.extend(process.sockets.first().zip(process.sockets_seen.as_ref()));
    }
    if used.is_empty() {
        return unknown("which interfaces are used", INFO);
    }
    let is_loopback = |name: &str| name == "lo" || name.starts_with("lo:");
    let is_local = |name: &str| is_loopback(name) || LOCAL.iter().any(|prefix| name.starts_with(prefix));
    let found: Vec<_> = used.iter().filter(|(interface, _)| is_local(&interface.name)).collect();
    let mut names: Vec<&str> = found.iter().map(|(interface, _)| interface.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match context.log.is_distributed() {
        _ if found.is_empty() => {
            let mut names: Vec<&str> = used.iter().map(|(interface, _)| interface.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            vec![Outcome::Fine(format!("NCCL uses {}", listed(names)))]
        }
        Some(false) => {
            vec![Outcome::Fine(format!("NCCL uses {}, and all ranks are on one host", listed(names)))]
        }
        None => unknown(
            &format!(
                "whether {} matters: it cannot be reached from other hosts, and the log does not say how many there are",
                listed(names)
            ),
            "the output of all ranks",
        ),
        Some(true) => {
            let what = format!("NCCL chose {}, which other hosts cannot reach", listed(names));
            let finding = Finding::new("log-interface", Severity::Critical, what);
            let finding = shown_by(finding, found.iter().map(|(_, seen)| *seen))
                .fixed_by("run `ip -br addr` and set NCCL_SOCKET_IFNAME to the interface that connects the hosts, such as NCCL_SOCKET_IFNAME=eth0, on all ranks")
                .fixed_by("to leave interfaces out instead: NCCL_SOCKET_IFNAME=^lo,docker,virbr,veth");
            vec![Outcome::Found(finding)]
        }
    }
}

fn plugins(context: &Context<'_>) -> Vec<Outcome> {
    let lines = || context.log.processes.iter().flat_map(|process| &process.plugins);
    let is_failure = |seen: &&Seen| {
        let text = &seen.text;
        let has_no_library = text.contains("cannot open shared object")
            || text.contains("No plugin found")
            || text.contains("Could not find");
        (text.contains("NET/OFI") && (text.contains("fail") || text.contains("Could not find")))
            || text.contains("is unsupported")
            || text.contains("Failed to initialize NET plugin")
            || (text.contains("Plugin") && has_no_library)
    };
    let failures: Vec<&Seen> = lines().filter(is_failure).collect();
    let warned = context.log.warnings.iter().filter(|warning| warning.text.contains("NET/OFI"));
    let warned: Vec<&Seen> = warned.map(|warning| &warning.seen).collect();
    let is_asked =
        context.setting("NCCL_NET_PLUGIN").filter(|(value, _)| !value.eq_ignore_ascii_case("none"));
    let is_needed = context.has_nics(|network| {
        use Network::{Efa, EfaV1, EfaV2, EfaV3, EfaV4, Slingshot, TcpX, TcpXo};
        matches!(network, Efa | EfaV1 | EfaV2 | EfaV3 | EfaV4 | Slingshot | TcpX | TcpXo)
    });
    let networks: Vec<&str> = context
        .log
        .processes
        .iter()
        .filter_map(|process| Some(process.network.as_ref()?.0.as_str()))
        .collect();
    if networks.is_empty() && warned.is_empty() && failures.is_empty() {
        return unknown("whether a network plugin was loaded", INFO);
    }
    let is_internal = networks.iter().any(|name| is_socket(name) || *name == "IB");
    let ofi_failed = failures.iter().any(|seen| seen.text.contains("NET/OFI"));
    if warned.is_empty() && !ofi_failed && !(is_internal && (is_asked.is_some() || is_needed)) {
        let loaded = networks.first().map(|name| format!("the network is {name}"));
        return loaded.map(Outcome::Fine).into_iter().collect();
    }
    let what = match (is_asked, is_needed) {
        (Some((name, _)), _) if is_internal => {
            format!("NCCL did not use the network plugin {name}, which NCCL_NET_PLUGIN names")
        }
        (_, true) if is_internal => {
            "the NICs of this machine need a network plugin, and NCCL used none".to_owned()
        }
        _ => "the network plugin reported errors".to_owned(),
    };
    let finding = Finding::new("log-plugin", Severity::Warning, what);
    let finding = shown_by(finding, is_asked.map(|(_, seen)| seen).into_iter().chain(warned).chain(failures))
        .fixed_by("check that the plugin's library is found in the job: `ldconfig -p | grep nccl-net`, and LD_LIBRARY_PATH on all hosts")
        .fixed_by("on AWS run `fi_info -p efa` on each host; it must list the adapters. Install aws-ofi-nccl that fits the NCCL version");
    vec![Outcome::Found(finding)]
}
