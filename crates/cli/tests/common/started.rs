//! Processes that tests of `weft run` start, and waits for what they do.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use weftlink_testkit::processes::command;

pub(crate) fn pid(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

pub(crate) fn kill(signal: &str, pid: &str) {
    assert!(command("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap().success());
}

/// Waits until a process has exited; a zombie has.
pub(crate) fn assert_gone(pid: &str) {
    if pid.is_empty() {
        return;
    }
    until(&format!("process {pid} ends"), || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ") || status.contains("State:\tX")
    });
}

pub(crate) fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited a minute until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
