//! Communicators made of others: a part of one, what is left of one, one with more ranks.

use weftlink_bootstrap::{Bootstrap, BootstrapError, Failure, Rendezvous};
use weftlink_recorder::header::{Header, What};

use super::{Communicator, Options};
use crate::error::Error;

/// Whether it is worth another try without whoever is gone.
fn is_casualty(error: &Error) -> bool {
    use BootstrapError::{Died, GaveUp, Left, Lost};
    match error {
        Error::Bootstrap(error) => {
            matches!(error, Died { .. } | Left { .. } | GaveUp { .. } | Lost { .. })
        }
        error => matches!(error, Error::Died { .. }),
    }
}

/// How often a group may shrink on the way to a communicator: once for every rank that dies meanwhile.
const TRIES_MAX: usize = 64;

impl Communicator {
    /// What each rank was in the communicator that this one was split, shrunk or grown from; its own number if there was none. It
    /// goes back one step, not to the first communicator.
    pub fn origins(&self) -> &[usize] {
        self.bootstrap.origins()
    }

    /// Splits the communicator: ranks that say the same part get a communicator of their own, in the order of their keys, and
    /// of their ranks where these are equal; whoever says no part gets none. All ranks call it. Both can be used from then on,
    /// from different threads if you like.
    pub fn split(&mut self, part: Option<u32>, key: i64) -> Result<Option<Communicator>, Error> {
        self.usable()?;
        let header = Header::allocating(What::Split, 0, 0, (None, 1));
        // So that ranks that make another call find out.
        self.share(header, 0)?;
        let Options { deadline, .. } = self.options;
        let split = self.bootstrap.split(part, key, deadline).map_err(|error| self.lost(error))?;
        split.map(|bootstrap| Communicator::new(bootstrap, self.options)).transpose()
    }

    /// A communicator of the ranks that are left, after a call failed: all that call this and live, in the order of their ranks.
    /// Those that have not called it when the deadline ([`Options::deadline`]) has passed are out, even if they live. If ranks are
    /// missing that are not proved dead, those that are left go on only if they are more than half of all ranks, or half of them with
    /// rank 0; otherwise the error is [`BootstrapError::Minority`]. Ranks may
    /// die meanwhile. Nothing of this communicator, neither memory nor connections, is used by the new one; windows and plans
    /// are made afresh.
    pub fn shrink(mut self) -> Result<Communicator, Error> {
        let options = self.options;
        let mut bootstrap = std::mem::replace(&mut self.bootstrap, Bootstrap::alone());
        // Whoever still waits here must not.
        bootstrap.clear_event_handler();
        let why = Failure::plain("the others shrink to those who are left");
        bootstrap.give_up(&why, self.rank as u32, 0);
        drop(self);
        let mut last = None;
        for _ in 0..TRIES_MAX {
            match Communicator::on(bootstrap.shrink(options.deadline)?, options) {
                Ok(communicator) => return Ok(communicator),
                // One more died, or heard first that one has; those who are left try again.
                Err((failed, error)) if is_casualty(&error) => (bootstrap, last) = (*failed, Some(error)),
                Err((_, error)) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::gone("ranks went on dying while the others shrank")))
    }

    /// A communicator with more ranks: those of this one keep their numbers and call this, with a meeting of as many ranks as
    /// there are to be; the new ones [join](Bootstrap::join) that meeting under the numbers that follow.
    ///
    /// Its [`origins`](Communicator::origins) are every rank's own number: ranks keep theirs, and new ones had none. What ranks were before an
    /// earlier split or shrink is not kept; ask for it before, if it matters.
    pub fn grow(self, meeting: &Rendezvous) -> Result<Communicator, Error> {
        if meeting.size <= self.size {
            let (size, wanted) = (self.size, meeting.size);
            return Err(Error::Misuse(format!("a communicator of {size} ranks does not grow to {wanted}")));
        }
        let met = match self.rank {
            0 => Bootstrap::listen(meeting)?,
            rank => Bootstrap::join(meeting, rank)?,
        };
        Communicator::new(met, self.options)
    }

    /// Notes that a group came apart.
    fn lost(&mut self, error: BootstrapError) -> Error {
        let error = Error::from(error);
        self.failed = Some(Failure::from(&error));
        error
    }
}
