//! Settings of NCCL that take ways of communication from it. Variables that hide GPUs are a check of GPUs.

use weftlink_fabric::Fabric;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Cost, Finding, Outcome, Severity};
use crate::host_cost;

pub(super) static CHECKS: &[Check] = &[Check {
    id: "nccl-settings",
    finds: "Settings of NCCL that take a fast way from it",
    reads: "/proc/self/environ, /etc/nccl.conf",
    run: settings,
}];

const ENVIRON: &str = "proc/self/environ";

fn unread(what: &str) -> Vec<Outcome> {
    vec![Outcome::Unknown {
        what: what.to_owned(),
        needs: format!("/{ENVIRON} of the job: start weft doctor as the job is started"),
    }]
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
        let is_without_effect = match setting.effect {
            NO_PEERS => !machine.fabric.gpus().iter().any(|gpu| machine.fabric.has_peer_access(*gpu)),
            NO_RDMA => reads::rdma_ports(machine.tree).is_empty(),
            _ => false,
        };
        if is_without_effect {
            continue;
        }
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
    fn settings_that_slow_nccl_are_found() {
        let found = with("NCCL_P2P_DISABLE=1").finding(&CHECKS[0]);
        assert!(found.severity == Severity::Warning && found.what.contains("through host memory"));
        assert!(found.cost.is_some_and(|cost| cost.usual_gb_per_s > 5.0 * cost.now_gb_per_s));
        let sockets = with("NCCL_NET=Socket").finding(&CHECKS[0]);
        assert!(sockets.cost.is_some_and(|cost| cost.usual_gb_per_s > 2.0 * cost.now_gb_per_s));
        let file = healthy(&["etc/nccl.conf = # site\\nNCCL_IB_DISABLE = 1"]).finding(&CHECKS[0]);
        assert_eq!(
            (file.evidence[0].source.as_str(), file.evidence[0].text.as_str()),
            ("/etc/nccl.conf", "NCCL_IB_DISABLE=1")
        );
        let all = findings(with("NCCL_IB_DISABLE=1\\nNCCL_ALGO=Ring\\nNCCL_DEBUG=INFO").run(&CHECKS[0]));
        assert_eq!(
            all.iter().map(|found| found.severity).collect::<Vec<_>>(),
            [Severity::Warning, Severity::Note]
        );
        assert!(is_fine(&with("NCCL_P2P_DISABLE=0").run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }
}
