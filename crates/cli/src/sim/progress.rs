//! A line on a terminal that says how far a long prediction is, and goes away. Nothing where nobody looks.

use std::io::{self, IsTerminal};

pub(super) struct Progress {
    is_terminal: bool,
    shown: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), shown: false }
    }

    pub(super) fn show(&mut self, text: &str) {
        if self.is_terminal {
            eprint!("\r\x1b[K{text} ...");
            self.shown = true;
        }
    }

    pub(super) fn clear(&mut self) {
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
