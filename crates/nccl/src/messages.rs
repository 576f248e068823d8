//! Messages that a thread waits for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weftlink::{Endpoint, Error};

use crate::failure::Failure;
use crate::lock::lock;

/// The tags of all messages of a communicator's endpoint. Those of the program match in the order in which they were sent.
pub(crate) mod tag {
    /// Messages of the program.
    pub(crate) const PROGRAM: u64 = 0;
    /// Between ranks that shrink.
    pub(crate) const SHRINK: u64 = 1;
    /// Signals: their headers, and the bytes of puts.
    pub(crate) const HEADERS: u64 = 2;
    pub(crate) const CONTENTS: u64 = 3;
}

/// How long a thread that waits for messages looks at nothing else.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Messages that are under way, each with a deadline.
pub(crate) struct Messages {
    left: AtomicUsize,
    /// The first error.
    failed: Mutex<Option<Error>>,
}

impl Messages {
    /// This many.
    pub(crate) fn new(count: usize) -> Arc<Messages> {
        Arc::new(Messages { left: AtomicUsize::new(count), failed: Mutex::new(None) })
    }

    /// Waits for all, and returns the first error.
    pub(crate) fn wait(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        while !endpoint.wait_until(|| self.left.load(Ordering::Acquire) == 0, LOOK) {}
        let failed = lock(&self.failed).take();
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// One has ended.
    pub(crate) fn done(&self, ended: Result<(), Error>) {
        if let Err(error) = ended {
            lock(&self.failed).get_or_insert(error);
        }
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}
