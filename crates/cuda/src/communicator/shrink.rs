//! Continuing after a failure: the ranks that are left form a new group.

use std::time::Duration;

use weftlink_bootstrap::{Bootstrap, Failure};

use super::Communicator;
use crate::Error;

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
        Ok(std::mem::replace(&mut self.group, Bootstrap::alone()))
    }
}

/// The group of the ranks that are left of one that failed.
pub(crate) fn shrunk(mut group: Bootstrap, timeout: Duration) -> Result<Bootstrap, Error> {
    // Ranks that load a plan wait for this one.
    let (why, rank) = (Failure::plain("the other ranks shrink to the survivors"), group.rank() as u32);
    group.give_up(&why, rank, 0);
    group.shrink(timeout).map_err(|why| Error::Group { why: why.to_string() })
}
