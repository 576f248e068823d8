//! Which part of a group may go on when its ranks lose touch.
//!
//! A rank that cannot be reached may be dead, or alive on the other side of a broken network, where it sees the same of us. If
//! both sides went on, there would be two groups that each take themselves for the only one. So:
//!
//! - Ranks that are proved dead need no vote. The kernel that ran the process says so (a pidfd), or a host refuses connections
//!   where the rank listened, so nobody listens there any more. Silence proves nothing.
//! - If any other rank is missing, a side goes on only with more than half of all ranks of the old group, or with exactly half of
//!   them if rank 0 is among these.
//!
//! The dead count as ranks of the old group. Leaving them out would be wrong: a side that went on may lose ranks afterwards, and
//! the other side, which sees these deaths, would then take itself for the majority.

use std::collections::BTreeSet;

/// Whether these ranks of a group of `size` may go on, of which those in `dead` are proved to be.
pub(super) fn may_go_on(size: usize, here: &[u32], dead: &BTreeSet<u32>) -> bool {
    let is_accounted_for = |rank: &u32| here.contains(rank) || dead.contains(rank);
    let nobody_else_lives = (0..size as u32).all(|rank| is_accounted_for(&rank));
    nobody_else_lives || 2 * here.len() > size || 2 * here.len() == size && here.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_on(size: usize, here: &[u32], dead: &[u32]) -> bool {
        may_go_on(size, here, &dead.iter().copied().collect())
    }

    #[test]
    fn the_dead_need_no_vote() {
        assert!(goes_on(4, &[3], &[0, 1, 2]));
        assert!(goes_on(2, &[1], &[0]));
        assert!(goes_on(1, &[0], &[]));
    }

    #[test]
    fn those_who_cannot_be_reached_do() {
        assert!(goes_on(3, &[0, 1], &[]));
        assert!(goes_on(3, &[1, 2], &[]));
        assert!(!goes_on(3, &[0], &[]));
        assert!(!goes_on(5, &[0, 1], &[4]), "the dead do not make a minority larger");
        assert!(goes_on(5, &[0, 1, 2], &[4]));
    }

    #[test]
    fn halves_are_told_apart_by_rank_0() {
        assert!(goes_on(4, &[0, 3], &[]));
        assert!(!goes_on(4, &[1, 2], &[]));
        assert!(goes_on(2, &[0], &[]));
        assert!(!goes_on(2, &[1], &[]));
        assert!(!goes_on(4, &[1, 2], &[0]), "rank 0 may have gone on with rank 3 before it died");
    }

    /// Sides that shrink one after the other: what went on first may die afterwards, and the others see that.
    #[test]
    fn no_two_sides_ever_go_on() {
        for size in 1..=6_u32 {
            let ranks = |set: u32| (0..size).filter(|rank| set >> rank & 1 == 1).collect::<Vec<u32>>();
            let all = (1 << size) - 1;
            for (one, dead) in (1..=all).flat_map(|one| (0..=all).map(move |dead| (one, dead))) {
                if one & dead != 0 || !goes_on(size as usize, &ranks(one), &ranks(dead)) {
                    continue;
                }
                // Some of the first side die later, but not all, and everybody who was dead stays so.
                for other in (1..=all).filter(|other| other & (one | dead) == 0) {
                    for later in (0..=all).filter(|later| later & one == *later && *later != one) {
                        let goes = goes_on(size as usize, &ranks(other), &ranks(dead | later));
                        assert!(
                            !goes,
                            "{size} ranks: {one:b}, then {other:b}, dead {dead:b}, then {later:b}"
                        );
                    }
                }
            }
        }
    }
}
