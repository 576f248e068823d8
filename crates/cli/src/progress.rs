//! The progress of long work, as one line on a terminal that is cleared at the end. Without a terminal, on a dumb one and beside
//! a log there is none.

use std::env;
use std::io::{self, IsTerminal};

pub(crate) struct Progress {
    is_terminal: bool,
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        // A dumb terminal cannot clear a line, and log lines would break into it.
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let logs = env::var_os("WEFT_DEBUG").is_some() && env::var_os("WEFT_DEBUG_FILE").is_none();
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
