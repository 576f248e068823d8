//! Who talks to whom when all ranks have something to say: a tree, so that it takes as many rounds as the number of ranks
//! has binary digits, and each rank has as many neighbours at most.
//!
//! Ranks of one host form a binomial tree of their own, under the first of them; those form a binomial tree of hosts. So
//! memory can be handed from parent to child inside a host, and each host is reached by one connection.

use serde::{Deserialize, Serialize};

/// The shape of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Binomial trees of ranks and hosts ([`parents`]).
    Binomial,
    /// All other ranks are children of rank 0, because they may not be able to reach each other.
    Star,
}

impl Shape {
    /// The parent of every rank, given every rank's host; rank 0 has none.
    pub fn parents(self, hosts: &[u32]) -> Vec<Option<u32>> {
        match self {
            Shape::Binomial => parents(hosts),
            Shape::Star => (0..hosts.len()).map(|rank| (rank > 0).then_some(0)).collect(),
        }
    }
}

/// The parent of every rank in a binomial tree, given every rank's host; rank 0 has none.
pub fn parents(hosts: &[u32]) -> Vec<Option<u32>> {
    let mut by_host: Vec<Vec<u32>> = Vec::new();
    for (rank, &host) in (0..).zip(hosts) {
        let host = host as usize;
        by_host.resize(by_host.len().max(host + 1), Vec::new());
        by_host[host].push(rank);
    }
    let mut parents = vec![None; hosts.len()];
    for (number, ranks) in by_host.iter().enumerate() {
        for (position, &rank) in ranks.iter().enumerate() {
            parents[rank as usize] = match (position, number) {
                (0, 0) => None,
                (0, _) => Some(by_host[before(number)][0]),
                _ => Some(ranks[before(position)]),
            };
        }
    }
    parents
}

/// The ranks whose parent this is.
pub fn children(parents: &[Option<u32>], rank: u32) -> Vec<u32> {
    (0..).zip(parents).filter(|&(_, parent)| *parent == Some(rank)).map(|(child, _)| child).collect()
}

/// The parent of a position in a binomial tree: the same without its lowest digit that is not 0.
fn before(position: usize) -> usize {
    if mutant!("tree-is-a-chain") { position - 1 } else { position & (position - 1) }
}

/// Numbers hosts in the order of their first ranks, by whether two ranks are on the same.
pub fn number_hosts<T>(ranks: &[T], is_same: impl Fn(&T, &T) -> bool) -> Vec<u32> {
    let mut firsts: Vec<&T> = Vec::new();
    let number = |rank| {
        let found = firsts.iter().position(|first| is_same(first, rank));
        found.unwrap_or_else(|| {
            firsts.push(rank);
            firsts.len() - 1
        }) as u32
    };
    ranks.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(parents: &[Option<u32>], rank: usize) -> u32 {
        parents[rank].map_or(0, |parent| 1 + depth(parents, parent as usize))
    }

    #[test]
    fn rounds_are_logarithmic() {
        for size in [1_usize, 2, 3, 7, 8, 100, 256] {
            let parents = parents(&vec![0; size]);
            assert_eq!(parents[0], None);
            let rounds = usize::BITS - (size - 1).leading_zeros();
            assert!((0..size).all(|rank| depth(&parents, rank) <= rounds));
            assert!((0..size as u32).all(|rank| children(&parents, rank).len() <= rounds as usize));
            assert_eq!(parents.iter().flatten().count(), size - 1);
        }
    }

    #[test]
    fn only_first_ranks_reach_other_hosts() {
        // Four hosts, dealt out.
        let names = ["a", "b", "a", "c", "d", "b", "a", "a"];
        let hosts = number_hosts(&names, |one, other| one == other);
        assert_eq!(hosts, [0, 1, 0, 2, 3, 1, 0, 0]);
        let parents = parents(&hosts);
        let none = None;
        assert_eq!(parents, [none, Some(0), Some(0), Some(0), Some(3), Some(1), Some(0), Some(6)]);
        assert_eq!(children(&parents, 0), [1, 2, 3, 6]);
        assert_eq!(Shape::Star.parents(&[0, 1, 0]), [None, Some(0), Some(0)]);
    }
}
