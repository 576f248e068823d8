//! What a rank reports to the launcher that started it (`weft run`): why its job's own communicator failed, and which ranks it blames.

use std::fs::OpenOptions;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use weftlink_shm::limits;

use crate::blame::{Blame, Failure};

/// The job's own communicator, once there is one.
static OWN: Mutex<Option<u64>> = Mutex::new(None);

/// Longer errors are cut.
const WORDS_BYTES_MAX: usize = 4096;
/// The most ranks that are reported.
const BLAMED_MAX: usize = 256;

/// Whether a communicator that is made now is the job's own: the first of this size.
pub fn is_own(job: u64) -> bool {
    *OWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(job) == job
}

/// What a rank reports to its launcher when its communicator fails: a line of JSON in the file that `WEFT_LAST_WORDS` names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExitReport {
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
pub fn report_start(rank: usize, size: usize, failure: &Failure) {
    let is_made = OWN.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    if !is_made && launched() == Some((rank, size)) {
        report(rank, failure, true);
    }
}

/// Reports why the job's own communicator failed, or did not start.
pub fn report(rank: usize, failure: &Failure, is_starting: bool) {
    let Some(path) = std::env::var_os("WEFT_LAST_WORDS") else { return };
    let why = &failure.why;
    let why = why[..why.floor_char_boundary(WORDS_BYTES_MAX.min(why.len()))].to_owned();
    let blamed = failure.blamed.iter().take(BLAMED_MAX).cloned().collect();
    let words = ExitReport { rank, why, blamed, is_starting };
    // The launcher may be gone. One write, so that lines of ranks do not mix.
    if let Ok(mut file) = OpenOptions::new().append(true).open(path)
        && let Ok(line) = serde_json::to_string(&words)
    {
        let _ = limits::append(&mut file, (line + "\n").as_bytes());
    }
}

/// Tells the launcher that this process uses a library of Weft's that the launcher has loaded into it: a line with its name in the same file.
pub fn report_use(library: &str) {
    if let Some(path) = std::env::var_os("WEFT_LAST_WORDS")
        && let Ok(mut file) = OpenOptions::new().append(true).open(path)
    {
        let _ = limits::append(&mut file, format!("{{\"uses\":\"{library}\"}}\n").as_bytes());
    }
}

/// Which rank of how many this process is in a job of `weft run`.
pub fn launched() -> Option<(usize, usize)> {
    std::env::var_os("WEFT_JOB")?;
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((number("RANK")?, number("WORLD_SIZE")?))
}
