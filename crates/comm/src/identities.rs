//! Hosts and processes of ranks, to complete the list of ranks that an error blames.

use std::sync::Arc;

use weftlink_bootstrap::{Blame, BlameKind};

use crate::error::Error;

/// The host and the process of each rank of a communicator. It outlives the communicator.
#[derive(Clone, Debug)]
pub struct Identities(Arc<[Blame]>);

impl Identities {
    /// The ranks that an error of the communicator blames, as [`Error::blamed`] lists them, each with its process and, where ranks are on
    /// several hosts, its host.
    pub fn blamed(&self, error: &Error) -> Vec<Blame> {
        error.blamed().into_iter().map(|blame| self.complete(blame)).collect()
    }

    /// A rank that is blamed for something.
    pub(crate) fn blame(&self, rank: u32, kind: BlameKind) -> Blame {
        self.complete(Blame::new(rank, kind))
    }

    fn complete(&self, mut blame: Blame) -> Blame {
        if let Some(known) = self.0.get(blame.rank as usize) {
            blame.host = blame.host.or_else(|| known.host.clone());
            blame.pid = blame.pid.or(known.pid);
        }
        blame
    }
}

impl FromIterator<Blame> for Identities {
    /// The identities of ranks, in their order.
    fn from_iter<T: IntoIterator<Item = Blame>>(ranks: T) -> Self {
        Self(ranks.into_iter().collect())
    }
}
