//! Which built-in plan a call runs, and where it comes from.
//!
//! Every rank must choose alike, so the choice depends only on what all ranks share: the collective, the number of ranks,
//! the bytes of a block, how buffers are passed, and whether all of them are symmetric (which ranks find out from each
//! other's headers where it matters). All ranks use rank 0's table of breakpoints.

pub(crate) mod tuning;

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use serde::{Deserialize, Serialize};
use weftlink_bootstrap::generation;

use weftlink_plan::Algorithm::{Exchange, Hierarchical, OneShot, Ring, Staged, TwoShot};
pub(crate) use weftlink_plan::choose::measured::Memory;
use weftlink_plan::choose::measured::{self, ANY, measured};
use weftlink_plan::plan::{Input, Output, Protocol, Wait};
use weftlink_plan::{Algorithm, Aliasing, Collective, Layout, Order, Plan, Proof, Verified, verify};

use crate::Error;
use crate::transport::{Capabilities, Transport, to_buffers_in};

/// An algorithm as tables name it: `ring`, or `linear:ll` for messages that are packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    pub(crate) packets: bool,
}

/// The best choice up to a number of bytes of a block, by collective and memory.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: [[Vec<(usize, Choice)>; 3]; Collective::NAMES.len()],
}

/// What the best plan for a call depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) collective: Collective,
    pub(crate) memory: Memory,
    /// Nothing where a plan must be right both ways.
    pub(crate) aliasing: Option<Aliasing>,
    pub(crate) uneven: bool,
    /// The order in which ranks must be combined.
    pub(crate) order: Order,
    pub(crate) choice: Choice,
}

impl Choice {
    const fn of(algorithm: Algorithm) -> Self {
        Choice { algorithm, packets: false }
    }

    const fn packets(algorithm: Algorithm) -> Self {
        Choice { algorithm, packets: true }
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.algorithm, if self.packets { ":ll" } else { "" })
    }
}

impl Table {
    /// The best choices for a number of ranks, as `weft bench --tune` measured them with 2 ranks on 2 cores and with 2, 4, 8 and 16 on
    /// 16 (`bench/runs/2026-11-15-tuning`), without those that were hardly better or better on one machine only.
    pub(crate) fn measured(ranks: usize) -> Self {
        let mut rows: [[Vec<_>; 3]; Collective::NAMES.len()] = Default::default();
        for memory in Memory::ALL {
            for (row, chosen) in rows.iter_mut().zip(measured(ranks, memory)) {
                let choice = |(up_to, algorithm, packets)| (up_to, Choice { algorithm, packets });
                row[memory as usize] = chosen.into_iter().map(choice).collect();
            }
        }
        Self { rows }
    }

    /// The table in words, a line for each collective and kind of memory.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let line = |name: &str, memory: &str, row: &[(usize, Choice)]| {
            let choice = |&(up_to, choice): &(usize, Choice)| match up_to {
                ANY => choice.to_string(),
                _ => format!("{choice} up to {up_to} bytes"),
            };
            // Equal neighbours are one choice.
            let next = row.iter().skip(1).map(|(_, choice)| Some(choice)).chain([None]);
            let ends = row.iter().zip(next).filter(|((_, choice), next)| Some(choice) != *next);
            let choices: Vec<_> = ends.map(|(row, _)| choice(row)).collect();
            format!("{name} in {memory} memory: {}", choices.join(", then "))
        };
        Collective::NAMES.into_iter().zip(&self.rows).flat_map(move |(name, rows)| {
            let memories = Memory::ALL.into_iter().zip(rows);
            memories.map(move |(memory, row)| line(name, memory.name(), row))
        })
    }

    /// The choice for a block of this many bytes.
    #[inline]
    pub(crate) fn choice(&self, collective: u8, memory: Memory, bytes: usize) -> Choice {
        let row = &self.rows[usize::from(collective)][memory as usize];
        let fits = |&&(up_to, _): &&(usize, Choice)| bytes <= up_to;
        row.iter().find(fits).or(row.last()).map_or(Choice::of(Algorithm::Linear), |&(_, choice)| choice)
    }
}

/// The plan for a call: the chosen one, or if that cannot run it, the first that can, with packets for short messages. In symmetric
/// memory, plans that work in place come first.
pub(crate) fn plan_for(key: &Key, hosts: &[u32]) -> Result<(Choice, Arc<Verified>), Error> {
    let ranks = hosts.len();
    let packets = Algorithm::ALL.into_iter().filter(|_| key.choice.packets).map(Choice::packets);
    let direct = [TwoShot, OneShot].into_iter().filter(|_| key.memory == Memory::Symmetric);
    // Long blocks that no hierarchical plan takes, because hosts have different numbers of ranks, go in long messages.
    let long = [Ring, Exchange].into_iter().filter(|_| key.choice.algorithm == Hierarchical);
    let others = direct.chain([Staged]).chain(long).chain(Algorithm::ALL).map(Choice::of);
    let mut reasons = Vec::new();
    for choice in std::iter::once(key.choice).chain(packets).chain(others) {
        match proved(choice, &key.collective, hosts).and_then(|plan| fits(key, plan, hosts)) {
            // Plans without messages have no packets either.
            Ok(plan)
                if choice.packets
                    && !plan.channels.iter().any(|channel| channel.protocol == Protocol::Ll) => {}
            Ok(plan) => return Ok((choice, plan)),
            Err(why) => reasons.push(why.to_string()),
        }
    }
    let reason = reasons.first().map_or("", String::as_str);
    Err(Error::Misuse(format!("no plan for this {} of {ranks} ranks: {reason}", key.collective)))
}

/// The choice and proof of rank 0, as it sends them to the others: an algorithm by its index in [`Algorithm::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanOffer {
    algorithm: usize,
    packets: bool,
    proof: Proof,
}

impl PlanOffer {
    /// None if the algorithm is not in the list.
    pub(crate) fn of(choice: Choice, plan: &Verified) -> Option<PlanOffer> {
        let algorithm = Algorithm::ALL.into_iter().position(|it| it == choice.algorithm)?;
        Some(PlanOffer { algorithm, packets: choice.packets, proof: plan.proof() })
    }
}

/// The plan that another rank has chosen and proved: generated here, and compared with the fingerprint of the proof.
#[allow(unsafe_code, reason = "trusts another rank's proof of a plan")]
pub(crate) fn plan_of_offer(offer: PlanOffer, key: &Key, hosts: &[u32]) -> Result<Arc<Verified>, Error> {
    let PlanOffer { algorithm, packets, proof } = offer;
    let differs = || {
        let call = &key.collective;
        Error::Misuse(format!(
            "the plan that rank 0 has proved for this {call} is not the one this rank would run: they are different builds of \
             Weft; build all ranks from the same source"
        ))
    };
    let algorithm = *Algorithm::ALL.get(algorithm).ok_or_else(differs)?;
    let choice = Choice { algorithm, packets };
    // SAFETY: the plan was written here, by a built-in algorithm, and rank 0 of this job proved the one with this fingerprint, which
    // came over connections that only ranks of the job can open. They share memory with this rank, so they are trusted anyway.
    let trust = |plan| unsafe { proof.of(plan) };
    let plan = known(choice, &key.collective, hosts, |plan| trust(plan).ok_or_else(differs))?;
    // One that was proved here before may differ from rank 0's.
    if plan.proof() == proof { fits(key, plan, hosts) } else { Err(differs()) }
}

/// The plan, if it can run a call.
fn fits(key: &Key, plan: Arc<Verified>, hosts: &[u32]) -> Result<Arc<Verified>, Error> {
    let needed = needs_of_buffers(plan.needs_windows(), plan.writes_to_peers());
    let reachable = to_buffers_in(key.memory).cover(needed);
    let misuse = |what: &str| Err(Error::Misuse(format!("the plan {:?} {what}", plan.name)));
    let mut wanted =
        Aliasing::BOTH.into_iter().filter(|way| key.aliasing.is_none_or(|wanted| wanted == *way));
    if let Some(aliasing) = wanted.find(|way| !plan.aliasing.contains(way)) {
        misuse(&format!("is not proved for buffers that are passed {aliasing}"))
    } else if key.uneven && !plan.uneven {
        misuse("is not proved for blocks of different lengths")
    } else if key.uneven && plan.needs_windows() && !places_are_known(&key.collective) {
        misuse("reaches into blocks whose places only their rank knows")
    } else if plan.order() < key.order {
        misuse(out_of_order(key.order))
    } else if !reachable {
        misuse("reaches into peers' buffers")
    } else if !carries(&plan, hosts) {
        misuse("does more between hosts than send and receive")
    } else {
        Ok(plan)
    }
}

/// Whether the transports between ranks can do all that a plan does between them.
pub(crate) fn carries(plan: &Verified, hosts: &[u32]) -> bool {
    let between =
        |one: u32, other: u32| Transport::between(hosts[one as usize], hosts[other as usize]).capabilities();
    // To visit every step of many ranks takes long.
    let is_one_host = hosts.iter().all(|host| *host == hosts[0]);
    if is_one_host && plan.groups.is_empty() && (hosts.is_empty() || between(0, 0).cover(ALL_BUT_SWITCH)) {
        return true;
    }
    (0_u32..).zip(&plan.programs).all(|(rank, program)| {
        let can = |other: u32, needed: Capabilities| between(rank, other).cover(needed);
        let steps = program.lanes.iter().flat_map(|lane| lane.walk());
        steps.filter_map(|visit| visit.step.at(&visit.iterations)).all(|step| {
            let waits = step.waits.iter().all(|wait| match *wait {
                // A rank enters, and counts, in memory that others poll.
                Wait::Entered { rank } | Wait::Reached { rank, .. } => can(rank, PUT),
            });
            let inputs = step.inputs.iter().all(|input| match *input {
                Input::Peer(remote) => can(remote.rank, GET),
                Input::Received { from } => can(from, FIFO),
                Input::Local(_) => true,
                Input::Switch(_) => can(rank, SWITCH),
            });
            let outputs = step.outputs.iter().all(|output| match *output {
                Output::Peer(remote) => can(remote.rank, PUT),
                Output::Sent { to } => can(to, FIFO),
                Output::Local(_) => true,
                Output::Multicast(_) => can(rank, SWITCH),
            });
            waits && inputs && outputs
        })
    })
}

/// Whether a plan needs a switch that computes, and no transport of a host has one.
pub(crate) fn needs_switches(plan: &Verified) -> bool {
    !plan.groups.is_empty() && !Transport::between(0, 0).capabilities().cover(SWITCH)
}

/// How a plan accesses the buffers of peers: at all, and by writing.
pub(crate) fn needs_of_buffers(reaches: bool, writes: bool) -> Capabilities {
    Capabilities { get: reaches, put: writes, ..Capabilities::NONE }
}

const FIFO: Capabilities = Capabilities { fifo: true, ..Capabilities::NONE };
const PUT: Capabilities = Capabilities { put: true, ..Capabilities::NONE };
const GET: Capabilities = Capabilities { get: true, ..Capabilities::NONE };
const ALL_BUT_SWITCH: Capabilities = Capabilities { fifo: true, put: true, get: true, ..Capabilities::NONE };
const SWITCH: Capabilities = Capabilities { multicast: true, switch_reduce: true, ..Capabilities::NONE };

/// The first choice for ranks of several hosts, for a block of this many bytes.
pub(crate) fn across(collective: u8, bytes: usize) -> Choice {
    Choice::of(measured::across(Collective::NAMES[usize::from(collective)], bytes))
}

/// Why a plan does not keep the order of ranks.
pub(crate) fn out_of_order(needed: Order) -> &'static str {
    match needed {
        Order::Any | Order::Ranks => "does not combine ranks in their order",
        Order::LeftToRight => "does not combine ranks one after the other from the first",
        Order::Canonical => "does not combine ranks from the first and round where all plans do",
    }
}

/// Whether ranks know where blocks of different lengths lie in their peers' buffers.
fn places_are_known(collective: &Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter | Collective::Gather { .. })
}

/// The most proofs that a process keeps. Only groups of messages, which can have any shape, reach it; a dropped proof is
/// made again.
const PROVED_MAX: usize = 1 << 10;

/// Messages in flight between ranks of different hosts, unless a plan asks for more: a release takes longer than from core to core, and
/// meanwhile half a MiB is in flight.
const DEPTH_BETWEEN_HOSTS: u32 = 8;

/// A plan of a built-in algorithm, proved once per process even if several of its threads are ranks.
pub(crate) fn proved(choice: Choice, collective: &Collective, hosts: &[u32]) -> Result<Arc<Verified>, Error> {
    known(choice, collective, hosts, |plan| Ok(verify(plan)?))
}

/// The same, by a proof of the caller's.
fn known(
    choice: Choice,
    collective: &Collective,
    hosts: &[u32],
    prove: impl FnOnce(Plan) -> Result<Verified, Error>,
) -> Result<Arc<Verified>, Error> {
    let ranks = hosts.len() as u32;
    type Proved = Vec<((Choice, Collective, Vec<u32>), Arc<Verified>)>;
    static PROVED: Mutex<Proved> = Mutex::new(Vec::new());
    let spans_hosts = hosts.iter().any(|host| *host != hosts[0]);
    // Only one algorithm depends on the host of each rank; the others only on whether there are several.
    let (layout, known) = match choice.algorithm {
        Hierarchical => (by_host(hosts), hosts.to_vec()),
        _ => (Layout::flat(ranks, 1), vec![u32::from(spans_hosts); hosts.len()]),
    };
    let key = (choice, collective.clone(), known);
    // Before the lock is taken, so that forks count from then on.
    let is_forked = generation() > 0;
    let mut plans = match PROVED.try_lock() {
        // A thread of the parent process may have held the lock at the fork, and does not run here.
        Err(TryLockError::WouldBlock) if is_forked => None,
        Err(TryLockError::WouldBlock) => Some(PROVED.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(TryLockError::Poisoned(plans)) => Some(plans.into_inner()),
        Ok(plans) => Some(plans),
    };
    if let Some((_, plan)) = plans.iter().flat_map(|plans| plans.iter()).find(|(proved, _)| *proved == key) {
        return Ok(Arc::clone(plan));
    }
    let written = match choice.packets {
        true => choice.algorithm.flat_with(collective, ranks, 1, Protocol::Ll),
        false => choice.algorithm.recipe(collective, &layout).map(|recipe| match spans_hosts {
            true => recipe.with_depth_of(DEPTH_BETWEEN_HOSTS).plan(),
            false => recipe.plan(),
        }),
    };
    let written = written.map_err(|why| Error::Misuse(why.to_string()));
    // Failures are not kept: another proof may succeed.
    let plan = Arc::new(written.and_then(|plan| prove(plan.without_switches()))?);
    if let Some(plans) = &mut plans {
        if plans.len() == PROVED_MAX {
            drop(plans.remove(0));
        }
        plans.push((key, Arc::clone(&plan)));
    }
    Ok(plan)
}

/// Hosts as islands, whose ranks reach each other directly.
fn by_host(hosts: &[u32]) -> Layout {
    let mut islands: Vec<Vec<u32>> = Vec::new();
    for (rank, &host) in (0..).zip(hosts) {
        islands.resize(islands.len().max(host as usize + 1), Vec::new());
        islands[host as usize].push(rank);
    }
    let rings = vec![islands.concat()];
    Layout { islands, rings, ..Layout::flat(hosts.len() as u32, 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::Algorithm::{Chain, RecursiveDoubling, Tree};

    fn plan(
        collective: Collective,
        memory: Memory,
        order: Order,
        choice: Choice,
        ranks: u32,
    ) -> Arc<Verified> {
        let aliasing = Some(Aliasing::InPlace);
        plan_for(
            &Key { collective, memory, aliasing, uneven: false, order, choice },
            &vec![0; ranks as usize],
        )
        .unwrap()
        .1
    }

    #[test]
    fn every_table_has_a_plan_for_every_order() {
        let kinds = Collective::KINDS.into_iter().filter(Collective::reduces);
        for (collective, ranks) in kinds.flat_map(|it| [1, 2, 3, 6].map(|ranks| (it.clone(), ranks))) {
            let kind = weftlink_recorder::header::kind(&collective);
            let memories = [Memory::Ordinary, Memory::Readable, Memory::Symmetric];
            for (memory, bytes) in
                memories.into_iter().flat_map(|it| [8, 1000, 9000, ANY].map(|bytes| (it, bytes)))
            {
                let choice = Table::measured(ranks as usize).choice(kind, memory, bytes);
                for order in [Order::Any, Order::Ranks, Order::LeftToRight, Order::Canonical] {
                    let plan = plan(collective.clone(), memory, order, choice, ranks);
                    assert!(plan.order() >= order, "{collective} of {ranks}: {}", plan.name);
                }
            }
        }
    }

    #[test]
    fn unordered_plans_are_replaced_by_fast_ordered_ones() {
        let named = |collective, memory, choice, packets| {
            let plan = plan(collective, memory, Order::Canonical, choice, 6);
            let is_of_packets = plan.channels.iter().any(|channel| channel.protocol == Protocol::Ll);
            assert_eq!(is_of_packets, packets, "{}", plan.name);
            plan.name.clone()
        };
        let (all_reduce, reduce) = (Collective::AllReduce, Collective::Reduce { root: 0 });
        let (ordinary, symmetric) = (Memory::Ordinary, Memory::Symmetric);
        let ring = Choice::of(Ring);
        assert_eq!(named(all_reduce.clone(), symmetric, ring, false), "two-shot");
        assert_eq!(named(Collective::ReduceScatter, symmetric, ring, false), "one-shot");
        assert_eq!(named(all_reduce.clone(), ordinary, ring, false), "staged");
        assert_eq!(named(all_reduce, ordinary, Choice::packets(RecursiveDoubling), true), "exchange-ll");
        assert_eq!(named(reduce.clone(), ordinary, Choice::packets(Chain), true), "linear");
        assert_eq!(named(reduce, ordinary, Choice::of(Tree), false), "staged");
    }

    #[test]
    fn long_blocks_between_hosts_never_go_in_packets() {
        let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
        let orders = [Order::Any, Order::Ranks, Order::Canonical];
        for (collective, order) in
            collectives.into_iter().flat_map(|it| orders.map(|order| (it.clone(), order)))
        {
            let choice = across(weftlink_recorder::header::kind(&collective), ANY);
            for hosts in [&[0, 1][..], &[0, 0, 1], &[0, 0, 1, 1], &[0, 1, 1, 1]] {
                let (collective, aliasing) = (collective.clone(), Some(Aliasing::InPlace));
                let key =
                    Key { collective, memory: Memory::Ordinary, aliasing, uneven: false, order, choice };
                let plan = plan_for(&key, hosts).unwrap().1;
                let is_of_packets = plan.channels.iter().any(|channel| channel.protocol == Protocol::Ll);
                assert!(!is_of_packets, "{} on {hosts:?} in {order:?}: {}", key.collective, plan.name);
            }
        }
    }

    #[test]
    fn proofs_of_rank_0_apply_to_the_same_plan() {
        let hosts = [0; 5];
        let key = |order| {
            let (collective, aliasing) = (Collective::AllReduce, Some(Aliasing::InPlace));
            let choice = Choice::of(Ring);
            Key { collective, memory: Memory::Ordinary, aliasing, uneven: false, order, choice }
        };
        let (choice, plan) = plan_for(&key(Order::Any), &hosts).unwrap();
        let offer = PlanOffer::of(choice, &plan).unwrap();
        assert_eq!(plan_of_offer(offer, &key(Order::Any), &hosts).unwrap(), plan);
        // Another plan, and a fingerprint of none.
        let other =
            PlanOffer { algorithm: Algorithm::ALL.iter().position(|it| *it == Tree).unwrap(), ..offer };
        for offer in [other, PlanOffer { algorithm: usize::MAX, ..offer }] {
            let why = plan_of_offer(offer, &key(Order::Any), &hosts).unwrap_err().to_string();
            assert!(why.contains("rank 0") && why.contains("different builds"), "{why}");
        }
        // Rank 0's proof does not cover another call.
        assert!(plan_of_offer(offer, &key(Order::Canonical), &hosts).is_err());
    }
}
