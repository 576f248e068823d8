//! Upper bounds on the speed of collectives: the data that must cross a cut, over the cut's rate.
//!
//! For any part P of p of the n ranks, every algorithm must move some of the S bytes out of P and some into it:
//!
//! | collective | out of P | into P |
//! |---|---|---|
//! | all-reduce | S | S |
//! | all-gather | S·p/n | S·(n-p)/n |
//! | reduce-scatter | S·(n-p)/n | S·p/n |
//! | all-to-all | S·p(n-p)/n | S·p(n-p)/n |
//! | broadcast, scatter from a root in P | S, S·(n-p)/n | |
//! | broadcast, scatter from elsewhere | | S, S·p/n |
//! | reduce, gather | as into and out of, the other way around | |
//! | scan | as a broadcast from the first and a reduce to the last | |
//! | messages, neighbours | those that leave | those that enter |
//!
//! S is the size that nccl-tests print: the whole of the larger buffer. Without switches that add, an all-reduce among k
//! parts sends 2(k-1)·S in total, which is the tighter bound for k > 2. With switches that reduce and multicast, every part
//! still sends S and receives S.
//!
//! The parts are single ranks, hosts, islands, hosts below the same leaf switches, halves; and on direct links every
//! subset (see [`Mesh`]). Rates are line rates, or measured ones, which no transfer exceeds. As elsewhere, GPUs with GPU links use these among themselves, and PCIe
//! only to leave their island.
//!
//! Deliberately absent: latency. A bound applies to very large calls, not to small ones.

use std::fmt;

use weftlink_fabric::Fabric;
use weftlink_fabric::rate::{Domain, OneWay, Rate};

use super::cuts;
use super::mesh::{EXACT_RANKS_MAX, Mesh};
use super::sites::Sites;
use super::switches;
use crate::Collective;

/// The upper bound on a collective's speed on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// A call of S bytes takes at least S over this.
    pub bytes_per_second: u64,
    /// The cut that gives the bound.
    pub cut: String,
}

/// The rates of a fabric's cuts.
#[derive(Clone, Debug)]
pub struct Bounds {
    ranks: u64,
    partitions: Vec<Partition>,
    meshes: Vec<MeshCuts>,
}

/// A partition of all ranks.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    /// The kind of part, in the plural: `GPUs`.
    pub(super) what: &'static str,
    pub(super) classes: Vec<Class>,
    /// The part of each rank, and the class of each part.
    pub(super) part_of: Vec<u32>,
    pub(super) class_of: Vec<u32>,
    /// Whether a switch between the parts may add for them.
    pub(super) switches_reduce: bool,
}

/// Parts with the same ranks and rates.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// The name of the first of them.
    pub(super) name: String,
    /// The number of parts.
    pub(super) parts: u64,
    /// The ranks of each part.
    pub(super) ranks: u64,
    /// The rate from each part to the others.
    pub(super) out: u64,
    /// The rate from the others into each part.
    pub(super) into: u64,
}

/// An island of direct links, to cut into subsets.
#[derive(Clone, Debug)]
pub(super) struct MeshCuts {
    pub(super) mesh: Mesh,
    /// Names of its GPUs.
    pub(super) names: Vec<String>,
    /// The ranks of each island with this wiring.
    pub(super) islands: Vec<Vec<u32>>,
    /// The rates out of and into each GPU beside its links.
    pub(super) beside: Vec<(u64, u64)>,
    /// Whether there are no other islands and no other links.
    pub(super) alone: bool,
}

impl Bounds {
    /// The bounds of a fabric, whose ranks are its GPUs in order.
    pub fn of(fabric: &Fabric) -> Self {
        Self::on(&Sites::of(fabric))
    }

    pub(super) fn on(sites: &Sites<'_>) -> Self {
        let islands = sites.islands();
        let network = switches::network_reduces(sites, &islands).is_ok();
        let multicast = switches::multicast(sites, &islands).is_ok();
        let (partitions, meshes) = cuts::cuts(sites, &islands, multicast, network);
        Self { ranks: sites.paths.fabric().gpus().len() as u64, partitions, meshes }
    }

    /// The bound for all algorithms, including those that let switches compute. None for a single rank, for a barrier, for a
    /// collective that is impossible on these ranks, and if ranks are not connected or rates are unknown.
    pub fn bound(&self, collective: &Collective) -> Option<Bound> {
        self.tightest(collective, true)
    }

    /// The bound for algorithms that reduce on the GPUs only.
    pub fn bound_without_switches(&self, collective: &Collective) -> Option<Bound> {
        self.tightest(collective, false)
    }

    fn tightest(&self, collective: &Collective, with_switches: bool) -> Option<Bound> {
        let last = u32::try_from(self.ranks.checked_sub(1)?).ok()?;
        if collective.misfit(last + 1).is_some() {
            return None;
        }
        // The first of equals: single ranks before islands before halves.
        let tightest = match collective {
            Collective::Barrier => return None,
            // The first rank's input must reach all ranks, and all inputs must reach the last rank.
            Collective::Scan | Collective::ExclusiveScan => {
                let ends = [Collective::Broadcast { root: 0 }, Collective::Reduce { root: last }];
                let bounds = ends.iter().filter_map(|end| self.tightest(end, with_switches));
                return bounds.min_by_key(|bound| bound.bytes_per_second);
            }
            Collective::SendReceive { .. } | Collective::Neighbours { .. } => {
                let (messages, blocks) = (collective.messages(last + 1), collective.blocks(last + 1));
                let blocks = blocks.0.max(blocks.1).into();
                let limits =
                    self.partitions.iter().flat_map(|partition| partition.crossed(&messages, blocks));
                limits.min_by_key(|limit| limit.bytes_per_second)?
            }
            _ => {
                let partitions = self.partitions.iter().flat_map(|partition| {
                    let together = partition.together(collective, with_switches);
                    partition.one_by_one(collective, self.ranks).into_iter().chain(together)
                });
                let meshes = self.meshes.iter().flat_map(|mesh| {
                    let together = mesh.together(collective);
                    mesh.subsets(collective, self.ranks).into_iter().chain(together)
                });
                partitions.chain(meshes).min_by_key(|limit| limit.bytes_per_second)?
            }
        };
        (tightest.bytes_per_second > 0)
            .then(|| Bound { bytes_per_second: tightest.bytes_per_second, cut: tightest.cut.to_string() })
    }
}

/// A bound before its cut is written as text.
struct Limit<'b> {
    bytes_per_second: u64,
    cut: Cut<'b>,
}

/// The origin of a bound.
enum Cut<'b> {
    Class(&'b Class, Way, u64),
    Together { what: &'static str, parts: u64, bytes_per_second: u64 },
    Subset(&'b MeshCuts, u32, Way, u64),
    Parts(&'b MeshCuts, Vec<u32>),
}

#[derive(Clone, Copy)]
enum Way {
    Out,
    Into,
}

impl Partition {
    /// The bounds of each part.
    fn one_by_one(&self, collective: &Collective, ranks: u64) -> Vec<Limit<'_>> {
        let root = collective.root().map(|root| self.class_of[self.part_of[root as usize] as usize]);
        let mut limits = Vec::new();
        for (number, class) in (0..).zip(&self.classes) {
            let here = root == Some(number);
            // A class of several parts has one with the root and others without.
            for has_root in [true, false] {
                let exists = if has_root { here } else { !here || class.parts > 1 };
                let needs = Needs::of(collective, class.ranks, ranks, has_root);
                let way = |way: Way, carries: u64, (part, whole): (u128, u128)| {
                    let bytes_per_second = over(carries, part, whole)?;
                    exists.then_some(Limit { bytes_per_second, cut: Cut::Class(class, way, carries) })
                };
                limits.extend(way(Way::Out, class.out, needs.out));
                limits.extend(way(Way::Into, class.into, needs.into));
            }
        }
        limits
    }

    /// The bounds from messages that cross the parts; the call's bytes are `blocks` of them.
    fn crossed(&self, messages: &[(u32, u32)], blocks: u128) -> Vec<Limit<'_>> {
        let mut crossing = vec![(0_u128, 0_u128); self.class_of.len()];
        for &(from, to) in messages {
            let (source, target) = (self.part_of[from as usize] as usize, self.part_of[to as usize] as usize);
            if source != target {
                crossing[source].0 += 1;
                crossing[target].1 += 1;
            }
        }
        let mut limits = Vec::new();
        for ((out, into), class) in crossing.into_iter().zip(&self.class_of) {
            let class = &self.classes[*class as usize];
            for (way, carries, crossing) in [(Way::Out, class.out, out), (Way::Into, class.into, into)] {
                let limit = over(carries, crossing, blocks);
                limits.extend(limit.map(|bytes_per_second| Limit {
                    bytes_per_second,
                    cut: Cut::Class(class, way, carries),
                }));
            }
        }
        limits
    }

    /// The bound of all parts together.
    fn together(&self, collective: &Collective, with_switches: bool) -> Option<Limit<'_>> {
        if *collective != Collective::AllReduce || (with_switches && self.switches_reduce) {
            return None;
        }
        let parts: u64 = self.classes.iter().map(|class| class.parts).sum();
        let sum = |of: fn(&Class) -> u64| {
            self.classes.iter().map(|class| u128::from(of(class)) * u128::from(class.parts)).sum::<u128>()
        };
        let carries = clamp(sum(|class| class.out).min(sum(|class| class.into)));
        let bytes_per_second = over(carries, 2 * (u128::from(parts).saturating_sub(1)), 1)?;
        Some(Limit {
            bytes_per_second,
            cut: Cut::Together { what: self.what, parts, bytes_per_second: carries },
        })
    }
}

impl MeshCuts {
    /// The bounds of the island's subsets.
    fn subsets(&self, collective: &Collective, ranks: u64) -> Vec<Limit<'_>> {
        let own = self.mesh.ranks();
        if !(2..=EXACT_RANKS_MAX).contains(&own) {
            return Vec::new();
        }
        let place =
            |root: u32| self.islands.iter().find_map(|island| island.iter().position(|rank| *rank == root));
        let root = collective.root().and_then(place);
        let all = (1_u32 << own) - 1;
        let mut limits: [Option<Limit<'_>>; 2] = [None, None];
        for set in 1..all {
            let [out, into] = self.carried(set, all);
            let here = root.is_some_and(|place| set >> place & 1 == 1);
            // Of several such islands, one has the root, and the same subset of another does not.
            for has_root in
                [true, false].into_iter().filter(|has_root| *has_root == here || self.islands.len() > 1)
            {
                let needs = Needs::of(collective, set.count_ones().into(), ranks, has_root && here);
                for (slot, way, carries, need) in
                    [(0, Way::Out, out, needs.out), (1, Way::Into, into, needs.into)]
                {
                    let Some(bytes_per_second) = over(carries, need.0, need.1) else { continue };
                    if limits[slot].as_ref().is_none_or(|known| bytes_per_second < known.bytes_per_second) {
                        limits[slot] =
                            Some(Limit { bytes_per_second, cut: Cut::Subset(self, set, way, carries) });
                    }
                }
            }
        }
        limits.into_iter().flatten().collect()
    }

    /// The rates out of and into a set of its GPUs.
    fn carried(&self, set: u32, all: u32) -> [u64; 2] {
        let beside = |of: fn(&(u64, u64)) -> u64| -> u64 {
            let members = self.beside.iter().enumerate().filter(|(rank, _)| set >> rank & 1 == 1);
            members.map(|(_, beside)| of(beside)).sum()
        };
        let wires = |set: u32| self.mesh.out_of(set).saturating_mul(self.mesh.wire_bytes_per_second());
        // Data that enters a set leaves the rest.
        let (out, into) = (wires(set), wires(all & !set));
        [out.saturating_add(beside(|(out, _)| *out)), into.saturating_add(beside(|(_, into)| *into))]
    }

    /// The bound of the tightest partition of the island, if it is alone.
    fn together(&self, collective: &Collective) -> Option<Limit<'_>> {
        if *collective != Collective::AllReduce || !self.alone {
            return None;
        }
        let (wires, parts) = self.mesh.all_reduce_bound()?;
        let bytes_per_second = wires.times(self.mesh.wire_bytes_per_second());
        Some(Limit { bytes_per_second, cut: Cut::Parts(self, parts) })
    }
}

/// The shares of the call's bytes that must leave a part and enter it.
struct Needs {
    out: (u128, u128),
    into: (u128, u128),
}

impl Needs {
    fn of(collective: &Collective, part: u64, ranks: u64, has_root: bool) -> Self {
        let (part, ranks) = (u128::from(part), u128::from(ranks));
        let rest = ranks.saturating_sub(part);
        let (nothing, all) = ((0, 1), (1, 1));
        let (own, others, crossing) = ((part, ranks), (rest, ranks), (part * rest, ranks));
        let (out, into) = match (collective, has_root) {
            (Collective::AllReduce, _) => (all, all),
            (Collective::AllGather, _) => (own, others),
            (Collective::ReduceScatter, _) => (others, own),
            (Collective::AllToAll, _) => (crossing, crossing),
            (Collective::Broadcast { .. }, true) | (Collective::Reduce { .. }, false) => (all, nothing),
            (Collective::Broadcast { .. }, false) | (Collective::Reduce { .. }, true) => (nothing, all),
            (Collective::Scatter { .. }, true) => (others, nothing),
            (Collective::Scatter { .. }, false) => (nothing, own),
            (Collective::Gather { .. }, true) => (nothing, others),
            (Collective::Gather { .. }, false) => (own, nothing),
            // Handled before, as other collectives or as messages.
            (Collective::Scan | Collective::ExclusiveScan | Collective::Barrier, _)
            | (Collective::SendReceive { .. } | Collective::Neighbours { .. }, _) => (nothing, nothing),
        };
        Self { out, into }
    }
}

/// The rate of a call if `part / whole` of its bytes cross a cut; none if nothing has to.
fn over(carries: u64, part: u128, whole: u128) -> Option<u64> {
    Some(clamp((u128::from(carries) * whole).checked_div(part)?))
}

fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// `out of host0: 400 GB/s`
impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |bytes: u64| Rate::<Domain, OneWay>::from_bytes(bytes).amount();
        let set = |mesh: &MeshCuts, set: u32| {
            let names = (0..).zip(&mesh.names).filter(|(rank, _)| set >> *rank & 1 == 1);
            names.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join("+")
        };
        match self {
            Cut::Class(class, way, carries) => write!(f, "{way} {}: {}", class.name, amount(*carries)),
            Cut::Together { what, parts, bytes_per_second } => {
                write!(f, "out of all {parts} {what} together: {}", amount(*bytes_per_second))
            }
            Cut::Subset(mesh, members, way, carries) => {
                write!(f, "{way} {}: {}", set(mesh, *members), amount(*carries))
            }
            Cut::Parts(mesh, parts) => {
                let names: Vec<String> = parts.iter().map(|part| set(mesh, *part)).collect();
                let wires: u64 = parts.iter().map(|part| mesh.mesh.out_of(*part)).sum();
                let carries = wires.saturating_mul(mesh.mesh.wire_bytes_per_second());
                write!(f, "between the {} parts {}: {}", parts.len(), names.join(" | "), amount(carries))
            }
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Out => "out of",
            Way::Into => "into",
        })
    }
}
