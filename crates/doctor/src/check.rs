//! Checks, and what they look at.

use weftlink_fabric::Fabric;
use weftlink_probe::Tree;

use crate::finding::{Outcome, Report};

/// What checks look at: a machine, live or recorded.
///
/// Everything that was read is a file of the tree. `sys/` and `proc/` are those of the kernel; `nvml/N/NAME` are values that the driver
/// reports of GPU `N`; `log/kernel` is the kernel's log; `run/COMMAND` is the output of a command.
pub struct Machine<'m> {
    /// What was read.
    pub tree: &'m dyn Tree,
    /// The fabric that was probed from it.
    pub fabric: &'m Fabric,
}

/// One check.
pub struct Check {
    /// Its name, as in findings: `nvlink-inactive`.
    pub id: &'static str,
    /// What it finds, as a noun phrase: `NVLinks that are inactive`.
    pub finds: &'static str,
    /// What it reads: files and commands.
    pub reads: &'static str,
    /// Looks at a machine. Nothing is returned where the check does not apply, such as NVLinks on a machine without GPUs.
    pub run: fn(&Machine<'_>) -> Vec<Outcome>,
}

/// Runs checks on a machine.
pub fn examine(machine: &Machine<'_>, checks: impl IntoIterator<Item = &'static Check>) -> Report {
    let mut report = Report::new(machine.fabric.name());
    for check in checks {
        report.add(check.id, (check.run)(machine));
    }
    report
}
