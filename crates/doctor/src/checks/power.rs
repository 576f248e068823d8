//! Power supplies, fans and temperatures of the chassis, from the event log of its management controller (IPMI).
//!
//! An event that was asserted and not deasserted later still holds, as far as the log shows.

use std::collections::BTreeMap;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "chassis",
    finds: "Power supplies and fans that failed, and temperatures above their limit",
    reads: "`ipmitool sel elist`, as root",
    run: chassis,
}];

/// Lines of the log; controllers keep some thousands.
const EVENTS_MAX: usize = 65_536;
/// Events that are reported.
const SHOWN_MAX: usize = 12;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    PowerSupply,
    Fan,
    Temperature,
}

/// A line of the log: `1a | 11/15/2025 | 18:50:44 | Power Supply PS2 Status | Failure detected | Asserted`.
struct Event<'t> {
    sensor: &'t str,
    event: &'t str,
    is_asserted: bool,
}

impl<'t> Event<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let at = fields.iter().position(|field| *field == "Asserted" || *field == "Deasserted")?;
        let sensor = fields.get(at.checked_sub(2)?)?;
        Some(Self { sensor, event: fields[at - 1], is_asserted: fields[at] == "Asserted" })
    }

    /// What is wrong, if the event is a fault.
    fn fault(&self) -> Option<(Subject, Severity)> {
        let (sensor, event) = (self.sensor.to_ascii_lowercase(), self.event.to_ascii_lowercase());
        let has = |words: &[&str]| words.iter().any(|word| event.contains(word));
        let is_redundancy = has(&["redundancy lost", "redundancy degraded", "non-redundant"]);
        if sensor.contains("power supply") || sensor.starts_with("psu") || sensor.contains("power unit") {
            return match () {
                () if has(&[
                    "failure detected",
                    "ac lost",
                    "input lost",
                    "predictive failure",
                    "configuration error",
                    "power off",
                ]) && !event.contains("power off") =>
                {
                    Some((Subject::PowerSupply, Severity::Critical))
                }
                () if is_redundancy => Some((Subject::PowerSupply, Severity::Warning)),
                () => None,
            };
        }
        let is_low = has(&[
            "lower critical",
            "lower non-recoverable",
            "transition to critical",
            "transition to non-recoverable",
            "device absent",
        ]);
        if sensor.contains("fan") || sensor.contains("cooling") {
            return (is_low || is_redundancy).then_some((Subject::Fan, Severity::Warning));
        }
        let is_hot = has(&[
            "upper critical",
            "upper non-recoverable",
            "thermal trip",
            "transition to critical",
            "transition to non-recoverable",
        ]);
        ((sensor.contains("temp") || event.contains("thermal trip")) && is_hot)
            .then_some((Subject::Temperature, Severity::Warning))
    }
}

fn chassis(machine: &Machine<'_>) -> Vec<Outcome> {
    let log = match reads::output(machine.tree, "run/ipmitool sel elist") {
        Ok(log) => log,
        // A virtual machine has no controller; without GPUs the chassis hardly matters.
        Err(_) if machine.fabric.gpus().is_empty() || reads::is_virtual_machine(machine.tree) => {
            return Vec::new();
        }
        Err(reason) => {
            return vec![Outcome::Unknown {
                what: "power supplies and fans".to_owned(),
                needs: format!("root and ipmitool: `sudo ipmitool sel elist` ({reason})"),
            }];
        }
    };
    let mut held: BTreeMap<(&str, &str), (&str, Event<'_>)> = BTreeMap::new();
    let mut over: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.lines().take(EVENTS_MAX) {
        let Some(event) = Event::parse(line) else { continue };
        if event.fault().is_none() {
            continue;
        }
        let key = (event.sensor, event.event);
        if event.is_asserted {
            held.insert(key, (line, event));
        } else if held.remove(&key).is_some() {
            *over.entry(key.0).or_default() += 1;
        }
    }
    if held.is_empty() && over.is_empty() {
        return vec![Outcome::Fine(
            "the management controller's log has no fault of power supplies, fans or temperatures".to_owned(),
        )];
    }
    let mut outcomes: Vec<Outcome> = held
        .values()
        .take(SHOWN_MAX)
        .filter_map(|(line, event)| Some(Outcome::Found(fault(line, event)?)))
        .collect();
    if !over.is_empty() {
        let names: Vec<String> =
            over.iter().map(|(sensor, times)| format!("{} ({times})", reads::shown(sensor))).collect();
        outcomes.push(Outcome::Found(
            Finding::new("chassis", Severity::Note, format!("faults that are over: {}", reads::some_of(&names)))
                .shown_by("ipmitool sel elist", format!("{} of sensors asserted and deasserted", reads::count(over.values().sum(), "event")))
                .fixed_by("if they come back under load, look at power and airflow; clear the log when done: `sudo ipmitool sel clear`"),
        ));
    }
    outcomes
}

fn fault(line: &str, event: &Event<'_>) -> Option<Finding> {
    let (subject, severity) = event.fault()?;
    let what = format!("{}: {}", reads::shown(event.sensor), reads::shown(event.event));
    let finding = Finding::new("chassis", severity, what).shown_by("ipmitool sel elist", reads::shown(line));
    let finding = match subject {
        Subject::PowerSupply => finding
            .fixed_by("check the cord and the circuit of the power supply; reseat it, then replace it")
            .fixed_by("the supplies that are left have to carry the load: below it, GPUs brake (`nvidia-smi -q -d PERFORMANCE`, HW Power Brake Slowdown) or the host resets"),
        Subject::Fan => finding
            .fixed_by("replace the fan; clear its way of cables and dust")
            .fixed_by("watch the GPUs meanwhile: `nvidia-smi dmon -s pc`"),
        Subject::Temperature => finding
            .fixed_by("check fans, filters, blanking panels and the temperature of the room")
            .fixed_by("set the fan profile of the BMC for GPU load"),
    };
    Some(finding.fixed_by("clear the log when it is repaired: `sudo ipmitool sel clear`"))
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, findings, healthy, is_fine, is_unknown};
    use super::*;

    fn with(lines: &[&str]) -> Vec<Outcome> {
        healthy(&[&format!("run/ipmitool sel elist = {}", lines.join("\\n"))]).run(&CHECKS[0])
    }

    const LOST: &str =
        "   1 | 03/02/2026 | 07:11:09 | Power Supply PS2 Status | Power Supply AC lost | Asserted";

    #[test]
    fn faults_that_hold_are_found() {
        let found = findings(with(&[
            LOST,
            "   2 | 03/02/2026 | 07:11:12 | Fan FAN3 | Lower Critical going low  | Asserted | Reading 0 < Threshold 500 RPM",
        ]));
        let severities: Vec<_> = found.iter().map(|found| (found.severity, found.what.as_str())).collect();
        assert_eq!(
            severities,
            [
                (Severity::Warning, "Fan FAN3: Lower Critical going low"),
                (Severity::Critical, "Power Supply PS2 Status: Power Supply AC lost")
            ]
        );
        let hot = findings(with(&[
            "   3 | 03/02/2026 | 08:00:00 | Temperature Inlet Temp | Upper Critical going high | Asserted",
        ]));
        assert_eq!(hot.len(), 1);
    }

    #[test]
    fn faults_that_are_over_are_a_note() {
        let back = LOST.replace("   1 |", "   9 |").replace("Asserted", "Deasserted");
        let found = findings(with(&[LOST, &back]));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
        assert!(is_fine(&with(&[
            "   4 | 03/02/2026 | 09:00:00 | System Event | OEM System boot event | Asserted"
        ])));
    }

    #[test]
    fn without_a_log_it_is_unknown() {
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
        assert!(bare(&["sys/class/dmi/id/sys_vendor = QEMU"]).run(&CHECKS[0]).is_empty());
    }
}
