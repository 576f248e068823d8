//! Which communicator of its process one is: the job's own, or another that was made of it or beside it.
//!
//! Counters are told by the number that a rank has in its job, and by the communicator: `world` for the job's own, its number
//! (as records have it) for any other. The launcher tells what a process is in its job; without one, a communicator's own
//! rank is all there is to say.
//!
//! Deliberately absent: which communicator another was made of, since communicators do not tell each other that.

use weftlink_bootstrap::{Failure, launcher};

use super::Who;

/// The name of the job's own communicator.
const WORLD: &str = "world";

/// Which communicator this is, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// The rank in the job.
    pub(crate) world_rank: usize,
    /// `world`, or the communicator's number.
    pub(crate) name: String,
}

impl Lineage {
    /// Of a communicator that is made now.
    pub(crate) fn of(who: Who) -> Self {
        // The job's own communicator is the first that stands as the launcher says; others, even of the same size, come later.
        let told = launcher::launched();
        let is_own = told.is_none_or(|told| (who.rank, who.size) == told && launcher::is_own(who.job));
        Self::new(who, told.map(|(rank, _)| rank), is_own)
    }

    fn new(who: Who, world_rank: Option<usize>, is_own: bool) -> Self {
        let name = if is_own { WORLD.to_owned() } else { format!("{:012x}", who.job) };
        Self { world_rank: world_rank.unwrap_or(who.rank), name }
    }

    /// Tells the launcher why the job's own communicator failed, if it asked for that. In parts of it ranks have other numbers.
    #[cold]
    pub(super) fn tell_launcher(&self, failure: &Failure) {
        // Otherwise it is not the job of this launcher, but one of a program's own.
        if self.name == WORLD && launcher::launched().map(|(rank, _)| rank) == Some(self.world_rank) {
            launcher::report(self.world_rank, failure, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_communicators_apart() {
        let who = Who { rank: 1, size: 2, job: 0x3f9a };
        let named = |world_rank, is_own| {
            let Lineage { world_rank, name } = Lineage::new(who, world_rank, is_own);
            (world_rank, name)
        };
        assert_eq!(named(None, true), (1, "world".to_owned()));
        assert_eq!(named(Some(3), false), (3, "000000003f9a".to_owned()), "its rank in the job stays");
    }
}
