//! The progress of long work, as one line on a terminal that is cleared at the end. Without a terminal, on a dumb one and beside
//! a log there is none.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use weftlink_knobs::variable;

pub(crate) struct Progress {
    is_terminal: bool,
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        // A dumb terminal cannot clear a line, and log lines would break into it.
        let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let logs = variable("WEFT_DEBUG").is_some() && variable("WEFT_DEBUG_FILE").is_none();
        Self { is_terminal: io::stderr().is_terminal() && !is_dumb && !logs, shown: false }
    }

    pub(crate) fn show(&mut self, text: &str) {
        if self.is_terminal {
            self.clear();
            eprint!("{text} ...");
            self.shown = true;
        }
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The progress of items on which several threads work.
pub(crate) struct Counted {
    begun: Mutex<(Progress, usize)>,
    items: usize,
}

impl Counted {
    pub(crate) fn new(items: usize) -> Self {
        Self { begun: Mutex::new((Progress::new(), 0)), items }
    }

    /// Work on an item begins.
    pub(crate) fn begin(&self, what: impl Display) {
        let (progress, begun) = &mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *begun += 1;
        progress.show(&format!("{what} ({begun} of {})", self.items));
    }
}
