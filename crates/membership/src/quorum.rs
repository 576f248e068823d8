//! Which part of a group may continue when its ranks lose touch.
//!
//! A rank that cannot be reached may be dead, or alive on the other side of a broken network, where it sees the same of us. If
//! both sides continued, there would be two groups that each take themselves for the only one. So:
//!
//! - Ranks that are proved dead need no vote. The kernel that ran the process says so (a pidfd), or a host refuses connections
//!   where the rank listened, so nobody listens there any more. Silence proves nothing.
//! - If any other rank is missing, a side continues only with more than half of all ranks of the old group, or with exactly half
//!   of them if the first rank is among these.
//!
//! The dead count as ranks of the old group. Leaving them out would be wrong: a side that continued may lose ranks afterwards,
//! and the other side, which sees these deaths, would then take itself for the majority.

use std::collections::BTreeSet;

/// Whether the ranks `here` may continue for a group of these ranks, of which those in `dead` are proved to be.
pub fn may_continue(group: &[u32], here: &BTreeSet<u32>, dead: &BTreeSet<u32>) -> bool {
    let count = group.iter().filter(|rank| here.contains(rank)).count();
    let nobody_else_lives = group.iter().all(|rank| here.contains(rank) || dead.contains(rank));
    let has_first = group.first().is_some_and(|first| here.contains(first));
    nobody_else_lives || 2 * count > group.len() || 2 * count == group.len() && has_first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continues(size: u32, here: &[u32], dead: &[u32]) -> bool {
        let set = |ranks: &[u32]| ranks.iter().copied().collect();
        may_continue(&(0..size).collect::<Vec<u32>>(), &set(here), &set(dead))
    }

    #[test]
    fn the_dead_need_no_vote() {
        assert!(continues(4, &[3], &[0, 1, 2]));
        assert!(continues(2, &[1], &[0]));
        assert!(continues(1, &[0], &[]));
    }

    #[test]
    fn unreachable_ranks_need_a_majority() {
        assert!(continues(3, &[0, 1], &[]));
        assert!(continues(3, &[1, 2], &[]));
        assert!(!continues(3, &[0], &[]));
        assert!(!continues(5, &[0, 1], &[4]), "the dead do not make a minority larger");
        assert!(continues(5, &[0, 1, 2], &[4]));
    }

    #[test]
    fn the_first_rank_decides_between_halves() {
        assert!(continues(4, &[0, 3], &[]));
        assert!(!continues(4, &[1, 2], &[]));
        assert!(continues(2, &[0], &[]));
        assert!(!continues(2, &[1], &[]));
        assert!(!continues(4, &[1, 2], &[0]), "rank 0 may have continued with rank 3 before it died");
    }

    /// Sides that shrink one after the other: ranks of the side that continued first may die afterwards, and the others see that.
    #[test]
    fn no_two_sides_ever_continue() {
        for size in 1..=6_u32 {
            let ranks = |set: u32| (0..size).filter(|rank| set >> rank & 1 == 1).collect::<Vec<u32>>();
            let all = (1 << size) - 1;
            for (one, dead) in (1..=all).flat_map(|one| (0..=all).map(move |dead| (one, dead))) {
                if one & dead != 0 || !continues(size, &ranks(one), &ranks(dead)) {
                    continue;
                }
                // Some of the first side die later, but not all, and the dead stay dead.
                for other in (1..=all).filter(|other| other & (one | dead) == 0) {
                    for later in (0..=all).filter(|later| later & one == *later && *later != one) {
                        let both = continues(size, &ranks(other), &ranks(dead | later));
                        assert!(
                            !both,
                            "{size} ranks: {one:b}, then {other:b}, dead {dead:b}, then {later:b}"
                        );
                    }
                }
            }
        }
    }
}
