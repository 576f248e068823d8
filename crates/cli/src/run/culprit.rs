//! Who failed first, of ranks that failed together.
//!
//! Where Weft's communicators have said whom they failed for ([`weftlink_comm::why::blamed`]), the rank that most of them name
//! is it: followed to its end, since one that is named may name another. It need not have failed itself: it may be stopped,
//! stuck, or have ended too early. Where nobody names anybody, it is the rank that ended first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weftlink_comm::why::blamed;

use super::launch::Record;
use super::wire::End;

/// The rank to look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub(super) rank: usize,
    /// Who failed because of it, by what they said.
    pub(super) blamed_by: Vec<usize>,
}

/// Whether a rank failed by itself, rather than when it was told to end.
pub(super) fn has_failed(record: &Record) -> bool {
    !record.told && record.end.is_some_and(|(end, _)| end != End::Code(0))
}

/// Of the ranks that failed by themselves, the one that ended first.
pub(super) fn earliest(records: &[Record]) -> Option<usize> {
    let failed = records.iter().enumerate().filter(|(_, record)| has_failed(record));
    failed.filter_map(|(rank, record)| Some((record.end?.1, rank))).min().map(|(_, rank)| rank)
}

/// The rank that the others failed for, or that failed first; none if none has failed by itself.
pub(super) fn find(records: &[Record]) -> Option<Culprit> {
    let earliest = earliest(records)?;
    let named = |rank: usize| -> Vec<usize> {
        let said = records[rank].said.as_deref().filter(|_| has_failed(&records[rank])).unwrap_or_default();
        let ranks = blamed(said, rank as u32).into_iter().map(|rank| rank as usize);
        ranks.filter(|other| *other < records.len()).collect()
    };
    let blames: Vec<Vec<usize>> = (0..records.len()).map(named).collect();
    let mut votes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, others) in blames.iter().enumerate() {
        let mut ends: Vec<usize> = others.iter().map(|other| end_of(&blames, rank, *other)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into_iter().for_each(|other| votes.entry(other).or_default().push(rank));
    }
    let ended = |rank: usize| records[rank].end.map(|(_, after)| after);
    let most = votes.into_iter().max_by_key(|(rank, by)| {
        // Of those that as many name: one that names nobody, then the one that ended first.
        (by.len(), blames[*rank].is_empty(), Reverse(ended(*rank).map_or((1, None), |at| (0, Some(at)))))
    });
    Some(most.map_or(Culprit { rank: earliest, blamed_by: Vec::new() }, |(rank, blamed_by)| Culprit {
        rank,
        blamed_by,
    }))
}

/// Follows who names whom, to one that names nobody. Two that name each other, as those whose calls differ do, lead nowhere.
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

    use super::*;

    fn record(end: Option<(i32, u64)>, told: bool, said: &str) -> Record {
        let end = end.map(|(code, after)| (End::Code(code), Duration::from_millis(after)));
        Record { end, told, said: Some(said.to_owned()).filter(|said| !said.is_empty()), ..Record::default() }
    }

    fn found(records: &[Record]) -> (usize, Vec<usize>) {
        let Culprit { rank, blamed_by } = find(records).unwrap();
        (rank, blamed_by)
    }

    #[test]
    fn who_ended_first_where_nobody_says_more() {
        let records =
            [record(Some((1, 9)), false, ""), record(Some((7, 5)), false, ""), record(None, false, "")];
        assert_eq!(found(&records), (1, vec![]));
        assert_eq!(find(&[record(Some((0, 1)), false, ""), record(Some((1, 2)), true, "")]), None);
    }

    #[test]
    fn a_rank_that_panics_ends_after_those_who_heard_of_it() {
        let left = |rank| format!("call #5: rank 2 left before it was over, so rank {rank} cannot finish it");
        let records = [
            record(Some((1, 6)), false, "call #5: rank 1 gave up (a rank has left), so rank 0 does"),
            record(Some((1, 5)), false, &left(1)),
            record(Some((101, 90)), false, ""),
            record(Some((1, 7)), false, &left(3)),
        ];
        assert_eq!(found(&records), (2, vec![0, 1, 3]));
    }

    #[test]
    fn a_rank_that_is_stopped_has_not_even_ended() {
        let late = |rank| {
            format!("call #5: rank {rank} waited 2.0 s for a message from rank 2 (pid 7) (lane 0, step 1)")
        };
        let ended = |rank| record(Some((1, rank)), false, &late(rank));
        assert_eq!(found(&[ended(0), ended(1), record(Some((0, 99)), true, "")]), (2, vec![0, 1]));
        assert_eq!(found(&[ended(0), ended(1), record(None, false, "")]), (2, vec![0, 1]));
    }

    #[test]
    fn the_odd_one_of_calls_that_differ() {
        let differs =
            |rank, other| format!("call #5: differs: rank {rank} calls a barrier, rank {other} a gather");
        let ended = |rank, other, at| record(Some((1, at)), false, &differs(rank, other));
        assert_eq!(found(&[ended(0, 1, 5), ended(1, 0, 4), ended(2, 1, 6)]).0, 1);
        assert_eq!(found(&[ended(0, 1, 5), ended(1, 0, 4)]).0, 1, "of two, who ended first");
    }
}
