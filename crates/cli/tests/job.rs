//! `examples/05-job.rs` under `weft run`: a rank of a job over shared memory and over TCP, with settings that differ, and with
//! a rank that is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{example, root};
use serde_json::Value;
use weftlink_testkit::processes;

const WEFT: &str = env!("CARGO_BIN_EXE_weft");

fn weft_run(ranks: &str, name: &str) -> Command {
    let mut command = processes::command(WEFT);
    command.args(["run", "-n", ranks, "--bind", "none", "--name", name, "--"]).stdin(Stdio::null());
    command
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn ranks_add_up_over_whatever_is_between_them() {
    let settings: [&[(&str, &str)]; 3] =
        [&[], &[("WEFT_SHM", "off")], &[("WEFT_SHM", "off"), ("WEFT_ENCRYPT", "on")]];
    for settings in settings {
        let mut command = weft_run("4", "adds");
        let done = command.arg(example("05-job")).envs(settings.iter().copied()).output().unwrap();
        let printed = (text(done.stdout), text(done.stderr));
        assert_eq!(printed, ("[0] every one of 4 ranks holds 6\n".to_owned(), String::new()), "{settings:?}");
        assert_eq!(done.status.code(), Some(0), "{settings:?}");
    }
}

#[test]
fn settings_that_differ_are_named_with_both_values() {
    let script = r#"if [ "$RANK" = 1 ]; then export WEFT_ENCRYPT=on; fi; exec "$0""#;
    let mut command = weft_run("3", "differs");
    let done = command.args(["sh", "-c", script]).arg(example("05-job")).output().unwrap();
    let told = text(done.stderr);
    assert_eq!(done.status.code(), Some(1), "{told}");
    let refused = "WEFT_ENCRYPT: it has on, rank 0 has off. Give all ranks the same\n";
    assert!(told.contains("[1] rank 1 was refused at 127.0.0.1:") && told.contains(refused), "{told}");
    assert!(told.contains("weft run: rank 1 (pid "), "{told}");
}

/// Kills rank 2 of 4 while they call, and gives what everybody said. However busy the machine is, ranks have a minute for that:
/// they do not heed that they are told to end.
fn killed(name: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = processes::command(WEFT);
    let job = command
        .args(["run", "-n", "4", "--bind", "none", "--grace", "60s", "--name", name, "--"])
        // Long enough for people to kill it, and not for ever if the test does not.
        .args(["sh", "-c", r#"trap "" TERM; exec "$0" 1000000"#])
        .arg(example("05-job"))
        .stdin(Stdio::null())
        .envs(settings.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let look = || -> Option<u64> {
        let asked =
            processes::command(WEFT).args(["why", "--json", "--attach", &job.id().to_string()]).output();
        let found: Value = serde_json::from_slice(&asked.unwrap().stdout).ok()?;
        let ranks = found["jobs"][0]["ranks"].as_array()?;
        let calls = ranks.len() == 4 && ranks.iter().all(|line| line["call"].as_u64() > Some(10));
        calls.then(|| ranks[2]["pid"].as_u64())?
    };
    let pid = (0..600).find_map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        look()
    });
    let pid = pid.expect("the ranks begin to call");
    assert!(processes::command("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    job.wait_with_output().unwrap()
}

#[test]
fn a_rank_that_panics_is_the_one_that_is_named() {
    let mut command = weft_run("4", "panics");
    let done = command.arg(example("06-shrink")).arg("stay").env("RUST_BACKTRACE", "0").output().unwrap();
    let told = text(done.stderr);
    assert_eq!(done.status.code(), Some(101), "{told}");
    let last = told.lines().find(|line| line.starts_with("weft run: ")).unwrap();
    assert!(
        last.starts_with("weft run: rank 3 (pid ") && last.contains(" ended with exit code 101, "),
        "{told}"
    );
}

#[test]
fn those_who_are_left_shrink_and_go_on() {
    let mut command = processes::command(WEFT);
    let command =
        command.args(["run", "-n", "4", "--bind", "none", "--keep-going", "--"]).stdin(Stdio::null());
    let done = command.arg(example("06-shrink")).env("RUST_BACKTRACE", "0").output().unwrap();
    let (printed, told) = (text(done.stdout), text(done.stderr));
    assert_eq!(printed, "[0] 3 ranks are left, and agree on 3\n", "{told}");
    assert_eq!(done.status.code(), Some(101), "{told}");
    assert!(told.contains("; 3 of 4 ranks ended well\n"), "{told}");
}

/// What people are shown, without what differs from time to time.
fn without_numbers(line: &str) -> String {
    let mut plain = String::new();
    for character in line.chars() {
        match character {
            '0'..='9' if plain.ends_with('N') => {}
            '0'..='9' => plain.push('N'),
            other => plain.push(other),
        }
    }
    plain.replace("N.N", "N")
}

#[test]
fn a_rank_that_is_killed_is_named_by_all() {
    for (name, settings) in [("killed", &[][..]), ("killed-tcp", &[("WEFT_SHM", "off")][..])] {
        let done = killed(name, settings);
        let told = text(done.stderr);
        assert_eq!(done.status.code(), Some(128 + 9), "{told}");
        for rank in [0, 1, 3] {
            let names =
                |line: &&str| line.starts_with(&format!("[{rank}] rank 2 (")) && line.contains(" died; ");
            assert!(told.lines().any(|line| names(&line)), "rank {rank} says nothing: {told}");
        }
        let last = told.lines().last().unwrap();
        assert!(
            last.starts_with("weft run: rank 2 (pid ") && last.contains(" was killed by SIGKILL"),
            "{told}"
        );
        if settings.is_empty() {
            assert_eq!(shown(), said(&told), "docs/run.md shows something else");
        }
    }
}

/// The lines that docs/run.md shows of this, in any order.
fn shown() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/run.md")).unwrap();
    let after = page.split("kill -9").nth(1).expect("the page tells of it");
    said(after.split("```").nth(1).expect("and shows it").trim_start_matches("text\n"))
}

fn said(text: &str) -> Vec<String> {
    // Ranks that took longer than a second to say so, on a busy machine, were told to end.
    let without_others = |line: &str| line.split("; N other").next().unwrap_or_default().to_owned();
    let mut lines: Vec<String> =
        text.lines().map(without_numbers).map(|line| without_others(&line)).collect();
    lines.sort();
    lines
}

#[test]
fn numbers_do_not_matter() {
    assert_eq!(without_numbers("[3] pid 28089, 0.0 s, #5026"), "[N] pid N, N s, #N");
}
