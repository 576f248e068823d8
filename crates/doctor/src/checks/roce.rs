//! What RoCE needs beside a link: GIDs of version 2, large frames, a lossless class (PFC, ECN). And the MTU of InfiniBand.

use super::host_reads::{self as reads, Outcomes, RdmaPort};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "roce-gid",
        finds: "RoCE ports without a GID of version 2, or a job that uses another",
        reads: "`/sys/class/infiniband/*/ports/*/gid_attrs/types`, NCCL_IB_GID_INDEX",
        run: gids,
    },
    Check {
        id: "mtu",
        finds: "RDMA ports with a small MTU, or one that differs from the others",
        reads: "`/sys/class/net/*/mtu`, `ibv_devinfo`",
        run: mtus,
    },
    Check {
        id: "roce-lossless",
        finds: "RoCE ports without priority flow control (PFC) or congestion notification (ECN)",
        reads: "`mlnx_qos -i IFACE` or `dcb pfc show dev IFACE`, `/sys/class/net/*/ecn`",
        run: lossless,
    },
];

/// GIDs of a port; adapters have 256.
const GIDS_MAX: usize = 512;
/// Bytes of a frame from which RoCE uses packets of 4096 bytes.
const LARGE_MTU: u64 = 4200;

fn roce_ports(machine: &Machine<'_>) -> Vec<RdmaPort> {
    let ports = reads::rdma_ports(machine.tree).into_iter();
    ports.filter(|port| port.is_roce(machine.tree) && port.is_active(machine.tree)).collect()
}

/// The types of a port's GIDs that are in use: index and `RoCE v2` or `IB/RoCE v1`.
fn gid_types(machine: &Machine<'_>, port: &RdmaPort) -> Vec<(String, String)> {
    let is_used = |gid: String| gid.chars().any(|c| c != '0' && c != ':');
    let indices = machine.tree.list(&format!("{}/gid_attrs/types", port.folder));
    let used = indices.into_iter().take(GIDS_MAX).filter_map(|index| {
        let kind = port.read(machine.tree, &format!("gid_attrs/types/{index}"))?;
        // The kernel fails to read the type of an index that is not in use; some drivers report zeros.
        let gid = port.read(machine.tree, &format!("gids/{index}"));
        gid.is_none_or(is_used).then_some((index, kind))
    });
    used.collect()
}

fn gids(machine: &Machine<'_>) -> Vec<Outcome> {
    let chosen = reads::variable(machine.tree, "NCCL_IB_GID_INDEX").filter(|index| !index.starts_with('-'));
    let mut outcomes = Outcomes::new();
    for port in roce_ports(machine) {
        let types = gid_types(machine, &port);
        if types.is_empty() {
            outcomes.unknown.push(port.name);
            continue;
        }
        let folder = format!("/{}/gid_attrs/types", port.folder);
        let version_2 = types.iter().find(|(_, kind)| kind.contains("v2"));
        let used = chosen.as_ref().map(|chosen| (chosen, types.iter().find(|(index, _)| index == chosen)));
        match (version_2, used) {
            (None, _) => outcomes.findings.push(
                Finding::new("roce-gid", Severity::Warning, format!("{} has no GID of RoCE version 2: its packets are not routed", port.name))
                    .shown_by(format!("{folder}/{}", types[0].0), reads::shown(&types[0].1))
                    .fixed_by("give its interface an IP address: `sudo ip addr add ADDRESS/24 dev IFACE`")
                    .fixed_by(format!("make version 2 the default: `sudo cma_roce_mode -d {} -p {} -m 2`", port.device, port.number)),
            ),
            (Some((good, _)), Some((index, Some((_, kind))))) if !kind.contains("v2") => outcomes.findings.push(
                Finding::new("roce-gid", Severity::Warning, format!("NCCL_IB_GID_INDEX={index} selects a GID of `{}` on {}", reads::shown(kind), port.name))
                    .shown_by(format!("{folder}/{index}"), reads::shown(kind))
                    .shown_by("/proc/self/environ", format!("NCCL_IB_GID_INDEX={index}"))
                    .fixed_by(format!("unset NCCL_IB_GID_INDEX (NCCL from 2.21 selects a GID of version 2 itself), or set it to {good}")),
            ),
            (Some(_), Some((index, None))) => outcomes.findings.push(
                Finding::new("roce-gid", Severity::Warning, format!("NCCL_IB_GID_INDEX={index} selects a GID that {} does not have", port.name))
                    .shown_by("/proc/self/environ", format!("NCCL_IB_GID_INDEX={index}"))
                    .fixed_by("unset NCCL_IB_GID_INDEX; `show_gids` lists the indices"),
            ),
            (Some((index, _)), _) => outcomes.fine.push(format!("{} (index {index})", port.name)),
        }
    }
    outcomes.finish(
        |fine| format!("GIDs of RoCE version 2: {}", reads::some_of(fine)),
        |unknown| {
            (
                format!("the GIDs of {}", reads::some_of(unknown)),
                "/sys/class/infiniband/*/ports/*/gid_attrs, which containers may hide; or `show_gids`"
                    .to_owned(),
            )
        },
    )
}

fn mtus(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    let roce = roce_ports(machine);
    let mut sizes: Vec<(String, u64)> = Vec::new();
    for port in &roce {
        for interface in port.interfaces(tree) {
            match reads::number(tree, &format!("{}/{interface}/mtu", reads::NET)) {
                Some(mtu) => sizes.push((interface, mtu)),
                None => outcomes.unknown.push(interface),
            }
        }
    }
    let largest = sizes.iter().map(|(_, mtu)| *mtu).max().unwrap_or(0);
    for (interface, mtu) in sizes {
        let evidence = (format!("/{}/{interface}/mtu", reads::NET), mtu.to_string());
        let fix = format!(
            "`sudo ip link set {interface} mtu 9000`, and the same or more on every switch port and host; check with `ping -M do -s 8972 PEER`"
        );
        if mtu < largest {
            let what = format!("{interface} has an MTU of {mtu}, other RoCE interfaces {largest}");
            outcomes.findings.push(
                Finding::new("mtu", Severity::Warning, what).shown_by(evidence.0, evidence.1).fixed_by(fix),
            );
        } else if mtu < LARGE_MTU {
            let what = format!(
                "{interface} has an MTU of {mtu}: RoCE sends packets of at most {} bytes",
                payload(mtu)
            );
            outcomes.findings.push(
                Finding::new("mtu", Severity::Note, what).shown_by(evidence.0, evidence.1).fixed_by(fix),
            );
        } else {
            outcomes.fine.push(format!("{interface} {mtu}"));
        }
    }
    if let Ok(text) = reads::output(tree, "run/ibv_devinfo") {
        for (device, active, max) in active_mtus(&text) {
            let is_roce = roce.iter().any(|port| port.device == device);
            if is_roce {
                continue;
            }
            if active < max {
                let what = format!("{device} uses an MTU of {active} and supports {max}");
                outcomes.findings.push(
                    Finding::new("mtu", Severity::Warning, what)
                        .shown_by("ibv_devinfo", format!("{device}: active_mtu: {active}, max_mtu: {max}"))
                        .fixed_by("set `mtu=5` (4096 bytes) for the default partition of the subnet manager (partitions.conf: `Default=0x7fff, ipoib, mtu=5: ALL=full;`)"),
                );
            } else {
                outcomes.fine.push(format!("{device} {active}"));
            }
        }
    } else if roce.is_empty() {
        let ports = reads::rdma_ports(tree).into_iter().map(|port| port.name);
        outcomes.unknown.extend(ports);
    }
    outcomes.finish(
        |fine| format!("MTUs: {}", reads::some_of(fine)),
        |unknown| {
            (
                format!("the MTU of {}", reads::some_of(unknown)),
                "ibv_devinfo (package ibverbs-utils, without root)".to_owned(),
            )
        },
    )
}

/// The payload of RoCE's packets for an MTU of Ethernet: the largest power of two that fits beside the headers.
fn payload(mtu: u64) -> u64 {
    [4096, 2048, 1024, 512].into_iter().find(|payload| payload + 58 <= mtu).unwrap_or(256)
}

/// Device, active and largest MTU of each active port in the output of `ibv_devinfo`.
fn active_mtus(text: &str) -> Vec<(String, u64, u64)> {
    let (mut device, mut is_active, mut max) = (String::new(), false, 0);
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let number = || value.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        match name.trim() {
            "hca_id" => device = value.to_owned(),
            "state" => is_active = value.contains("ACTIVE"),
            "max_mtu" => max = number().unwrap_or(0),
            "active_mtu" => {
                if let (true, Some(active)) = (is_active, number()) {
                    found.push((device.clone(), active, max));
                }
            }
            _ => {}
        }
    }
    found
}

/// The priorities with PFC, of `mlnx_qos` (`enabled 0 0 0 1 0 0 0 0`) or `dcb` (`prio-pfc 0:off 1:off 3:on`); None if the text has no such line.
fn pfc_priorities(text: &str) -> Option<Vec<usize>> {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("enabled") => {
                return Some(
                    words
                        .enumerate()
                        .filter(|(_, word)| *word == "1")
                        .map(|(priority, _)| priority)
                        .collect(),
                );
            }
            Some("prio-pfc") => {
                let priority = |word: &str| word.strip_suffix(":on")?.parse().ok();
                return Some(words.filter_map(priority).collect());
            }
            _ => {}
        }
    }
    None
}

/// The priorities with ECN in `sys/class/net/IFACE/ecn`, which NVIDIA's driver package adds; None if it is absent.
fn ecn_priorities(machine: &Machine<'_>, interface: &str) -> Option<Vec<String>> {
    let folder = format!("{}/{interface}/ecn/roce_np/enable", reads::NET);
    let priorities = machine.tree.list(&folder);
    if priorities.is_empty() {
        return None;
    }
    let is_on =
        |priority: &String| machine.tree.read(&format!("{folder}/{priority}")).as_deref() == Some("1");
    Some(priorities.into_iter().take(8).filter(is_on).collect())
}

fn lossless(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    for interface in roce_ports(machine).iter().flat_map(|port| port.interfaces(tree)) {
        let commands = [format!("mlnx_qos -i {interface}"), format!("dcb pfc show dev {interface}")];
        let pfc = commands.iter().find_map(|command| {
            let text = tree.read(&format!("run/{command}"))?;
            Some((command.as_str(), pfc_priorities(&text)?))
        });
        let ecn = ecn_priorities(machine, &interface);
        let (Some((command, pfc)), ecn) = (pfc, ecn) else {
            outcomes.unknown.push(interface);
            continue;
        };
        let fix = format!(
            "`sudo mlnx_qos -i {interface} --trust dscp --pfc 0,0,0,1,0,0,0,0`, the same priority on every switch port, and NCCL_IB_TC=106 (DSCP 26)"
        );
        if pfc.is_empty() {
            let what = format!(
                "priority flow control (PFC) is off on {interface}: under congestion RoCE loses packets"
            );
            outcomes.findings.push(
                Finding::new("roce-lossless", Severity::Warning, what)
                    .shown_by(command, "PFC enabled: no priority")
                    .fixed_by(fix)
                    .fixed_by("in networks that are lossy by design (with ECN and selective retransmission), leave it off"),
            );
        } else if ecn.as_ref().is_some_and(Vec::is_empty) {
            let what = format!(
                "congestion notification (ECN) is off on {interface}: pause frames alone spread congestion"
            );
            outcomes.findings.push(
                Finding::new("roce-lossless", Severity::Warning, what)
                    .shown_by(format!("/{}/{interface}/ecn/roce_np/enable/*", reads::NET), "0")
                    .fixed_by(format!("for each priority P of RoCE: `echo 1 | sudo tee /sys/class/net/{interface}/ecn/roce_{{np,rp}}/enable/P`, and ECN marking on the switches")),
            );
        } else {
            let unseen = if ecn.is_none() { ", ECN not visible" } else { "" };
            outcomes.fine.push(format!("{interface} (PFC {pfc:?}{unseen})"));
        }
    }
    outcomes.finish(
        |fine| format!("lossless classes of RoCE: {}", reads::some_of(fine)),
        |unknown| {
            let needs =
                "`mlnx_qos -i IFACE` (NVIDIA's driver package) or `dcb pfc show dev IFACE` (iproute2)"
                    .to_owned();
            (format!("whether RoCE is lossless on {}", reads::some_of(unknown)), needs)
        },
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::host_tests::{Recorded, bare, healthy, is_fine, is_unknown};
    use super::*;

    /// The first port of the recorded machine as RoCE with everything right.
    pub(in super::super) const ROCE: [&str; 5] = [
        "sys/class/infiniband/mlx5_0/ports/1/link_layer = Ethernet",
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0 = IB/RoCE v1",
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3 = RoCE v2",
        "sys/class/net/ib0/mtu = 9000",
        "run/mlnx_qos -i ib0 = DCBX mode: OS controlled\\nPFC configuration:\\n\\tpriority    0   1   2   3   4   5   6   7\\n\\tenabled     0   0   0   1   0   0   0   0",
    ];

    fn roce(changes: &[&str]) -> Recorded {
        let path = |line: &str| line.split(" = ").next().unwrap_or_default().to_owned();
        let changed: Vec<String> = changes.iter().map(|line| path(line)).collect();
        let kept = ROCE.into_iter().filter(|line| !changed.contains(&path(line)));
        let lines: Vec<&str> = kept.chain(changes.iter().copied()).collect();
        healthy(&lines)
    }

    #[test]
    fn gids_of_version_1_are_found() {
        let found =
            roce(&["sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3 = IB/RoCE v1"]).finding(&CHECKS[0]);
        assert!(found.what.starts_with("mlx5_0 has no GID of RoCE version 2"), "{}", found.what);
        let chosen = roce(&["proc/self/environ = A=b\\nNCCL_IB_GID_INDEX=0"]).finding(&CHECKS[0]);
        assert!(
            chosen.what.contains("NCCL_IB_GID_INDEX=0") && chosen.fixes[0].ends_with("or set it to 3"),
            "{chosen:#?}"
        );
        assert!(is_fine(&roce(&[]).run(&CHECKS[0])));
        let hidden = bare(&["sys/class/infiniband/mlx5_0/ports/1/link_layer = Ethernet"]);
        assert!(is_unknown(&hidden.run(&CHECKS[0])));
        assert!(healthy(&[]).run(&CHECKS[0]).is_empty(), "InfiniBand has other GIDs");
    }

    #[test]
    fn small_and_mixed_mtus_are_found() {
        let small = roce(&["sys/class/net/ib0/mtu = 1500"]).finding(&CHECKS[1]);
        assert_eq!(
            (small.severity, small.what.as_str()),
            (Severity::Note, "ib0 has an MTU of 1500: RoCE sends packets of at most 1024 bytes")
        );
        let mixed = roce(&[
            "sys/class/infiniband/mlx5_1/ports/1/link_layer = Ethernet",
            "sys/class/net/ib1/mtu = 1500",
        ]);
        assert_eq!(mixed.finding(&CHECKS[1]).severity, Severity::Warning);
        assert!(is_fine(&roce(&[]).run(&CHECKS[1])));
        let devices = "run/ibv_devinfo = hca_id:\\tmlx5_0\\n\\tport:\\t1\\n\\t\\tstate:\\tPORT_ACTIVE (4)\\n\\t\\tmax_mtu:\\t4096 (5)\\n\\t\\tactive_mtu:\\t2048 (4)";
        let subnet = healthy(&[devices]).finding(&CHECKS[1]);
        assert!(
            subnet.what.contains("uses an MTU of 2048 and supports 4096")
                && subnet.fixes[0].contains("mtu=5")
        );
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }

    #[test]
    fn lossy_ethernet_is_found() {
        let off = "run/mlnx_qos -i ib0 = PFC configuration:\\n\\tenabled     0   0   0   0   0   0   0   0";
        assert!(roce(&[off]).finding(&CHECKS[2]).what.contains("(PFC) is off on ib0"));
        let no_ecn = roce(&["sys/class/net/ib0/ecn/roce_np/enable/3 = 0"]).finding(&CHECKS[2]);
        assert!(no_ecn.what.contains("(ECN) is off on ib0"));
        assert!(is_fine(&roce(&["sys/class/net/ib0/ecn/roce_np/enable/3 = 1"]).run(&CHECKS[2])));
        assert!(is_unknown(&healthy(&ROCE[..4]).run(&CHECKS[2])));
        assert_eq!(pfc_priorities("prio-pfc 0:off 1:off 3:on 4:off"), Some(vec![3]));
    }
}
