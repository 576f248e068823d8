//! RDMA ports: down, slower than their siblings, flapping, with bit errors.

use std::collections::BTreeMap;

use super::host_reads::{self as reads, Outcomes, RdmaPort};
use crate::check::{Check, Machine};
use crate::finding::{Cost, Finding, Outcome, Severity};
use crate::host_cost::{self, PortRate};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "rdma-port",
        finds: "RDMA ports that are down or slower than their siblings",
        reads: "`/sys/class/infiniband/*/ports/*/{state,phys_state,rate,link_layer}`",
        run: ports,
    },
    Check {
        id: "link-flaps",
        finds: "Network links that went down again and again",
        reads: "`/sys/class/infiniband/*/ports/*/counters/link_downed`, `/sys/class/net/*/carrier_down_count`, the kernel log (`dmesg`)",
        run: flaps,
    },
    Check {
        id: "symbol-errors",
        finds: "Network links with bit errors",
        reads: "`/sys/class/infiniband/*/ports/*/counters`, `/sys/class/net/*/statistics/rx_crc_errors`",
        run: symbol_errors,
    },
];

/// Times that a link may go down: the boot of the host, and that of the switch or a new cable.
const DOWNS_MAX: u64 = 2;
/// Errors since boot up to which a link may be left alone.
const ERRORS_MAX: u64 = 10;

/// The PCI device of a port's adapter: ports of one model should have one rate.
fn model(machine: &Machine<'_>, port: &RdmaPort) -> Option<(String, String)> {
    let address = reads::function_of(machine.tree, &format!("{}/{}", reads::RDMA, port.device))?;
    let read =
        |file: &str| machine.tree.read(&format!("{}/{address}/{file}", reads::FUNCTIONS)).unwrap_or_default();
    Some((read("device"), port.read(machine.tree, "link_layer").unwrap_or_default()))
}

/// Gb/s of `400 Gb/sec (4X NDR)`.
fn gbit(rate: &str) -> Option<f64> {
    let gbit: f64 = rate.split_whitespace().next()?.parse().ok()?;
    (gbit > 0.0 && gbit <= 10_000.0).then_some(gbit)
}

fn ports(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let all = reads::rdma_ports(tree);
    let mut best: BTreeMap<(String, String), f64> = BTreeMap::new();
    for port in all.iter().filter(|port| port.is_active(tree)) {
        let rate = port.read(tree, "rate").as_deref().and_then(gbit);
        if let (Some(model), Some(rate)) = (model(machine, port), rate) {
            let best = best.entry(model).or_insert(rate);
            *best = best.max(rate);
        }
    }
    let mut outcomes = Outcomes::new();
    for port in &all {
        let Some(state) = port.read(tree, "state") else {
            outcomes.unknown.push(port.name.clone());
            continue;
        };
        let usual = model(machine, port).and_then(|model| best.get(&model).copied());
        let rate = port.read(tree, "rate").unwrap_or_default();
        if !state.contains("ACTIVE") {
            outcomes.findings.push(down(machine, port, &all, &state, usual));
        } else if let (Some(now), Some(usual)) = (gbit(&rate), usual)
            && now < usual * 0.99
        {
            outcomes.findings.push(slow(machine, port, &rate, now, usual));
        } else {
            outcomes.fine.push(format!("{} {}", port.name, rate));
        }
    }
    outcomes.finish(
        |fine| format!("{} active: {}", reads::count(fine.len(), "RDMA port"), reads::some_of(fine)),
        |unknown| {
            (
                format!("the state of {}", reads::some_of(unknown)),
                "/sys/class/infiniband of the host".to_owned(),
            )
        },
    )
}

fn down(
    machine: &Machine<'_>,
    port: &RdmaPort,
    all: &[RdmaPort],
    state: &str,
    usual: Option<f64>,
) -> Finding {
    let tree = machine.tree;
    let phys = port.read(tree, "phys_state").unwrap_or_default();
    let is_waiting = phys.contains("LinkUp");
    let nic = port.nic(machine);
    // The second port of a card is often left without a cable, and so is an adapter of a kind that no other uses.
    let is_spare = !is_waiting
        && (usual.is_none() && all.iter().any(|other| other.is_active(tree))
            || all.iter().any(|other| other.device == port.device && other.is_active(tree))
            || nic.is_some() && all.iter().any(|other| other.nic(machine) == nic && other.is_active(tree)));
    let severity = if is_spare { Severity::Note } else { Severity::Warning };
    let problem = match (is_waiting, phys.as_str()) {
        (true, _) => "has a link, and no subnet manager has activated it".to_owned(),
        (_, "") => "is down".to_owned(),
        (_, phys) => format!("is down ({})", phys.split_whitespace().last().unwrap_or(phys)),
    };
    let mut finding = Finding::new("rdma-port", severity, format!("RDMA port {} {problem}", port.name))
        .shown_by(format!("/{}/state", port.folder), reads::shown(state))
        .costing(usual.filter(|_| !is_spare).and_then(|usual| cost_of(machine, port, 0.0, usual)));
    if !phys.is_empty() {
        finding = finding.shown_by(format!("/{}/phys_state", port.folder), reads::shown(&phys));
    }
    match is_waiting {
        true => finding
            .fixed_by("start a subnet manager in the fabric: on the switch, or `sudo systemctl start opensm` on one host")
            .fixed_by("check that one answers: `sudo sminfo`"),
        false => finding
            .fixed_by(format!("check cable and transceiver at both ends: `sudo mlxlink -d {} -m`", port.device))
            .fixed_by(format!("check that the switch port is enabled; then `sudo ibportstate -D 0 {} enable`, or `sudo ip link set IFACE up` for RoCE", port.number))
            .fixed_by("a port that is not meant to be used: leave it out with NCCL_IB_HCA"),
    }
}

fn slow(machine: &Machine<'_>, port: &RdmaPort, rate: &str, now: f64, usual: f64) -> Finding {
    let what = format!("RDMA port {} runs at {now} Gb/s; other ports of its kind run at {usual}", port.name);
    Finding::new("rdma-port", Severity::Warning, what)
        .shown_by(format!("/{}/rate", port.folder), reads::shown(rate))
        .costing(cost_of(machine, port, now, usual))
        .fixed_by(format!(
            "compare speed and lanes with the other end: `sudo mlxlink -d {} -m -c`",
            port.device
        ))
        .fixed_by("reseat or replace cable and transceiver; both have to support the rate")
        .fixed_by("check that the switch port is not split or set to a lower speed")
}

/// The cost of one port's rate in Gb/s between two such hosts.
fn cost_of(machine: &Machine<'_>, port: &RdmaPort, now: f64, usual: f64) -> Option<Cost> {
    let nic = port.nic(machine)?;
    let others: Vec<PortRate> =
        host_cost::ports_of(machine.fabric).into_iter().filter(|rate| rate.nic != nic).collect();
    let network = others.first()?.network;
    let with = |gbit: f64| {
        let mut ports = others.clone();
        if gbit >= 1.0 {
            ports.push(PortRate { nic, network, gbit: gbit as u32 });
        }
        ports
    };
    host_cost::of_two_hosts((machine.fabric, &with(now)), (machine.fabric, &with(usual)))
}

fn flaps(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    let mut judge = |name: &str, file: String, downs: Option<u64>| match downs {
        Some(downs) if downs > DOWNS_MAX => {
            let what = format!("the link of {name} went down {downs} times since boot");
            outcomes.findings.push(
                Finding::new("link-flaps", Severity::Warning, what)
                    .shown_by(format!("/{file}"), downs.to_string())
                    .fixed_by("reseat or replace cable and transceiver; look for high temperatures: `sudo mlxlink -d DEVICE -m`")
                    .fixed_by(format!("find when it happened: `journalctl -k | grep -iE '{name}|link (is )?down|lost carrier'`")),
            );
        }
        Some(_) => outcomes.fine.push(name.to_owned()),
        None => outcomes.unknown.push(name.to_owned()),
    };
    for port in reads::rdma_ports(tree) {
        let file = format!("{}/counters/link_downed", port.folder);
        let downs = reads::number(tree, &file);
        // RoCE devices count in the network interface.
        if downs.is_some() || !port.is_roce(tree) {
            judge(&port.name, file, downs);
        }
    }
    for name in reads::interfaces(tree) {
        // Wi-Fi comes and goes.
        let is_wireless = tree.read(&format!("{}/{name}/phy80211/index", reads::NET)).is_some();
        if !is_wireless && reads::function_of(tree, &format!("{}/{name}", reads::NET)).is_some() {
            let file = format!("{}/{name}/carrier_down_count", reads::NET);
            judge(&name, file.clone(), reads::number(tree, &file));
        }
    }
    if let Ok(log) = reads::kernel_log(tree) {
        flaps_in_log(&log, &mut outcomes, tree);
    }
    outcomes.finish(
        |fine| format!("{} with a stable link", reads::count(fine.len(), "port or interface")),
        |unknown| {
            let needs =
                "counters in /sys/class/infiniband/*/ports/*/counters and carrier_down_count (Linux 4.16)";
            (format!("whether the links of {} are stable", reads::some_of(unknown)), needs.to_owned())
        },
    )
}

/// Links that the kernel's log saw go down, if no counter of the same interface did.
fn flaps_in_log(log: &str, outcomes: &mut Outcomes, tree: &dyn weftlink_probe::Tree) {
    let is_down = |line: &str| {
        let line = line.to_ascii_lowercase();
        line.contains("lost carrier") || line.contains("link is down") || line.contains("link down")
    };
    for name in reads::interfaces(tree) {
        let is_about = |line: &&str| is_down(line) && line.split([' ', ':']).any(|word| word == name);
        let lines: Vec<&str> = log.lines().filter(is_about).collect();
        let is_known =
            outcomes.findings.iter().any(|finding| finding.what.contains(&format!("of {name} went")));
        if lines.len() as u64 > DOWNS_MAX && !is_known {
            let what = format!("the link of {name} went down {} times in the kernel's log", lines.len());
            outcomes.fine.retain(|fine| *fine != name);
            outcomes.findings.push(
                Finding::new("link-flaps", Severity::Warning, what)
                    .shown_by("kernel log", reads::shown(lines.last().copied().unwrap_or_default()))
                    .fixed_by("reseat or replace cable and transceiver, at the switch too"),
            );
        }
    }
}

fn symbol_errors(machine: &Machine<'_>) -> Vec<Outcome> {
    const COUNTERS: [&str; 6] = [
        "symbol_error",
        "link_error_recovery",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
    ];
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    let mut judge = |name: &str, counts: Vec<(String, u64)>, is_known: bool| {
        let bad: Vec<&(String, u64)> = counts.iter().filter(|(_, count)| *count > 0).collect();
        let total = bad.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        if total == 0 {
            let names = if is_known { &mut outcomes.fine } else { &mut outcomes.unknown };
            names.push(name.to_owned());
            return;
        }
        let severity = if total > ERRORS_MAX { Severity::Warning } else { Severity::Note };
        let what = format!("{name} counted {total} bit or link errors since boot: packets are sent again");
        let finding =
            bad.iter().fold(Finding::new("symbol-errors", severity, what), |finding, (file, count)| {
                finding.shown_by(format!("/{file}"), count.to_string())
            });
        outcomes.findings.push(
            finding
                .fixed_by("clean and reseat the cable and its transceivers, then replace them; try another switch port")
                .fixed_by("see whether the count rises: `sudo perfquery -r` clears it; for Ethernet compare `ethtool -S IFACE | grep -i crc` under load"),
        );
    };
    for port in reads::rdma_ports(tree) {
        let read = |counter: &str| {
            let file = format!("{}/counters/{counter}", port.folder);
            Some((file.clone(), reads::number(tree, &file)?))
        };
        let counts: Vec<_> = COUNTERS.iter().filter_map(|counter| read(counter)).collect();
        let is_known = !counts.is_empty();
        judge(&port.name, counts, is_known);
    }
    for name in reads::interfaces(tree) {
        let file = format!("{}/{name}/statistics/rx_crc_errors", reads::NET);
        if let (Some(_), Some(count)) =
            (reads::function_of(tree, &format!("{}/{name}", reads::NET)), reads::number(tree, &file))
        {
            judge(&name, vec![(file, count)], true);
        }
    }
    outcomes.finish(
        |fine| format!("no bit errors at {}", reads::count(fine.len(), "port")),
        |unknown| {
            let needs = "counters in /sys/class/infiniband/*/ports/*/counters; virtual functions have none";
            (format!("bit errors at {}", reads::some_of(unknown)), needs.to_owned())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, healthy, is_fine, is_unknown};
    use super::*;

    const PORT: &str = "sys/class/infiniband/mlx5_3/ports/1";

    #[test]
    fn a_port_that_is_down_costs_bandwidth() {
        let lines = [format!("{PORT}/state = 1: DOWN"), format!("{PORT}/phys_state = 2: Polling")];
        let found = healthy(&[&lines[0], &lines[1]]).finding(&CHECKS[0]);
        assert_eq!(
            (found.severity, found.what.as_str()),
            (Severity::Warning, "RDMA port mlx5_3 is down (Polling)")
        );
        let cost = found.cost.unwrap();
        assert!(cost.now_gb_per_s < 0.99 * cost.usual_gb_per_s, "{cost:?}");
        let waiting = healthy(&[&format!("{PORT}/state = 2: INIT")]).finding(&CHECKS[0]);
        assert!(waiting.what.contains("no subnet manager") && waiting.fixes[0].contains("opensm"));
    }

    #[test]
    fn a_slow_port_is_found_by_its_siblings() {
        let found = healthy(&[&format!("{PORT}/rate = 100 Gb/sec (1X NDR)")]).finding(&CHECKS[0]);
        assert_eq!(found.what, "RDMA port mlx5_3 runs at 100 Gb/s; other ports of its kind run at 400");
        assert!(found.cost.is_some());
        assert!(is_fine(&healthy(&[]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[&format!("{PORT}/state -")]).run(&CHECKS[0])));
    }

    #[test]
    fn flaps_are_counted() {
        assert!(is_fine(&healthy(&[&format!("{PORT}/counters/link_downed = 2")]).run(&CHECKS[1])));
        let found = healthy(&[&format!("{PORT}/counters/link_downed = 9")]).finding(&CHECKS[1]);
        assert_eq!(found.what, "the link of mlx5_3 went down 9 times since boot");
        let carrier = healthy(&["sys/class/net/ib3/carrier_down_count = 40"]).finding(&CHECKS[1]);
        assert!(carrier.what.contains("ib3 went down 40 times"));
        let line = "[ 9.1] mlx5_core 0000:1b:00.0 ib0: Link down";
        let log = format!("log/kernel = {}", [line; 3].join("\\n"));
        assert!(healthy(&[&log]).finding(&CHECKS[1]).what.contains("3 times in the kernel's log"));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }

    #[test]
    fn bit_errors_are_judged_by_number() {
        let errors = |count: u32| format!("{PORT}/counters/symbol_error = {count}");
        assert_eq!(healthy(&[&errors(3)]).finding(&CHECKS[2]).severity, Severity::Note);
        let found = healthy(&[&errors(65535)]).finding(&CHECKS[2]);
        assert_eq!((found.severity, found.evidence[0].text.as_str()), (Severity::Warning, "65535"));
        assert!(is_fine(&healthy(&[]).run(&CHECKS[2])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[2])));
    }
}
