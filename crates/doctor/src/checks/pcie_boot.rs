//! PCIe links that the kernel found limited at boot, also in the middle of a path, where the ends of a device's own link do not show it.

use weftlink_fabric::device::DeviceKind;

use super::host_reads as reads;
use super::pcie::{Ends, Lanes, generation, slow_link, width};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "pcie-boot",
    finds: "Devices whose PCIe bandwidth the kernel found limited at boot",
    reads: "the kernel log (`dmesg`)",
    run: limited_at_boot,
}];

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
    let functions = reads::linked_functions(machine, wanted);
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
        let is_drive = matches!(machine.fabric.device(function.id).kind, DeviceKind::Storage);
        if !is_drive && ends.as_ref().is_some_and(|ends| slow_link(machine, function, ends).is_some()) {
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
                .shown_by("kernel log", reads::shown(line))
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

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, findings, healthy, is_fine, is_unknown};
    use super::*;

    const NIC0: &str = "sys/bus/pci/devices/0000:1b:00.0";

    #[test]
    fn the_kernels_limit_is_reported_once() {
        let line = |limit: &str, at: &str| {
            format!(
                "log/kernel = [    2.1] mlx5_core 0000:1b:00.0: 63.012 Gb/s available PCIe bandwidth, limited by {limit} link at {at} \
                 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
            )
        };
        let found = healthy(&[&line("8.0 GT/s PCIe x8", "0000:16:01.0")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Warning);
        assert!(
            found.what.contains("limited to PCIe 3.0 x8 at 0000:16:01.0 (PCIe 5.0 x16 would be possible)"),
            "{}",
            found.what
        );
        let now = healthy(&[&line("8.0 GT/s PCIe x8", "0000:18:02.0")]).finding(&CHECKS[0]);
        assert_eq!(now.severity, Severity::Note, "{now:#?}");
        let both =
            healthy(&[&line("32.0 GT/s PCIe x8", "0000:18:02.0"), &format!("{NIC0}/current_link_width = 8")]);
        assert!(findings(both.run(&CHECKS[0])).is_empty());
        let gpu = line("2.5 GT/s PCIe x16", "0000:18:00.0").replace("0000:1b:00.0", "0000:19:00.0");
        assert!(is_fine(&healthy(&[&gpu]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }
}
