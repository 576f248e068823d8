//! What the NVIDIA driver wrote to the kernel log: Xid of GPUs and SXid of NVSwitches, since the machine started.

use std::collections::BTreeMap;

use weftlink_fabric::device::BusId;

use super::gpus::{gpus, nvswitches, on_bus, short};
use super::xids::{Remedy, by_number};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "xid",
        finds: "Errors of GPUs in the kernel log (Xid), with their meaning",
        reads: "the kernel log (`dmesg`)",
        run: xid,
    },
    Check {
        id: "sxid",
        finds: "Errors of NVSwitches in the kernel log (SXid)",
        reads: "the kernel log (`dmesg`)",
        run: sxid,
    },
];

/// Different errors that one report lists.
const ERRORS_MAX: usize = 64;

/// The same error of the same device.
struct Errors {
    count: usize,
    last: String,
}

type ByDevice = BTreeMap<(String, u32), Errors>;

fn xid(machine: &Machine<'_>) -> Vec<Outcome> {
    let known = gpus(machine);
    if known.is_empty() && on_bus(machine).is_empty() {
        return Vec::new();
    }
    let log = match log(machine) {
        Ok(log) => log,
        Err(needs) => return vec![Outcome::Unknown { what: "Xid errors of the GPUs".to_owned(), needs }],
    };
    let mut errors = ByDevice::new();
    for line in log.lines() {
        if let Some(found) = parse_xid(line) {
            count(&mut errors, found, line);
        }
    }
    if errors.is_empty() {
        return vec![Outcome::Fine("the kernel log has no Xid".to_owned())];
    }
    let name = |bus: &str| {
        let gpu = known.iter().find(|gpu| gpu.bus == bus);
        gpu.map_or_else(|| format!("the GPU at {bus}"), |gpu| gpu.name.clone())
    };
    let finding = |((bus, number), error): (&(String, u32), &Errors)| {
        let times = if error.count == 1 { String::new() } else { format!(", {} times", error.count) };
        let known = by_number(*number);
        let what = known.map_or("reported an error that this version does not know", |xid| xid.what);
        let severity = known.map_or(Severity::Warning, |xid| xid.severity);
        let what = format!("{} {what} (Xid {number}{times})", name(bus));
        let finding = Finding::new("xid", severity, what).shown_by("kernel log", short(&error.last));
        let remedy = known.map_or(Remedy::Service, |xid| xid.remedy);
        Outcome::Found(remedy.steps(bus).into_iter().fold(finding, Finding::fixed_by))
    };
    errors.iter().map(finding).collect()
}

/// The GPU and the number of `NVRM: Xid (PCI:0000:3b:00): 79, pid=...`. Newer drivers may write that a GPU has fallen off the bus without
/// the number, which is 79.
fn parse_xid(line: &str) -> Option<(String, u32)> {
    let rest = &line[line.find("NVRM: ")? + "NVRM: ".len()..];
    if let Some(rest) = rest.strip_prefix("Xid (") {
        let (device, rest) = rest.split_once("):")?;
        return Some((address(device)?, leading_number(rest)?));
    }
    if rest.contains("fallen off the bus") {
        return Some((rest.split_whitespace().find_map(address)?, 79));
    }
    None
}

fn sxid(machine: &Machine<'_>) -> Vec<Outcome> {
    if nvswitches(machine.fabric).1 == 0 {
        return Vec::new();
    }
    let log = match log(machine) {
        Ok(log) => log,
        Err(needs) => {
            return vec![Outcome::Unknown { what: "SXid errors of the NVSwitches".to_owned(), needs }];
        }
    };
    let (mut fatal, mut rest) = (ByDevice::new(), ByDevice::new());
    for line in log.lines() {
        // One error has several lines; those with registers do not tell how bad it is.
        if let Some((found, is_fatal)) = parse_sxid(line) {
            count(if is_fatal { &mut fatal } else { &mut rest }, found, line);
        }
    }
    let finding = |severity: Severity, bus: &str, number: u32, error: &Errors| {
        let kind =
            if severity == Severity::Critical { "a fatal error" } else { "an error that is not fatal" };
        let times = if error.count == 1 { String::new() } else { format!(", {} times", error.count) };
        let what = format!("the NVSwitch at {bus} reported {kind} (SXid {number}{times})");
        let finding = Finding::new("sxid", severity, what).shown_by("kernel log", short(&error.last));
        Outcome::Found(if severity == Severity::Critical {
            finding
                .fixed_by("End all jobs; the links of this switch carry nothing until the GPUs are reset.")
                .fixed_by("Stop the Fabric Manager, reset all GPUs (`nvidia-smi --gpu-reset`), start it again; otherwise restart the machine.")
                .fixed_by("Look up the number in NVIDIA's Fabric Manager user guide, and report it if it comes back.")
        } else {
            finding.fixed_by("Nothing at once: the switch went on. If the number of errors grows, look it up in NVIDIA's Fabric Manager user guide.")
        })
    };
    let mut outcomes: Vec<Outcome> =
        fatal.iter().map(|((bus, number), error)| finding(Severity::Critical, bus, *number, error)).collect();
    outcomes.extend(rest.iter().map(|((bus, number), error)| finding(Severity::Note, bus, *number, error)));
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine("the kernel log has no SXid".to_owned()));
    }
    outcomes
}

/// The switch, the number and whether it is fatal: `nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 ...`.
fn parse_sxid(line: &str) -> Option<((String, u32), bool)> {
    let rest = &line[line.find("SXid (")? + "SXid (".len()..];
    let (device, rest) = rest.split_once("):")?;
    let severity = rest.split_once(',')?.1.trim_start().to_ascii_lowercase();
    let is_fatal = severity.starts_with("fatal");
    let found = (address(device)?, leading_number(rest)?);
    (is_fatal || severity.starts_with("non-fatal")).then_some((found, is_fatal))
}

fn count(errors: &mut ByDevice, found: (String, u32), line: &str) {
    if errors.len() < ERRORS_MAX || errors.contains_key(&found) {
        let error = errors.entry(found).or_insert(Errors { count: 0, last: String::new() });
        error.count += 1;
        line.clone_into(&mut error.last);
    }
}

/// The kernel log, or what is needed to read it.
fn log(machine: &Machine<'_>) -> Result<String, String> {
    machine.tree.read("log/kernel").ok_or_else(|| match machine.tree.read("log/kernel.reason") {
        Some(reason) => format!("the kernel log; {}", short(&reason)),
        None => "the kernel log (`dmesg`)".to_owned(),
    })
}

/// `0000:3b:00.0` of `PCI:0000:3b:00`, `0000:3b:00.0:`; functions are 0 where the driver omits them.
fn address(text: &str) -> Option<String> {
    let text = text.strip_prefix("PCI:").unwrap_or(text).trim_matches([':', '.', ',', '(', ')']);
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let lengths: Vec<usize> = place.split(':').map(str::len).collect();
    let is_shaped = matches!(lengths[..], [4..=8, 2, 2]) && function.len() == 1;
    let bus: Option<BusId> = is_shaped.then(|| format!("{place}.{function}").parse().ok()).flatten();
    bus.map(|bus| bus.to_string())
}

fn leading_number(text: &str) -> Option<u32> {
    let text = text.trim_start();
    text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_drivers_are_parsed() {
        for (line, expected) in [
            (
                "[12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
                Some((0x3b, 79)),
            ),
            ("NVRM: Xid (0000:03:00): 14, Channel 00000001", Some((3, 14))),
            ("NVRM: Xid (PCI:0000:9b:00.0): 94, pid=1", Some((0x9b, 94))),
            ("NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.", Some((9, 79))),
            ("NVRM: Xid (PCI:junk): 79", None),
            ("NVRM: Xid (PCI:0000:3b:00): x", None),
            ("NVRM: loading", None),
            ("Xid (PCI:0000:3b:00): 79", None),
        ] {
            let expected = expected.map(|(bus, number)| (format!("0000:{bus:02x}:00.0"), number));
            assert_eq!(parse_xid(line), expected, "{line}");
        }
        let switch = |number, fatal| Some((("0000:04:00.0".to_owned(), number), fatal));
        for (line, expected) in [
            (
                "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion",
                switch(22013, false),
            ),
            (
                "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
                switch(20034, true),
            ),
            ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44", None),
            ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b}", None),
            ("SXid (", None),
        ] {
            assert_eq!(parse_sxid(line), expected, "{line}");
        }
    }
}
