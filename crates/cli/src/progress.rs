//! The progress of long work, as one line on a terminal that is cleared at the end. Without a terminal there is none.

use std::io::{self, IsTerminal};

pub(crate) struct Progress {
    is_terminal: bool,
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), shown: false }
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
