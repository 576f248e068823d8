//! What stands between peers on PCIe: access control (ACS) on switch ports, and an IOMMU that translates.

use std::collections::BTreeSet;

use weftlink_fabric::device::DeviceKind;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "pcie-acs",
        finds: "PCIe switches that redirect transfers between GPUs and NICs to the CPU (ACS)",
        reads: "`/sys/bus/pci/devices/*/config` of bridges, as root",
        run: acs,
    },
    Check {
        id: "iommu",
        finds: "An IOMMU that translates the addresses of GPUs",
        reads: "`/sys/kernel/iommu_groups/*/type`, /proc/cmdline, the kernel log (`dmesg`)",
        run: iommu,
    },
];

/// The id of the ACS capability.
const ACS: u16 = 0x000d;
/// Bits of its control register: requests and completions between ports go to the root complex.
const REDIRECTS: u16 = 0x0004 | 0x0008;
/// Where extended capabilities start; without root, the kernel shows only the first 64 bytes.
const EXTENDED: usize = 0x100;
/// Capabilities that fit between `EXTENDED` and the end of the configuration space.
const CAPABILITIES_MAX: usize = 480;

/// Addresses of switch ports above GPUs and NICs that have a sibling below the same switch.
fn switch_ports(machine: &Machine<'_>) -> BTreeSet<String> {
    let wanted = |kind: &DeviceKind| reads::is_gpu(kind) || reads::is_nic(kind);
    let chains: Vec<Vec<String>> = reads::functions(machine, wanted)
        .iter()
        .map(|function| reads::above(machine.tree, &function.address))
        .collect();
    let mut ports = BTreeSet::new();
    for chain in &chains {
        // Root port, upstream port, downstream port, device.
        for pair in chain.windows(2).skip(1) {
            let shared = chains.iter().filter(|other| other.contains(&pair[0])).count() > 1;
            if shared {
                ports.insert(pair[1].clone());
            }
        }
    }
    ports
}

fn acs(machine: &Machine<'_>) -> Vec<Outcome> {
    let ports = switch_ports(machine);
    if ports.is_empty() || machine.fabric.gpus().is_empty() {
        return Vec::new();
    }
    let (mut redirecting, mut hidden, mut fine) = (Vec::new(), Vec::new(), 0);
    for port in ports {
        match machine.tree.read(&format!("pci-config/{port}")).map(|text| control(&text)) {
            Some(Config::Control(control)) if control & REDIRECTS != 0 => redirecting.push((port, control)),
            Some(Config::Control(_) | Config::NoAcs) => fine += 1,
            Some(Config::Short) | None => hidden.push(port),
        }
    }
    let mut outcomes = Vec::new();
    if let Some((first, _)) = redirecting.first() {
        let what = format!(
            "ACS is on at {} of PCIe switches: transfers between GPUs and NICs below them go through the CPU",
            reads::count(redirecting.len(), "port")
        );
        let mut finding = Finding::new("pcie-acs", Severity::Warning, what);
        for (port, control) in redirecting.iter().take(8) {
            finding = finding
                .shown_by(format!("/{}/{port}/config", reads::FUNCTIONS), format!("ACSCtl {control:#06x}"));
        }
        outcomes.push(Outcome::Found(
            finding
                .fixed_by("in the BIOS, disable ACS (on hosts that pass GPUs to virtual machines it has to stay on)")
                .fixed_by(format!("until the next boot: `sudo setpci -s {first} ECAP_ACS+0x6.w=0000`, for each port")),
        ));
    }
    if fine > 0 && redirecting.is_empty() {
        outcomes.push(Outcome::Fine(format!(
            "{} of PCIe switches redirect nothing (ACS)",
            reads::count(fine, "port")
        )));
    }
    if !hidden.is_empty() {
        outcomes.push(Outcome::Unknown {
            what: format!(
                "ACS at {} of PCIe switches ({})",
                reads::count(hidden.len(), "port"),
                reads::some_of(&hidden)
            ),
            needs: "root: without it the kernel shows 64 bytes of the configuration space".to_owned(),
        });
    }
    outcomes
}

/// What the configuration space of a port shows.
#[derive(Debug, PartialEq, Eq)]
enum Config {
    /// Only its start was readable.
    Short,
    /// It has no ACS.
    NoAcs,
    /// ACS's control register.
    Control(u16),
}

/// Reads the hexadecimal text of a configuration space.
fn control(text: &str) -> Config {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).take(2 * 4096).map(|digit| digit as u8).collect();
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if bytes.len() <= EXTENDED + 4 {
        return Config::Short;
    }
    let word = |at: usize| Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let mut at = EXTENDED;
    for _ in 0..CAPABILITIES_MAX {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { break };
        if id == ACS {
            return word(at + 6).map_or(Config::Short, Config::Control);
        }
        match usize::from(next >> 4) {
            next if next >= EXTENDED => at = next,
            _ => break,
        }
    }
    Config::NoAcs
}

fn iommu(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let gpus = reads::functions(machine, reads::is_gpu);
    let cpus = machine.fabric.devices().iter().filter_map(|device| match &device.kind {
        DeviceKind::Numa(numa) => numa.cpu.arch.as_deref(),
        _ => None,
    });
    // Grace translates in hardware that GPUs share with its CPU.
    let has_peers = gpus.len() > 1 || !gpus.is_empty() && !reads::rdma_ports(tree).is_empty();
    if !has_peers || cpus.into_iter().any(|arch| arch == "arm64") {
        return Vec::new();
    }
    let groups: Vec<(String, String)> = gpus
        .iter()
        .filter_map(|gpu| {
            let link = tree.link(&gpu.path("iommu_group"))?;
            let number = link.rsplit('/').next()?.to_owned();
            Some((gpu.name.clone(), format!("sys/kernel/iommu_groups/{number}/type")))
        })
        .collect();
    let cmdline = tree.read("proc/cmdline");
    if groups.is_empty() {
        let is_known = cmdline.is_some() || !tree.list("sys/kernel").is_empty();
        return vec![match is_known && tree.list("sys/kernel/iommu_groups").is_empty() {
            true => Outcome::Fine("no IOMMU translates the addresses of GPUs".to_owned()),
            false => Outcome::Unknown {
                what: "whether an IOMMU translates the addresses of GPUs".to_owned(),
                needs: "/proc/cmdline and /sys/kernel/iommu_groups".to_owned(),
            },
        }];
    }
    let types: Vec<(String, String, String)> =
        groups.into_iter().filter_map(|(gpu, file)| Some((gpu, tree.read(&file)?, file))).collect();
    let mut translated = types.iter().filter(|(_, kind, _)| kind.starts_with("DMA"));
    if let Some((gpu, kind, file)) = translated.next() {
        let more = match translated.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what =
            format!("the IOMMU translates the addresses of {gpu}{more}: peer transfers are slower or fail");
        return vec![
            found(what)
                .shown_by_all(&[(file, kind), ("proc/cmdline", cmdline.as_deref().unwrap_or_default())]),
        ];
    }
    let words: Vec<&str> = cmdline.as_deref().unwrap_or_default().split_whitespace().collect();
    let passes = |word: &&str| {
        matches!(
            *word,
            "iommu=pt" | "iommu.passthrough=1" | "intel_iommu=off" | "amd_iommu=off" | "iommu=off"
        )
    };
    if let Some((_, kind, _)) = types.first() {
        return vec![Outcome::Fine(format!(
            "the IOMMU passes the addresses of GPUs through (group type {kind})"
        ))];
    }
    if let Some(word) = words.iter().find(|word| passes(word)) {
        return vec![Outcome::Fine(format!(
            "the IOMMU passes addresses through (`{word}` in /proc/cmdline)"
        ))];
    }
    // Kernels before 5.11 have no types of groups.
    let log = reads::kernel_log(tree).unwrap_or_default();
    let default = log.lines().find(|line| line.contains("Default domain type:"));
    vec![match default {
        Some(line) if line.contains("Translated") => {
            found("the IOMMU translates the addresses of GPUs: peer transfers are slower or fail".to_owned())
                .shown_by_all(&[("kernel log", line)])
        }
        Some(line) => Outcome::Fine(format!("the kernel's log: {}", reads::shown(line))),
        None => Outcome::Unknown {
            what: "whether the IOMMU translates the addresses of GPUs".to_owned(),
            needs: "the kernel's log: `sudo dmesg | grep 'Default domain type'`".to_owned(),
        },
    }]
}

struct Translated(Finding);

fn found(what: String) -> Translated {
    Translated(
        Finding::new("iommu", Severity::Warning, what)
            .fixed_by(
                "add `iommu=pt` to GRUB_CMDLINE_LINUX in /etc/default/grub, run `sudo update-grub`, reboot",
            )
            .fixed_by("or disable the IOMMU (VT-d, AMD-Vi) in the BIOS if no virtual machine needs it"),
    )
}

impl Translated {
    fn shown_by_all(self, lines: &[(&str, &str)]) -> Outcome {
        let shown = lines.iter().fold(self.0, |finding, (file, text)| {
            let source = if file.contains('/') { format!("/{file}") } else { (*file).to_owned() };
            finding.shown_by(source, reads::shown(text))
        });
        Outcome::Found(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, findings, healthy, is_fine, is_unknown};
    use super::*;

    /// A configuration space whose ACS capability follows another one.
    fn config(control: u16) -> String {
        let mut bytes = vec![0_u8; 4096];
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x02, 0x14]); // AER, next at 0x140
        bytes[0x140..0x144].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        bytes[0x146..0x148].copy_from_slice(&control.to_le_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn redirecting_ports_are_found() {
        let port = |control| format!("pci-config/0000:18:01.0 = {}", config(control));
        let found = healthy(&[&port(0x001d)]).finding(&CHECKS[0]);
        assert!(found.what.contains("ACS is on at 1 port"), "{}", found.what);
        assert_eq!(found.evidence[0].text, "ACSCtl 0x001d");
        assert!(found.fixes[1].contains("setpci -s 0000:18:01.0 ECAP_ACS+0x6.w=0000"));
        assert!(is_fine(&healthy(&[&port(0x0001)]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
        let short = format!("pci-config/0000:18:01.0 = {}", "00".repeat(64));
        assert!(is_unknown(&healthy(&[&short]).run(&CHECKS[0])));
    }

    #[test]
    fn capabilities_that_loop_end() {
        let mut bytes = vec![0_u8; 4096];
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x02, 0x10]);
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(control(&text), Config::NoAcs);
        assert_eq!(control("zz"), Config::Short);
    }

    #[test]
    fn a_translating_iommu_is_found() {
        let group = "sys/bus/pci/devices/0000:19:00.0/iommu_group -> ../../../kernel/iommu_groups/17";
        let kind = |kind: &str| format!("sys/kernel/iommu_groups/17/type = {kind}");
        let found = healthy(&[group, &kind("DMA-FQ")]).finding(&CHECKS[1]);
        assert_eq!(found.evidence[0].source, "/sys/kernel/iommu_groups/17/type");
        assert!(is_fine(&healthy(&[group, &kind("identity")]).run(&CHECKS[1])));
        let old = ["log/kernel = [ 0.5] iommu: Default domain type: Translated", "proc/cmdline = ro quiet"];
        assert_eq!(findings(healthy(&[group, old[0], old[1]]).run(&CHECKS[1])).len(), 1);
        assert!(is_fine(&healthy(&[group, "proc/cmdline = ro iommu=pt"]).run(&CHECKS[1])));
        assert!(is_unknown(&healthy(&[group, "log/kernel = nothing", "proc/cmdline = ro"]).run(&CHECKS[1])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }
}
