//! A send or a receive, from when it is asked for until its end is told.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Error;

/// A send or a receive that is not over.
pub(super) struct Asked {
    /// Its number among all of this rank, from 1.
    pub(super) id: u64,
    pub(super) way: Way,
    pub(super) tag: u64,
    /// The caller's memory, which is this operation's until its end is told.
    pub(super) address: *mut u8,
    pub(super) bytes: usize,
    pub(super) began: Instant,
    /// Never, if that is further away than clocks go.
    pub(super) deadline: Option<Instant>,
    pub(super) tell: Tell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    To(usize),
    From(Option<usize>),
}

/// Who is told of the end.
pub(super) enum Tell {
    /// A thread that waits and looks among the results.
    Waiting,
    /// Nobody is waiting; the rank that sent is what a receive is told.
    Call(Callback),
}

pub(super) type Callback = Box<dyn FnOnce(Result<usize, Error>) + Send>;

impl Asked {
    pub(super) fn new(
        id: u64,
        way: Way,
        tag: u64,
        address: *mut u8,
        bytes: usize,
        timeout: Duration,
        tell: Tell,
    ) -> Asked {
        let began = Instant::now();
        Asked { id, way, tag, address, bytes, began, deadline: began.checked_add(timeout), tell }
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, bytes, .. } = self;
        match self.way {
            Way::To(to) => write!(f, "send of {bytes} bytes with tag {tag} to rank {to}"),
            Way::From(Some(from)) => write!(f, "receive of {bytes} bytes with tag {tag} from rank {from}"),
            Way::From(None) => write!(f, "receive of {bytes} bytes with tag {tag} from any rank"),
        }
    }
}
