//! The utilisation of links in a run: the busiest link, and each kind of link.

use weftlink_fabric::LinkKind;

use crate::engine::Outcome;
use crate::engine::wires::Resource;

/// Links with a lower utilisation are not reported.
const UTILISATION_MIN: f64 = 1e-4;

impl Outcome {
    /// The busiest links and their utilisation.
    pub fn busiest(&self) -> Option<(&Resource, f64)> {
        let parts = self.resources.iter().map(|resource| (resource, self.utilisation_of(resource)));
        parts.filter(|(_, part)| *part > UTILISATION_MIN).max_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// The utilisation of each kind of link, over the links that carried data; highest first.
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
        parts.retain(|(_, part)| *part > UTILISATION_MIN);
        parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        parts
    }

    fn utilisation_of(&self, resource: &Resource) -> f64 {
        resource.moved / resource.capacity / (self.time.0 as f64 * 1e-12)
    }
}
