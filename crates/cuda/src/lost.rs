//! What became of this process's context after a call of the driver failed, or a rank died.
//!
//! Under MPS, a process that dies while its kernel runs destroys the contexts of all processes that use the daemon, within a fraction of a
//! second. A call of the driver may return that error before the monitor thread has noticed the death, and a kernel may end because of the death
//! before the context is lost. So an error waits a moment for the other half, once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::Error;
use crate::presence::Words;

/// How long a lost context waits for the report of a death. The monitor thread notices it when the process has exited, which takes up to 1.6 s
/// under MPS. Errors after a later report have it, too.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// How long a death may take to destroy this process's context under MPS; 0.2 s was measured.
const DESTROYED_WITHIN: Duration = Duration::from_millis(500);
/// How long the word of a rank may lag behind an error of the group.
const WORD_SET_WITHIN: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(5);

/// The context of a rank.
#[derive(Debug)]
pub(crate) struct ContextWatch {
    words: Words,
    /// Whether other ranks are in other processes.
    has_other_processes: bool,
    is_shared_by_mps: bool,
    /// The driver's error, once the context is lost.
    lost: OnceLock<Box<Error>>,
    /// The ranks that were dead when that was first reported. Later deaths may be consequences of the loss.
    dead: OnceLock<Vec<usize>>,
    /// A rank has died, and this has waited for the loss of the context.
    has_settled: OnceLock<()>,
}

impl ContextWatch {
    pub(crate) fn new(words: Words, has_other_processes: bool, is_shared_by_mps: bool) -> ContextWatch {
        let (lost, dead, has_settled) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        ContextWatch { words, has_other_processes, is_shared_by_mps, lost, dead, has_settled }
    }

    /// The error of every call, if the context is known to be lost.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.lost.get().map(|error| self.with_dead(error))
    }

    fn with_dead(&self, error: &Error) -> Error {
        let known = self.dead.get().cloned();
        let dead = known.unwrap_or_else(|| match self.words.gone() {
            gone if gone.is_empty() => gone,
            gone => self.dead.get_or_init(|| gone).clone(),
        });
        Error::ContextLost { dead, error: Box::new(error.clone()) }
    }

    /// The error to return in place of this one: that of the lost context, if it is. `probe` makes a call of the driver.
    pub(crate) fn explained(&self, error: Error, probe: impl Fn() -> Result<(), Error>) -> Error {
        match error {
            Error::Misuse { .. } | Error::ContextLost { .. } => error,
            error if error.is_without_context() => self.lose(error),
            error => {
                // The monitor thread ends an exchange with a dead rank before it sets the rank's word.
                let is_of_group = matches!(error, Error::Group { .. });
                let limit = if is_of_group { WORD_SET_WITHIN } else { Duration::ZERO };
                if self.is_shared_by_mps
                    && self.has_other_processes
                    && !self.words.await_gone(limit).is_empty()
                {
                    self.has_settled.get_or_init(|| self.settle(probe));
                }
                self.lost().unwrap_or(error)
            }
        }
    }

    /// The context is lost.
    fn lose(&self, error: Error) -> Error {
        let lost = || {
            let limit = if self.has_other_processes { NOTICED_WITHIN } else { Duration::ZERO };
            self.words.await_gone(limit);
            Box::new(error)
        };
        self.with_dead(self.lost.get_or_init(lost))
    }

    /// A rank has died: waits until the context is lost, or would be.
    fn settle(&self, probe: impl Fn() -> Result<(), Error>) {
        let begin = Instant::now();
        while begin.elapsed() < DESTROYED_WITHIN {
            match probe() {
                Err(error) if error.is_without_context() => return drop(self.lose(error)),
                _ => std::thread::sleep(POLL),
            }
        }
    }
}

#[cfg(test)]
mod tests;
