//! PCIe links: narrower or slower than both ends support, limited as the kernel saw it at boot, or with errors.
//!
//! An idle GPU lowers the speed of its link, and so does a switch with only GPUs below it; their current speed is not compared.

use weftlink_fabric::catalog::links;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::{Fabric, LinkSpec, Paths};
use weftlink_probe::Tree;

use super::host_reads::{self as reads, Function, Outcomes};
use crate::check::{Check, Machine};
use crate::finding::{Cost, Finding, Outcome, Severity};
use crate::{cost, host_cost};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "pcie-link",
        finds: "PCIe links that are narrower or slower than both ends support",
        reads: "/sys/bus/pci/devices/*/{current,max}_link_{speed,width}",
        run: links_of_devices,
    },
    Check {
        id: "pcie-boot",
        finds: "devices whose PCIe bandwidth the kernel found limited at boot",
        reads: "the kernel's log",
        run: limited_at_boot,
    },
    Check {
        id: "pcie-errors",
        finds: "PCIe errors (AER)",
        reads: "/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}",
        run: errors,
    },
];

/// Correctable errors since boot from which a link is worth a repair: a healthy one has none or a handful.
const CORRECTABLE_MAX: u64 = 1000;
/// The vendor of ports that a hypervisor emulates; their rates mean nothing.
const VIRTUAL_PORT: &str = "0x1b36";

/// Speed and width of one end; zero where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lanes {
    generation: u8,
    width: u8,
}

impl Lanes {
    fn read(tree: &dyn Tree, folder: &str, which: &str) -> Self {
        let read = |what: &str| tree.read(&format!("{folder}/{which}_link_{what}")).unwrap_or_default();
        Self { generation: generation(&read("speed")), width: width(&read("width")) }
    }

    fn is_known(self) -> bool {
        self.generation > 0 && self.width > 0
    }

    /// What two ends have in common.
    fn with(self, other: Self) -> Self {
        Self { generation: self.generation.min(other.generation), width: self.width.min(other.width) }
    }

    fn spec(self) -> LinkSpec {
        links::pcie(self.generation, self.width)
    }
}

impl std::fmt::Display for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.width)
    }
}

/// `32.0 GT/s PCIe` is generation 5.
fn generation(speed: &str) -> u8 {
    match speed.split_whitespace().next().unwrap_or_default() {
        "2.5" => 1,
        "5" | "5.0" => 2,
        "8" | "8.0" => 3,
        "16" | "16.0" => 4,
        "32" | "32.0" => 5,
        "64" | "64.0" => 6,
        _ => 0,
    }
}

/// The kernel and hypervisors report 0, 63 or 255 for an unknown width.
fn width(text: &str) -> u8 {
    text.parse().ok().filter(|width| matches!(width, 1 | 2 | 4 | 8 | 12 | 16 | 32)).unwrap_or(0)
}

/// Both ends of the link above a device.
struct Ends {
    now: Lanes,
    max: Lanes,
    /// The address of the port above it and its maximum.
    port: Option<(String, Lanes)>,
}

impl Ends {
    fn read(tree: &dyn Tree, function: &Function) -> Option<Self> {
        let folder = |address: &str| format!("{}/{address}", reads::FUNCTIONS);
        let (now, max) =
            ["current", "max"].map(|which| Lanes::read(tree, &folder(&function.address), which)).into();
        let port = reads::above(tree, &function.address).pop().and_then(|port| {
            let is_virtual = tree.read(&format!("{}/vendor", folder(&port))).as_deref() == Some(VIRTUAL_PORT);
            let max = Lanes::read(tree, &folder(&port), "max");
            (max.is_known() && !is_virtual).then_some((port, max))
        });
        (now.is_known() && max.is_known()).then_some(Self { now, max, port })
    }

    /// What both ends support.
    fn best(&self) -> Lanes {
        self.port.as_ref().map_or(self.max, |(_, port)| self.max.with(*port))
    }
}

fn links_of_devices(machine: &Machine<'_>) -> Vec<Outcome> {
    let wanted = |kind: &DeviceKind| {
        reads::is_gpu(kind) || reads::is_nic(kind) || matches!(kind, DeviceKind::PcieSwitch)
    };
    let mut outcomes = Outcomes::new();
    for function in reads::functions(machine, wanted) {
        let Some(ends) = Ends::read(machine.tree, &function) else {
            outcomes.unknown.push(function.name);
            continue;
        };
        match slow_link(machine, &function, &ends) {
            Some(finding) => outcomes.findings.push(finding),
            None => outcomes.fine.push(function.name),
        }
    }
    outcomes.finish(
        |fine| format!("{} as wide and fast as both ends support", reads::count(fine.len(), "PCIe link")),
        |unknown| {
            (
                format!("the PCIe links of {}", reads::some_of(unknown)),
                "the host: a virtual machine hides them".to_owned(),
            )
        },
    )
}

fn slow_link(machine: &Machine<'_>, function: &Function, ends: &Ends) -> Option<Finding> {
    let (best, name) = (ends.best(), &function.name);
    let is_narrow = ends.now.width < best.width;
    let is_slow = ends.now.generation < best.generation && !slows_when_idle(machine, function);
    let file = |file: &str| format!("/{}", function.path(file));
    let read = |file: &str| function.read(machine.tree, file).unwrap_or_default();
    let new = |severity, what: String, usual: Lanes| {
        let mut finding = Finding::new("pcie-link", severity, what).costing(cost_of(
            machine.fabric,
            function,
            usual.spec(),
        ));
        for name in ["current_link_width", "max_link_width", "current_link_speed", "max_link_speed"] {
            finding = finding.shown_by(file(name), read(name));
        }
        match &ends.port {
            Some((port, lanes)) => {
                finding.shown_by(format!("/{}/{port}/max_link_*", reads::FUNCTIONS), format!("{lanes}"))
            }
            None => finding,
        }
    };
    if is_narrow || is_slow {
        let usual = Lanes {
            generation: if is_slow { best.generation } else { ends.now.generation.max(best.generation) },
            ..best
        };
        let mut finding = match is_narrow {
            true => new(
                Severity::Warning,
                format!("{name} runs at x{}; it and its slot support x{}", ends.now.width, best.width),
                usual,
            )
            .fixed_by(format!("power down and reseat {name}, its riser and its cables; clean the contacts"))
            .fixed_by("in the BIOS, set the bifurcation of the slot to one device with all lanes (x16)"),
            false => new(
                Severity::Warning,
                format!(
                    "{name} runs at PCIe {}.0; it and its slot support {}.0",
                    ends.now.generation, best.generation
                ),
                usual,
            )
            .fixed_by("in the BIOS, set the link speed of the slot to Auto")
            .fixed_by(format!("reseat {name}; replace its riser, cable or retimer if the speed stays low")),
        };
        finding =
            finding.fixed_by(format!("check with `sudo lspci -vv -s {} | grep LnkSta`", function.address));
        return Some(finding);
    }
    let (port, lanes) = ends.port.as_ref()?;
    if lanes.width >= ends.max.width && lanes.generation >= ends.max.generation {
        return None;
    }
    let severity =
        if needs_its_slot(machine.fabric, function, best) { Severity::Warning } else { Severity::Note };
    let what = format!("the slot of {name} is {lanes}, and the card supports {}", ends.max);
    let usual = if lanes.width < ends.max.width { Lanes { width: ends.max.width, ..best } } else { ends.max };
    Some(new(severity, what, usual).fixed_by(format!(
        "move the card to a slot of {}, not below port {port}; the board's manual lists the lanes",
        ends.max
    )))
}

/// True for GPUs, and for switches without other devices below them.
fn slows_when_idle(machine: &Machine<'_>, function: &Function) -> bool {
    if reads::is_gpu(&machine.fabric.device(function.id).kind) {
        return true;
    }
    let keeps_awake = |kind: &DeviceKind| reads::is_nic(kind) || matches!(kind, DeviceKind::Storage);
    let awake = reads::functions(machine, keeps_awake);
    let is_above = |other: &Function| {
        other.id == function.id || reads::above(machine.tree, &other.address).contains(&function.address)
    };
    !awake.iter().any(is_above)
}

/// False where a slower slot limits nothing that matters: a GPU that exchanges data over NVLink, a NIC whose ports are slower still.
fn needs_its_slot(fabric: &Fabric, function: &Function, slot: Lanes) -> bool {
    match &fabric.device(function.id).kind {
        DeviceKind::Gpu(_) => Paths::of(fabric).gpu_fabric_out(function.id).links == 0,
        DeviceKind::Nic(ports) => {
            let rate: u64 = ports.iter().map(|port| port.rate.bytes_per_second()).sum();
            slot.spec().rate(weftlink_fabric::Measure::Effective, 1).bytes_per_second() < rate
        }
        _ => true,
    }
}

/// What a slower slot costs: of the calls that depend on it, the first that gets slower.
fn cost_of(fabric: &Fabric, function: &Function, usual: LinkSpec) -> Option<Cost> {
    let repaired = host_cost::with_slot(fabric, function.id, &usual);
    let copy = || host_cost::of_host_copy(fabric, &repaired, function.id);
    match fabric.device(function.id).kind {
        DeviceKind::Nic(_) => {
            let ports = host_cost::ports_of(fabric);
            host_cost::of_two_hosts((fabric, &ports), (&repaired, &ports)).or_else(copy)
        }
        _ => cost::of_all_reduce(fabric, &repaired).or_else(copy),
    }
}

/// `... 63.012 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:16:01.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)`.
struct Limited {
    address: String,
    limit: Lanes,
    capable: Lanes,
    port: String,
}

impl Limited {
    fn parse(line: &str) -> Option<Self> {
        let (before, rest) = line.split_once("available PCIe bandwidth, limited by ")?;
        let (limit, capable) = rest.split_once("(capable of ")?;
        let lanes = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "GT/s")?;
            let lanes = Lanes {
                generation: generation(words.get(at.checked_sub(1)?)?),
                width: width(words.get(at + 2)?.strip_prefix('x')?),
            };
            lanes.is_known().then_some(lanes)
        };
        let address = before
            .split_whitespace()
            .map(|word| word.trim_end_matches(':'))
            .rfind(|word| reads::is_address(word))?;
        let port = limit.split_whitespace().rfind(|word| reads::is_address(word))?;
        Some(Self {
            address: address.to_owned(),
            limit: lanes(limit)?,
            capable: lanes(capable)?,
            port: port.to_owned(),
        })
    }
}

fn limited_at_boot(machine: &Machine<'_>) -> Vec<Outcome> {
    let wanted =
        |kind: &DeviceKind| reads::is_gpu(kind) || reads::is_nic(kind) || matches!(kind, DeviceKind::Storage);
    let functions = reads::functions(machine, wanted);
    if functions.is_empty() {
        return Vec::new();
    }
    let log = match reads::kernel_log(machine.tree) {
        Ok(log) => log,
        Err(reason) => {
            return vec![Outcome::Unknown {
                what: "whether the kernel found PCIe links limited at boot".to_owned(),
                needs: format!("root, or `sudo sysctl kernel.dmesg_restrict=0` ({reason})"),
            }];
        }
    };
    let mut outcomes = Vec::new();
    for line in log.lines() {
        let Some(limited) = Limited::parse(line) else { continue };
        let Some(function) = functions.iter().find(|function| function.address == limited.address) else {
            continue;
        };
        // A GPU starts with a slow link and raises its speed under load.
        let is_narrow = limited.limit.width < limited.capable.width;
        if reads::is_gpu(&machine.fabric.device(function.id).kind) && !is_narrow {
            continue;
        }
        let ends = Ends::read(machine.tree, function);
        // The check of links reports it with its cost.
        if ends.as_ref().is_some_and(|ends| slow_link(machine, function, ends).is_some()) {
            continue;
        }
        let (severity, now) = match ends {
            Some(ends)
                if limited.port == function.address
                    || Some(&limited.port) == ends.port.as_ref().map(|(port, _)| port) =>
            {
                (Severity::Note, format!("; it now runs at {}", ends.now))
            }
            _ => (Severity::Warning, String::new()),
        };
        let what = format!(
            "the kernel found {} limited to {} at {} ({} would be possible){now}",
            function.name, limited.limit, limited.port, limited.capable
        );
        outcomes.push(Outcome::Found(
            Finding::new("pcie-boot", severity, what)
                .shown_by("the kernel's log", reads::shown(line))
                .fixed_by(format!(
                    "look at the link at {}: `sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'`",
                    limited.port, limited.port
                ))
                .fixed_by(format!("reseat {} or move it to a slot with more lanes", function.name)),
        ));
    }
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine(
            "the kernel's log reports no limited PCIe link of a GPU, NIC or drive".to_owned(),
        ));
    }
    outcomes
}

fn errors(machine: &Machine<'_>) -> Vec<Outcome> {
    let wanted = |kind: &DeviceKind| {
        reads::is_gpu(kind)
            || reads::is_nic(kind)
            || matches!(kind, DeviceKind::Storage | DeviceKind::PcieSwitch | DeviceKind::RootPort)
    };
    let mut outcomes = Outcomes::new();
    for function in reads::functions(machine, wanted) {
        let mut seen = false;
        let mut worst: Option<Finding> = None;
        for kind in ["fatal", "nonfatal", "correctable"] {
            let file = format!("aer_dev_{kind}");
            let Some(text) = function.read(machine.tree, &file) else { continue };
            seen = true;
            let (total, named) = aer_counts(&text);
            if total == 0 {
                continue;
            }
            let severity = match (kind, total) {
                ("fatal", _) => Severity::Critical,
                ("nonfatal", _) | (_, CORRECTABLE_MAX..) => Severity::Warning,
                _ => Severity::Note,
            };
            let evidence = (format!("/{}", function.path(&file)), reads::shown(&named));
            worst = Some(match worst {
                Some(finding) => finding.shown_by(evidence.0, evidence.1),
                None => {
                    let what = format!("{} had {total} {kind} PCIe errors since boot", function.name);
                    Finding::new("pcie-errors", severity, what).shown_by(evidence.0, evidence.1)
                }
            });
        }
        match worst {
            Some(finding) => outcomes.findings.push(
                finding
                    .fixed_by(format!("reseat {}, its riser and its cables; if the count goes on rising, replace them, then the card", function.name))
                    .fixed_by(format!("watch it under load: `watch cat /{}`", function.path("aer_dev_correctable"))),
            ),
            None if seen => outcomes.fine.push(function.name),
            None => outcomes.unknown.push(function.name),
        }
    }
    outcomes.finish(
        |fine| format!("no PCIe errors at {} since boot", reads::count(fine.len(), "device")),
        |unknown| {
            let needs = "a kernel that handles AER itself (not the firmware, not in a virtual machine): `dmesg | grep AER`; or the BMC's log";
            (format!("PCIe errors of {}", reads::some_of(unknown)), needs.to_owned())
        },
    )
}

/// The sum of the counters (the kernel's own total repeats it), and those that are not zero.
fn aer_counts(text: &str) -> (u64, String) {
    let mut total = 0_u64;
    let mut named = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(count))) = (words.next(), words.next().map(str::parse::<u64>))
            && count > 0
            && !name.starts_with("TOTAL_ERR")
        {
            total = total.saturating_add(count);
            named.push(format!("{name} {count}"));
        }
    }
    (total, named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, findings, healthy, is_fine, is_unknown, virtual_machine};
    use super::*;

    const GPU0: &str = "sys/bus/pci/devices/0000:19:00.0";
    const NIC0: &str = "sys/bus/pci/devices/0000:1b:00.0";

    #[test]
    fn a_narrow_gpu_is_found_with_its_cost() {
        let found = healthy(&[&format!("{GPU0}/current_link_width = 4")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.what, "gpu0 (0000:19:00.0) runs at x4; it and its slot support x16");
        let cost = found.cost.unwrap();
        assert!(cost.sentence.starts_with("copies between host memory and gpu0"), "{cost:?}");
        assert!((3.5..4.5).contains(&(cost.usual_gb_per_s / cost.now_gb_per_s)), "{cost:?}");
    }

    #[test]
    fn a_narrow_nic_costs_bandwidth_between_hosts() {
        let found = healthy(&[&format!("{NIC0}/current_link_width = 4")]).finding(&CHECKS[0]);
        let cost = found.cost.unwrap();
        assert!(cost.sentence.contains("between two such hosts"), "{cost:?}");
        let slow = healthy(&[&format!("{NIC0}/current_link_speed = 8.0 GT/s PCIe")]).finding(&CHECKS[0]);
        assert!(slow.what.contains("runs at PCIe 3.0; it and its slot support 5.0"), "{}", slow.what);
    }

    #[test]
    fn idle_gpus_may_be_slow() {
        assert!(is_fine(&healthy(&[&format!("{GPU0}/current_link_speed = 2.5 GT/s PCIe")]).run(&CHECKS[0])));
    }

    #[test]
    fn a_narrow_slot_is_a_note_where_nvlink_carries_the_data() {
        let port = "sys/bus/pci/devices/0000:18:00.0/max_link_width = 8";
        let found = healthy(&[port, &format!("{GPU0}/current_link_width = 8")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Note);
        assert!(found.what.contains("is PCIe 5.0 x8, and the card supports PCIe 5.0 x16"), "{}", found.what);
    }

    #[test]
    fn hidden_links_are_unknown() {
        let file = "sys/bus/pci/devices/0000:00:06.0/current_link_width -";
        assert!(is_unknown(&virtual_machine(&[file]).run(&CHECKS[0])));
    }

    #[test]
    fn the_kernels_limit_is_reported_once() {
        let line = |limit: &str, at: &str| {
            format!(
                "log/kernel = [    2.1] mlx5_core 0000:1b:00.0: 63.012 Gb/s available PCIe bandwidth, limited by {limit} link at {at} \
                 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
            )
        };
        let found = healthy(&[&line("8.0 GT/s PCIe x8", "0000:16:01.0")]).finding(&CHECKS[1]);
        assert_eq!(found.severity, Severity::Warning);
        assert!(
            found.what.contains("limited to PCIe 3.0 x8 at 0000:16:01.0 (PCIe 5.0 x16 would be possible)"),
            "{}",
            found.what
        );
        let now = healthy(&[&line("8.0 GT/s PCIe x8", "0000:18:02.0")]).finding(&CHECKS[1]);
        assert_eq!(now.severity, Severity::Note, "{now:#?}");
        let both =
            healthy(&[&line("32.0 GT/s PCIe x8", "0000:18:02.0"), &format!("{NIC0}/current_link_width = 8")]);
        assert!(findings(both.run(&CHECKS[1])).is_empty());
        let gpu = line("2.5 GT/s PCIe x16", "0000:18:00.0").replace("0000:1b:00.0", "0000:19:00.0");
        assert!(is_fine(&healthy(&[&gpu]).run(&CHECKS[1])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }

    #[test]
    fn errors_are_judged_by_kind_and_number() {
        let correctable = |count: u32| {
            format!("{GPU0}/aer_dev_correctable = RxErr 0\\nBadTLP {count}\\nTOTAL_ERR_COR {count}")
        };
        let few = healthy(&[&correctable(7)]).finding(&CHECKS[2]);
        assert_eq!((few.severity, few.evidence[0].text.as_str()), (Severity::Note, "BadTLP 7"));
        assert_eq!(healthy(&[&correctable(5000)]).finding(&CHECKS[2]).severity, Severity::Warning);
        let fatal = format!("{GPU0}/aer_dev_fatal = Undefined 0\\nDLP 1\\nTOTAL_ERR_FATAL 1");
        let fatal = healthy(&[&fatal, &correctable(3)]).finding(&CHECKS[2]);
        assert_eq!((fatal.severity, fatal.evidence.len()), (Severity::Critical, 2));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[2])));
    }
}
