//! Chains of waits, and the ranks at their ends.
//!
//! Ranks wait for each other in chains: rank 0 for a message of rank 1, which waits for rank 2 to make a call, which is stopped.
//! A rank that looks only at its own wait blames rank 1. So each rank records the ranks that it waits for, once that takes long, and
//! announces it to all when any rank asks. A rank that does not answer is stopped, or behind one that is; a rank that answers
//! that it waits for nobody does something else. These are the *roots*, which warnings and errors name.
//!
//! The record of a wait that ended in a failure stays: that is what the rank was waiting for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::durations::ANSWER_PAUSE;

/// What one rank knows of the waits of all.
#[derive(Debug, Default, Clone)]
pub(crate) struct Waits {
    own: Vec<u32>,
    turn: u32,
    announced: Option<(Instant, Vec<u32>)>,
    of: BTreeMap<u32, Announced>,
}

#[derive(Debug, Clone)]
struct Announced {
    turn: u32,
    whom: Vec<u32>,
    neighbours: Vec<u32>,
    at: Instant,
}

/// The ranks that are waited for in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// These have not answered.
    pub silent: BTreeSet<u32>,
    /// These answered that they wait for nobody.
    pub busy: BTreeSet<u32>,
}

impl Roots {
    /// The silent ranks, if there are any: a rank that seems busy may just have been released.
    pub fn all(&self) -> Vec<u32> {
        let roots =
            if self.silent.is_empty() || mutant!("busy-outweigh-silent") { &self.busy } else { &self.silent };
        roots.iter().copied().collect()
    }
}

impl Waits {
    pub(crate) fn own(&self) -> &[u32] {
        &self.own
    }

    pub(crate) fn set_own(&mut self, whom: &[u32]) {
        if self.own != whom {
            self.own = whom.to_vec();
        }
    }

    /// Records what a rank announced. Returns whether it is new.
    pub(crate) fn hear(
        &mut self,
        rank: u32,
        turn: u32,
        (whom, neighbours): (&[u32], &[u32]),
        now: Instant,
    ) -> bool {
        if self.of.get(&rank).is_some_and(|known| known.turn >= turn) {
            return false;
        }
        let (whom, neighbours) = (whom.to_vec(), neighbours.to_vec());
        self.of.insert(rank, Announced { turn, whom, neighbours, at: now });
        true
    }

    /// The turn and content of this rank's next announcement.
    pub(crate) fn announce(&mut self, now: Instant) -> (u32, Vec<u32>) {
        self.turn += 1;
        self.announced = Some((now, self.own.clone()));
        (self.turn, self.own.clone())
    }

    /// Whether this rank has just announced what it would announce now.
    pub(crate) fn is_announced(&self, now: Instant) -> bool {
        let is_recent =
            |(at, whom): &(Instant, Vec<u32>)| now.duration_since(*at) < ANSWER_PAUSE && *whom == self.own;
        self.announced.as_ref().is_some_and(is_recent)
    }

    /// Follows the waits that begin with these ranks to their ends, by what was announced since ranks were asked. Nothing is
    /// expected of ranks for which `is_gone` holds.
    pub(crate) fn roots(
        &self,
        rank: u32,
        begin: &[u32],
        asked: Instant,
        is_gone: impl Fn(u32) -> bool,
    ) -> Roots {
        let since = asked.checked_sub(ANSWER_PAUSE).unwrap_or(asked);
        let said =
            |rank: &u32| self.of.get(rank).filter(|known| known.at >= since || mutant!("old-waits-count"));
        let mute = self.mute(rank, said, &is_gone);
        let (mut roots, mut seen) = (Roots::default(), BTreeSet::from([rank]));
        let mut next = begin.to_vec();
        while let Some(rank) = next.pop() {
            if !seen.insert(rank) {
                continue;
            }
            // What a rank announced before it left still holds.
            match said(&rank) {
                Some(known) if !known.whom.is_empty() => next.extend(&known.whom),
                _ if is_gone(rank) => {}
                Some(_) => drop(roots.busy.insert(rank)),
                None if mute.contains(&rank) => drop(roots.silent.insert(rank)),
                // Its answer does not get through because of the ranks between.
                None => roots.silent.extend(&mute),
            }
        }
        roots
    }

    /// The ranks next to one that answered that have not answered themselves.
    fn mute<'a>(
        &'a self,
        rank: u32,
        said: impl Fn(&u32) -> Option<&'a Announced>,
        is_gone: impl Fn(u32) -> bool,
    ) -> BTreeSet<u32> {
        let (mut heard, mut mute) = (BTreeSet::from([rank]), BTreeSet::new());
        let mut next = vec![rank];
        while let Some(rank) = next.pop() {
            for &neighbour in said(&rank).into_iter().flat_map(|known| &known.neighbours) {
                match said(&neighbour) {
                    Some(_) if heard.insert(neighbour) => next.push(neighbour),
                    None if !is_gone(neighbour) => drop(mute.insert(neighbour)),
                    _ => {}
                }
            }
        }
        mute
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What ranks 0, 1, ... announced, connected in a row; those with nothing are silent.
    fn waits(said: &[Option<&[u32]>], now: Instant) -> Waits {
        let mut waits = Waits::default();
        for (rank, whom) in (0_u32..).zip(said) {
            let neighbours: Vec<u32> = rank.checked_sub(1).into_iter().chain([rank + 1]).collect();
            let neighbours: Vec<u32> =
                neighbours.into_iter().filter(|&at| (at as usize) < said.len()).collect();
            if let Some(whom) = whom {
                assert!(waits.hear(rank, 1, (whom, &neighbours), now));
            }
        }
        waits
    }

    fn roots(said: &[Option<&[u32]>], rank: u32, begin: &[u32]) -> Vec<u32> {
        let now = Instant::now();
        waits(said, now).roots(rank, begin, now, |_| false).all()
    }

    #[test]
    fn chains_are_followed_to_their_ends() {
        // Rank 3 is silent; rank 4 is behind it.
        assert_eq!(roots(&[Some(&[1]), Some(&[2]), Some(&[3]), None], 0, &[1]), [3]);
        assert_eq!(roots(&[Some(&[2]), Some(&[2]), Some(&[4]), None, None], 0, &[2]), [3]);
        // Rank 2 is busy, which counts for less than silence.
        assert_eq!(roots(&[Some(&[1]), Some(&[2]), Some(&[])], 0, &[1]), [2]);
        assert_eq!(roots(&[Some(&[1]), Some(&[2, 3]), Some(&[]), None], 0, &[1]), [3]);
        // A circle has no root.
        assert_eq!(roots(&[Some(&[1]), Some(&[0])], 0, &[1]), [0; 0]);
    }

    #[test]
    fn old_answers_do_not_count() {
        let now = Instant::now();
        let mut waits = waits(&[Some(&[1]), Some(&[])], now);
        assert!(!waits.hear(1, 1, (&[0], &[0]), now), "it was announced before");
        let later = now + Duration::from_secs(5);
        assert_eq!(
            waits.roots(0, &[1], later, |_| false).all(),
            [0; 0],
            "nobody answered who knows its neighbours"
        );
        assert!(waits.hear(1, 2, (&[0], &[0]), now));
    }
}
