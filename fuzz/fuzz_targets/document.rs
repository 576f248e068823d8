//! Documents in TOML and JSON: the readers never panic, errors have a message, and a fabric that was read survives a round
//! trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::Fabric;
use weftlink_fabric::format::ReadError;
use weftlink_fabric::format::document::{read_json, read_toml, write_json, write_toml};
use weftlink_fuzz::exercise;

fuzz_target!(|bytes: &[u8]| {
    // A base of thousands of systems is valid, but takes too long.
    if bytes.windows(4).any(|run| run[..3].iter().all(u8::is_ascii_digit) && run[3] == b'x') {
        return;
    }
    check(read_toml(bytes));
    check(read_json(bytes));
});

fn check(read: Result<Fabric, ReadError>) {
    match read {
        // TOML cannot represent every fabric.
        Ok(fabric) => {
            exercise(&fabric);
            if let Ok(toml) = write_toml(&fabric) {
                assert!(read_toml(toml.as_bytes()).expect("the written TOML reads") == fabric);
            }
            let json = write_json(&fabric).expect("a fabric that was read can be written");
            assert!(read_json(json.as_bytes()).expect("the written JSON reads") == fabric);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
