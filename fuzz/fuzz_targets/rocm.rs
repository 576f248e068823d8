//! The output of `rocm-smi --showtopo`: the reader never panics, and every GPU of a fabric that was read has its links.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::catalog::gpus;
use weftlink_fabric::format::rocm;
use weftlink_fuzz::exercise;

fuzz_target!(|bytes: &[u8]| {
    match rocm::read(bytes, "fuzz", gpus::by_id("mi300x")) {
        Ok(fabric) => exercise(&fabric),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
