//! PCIe links from GPUs and NICs up to their CPU, the NUMA nodes they belong to, and the links between the nodes.

use std::collections::BTreeMap;

use weftlink_fabric::link::{LinkKind, Measure};
use weftlink_fabric::{DeviceId, Link};

use super::view::{Pair, Part, View};
use super::{NUMA, PCIE, differs};
use crate::finding::{Finding, Outcome, Severity};
use crate::job::counted;

/// The PCIe links on the way of each GPU and NIC to its NUMA node. A link that several devices share is one finding.
pub(super) fn links(pair: &Pair<'_>) -> Vec<Outcome> {
    let mut slow: BTreeMap<(DeviceId, DeviceId), Slow> = BTreeMap::new();
    let (mut cut_off, mut unknown, mut fine) = (Vec::new(), Vec::new(), 0);
    for (found, expected) in pair.same_gpus().chain(pair.same_nics()) {
        let name = pair.found.name_of(found.id);
        if expected.uplink.is_empty() {
            continue;
        }
        if found.uplink.is_empty() {
            cut_off.push(name);
            continue;
        }
        match compare(pair, found, expected) {
            Compared::Fine => fine += 1,
            Compared::Unknown => unknown.push(name),
            Compared::Slow(link, slower) => {
                slow.entry((link.source, link.target)).or_insert(slower).devices.push(name);
            }
        }
    }
    let mut outcomes: Vec<Outcome> =
        slow.into_iter().map(|(ends, slow)| Outcome::Found(slow.finding(pair, ends))).collect();
    if !cut_off.is_empty() {
        let what = format!("no PCIe path from {} to a CPU", cut_off.join(", "));
        let finding = differs(PCIE, Severity::Critical, what, "no path".to_owned(), "a path".to_owned());
        outcomes.push(Outcome::Found(
            finding.fixed_by("lspci -tv shows the tree; look for a bridge that failed in sudo dmesg | grep -i pcieport, and restart \
                the host"),
        ));
    }
    let is_assumed = |note: &&String| note.starts_with("the PCIe link is not reported");
    if let Some(note) = pair.found.fabric.notes().iter().find(is_assumed) {
        outcomes.push(Outcome::Unknown { what: note.clone(), needs: "the host itself".to_owned() });
    }
    if !unknown.is_empty() {
        outcomes.push(Outcome::Unknown {
            what: format!("generation or width of the PCIe links of {}", unknown.join(", ")),
            needs: "the host itself: virtual machines hide PCIe links".to_owned(),
        });
    }
    if outcomes.is_empty() && fine > 0 {
        outcomes.push(Outcome::Fine(format!(
            "PCIe links of {} as wide and fast as expected",
            counted(fine, "device")
        )));
    }
    outcomes
}

/// A link that is slower than expected.
struct Slow {
    found: String,
    expected: String,
    devices: Vec<String>,
}

enum Compared {
    Fine,
    Unknown,
    Slow(Link, Slow),
}

/// Compares the ways of a device, link by link where both have as many, otherwise by the slowest link.
fn compare(pair: &Pair<'_>, found: &Part, expected: &Part) -> Compared {
    let pairs: Vec<(Link, Link)> = if found.uplink.len() == expected.uplink.len() {
        found.uplink.iter().copied().zip(expected.uplink.iter().copied()).collect()
    } else {
        let slowest =
            |view: &View<'_>, part: &Part| part.uplink.iter().copied().min_by_key(|link| rate(view, link));
        slowest(&pair.found, found).zip(slowest(&pair.expected, expected)).into_iter().collect()
    };
    let mut is_unknown = false;
    for (was, should) in pairs {
        let (was_rate, should_rate) = (rate(&pair.found, &was), rate(&pair.expected, &should));
        if should_rate == 0 {
            continue;
        }
        if was_rate == 0 {
            is_unknown = true;
        } else if (was_rate as f64) < should_rate as f64 * 0.99 {
            let kind = |view: &View<'_>, link: &Link| view.fabric.spec(link).kind.to_string();
            let (found, expected) = (kind(&pair.found, &was), kind(&pair.expected, &should));
            return Compared::Slow(was, Slow { found, expected, devices: Vec::new() });
        }
    }
    if is_unknown { Compared::Unknown } else { Compared::Fine }
}

/// Bytes per second; 0 where unknown.
fn rate(view: &View<'_>, link: &Link) -> u64 {
    match view.fabric.spec(link).kind {
        LinkKind::Pcie { generation: 0, .. } | LinkKind::Pcie { width: 0, .. } => 0,
        _ => view.fabric.rate(link, Measure::Nominal).bytes_per_second(),
    }
}

impl Slow {
    fn finding(self, pair: &Pair<'_>, (source, target): (DeviceId, DeviceId)) -> Finding {
        let Self { found, expected, devices } = self;
        let (below, above) = (pair.found.name_of(source), pair.found.name_of(target));
        let carries = match &devices[..] {
            [only] if *only == below => String::new(),
            _ => format!(", the way of {} to the CPU", devices.join(", ")),
        };
        let what = format!("the link from {below} to {above} is {found} instead of {expected}{carries}");
        let address =
            pair.found.fabric.device(source).bus.map_or_else(String::new, |bus| format!(" -s {bus}"));
        differs(PCIE, Severity::Warning, what, found, expected)
            .fixed_by(format!("sudo lspci -vv{address} | grep -E 'LnkCap|LnkSta': if LnkCap is lower, the slot or riser is; if only \
                LnkSta is, reseat the card and restart the host"))
            .fixed_by("in the BIOS: set the slot to its full width (no bifurcation) and to the newest generation")
    }
}

/// The NUMA nodes of GPUs and NICs, and the links between the nodes.
pub(super) fn numa(pair: &Pair<'_>) -> Vec<Outcome> {
    let (was, should) = (pair.found.numa.len(), pair.expected.numa.len());
    if should == 0 {
        return Vec::new();
    }
    if !pair.same_numa_nodes() {
        let counts = [was, should].map(|n| counted(n as u64, "NUMA node"));
        let [was, should] = counts;
        let what = format!(
            "{was}{} instead of {should}, so that the places of devices were not compared",
            pair.found.of_this()
        );
        let finding = differs(NUMA, Severity::Note, what, was, should);
        return vec![Outcome::Found(finding.fixed_by(
            "the BIOS setting NPS (AMD) or Sub-NUMA Clustering (Intel) sets the number of nodes of a socket; a virtual machine shows \
                what it was given",
        ))];
    }
    let mut outcomes = Vec::new();
    let moved: Vec<(String, usize, usize)> = pair
        .same_gpus()
        .chain(pair.same_nics())
        .filter_map(|(found, expected)| {
            let (was, should) = (found.numa?, expected.numa?);
            (was != should).then(|| (pair.found.name_of(found.id), was, should))
        })
        .collect();
    if !moved.is_empty() {
        let names: Vec<&str> = moved.iter().map(|(name, ..)| name.as_str()).collect();
        let what = format!("{} on another NUMA node than expected", names.join(", "));
        let mut finding = Finding::new(NUMA, Severity::Warning, what);
        for (name, was, should) in &moved {
            finding = finding.shown_by(name.clone(), format!("NUMA node {was}, expected {should}"));
        }
        outcomes.push(Outcome::Found(
            finding
                .fixed_by(
                    "move the cards to the slots of the expected socket (the board's manual lists them)",
                )
                .fixed_by(
                    "in a virtual machine: ask for GPUs and NICs on the virtual NUMA nodes of their sockets",
                ),
        ));
    }
    outcomes.extend(sockets(pair));
    if outcomes.is_empty() {
        outcomes
            .push(Outcome::Fine(format!("{}, with the expected devices", counted(was as u64, "NUMA node"))));
    }
    outcomes
}

/// The links between NUMA nodes.
fn sockets(pair: &Pair<'_>) -> Vec<Outcome> {
    let is_socket = |kind: LinkKind| matches!(kind, LinkKind::Socket(_));
    let mut outcomes = Vec::new();
    let nodes: Vec<_> = pair.found.numa.iter().zip(&pair.expected.numa).collect();
    for (at, (one, wanted)) in nodes.iter().enumerate() {
        for (other, other_wanted) in &nodes[at + 1..] {
            let between = |view: &View<'_>, one: DeviceId, other: DeviceId| {
                view.links(one, is_socket, |id| id == other).1
            };
            let was = between(&pair.found, **one, **other);
            let should = between(&pair.expected, **wanted, **other_wanted);
            if should == 0 || was as f64 >= should as f64 * 0.9 {
                continue;
            }
            let rate = |bytes: u64| match bytes {
                0 => "none".to_owned(),
                bytes => format!("{:.1} GB/s", bytes as f64 / 1e9),
            };
            let names = [*one, *other].map(|id| pair.found.name_of(*id));
            let what = format!(
                "the link between {} and {}: {} instead of {}",
                names[0],
                names[1],
                rate(was),
                rate(should)
            );
            let finding = differs(NUMA, Severity::Warning, what, rate(was), rate(should));
            outcomes.push(Outcome::Found(finding.fixed_by(
                "check that the CPUs are those expected (lscpu), and that the BIOS runs all links between sockets at full speed",
            )));
        }
    }
    outcomes
}
