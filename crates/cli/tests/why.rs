//! `weft why`: on records that are committed, and on those of a job that is stopped and killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use common::{root, scratch, shell};
use serde_json::Value;
use weftlink_testkit::processes::command;

#[test]
fn records_are_merged_into_an_explanation() {
    let folder = scratch("why");
    let records = root().join("testdata/records");
    let done = shell(&folder, &format!("weft why {}", records.display()));
    assert_eq!((done.code, done.errors.as_str()), (Some(1), ""));
    let wanted = "\
Job 3f9a1c2b77d0: 4 ranks, 3 records from 2 hosts.
  Call #41 differs: rank 3 is in broadcast of 4096 bytes from rank 0, while ranks 0 and 1 are in all-reduce of 1024 f32 (sum) in place.
  Rank 0 failed: call #41 differs: rank 0 calls all-reduce of 1024 f32 (sum) in place, rank 3 broadcast of 4096 bytes from rank 0.
  Rank 1 failed: call #41 differs: rank 1 calls all-reduce of 1024 f32 (sum) in place, rank 3 broadcast of 4096 bytes from rank 0.
  Rank 3 failed: call #41 differs: rank 3 calls broadcast of 4096 bytes from rank 0, rank 0 all-reduce of 1024 f32 (sum) in place.
  There is no record of rank 2: it ended, ran elsewhere or never started.
  Rank 0 waited for a message from rank 3 in #41, all-reduce of 1024 f32 (sum) in place, for 42.0 s.
  Rank 1 waited for a message from rank 0 in #41, all-reduce of 1024 f32 (sum) in place, for 42.0 s.
  Rank 3 waited for a message from rank 2 in #41, broadcast of 4096 bytes from rank 0, for 42.0 s.
  In the end, all of them wait for rank 2.
  Rank 3 usually comes last: in 8 of 8 calls, with a median of 91.5 us after the first rank.
";
    assert!(done.output.starts_with(wanted), "{}", done.output);
    let json = shell(&folder, &format!("weft why --json {}", records.display()));
    let json: Value = serde_json::from_str(&json.output).unwrap();
    assert_eq!(json["jobs"][0]["missing"], serde_json::json!([2]));
    assert_eq!(json["jobs"][0]["ranks"][2]["what"], "broadcast of 4096 bytes from rank 0");
    assert_eq!(json["jobs"][0]["late"][0]["rank"], 3);
}

#[test]
fn folder_without_records_is_an_error() {
    let folder = scratch("why-nothing");
    fs::write(folder.join("weft-record-0-rank0.json"), "{\"version\": 1, \"job\": \"a\"").unwrap();
    let done = shell(&folder, "weft why .");
    assert_eq!(done.code, Some(2));
    assert!(done.output.contains("Skipped weft-record-0-rank0.json: not a record: EOF"), "{}", done.output);
    assert!(done.errors.contains("there is no record in ."), "{}", done.errors);
    let done = shell(&folder, "weft why");
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains("weft why --attach JOB"), "{}", done.errors);
    let done = shell(&folder, "weft why nowhere");
    assert_eq!(
        (done.code, done.errors.as_str()),
        (Some(2), "weft: cannot read nowhere: No such file or directory (os error 2)\n")
    );
}

/// A rank of a job is stopped, which is seen while the others wait; then it is killed.
#[test]
fn records_of_a_running_job_can_be_read() {
    let folder = scratch("why-stuck");
    let mut bench = command(env!("CARGO_BIN_EXE_weft"))
        .args(["bench", "all-reduce", "-n", "3", "-e", "8", "--iters", "100000000"])
        .env("WEFT_RECORD_DIR", &folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let asked =
        || -> Option<Value> { serde_json::from_str(&shell(&folder, "weft why --json .").output).ok() };
    let line = |why: &Value, rank: usize| why["jobs"][0]["ranks"][rank].clone();
    // Before that, the ranks find out what the host can do, and wait for more than each other.
    let is_measured = |what: &Value| what.as_str().is_some_and(|what| what.starts_with("all-reduce"));
    let calling = |why: &Value| (0..3).all(|rank| is_measured(&line(why, rank)["what"]));
    let why = until(|| asked().filter(calling));
    let pid = line(&why, 1)["pid"].as_u64().unwrap().to_string();
    shell(&folder, &format!("kill -STOP {pid}"));
    let said = |parts: &'static [&'static str]| {
        move |why: &Value| {
            let sentences = why["jobs"][0]["sentences"].as_array().cloned().unwrap_or_default();
            let says_all = |said: &str| parts.iter().all(|part| said.contains(part));
            sentences.iter().filter_map(Value::as_str).any(says_all)
        }
    };
    until(|| asked().filter(said(&["Rank 1 (", " is stopped, by a signal or a debugger."])));
    // For a message of its, or for it to make the next call: it was stopped anywhere.
    until(|| asked().filter(said(&[" wait", " for ", "rank 1 ", " in #"])));
    shell(&folder, &format!("kill -KILL {pid}"));
    bench.wait().unwrap();
    let why = asked().unwrap();
    assert!(said(&["Rank 1 (", " died "])(&why), "{why}");
}

/// Looks again and again, for as long as a test may run, until there is something.
fn until<T>(look: impl Fn() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it never came");
}
