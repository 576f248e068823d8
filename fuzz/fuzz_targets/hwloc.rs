//! The XML of `lstopo`: the reader never panics, and a fabric that was read survives a round trip through JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::format::document::{read_json, write_json};
use weftlink_fabric::format::hwloc;
use weftlink_fuzz::exercise;

fuzz_target!(|bytes: &[u8]| {
    match hwloc::read(bytes, "fuzz") {
        Ok(fabric) => {
            exercise(&fabric);
            let json = write_json(&fabric).expect("a fabric that was read can be written");
            assert!(read_json(json.as_bytes()).expect("the written JSON reads") == fabric);
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
