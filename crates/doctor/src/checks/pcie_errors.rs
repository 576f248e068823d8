//! PCIe errors that the kernel counted (advanced error reporting).

use weftlink_fabric::device::DeviceKind;

use super::host_reads::{self as reads, Outcomes};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "pcie-errors",
    finds: "PCIe errors (AER)",
    reads: "`/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}`",
    run: errors,
}];

/// Correctable errors since boot from which a link is worth a repair: a healthy one has none or a handful.
const CORRECTABLE_MAX: u64 = 1000;

fn errors(machine: &Machine<'_>) -> Vec<Outcome> {
    let wanted = |kind: &DeviceKind| {
        reads::is_gpu(kind)
            || reads::is_nic(kind)
            || matches!(kind, DeviceKind::Storage | DeviceKind::PcieSwitch | DeviceKind::RootPort)
    };
    let mut outcomes = Outcomes::new();
    for function in reads::linked_functions(machine, wanted) {
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
    use super::super::host_tests::{bare, healthy, is_unknown};
    use super::*;

    const GPU0: &str = "sys/bus/pci/devices/0000:19:00.0";

    #[test]
    fn errors_are_judged_by_kind_and_number() {
        let correctable = |count: u32| {
            format!("{GPU0}/aer_dev_correctable = RxErr 0\\nBadTLP {count}\\nTOTAL_ERR_COR {count}")
        };
        let few = healthy(&[&correctable(7)]).finding(&CHECKS[0]);
        assert_eq!((few.severity, few.evidence[0].text.as_str()), (Severity::Note, "BadTLP 7"));
        assert_eq!(healthy(&[&correctable(5000)]).finding(&CHECKS[0]).severity, Severity::Warning);
        let fatal = format!("{GPU0}/aer_dev_fatal = Undefined 0\\nDLP 1\\nTOTAL_ERR_FATAL 1");
        let fatal = healthy(&[&fatal, &correctable(3)]).finding(&CHECKS[0]);
        assert_eq!((fatal.severity, fatal.evidence.len()), (Severity::Critical, 2));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }
}
