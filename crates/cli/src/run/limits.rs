//! The limit of open files. A process that reads the pipes of hundreds of ranks needs more than the usual 1,024. The ranks keep
//! the usual limit: programs that use select(2) break with more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Stands for an unchanged limit.
pub(super) const UNCHANGED: &str = "unchanged";

/// Raises the soft limit to the hard limit. Returns the old one if it was lower.
pub(super) fn raise_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // RLIM_INFINITY has no number.
    let before = current?;
    (current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok())
        .then_some(before)
}

/// Restores the limit.
pub(super) fn lower_files(limit: &str) -> Result<(), String> {
    if limit == UNCHANGED {
        return Ok(());
    }
    let current = limit.parse().map_err(|_| format!("{limit:?} is not a number of files"))?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
        .map_err(|error| format!("cannot set the limit of open files to {current}: {error}"))
}
