//! The NVLink fabric of NVSwitches: whether each GPU has joined it, and whether the Fabric Manager runs.

use super::gpus::{Value, Verdict, each, gpus, nvswitches, short};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "fabric-state",
        finds: "GPUs that have not joined the NVLink fabric",
        reads: "`nvidia-smi --query-gpu=fabric.state,fabric.status`",
        run: state,
    },
    Check {
        id: "fabric-manager",
        finds: "A Fabric Manager that does not run on a machine with NVSwitches",
        reads: "`systemctl is-active nvidia-fabricmanager`",
        run: manager,
    },
];

const START: &str = "Start the Fabric Manager: `systemctl start nvidia-fabricmanager`, then `nvidia-smi -q | grep -A 2 Fabric`.";

/// From Hopper on, a GPU joins the fabric when the Fabric Manager has set up the NVSwitches. Until then CUDA fails with error 802,
/// `system not yet initialized`.
fn state(machine: &Machine<'_>) -> Vec<Outcome> {
    if nvswitches(machine.fabric).0.is_empty() {
        return Vec::new();
    }
    each(machine, "the fabric state", "the GPU has joined the NVLink fabric", |gpu| {
        let state = match gpu.text("fabric_state") {
            Value::Is(state) => state,
            Value::Unsupported => return Verdict::Skip,
            Value::Unknown(needs) => return Verdict::Unknown(needs),
        };
        let status = match gpu.text("fabric_status") {
            Value::Is(status) => status,
            _ => "not reported".to_owned(),
        };
        let (severity, what) = match (state.as_str(), status.as_str()) {
            ("completed", "success" | "not reported") => return Verdict::Fine,
            ("in progress", _) => (Severity::Warning, "is still joining the NVLink fabric".to_owned()),
            ("not started", _) => {
                (Severity::Critical, "has not started to join the NVLink fabric".to_owned())
            }
            ("completed", error) => {
                (Severity::Critical, format!("failed to join the NVLink fabric: {}", short(error)))
            }
            (other, _) => (Severity::Warning, format!("is in the unknown fabric state `{}`", short(other))),
        };
        let finding = Finding::new(
            "fabric-state",
            severity,
            format!("{} {what}; CUDA may fail with error 802", gpu.name),
        );
        Verdict::found(
            finding
                .shown_by(format!("nvidia-smi, {} ({})", gpu.name, gpu.bus), format!("state {}, status {}", short(&state), short(&status)))
                .fixed_by(START)
                .fixed_by("If it runs, read its log: `less /var/log/fabricmanager.log`. Its version must be that of the driver.")
                .fixed_by("In a virtual machine, the hypervisor's Fabric Manager must have activated the partition."),
        )
    })
}

fn manager(machine: &Machine<'_>) -> Vec<Outcome> {
    let command = "systemctl is-active nvidia-fabricmanager";
    let (all, listed) = nvswitches(machine.fabric);
    if all.is_empty() {
        return Vec::new();
    }
    let active = machine.tree.read(&format!("run/{command}"));
    let state = active.as_deref().map(str::trim);
    if state == Some("active") {
        return vec![Outcome::Fine("the Fabric Manager is active".to_owned())];
    }
    // Without switches of its own, a virtual machine relies on the Fabric Manager of the hypervisor. A fabric that works needs no service
    // of this name, either: in a container it runs outside.
    let gpus = gpus(machine);
    let has_joined =
        |gpu: &super::gpus::Gpu<'_>| gpu.any::<String>("fabric_state").as_deref() == Some("completed");
    if !gpus.is_empty() && gpus.iter().all(has_joined) {
        return vec![Outcome::Fine(
            "all GPUs have joined the NVLink fabric, so a Fabric Manager has run".to_owned(),
        )];
    }
    match state {
        Some(state @ ("inactive" | "failed" | "deactivating" | "activating" | "unknown")) if listed > 0 => vec![Outcome::Found(
            Finding::new("fabric-manager", Severity::Critical, format!("the Fabric Manager is {state}; NVSwitches carry nothing without it"))
                .shown_by(format!("`{command}`"), state)
                .fixed_by("Install the package of the driver's version (`nvidia-fabricmanager-570` for driver 570).")
                .fixed_by("Enable it: `systemctl enable --now nvidia-fabricmanager`.")
                .fixed_by("If it fails, read why: `journalctl -u nvidia-fabricmanager`."),
        )],
        _ => {
            let reason = machine.tree.read(&format!("run/{command}.reason"));
            vec![Outcome::Unknown {
                what: "whether the Fabric Manager runs".to_owned(),
                needs: format!("`{command}` on the host{}", reason.map_or(String::new(), |reason| format!(" ({})", short(&reason)))),
            }]
        }
    }
}
