//! Which built-in plan a call runs, and where it comes from.
//!
//! Every rank must choose alike, so the choice depends only on what all ranks share: the collective, the number of ranks,
//! the bytes of a block, how buffers are passed, and whether all of them are symmetric (which ranks find out from each
//! other's headers where it matters). The table of breakpoints is rank 0's.

pub(crate) mod tuning;

use std::sync::{Arc, Mutex, PoisonError};

use weftlink_plan::Algorithm::{
    Chain, Exchange, ExchangeLl, Linear, OneShot, Pairwise, Pull, Staged, TwoShot,
};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, Verified, verify};

use crate::Error;
use crate::layout::PACKET_BYTES;

/// What kind of memory a call's buffers are, for all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Memory {
    /// Peers see what is sent to them or staged.
    Ordinary,
    /// The kernel reads it for peers.
    Readable,
    /// Peers have mapped it.
    Symmetric,
}

/// An algorithm, as it is told in tables: `ring`, or `linear:ll` for messages whose payload rides with its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    pub(crate) packets: bool,
}

/// Which choice is best up to how many bytes of a block, by collective and memory.
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
    pub(crate) commutes: bool,
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

/// Divided by the square of the ranks: up to there sending everything to everyone is faster.
const EXCHANGE_BYTES_MAX: usize = 1 << 20;
/// From here on a system call that reads a peer's memory is worth its price.
const READ_BYTES_MIN: usize = 16 << 10;
/// Up to so many ranks a root deals with each by itself.
const FEW_RANKS: usize = 4;
const ANY: usize = usize::MAX;

impl Table {
    /// What is best for so many ranks, as far as it is known: where exchange ends was measured
    /// (`bench/runs/2026-11-15-thresholds-16-core-vm`); the other breakpoints were set by single runs with 2 ranks, and
    /// `weft bench --tune` finds a machine's own.
    pub(crate) fn measured(ranks: usize) -> Self {
        let of = Choice::of;
        let few = |algorithm: Algorithm| (PACKET_BYTES, Choice::packets(algorithm));
        let exchange_max = EXCHANGE_BYTES_MAX / ranks.max(1).pow(2);
        let mut rows: [[Vec<_>; 3]; Collective::NAMES.len()] = Default::default();
        for memory in [Memory::Ordinary, Memory::Readable, Memory::Symmetric] {
            // What is left to do when messages get long: through staging memory, by reading, or in place.
            let long = |staged: Algorithm, read: Algorithm, mapped: Algorithm| match memory {
                Memory::Ordinary => vec![(ANY, of(staged))],
                Memory::Readable => vec![(READ_BYTES_MIN, of(staged)), (ANY, of(read))],
                Memory::Symmetric => vec![(ANY, of(mapped))],
            };
            let all_reduce = match memory {
                Memory::Symmetric => vec![(ANY, of(TwoShot))],
                _ => [vec![(exchange_max, of(Exchange))], long(Staged, Pull, TwoShot)].concat(),
            };
            // Messages of a root to few ranks, or of few ranks to it, need nobody to wait for anybody.
            let rooted = |algorithm: Algorithm, long: Vec<(usize, Choice)>| {
                let sent = (ranks <= FEW_RANKS).then_some((READ_BYTES_MIN, of(algorithm)));
                [few(algorithm)].into_iter().chain(sent).chain(long).collect::<Vec<_>>()
            };
            let by_kind = [
                [vec![(PACKET_BYTES, of(ExchangeLl))], all_reduce].concat(),
                rooted(Linear, long(Staged, Staged, TwoShot)),
                rooted(Linear, long(Staged, OneShot, OneShot)),
                [vec![(PACKET_BYTES, of(ExchangeLl))], long(Staged, OneShot, OneShot)].concat(),
                [vec![(PACKET_BYTES, of(ExchangeLl))], long(Staged, OneShot, OneShot)].concat(),
                [vec![few(Pairwise)], long(Staged, OneShot, OneShot)].concat(),
                rooted(Linear, long(Staged, OneShot, OneShot)),
                rooted(Linear, long(Staged, OneShot, OneShot)),
                vec![few(Chain), (ANY, of(Chain))],
                vec![few(Chain), (ANY, of(Chain))],
                vec![few(Linear), (ANY, of(Linear))],
                vec![few(Linear), (ANY, of(Linear))],
                vec![(ANY, of(OneShot))],
            ];
            for (row, choices) in rows.iter_mut().zip(by_kind) {
                row[memory as usize] = choices;
            }
        }
        Self { rows }
    }

    /// The choice for a block of so many bytes.
    #[inline]
    pub(crate) fn choice(&self, collective: u8, memory: Memory, bytes: usize) -> Choice {
        let row = &self.rows[usize::from(collective)][memory as usize];
        let fits = |&&(up_to, _): &&(usize, Choice)| bytes <= up_to;
        row.iter().find(fits).or(row.last()).map_or(Choice::of(Algorithm::Linear), |&(_, choice)| choice)
    }
}

/// The plan for a call: the one that was chosen, or if that cannot do it, the first that can.
pub(crate) fn plan_for(key: &Key, ranks: u32) -> Result<Arc<Verified>, Error> {
    let others = Algorithm::ALL.into_iter().map(Choice::of);
    let mut reasons = Vec::new();
    for choice in std::iter::once(key.choice).chain(others) {
        match proved(choice, &key.collective, ranks).and_then(|plan| fits(key, plan)) {
            Ok(plan) => return Ok(plan),
            Err(why) => reasons.push(why.to_string()),
        }
    }
    let reason = reasons.first().map_or("", String::as_str);
    Err(Error::Misuse(format!("no plan for this {} of {ranks} ranks: {reason}", key.collective)))
}

/// The plan, if it is right for a call.
fn fits(key: &Key, plan: Arc<Verified>) -> Result<Arc<Verified>, Error> {
    let reachable = match key.memory {
        Memory::Ordinary => !plan.needs_windows(),
        Memory::Readable => !plan.writes_to_peers(),
        Memory::Symmetric => true,
    };
    let misuse = |what: &str| Err(Error::Misuse(format!("the plan {:?} {what}", plan.name)));
    let mut wanted =
        Aliasing::BOTH.into_iter().filter(|way| key.aliasing.is_none_or(|wanted| wanted == *way));
    if let Some(aliasing) = wanted.find(|way| !plan.aliasing.contains(way)) {
        misuse(&format!("is not proved for buffers that are passed {aliasing}"))
    } else if key.uneven && !plan.uneven {
        misuse("is not proved for blocks of different lengths")
    } else if key.uneven && plan.needs_windows() && !places_are_known(&key.collective) {
        misuse("reaches into blocks whose places only their rank knows")
    } else if !key.commutes && !plan.in_rank_order() {
        misuse("does not combine ranks in their order")
    } else if !reachable {
        misuse("reaches into peers' buffers")
    } else {
        Ok(plan)
    }
}

/// Whether ranks know where blocks of different lengths lie in the buffers that their peers let them reach.
fn places_are_known(collective: &Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter | Collective::Gather { .. })
}

/// A plan of a built-in algorithm, proved once in a process however many of its threads are ranks.
pub(crate) fn proved(choice: Choice, collective: &Collective, ranks: u32) -> Result<Arc<Verified>, Error> {
    type Proved = Vec<((Choice, Collective, u32), Result<Arc<Verified>, Error>)>;
    static PROVED: Mutex<Proved> = Mutex::new(Vec::new());
    let key = (choice, collective.clone(), ranks);
    let mut plans = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, plan)) = plans.iter().find(|(proved, _)| *proved == key) {
        return plan.clone();
    }
    let written = match choice.packets {
        true => choice.algorithm.flat_with(collective, ranks, 1, Protocol::Ll),
        false => choice.algorithm.flat(collective, ranks, 1),
    };
    let written = written.map_err(|why| Error::Misuse(why.to_string()));
    let plan = written.and_then(|plan| Ok(Arc::new(verify(plan.without_switches())?)));
    plans.push((key, plan.clone()));
    plan
}
