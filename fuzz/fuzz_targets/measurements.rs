//! Files of measurements: the reader never panics, errors have a message, and rows that were read can be predicted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_sim::Constants;
use weftlink_sim::library::predict;
use weftlink_sim::published::read;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let constants = Constants::shipped();
    match read(text) {
        Ok(rows) => {
            for (row, _) in rows.iter().take(8) {
                if let Some(found) = predict(&constants, &row.setup, row.operation, row.bytes) {
                    let time = found.estimate.total_us();
                    // Infinite for links that a GPU does not have.
                    assert!(time > 0.0, "{time} us for {row:?}");
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
