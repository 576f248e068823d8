//! The examples run, and print what they say. `cargo test` and `cargo nextest` build them along with this test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;

use weftlink_testkit::processes::command;

#[test]
fn ranks_that_are_threads() {
    assert_eq!(printed("01-all-reduce"), "every rank holds 0 + 1 + 2 + 3 = [6.0, 6.0, 6.0, 6.0]\n");
}

#[test]
fn ranks_that_are_processes() {
    assert_eq!(printed("02-processes"), "every rank holds 0 + 1 + 2 + 3 = 6\n4 of 4 ranks succeeded\n");
}

#[test]
fn a_plan_of_ones_own() {
    let printed = printed("03-own-plan");
    assert!(printed.starts_with("plan \"star\" is refused: rank 1, lane 0, step 1:"), "{printed}");
    assert!(
        printed.ends_with("verified; every rank holds 0 + 1 + 2 + 3 = [6.0, 6.0, 6.0, 6.0]\n"),
        "{printed}"
    );
}

#[test]
fn calls_that_overlap_with_computing() {
    let printed = printed("04-overlap");
    assert_eq!(printed, "every rank holds [1018.0, 1014.0, 1010.0, 1006.0, 1002.0, 998.0, 994.0, 990.0]\n");
}

#[test]
fn ranks_on_a_gpu_or_none() {
    let printed = printed("07-gpu");
    let sums = "every rank holds 0 + 1 + 2 + 3 = [6.0, 6.0, 6.0, 6.0]\n";
    assert!(printed.ends_with(sums) || printed.ends_with("no GPU\n"), "{printed}");
}

/// The output of an example. Cargo builds it into the folder `examples` beside that of this test.
fn printed(example: &str) -> String {
    let built = env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join(example);
    assert!(
        built.exists(),
        "{} is not there: `cargo build -p weftlink --examples` builds it",
        built.display()
    );
    let done = command(built).output().unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{example}: {errors}");
    assert!(errors.is_empty(), "{example}: {errors}");
    String::from_utf8(done.stdout).unwrap()
}
