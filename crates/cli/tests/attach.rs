//! `weft why --attach`: jobs that run, hang or are stopped, asked from outside.
//!
//! Ranks are this very test again, with a role in the environment. Waits for events have a bound of a minute.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{scratch, shell};
use serde_json::Value;
use weftlink_comm::{Communicator, Options, Reduction};
use weftlink_recorder::gpu::{REPORT_BYTES, ReportMemory};
use weftlink_recorder::header::{CallKind, Header};
use weftlink_recorder::recorder::{Outputs, Owner, Recorder};
use weftlink_testkit::processes;

const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const ROLE: &str = "WEFT_TEST_ROLE";

/// With a role in the environment this is one rank or several; without one it does nothing.
#[test]
fn rank() {
    let all_reduce = |comm: &mut Communicator| comm.all_reduce(&mut [1.0_f32; 3], Reduction::Sum);
    match std::env::var(ROLE).as_deref() {
        Ok("process") => {
            let mut comm = Communicator::from_environment().unwrap();
            all_reduce(&mut comm).unwrap();
            let mut part = comm.split(Some(0), -(comm.rank() as i64)).unwrap().unwrap();
            all_reduce(&mut part).unwrap();
            // Rank 0 now waits for the others, and rank 1 waits in the other communicator.
            let _ = match comm.rank() {
                0 => all_reduce(&mut comm),
                1 => all_reduce(&mut part),
                _ => Ok(()),
            };
            forever();
        }
        Ok("threads") => {
            let ranks = Communicator::threads(3, Options::default()).unwrap();
            std::thread::scope(|scope| {
                for mut comm in ranks {
                    scope.spawn(move || {
                        all_reduce(&mut comm).unwrap();
                        forever();
                    });
                }
            });
        }
        Ok("gpu") => {
            let ranks: Vec<_> = (0..3).map(gpu_rank).collect();
            forever();
            drop(ranks);
        }
        _ => {}
    }
}

/// A rank on a GPU that has loaded a plan and enqueued three calls. The kernels of ranks 0 and 2 have waited for rank 1 in the second of them for
/// seven seconds, as they report it; that of rank 1 has not started.
fn gpu_rank(rank: usize) -> (Recorder, ReportMemory) {
    let owner = Owner { rank, size: 3, job: u64::from(std::process::id()) };
    let mut recorder = Recorder::new(owner, 16, 0, &Outputs::default());
    recorder.name_plan(0, "exchange");
    recorder.describe(1, &Header::allocating(CallKind::Load, 7, 0, (None, 1)), 0, None);
    recorder.begin(1);
    recorder.end_timed();
    recorder.describe(2, &Header::allocating(CallKind::Collective(0), 0, 8, (None, 4)), 32, Some((0, 0)));
    for call in 2..5 {
        recorder.begin(call);
        recorder.enqueued(false);
    }
    let reports = ReportMemory::create(owner, 16).unwrap();
    // Through the descriptor, where kernels write to the memory.
    let is_it = |path: &PathBuf| {
        let name = std::fs::read_link(path).unwrap_or_default();
        let is_named = name.to_str().is_some_and(|name| name.starts_with("/memfd:weft: gpu waits "));
        let mut head = [0; 32];
        is_named
            && File::open(path).is_ok_and(|file| file.read_exact_at(&mut head, 0).is_ok())
            && head[24] == rank as u8
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let file = descriptors.into_iter().find(is_it).unwrap();
    let file = File::options().write(true).open(file).unwrap();
    for block in (0..4).filter(|_| rank != 1) {
        // Kind, signature, lane, slice, step, rank, poll, other, tile, call, milliseconds.
        let words = [1_u32, 0, block, 0, 2, 1, 0, 0, 0, 3, 7_000];
        let at = reports.reports_at() + (1 + block as usize) * REPORT_BYTES;
        file.write_all_at(&words.map(u32::to_le_bytes).concat(), at as u64).unwrap();
    }
    (recorder, reports)
}

/// Longer than the test, and bounded in case nothing kills the process.
fn forever() {
    std::thread::sleep(Duration::from_secs(120));
}

/// A process that is killed with the test; the ranks of `weft run` exit with it.
struct Started(Child);

impl Started {
    fn new(command: &mut Command) -> Started {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Started(quiet.env_remove("WEFT_RECORD_DIR").spawn().unwrap())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn why(arguments: &[&str]) -> Output {
    processes::command(WEFT).arg("why").args(arguments).output().unwrap()
}

fn asked(job: &str) -> Option<Value> {
    serde_json::from_slice(&why(&["--json", "--attach", job]).stdout).ok()
}

/// Looks again and again, for as long as a test may run, until there is something.
fn until<T>(look: impl Fn() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it never came");
}

fn said(why: &Value, what: &[&str]) -> bool {
    let jobs = why["jobs"].as_array().into_iter().flatten();
    let mut sentences = jobs.flat_map(|job| job["sentences"].as_array().into_iter().flatten());
    sentences.any(|said| what.iter().all(|what| said.as_str().unwrap().contains(what)))
}

fn numbers(why: &Value) -> Vec<String> {
    let jobs = why["jobs"].as_array().into_iter().flatten();
    let mut numbers: Vec<String> = jobs.map(|job| job["job"].as_str().unwrap().to_owned()).collect();
    numbers.sort();
    numbers
}

#[test]
fn attach_explains_a_hanging_job() {
    let folder = scratch("attach-hangs");
    let name = format!("hangs-{}", std::process::id());
    let me = std::env::current_exe().unwrap();
    let job = Started::new(
        processes::command(WEFT)
            .args(["run", "-n", "3", "--bind", "none", "--name", &name, "--"])
            .arg(me)
            .args(["--exact", "rank", "--nocapture"])
            .env(ROLE, "process"),
    );
    let both = |why: &Value| {
        numbers(why).len() == 2
            && said(why, &["Rank 0 waits for"])
            // The part has the ranks in reverse.
            && why["jobs"].as_array().unwrap().iter().all(|job| job["ranks"].as_array().unwrap().len() == 3)
    };
    let found = until(|| asked(&name).filter(both));
    let pid_of = |rank: u64| {
        let ranks = found["jobs"].as_array().unwrap().iter().flat_map(|job| job["ranks"].as_array().unwrap());
        let waits = |line: &&Value| line["rank"] == rank;
        ranks.filter(waits).map(|line| line["pid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // Rank 1 is the middle one both ways.
    let pids = pid_of(1);
    assert_eq!(pids[0], pids[1], "{found}");
    shell(&folder, &format!("kill -STOP {}", pids[0]));
    let stopped = format!(", pid {}) is stopped, by a signal or a debugger.", pids[0]);
    let found = until(|| asked(&name).filter(|why| said(why, &["Rank 1 (", &stopped])));
    // It is found by whatever it is called, and by number of any of its communicators.
    for job in [job.0.id().to_string(), pids[0].to_string()].iter().chain(&numbers(&found)) {
        let other = asked(job).unwrap();
        assert_eq!(numbers(&other), numbers(&found), "by {job}");
        assert!(said(&other, &[&stopped]), "{other}");
    }
    // For people.
    let text = why(&["--attach", &name]);
    assert_eq!(text.status.code(), Some(1));
    let text = String::from_utf8(text.stdout).unwrap();
    for number in numbers(&found) {
        assert!(text.contains(&format!("Job {number}: 3 ranks, 3 records from 1 host.")), "{text}");
    }
    assert!(text.contains(&stopped) && !text.contains("Not found"), "{text}");
    // As files, of which those of one rank are then missing, as if it were elsewhere.
    let dumped = why(&["--attach", &name, "--dump", folder.to_str().unwrap()]);
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    assert!(dumped.ends_with(&format!("Wrote 6 records into {}.\n", folder.display())), "{dumped}");
    let merged: Value = serde_json::from_str(&shell(&folder, "weft why --json .").output).unwrap();
    assert_eq!(numbers(&merged), numbers(&found));
    assert!(said(&merged, &[&stopped]), "{merged}");
    let record = format!("weft-record-{}-rank1.json", numbers(&found)[0]);
    let record: Value = serde_json::from_str(&std::fs::read_to_string(folder.join(record)).unwrap()).unwrap();
    assert_eq!(record["process"], "stopped", "other hosts read it here");
    shell(&folder, &format!("kill -KILL {}", pids[0]));
}

#[test]
fn attach_reads_ranks_that_are_threads() {
    let me = std::env::current_exe().unwrap();
    let process =
        Started::new(processes::command(me).args(["--exact", "rank", "--nocapture"]).env(ROLE, "threads"));
    let pid = process.0.id().to_string();
    let done = |why: &Value| said(why, &["Nothing is wrong: all 3 ranks"]);
    let found = until(|| asked(&pid).filter(done));
    let ranks = found["jobs"][0]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    assert!(ranks.iter().all(|line| line["pid"].as_u64() == Some(process.0.id().into())), "{found}");
    assert_eq!(asked(&numbers(&found)[0]).map(|other| numbers(&other)), Some(numbers(&found)));
}

#[test]
fn attach_explains_kernels_that_wait() {
    let folder = scratch("attach-gpu");
    let me = std::env::current_exe().unwrap();
    let process =
        Started::new(processes::command(me).args(["--exact", "rank", "--nocapture"]).env(ROLE, "gpu"));
    let pid = process.0.id().to_string();
    let waits = |why: &Value| said(why, &["Ranks 0 and 2 wait for rank 1 to make the call in #3"]);
    let found = until(|| asked(&pid).filter(waits));
    assert!(said(&found, &["Rank 1 has enqueued #3, and its kernel has not started: "]), "{found}");
    let ranks = found["jobs"][0]["ranks"].as_array().unwrap();
    assert_eq!((&ranks[0]["call"], &ranks[0]["call_state"]), (&Value::from(3), &Value::from("running")));
    assert_eq!((&ranks[1]["call"], &ranks[1]["call_state"]), (&Value::from(4), &Value::from("enqueued")));
    // For people, and as files.
    let dump = ["--attach", &pid, "--dump", folder.to_str().unwrap()];
    let text = why(&dump);
    assert_eq!(text.status.code(), Some(1));
    let text = String::from_utf8(text.stdout).unwrap();
    let call = "all-reduce of 8 elements of 4 bytes out of place";
    assert!(
        text.contains(&format!("Ranks 0 and 2 wait for rank 1 to make the call in #3, {call}, for 7.0 s.\n")),
        "{text}"
    );
    assert!(text.contains("4 of 4") && text.contains("(lane 0,"), "{text}");
    let merged: Value = serde_json::from_str(&shell(&folder, "weft why --json .").output).unwrap();
    assert!(
        waits(&merged) && said(&merged, &["Rank 1 has enqueued #3, and its kernel has not started: "]),
        "{merged}"
    );
}

#[test]
fn attach_refuses_a_job_without_communicators() {
    let name = format!("quiet-{}", std::process::id());
    let _job = Started::new(
        processes::command(WEFT)
            .args(["run", "-n", "2", "--bind", "none", "--name", &name, "--", "sleep", "120"]),
    );
    let two = |why: &Value| why["silent"].as_array().is_some_and(|silent| silent.len() == 2);
    let found = until(|| asked(&name).filter(two));
    let text = why(&["--attach", &name]);
    let told = format!(
        "weft: no rank of {name} has a communicator: they have not joined yet, or the program does not use Weft; only Weft programs \
         can be examined\n"
    );
    assert_eq!((text.status.code(), text.stdout.len()), (Some(2), 0), "{found}");
    assert_eq!(String::from_utf8(text.stderr).unwrap(), told);
}

#[test]
fn attach_reports_unknown_jobs() {
    let folder = scratch("attach-none");
    let done = shell(&folder, "weft why --attach no-such-job");
    assert_eq!((done.code, done.output.as_str()), (Some(2), ""));
    let told = "weft: there is no job no-such-job on this host: it is neither a process with a communicator, nor the name of \
        a job (WEFT_JOB), nor the number of a communicator";
    assert!(done.errors.starts_with(told), "{}", done.errors);
    let done = shell(&folder, "sleep 60 & weft why --attach $!; code=$?; kill $!; exit $code");
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains(" is not part of a job: "), "{}", done.errors);
    for (misuse, told) in [
        ("--dump a b", "--dump requires --attach JOB"),
        ("", "(weft why DIR) or a running job (weft why --attach JOB)"),
        ("a --attach b", "--attach"),
    ] {
        let done = shell(&folder, &format!("weft why {misuse}"));
        assert_eq!(done.code, Some(2), "{misuse}");
        assert!(done.errors.contains(told), "{}", done.errors);
    }
}

#[test]
fn attach_reports_missing_permission() {
    let ours = std::fs::metadata("/proc/self").unwrap().uid();
    let mut command = processes::command(WEFT);
    let theirs = if ours == 0 {
        // The user `nobody`, if it may run the program.
        command.uid(65534).gid(65534);
        Some(std::process::id())
    } else {
        let processes = std::fs::read_dir("/proc").unwrap();
        let pids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
        let of_others =
            |pid: &u32| std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() != ours);
        pids.min_by_key(|pid| !of_others(pid)).filter(of_others)
    };
    let Some(theirs) = theirs else {
        println!("skipped: this user sees no process of another");
        return;
    };
    let done = match command.args(["why", "--attach", &theirs.to_string()]).output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: nobody may run {WEFT}: {error}");
            return;
        }
        done => done.unwrap(),
    };
    let told = String::from_utf8(done.stderr).unwrap();
    let wanted = format!("weft: no permission to read process {theirs}: it belongs to user ");
    assert_eq!(done.status.code(), Some(2), "{told}");
    assert!(told.starts_with(&wanted) && told.ends_with(", or as root\n"), "{told}");
}
