//! A line on a terminal that says how far long work is, and goes away. Nothing where nobody looks.

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
