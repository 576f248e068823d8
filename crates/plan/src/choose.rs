//! Chooses an algorithm for a collective on a fabric, by size, and says why the others lost.
//!
//! Every built-in algorithm is a candidate with each protocol it supports, or is ruled out with the reason. The candidate with
//! the shortest predicted time wins; of equals the one listed first, so that all ranks choose the same. Each loser gets the
//! term of the cost model that cost it most.
//!
//! [`Breakpoints`] is the choice for a range of sizes, exact to the byte. Ranks can compare its digest.
//!
//! Deliberately absent: counts. Ranks do not know each other's counts when blocks differ, so the choice for a v-collective
//! depends on the bytes of all blocks together, among plans that support any lengths.

mod json;
pub mod measured;
mod question;
mod reason;

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::algorithms::{Algorithm, Impossible};
use crate::cost::{Candidate, Picoseconds, Placement, Prediction, candidates, over, predict};
use crate::plan::{Protocol, Switch};
use crate::wiring::Bound;
use crate::{Collective, Recipe};

pub use question::{
    BYTES_DEFAULT, Built, ChooseError, Chosen, ChosenSizes, Options, Subject, build, choose, choose_sizes,
};

/// Why plans for network switches that reduce are left out.
const NO_SHARP: &str =
    "needs network switches that reduce (SHARP), which have to be set up; add --sharp if yours are";

/// The candidates for a collective on a fabric, and the bound, before a size is known.
pub struct Chooser<'g, 'f> {
    placement: &'g Placement<'f>,
    collective: Collective,
    candidates: Vec<Candidate>,
    ruled_out: Vec<(Algorithm, String)>,
    bound: Option<Bound>,
    switches_add: bool,
}

/// All candidates for a size, the chosen one first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The bytes of the call, as nccl-tests count them.
    pub bytes: u64,
    /// By predicted time; those that are ruled out last.
    pub candidates: Vec<RankedCandidate>,
}

/// A candidate for a size, with its predicted cost and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RankedCandidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol of its messages, if it sends any.
    pub protocol: Option<Protocol>,
    /// The switches that compute for it, if any. To leave out switches that are not set up: [`Chooser::without`].
    pub switch: Option<Switch>,
    /// Thread blocks of each GPU; at least one per lane.
    pub thread_blocks: u32,
    /// The predicted cost; nothing if it is ruled out.
    pub cost: Option<Prediction>,
    /// Bytes of the call over its time, per second, as nccl-tests print it. 0 if no data moves.
    pub algbw: u64,
    /// The bus bandwidth of nccl-tests: algbw times the [bus factor](bus_factor).
    pub busbw: u64,
    /// The share of the bound, in thousandths; nothing if there is no bound.
    pub bound_thousandths: Option<u64>,
    /// Whether it is chosen, and if not, why.
    pub verdict: Verdict,
}

/// The result for a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is the fastest.
    Chosen,
    /// It is slower, for this reason.
    Lost(String),
    /// It is impossible on this fabric, for this reason.
    RuledOut(String),
}

/// The choice for each size of a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Breakpoints {
    /// In rising order, without gaps.
    pub ranges: Vec<Range>,
}

/// Sizes with the same choice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The smallest.
    pub from: u64,
    /// The largest.
    pub to: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its protocol, if it sends messages.
    pub protocol: Option<Protocol>,
}

impl<'g, 'f> Chooser<'g, 'f> {
    /// Finds the candidates. With `uneven`, blocks may have different lengths, as in all-gather-v.
    pub fn new(collective: &Collective, uneven: bool, placement: &'g Placement<'f>) -> Self {
        let (mut candidates, impossible) = candidates(collective, uneven, placement);
        let mut ruled_out: Vec<_> =
            impossible.into_iter().map(|(algorithm, why)| (algorithm, why.0)).collect();
        candidates.retain(|candidate| {
            let is_known = predict(candidate, placement, collective, 1).is_some();
            let known_already = ruled_out.iter().any(|(algorithm, _)| *algorithm == candidate.algorithm);
            if !is_known && !known_already {
                ruled_out
                    .push((candidate.algorithm, format!("it has no cost formula for {}", collective.name())));
            }
            is_known
        });
        ruled_out.sort();
        let chooser = Self {
            placement,
            collective: collective.clone(),
            candidates,
            ruled_out,
            bound: None,
            switches_add: false,
        };
        chooser.bounded(true)
    }

    /// The same without some algorithms. Without all algorithms that use switches that add, the bound is one without such switches.
    pub fn without(self, left_out: &[Algorithm]) -> Self {
        self.leave_out("left out by the caller", |candidate| left_out.contains(&candidate.algorithm))
    }

    /// The same without plans for network switches that reduce, except those of `named`: SHARP has to be installed and enabled, and few
    /// networks have it.
    pub fn without_sharp(self, named: Option<Algorithm>) -> Self {
        self.leave_out(NO_SHARP, |candidate| {
            candidate.switch == Some(Switch::Network) && Some(candidate.algorithm) != named
        })
    }

    fn leave_out(mut self, why: &str, is_out: impl Fn(&Candidate) -> bool) -> Self {
        let (out, stay): (Vec<Candidate>, _) = self.candidates.into_iter().partition(is_out);
        let mut names: Vec<Algorithm> = out.iter().map(|candidate| candidate.algorithm).collect();
        names.dedup();
        self.ruled_out.extend(names.into_iter().map(|algorithm| (algorithm, why.to_owned())));
        self.ruled_out.sort();
        let uses_switches =
            |candidates: &[Candidate]| candidates.iter().any(|candidate| candidate.switch.is_some());
        let with_switches = uses_switches(&stay) || self.switches_add && !uses_switches(&out);
        Self { candidates: stay, ..self }.bounded(with_switches)
    }

    fn bounded(self, with_switches: bool) -> Self {
        let bounds = self.placement.bounds();
        let by_ranks = bounds.bound_without_switches(&self.collective);
        let bound = if with_switches { bounds.bound(&self.collective) } else { by_ranks.clone() };
        Self { switches_add: bound != by_ranks, bound, ..self }
    }

    /// The collective.
    pub fn collective(&self) -> &Collective {
        &self.collective
    }

    /// The upper bound on the collective's speed, with switches that compute unless they are left out.
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    /// Whether the bound can only be reached if switches add.
    pub fn switches_add_in_bound(&self) -> bool {
        self.switches_add
    }

    /// All candidates for a size.
    pub fn choose(&self, bytes: u64) -> Choice {
        let mut costs: Vec<(&Candidate, Prediction)> = self.costs(bytes).collect();
        // The sort is stable, and candidates are in the order of algorithms and protocols.
        costs.sort_by_key(|(_, cost)| cost.time());
        let winner = costs.first().copied();
        let ranked = costs.iter().map(|(candidate, cost)| {
            let verdict = match winner {
                Some((first, best)) if !std::ptr::eq(first, *candidate) => {
                    Verdict::Lost(reason::reason((candidate, cost), (first, &best)))
                }
                _ => Verdict::Chosen,
            };
            self.ranked(candidate, *cost, bytes, verdict)
        });
        let ruled_out = self.ruled_out.iter().map(|(algorithm, why)| RankedCandidate {
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
        Choice { bytes, candidates: ranked.chain(ruled_out).collect() }
    }

    /// The fastest candidate for a size, with its cost.
    pub fn cheapest(&self, bytes: u64) -> Option<(&Candidate, Prediction)> {
        self.costs(bytes).min_by_key(|(_, cost)| cost.time())
    }

    /// The candidates, each with its cost for a size, in the order of algorithms and protocols.
    pub fn costs(&self, bytes: u64) -> impl Iterator<Item = (&Candidate, Prediction)> {
        let cost =
            move |candidate| Some((candidate, predict(candidate, self.placement, &self.collective, bytes)?));
        self.candidates.iter().filter_map(cost)
    }

    /// The choice for all sizes of a range, both ends included; no ranges if there is no candidate.
    pub fn breakpoints(&self, (from, to): (u64, u64)) -> Breakpoints {
        let mut ranges: Vec<Range> = Vec::new();
        let mut low = from;
        while let Some(candidate) = self.winner(low).filter(|_| low <= to) {
            // The search assumes at most one change of the winner between powers of two.
            let mut high =
                low.checked_next_power_of_two().filter(|power| *power > low).unwrap_or(low.saturating_mul(2));
            high = high.clamp(low.saturating_add(1), to.max(low.saturating_add(1)));
            let same = |bytes: u64| self.winner(bytes).is_some_and(|other| std::ptr::eq(other, candidate));
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
                Some(range)
                    if (range.algorithm, range.protocol) == (candidate.algorithm, candidate.protocol) =>
                {
                    range.to = last;
                }
                _ => ranges.push(Range {
                    from: low,
                    to: last,
                    algorithm: candidate.algorithm,
                    protocol: candidate.protocol,
                }),
            }
            let Some(next) = last.checked_add(1) else { break };
            low = next;
        }
        Breakpoints { ranges }
    }

    /// An algorithm's plan on this fabric. Set the chosen protocol with [`Recipe::with_protocol`].
    pub fn recipe(&self, algorithm: Algorithm) -> Result<Recipe<'_>, Impossible> {
        algorithm.recipe(&self.collective, self.placement.layout())
    }

    fn winner(&self, bytes: u64) -> Option<&Candidate> {
        Some(self.cheapest(bytes)?.0)
    }

    fn ranked(
        &self,
        candidate: &Candidate,
        cost: Prediction,
        bytes: u64,
        verdict: Verdict,
    ) -> RankedCandidate {
        let time = cost.time();
        let (times, parts) = bus_factor(&self.collective, self.placement.layout().ranks());
        let algbw = if times > 0 { time.rate_of(bytes) } else { 0 };
        let busbw = u128::from(algbw) * u128::from(times) / u128::from(parts.max(1));
        let least = self.bound.as_ref().map(|bound| over(bytes, Some(bound.bytes_per_second)));
        let share = |least: Picoseconds| {
            u64::try_from(u128::from(least.0) * 1000 / u128::from(time.0.max(1))).unwrap_or(u64::MAX)
        };
        RankedCandidate {
            algorithm: candidate.algorithm,
            protocol: candidate.protocol,
            switch: candidate.switch,
            thread_blocks: candidate.thread_blocks(bytes),
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
    pub fn chosen(&self) -> Option<&RankedCandidate> {
        self.candidates.first().filter(|candidate| candidate.verdict == Verdict::Chosen)
    }
}

impl RankedCandidate {
    /// The predicted time.
    pub fn time(&self) -> Option<Picoseconds> {
        self.cost.map(|cost| cost.time())
    }
}

impl Breakpoints {
    /// A hash that ranks compare to check that they choose the same.
    pub fn digest(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The choice for a size, if it is in the range.
    pub fn at(&self, bytes: u64) -> Option<&Range> {
        self.ranges.iter().find(|range| (range.from..=range.to).contains(&bytes))
    }
}

/// The factor by which nccl-tests multiply algbw to get busbw, as numerator and denominator. For messages: the blocks that the
/// busiest rank sends to others or receives from them, over the blocks of its buffer.
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
