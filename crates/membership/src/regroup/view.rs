//! A group as regrouping sees it, and its tree.

use serde::{Deserialize, Serialize};

use crate::tree;

/// A group as regrouping sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct View {
    /// Grows with each group that came out of another. No two groups that any rank was in share an epoch.
    pub epoch: u64,
    /// The group's number.
    pub group: u64,
    /// Its ranks, in order.
    pub ranks: Vec<u32>,
}

impl View {
    /// The parent of a rank in the tree of this group.
    pub(super) fn parent(&self, hosts: &[u32], rank: u32) -> Option<u32> {
        let place = self.ranks.iter().position(|other| *other == rank)?;
        let parent = tree::parents(&self.hosts(hosts))[place]?;
        self.ranks.get(parent as usize).copied()
    }

    /// The children of a rank in the tree of this group.
    pub(super) fn children(&self, hosts: &[u32], rank: u32) -> Vec<u32> {
        let Some(place) = self.ranks.iter().position(|other| *other == rank) else { return Vec::new() };
        let parents = tree::parents(&self.hosts(hosts));
        let children = tree::children(&parents, place as u32);
        children.into_iter().filter_map(|place| self.ranks.get(place as usize).copied()).collect()
    }

    /// The hosts of the ranks, numbered in the order of their first ranks.
    fn hosts(&self, hosts: &[u32]) -> Vec<u32> {
        let of: Vec<u32> =
            self.ranks.iter().map(|rank| hosts.get(*rank as usize).copied().unwrap_or_default()).collect();
        tree::number_hosts(&of, |one, other| one == other)
    }

    /// Whether this can follow another group of a first group of `size` ranks: it is newer, and its ranks are in order, each once.
    pub(super) fn follows(&self, other: &View, size: usize) -> bool {
        let is_sorted = self.ranks.windows(2).all(|pair| pair[0] < pair[1]);
        self.epoch > other.epoch && is_sorted && self.ranks.last().is_some_and(|rank| (*rank as usize) < size)
    }
}
