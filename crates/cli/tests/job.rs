//! `examples/05-job.rs` under `weft run`: a rank of a job over shared memory and over TCP, with settings that differ, and with
//! a rank that is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{example, root};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;
use weftlink_comm::bootstrap::Bootstrap;
use weftlink_comm::{Communicator, Options, Reduction};
use weftlink_knobs::Knobs;
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
fn all_reduce_works_over_every_transport() {
    let settings: [&[(&str, &str)]; 3] =
        [&[], &[("WEFT_SHM", "off")], &[("WEFT_SHM", "off"), ("WEFT_ENCRYPT", "on")]];
    for settings in settings {
        let mut command = weft_run("4", "adds");
        let done = command.arg(example("05-job")).envs(settings.iter().copied()).output().unwrap();
        let printed = (text(done.stdout), text(done.stderr));
        assert_eq!(printed, ("[0] each of 4 ranks holds 6\n".to_owned(), String::new()), "{settings:?}");
        assert_eq!(done.status.code(), Some(0), "{settings:?}");
    }
}

#[test]
fn different_settings_are_an_error_with_both_values() {
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
fn error_names_the_panicking_rank() {
    let mut command = weft_run("4", "panics");
    let done = command.arg(example("06-shrink")).arg("stay").env("RUST_BACKTRACE", "0").output().unwrap();
    let told = text(done.stderr);
    assert_eq!(done.status.code(), Some(101), "{told}");
    let last = told.lines().find(|line| line.starts_with("weft run: ")).unwrap();
    assert!(last.starts_with("weft run: rank 3 (pid ") && last.contains(" exited with code 101, "), "{told}");
}

#[test]
fn survivors_shrink_and_continue() {
    let mut command = processes::command(WEFT);
    let command =
        command.args(["run", "-n", "4", "--bind", "none", "--keep-going", "--"]).stdin(Stdio::null());
    let done = command.arg(example("06-shrink")).env("RUST_BACKTRACE", "0").output().unwrap();
    let (printed, told) = (text(done.stdout), text(done.stderr));
    assert_eq!(printed, "[0] 3 ranks are left; the sum is 3\n", "{told}");
    assert_eq!(done.status.code(), Some(101), "{told}");
    assert!(told.contains("; 3 of 4 ranks exited with code 0\n"), "{told}");
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
fn every_error_names_the_killed_rank() {
    for (name, settings) in [("killed", &[][..]), ("killed-tcp", &[("WEFT_SHM", "off")][..])] {
        let done = killed(name, settings);
        let told = text(done.stderr);
        assert_eq!(done.status.code(), Some(128 + 9), "{told}");
        for rank in [0, 1, 3] {
            let names = |line: &&str| {
                line.starts_with(&format!("[{rank}] rank 2 (")) && line.contains(" died during call")
            };
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

/// Which rank of [`harmed_rank`] is harmed, where, and by which signal.
const VICTIM: &str = "HARMED_RANK";
const POSITION: &str = "HARMED_AT";
const SIGNAL: &str = "HARMED_BY";
/// Places at which the victim signals itself: before it joins, with so many sockets while it joins, when it has joined, when it
/// has a communicator, and between calls.
const POSITIONS: [&str; 9] = ["start", "1", "2", "3", "4", "5", "joined", "made", "calls"];

/// Not a test: what the ranks of jobs run in which one signals itself.
#[test]
fn harmed_rank() {
    let Ok(position) = std::env::var(POSITION) else { return };
    let is_victim = std::env::var("RANK") == std::env::var(VICTIM);
    let signal = if std::env::var(SIGNAL).unwrap() == "KILL" { Signal::KILL } else { Signal::STOP };
    let harm = move || kill_process(getpid(), signal).unwrap();
    let at = |name: &str| {
        if is_victim && position == name {
            harm();
        }
    };
    let is_ready = AtomicBool::new(false);
    let work = || -> Result<(), weftlink_comm::Error> {
        at("start");
        let knobs = Knobs::from_environment()?;
        let bootstrap = Bootstrap::from_environment(&knobs)?;
        at("joined");
        let mut comm = Communicator::new(bootstrap, Options::of(&knobs))?;
        at("made");
        for call in 0..1_000_000 {
            if call == 20 {
                at("calls");
                // A rank that never has so many sockets is harmed here.
                is_ready.store(true, Ordering::Relaxed);
            }
            comm.all_reduce(&mut [1.0_f32; 100], Reduction::Sum)?;
        }
        Ok(())
    };
    let worked = std::thread::scope(|scope| {
        if let Some(sockets) = position.parse::<usize>().ok().filter(|_| is_victim) {
            let is_ready = &is_ready;
            scope.spawn(move || {
                while sockets_of_this_process() < sockets && !is_ready.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                harm();
            });
        }
        let worked = work();
        is_ready.store(true, Ordering::Relaxed);
        worked
    });
    if let Err(error) = worked {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn sockets_of_this_process() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| {
        let target = std::fs::read_link(file.ok()?.path()).ok()?;
        target.to_str().map(|target| target.starts_with("socket:"))
    });
    links.filter(|is_socket| *is_socket).count()
}

/// Runs a job in which a rank harms itself, and gives what the launcher found, and what everybody printed.
fn harmed(victim: usize, position: &str, signal: &str) -> (Value, String) {
    let done = processes::command(WEFT)
        .args(["run", "-n", "4", "--bind", "none", "--json", "--grace", "20s", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "harmed_rank", "--nocapture", "--test-threads=1"])
        .envs([(VICTIM, victim.to_string().as_str()), (POSITION, position), (SIGNAL, signal)])
        .env("WEFT_DEADLINE", "4s")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (text(done.stdout), text(done.stderr));
    (serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")), err)
}

/// Harms each of some ranks at each place, several jobs at a time, and judges what came of it.
fn harmed_everywhere(signal: &str, judge: impl Fn(usize, &Value) -> Result<(), String> + Sync) {
    let cases = [0, 1, 3].into_iter().flat_map(|victim| POSITIONS.map(|position| (victim, position)));
    let (cases, wrong) = (Mutex::new(cases.collect::<Vec<_>>()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((victim, position)) = { cases.lock().unwrap().pop() } {
                    let (found, told) = harmed(victim, position, signal);
                    if let Err(why) = judge(victim, &found) {
                        let what = format!("rank {victim} at {position}: {why}\n{found:#}\n{told}");
                        wrong.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether all ranks that failed by themselves and said why blame a rank, among others or alone.
fn all_blame(found: &Value, victim: usize) -> Result<(), String> {
    let blames = |line: &Value| {
        let mut blamed = line["blamed"].as_array().into_iter().flatten();
        blamed.any(|blame| blame["rank"] == victim)
    };
    let is_own = |line: &&Value| !line["said"].is_null() && line["was_told_to_end"] == false;
    let mut said = found["ranks"].as_array().into_iter().flatten().filter(is_own);
    match said.find(|line| line["rank"] != victim && !blames(line)) {
        Some(line) => Err(format!("rank {} does not blame it", line["rank"])),
        None => Ok(()),
    }
}

#[test]
fn suspended_rank_is_named_at_every_point() {
    harmed_everywhere("STOP", |victim, found| {
        let why = found["why"].as_str().unwrap_or_default();
        let headline = format!("failed because of rank {victim} (pid {})", found["ranks"][victim]["pid"]);
        if found["failed_first"] != victim || !why.contains(&headline) {
            return Err(format!("the launcher names {}: {why}", found["failed_first"]));
        }
        if found["ranks"][victim]["was_stopped"] != true {
            return Err("the launcher did not see that it was stopped".to_owned());
        }
        all_blame(found, victim)
    });
}

#[test]
fn killed_rank_is_named_at_every_point() {
    harmed_everywhere("KILL", |victim, found| {
        let why = found["why"].as_str().unwrap_or_default();
        let headline = format!("rank {victim} (pid {}) was killed by SIGKILL", found["ranks"][victim]["pid"]);
        if found["failed_first"] != victim || !why.starts_with(&headline) || found["exit_code"] != 128 + 9 {
            return Err(format!("the launcher names {}: {why}", found["failed_first"]));
        }
        all_blame(found, victim)
    });
}

#[test]
fn numbers_are_masked() {
    assert_eq!(without_numbers("[3] pid 28089, 0.0 s, #5026"), "[N] pid N, N s, #N");
}
