//! The cores of the machine, and their distribution over ranks.
//!
//! A core is a physical core with all its hardware threads. Ranks get whole cores, so that no two ranks share one, and if
//! possible cores of one NUMA node, so that their memory is local.

use crate::tree::Tree;

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";
/// The kernel's limits.
const NODES_MAX: usize = 1024;
const CPUS_MAX: usize = 8192;

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node; 0 if unknown.
    pub numa: usize,
    /// The numbers of its allowed hardware threads, ascending.
    pub cpus: Vec<usize>,
}

/// What ranks are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindTo {
    /// Each rank to its own cores.
    Core,
    /// Each rank to a NUMA node, which several may share.
    Numa,
}

/// The cores of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreSet {
    /// The hardware threads, ascending.
    pub cpus: Vec<usize>,
    /// The number of cores.
    pub cores: usize,
    /// The NUMA nodes, ascending.
    pub numa: Vec<usize>,
}

/// The cores of the `allowed` hardware threads, sorted by NUMA node. A thread that the tree does not describe is a core
/// on node 0.
pub fn cores(tree: &dyn Tree, allowed: &[usize]) -> Vec<Core> {
    let mut numa_of = vec![0; allowed.iter().max().map_or(0, |last| last + 1)];
    for name in tree.list(NODES).iter().take(NODES_MAX) {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        let list = tree.read(&format!("{NODES}/{name}/cpulist")).unwrap_or_default();
        for cpu in cpu_list(&list).unwrap_or_default() {
            if let Some(place) = numa_of.get_mut(cpu) {
                *place = node;
            }
        }
    }
    let mut cores: Vec<Core> = Vec::new();
    for &cpu in allowed.iter().take(CPUS_MAX) {
        if cores.iter().any(|core| core.cpus.contains(&cpu)) {
            continue;
        }
        let siblings = tree.read(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
        let mut cpus = siblings.and_then(|list| cpu_list(&list)).unwrap_or_default();
        cpus.push(cpu);
        cpus.retain(|cpu| allowed.contains(cpu));
        cpus.sort_unstable();
        cpus.dedup();
        cores.push(Core { numa: numa_of[cpu], cpus });
    }
    cores.sort_by_key(|core| (core.numa, core.cpus[0]));
    cores
}

/// Divides the cores among ranks. None if there are fewer cores than ranks, because binding does not help then.
pub fn divide(cores: &[Core], ranks: usize, bind_to: BindTo) -> Option<Vec<CoreSet>> {
    if ranks == 0 || ranks > cores.len() {
        return None;
    }
    let nodes: Vec<&[Core]> = cores.chunk_by(|one, next| one.numa == next.numa).collect();
    if ranks <= nodes.len() {
        // Each rank gets whole nodes; nodes with adjacent numbers are usually near each other.
        let part = |rank: usize| nodes[nodes.len() * rank / ranks..nodes.len() * (rank + 1) / ranks].concat();
        return Some((0..ranks).map(|rank| core_set(&part(rank))).collect());
    }
    let mut sets = Vec::with_capacity(ranks);
    for (node, count) in nodes.iter().zip(apportion(&nodes, ranks, cores.len())) {
        for rank in 0..count {
            let own = &node[node.len() * rank / count..node.len() * (rank + 1) / count];
            sets.push(core_set(if bind_to == BindTo::Core { own } else { node }));
        }
    }
    Some(sets)
}

/// The number of ranks on each node: proportional to its cores, by largest remainders; ties go to the first node.
fn apportion(nodes: &[&[Core]], ranks: usize, cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = nodes.iter().map(|node| node.len() * ranks / cores).collect();
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&node| std::cmp::Reverse(nodes[node].len() * ranks % cores));
    let left = ranks - counts.iter().sum::<usize>();
    order.iter().take(left).for_each(|&node| counts[node] += 1);
    counts
}

fn core_set(cores: &[Core]) -> CoreSet {
    let mut cpus: Vec<usize> = cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
    cpus.sort_unstable();
    let mut numa: Vec<usize> = cores.iter().map(|core| core.numa).collect();
    numa.dedup();
    CoreSet { cpus, cores: cores.len(), numa }
}

/// Parses a list in the kernel's format: `0-3,8`.
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        if to >= CPUS_MAX {
            return None;
        }
        all.extend(from..=to);
    }
    (all.len() <= CPUS_MAX).then_some(all)
}

/// Formats a list in the kernel's format: `0-3,8`.
pub fn cpu_ranges(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [one] => one.to_string(),
        [] => String::new(),
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recording;

    /// Two nodes of four cores with two threads each: thread i and i + 8 share a core.
    fn two_nodes() -> Recording {
        let mut text = "# weft recording 1\n".to_owned();
        text += "sys/devices/system/node/node0/cpulist = 0-3,8-11\nsys/devices/system/node/node1/cpulist = 4-7,12-15\n";
        for cpu in 0..16 {
            let (one, two) = (cpu % 8, cpu % 8 + 8);
            text += &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list = {one},{two}\n");
        }
        text.parse().unwrap()
    }

    fn shares(allowed: &[usize], ranks: usize, bind_to: BindTo) -> Vec<String> {
        let shares = divide(&cores(&two_nodes(), allowed), ranks, bind_to).unwrap();
        shares
            .iter()
            .map(|share| format!("{} @{}", cpu_ranges(&share.cpus), cpu_ranges(&share.numa)))
            .collect()
    }

    const ALL: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn ranks_get_whole_cores_of_one_node() {
        assert_eq!(shares(&ALL, 2, BindTo::Core), ["0-3,8-11 @0", "4-7,12-15 @1"]);
        assert_eq!(shares(&ALL, 1, BindTo::Core), ["0-15 @0-1"]);
        assert_eq!(
            shares(&ALL, 4, BindTo::Core),
            ["0-1,8-9 @0", "2-3,10-11 @0", "4-5,12-13 @1", "6-7,14-15 @1"]
        );
        assert_eq!(shares(&ALL, 3, BindTo::Core), ["0-1,8-9 @0", "2-3,10-11 @0", "4-7,12-15 @1"]);
        assert_eq!(shares(&ALL, 3, BindTo::Numa), ["0-3,8-11 @0", "0-3,8-11 @0", "4-7,12-15 @1"]);
        assert_eq!(shares(&ALL, 8, BindTo::Core)[7], "7,15 @1");
    }

    #[test]
    fn only_allowed_threads_are_divided() {
        assert_eq!(shares(&[0, 1, 9, 4], 3, BindTo::Core), ["0 @0", "1,9 @0", "4 @1"]);
        assert_eq!(divide(&cores(&two_nodes(), &[0, 8]), 2, BindTo::Core), None, "one core, two threads");
        assert_eq!(divide(&[], 1, BindTo::Core), None);
    }

    #[test]
    fn core_sets_are_disjoint_and_complete() {
        let cores = cores(&two_nodes(), &ALL);
        for ranks in 1..=8 {
            let shares = divide(&cores, ranks, BindTo::Core).unwrap();
            let mut all: Vec<usize> = shares.iter().flat_map(|share| share.cpus.clone()).collect();
            all.sort_unstable();
            assert_eq!((shares.len(), all.as_slice()), (ranks, &ALL[..]));
            assert!(shares.iter().all(|share| share.cores > 0));
        }
    }

    #[test]
    fn without_topology_every_thread_is_a_core() {
        let nothing: Recording = "# weft recording 1\n".parse().unwrap();
        let found = cores(&nothing, &[3, 5]);
        assert_eq!(found, [Core { numa: 0, cpus: vec![3] }, Core { numa: 0, cpus: vec![5] }]);
    }

    #[test]
    fn kernel_lists_round_trip() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list(""), Some(vec![]));
        assert_eq!(cpu_list("0-99999999999"), None);
        assert_eq!(cpu_list("x"), None);
        assert_eq!(cpu_ranges(&[0, 1, 2, 3, 8]), "0-3,8");
    }
}
