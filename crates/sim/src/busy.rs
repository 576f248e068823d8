//! What was busy in a run: the narrowest link, and how much of each kind of link was used.

use weftlink_fabric::LinkKind;

use crate::engine::Outcome;
use crate::engine::wires::Resource;

/// Links that are used less than this are not worth a word.
const WORTH_A_WORD: f64 = 1e-4;

impl Outcome {
    /// The links that were busiest, and which part of the time they were.
    pub fn busiest(&self) -> Option<(&Resource, f64)> {
        let parts = self.resources.iter().map(|resource| (resource, self.part(resource)));
        parts.filter(|(_, part)| *part > WORTH_A_WORD).max_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// For each kind of link that was used, how much of what all its links that were passed could have carried; the most used first.
    pub fn utilisation(&self) -> Vec<(LinkKind, f64)> {
        let mut kinds: Vec<(LinkKind, f64, f64)> = Vec::new();
        for resource in &self.resources {
            match kinds.iter_mut().find(|(kind, ..)| *kind == resource.kind) {
                Some((_, moved, capacity)) => {
                    *moved += resource.moved;
                    *capacity += resource.capacity;
                }
                None => kinds.push((resource.kind, resource.moved, resource.capacity)),
            }
        }
        let seconds = self.time.0 as f64 * 1e-12;
        let mut parts: Vec<(LinkKind, f64)> =
            kinds.into_iter().map(|(kind, moved, capacity)| (kind, moved / capacity / seconds)).collect();
        parts.retain(|(_, part)| *part > WORTH_A_WORD);
        parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        parts
    }

    fn part(&self, resource: &Resource) -> f64 {
        resource.moved / resource.capacity / (self.time.0 as f64 * 1e-12)
    }
}
