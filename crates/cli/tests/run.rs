//! `weft run` with real processes: what ranks are told, what is seen of them, and that none is left, however it ends.
//!
//! Waits for events have a bound of a minute; nothing here asserts that something was quick.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/started.rs"]
mod started;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{Outcome, scratch, shell};
use serde_json::Value;
use started::{assert_gone, kill, pid, until};
use weftlink_testkit::processes::command;

/// A remote shell that is none: it forgets the host and runs the rest here.
const HERE: &str = r#"--rsh "sh -c 'shift; exec \"\$@\"' rsh""#;

fn run(name: &str, arguments: &str) -> Outcome {
    shell(&scratch(&format!("run-{name}")), &format!("weft run {arguments}"))
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_get_their_environment() {
    let done = run(
        "told",
        "-n 3 --name mine --bind none -- sh -c \
         'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $NODE_RANK $MASTER_ADDR $WEFT_JOB \
         $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS ${#WEFT_SECRET} ${WEFT_RENDEZVOUS%:*}'",
    );
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    let wanted = |rank| format!("[{rank}] {rank}/3 {rank}/3 0 0 127.0.0.1 mine 0/0 64 127.0.0.1");
    assert_eq!(lines(&done.output), [wanted(0), wanted(1), wanted(2)]);
}

#[test]
fn omp_num_threads_defaults_to_1() {
    let command = "-n 1 -- sh -c 'echo $OMP_NUM_THREADS'";
    assert_eq!(run("threads", command).output, "1\n");
    assert_eq!(run("threads-given", &format!("-x OMP_NUM_THREADS=3 {command}")).output, "3\n");
    let folder = scratch("run-threads-set");
    assert_eq!(shell(&folder, &format!("OMP_NUM_THREADS=5 weft run {command}")).output, "5\n");
}

#[test]
fn secret_is_fresh_and_in_no_command_line() {
    let command = "-n 2 --no-tag --bind none -- sh -c 'echo $WEFT_SECRET $MASTER_PORT $WEFT_RENDEZVOUS; \
        for pid in $$ $PPID $(cut -d\" \" -f4 /proc/$PPID/stat); do tr \"\\0\" \" \" < /proc/$pid/cmdline; done >&2'";
    let (one, two) = (run("secret", command), run("secret-again", command));
    let told = |done: &Outcome| -> BTreeSet<String> { done.output.lines().map(str::to_owned).collect() };
    assert_eq!((told(&one).len(), told(&two).len()), (1, 1), "ranks of a job are told alike: {}", one.output);
    assert_ne!(told(&one), told(&two));
    assert!(one.errors.contains("--as-host"), "the helper was looked at: {}", one.errors);
    let secret = one.output.split_whitespace().next().unwrap();
    assert!(!one.errors.contains(secret));
    let mut words = one.output.split_whitespace().skip(1);
    let (torch, weft) = (words.next().unwrap(), words.next().unwrap());
    assert!(!weft.ends_with(torch), "torch's store and Weft have a port each");
}

#[test]
fn tagged_lines_do_not_mix() {
    let done = run(
        "lines",
        "-n 4 --bind none -- sh -c 'i=0; while [ $i -lt 300 ]; do echo $RANK says line $i; i=$((i+1)); done'",
    );
    assert_eq!(done.code, Some(0));
    for rank in 0..4 {
        let of: Vec<&str> =
            done.output.lines().filter(|line| line.starts_with(&format!("[{rank}]"))).collect();
        let wanted: Vec<String> = (0..300).map(|line| format!("[{rank}] {rank} says line {line}")).collect();
        assert_eq!(of, wanted, "in order, whole");
    }
    assert_eq!(done.output.lines().count(), 1200);
}

#[test]
fn untagged_lines_do_not_mix() {
    let script = "printf $RANK:; touch begun-$RANK; while [ ! -e begun-$((1 - RANK)) ]; do sleep 0.01; done; printf whole";
    let done = run("no-tag", &format!("-n 2 --bind none --no-tag -- sh -c '{script}'"));
    assert_eq!(lines(&done.output), ["0:whole", "1:whole"]);
}

#[test]
fn endless_line_is_forwarded_in_parts() {
    let done = run(
        "long",
        "-n 2 --bind none -- sh -c 'head -c 12000000 /dev/zero | tr \"\\0\" $RANK; echo; \
         for pid in $PPID $(cut -d\" \" -f4 /proc/$PPID/stat); do grep VmHWM /proc/$pid/status; done >&2'",
    );
    assert_eq!(done.code, Some(0), "{}", done.errors);
    for rank in ["0", "1"] {
        let of = done.output.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] ")));
        let parts: Vec<&str> = of.collect();
        assert!(parts.iter().all(|part| part.bytes().all(|byte| byte == rank.as_bytes()[0])), "never mixed");
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 12_000_000);
    }
    for line in done.errors.lines() {
        let kib: usize = line.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
        // A program of this size, and what may wait; not two lines of 12 MB besides.
        assert!(kib < 24_000, "the launcher or its helper held lines: {}", done.errors);
    }
}

#[test]
fn output_of_one_rank_is_unchanged() {
    let folder = scratch("run-bytes");
    let done = shell(&folder, r"weft run -n 1 -- printf 'a\377\0b' | od -An -tx1");
    assert_eq!(done.output.trim(), "61 ff 00 62");
}

#[test]
fn output_goes_to_files() {
    let folder = scratch("run-files");
    let done = shell(
        &folder,
        "weft run -n 2 --output-dir logs/new -- sh -c 'echo out $RANK; echo err $RANK >&2; exit $RANK'",
    );
    assert_eq!((done.code, done.output.as_str()), (Some(1), ""));
    for rank in 0..2 {
        for stream in ["out", "err"] {
            let text = fs::read_to_string(folder.join(format!("logs/new/rank-{rank}.{stream}"))).unwrap();
            // Rank 0 may be ended before it has said anything.
            assert!(text == format!("{stream} {rank}\n") || (rank == 0 && text.is_empty()), "{text}");
        }
    }
    assert!(done.errors.contains("its standard error is in logs/new/rank-1.err"), "{}", done.errors);
    assert!(done.errors.contains("\n    err 1\n"), "{}", done.errors);
}

#[test]
fn report_names_the_first_failure() {
    let done = run(
        "failed",
        "-n 3 --bind none -- sh -c 'test $RANK = 1 || exec sleep 600; echo no such layer >&2; exit 7'",
    );
    assert_eq!(done.code, Some(7), "{}", done.errors);
    assert!(done.errors.starts_with("[1] no such layer\nweft run: rank 1 (pid "), "{}", done.errors);
    let told = " exited with code 7, ";
    assert!(done.errors.contains(told), "{}", done.errors);
    assert!(
        done.errors.contains(
            "; 2 other ranks were stopped\n  its last lines on standard error:\n    no such layer\n"
        )
    );

    let done = run("signal", "-n 2 --bind none -- sh -c 'test $RANK = 0 || exec sleep 600; kill -SEGV $$'");
    assert_eq!(done.code, Some(128 + 11), "{}", done.errors);
    assert!(done.errors.contains("was killed by SIGSEGV, "), "{}", done.errors);
    assert!(done.errors.contains("; the other rank was stopped\n"), "{}", done.errors);
}

#[test]
fn keep_going_lets_the_others_finish() {
    let done = run(
        "keep-going",
        "-n 3 --bind none --keep-going -- sh -c 'test $RANK = 1 && { touch gone; exit 7; }; while [ ! -e gone ]; do sleep 0.01; done; \
         sleep 1.2; echo $RANK went on'",
    );
    assert_eq!(done.code, Some(7), "{}", done.errors);
    assert_eq!(lines(&done.output), ["[0] 0 went on", "[2] 2 went on"]);
    assert!(done.errors.contains("; 2 of 3 ranks exited with code 0\n"), "{}", done.errors);
}

#[test]
fn unknown_options_are_not_programs() {
    let done = run("typo", "-n 2 --max-restart 3 -- true");
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains("a similar argument exists: '--max-restarts'"), "{}", done.errors);
    for (name, arguments) in [("np", "-np 2"), ("per-node", "--nproc_per_node 2")] {
        let done = run(name, &format!("{arguments} --bind none -- echo --max-restart"));
        assert_eq!(lines(&done.output), ["[0] --max-restart", "[1] --max-restart"], "{}", done.errors);
    }
    let done = run("tags", "-n 2 --tag-output --no-tag -- true");
    assert_eq!(done.code, Some(2), "{}", done.errors);
    let done = shell(&scratch("run-setting"), "WEFT_DEADLIN=4s weft run -n 2 --bind none -- true");
    assert_eq!(done.code, Some(0));
    let told = "weft run: there is no setting WEFT_DEADLIN; it has no effect. Did you mean WEFT_DEADLINE?\n";
    assert_eq!(done.errors, told);
    let done = shell(&scratch("run-mistyped"), "weft runn");
    assert!(!done.errors.contains("run-rank"), "{}", done.errors);
}

#[test]
fn sigkill_follows_sigterm_for_the_process_group() {
    let folder = scratch("run-stubborn");
    let done = shell(
        &folder,
        "weft run -n 2 --bind none --grace 300ms --json -- sh -c \
         'trap \"\" TERM; if [ $RANK = 1 ]; then while [ ! -s pid ]; do sleep 0.01; done; exit 5; fi; \
         sleep 600 & echo $! > pid.new; mv pid.new pid; wait; sleep 600'",
    );
    assert_eq!(done.code, Some(5), "{}", done.errors);
    let report: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(report["failed_first"], 1);
    assert_eq!(report["ranks"][0]["signal"], "SIGKILL");
    assert_eq!(report["ranks"][0]["was_told_to_end"], true);
    assert_gone(&pid(&folder.join("pid")));
}

#[test]
fn max_restarts_restarts_all_ranks() {
    let folder = scratch("run-restarts");
    let command = "--bind none --max-restarts 3 -- sh -c 'echo $WEFT_SECRET $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS \
        >> rank-$RANK; test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0; test $RANK = 0 && exit 9; exec sleep 600'";
    let done = shell(&folder, &format!("weft run -n 2 {command}"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert!(
        done.errors.contains("weft run: starting all ranks again, 2 of at most 3 times"),
        "{}",
        done.errors
    );
    let told = fs::read_to_string(folder.join("rank-0")).unwrap();
    let secrets: BTreeSet<&str> = told.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!((told.lines().count(), secrets.len()), (3, 3), "{told}");
    assert!(told.lines().last().unwrap().ends_with(" 2/3"), "{told}");

    let done = run("restarts-spent", "-n 1 --max-restarts 1 -- sh -c 'exit 9'");
    assert_eq!(done.code, Some(9));
}

#[test]
fn timeout_stops_the_job() {
    let done = run("timeout", "-n 2 --bind none --timeout 300ms -- sleep 600");
    assert_eq!(done.code, Some(124), "{}", done.errors);
    assert_eq!(done.errors, "weft run: stopped after 0.3 s (--timeout); 0 of 2 ranks had exited by then\n");
}

#[test]
fn programs_that_cannot_start_are_named() {
    for (name, arguments, told) in [
        ("none", "-n 2", "name a program: weft run -n 2 -- python train.py"),
        ("count", "-- true", "give the number of ranks, such as -n 2"),
        ("program", "-n 2 -- no-such-program", "there is no program \"no-such-program\" in PATH"),
        ("path", "-n 2 -- ./none", "run-misuse-path/none"),
        ("script", "-n 2 -- ./x.py", "x.py is not executable; did you mean `python3 ./x.py`?"),
        ("folder", "-n 2 --workdir /no/such -- true", "there is no folder /no/such to run in; set --workdir"),
        ("hosts", "--hosts a:1,b -- true", "--hosts a:1,b: some hosts have slots and some do not"),
        ("hostfile", "--hostfile none -- true", "cannot read none"),
        ("env", "-n 1 -x RANK=3 -- true", "--env RANK: weft run sets this variable"),
        ("rsh", "-n 1 --hosts elsewhere --rsh no-such-shell -- true", "cannot run `no-such-shell elsewhere "),
    ] {
        let folder = scratch(&format!("run-misuse-{name}"));
        fs::write(folder.join("x.py"), "print(1)\n").unwrap();
        let done = shell(&folder, &format!("weft run {arguments}"));
        assert_eq!(done.code, Some(2), "{arguments}: {}", done.errors);
        assert!(done.errors.contains(told), "{arguments}: {}", done.errors);
        assert_eq!(done.errors.lines().count(), 1, "{}", done.errors);
    }
    let folder = scratch("run-misuse-interpreter");
    fs::write(folder.join("x"), "#!/no/such\n").unwrap();
    let done = shell(&folder, "chmod +x x; weft run -n 1 -- ./x");
    assert_eq!(done.code, Some(126));
    assert!(done.errors.contains("its interpreter (named in the first line)"), "{}", done.errors);
}

#[test]
fn a_dry_run_starts_nothing_and_shows_no_secret() {
    let folder = scratch("run-dry");
    let done = shell(
        &folder,
        "weft run --dry-run --hosts a:1,b:2 --rsh 'rsh -x' --weft-path /opt/weft -- touch here",
    );
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert!(done.output.contains("\nb: rsh -x b /opt/weft run --as-host\n"), "{}", done.output);
    assert!(
        done.output.contains("\n  rank 2: GROUP_RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=1 RANK=2\n")
    );
    assert!(done.output.contains(" WEFT_SECRET=... "), "{}", done.output);
    assert!(!folder.join("here").exists());
}

#[test]
fn ranks_have_cores_of_their_own() {
    let command =
        "-n 2 --json --report-bindings -- sh -c 'sed -n s/Cpus_allowed_list:.//p /proc/self/status'";
    let done = run("cores", command);
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let report: Value = serde_json::from_str(&done.output).unwrap();
    let bound: Vec<&str> =
        [0, 1].into_iter().filter_map(|rank| report["ranks"][rank]["cpus"].as_str()).collect();
    if bound.is_empty() {
        assert!(done.errors.contains("2 ranks on 1 core: ranks are not bound"), "{}", done.errors);
        return;
    }
    assert_ne!(bound[0], bound[1]);
    for (rank, cpus) in bound.iter().enumerate() {
        let has = format!("[{rank}] {cpus}\n");
        assert!(done.errors.contains(&has), "{has} is not in {}", done.errors);
        assert!(done.errors.contains(&format!("hardware threads {cpus}, NUMA node ")), "{}", done.errors);
    }
    let done = run("cores-crowded", "-n 300 --no-tag -- true");
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert!(done.errors.contains("300 ranks on "), "{}", done.errors);
}

#[test]
fn two_hosts() {
    let command = "--env LETTER=x -- sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $LETTER'";
    let done = run("hosts", &format!("{HERE} --bind none --hosts red:1,blue:2 {command}"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(lines(&done.output), ["[0] 0/3 0/1 0 red x", "[1] 1/3 0/2 1 red x", "[2] 2/3 1/2 1 red x"]);

    let done = run(
        "hosts-fail",
        &format!(
            "{HERE} --bind none -n 2 --hosts red,blue -- sh -c 'test $RANK = 1 && exit 4; exec sleep 600'"
        ),
    );
    assert_eq!(done.code, Some(4), "{}", done.errors);
    assert!(done.errors.contains("rank 1 (host blue, pid "), "{}", done.errors);
}

#[test]
fn unreachable_host_is_an_error() {
    let done =
        run("unreached", "-n 2 --hosts red,blue --rsh \"sh -c 'echo who are you >&2; exit 255'\" -- true");
    assert_eq!(done.code, Some(1), "{}", done.errors);
    assert!(done.errors.contains("it could not be reached: `sh -c "), "{}", done.errors);
    assert!(done.errors.contains("exited with code 255"), "{}", done.errors);
}

#[test]
fn ctrl_c_gives_up_on_a_silent_host() {
    let folder = scratch("run-unanswered");
    let mut child = command(env!("CARGO_BIN_EXE_weft"))
        .args(["run", "-n", "2", "--hosts", "red,blue", "--rsh"])
        .args(["sh -c 'sleep 600 & echo $! > new-{host}; mv new-{host} pid-{host}; wait'", "--", "true"])
        .current_dir(&folder)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let files = ["red", "blue"].map(|host| folder.join(format!("pid-{host}")));
    until("both were asked", || files.iter().all(|file| file.exists()));
    kill("INT", &child.id().to_string());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    files.iter().for_each(|file| assert_gone(&pid(file)));
}

#[test]
fn remote_shell_banners_are_ignored() {
    let done = run(
        "welcome",
        "-n 1 --bind none --hosts red --rsh \"sh -c 'echo Welcome; shift; exec \\\"\\$@\\\"' rsh\" -- echo hi",
    );
    assert_eq!((done.code, done.output.as_str(), done.errors.as_str()), (Some(0), "hi\n", "[red] Welcome\n"));
    let other = r#"sh -c 'echo \{\"ready\":\{\"version\":\"9\",\"ports\":[1,2]\}\}; cat >/dev/null'"#;
    let folder = scratch("run-version");
    let done = command(env!("CARGO_BIN_EXE_weft"))
        .args(["run", "-n", "1", "--hosts", "red", "--rsh", other, "--", "true"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{errors}");
    assert!(errors.contains("it runs Weft 9, this host runs "), "{errors}");
}

#[test]
fn hosts_of_other_networks() {
    let folder = scratch("run-networks");
    if shell(&folder, "unshare -rn true").code != Some(0) {
        println!("skipped: this machine does not let a test have network namespaces (unshare -rn)");
        return;
    }
    let done = shell(
        &folder,
        "weft run --rsh \"sh -c 'shift; exec unshare -rn \\\"\\$@\\\"' rsh\" --bind none -n 2 --hosts red,blue --address 10.0.0.1 \
         --no-tag -- sh -c 'readlink /proc/self/ns/net; test $MASTER_ADDR = 10.0.0.1'",
    );
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let networks: BTreeSet<&str> = done.output.lines().collect();
    assert_eq!(networks.len(), 2, "{}", done.output);
}

/// `weft run` in the background, with ranks that each have written `rank-N` with their process and that of a child.
struct Background {
    child: Child,
    folder: std::path::PathBuf,
}

const BUSY: &str = "sleep 600 & echo $$ $! > new-$RANK; mv new-$RANK rank-$RANK; ";

impl Background {
    fn start(name: &str, options: &str, script: &str) -> Background {
        let folder = scratch(&format!("run-{name}"));
        // A remote shell that ignores the host.
        fs::write(folder.join("rsh"), "#!/bin/sh\nshift\nexec \"$@\"\n").unwrap();
        fs::set_permissions(folder.join("rsh"), fs::Permissions::from_mode(0o755)).unwrap();
        let child = command(env!("CARGO_BIN_EXE_weft"))
            .arg("run")
            .args("-n 2 --bind none".split(' '))
            .args(options.split_whitespace())
            .args(["--", "sh", "-c", script])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        for rank in 0..2 {
            until("ranks run", || folder.join(format!("rank-{rank}")).exists());
        }
        Background { child, folder }
    }

    fn pids(&self) -> Vec<String> {
        let text = |rank| fs::read_to_string(self.folder.join(format!("rank-{rank}"))).unwrap();
        [text(0), text(1)].concat().split_whitespace().map(str::to_owned).collect()
    }

    fn signal(&self, signal: &str) {
        kill(signal, &self.child.id().to_string());
    }

    /// How it ended, and that nothing is left of it.
    fn end(self) -> (Option<i32>, String) {
        let pids = self.pids();
        assert_eq!(pids.len(), 4);
        let done = self.child.wait_with_output().unwrap();
        pids.iter().for_each(|pid| assert_gone(pid));
        let code = done.status.code().or(done.status.signal().map(|signal| -signal));
        (code, String::from_utf8(done.stderr).unwrap())
    }
}

#[test]
fn ctrl_c_stops_the_job() {
    let job = Background::start("interrupt", "", &format!("{BUSY} wait"));
    job.signal("INT");
    let (code, errors) = job.end();
    // A shell that waits for a child ends by the signal when the child does.
    assert_eq!(code, Some(130), "{errors}");
    assert!(errors.contains("SIGINT"), "{errors}");
}

#[test]
fn ranks_can_handle_sigterm() {
    let script =
        format!("trap 'echo saved > saved-$RANK; exit 0' TERM; {BUSY} while :; do wait; sleep 0.01; done");
    let job = Background::start("save", "", &script);
    let folder = job.folder.clone();
    job.signal("TERM");
    let (code, errors) = job.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(folder.join("saved-0").exists() && folder.join("saved-1").exists());
}

#[test]
fn suspended_ranks_get_the_signal() {
    let job = Background::start("stopped", "", &format!("{BUSY} kill -STOP $$; wait"));
    let pids = job.pids();
    for shell in [&pids[0], &pids[2]] {
        until("it stops", || {
            fs::read_to_string(format!("/proc/{shell}/status")).unwrap().contains("State:\tT")
        });
    }
    job.signal("TERM");
    let (code, errors) = job.end();
    assert_eq!(code, Some(143), "{errors}");
}

#[test]
fn a_second_ctrl_c_kills() {
    let job = Background::start(
        "twice",
        "",
        &format!("trap 'touch heard-$RANK' INT; {BUSY} while :; do wait; sleep 0.01; done"),
    );
    job.signal("INT");
    for rank in 0..2 {
        until("the first is heard", || job.folder.join(format!("heard-{rank}")).exists());
    }
    job.signal("INT");
    let (code, errors) = job.end();
    assert_eq!(code, Some(137), "{errors}");
    assert!(errors.starts_with("weft run: stopped by SIGINT, sent twice, after "), "{errors}");
    assert!(errors.ends_with("; ranks 0 and 1 did not stop and had to be killed\n"), "{errors}");
}

#[test]
fn a_second_sigterm_kills_too() {
    let script = format!("trap 'touch heard-$RANK' TERM; {BUSY} while :; do wait; sleep 0.01; done");
    let job = Background::start("twice-term", "", &script);
    job.signal("TERM");
    for rank in 0..2 {
        until("the first is heard", || job.folder.join(format!("heard-{rank}")).exists());
    }
    job.signal("TERM");
    let (code, errors) = job.end();
    assert_eq!(code, Some(137), "{errors}");
    assert!(errors.starts_with("weft run: stopped by SIGTERM, sent twice, after "), "{errors}");
}

#[test]
fn sigusr_is_forwarded() {
    let script = format!(
        "trap 'touch one-$RANK' USR1; trap 'touch two-$RANK; kill $!; exit 0' USR2; {BUSY} while :; do wait; sleep 0.01; done"
    );
    let job = Background::start("user", "", &script);
    job.signal("USR1");
    for rank in 0..2 {
        until("USR1 is heard", || job.folder.join(format!("one-{rank}")).exists());
    }
    job.signal("USR2");
    let (code, errors) = job.end();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
}

#[test]
fn killing_the_launcher_leaves_no_rank() {
    // Ranks that would not end by themselves: they ignore what can be ignored.
    let job = Background::start(
        "killed",
        "--grace 200ms",
        &format!("trap '' TERM INT HUP; {BUSY} wait; sleep 600"),
    );
    job.signal("KILL");
    let (code, _) = job.end();
    assert_eq!(code, Some(-9));
}

#[test]
fn killing_the_launcher_leaves_no_rank_on_other_hosts() {
    let script = format!("trap '' TERM INT HUP; {BUSY} wait; sleep 600");
    let job = Background::start("killed-hosts", "--grace 200ms --hosts red,blue --rsh ./rsh", &script);
    job.signal("KILL");
    let (code, _) = job.end();
    assert_eq!(code, Some(-9));
}

#[test]
fn killing_the_helper_leaves_no_rank() {
    let job =
        Background::start("helper", "", &format!("echo $PPID > helper; trap '' TERM INT HUP; {BUSY} wait"));
    kill("KILL", &pid(&job.folder.join("helper")));
    let (code, errors) = job.end();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("host localhost: it was lost: "), "{errors}");
    assert!(errors.contains("was killed by SIGKILL"), "{errors}");
}

#[test]
fn many_ranks_raise_the_file_limit_of_the_launcher_only() {
    let folder = scratch("run-files-limit");
    let command = "ulimit -Sn 48; weft run -n 40 --no-tag --bind none";
    let done = shell(&folder, &format!("{command} -- sh -c 'ulimit -Sn'"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(done.output, "48\n".repeat(40));
    let done = shell(&folder, &format!("{command} --output-dir logs -- sh -c 'ulimit -Sn'"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(folder.join("logs/rank-39.out")).unwrap(), "48\n");
}

#[test]
fn closed_pipe_stops_the_job() {
    let folder = scratch("run-enough");
    let done = shell(
        &folder,
        "{ weft run -n 2 --bind none -- sh -c 'echo $$ > rank-$RANK; exec yes'; echo $? > code; } | head -1",
    );
    assert_eq!(done.errors, "");
    assert_eq!(fs::read_to_string(folder.join("code")).unwrap(), "0\n");
    for rank in 0..2 {
        // One may have been ended before it had begun.
        if let Ok(text) = fs::read_to_string(folder.join(format!("rank-{rank}"))) {
            assert_gone(text.trim());
        }
    }
}

/// What ssh does: it joins the words of a command, and a shell takes them apart again.
fn fake_ssh(folder: &Path) -> PathBuf {
    let ssh = folder.join("ssh");
    fs::write(&ssh, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n").unwrap();
    fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    ssh
}

#[test]
fn a_remote_path_is_one_word() {
    let folder = scratch("run-quoted");
    let ssh = fake_ssh(&folder);
    let tools = folder.join("my tools; touch oops");
    fs::create_dir(&tools).unwrap();
    let weft = tools.join("we'ft");
    symlink(env!("CARGO_BIN_EXE_weft"), &weft).unwrap();
    let done = command(env!("CARGO_BIN_EXE_weft"))
        .args([
            "run",
            "-n",
            "1",
            "--bind",
            "none",
            "--hosts",
            "red",
            "--rsh",
            ssh.to_str().unwrap(),
            "--weft-path",
        ])
        .args([weft.to_str().unwrap(), "--", "echo", "hi"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), &done.stdout[..]), (Some(0), &b"hi\n"[..]), "{errors}");
    assert!(!folder.join("oops").exists());
}

#[test]
fn ctrl_c_works_while_a_helper_is_blocked() {
    let folder = scratch("run-deaf");
    let version = env!("CARGO_PKG_VERSION");
    // It says that it is ready, and reads nothing of an order that is longer than a pipe holds.
    let deaf = format!(
        "#!/bin/sh\necho '{{\"ready\":{{\"version\":\"{version}\",\"ports\":[1,2]}}}}'\necho $$ > new\nmv new ready\nexec sleep 600\n"
    );
    fs::write(folder.join("deaf"), deaf).unwrap();
    fs::set_permissions(folder.join("deaf"), PermissionsExt::from_mode(0o755)).unwrap();
    let long = "x".repeat(100_000);
    let mut child = command(env!("CARGO_BIN_EXE_weft"))
        .args([
            "run",
            "-n",
            "1",
            "--hosts",
            "red",
            "--rsh",
            "./deaf {host}",
            "--",
            "echo",
            &long,
            &long,
            &long,
        ])
        .current_dir(&folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the helper is ready", || folder.join("ready").exists());
    // The first asks, the second kills the ranks, and the third ends the launcher whatever its helpers do.
    until("it has ended", || {
        kill("INT", &child.id().to_string());
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
    kill("KILL", &pid(&folder.join("ready")));
}

#[test]
fn output_dir_does_not_follow_links() {
    let folder = scratch("run-links");
    fs::create_dir(folder.join("out")).unwrap();
    fs::write(folder.join("precious"), "precious").unwrap();
    symlink(folder.join("precious"), folder.join("out/rank-0.out")).unwrap();
    let done = shell(&folder, "weft run -n 1 --output-dir out -- echo hi");
    assert_ne!(done.code, Some(0));
    assert!(done.errors.contains("rank-0.out"), "{}", done.errors);
    assert_eq!(fs::read_to_string(folder.join("precious")).unwrap(), "precious");
}
