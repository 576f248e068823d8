//! Logs of NCCL: the reader and what explains a log never panic, and what they return is bounded by the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_doctor::log;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let read = log::read(&text);
    assert!(read.ranks.len() + read.processes.len() + read.warnings.len() <= 64 * read.lines.max(1));
    let fabric = weftlink_fabric::resolve("2x-rtx4090").expect("a system of the catalog");
    for fabric in [None, Some(&fabric)] {
        assert!(!log::summary(&read, fabric).to_string().contains('\u{1b}'));
        let report = log::explain(&read, fabric);
        assert!(report.findings.iter().all(|finding| !finding.what.is_empty()));
    }
});
