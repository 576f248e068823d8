//! Which communicator of its process one is: the job's own, or another that was made of it or beside it.
//!
//! Counters are told by the number that a rank has in its job, and by the communicator: `world` for the job's own, its number
//! (as records have it) for any other. The launcher tells what a process is in its job; without one, a communicator's own
//! rank is all there is to say.
//!
//! Deliberately absent: which communicator another was made of, since communicators do not tell each other that.

use std::fs::OpenOptions;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::Who;
use crate::blame::{Blame, Failure};
use crate::limits;

/// The job's own communicator, once there is one.
static OWN: Mutex<Option<u64>> = Mutex::new(None);

/// The name of the job's own communicator.
const WORLD: &str = "world";
/// Longer errors are cut.
const WORDS_BYTES_MAX: usize = 4096;
/// More ranks than these are not told.
const BLAMED_MAX: usize = 256;

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
        let told = launched();
        let is_own = told.is_none_or(|told| {
            let stands = (who.rank, who.size) == told;
            let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
            stands && *own.get_or_insert(who.job) == who.job
        });
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
        if self.name == WORLD && launched().map(|(rank, _)| rank) == Some(self.world_rank) {
            write(self.world_rank, failure, false);
        }
    }
}

/// What a rank tells its launcher when its communicator fails: a line of JSON in the file that `WEFT_LAST_WORDS` names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastWords {
    /// The rank in the job.
    pub rank: usize,
    /// The error.
    pub why: String,
    /// The ranks that it blames.
    pub blamed: Vec<Blame>,
    /// Whether the rank has not become part of the job yet. It may try again; what it says later counts for more.
    pub is_starting: bool,
}

/// Tells the launcher that the job's own communicator could not be made, if this is it.
#[cold]
pub(crate) fn tell_of_start(rank: usize, size: usize, failure: &Failure) {
    let is_made = OWN.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    if !is_made && launched() == Some((rank, size)) {
        write(rank, failure, true);
    }
}

fn write(rank: usize, failure: &Failure, is_starting: bool) {
    let Some(path) = std::env::var_os("WEFT_LAST_WORDS") else { return };
    let why = &failure.why;
    let why = why[..why.floor_char_boundary(WORDS_BYTES_MAX.min(why.len()))].to_owned();
    let blamed = failure.blamed.iter().take(BLAMED_MAX).cloned().collect();
    let words = LastWords { rank, why, blamed, is_starting };
    // A launcher that is gone has nobody to tell. One write, so that lines of ranks do not mix.
    if let Ok(mut file) = OpenOptions::new().append(true).open(path)
        && let Ok(line) = serde_json::to_string(&words)
    {
        let _ = limits::append(&mut file, (line + "\n").as_bytes());
    }
}

/// Which rank of how many this process is in a job of `weft run`.
fn launched() -> Option<(usize, usize)> {
    std::env::var_os("WEFT_JOB")?;
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((number("RANK")?, number("WORLD_SIZE")?))
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
