//! Whether the driver reports all GPUs of the machine.
//!
//! A container or a job may have been given some of them on purpose, and a hypervisor keeps those that it gives to guests from the
//! driver; both are no fault.

use super::gpus::{gpus, join, nvswitches, on_bus, short};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "gpus-missing",
    finds: "GPUs that the driver does not report, or that a baseboard lacks",
    reads: "NVML, /sys/bus/pci/devices",
    run: missing,
}];

fn missing(machine: &Machine<'_>) -> Vec<Outcome> {
    let (reported, all) = (gpus(machine), on_bus(machine));
    let on_board = all.len();
    let listed: Vec<(String, String)> = all
        .into_iter()
        .filter(|(_, bus)| driver(machine, bus).as_deref() != Some("vfio-pci"))
        .map(|(gpu, bus)| (machine.fabric.device_name(gpu), bus))
        .collect();
    if reported.is_empty() && listed.is_empty() {
        return Vec::new();
    }
    let is_lost = |bus: &String| !reported.iter().any(|gpu| gpu.bus == *bus);
    let lost: Vec<&(String, String)> = listed.iter().filter(|(_, bus)| is_lost(bus)).collect();
    let mut outcomes: Vec<Outcome> = missing_on_baseboard(machine, on_board).into_iter().collect();
    if !lost.is_empty() {
        outcomes.push(Outcome::Found(finding(machine, reported.len(), listed.len(), &lost)));
    }
    if outcomes.is_empty() {
        let what = format!("the driver reports {} GPUs, all that are on the PCI bus", reported.len());
        outcomes.push(Outcome::Fine(what));
    }
    outcomes
}

/// The driver that the kernel has bound to a function.
fn driver(machine: &Machine<'_>, bus: &str) -> Option<String> {
    let target = machine.tree.link(&format!("sys/bus/pci/devices/{bus}/driver"))?;
    Some(target.rsplit('/').next()?.to_owned())
}

fn finding(machine: &Machine<'_>, reported: usize, listed: usize, lost: &[&(String, String)]) -> Finding {
    let names: Vec<&str> = lost.iter().map(|(name, _)| name.as_str()).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let what = format!(
        "the driver reports {reported} of {listed} GPUs on the PCI bus: {} {verb} missing",
        join(&names)
    );
    let given = given(machine).filter(|_| reported > 0);
    let severity = if given.is_some() { Severity::Note } else { Severity::Critical };
    let reason = machine.tree.read("nvml/reason");
    let reason = reason.as_deref().unwrap_or("the driver lists other GPUs only");
    let mut finding = Finding::new("gpus-missing", severity, what).shown_by("NVML", short(reason));
    for (name, bus) in lost {
        let bound = driver(machine, bus)
            .map_or(String::new(), |driver| format!(", bound to the driver {}", short(&driver)));
        finding =
            finding.shown_by(format!("/sys/bus/pci/devices/{bus}"), format!("{name} is listed there{bound}"));
    }
    if let Some(given) = given {
        return finding
            .shown_by("/proc/self/environ", given)
            .fixed_by("Nothing is broken: this container or job was given some of the GPUs. Ask for more if it should have them.");
    }
    if lost.iter().any(|(_, bus)| driver(machine, bus).as_deref() == Some("nouveau")) {
        return finding
            .fixed_by("Keep nouveau away from the GPUs: `echo blacklist nouveau > /etc/modprobe.d/nouveau.conf`, rebuild the initramfs, restart.")
            .fixed_by("Then install NVIDIA's driver: `nvidia-smi` shows whether it works.");
    }
    if reported == 0 {
        return finding
            .fixed_by("Install the driver, or load it: `modprobe nvidia`, then `nvidia-smi`.")
            .fixed_by("In a container, start it with the NVIDIA runtime (`docker run --gpus all`).");
    }
    finding
        .fixed_by("Read the kernel log for these addresses: `dmesg | grep -i -e nvrm -e xid`.")
        .fixed_by("In a container or a job, ask for all GPUs; the scheduler may have given only some.")
        .fixed_by(
            "Restart the machine with a power cycle; if a GPU stays away, reseat it or have it replaced.",
        )
}

/// The variable by which a container or a job was given some GPUs.
fn given(machine: &Machine<'_>) -> Option<String> {
    let environ = machine.tree.read("proc/self/environ")?;
    let is_choice = |variable: &&str| match variable.split_once('=') {
        Some(("NVIDIA_VISIBLE_DEVICES", value)) => !matches!(value, "" | "all" | "none"),
        Some(("SLURM_JOB_GPUS" | "SLURM_STEP_GPUS" | "SLURM_GPUS_ON_NODE", value)) => !value.is_empty(),
        _ => false,
    };
    environ.split(['\0', '\n']).find(is_choice).map(short)
}

/// NVSwitches that the operating system sees belong to a whole baseboard, whose number of GPUs is known.
fn missing_on_baseboard(machine: &Machine<'_>, listed: usize) -> Option<Outcome> {
    let (_, switches) = nvswitches(machine.fabric);
    let expected = match switches {
        // HGX H100 and H200, HGX A100, two A100 boards or a DGX-2.
        4 | 6 => 8,
        12 => 16,
        _ => return None,
    };
    (0 < listed && listed < expected).then(|| {
        let what = format!("{listed} GPUs are on the PCI bus, but a baseboard with {switches} NVSwitches has {expected}");
        Outcome::Found(
            Finding::new("gpus-missing", Severity::Critical, what)
                .shown_by("/sys/bus/pci/devices", format!("{listed} GPUs, {switches} NVSwitches"))
                .fixed_by("List the functions with `lspci -d 10de:`; a GPU that failed at boot is in no list.")
                .fixed_by("Power-cycle the machine (a restart does not remove power), then have the missing module replaced."),
        )
    })
}
