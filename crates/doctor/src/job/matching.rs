//! The same call on several ranks, and how long each of them waited in it.
//!
//! A call is the same if it has the same number in the same group. Where the source has no numbers, it is the same if the ranks made the
//! same calls of a group in the same order; otherwise the traces cover different steps, and calls stay unmatched.

use std::collections::BTreeMap;
use std::sync::Arc;

use weftlink_plan::Kind;

use super::{Call, Job, total};

/// The calls of a job that were found on several ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matching {
    /// The calls.
    pub calls: Vec<Matched>,
    /// Calls that only one rank has, or in which ranks differ.
    pub unmatched: u64,
}

/// A call that several ranks made.
#[derive(Clone, Debug, PartialEq)]
pub struct Matched {
    /// What it is.
    pub kind: Kind,
    /// Its bytes, where known: the most of any rank.
    pub bytes: Option<u64>,
    /// The ranks of its group, where known; otherwise those that were found.
    pub ranks: u32,
    /// Its group.
    pub group: Option<Arc<str>>,
    /// The ranks that made it, as positions in [`Job::ranks`], and how long each waited for the last of them; waits are unknown if
    /// neither durations nor starts compare.
    pub waits: Vec<(usize, Option<u64>)>,
    /// How long it took after the last rank had come, where durations are known: that of the rank that waited least.
    pub transfer_ns: Option<u64>,
    /// How long it took on average, where durations are known.
    pub mean_ns: Option<u64>,
}

impl Matched {
    /// The rank that came last, if waits are known.
    pub fn last(&self) -> Option<usize> {
        let waits = self.waits.iter().map(|(rank, wait)| Some((wait.as_ref()?, *rank)));
        waits.collect::<Option<Vec<_>>>()?.into_iter().min().map(|(_, rank)| rank)
    }

    /// Whether the ranks waited noticeably: at least a twentieth of the time of the call, or a microsecond if that is unknown.
    pub fn is_waited_in(&self) -> bool {
        let least = self.mean_ns.map_or(1_000, |ns| (ns / 20).max(1));
        self.mean_wait_ns().is_some_and(|wait| wait >= least)
    }

    /// The average time that the ranks waited.
    pub fn mean_wait_ns(&self) -> Option<u64> {
        let waits: Option<Vec<u64>> = self.waits.iter().map(|(_, wait)| *wait).collect();
        let waits = waits?;
        let ranks = waits.len().max(1) as u64;
        Some(total(waits) / ranks)
    }
}

/// The identity of a call: its group, its number in it, and which of several calls with this number it is.
type Key<'j> = (Option<&'j str>, Option<u64>, usize);

/// Finds the calls that several ranks made.
pub fn matched(job: &Job) -> Matching {
    let mut calls: BTreeMap<Key<'_>, Vec<(usize, &Call)>> = BTreeMap::new();
    for (at, rank) in job.ranks.iter().enumerate() {
        let mut seen: BTreeMap<(Option<&str>, Option<u64>), usize> = BTreeMap::new();
        for call in rank.calls.iter().filter(|call| is_collective(call)) {
            let group = call.group.as_deref();
            let nth = seen.entry((group, call.sequence)).or_default();
            calls.entry((group, call.sequence, *nth)).or_default().push((at, call));
            *nth += 1;
        }
    }
    let in_order = in_order(&calls);
    let mut matching = Matching::default();
    for ((group, sequence, _), made) in calls {
        let agree = made.iter().all(|(_, call)| call.kind == made[0].1.kind);
        let is_known = sequence.is_some() || in_order.get(&group).copied().unwrap_or(false);
        match (made[0].1.kind, agree && is_known && made.len() > 1) {
            (Some(kind), true) => matching.calls.push(of(job, kind, &made)),
            _ => matching.unmatched += made.len() as u64,
        }
    }
    matching
}

fn is_collective(call: &Call) -> bool {
    !matches!(call.kind, None | Some(Kind::SendReceive | Kind::Neighbours))
}

/// Whether the calls without a number are the same, in the same order, on all ranks of their group.
fn in_order<'j>(calls: &BTreeMap<Key<'j>, Vec<(usize, &Call)>>) -> BTreeMap<Option<&'j str>, bool> {
    let mut found = BTreeMap::new();
    let mut ranks = BTreeMap::new();
    for ((group, _, _), made) in calls.iter().filter(|((_, sequence, _), _)| sequence.is_none()) {
        // The first call of a group has all its ranks.
        let all = *ranks.entry(*group).or_insert(made.len());
        let first = made[0].1;
        let is_same = made.iter().all(|(_, call)| (call.kind, call.bytes) == (first.kind, first.bytes));
        *found.entry(*group).or_insert(true) &= is_same && made.len() == all;
    }
    found
}

fn of(job: &Job, kind: Kind, made: &[(usize, &Call)]) -> Matched {
    let durations: Option<Vec<u64>> = made.iter().map(|(_, call)| call.duration_ns).collect();
    let transfer_ns = durations.as_ref().and_then(|durations| durations.iter().min().copied());
    let mean_ns = durations.as_ref().map(|all| total(all.iter().copied()) / all.len().max(1) as u64);
    let host = &job.ranks[made[0].0].host;
    let one_clock =
        made.iter().all(|(rank, _)| job.ranks[*rank].shares_clock && job.ranks[*rank].host == *host);
    let latest = made.iter().map(|(_, call)| call.start_ns).max().unwrap_or(0);
    let wait = |call: &Call| match (waits_for_all(kind), transfer_ns) {
        (false, _) => None,
        (true, Some(least)) => call.duration_ns.map(|duration| duration - least),
        (true, None) => one_clock.then(|| latest.abs_diff(call.start_ns)),
    };
    Matched {
        kind,
        bytes: made.iter().filter_map(|(_, call)| call.bytes).max(),
        ranks: made[0].1.ranks.unwrap_or(made.len() as u32),
        group: made[0].1.group.clone(),
        waits: made.iter().map(|(rank, call)| (*rank, wait(call))).collect(),
        transfer_ns: transfer_ns.filter(|_| waits_for_all(kind)),
        mean_ns,
    }
}

/// Whether no rank can end before all have come. The root of a broadcast, for example, can.
fn waits_for_all(kind: Kind) -> bool {
    use Kind::{
        AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, Barrier, ReduceScatter, ReduceScatterV,
    };
    matches!(
        kind,
        AllReduce | AllGather | AllGatherV | ReduceScatter | ReduceScatterV | AllToAll | AllToAllV | Barrier
    )
}

#[cfg(test)]
mod tests {
    use super::super::Rank;
    use super::*;

    fn call(sequence: Option<u64>, start_ns: i64, duration_ns: Option<u64>) -> Call {
        Call {
            kind: Some(Kind::AllReduce),
            bytes: Some(1024),
            ranks: Some(2),
            group: Some("0".into()),
            sequence,
            start_ns,
            duration_ns,
        }
    }

    fn job(ranks: Vec<Vec<Call>>) -> Job {
        let rank = |(at, calls): (usize, Vec<Call>)| Rank { number: at as u32, calls, ..Rank::default() };
        Job { ranks: ranks.into_iter().enumerate().map(rank).collect(), ..Job::default() }
    }

    #[test]
    fn the_rank_whose_kernel_took_least_came_last() {
        let job = job(vec![vec![call(Some(4), 0, Some(90))], vec![call(Some(4), 1_000_000, Some(20))]]);
        let matching = matched(&job);
        let [call] = &matching.calls[..] else { panic!("one call") };
        assert_eq!((call.last(), call.transfer_ns, call.mean_wait_ns()), (Some(1), Some(20), Some(35)));
    }

    #[test]
    fn without_durations_starts_on_one_clock_compare() {
        let mut job = job(vec![vec![call(Some(4), 10, None)], vec![call(Some(4), 50, Some(3))]]);
        assert_eq!(matched(&job).calls[0].last(), None);
        job.ranks.iter_mut().for_each(|rank| rank.shares_clock = true);
        let matching = matched(&job);
        assert_eq!(matching.calls[0].waits, [(0, Some(40)), (1, Some(0))]);
        assert_eq!(matching.calls[0].last(), Some(1));
        job.ranks[1].host = Some("b".to_owned());
        assert_eq!(matched(&job).calls[0].last(), None);
    }

    #[test]
    fn without_numbers_the_order_of_calls_matches_them() {
        let calls = || vec![call(None, 0, Some(9)), call(None, 10, Some(9))];
        assert_eq!(matched(&job(vec![calls(), calls()])).calls.len(), 2);
        let mut fewer = calls();
        fewer.pop();
        let matching = matched(&job(vec![calls(), fewer]));
        assert_eq!((matching.calls.len(), matching.unmatched), (0, 3));
        let mut other = calls();
        other[1].bytes = Some(8);
        assert_eq!(matched(&job(vec![calls(), other])).calls.len(), 0);
    }

    #[test]
    fn calls_that_differ_or_wait_for_nobody_are_not_compared() {
        let mut other = call(Some(4), 0, Some(7));
        other.kind = Some(Kind::Broadcast);
        let matching = matched(&job(vec![vec![call(Some(4), 0, Some(9))], vec![other.clone()]]));
        assert_eq!((matching.calls.len(), matching.unmatched), (0, 2));
        let matching = matched(&job(vec![vec![other.clone()], vec![other]]));
        assert_eq!((matching.calls[0].last(), matching.calls[0].transfer_ns), (None, None));
    }
}
