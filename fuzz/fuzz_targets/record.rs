//! Flight records, JSON and memory left behind: no bytes panic, mistakes are explained, and whatever reads is written and read
//! back equal, and can be explained, alone and beside another rank's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_comm::Record;
use weftlink_comm::why::explain;

fuzz_target!(|bytes: &[u8]| {
    match Record::read(bytes) {
        Ok(record) => {
            let again = Record::read(record.to_json().as_bytes()).expect("what was written reads");
            assert!(again == record);
            let mut other = record.clone();
            other.rank = (record.rank + 1) % record.size;
            other.calls.truncate(record.calls.len() / 2);
            let why = explain(&[record, other]);
            assert!(why.jobs.iter().all(|job| !job.sentences.is_empty()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
