//! Which algorithm to take on a fabric for so many bytes, and why not the others.
//!
//! Every algorithm that is built in stands for election: with each protocol it can use, or with a sentence that says why the
//! fabric rules it out. The shortest predicted time wins; of equals the one that is listed first, so that all ranks come
//! to the same choice. A loser is told the term of the formula that cost it most.
//!
//! [`Breakpoints`] is the choice for a range of sizes, exact to the byte. It hashes, for ranks to compare.
//!
//! Deliberately absent: counts. Ranks do not know each other's when blocks differ, so a v-collective is chosen by the
//! bytes of all blocks together, among plans that are right for any lengths.

mod json;
pub mod measured;
mod question;
mod reason;

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::algorithms::{Algorithm, Impossible};
use crate::cost::{Entrant, Ground, Picoseconds, Prediction, entrants, over, predict};
use crate::plan::{Protocol, Switch};
use crate::wiring::Bound;
use crate::{Collective, Recipe};

pub use question::{
    BYTES_DEFAULT, Built, ChooseError, Chosen, ChosenSizes, Options, Subject, build, choose, choose_sizes,
};

/// What is known before sizes are: who may stand, and the bound.
pub struct Chooser<'g, 'f> {
    ground: &'g Ground<'f>,
    collective: Collective,
    entrants: Vec<Entrant>,
    ruled_out: Vec<(Algorithm, String)>,
    bound: Option<Bound>,
    switches_add: bool,
}

/// All candidates for a size, the chosen one first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The bytes of the call, as nccl-tests count them.
    pub bytes: u64,
    /// By predicted time, those that are ruled out last.
    pub candidates: Vec<Candidate>,
}

/// An algorithm that stood for election, with a protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol of its messages, if it passes any.
    pub protocol: Option<Protocol>,
    /// The switches that compute for it, if any do. They may be there and not set up: [`Chooser::without`].
    pub switch: Option<Switch>,
    /// Thread blocks of each GPU that would share the work. A plan's lanes are run by at least one each.
    pub thread_blocks: u32,
    /// What it is predicted to cost; nothing if it is ruled out.
    pub cost: Option<Prediction>,
    /// Bytes per second as nccl-tests print them: those of the call over its time. 0 where nothing travels.
    pub algbw: u64,
    /// The same times what makes it comparable between numbers of ranks.
    pub busbw: u64,
    /// How much of the bound that is, in thousandths; nothing where there is no bound.
    pub bound_thousandths: Option<u64>,
    /// How it went.
    pub verdict: Verdict,
}

/// How a candidate fared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is the fastest.
    Chosen,
    /// It is not, because of this.
    Lost(String),
    /// It does not do this on this fabric, because of that.
    RuledOut(String),
}

/// What is chosen for which sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Breakpoints {
    /// In rising order, without gaps.
    pub ranges: Vec<Range>,
}

/// Sizes for which the same is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The smallest.
    pub from: u64,
    /// The largest.
    pub to: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its protocol, if it passes messages.
    pub protocol: Option<Protocol>,
}

impl<'g, 'f> Chooser<'g, 'f> {
    /// Gets ready. With `uneven`, blocks need not be equally long: all-gather-v and its like.
    pub fn new(collective: &Collective, uneven: bool, ground: &'g Ground<'f>) -> Self {
        let (mut entrants, impossible) = entrants(collective, uneven, ground);
        let mut ruled_out: Vec<_> =
            impossible.into_iter().map(|(algorithm, why)| (algorithm, why.0)).collect();
        entrants.retain(|entrant| {
            let is_known = predict(entrant, ground, collective, 1).is_some();
            let known_already = ruled_out.iter().any(|(algorithm, _)| *algorithm == entrant.algorithm);
            if !is_known && !known_already {
                ruled_out.push((
                    entrant.algorithm,
                    format!("nothing to predict by: its header has no row for {}", collective.name()),
                ));
            }
            is_known
        });
        ruled_out.sort();
        let chooser = Self {
            ground,
            collective: collective.clone(),
            entrants,
            ruled_out,
            bound: None,
            switches_add: false,
        };
        chooser.bounded(true)
    }

    /// The same without some algorithms: for what is there by the wiring and not in use, as SHARP often is. The bound is then
    /// that of what is left: one without switches that add, if all are left out that would use them.
    pub fn without(mut self, left_out: &[Algorithm]) -> Self {
        let (out, stay): (Vec<Entrant>, _) =
            self.entrants.into_iter().partition(|entrant| left_out.contains(&entrant.algorithm));
        let mut names: Vec<Algorithm> = out.iter().map(|entrant| entrant.algorithm).collect();
        names.dedup();
        self.ruled_out.extend(names.into_iter().map(|algorithm| (algorithm, "left out as asked".to_owned())));
        self.ruled_out.sort();
        let uses_switches = |entrants: &[Entrant]| entrants.iter().any(|entrant| entrant.switch.is_some());
        let with_switches = uses_switches(&stay) || !uses_switches(&out);
        Self { entrants: stay, ..self }.bounded(with_switches)
    }

    fn bounded(self, with_switches: bool) -> Self {
        let bounds = self.ground.bounds();
        let by_ranks = bounds.bound_without_switches(&self.collective);
        let bound = if with_switches { bounds.bound(&self.collective) } else { by_ranks.clone() };
        Self { switches_add: bound != by_ranks, bound, ..self }
    }

    /// What is chosen for.
    pub fn collective(&self) -> &Collective {
        &self.collective
    }

    /// How fast the collective can be at all, with all that the fabric's switches can do unless they are left out.
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    /// Whether switches have to add for a call to come near the bound.
    pub fn switches_add_in_bound(&self) -> bool {
        self.switches_add
    }

    /// All candidates for a size.
    pub fn choose(&self, bytes: u64) -> Choice {
        let mut costs: Vec<(&Entrant, Prediction)> = self.costs(bytes).collect();
        // The sort is stable, and entrants come in the order of algorithms and protocols.
        costs.sort_by_key(|(_, cost)| cost.time());
        let winner = costs.first().copied();
        let ran = costs.iter().map(|(entrant, cost)| {
            let verdict = match winner {
                Some((first, best)) if !std::ptr::eq(first, *entrant) => {
                    Verdict::Lost(reason::reason((entrant, cost), (first, &best)))
                }
                _ => Verdict::Chosen,
            };
            self.candidate(entrant, *cost, bytes, verdict)
        });
        let ruled_out = self.ruled_out.iter().map(|(algorithm, why)| Candidate {
            algorithm: *algorithm,
            protocol: None,
            switch: None,
            thread_blocks: 0,
            cost: None,
            algbw: 0,
            busbw: 0,
            bound_thousandths: None,
            verdict: Verdict::RuledOut(why.clone()),
        });
        Choice { bytes, candidates: ran.chain(ruled_out).collect() }
    }

    /// What is chosen for all sizes of a range, both ends included; nothing where nobody may stand.
    pub fn breakpoints(&self, (from, to): (u64, u64)) -> Breakpoints {
        let mut ranges: Vec<Range> = Vec::new();
        let mut low = from;
        while let Some(entrant) = self.winner(low).filter(|_| low <= to) {
            // Between powers of two only one thing happens, or nothing.
            let mut high =
                low.checked_next_power_of_two().filter(|power| *power > low).unwrap_or(low.saturating_mul(2));
            high = high.clamp(low.saturating_add(1), to.max(low.saturating_add(1)));
            let same = |bytes: u64| self.winner(bytes).is_some_and(|other| std::ptr::eq(other, entrant));
            let (mut known, mut beyond) = (low, high);
            if high <= to && same(high) {
                known = high;
            }
            while known < high && beyond - known > 1 {
                let middle = known + (beyond - known) / 2;
                *(if same(middle) { &mut known } else { &mut beyond }) = middle;
            }
            let last = known.min(to);
            match ranges.last_mut() {
                Some(range) if (range.algorithm, range.protocol) == (entrant.algorithm, entrant.protocol) => {
                    range.to = last;
                }
                _ => ranges.push(Range {
                    from: low,
                    to: last,
                    algorithm: entrant.algorithm,
                    protocol: entrant.protocol,
                }),
            }
            let Some(next) = last.checked_add(1) else { break };
            low = next;
        }
        Breakpoints { ranges }
    }

    /// An algorithm's plan on this fabric. Give it the protocol that was chosen: [`Recipe::with_protocol`].
    pub fn recipe(&self, algorithm: Algorithm) -> Result<Recipe<'_>, Impossible> {
        algorithm.recipe(&self.collective, self.ground.layout())
    }

    fn costs(&self, bytes: u64) -> impl Iterator<Item = (&Entrant, Prediction)> {
        let cost = move |entrant| Some((entrant, predict(entrant, self.ground, &self.collective, bytes)?));
        self.entrants.iter().filter_map(cost)
    }

    fn winner(&self, bytes: u64) -> Option<&Entrant> {
        Some(self.costs(bytes).min_by_key(|(_, cost)| cost.time())?.0)
    }

    fn candidate(&self, entrant: &Entrant, cost: Prediction, bytes: u64, verdict: Verdict) -> Candidate {
        let time = cost.time();
        let (times, parts) = bus_factor(&self.collective, self.ground.layout().ranks());
        let algbw = if times > 0 { time.rate_of(bytes) } else { 0 };
        let busbw = u128::from(algbw) * u128::from(times) / u128::from(parts.max(1));
        let least = self.bound.as_ref().map(|bound| over(bytes, Some(bound.bytes_per_second)));
        let share = |least: Picoseconds| {
            u64::try_from(u128::from(least.0) * 1000 / u128::from(time.0.max(1))).unwrap_or(u64::MAX)
        };
        Candidate {
            algorithm: entrant.algorithm,
            protocol: entrant.protocol,
            switch: entrant.switch,
            thread_blocks: entrant.thread_blocks(bytes),
            cost: Some(cost),
            algbw,
            busbw: u64::try_from(busbw).unwrap_or(u64::MAX),
            bound_thousandths: least.map(share),
            verdict,
        }
    }
}

impl Choice {
    /// The fastest; nothing if every algorithm is ruled out.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|candidate| candidate.verdict == Verdict::Chosen)
    }
}

impl Candidate {
    /// How long it is predicted to take.
    pub fn time(&self) -> Option<Picoseconds> {
        self.cost.map(|cost| cost.time())
    }
}

impl Breakpoints {
    /// A number that ranks compare to know that they choose alike.
    pub fn digest(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// What is chosen for a size, if it is in the range.
    pub fn at(&self, bytes: u64) -> Option<&Range> {
        self.ranges.iter().find(|range| (range.from..=range.to).contains(&bytes))
    }
}

/// What nccl-tests multiply algbw by to get busbw: so many, over so many. Of messages it is the blocks that the busiest rank
/// sends to others or gets from them, of all that its buffer holds.
pub fn bus_factor(collective: &Collective, ranks: u32) -> (u64, u64) {
    let ranks = u64::from(ranks);
    match collective {
        Collective::AllReduce => (2 * ranks.saturating_sub(1), ranks),
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather { .. }
        | Collective::Scatter { .. } => (ranks.saturating_sub(1), ranks),
        Collective::Reduce { .. }
        | Collective::Broadcast { .. }
        | Collective::Scan
        | Collective::ExclusiveScan => (u64::from(ranks > 1), 1),
        Collective::SendReceive { .. } | Collective::Neighbours { .. } => {
            let mut ends = vec![(0, 0); ranks as usize];
            for (from, to) in collective.messages(ranks as u32).into_iter().filter(|(from, to)| from != to) {
                ends[from as usize].0 += 1;
                ends[to as usize].1 += 1;
            }
            let most = ends.into_iter().map(|(sent, got): (u64, u64)| sent.max(got)).max();
            let (given, got) = collective.blocks(ranks as u32);
            (most.unwrap_or(0), u64::from(given.max(got)).max(1))
        }
        Collective::Barrier => (0, 1),
    }
}
