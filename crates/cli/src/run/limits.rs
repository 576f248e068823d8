//! How many files a process may have open. Whoever reads the pipes of hundreds of ranks needs more than the usual 1,024, which
//! ranks are to keep: programs that use select(2) break with more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// In place of a limit: as it is.
pub(super) const UNCHANGED: &str = "unchanged";

/// Allows this process all that it may allow itself; what it was before, if that was less.
pub(super) fn raise_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is no number.
    let before = current?;
    (current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok())
        .then_some(before)
}

/// Sets the limit to what it was.
pub(super) fn lower_files(limit: &str) -> Result<(), String> {
    if limit == UNCHANGED {
        return Ok(());
    }
    let current = limit.parse().map_err(|_| format!("{limit:?} is no number of files"))?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
        .map_err(|error| format!("cannot be limited to {current} open files: {error}"))
}
