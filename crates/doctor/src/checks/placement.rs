//! A job whose hosts the scheduler scattered over more leaf switches than it needs.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::device::{DeviceKind, Tier};
use weftlink_fabric::format::network;
use weftlink_fabric::{Fabric, HostId};

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "placement",
    finds: "A job that is scattered over more switches than it needs",
    reads: "SLURM_JOB_NODELIST, SLURM_TOPOLOGY_ADDR, `scontrol show topology`",
    run: placement,
}];

fn placement(machine: &Machine<'_>) -> Vec<Outcome> {
    let variable = |name: &str| reads::variable(machine.tree, name);
    let list = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST"));
    let Some(hosts) = list.as_deref().and_then(hosts_of_list) else {
        return Vec::new();
    };
    if hosts.len() < 2 {
        return Vec::new();
    }
    // The names of the switches from the top to the leaf, then that of the host.
    let own = variable("SLURM_TOPOLOGY_ADDR").and_then(|path| {
        let mut parts: Vec<&str> = path.split('.').collect();
        parts.pop();
        Some(parts.last()?.to_string())
    });
    let topology = machine.tree.read("run/scontrol show topology");
    let Some(leaves) = topology.as_deref().and_then(leaves_of) else {
        let beside =
            own.map_or(String::new(), |leaf| format!(" (this host is below {})", reads::shown(&leaf)));
        return vec![Outcome::Unknown {
            what: format!(
                "over how many switches the {} hosts of the job are scattered{beside}",
                hosts.len()
            ),
            needs: "a topology in Slurm (topology.conf) and `scontrol show topology`".to_owned(),
        }];
    };
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    for host in &hosts {
        let below = leaves.iter().filter(|(_, members)| members.contains(host));
        // A host with several adapters may be below several leaves: rails do not scatter it.
        if let Some((leaf, _)) = below.min_by_key(|(leaf, _)| leaf.as_str()) {
            *used.entry(leaf.as_str()).or_default() += 1;
        }
    }
    if used.values().sum::<usize>() < hosts.len() {
        return vec![Outcome::Unknown {
            what: "below which switches some hosts of the job are".to_owned(),
            needs: "all hosts in Slurm's topology.conf".to_owned(),
        }];
    }
    let needed = leaves_needed(leaves.values().map(BTreeSet::len), hosts.len());
    let shares: Vec<String> = used
        .iter()
        .map(|(leaf, hosts)| format!("{}: {}", reads::shown(leaf), reads::count(*hosts, "host")))
        .collect();
    if used.len() <= needed {
        return vec![Outcome::Fine(format!(
            "the {} hosts of the job are below the fewest leaf switches, {} ({})",
            hosts.len(),
            used.len(),
            reads::some_of(&shares)
        ))];
    }
    let what = format!(
        "the {} hosts of the job are scattered over {} leaf switches; {needed} would be enough",
        hosts.len(),
        used.len()
    );
    vec![Outcome::Found(
        Finding::new("placement", Severity::Warning, what)
            .shown_by("scontrol show topology", reads::some_of(&shares))
            .shown_by(
                "/proc/self/environ",
                format!("SLURM_JOB_NODELIST={}", reads::shown(list.as_deref().unwrap_or_default())),
            )
            .fixed_by(format!(
                "ask for few switches and wait up to an hour for them: `sbatch --switches={needed}@60 ...`"
            ))
            .fixed_by(
                "give ranks numbers switch by switch: `srun --distribution=block`, or sort the host file",
            ),
    )]
}

/// The smallest number of leaves that could hold these hosts if no other job used them.
fn leaves_needed(sizes: impl Iterator<Item = usize>, hosts: usize) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let sums = sizes.iter().scan(0_usize, |held, size| {
        *held = held.saturating_add(*size);
        Some(*held)
    });
    1 + sums.take_while(|held| *held < hosts).count().min(sizes.len().saturating_sub(1))
}

/// The hosts of a list such as `node[1-3,7]`, which the reader of Slurm's files expands.
fn hosts_of_list(list: &str) -> Option<BTreeSet<String>> {
    if list.contains(|c: char| c.is_whitespace() || c == '#' || c == '=') {
        return None;
    }
    let fabric = read(&format!("SwitchName=job Nodes={list}\n"))?;
    Some(fabric.hosts().iter().map(|host| host.name.clone()).collect())
}

/// The hosts below each leaf of a topology.
fn leaves_of(topology: &str) -> Option<BTreeMap<String, BTreeSet<String>>> {
    // `scontrol show topology` repeats all hosts below each upper switch; the file that Slurm reads names only those directly below one.
    let lines = topology.lines().filter_map(|line| {
        let is_upper = line.split_whitespace().any(|word| word.starts_with("Level=") && word != "Level=0");
        let wanted = |word: &&str| word.starts_with("SwitchName=") || word.starts_with("Nodes=");
        (!is_upper && line.contains("SwitchName="))
            .then(|| line.split_whitespace().filter(wanted).collect::<Vec<_>>().join(" "))
    });
    let fabric = read(&lines.collect::<Vec<_>>().join("\n"))?;
    let mut leaves: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for leaf in fabric.devices_where(|kind| matches!(kind, DeviceKind::NetSwitch(Tier::Leaf))) {
        let below = fabric.links_from(leaf).iter().filter_map(|link| fabric.device(link.target).host);
        let name = |host: HostId| fabric.hosts()[host.index()].name.clone();
        let members: BTreeSet<String> = below.map(name).collect();
        if !members.is_empty() {
            leaves.insert(fabric.device_name(leaf), members);
        }
    }
    (!leaves.is_empty()).then_some(leaves)
}

fn read(text: &str) -> Option<Fabric> {
    network::read(text.as_bytes())?.ok()?.bare("slurm").ok()
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{Recorded, healthy, is_fine, is_unknown};
    use super::*;

    const TOPOLOGY: &str = "run/scontrol show topology = SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\\n\
                            SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=n[9-12]\\nSwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-12] Switches=leaf[1-3]";

    fn job(nodes: &str, more: &[&str]) -> Recorded {
        let environ =
            format!("proc/self/environ = SLURM_JOB_NODELIST={nodes}\\nSLURM_TOPOLOGY_ADDR=spine.leaf2.n5");
        healthy(&[&[environ.as_str()], more].concat())
    }

    #[test]
    fn scattered_jobs_are_found() {
        let found = job("n[1,5,9]", &[TOPOLOGY]).finding(&CHECKS[0]);
        assert_eq!(
            found.what,
            "the 3 hosts of the job are scattered over 3 leaf switches; 1 would be enough"
        );
        assert!(found.fixes[0].contains("--switches=1@60"));
        assert!(is_fine(&job("n[1-4]", &[TOPOLOGY]).run(&CHECKS[0])));
        assert!(is_fine(&job("n[1-6]", &[TOPOLOGY]).run(&CHECKS[0])));
    }

    #[test]
    fn without_a_topology_it_is_unknown() {
        let outcomes = job("n[1,5,9]", &[]).run(&CHECKS[0]);
        assert!(is_unknown(&outcomes) && format!("{outcomes:?}").contains("below leaf2"));
        assert!(is_unknown(&job("n[1,77]", &[TOPOLOGY]).run(&CHECKS[0])));
        assert!(job("n1", &[]).run(&CHECKS[0]).is_empty());
        assert!(healthy(&[]).run(&CHECKS[0]).is_empty(), "no job");
    }

    #[test]
    fn the_fewest_leaves() {
        assert_eq!(
            [1, 4, 5, 9, 99].map(|hosts| leaves_needed([4, 1, 4].into_iter(), hosts)),
            [1, 1, 2, 3, 3]
        );
    }
}
