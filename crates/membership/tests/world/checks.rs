//! What must hold.

use std::time::Duration;

use super::{Failure, Life, World, place_of};
use weftlink_membership::Event;
use weftlink_membership::durations::HELLO;
use weftlink_membership::regroup::View;

/// With less time to regroup, ranks that hear late of a failure, or wait for an answer of one that is stopped, are excluded.
const PATIENCE_MIN: Duration = Duration::from_secs(12);

impl World {
    /// No two groups of which all living ranks are in.
    pub(super) fn check_split(&self) -> Result<(), String> {
        let lives = |rank: &&u32| matches!(self.nodes[**rank as usize].life, Life::Runs | Life::Stopped);
        let operates = |view: &View| {
            let mut living = view.ranks.iter().filter(lives).peekable();
            living.peek().is_some() && living.all(|rank| self.nodes[*rank as usize].view.group == view.group)
        };
        let operating: Vec<&View> = self.epochs.iter().filter(|view| operates(view)).collect();
        match operating.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("more than one group continues: {operating:?}")),
        }
    }

    /// What must hold when nothing happens any more.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let runs: Vec<u32> = (0..self.nodes.len() as u32)
            .filter(|rank| self.nodes[*rank as usize].life == Life::Runs)
            .collect();
        if let Some(rank) = runs.iter().find(|rank| self.nodes[**rank as usize].regroup.is_some()) {
            let regroup = &self.nodes[*rank as usize].regroup;
            return Err(format!("rank {rank} regroups for ever: {regroup:?}"));
        }
        if self.outcome.slowest_regroup > 8 * HELLO {
            let late = self.outcome.slowest_regroup;
            return Err(format!("a rank regrouped until {late:?} after its deadline"));
        }
        if !self.had_cut {
            let regroups = |rank: &u32| !self.nodes[*rank as usize].ignores;
            self.check_together(&runs.iter().copied().filter(regroups).collect::<Vec<u32>>())?;
        }
        self.check_departures(&runs)?;
        self.check_progress()
    }

    /// Every rank of a group that has not failed knows which ranks have left it. Where the network is cut, a rank at the cut may leave
    /// before it has noticed, with a departure that nobody confirms: its side then hears neither of the cut nor from the other side.
    fn check_departures(&self, runs: &[u32]) -> Result<(), String> {
        for &rank in runs {
            let node = &self.nodes[rank as usize];
            let is_unknown = |(group, left): &&(u64, u32)| {
                *group == node.view.group && !node.group.is_gone(place_of(&node.view, *left))
            };
            let may_miss = self.had_cut && self.unconfirmed.contains(&node.view.group);
            if node.group.cause().is_none()
                && !may_miss
                && let Some((_, left)) = self.departures.iter().find(is_unknown)
            {
                return Err(format!("rank {rank} does not know that rank {left} has left"));
            }
        }
        Ok(())
    }

    /// Ranks that nothing happened to continue together if they are more than half, whatever the others do. Of two hosts that
    /// cannot reach each other, the later one may be out.
    fn check_progress(&self) -> Result<(), String> {
        let is_sound =
            |rank: &u32| !self.faulty.contains(rank) && !self.apart.contains(&self.hosts[*rank as usize]);
        let sound: Vec<u32> = (0..self.nodes.len() as u32).filter(is_sound).collect();
        if self.had_partition || 2 * sound.len() <= self.nodes.len() || self.regroup_timeout < PATIENCE_MIN {
            return Ok(());
        }
        let first = &self.nodes[sound[0] as usize].view;
        let is_out = |rank: &&u32| {
            let node = &self.nodes[**rank as usize];
            node.life != Life::Runs || node.view.group != first.group
        };
        match sound.iter().find(is_out) {
            Some(rank) => Err(format!("rank {rank} does not continue with the others of {sound:?}")),
            None => Ok(()),
        }
    }

    /// Whether the process of a rank has ended, by its place in the group of another.
    fn has_ended(&self, rank: u32, place: u32) -> bool {
        let other = self.nodes[rank as usize].view.ranks[place as usize];
        matches!(self.nodes[other as usize].life, Life::Dead | Life::Gone)
    }

    /// Whether a rank has left and lives on, by its place in the group of another.
    fn is_away(&self, rank: u32, place: u32) -> bool {
        let other = self.nodes[rank as usize].view.ranks[place as usize];
        self.nodes[other as usize].life == Life::Away
    }

    /// Whether a rank has continued in another group, by its place in the group of another.
    fn has_continued(&self, rank: u32, place: u32) -> bool {
        let view = &self.nodes[rank as usize].view;
        self.nodes[view.ranks[place as usize] as usize].past.contains_key(&view.group)
    }

    /// The cause that a rank reports is something that went wrong, not what came of it.
    pub(super) fn check_cause(
        &self,
        rank: u32,
        cause: &Event<Failure>,
        roots: &[Event<Failure>],
    ) -> Result<(), String> {
        let is_same = |root: &Event<Failure>| match (root, cause) {
            // All that a rank hears which was stopped until the others had regrouped, and asks one of them.
            (_, Event::Lost { rank: other, .. }) if self.has_continued(rank, *other) => true,
            (Event::Lost { rank: one, by, .. }, Event::Lost { rank: other, by: noticed, .. }) => {
                one == other && by == noticed
            }
            (Event::Died { rank: one }, Event::Lost { rank: other, .. }) => {
                // Whether a rank beyond a broken network is dead cannot be known. A rank that left without a confirmation may live on.
                one == other && (self.had_cut || self.is_away(rank, *other))
                    // Several ranks have ended, and no running rank saw how: one of them died.
                    || self.has_ended(rank, *other)
            }
            // A process that ends after its connection was lost, however that came, looks as if its end were the cause.
            (Event::Lost { rank: one, .. }, Event::Died { rank: other }) => {
                one == other && self.has_ended(rank, *other)
            }
            (root, cause) => root == cause,
        };
        match roots.iter().any(is_same) {
            true => Ok(()),
            false => Err(format!("rank {rank} reports {cause:?}, but what went wrong is {roots:?}")),
        }
    }

    /// Where the network holds, all ranks that run are in one group and know the same of it.
    pub(super) fn check_together(&self, runs: &[u32]) -> Result<(), String> {
        for &rank in runs {
            let node = &self.nodes[rank as usize];
            let elsewhere = |other: &&u32| {
                let other = &self.nodes[**other as usize];
                other.life == Life::Runs && !other.ignores && other.view.group != node.view.group
            };
            // A rank that was stopped while the others continued knows at least that they are gone.
            let is_known = |other: &u32| node.group.is_gone(place_of(&node.view, *other));
            if let Some(other) = node.view.ranks.iter().filter(elsewhere).find(|other| !is_known(other)) {
                let theirs = &self.nodes[*other as usize].view;
                return Err(format!("rank {rank} is in {:?}, rank {other} in {theirs:?}", node.view));
            }
        }
        let newest = runs.iter().map(|rank| self.nodes[*rank as usize].view.epoch).max();
        let is_newest = |rank: &&u32| Some(self.nodes[**rank as usize].view.epoch) == newest;
        let runs: Vec<u32> = runs.iter().filter(is_newest).copied().collect();
        let failed: Vec<u32> =
            runs.iter().copied().filter(|rank| self.nodes[*rank as usize].group.cause().is_some()).collect();
        match failed.is_empty() || runs.iter().all(|rank| failed.contains(rank)) {
            true => Ok(()),
            false => Err(format!("of {runs:?} only {failed:?} know that the group failed")),
        }
    }
}
