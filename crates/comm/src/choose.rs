//! Which built-in plan a call runs, and where it comes from.
//!
//! Every rank must choose alike, so the choice depends only on what all ranks share: the collective, the number of ranks,
//! the bytes of a block, how buffers are passed, and whether all of them are symmetric (which ranks find out from each
//! other's headers where it matters). The table of breakpoints is rank 0's.

pub(crate) mod tuning;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, Layout, Verified, verify};

use crate::Error;
use crate::header::kind;
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
    rows: BTreeMap<(u8, Memory), Vec<(usize, Choice)>>,
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

/// Divided by the square of the ranks: up to there sending everything to everyone is faster than two trips around.
const EXCHANGE_BYTES_MAX: usize = 1 << 20;
const ANY: usize = usize::MAX;

impl Table {
    /// What was measured to be best for so many ranks (`bench/runs/2026-11-15-thresholds-16-core-vm`).
    pub(crate) fn measured(ranks: usize) -> Self {
        use Algorithm::{
            Chain, Dissemination, Exchange, ExchangeLl, Linear, OneShot, Pairwise, Ring, TwoShot,
        };
        let of = Choice::of;
        let few = |algorithm: Algorithm| (PACKET_BYTES, Choice::packets(algorithm));
        let exchange_max = EXCHANGE_BYTES_MAX / ranks.max(1).pow(2);
        let any = |choice: Choice| vec![(ANY, choice)];
        let root = 0;
        let [reduce, broadcast] = [Collective::Reduce { root }, Collective::Broadcast { root }];
        let [gather, scatter] = [Collective::Gather { root }, Collective::Scatter { root }];
        let mut rows = BTreeMap::new();
        let mut add = |collective: &Collective, memory, row: Vec<(usize, Choice)>| {
            rows.insert((kind(collective), memory), row);
        };
        for memory in [Memory::Ordinary, Memory::Readable, Memory::Symmetric] {
            let reaching = |then: Algorithm, otherwise: Algorithm| match memory {
                Memory::Symmetric => of(then),
                Memory::Ordinary | Memory::Readable => of(otherwise),
            };
            let packets = (PACKET_BYTES, of(ExchangeLl));
            let row = match memory {
                Memory::Symmetric => vec![packets, (ANY, of(TwoShot))],
                _ => vec![packets, (exchange_max, of(Exchange)), (ANY, of(Ring))],
            };
            add(&Collective::AllReduce, memory, row);
            add(&reduce, memory, vec![few(Linear), (ANY, reaching(TwoShot, Linear))]);
            add(&broadcast, memory, vec![few(Linear), (ANY, reaching(OneShot, Linear))]);
            add(&Collective::AllGather, memory, vec![few(Ring), (ANY, reaching(OneShot, Ring))]);
            add(&Collective::ReduceScatter, memory, vec![few(Pairwise), (ANY, reaching(OneShot, Pairwise))]);
            add(&Collective::AllToAll, memory, vec![few(Pairwise), (ANY, reaching(OneShot, Pairwise))]);
            add(&gather, memory, vec![few(Linear), (ANY, reaching(OneShot, Linear))]);
            add(&scatter, memory, vec![few(Linear), (ANY, reaching(OneShot, Linear))]);
            add(&Collective::Scan, memory, vec![few(Chain), (ANY, of(Chain))]);
            add(&Collective::ExclusiveScan, memory, vec![few(Chain), (ANY, of(Chain))]);
            let messages = Collective::SendReceive { messages: Vec::new() };
            add(&messages, memory, vec![few(Linear), (ANY, of(Linear))]);
            add(&Collective::Neighbours { torus: [1; 3] }, memory, vec![few(Linear), (ANY, of(Linear))]);
            add(&Collective::Barrier, memory, any(of(Dissemination)));
        }
        Self { rows }
    }

    /// The choice for a block of so many bytes.
    #[inline]
    pub(crate) fn choice(&self, collective: u8, memory: Memory, bytes: usize) -> Choice {
        let row = self.rows.get(&(collective, memory)).map_or(&[][..], Vec::as_slice);
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
    } else if !key.commutes && !plan.in_rank_order() {
        misuse("does not combine ranks in their order")
    } else if !reachable {
        misuse("reaches into peers' buffers")
    } else {
        Ok(plan)
    }
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
    let layout = Layout::flat(ranks, 1);
    let plan = match choice.algorithm.recipe(collective, &layout) {
        Err(why) => Err(Error::Misuse(why.to_string())),
        Ok(recipe) => {
            let recipe = if choice.packets { recipe.with_protocol(Protocol::Ll) } else { recipe };
            verify(recipe.plan().without_switches()).map(Arc::new).map_err(Error::from)
        }
    };
    plans.push((key, plan.clone()));
    plan
}
