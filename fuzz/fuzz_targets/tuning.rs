//! Tuning files: the reader never panics, and errors have a message and a line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_comm::check_tuning;

fuzz_target!(|text: &str| {
    if let Err(error) = check_tuning(text, 2) {
        assert!(error.line >= 1 && error.line <= text.lines().count().max(1) + 1, "{error}");
        assert!(!error.what.is_empty());
    }
});
