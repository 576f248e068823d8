//! Environment variables that hide GPUs from a job, or take ways of communication from NCCL.

use std::collections::BTreeSet;

use weftlink_fabric::Fabric;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Cost, Finding, Outcome, Severity};
use crate::host_cost;

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "visible-gpus",
        finds: "a CUDA_VISIBLE_DEVICES that hides GPUs",
        reads: "/proc/self/environ",
        run: visible,
    },
    Check {
        id: "nccl-settings",
        finds: "settings of NCCL that take a fast way from it",
        reads: "/proc/self/environ, /etc/nccl.conf",
        run: settings,
    },
];

const ENVIRON: &str = "proc/self/environ";

fn unread(what: &str) -> Vec<Outcome> {
    vec![Outcome::Unknown {
        what: what.to_owned(),
        needs: format!("/{ENVIRON} of the job: start weft doctor as the job is started"),
    }]
}

fn visible(machine: &Machine<'_>) -> Vec<Outcome> {
    let gpus = machine.fabric.gpus().len();
    if gpus == 0 {
        return Vec::new();
    }
    if machine.tree.read(ENVIRON).is_none() {
        return unread("which GPUs CUDA_VISIBLE_DEVICES shows");
    }
    let Some(value) = reads::variable(machine.tree, "CUDA_VISIBLE_DEVICES") else {
        return vec![Outcome::Fine(format!(
            "CUDA_VISIBLE_DEVICES is not set: programs see {}",
            reads::count(gpus, "GPU")
        ))];
    };
    let (shown, problem) = visible_gpus(&value, gpus);
    let line = format!("CUDA_VISIBLE_DEVICES={}", reads::shown(&value));
    let new = |severity, what: String| {
        Finding::new("visible-gpus", severity, what).shown_by(format!("/{ENVIRON}"), line.clone())
    };
    if let Some(problem) = problem {
        let what = format!("CUDA_VISIBLE_DEVICES shows {shown} of {gpus} GPUs: {problem}");
        return vec![Outcome::Found(
            new(Severity::Critical, what)
                .fixed_by("unset CUDA_VISIBLE_DEVICES, or list the numbers of `nvidia-smi -L` once each, without spaces")
                .fixed_by("export CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA counts as nvidia-smi does"),
        )];
    }
    if shown < gpus {
        // One per rank is how launchers and schedulers assign GPUs.
        let what =
            format!("CUDA_VISIBLE_DEVICES shows {shown} of {gpus} GPUs: a program sees the others as absent");
        return vec![Outcome::Found(
            new(Severity::Note, what).fixed_by("unset CUDA_VISIBLE_DEVICES, unless the scheduler set it"),
        )];
    }
    vec![Outcome::Fine(format!("CUDA_VISIBLE_DEVICES shows all {gpus} GPUs"))]
}

/// How many GPUs a list shows, and what ends it early: CUDA stops at the first entry that is not a GPU.
fn visible_gpus(value: &str, gpus: usize) -> (usize, Option<String>) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    if value.trim().is_empty() {
        return (0, Some("it is empty".to_owned()));
    }
    for entry in value.split(',').map(str::trim) {
        let is_uuid = entry.starts_with("GPU-") || entry.starts_with("MIG-");
        let is_number = entry.parse::<usize>().is_ok_and(|number| number < gpus);
        if !is_uuid && !is_number {
            return (
                seen.len(),
                Some(format!("CUDA stops at `{}`, which is not a GPU here", reads::shown(entry))),
            );
        }
        if !seen.insert(entry.to_owned()) {
            return (0, Some(format!("`{}` is listed twice, which CUDA refuses", reads::shown(entry))));
        }
    }
    (seen.len(), None)
}

/// A setting that takes a way from NCCL.
struct Setting {
    name: &'static str,
    /// The values with which it does.
    values: &'static [&'static str],
    effect: &'static str,
    cost: Option<fn(&Fabric) -> Option<Cost>>,
}

const fn setting(name: &'static str, values: &'static [&'static str], effect: &'static str) -> Setting {
    Setting { name, values, effect, cost: None }
}

const fn costly(setting: Setting, cost: fn(&Fabric) -> Option<Cost>) -> Setting {
    Setting { cost: Some(cost), ..setting }
}

const NO_PEERS: &str = "GPUs exchange data through host memory instead of NVLink or PCIe";
const NO_RDMA: &str = "hosts exchange data over sockets instead of RDMA";

static SETTINGS: [Setting; 9] = [
    costly(setting("NCCL_P2P_DISABLE", &["1"], NO_PEERS), host_cost::of_no_peer_access),
    costly(setting("NCCL_P2P_LEVEL", &["0", "LOC"], NO_PEERS), host_cost::of_no_peer_access),
    setting("NCCL_SHM_DISABLE", &["1"], "GPUs without peer access use the network within the host"),
    costly(setting("NCCL_IB_DISABLE", &["1"], NO_RDMA), host_cost::of_sockets),
    costly(setting("NCCL_NET", &["Socket", "socket"], NO_RDMA), host_cost::of_sockets),
    costly(
        setting(
            "NCCL_NET_GDR_LEVEL",
            &["0", "LOC"],
            "data between hosts is copied in host memory (no GPUDirect RDMA)",
        ),
        host_cost::of_no_gpudirect,
    ),
    setting("NCCL_NVLS_ENABLE", &["0"], "NVSwitches do not reduce (NVLS)"),
    setting("NCCL_CUMEM_ENABLE", &["0"], "NCCL cannot register buffers for NVLS or use multi-node NVLink"),
    setting("NCCL_DEBUG", &["TRACE"], "logging slows every call"),
];

fn settings(machine: &Machine<'_>) -> Vec<Outcome> {
    if machine.fabric.gpus().is_empty() {
        return Vec::new();
    }
    if machine.tree.read(ENVIRON).is_none() {
        return unread("the settings of NCCL");
    }
    let variables = reads::variables(machine.tree);
    let mut outcomes = Vec::new();
    for reads::Variable { name, value, source } in &variables {
        let Some(setting) =
            SETTINGS.iter().find(|setting| setting.name == name && setting.values.contains(&value.as_str()))
        else {
            continue;
        };
        outcomes.push(Outcome::Found(
            Finding::new("nccl-settings", Severity::Warning, format!("{name}={value}: {}", setting.effect))
                .shown_by(*source, format!("{name}={value}"))
                .costing(setting.cost.and_then(|cost| cost(machine.fabric)))
                .fixed_by(format!(
                    "unset {name}; look for it in /etc/nccl.conf, ~/.nccl.conf and the job's script"
                )),
        ));
    }
    // Algorithm and protocol are NCCL's to choose, for each size.
    let is_choice = |name: &str| name == "NCCL_ALGO" || name == "NCCL_PROTO";
    for variable in variables.iter().filter(|variable| is_choice(&variable.name)) {
        let line = format!("{}={}", variable.name, reads::shown(&variable.value));
        let what = format!("{line} is used for all sizes, also those for which another is faster");
        outcomes.push(Outcome::Found(
            Finding::new("nccl-settings", Severity::Note, what).shown_by(variable.source, line).fixed_by(
                format!("unset {}, and compare: `weft sim all-reduce --sizes 1KiB..1GiB`", variable.name),
            ),
        ));
    }
    if outcomes.is_empty() {
        let set = variables.iter().filter(|variable| variable.name.starts_with("NCCL_")).count();
        outcomes.push(Outcome::Fine(format!(
            "{} of NCCL, none takes a way from it",
            reads::count(set, "setting")
        )));
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, findings, healthy, is_fine, is_unknown};
    use super::*;

    fn with(variables: &str) -> super::super::host_tests::Recorded {
        healthy(&[&format!("proc/self/environ = HOME=/x\\n{variables}")])
    }

    #[test]
    fn hidden_gpus_are_found() {
        assert_eq!(with("CUDA_VISIBLE_DEVICES=0,1").finding(&CHECKS[0]).severity, Severity::Note);
        let stopped = with("CUDA_VISIBLE_DEVICES=0,1,8,2").finding(&CHECKS[0]);
        assert!(
            stopped.severity == Severity::Critical
                && stopped.what.contains("shows 2 of 8 GPUs: CUDA stops at `8`")
        );
        assert!(with("CUDA_VISIBLE_DEVICES=0,0").finding(&CHECKS[0]).what.contains("twice"));
        assert!(with("CUDA_VISIBLE_DEVICES=").finding(&CHECKS[0]).what.contains("empty"));
        assert!(is_fine(&with("CUDA_VISIBLE_DEVICES=7,6,5,4,3,2,1,0").run(&CHECKS[0])));
        assert!(is_fine(&with("").run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }

    #[test]
    fn settings_that_slow_nccl_are_found() {
        let found = with("NCCL_P2P_DISABLE=1").finding(&CHECKS[1]);
        assert!(found.severity == Severity::Warning && found.what.contains("through host memory"));
        assert!(found.cost.is_some_and(|cost| cost.usual_gb_per_s > 5.0 * cost.now_gb_per_s));
        let sockets = with("NCCL_NET=Socket").finding(&CHECKS[1]);
        assert!(sockets.cost.is_some_and(|cost| cost.usual_gb_per_s > 2.0 * cost.now_gb_per_s));
        let file = healthy(&["etc/nccl.conf = # site\\nNCCL_IB_DISABLE = 1"]).finding(&CHECKS[1]);
        assert_eq!(
            (file.evidence[0].source.as_str(), file.evidence[0].text.as_str()),
            ("/etc/nccl.conf", "NCCL_IB_DISABLE=1")
        );
        let all = findings(with("NCCL_IB_DISABLE=1\\nNCCL_ALGO=Ring\\nNCCL_DEBUG=INFO").run(&CHECKS[1]));
        assert_eq!(
            all.iter().map(|found| found.severity).collect::<Vec<_>>(),
            [Severity::Warning, Severity::Note]
        );
        assert!(is_fine(&with("NCCL_P2P_DISABLE=0").run(&CHECKS[1])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }
}
