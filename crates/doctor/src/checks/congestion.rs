//! Congestion: ports that wait to send, lost packets of RoCE, storms of pause frames.
//!
//! Counters are sums since boot. Without a second reading, only shares and counts that a healthy network does not have are judged.

use super::host_reads::{self as reads, Outcomes};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "congestion",
        finds: "Network ports that wait long to send, or whose packets were lost",
        reads: "`/sys/class/infiniband/*/ports/*/{counters,hw_counters}`",
        run: waits,
    },
    Check {
        id: "pause-storm",
        finds: "Storms of pause frames, and frames that were dropped in spite of them",
        reads: "`ethtool -S` of the interfaces of RoCE ports",
        run: storms,
    },
];

/// Ticks of waiting per four bytes sent from which a port waits a large part of the time.
const WAIT_SHARE: f64 = 0.1;
/// Counters of lost packets up to which a port is healthy: reboots of peers leave some.
const LOST_MAX: u64 = 100;
/// Counters of packets that were lost or came in the wrong order.
const LOST: [&str; 4] = ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err"];

fn waits(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    for port in reads::rdma_ports(tree) {
        let lost: Vec<(String, u64)> = LOST
            .iter()
            .map(|counter| format!("{}/hw_counters/{counter}", port.folder))
            .filter_map(|file| Some((file.clone(), reads::number(tree, &file)?)))
            .collect();
        let wait = port.number(tree, "counters/port_xmit_wait");
        if lost.is_empty() && wait.is_none() {
            outcomes.unknown.push(port.name);
            continue;
        }
        let total = lost.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let data = port.number(tree, "counters/port_xmit_data");
        if total > LOST_MAX {
            let what = format!(
                "{} lost packets or got them out of order {total} times since boot: RDMA sends them again",
                port.name
            );
            let bad = lost.iter().filter(|(_, count)| *count > 0);
            let finding = bad
                .fold(Finding::new("congestion", Severity::Warning, what), |finding, (file, count)| {
                    finding.shown_by(format!("/{file}"), count.to_string())
                });
            let finding = match port.is_roce(tree) {
                true => finding
                    .fixed_by("make the network lossless: PFC and ECN for the class of RoCE on every NIC and switch (`mlnx_qos -i IFACE`)")
                    .fixed_by("where switches spread flows packet by packet (adaptive routing), enable it on the NICs, too"),
                false => finding
                    .fixed_by("look for a bad cable or an overloaded switch on the way: `sudo ibqueryerrors`")
                    .fixed_by("compare with the counters of the peers: one receiver that fails makes all its senders repeat"),
            };
            outcomes.findings.push(finding);
        } else if let (Some(wait), Some(data)) = (wait, data.filter(|data| *data > 0))
            && wait as f64 > data as f64 * WAIT_SHARE
        {
            let share = wait as f64 / data as f64;
            let what = format!(
                "{} waited to send ({share:.1} ticks per 4 bytes sent since boot): the network or a receiver is slower than this port",
                port.name
            );
            outcomes.findings.push(
                Finding::new("congestion", Severity::Note, what)
                    .shown_by(format!("/{}/counters/port_xmit_wait", port.folder), wait.to_string())
                    .shown_by(format!("/{}/counters/port_xmit_data", port.folder), data.to_string())
                    .fixed_by("place jobs below fewer switches; on InfiniBand let the subnet manager use adaptive routing")
                    .fixed_by("compare with other hosts: one slow receiver makes all its senders wait"),
            );
        } else {
            outcomes.fine.push(port.name);
        }
    }
    outcomes.finish(
        |fine| format!("no congestion at {}", reads::count(fine.len(), "RDMA port")),
        |unknown| {
            let needs =
                "counters in /sys/class/infiniband/*/ports/*/; a virtual machine may hide them".to_owned();
            (format!("congestion at {}", reads::some_of(unknown)), needs)
        },
    )
}

/// The counters of `ethtool -S` whose names match, with their values.
fn counters(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
    let counter = |line: &str| {
        let (name, value) = line.trim().rsplit_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(counter).filter(|(name, value)| *value > 0 && wanted(name)).collect()
}

fn storms(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let mut outcomes = Outcomes::new();
    for port in reads::rdma_ports(tree).iter().filter(|port| port.is_roce(tree)) {
        for interface in port.interfaces(tree) {
            let path = format!("run/ethtool -S {interface}");
            let Ok(text) = reads::output(tree, &path) else {
                outcomes.unknown.push(interface);
                continue;
            };
            let storms = counters(&text, |name| name.contains("pause_storm"));
            let drops = counters(&text, |name| {
                name == "rx_discards_phy"
                    || name.ends_with("_discards") && name.starts_with("rx_prio")
                    || name == "rx_out_of_buffer"
            });
            let dropped = drops.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
            let is_stopped = storms.iter().any(|(name, _)| name.contains("error"));
            let (severity, what, shown) = if is_stopped {
                let what = format!(
                    "{interface} sent pause frames for so long that its NIC stopped them (a pause storm)"
                );
                (Severity::Warning, what, storms)
            } else if dropped > LOST_MAX {
                let what =
                    format!("{interface} dropped {dropped} frames since boot: the network is not lossless");
                (Severity::Warning, what, drops)
            } else if !storms.is_empty() {
                (Severity::Note, format!("{interface} sent pause frames for a long time"), storms)
            } else {
                outcomes.fine.push(interface);
                continue;
            };
            let finding = shown.iter().take(6).fold(
                Finding::new("pause-storm", severity, what),
                |finding, (name, count)| {
                    finding.shown_by(format!("ethtool -S {interface}"), format!("{name}: {count}"))
                },
            );
            outcomes.findings.push(
                finding
                    .fixed_by("look for what is slow on this host: a PCIe link below its width, GPUDirect that is off, a throttled GPU")
                    .fixed_by("enable the watchdog for PFC storms on the switch ports")
                    .fixed_by(format!("check that RoCE traffic is in the class with PFC: `sudo mlnx_qos -i {interface}`")),
            );
        }
    }
    outcomes.finish(
        |fine| format!("no pause storm and few dropped frames at {}", reads::some_of(fine)),
        |unknown| {
            (
                format!("pause frames at {}", reads::some_of(unknown)),
                "ethtool (`ethtool -S IFACE`, without root)".to_owned(),
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, healthy, is_fine, is_unknown};
    use super::super::roce::tests::ROCE;
    use super::*;

    const PORT: &str = "sys/class/infiniband/mlx5_2/ports/1";

    #[test]
    fn waiting_and_lost_packets_are_found() {
        let found = healthy(&[&format!("{PORT}/counters/port_xmit_wait = 900000000")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Note);
        let lost = healthy(&[&format!("{PORT}/hw_counters/packet_seq_err = 40000")]).finding(&CHECKS[0]);
        assert!(lost.what.contains("40000 times") && lost.fixes[0].contains("ibqueryerrors"), "{lost:#?}");
        let roce = healthy(&[
            &format!("{PORT}/hw_counters/out_of_sequence = 40000"),
            &format!("{PORT}/link_layer = Ethernet"),
        ]);
        assert!(roce.finding(&CHECKS[0]).fixes[0].contains("PFC"));
        assert!(is_fine(&healthy(&[]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }

    #[test]
    fn storms_are_found_where_roce_is_used() {
        let statistics =
            |text: &str| format!("run/ethtool -S ib0 = NIC statistics:\\n     rx_packets: 7\\n{text}");
        let with = |line: &str| {
            let mut lines = ROCE.to_vec();
            lines.push(line);
            healthy(&lines)
        };
        let storm = with(&statistics("     tx_pause_storm_error_events: 3")).finding(&CHECKS[1]);
        assert_eq!(storm.evidence[0].text, "tx_pause_storm_error_events: 3");
        assert_eq!(storm.severity, Severity::Warning);
        let long = with(&statistics("     tx_pause_storm_warning_events : 3")).finding(&CHECKS[1]);
        assert_eq!(long.severity, Severity::Note);
        let drops = with(&statistics("     rx_discards_phy: 50000")).finding(&CHECKS[1]);
        assert!(drops.what.contains("dropped 50000 frames"));
        assert!(is_fine(&with(&statistics("     rx_prio3_pause: 12")).run(&CHECKS[1])));
        assert!(is_unknown(&with("run/ethtool -S ib0 -").run(&CHECKS[1])));
        assert!(healthy(&[]).run(&CHECKS[1]).is_empty(), "InfiniBand has no pause frames");
    }
}
