//! The logger that NCCL hands to its plugins: lines go where `NCCL_DEBUG` and `NCCL_DEBUG_FILE` send NCCL's own.

#![allow(unsafe_code)] // Calls a function of NCCL.

use std::ffi::{CString, c_char, c_int, c_ulong};

/// NCCL's logger: level, subsystems, file, line, format.
pub type LoggerFunction = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// The subsystems of a line, as `NCCL_DEBUG_SUBSYS` selects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// `TUNING`.
    Tuning,
    /// `PROFILE`, and `INIT`, which is on by default.
    Profile,
}

impl Subsystem {
    fn flags(self) -> c_ulong {
        match self {
            Subsystem::Tuning => 0x40,
            Subsystem::Profile => 0x4001,
        }
    }
}

const WARN: c_int = 2;
const INFO: c_int = 3;

/// The logger of a communicator; without one, lines are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Logger {
    function: Option<LoggerFunction>,
    subsystem: Subsystem,
}

impl Logger {
    /// # Safety
    /// The function is NCCL's logger, or of its type, and can be called as long as the logger is used.
    pub unsafe fn new(function: Option<LoggerFunction>, subsystem: Subsystem) -> Self {
        Self { function, subsystem }
    }

    /// A logger that drops all lines.
    pub fn none(subsystem: Subsystem) -> Self {
        Self { function: None, subsystem }
    }

    /// Logs a decision (`NCCL_DEBUG=INFO`).
    pub fn info(&self, text: &str) {
        self.log(INFO, text);
    }

    /// Logs a problem (`NCCL_DEBUG=WARN`).
    pub fn warn(&self, text: &str) {
        self.log(WARN, text);
    }

    fn log(&self, level: c_int, text: &str) {
        let Some(function) = self.function else { return };
        // What follows a zero byte would be lost.
        let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
        // SAFETY: the function is NCCL's logger, by the promise to `new`; the texts are terminated and outlive the call, and the
        // format takes one text.
        unsafe {
            function(level, self.subsystem.flags(), c"weft".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr())
        };
    }
}
