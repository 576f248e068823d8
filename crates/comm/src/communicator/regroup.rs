//! Communicators made from others: split, shrink and grow.

use weftlink_bootstrap::{Bootstrap, BootstrapError, Failure, Rendezvous};
use weftlink_recorder::header::{CallKind, Header};

use super::{Communicator, Options};
use crate::error::Error;

/// Whether to retry without the ranks that are gone.
fn is_casualty(error: &Error) -> bool {
    use BootstrapError::{Died, GaveUp, Left, Lost};
    match error {
        Error::Bootstrap(error) => {
            matches!(error, Died { .. } | Left { .. } | GaveUp { .. } | Lost { .. })
        }
        error => matches!(error, Error::Died { .. }),
    }
}

/// The number of retries: one for every rank that dies meanwhile.
const TRIES_MAX: usize = 64;

impl Communicator {
    /// The rank that each rank had in the communicator that [`split`](Communicator::split), [`shrink`](Communicator::shrink) or
    /// [`grow`](Communicator::grow) was called on; its own rank if there was none. It goes back one step, not to the first communicator.
    pub fn origins(&self) -> &[usize] {
        self.bootstrap.origins()
    }

    /// Splits the communicator: ranks that pass the same `part` get a communicator of their own, ordered by `key` and then by rank;
    /// ranks that pass `None` get none. All ranks call it. Both communicators can be used from then on, also from different threads.
    pub fn split(&mut self, part: Option<u32>, key: i64) -> Result<Option<Communicator>, Error> {
        let group = self.split_group(part, key)?;
        group.map(|group| Communicator::new(group, self.options)).transpose()
    }

    fn split_group(&mut self, part: Option<u32>, key: i64) -> Result<Option<Bootstrap>, Error> {
        self.usable()?;
        let header = Header::allocating(CallKind::Split, 0, 0, (None, 1));
        // A call of its own, so that ranks that make another call get a mismatch.
        self.share(header, 0)?;
        let Options { deadline, .. } = self.options;
        self.bootstrap.split(part, key, deadline).map_err(|error| self.lost(error))
    }

    /// A group of the same ranks, for another executor. All ranks call it.
    pub fn duplicate_group(&mut self) -> Result<Bootstrap, Error> {
        let group = self.split_group(Some(0), self.rank as i64)?;
        group.ok_or_else(|| Error::gone("the group has no ranks"))
    }

    /// A communicator of the survivors after a failed call: the ranks that call this, in the order of their ranks. Ranks that have not
    /// called it when the deadline ([`Options::deadline`]) passes are excluded, even if they live. Ranks that left this communicator
    /// do not count, also those that dropped it after the failure and answer that, as a rank whose own `shrink` failed does. If other
    /// missing ranks are not known to be dead, the survivors continue only if they are more than half of all ranks, or half of them with
    /// rank 0; otherwise the error is [`BootstrapError::Minority`]. More ranks may die meanwhile. The new communicator uses nothing of
    /// this one, neither memory nor connections; allocate windows and load plans again.
    pub fn shrink(mut self) -> Result<Communicator, Error> {
        let options = self.options;
        let mut bootstrap = std::mem::replace(&mut self.bootstrap, Bootstrap::alone());
        // Ranks that still wait in this communicator must stop waiting.
        bootstrap.clear_event_handler();
        let why = Failure::plain("the other ranks shrink to the survivors");
        bootstrap.give_up(&why, self.rank as u32, 0);
        drop(self);
        let mut shrunk = bootstrap.shrink(options.deadline)?;
        for _ in 0..TRIES_MAX {
            match Communicator::on(shrunk, options) {
                // One more died, or heard first of a death; the survivors retry.
                Err((failed, error)) if is_casualty(&error) => {
                    shrunk = failed.shrink_again(options.deadline)?
                }
                made => return made.map_err(|(_, error)| error),
            }
        }
        Err(Error::gone("ranks kept dying while the others shrank"))
    }

    /// A communicator with more ranks. The ranks of this one keep their numbers and call this, with a rendezvous of the new size; new ranks
    /// [join](Bootstrap::join) that rendezvous under the numbers that follow.
    ///
    /// The [`origins`](Communicator::origins) of the new communicator are every rank's own number. Those of this one are not kept.
    pub fn grow(self, rendezvous: &Rendezvous) -> Result<Communicator, Error> {
        if rendezvous.size <= self.size {
            let (size, wanted) = (self.size, rendezvous.size);
            return Err(Error::Misuse(format!("cannot grow a communicator of {size} ranks to {wanted}")));
        }
        let met = match self.rank {
            0 => Bootstrap::listen(rendezvous)?,
            rank => Bootstrap::join(rendezvous, rank)?,
        };
        Communicator::new(met, self.options)
    }

    /// Records that the group has failed.
    fn lost(&mut self, error: BootstrapError) -> Error {
        let error = Error::from(error);
        self.failed = Some(Failure::from(&error));
        error
    }
}
