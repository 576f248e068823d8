//! A send or a receive, from when it is asked for until its end is told.

use std::fmt;
use std::time::{Duration, Instant};

use weftlink_plan::DataType;

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
    /// What these are; nothing for bytes.
    pub(super) data_type: Option<DataType>,
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
        let (data_type, deadline) = (None, began.checked_add(timeout));
        Asked { id, way, tag, address, bytes, data_type, began, deadline, tell }
    }

    /// The same of elements of a type.
    pub(super) fn of_type(self, data_type: Option<DataType>) -> Asked {
        Asked { data_type, ..self }
    }

    /// Whether a message, or a receive, of so many bytes and of a type is its counterpart.
    pub(super) fn fits(&self, bytes: u64, data_type: Option<DataType>) -> bool {
        self.bytes as u64 == bytes && self.data_type == data_type
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tag, what) = (self.tag, elements(self.bytes as u64, self.data_type));
        match self.way {
            Way::To(to) => write!(f, "send of {what} with tag {tag} to rank {to}"),
            Way::From(Some(from)) => write!(f, "receive of {what} with tag {tag} from rank {from}"),
            Way::From(None) => write!(f, "receive of {what} with tag {tag} from any rank"),
        }
    }
}

/// What a message consists of, as people say it.
pub(super) fn elements(bytes: u64, data_type: Option<DataType>) -> String {
    match data_type {
        Some(data_type) => format!("{} {}", bytes / data_type.bytes() as u64, data_type.name()),
        None => format!("{bytes} bytes"),
    }
}
