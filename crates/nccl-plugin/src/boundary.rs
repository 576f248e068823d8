//! The boundary to NCCL: an internal error of a plugin never becomes an error of the job.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log::Logger;

/// The result of a function that did what it says.
pub const SUCCESS: c_int = 0;

/// Runs the functions of a plugin. After a panic the plugin is off: its functions return at once.
pub struct Boundary {
    plugin: &'static str,
    is_off: AtomicBool,
}

impl Boundary {
    /// The boundary of the plugin with this name.
    pub const fn new(plugin: &'static str) -> Self {
        Self { plugin, is_off: AtomicBool::new(false) }
    }

    /// Runs a function; always success.
    #[inline]
    pub fn run(&self, logger: Option<&Logger>, function: impl FnOnce()) -> c_int {
        if !self.is_off.load(Ordering::Relaxed)
            && catch_unwind(AssertUnwindSafe(function)).is_err()
            && !self.is_off.swap(true, Ordering::Relaxed)
        {
            self.report(logger);
        }
        SUCCESS
    }

    /// Says once what the panic's own message on standard error leaves out.
    #[cold]
    fn report(&self, logger: Option<&Logger>) {
        let text = format!(
            "{}: internal error (see standard error); the plugin is off for the rest of the process, and NCCL goes on without it. Please report it",
            self.plugin
        );
        match logger {
            Some(logger) => logger.warn(&text),
            None => eprintln!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_turns_the_plugin_off() {
        let boundary = Boundary::new("test");
        let mut calls = 0;
        assert_eq!(boundary.run(None, || calls += 1), SUCCESS);
        assert_eq!(boundary.run(None, || panic!("expected in this test")), SUCCESS);
        assert_eq!(boundary.run(None, || calls += 1), SUCCESS);
        assert_eq!(calls, 1);
    }
}
