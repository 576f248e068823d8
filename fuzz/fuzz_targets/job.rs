//! Traces of jobs: the reader never panics, errors have a message, and what was read can be explained: findings have evidence and fixes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_doctor::job::{Job, explain};

fuzz_target!(|bytes: &[u8]| {
    let mut job = Job::default();
    // The same trace as two ranks, so that calls are found on both.
    for name in ["rank0.json", "rank1.json"] {
        if let Err(error) = job.add_trace(name, bytes) {
            assert!(!error.to_string().is_empty());
            return;
        }
    }
    let (summary, report) = explain(&job, None);
    for finding in &report.findings {
        assert!(!finding.evidence.is_empty() && !finding.fixes.is_empty(), "{}", finding.id);
    }
    assert!(summary.time_us().is_none_or(|us| us >= 0.0));
});
