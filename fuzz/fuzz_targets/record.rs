//! Flight records, as JSON and as memory: the reader never panics, errors have a message, and a record that was read
//! survives a round trip and can be explained together with that of another rank.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_comm::Record;
use weftlink_comm::why::explain;

fuzz_target!(|bytes: &[u8]| {
    match Record::read(bytes) {
        Ok(record) => {
            let again = Record::read(record.to_json().as_bytes()).expect("the written record reads");
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
