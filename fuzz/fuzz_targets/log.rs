//! Logs of nccl-tests: the reader never panics, and what it read has sizes and times above 0.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_sim::calibrate::log;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match log::read(text, None, log::of_name(text)) {
        Ok(log) => {
            assert!(!log.tables.is_empty());
            let calls = log.tables.iter().flat_map(|table| &table.calls);
            calls.for_each(|(bytes, time_us)| assert!(*bytes > 0 && *time_us > 0.0, "{bytes} bytes, {time_us} us"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
