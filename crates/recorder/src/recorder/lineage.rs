//! The label of a communicator in counters: the job's own communicator, or another one.
//!
//! Counters are labelled with the rank in the job and with the communicator: `world` for the job's own, its number (as in records) for
//! any other. The launcher's variables give the rank in the job; without a launcher it is the rank in the communicator.
//!
//! Deliberately absent: the parent of a communicator, which communicators do not record.

use weftlink_bootstrap::{Failure, launcher};

use super::Owner;

/// The name of the job's own communicator.
const WORLD: &str = "world";

/// The label of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// The rank in the job.
    pub(crate) world_rank: usize,
    /// `world`, or the communicator's number.
    pub(crate) name: String,
}

impl Lineage {
    /// The label of a new communicator.
    pub(crate) fn of(owner: Owner) -> Self {
        // The job's own communicator is the first with the launcher's rank and size; others of the same size come later.
        let launched = launcher::launched();
        let is_own = launched.is_none_or(|it| (owner.rank, owner.size) == it && launcher::is_own(owner.job));
        Self::new(owner, launched.map(|(rank, _)| rank), is_own)
    }

    fn new(owner: Owner, world_rank: Option<usize>, is_own: bool) -> Self {
        let name = if is_own { WORLD.to_owned() } else { format!("{:012x}", owner.job) };
        Self { world_rank: world_rank.unwrap_or(owner.rank), name }
    }

    /// Reports the failure of the job's own communicator to the launcher, if that wants it. Ranks have other numbers in its parts.
    #[cold]
    pub(super) fn report_to_launcher(&self, failure: &Failure) {
        // Any other communicator belongs to the program, not to the launcher.
        if self.name == WORLD && launcher::launched().map(|(rank, _)| rank) == Some(self.world_rank) {
            launcher::report(self.world_rank, failure, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_distinguish_communicators() {
        let owner = Owner { rank: 1, size: 2, job: 0x3f9a };
        let named = |world_rank, is_own| {
            let Lineage { world_rank, name } = Lineage::new(owner, world_rank, is_own);
            (world_rank, name)
        };
        assert_eq!(named(None, true), (1, "world".to_owned()));
        assert_eq!(named(Some(3), false), (3, "000000003f9a".to_owned()), "its rank in the job stays");
    }
}
