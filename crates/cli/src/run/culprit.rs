//! Finds the rank that failed first among ranks that failed together.
//!
//! The errors of Weft's communicators carry the ranks they blame ([`weftlink_comm::Error::blamed`]), and ranks report them to the
//! launcher. The culprit is the rank that most ranks blame, or the rank at the end of the chain if that rank blames another. It
//! need not have failed: it may be suspended, stuck, or have exited too early. If ranks timed out and the launcher saw a
//! suspended rank, that rank is the culprit. If no rank blames another, the culprit is the rank that exited first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weftlink_comm::BlameKind;

use super::launch::Record;
use super::wire::End;

/// The rank that caused the failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub(super) rank: usize,
    /// The ranks that blame it.
    pub(super) blamed_by: Vec<usize>,
}

/// Whether a rank failed before it was told to stop.
pub(super) fn has_failed(record: &Record) -> bool {
    !record.told && record.end.is_some_and(|(end, _)| end != End::Code(0))
}

/// The first exit among the ranks that failed before they were told to stop.
pub(super) fn earliest(records: &[Record]) -> Option<usize> {
    let failed = records.iter().enumerate().filter(|(_, record)| has_failed(record));
    failed.filter_map(|(rank, record)| Some((record.end?.1, rank))).min().map(|(_, rank)| rank)
}

/// The culprit; none if no rank failed before it was told to stop.
pub(super) fn find(records: &[Record]) -> Option<Culprit> {
    let earliest = earliest(records)?;
    let blames: Vec<Vec<usize>> = (0..records.len()).map(|rank| blamed(records, rank)).collect();
    let mut votes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, others) in blames.iter().enumerate() {
        let mut ends: Vec<usize> = others.iter().map(|other| end_of(&blames, rank, *other)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into_iter().for_each(|other| votes.entry(other).or_default().push(rank));
    }
    if let Some(culprit) = stopped(records, &votes) {
        return Some(culprit);
    }
    let ended = |rank: usize| records[rank].end.map(|(_, after)| after);
    let most = votes.into_iter().max_by_key(|(rank, by)| {
        // Ties: a rank that blames no other, then the one that exited first.
        (by.len(), blames[*rank].is_empty(), Reverse(ended(*rank).map_or((1, None), |at| (0, Some(at)))))
    });
    Some(most.map_or(Culprit { rank: earliest, blamed_by: Vec::new() }, |(rank, blamed_by)| Culprit {
        rank,
        blamed_by,
    }))
}

/// The other ranks that a failed rank blames.
fn blamed(records: &[Record], rank: usize) -> Vec<usize> {
    let record = &records[rank];
    let ranks = record.blamed.iter().map(|blame| blame.rank as usize);
    ranks.filter(|other| has_failed(record) && *other != rank && *other < records.len()).collect()
}

/// The suspended rank that most ranks blame, if ranks failed because of a timeout. The rank that a timeout names may itself have
/// waited for the suspended one.
fn stopped(records: &[Record], votes: &BTreeMap<usize, Vec<usize>>) -> Option<Culprit> {
    let is_late = |record: &Record| record.blamed.iter().any(|blame| blame.kind == BlameKind::Late);
    let late = records.iter().enumerate().filter(|(_, record)| has_failed(record) && is_late(record));
    let late: Vec<usize> = late.map(|(rank, _)| rank).collect();
    let stopped = (0..records.len()).filter(|rank| records[*rank].stopped);
    let rank = stopped.max_by_key(|rank| (votes.get(rank).map_or(0, Vec::len), Reverse(*rank)))?;
    (!late.is_empty()).then_some(Culprit { rank, blamed_by: late })
}

/// Follows the chain of blame to a rank that blames no other. Two ranks that blame each other, as after mismatched calls, end it.
fn end_of(blames: &[Vec<usize>], from: usize, first: usize) -> usize {
    let (mut seen, mut at) = (vec![from], first);
    let leads_on = |at: usize, next: usize| !blames[next].contains(&at);
    while let Some(next) = blames[at].iter().find(|next| !seen.contains(next) && leads_on(at, **next)) {
        seen.push(at);
        at = *next;
    }
    at
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weftlink_comm::Blame;

    use super::*;

    fn record(end: Option<(i32, u64)>, told: bool, blamed: &[(u32, BlameKind)]) -> Record {
        let end = end.map(|(code, after)| (End::Code(code), Duration::from_millis(after)));
        let blamed = blamed.iter().map(|(rank, kind)| Blame::new(*rank, *kind)).collect();
        Record { end, told, blamed, ..Record::default() }
    }

    fn found(records: &[Record]) -> (usize, Vec<usize>) {
        let Culprit { rank, blamed_by } = find(records).unwrap();
        (rank, blamed_by)
    }

    #[test]
    fn first_to_exit_is_the_culprit_by_default() {
        let records =
            [record(Some((1, 9)), false, &[]), record(Some((7, 5)), false, &[]), record(None, false, &[])];
        assert_eq!(found(&records), (1, vec![]));
        assert_eq!(find(&[record(Some((0, 1)), false, &[]), record(Some((1, 2)), true, &[])]), None);
    }

    #[test]
    fn panicking_rank_may_exit_last() {
        let records = [
            record(Some((1, 6)), false, &[(1, BlameKind::Failed)]),
            record(Some((1, 5)), false, &[(2, BlameKind::Left)]),
            record(Some((101, 90)), false, &[(2, BlameKind::Failed)]),
            record(Some((1, 7)), false, &[(2, BlameKind::Left)]),
        ];
        assert_eq!(found(&records), (2, vec![0, 1, 3]));
    }

    #[test]
    fn suspended_rank_is_the_culprit() {
        let ended = |after, blamed| record(Some((1, after)), false, &[(blamed, BlameKind::Late)]);
        assert_eq!(found(&[ended(0, 2), ended(1, 2), record(Some((0, 99)), true, &[])]), (2, vec![0, 1]));
        assert_eq!(found(&[ended(0, 2), ended(1, 2), record(None, false, &[])]), (2, vec![0, 1]));
        let stopped = || Record { stopped: true, ..record(Some((9, 99)), true, &[]) };
        let waits = || record(Some((15, 9)), true, &[]);
        assert_eq!(found(&[ended(0, 1), waits(), stopped()]), (2, vec![0]), "rank 1 waits for rank 2");
        let other = record(Some((3, 1)), false, &[(0, BlameKind::Failed)]);
        assert_eq!(found(&[other, stopped()]).0, 0, "nobody waited for the one that is stopped");
    }

    #[test]
    fn rank_with_a_different_call_is_the_culprit() {
        let ended = |other, after| record(Some((1, after)), false, &[(other, BlameKind::Differs)]);
        assert_eq!(found(&[ended(1, 5), ended(0, 4), ended(1, 6)]).0, 1);
        assert_eq!(found(&[ended(1, 5), ended(0, 4)]).0, 1, "of two, who ended first");
    }
}
