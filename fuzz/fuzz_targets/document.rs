//! Documents, TOML and JSON: no bytes panic, mistakes are explained, and whatever reads is written and read back equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::Fabric;
use weftlink_fabric::format::ReadError;
use weftlink_fabric::format::document::{read_json, read_toml, write_json, write_toml};
use weftlink_fuzz::ask;

fuzz_target!(|bytes: &[u8]| {
    // A base of thousands of systems is a fair request, and would take up all the fuzzer's time.
    if bytes.windows(4).any(|run| run[..3].iter().all(u8::is_ascii_digit) && run[3] == b'x') {
        return;
    }
    check(read_toml(bytes));
    check(read_json(bytes));
});

fn check(read: Result<Fabric, ReadError>) {
    match read {
        // What a document cannot hold is refused, and then there is nothing to read back.
        Ok(fabric) => {
            ask(&fabric);
            if let Ok(toml) = write_toml(&fabric) {
                assert!(read_toml(toml.as_bytes()).expect("what was written reads") == fabric);
            }
            let json = write_json(&fabric).expect("what was read can be written");
            assert!(read_json(json.as_bytes()).expect("what was written reads") == fabric);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
