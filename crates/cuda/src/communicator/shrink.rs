//! Continuing after a failure: the ranks that are left form a new group.

use std::time::{Duration, Instant};

use weftlink_bootstrap::{Bootstrap, Failure};

use super::Communicator;
use crate::Error;

/// How long the end of a process that has died is waited for. The driver destroys its context first, which took up to 1.6 s.
const END: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

impl Communicator {
    /// The group of the ranks that are left after a failure: those that call this within the timeout, in the order of their ranks. A new
    /// communicator can be made of it. Ends the calls of all ranks of this one.
    ///
    /// If this process's context is lost, as after a death under MPS, that is the error, and the process must restart.
    pub fn shrink(mut self, timeout: Duration) -> Result<Bootstrap, Error> {
        let group = self.give_up()?;
        // Waits for kernels, which other ranks have ended, too.
        drop(self);
        shrunk(group, timeout)
    }

    /// Ends the calls of all ranks and takes the group out of the communicator, which must be dropped next.
    pub(crate) fn give_up(&mut self) -> Result<Bootstrap, Error> {
        self.check_process()?;
        let checked = self.check();
        self.abort();
        if let Err(lost) = checked
            && lost.needs_restart()
        {
            return Err(lost);
        }
        self.await_ends();
        Ok(std::mem::replace(&mut self.group, Bootstrap::alone()))
    }
}

impl Communicator {
    /// Waits for the ends of processes that have died, 10 seconds at most: their kernels may write to buffers until their contexts are gone.
    pub fn await_ends(&self) {
        let begin = Instant::now();
        let is_ending = |rank: &usize| !self.in_process[*rank] && is_running(self.group.pids()[*rank]);
        // Others may be reported meanwhile.
        while self.group.knows_pids()
            && self.resources.presence.words().gone().iter().any(is_ending)
            && begin.elapsed() < END
        {
            std::thread::sleep(POLL);
        }
    }
}

/// Whether a process has threads that have not ended. Its first thread may end before the others.
fn is_running(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stats =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    stats.filter_map(state).any(|state| !matches!(state, 'Z' | 'X'))
}

/// The group of the ranks that are left of one that failed.
pub(crate) fn shrunk(mut group: Bootstrap, timeout: Duration) -> Result<Bootstrap, Error> {
    // Ranks that load a plan wait for this one.
    let (why, rank) = (Failure::plain("the other ranks shrink to the survivors"), group.rank() as u32);
    group.give_up(&why, rank, 0);
    group.shrink(timeout).map_err(|why| Error::Group { why: why.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn processes_run_until_all_their_threads_have_ended() {
        assert!(is_running(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(is_running(child.id()));
        child.kill().unwrap();
        // A zombie, until it is waited for.
        while is_running(child.id()) {
            std::thread::sleep(POLL);
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
