//! NICs: missing ones, and slower ports.

use weftlink_fabric::device::{DeviceKind, Port};
use weftlink_fabric::link::{LinkKind, Network};

use super::view::{Pair, Part, View, known};
use super::{NICS, differs};
use crate::finding::{Outcome, Severity};
use crate::job::counted;

/// A NIC this much slower than the expected one, in another place, is another NIC, such as that of the management network.
const ANOTHER: u64 = 4;

/// How alike two NICs are, or None if one cannot stand for the other.
pub(super) fn score((found, at): (&View<'_>, usize), (expected, wanted): (&View<'_>, usize)) -> Option<u32> {
    let (one, other) = (&found.nics[at], &expected.nics[wanted]);
    let (was, should) = (Ports::of(found, one), Ports::of(expected, other));
    let same_place = found.numa.len() == expected.numa.len()
        && one.numa == other.numa
        && one.uplink.len() == other.uplink.len();
    let is_another = match (was.rate, should.rate) {
        (Some(was), Some(should)) => was.saturating_mul(ANOTHER) < should && !same_place,
        _ => false,
    };
    if is_another || !alike(was.network, should.network) {
        return None;
    }
    let points = [
        (8, was.rate == should.rate),
        (4, was.rate >= should.rate),
        (3, same_place),
        (2, was.network == should.network),
        (1, was.count == should.count),
        (1, at == wanted),
    ];
    Some(points.iter().filter(|(_, holds)| *holds).map(|(points, _)| points).sum())
}

/// Whether a NIC of one technology may be one of the other. A probe does not always see RDMA, and EFA has generations.
fn alike(one: Option<Network>, other: Option<Network>) -> bool {
    use Network::{Efa, EfaV1, EfaV2, EfaV3, EfaV4, Ethernet, Roce, TcpX, TcpXo, Unknown};
    let family = |network: Network| match network {
        Efa | EfaV1 | EfaV2 | EfaV3 | EfaV4 => Efa,
        Roce | Ethernet | TcpX | TcpXo => Ethernet,
        other => other,
    };
    match (one, other) {
        (None | Some(Unknown), _) | (_, None | Some(Unknown)) => true,
        (Some(one), Some(other)) => family(one) == family(other),
    }
}

/// The ports of a NIC.
struct Ports {
    count: usize,
    network: Option<Network>,
    /// Bytes per second of all of them, if known.
    rate: Option<u64>,
}

impl Ports {
    fn of(view: &View<'_>, part: &Part) -> Self {
        let ports: &[Port] = match &view.fabric.device(part.id).kind {
            DeviceKind::Nic(ports) => ports,
            _ => &[],
        };
        // One unknown rate makes the sum unknown.
        let rates: Option<Vec<u64>> = ports.iter().map(|port| known(port.rate)).collect();
        let rate = rates.map(|rates| rates.iter().fold(0, |sum: u64, rate| sum.saturating_add(*rate)));
        Self {
            count: ports.len(),
            network: ports.iter().find_map(|port| port.network),
            rate: rate.filter(|rate| *rate > 0),
        }
    }
}

fn gbit(bytes_per_second: u64) -> String {
    format!("{} Gb/s", bytes_per_second * 8 / 1_000_000_000)
}

/// The expected NICs. Additional ones are no finding.
pub(super) fn nics(pair: &Pair<'_>) -> Vec<Outcome> {
    let should = pair.expected.nics.len();
    if should == 0 {
        return Vec::new();
    }
    let mut outcomes = Vec::new();
    let missing: Vec<String> = pair
        .nics
        .iter()
        .zip(&pair.expected.nics)
        .filter(|(found, _)| found.is_none())
        .map(|(_, part)| {
            let rate = Ports::of(&pair.expected, part)
                .rate
                .map_or_else(String::new, |rate| format!(" of {}", gbit(rate)));
            let place = part.numa.map_or_else(String::new, |node| format!(" below NUMA node {node}"));
            format!("{}{rate}{place}", pair.expected.name_of(part.id))
        })
        .collect();
    if !missing.is_empty() {
        let (was, should) = (should - missing.len(), counted(should as u64, "NIC"));
        let what = format!("{was}{} instead of {should} for GPU traffic", pair.found.of_this());
        let expected = format!("{should}; missing by place in the wiring: {}", missing.join(", "));
        let finding = differs(NICS, Severity::Critical, what, counted(was as u64, "such NIC"), expected);
        outcomes.push(Outcome::Found(
            finding
                .fixed_by("lspci | grep -Ei 'infiniband|ethernet': a NIC that is missing there is not on the bus; reseat it or check \
                    its power")
                .fixed_by("if lspci lists it: rdma link, ibstat and ip -br link show whether its driver is loaded and its port is up"),
        ));
    }
    for (found, expected) in pair.same_nics() {
        outcomes.extend(port(pair, found, expected));
    }
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine(format!("{} as fast as expected", counted(should as u64, "NIC"))));
    }
    outcomes
}

/// The rate of a NIC and of its cables.
fn port(pair: &Pair<'_>, found: &Part, expected: &Part) -> Option<Outcome> {
    let (was, should) = (Ports::of(&pair.found, found), Ports::of(&pair.expected, expected));
    let name = pair.found.name_of(found.id);
    let should_rate = should.rate?;
    let Some(was_rate) = was.rate else {
        return Some(Outcome::Unknown {
            what: format!("the rate of {name}"),
            needs: "its port up: ibstat or ip link show says why it is down".to_owned(),
        });
    };
    let is_network = |kind: LinkKind| matches!(kind, LinkKind::Network { .. });
    let (_, was_cable) = pair.found.links(found.id, is_network, |_| true);
    let (_, should_cable) = pair.expected.links(expected.id, is_network, |_| true);
    let has_cables =
        pair.found.fabric.devices_where(|kind| matches!(kind, DeviceKind::NetSwitch(_))).next().is_some();
    let (what, was, should) = if (was_rate as f64) < should_rate as f64 * 0.99 {
        (format!("{name} runs at {} instead of {}", gbit(was_rate), gbit(should_rate)), was_rate, should_rate)
    } else if has_cables && (was_cable as f64) < should_cable as f64 * 0.99 {
        let words =
            format!("the cables of {name} carry {} instead of {}", gbit(was_cable), gbit(should_cable));
        (words, was_cable, should_cable)
    } else {
        return None;
    };
    let finding = differs(NICS, Severity::Warning, what, gbit(was), gbit(should));
    Some(Outcome::Found(
        finding
            .fixed_by("ibstat (InfiniBand) or ethtool INTERFACE (Ethernet) shows the rate that both ends agreed on: check cable, \
                transceiver and the switch port's settings")
            .fixed_by("mlxlink -d DEVICE -m shows the state of the cable (needs root and NVIDIA's MFT)"),
    ))
}
