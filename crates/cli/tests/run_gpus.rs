//! `weft run --gpus` with real processes and stand-ins for the driver's programs: `nvidia-smi -L` lists as many GPUs as the file
//! `bin/gpus` says, and `nvidia-cuda-mps-control` starts a daemon that does nothing and logs its commands to `bin/log`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/started.rs"]
mod started;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{Outcome, scratch, shell};
use serde_json::Value;
use started::{assert_gone, kill, pid, until};
use weftlink_testkit::processes::command;

const SMI: &str = r#"#!/bin/sh
test "$*" = -L || exit 64
read -r gpus < "${0%/*}/gpus"
test "$gpus" = broken && { echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9; }
gpu=0
while [ $gpu -lt $gpus ]; do echo "GPU $gpu: NVIDIA H200 (UUID: GPU-$gpu)"; gpu=$((gpu + 1)); done
"#;

/// Its clients are the processes in the files `client-*` of the test's folder, and process 1.
const CONTROL: &str = r#"#!/bin/sh
here=${0%/*}
pipes=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -d ]; then
    echo "$pipes" > "$here/pipes"
    test -e "$here/fails" && { echo "An instance of this daemon is already running" >&2; exit 1; }
    logs=$(test "$CUDA_MPS_LOG_DIRECTORY" = "$pipes" && echo the same)
    echo "start, visible ${CUDA_VISIBLE_DEVICES-all}, mode $(stat -c %a "$pipes"), logs $logs" >> "$here/log"
    setsid sleep 600 &
    echo $! | tee "$here/daemon" > "$pipes/nvidia-cuda-mps-control.pid"
    rm -rf "$here/../fleeting"
    exit 0
fi
while read -r line; do
    test -e "$here/deaf" && exec sleep 600
    case $line in
    get_server_list) echo 4242 ;;
    "get_client_list 4242") cat "$here"/../client-*; echo 1 ;;
    terminate_client*) kill -0 ${line##* } && echo "$line" | sed "s/4242 .*/4242 a living client/" >> "$here/log" ;;
    quit*)
        echo quit >> "$here/log"
        test -e "$here/stubborn" || kill $(cat "$pipes/nvidia-cuda-mps-control.pid") ;;
    esac
done
"#;

/// The start of the log of a daemon that was started as it should be.
const STARTED: &str = "start, visible all, mode 700, logs the same\n";

/// A folder in which the driver's programs report this many GPUs.
fn host(name: &str, gpus: &str) -> PathBuf {
    let folder = scratch(&format!("gpus-{name}"));
    tools(&folder.join("bin"), gpus);
    folder
}

fn tools(bin: &Path, gpus: &str) {
    fs::create_dir(bin).unwrap();
    for (name, script) in [("nvidia-smi", SMI), ("nvidia-cuda-mps-control", CONTROL)] {
        fs::write(bin.join(name), script).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(bin.join("gpus"), format!("{gpus}\n")).unwrap();
}

/// Variables for a command: the programs above come first, and no daemon of this machine counts.
const SETUP: &str = "unset CUDA_VISIBLE_DEVICES CUDA_DEVICE_MAX_CONNECTIONS; export PATH=\"$PWD/bin:$PATH\" \
    CUDA_MPS_PIPE_DIRECTORY=\"$PWD/none\";";

fn run(folder: &Path, before: &str, arguments: &str) -> Outcome {
    shell(folder, &format!("{SETUP} {before} weft run --bind none {arguments}"))
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("bin/log")).unwrap_or_default()
}

/// Nothing is left of a daemon.
fn assert_stopped(folder: &Path) {
    let pipes = fs::read_to_string(folder.join("bin/pipes")).unwrap();
    assert!(!Path::new(pipes.trim()).exists(), "{pipes}");
    assert_gone(&pid(&folder.join("bin/daemon")));
}

const SEEN: &str = "-- sh -c 'echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $NODE_RANK \
    gpu ${CUDA_VISIBLE_DEVICES-all} queues $CUDA_DEVICE_MAX_CONNECTIONS true ${WEFT_LOCAL_RANK-}/${WEFT_LOCAL_WORLD_SIZE-}'";

#[test]
fn ranks_have_a_gpu_each() {
    let folder = host("all", "2");
    let done = run(&folder, "", &format!("-n 2 --gpus all {SEEN}"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(
        lines(&done.output),
        ["[0] 0/2 0 0 gpu all queues 32 true /", "[1] 1/2 0 0 gpu all queues 32 true /"]
    );
    let done = run(&folder, "CUDA_VISIBLE_DEVICES=1", &format!("-n 1 --gpus all {SEEN}"));
    assert_eq!(done.output, "0/1 0 0 gpu 1 queues 32 true /\n");
}

#[test]
fn a_list_counts_in_the_visible_gpus() {
    let folder = host("list", "4");
    let done = run(&folder, "", &format!("-n 2 --gpus 3,1 {SEEN}"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(
        lines(&done.output),
        ["[0] 0/2 0 0 gpu 3,1 queues 32 true /", "[1] 1/2 0 0 gpu 3,1 queues 32 true /"]
    );
    let done = run(&folder, "CUDA_VISIBLE_DEVICES=2,GPU-7", &format!("-n 1 --gpus 1 {SEEN}"));
    assert_eq!(done.output, "0/1 0 0 gpu GPU-7 queues 32 true /\n");
    let done = run(&folder, "", &format!("-n 1 -x CUDA_VISIBLE_DEVICES=3,2 --gpus 1 {SEEN}"));
    assert_eq!(done.output, "0/1 0 0 gpu 2 queues 32 true /\n");
}

#[test]
fn ranks_that_share_gpus_seem_to_be_alone() {
    let folder = host("shared", "2");
    let done = run(&folder, "", &format!("-n 5 --gpus shared {SEEN}"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let rank = |rank: usize, gpu| format!("[{rank}] 0/1 {rank} {rank} gpu {gpu} queues 32 true {rank}/5");
    assert_eq!(lines(&done.output), [rank(0, 0), rank(1, 0), rank(2, 0), rank(3, 1), rank(4, 1)]);
    assert_eq!(
        done.errors,
        "weft run: 3 ranks share a GPU without MPS: they take turns, and a message between them takes milliseconds. Add --mps\n"
    );
    assert_eq!(log(&folder), "", "no daemon was started");

    let done = run(&folder, "CUDA_VISIBLE_DEVICES=1", &format!("-n 8 --no-tag --gpus shared {SEEN}"));
    assert!(done.output.lines().all(|line| line.contains(" gpu 1 queues 12 ")), "{}", done.output);
}

#[test]
fn true_local_rank_shows_all_gpus() {
    let folder = host("true", "2");
    let done = run(&folder, "", &format!("-n 3 --gpus shared --true-local-rank {SEEN}"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let rank = |rank: usize| format!("[{rank}] {rank}/3 0 0 gpu 0,1 queues 32 true /");
    assert_eq!(lines(&done.output), [rank(0), rank(1), rank(2)]);
}

#[test]
fn outer_local_ranks_do_not_reach_inner_jobs() {
    let folder = host("nested", "1");
    let inner = format!("weft run --bind none -n 1 --gpus all {SEEN}");
    fs::write(folder.join("inner"), format!("#!/bin/sh\n{inner}\n")).unwrap();
    let done = run(&folder, "", "-n 1 --gpus shared -- sh inner");
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    assert_eq!(done.output, "0/1 0 0 gpu 0 queues 32 true /\n");
}

#[test]
fn communicators_work_while_ranks_seem_to_be_alone() {
    let folder = host("bench", "1");
    let done = run(&folder, "", "-n 2 --gpus shared -- weft bench all-reduce -b 8 -e 8 --iters 5");
    assert_eq!(done.code, Some(0), "{}", done.errors);
}

#[test]
fn queues_of_the_user_are_kept() {
    let folder = host("queues", "1");
    let command = "-n 1 --gpus all -- sh -c 'echo $CUDA_DEVICE_MAX_CONNECTIONS'";
    let done = run(&folder, "CUDA_DEVICE_MAX_CONNECTIONS=8", command);
    assert_eq!((done.output.as_str(), done.errors.as_str()), ("8\n", ""));
    let done = run(&folder, "", &format!("-x CUDA_DEVICE_MAX_CONNECTIONS=1 {command}"));
    assert_eq!((done.code, done.output.as_str()), (Some(0), "1\n"));
    assert_eq!(
        done.errors,
        "weft run: CUDA_DEVICE_MAX_CONNECTIONS=1 is low: a collective that waits for another rank blocks every stream on its hardware \
         queue. If the job hangs, unset it, or set at least 8\n"
    );
}

#[test]
fn every_host_counts_its_own_gpus() {
    let folder = host("hosts", "9");
    tools(&folder.join("red"), "1");
    tools(&folder.join("blue"), "2");
    let hosts = "--rsh \"env PATH=$PWD/{host}:$PATH\" --nproc-per-node 2 --hosts red,blue";
    let done = run(&folder, "", &format!("{hosts} --gpus shared {SEEN}"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let rank =
        |rank: usize, local, gpu| format!("[{rank}] 0/1 {rank} {rank} gpu {gpu} queues 32 true {local}/2");
    assert_eq!(lines(&done.output), [rank(0, 0, 0), rank(1, 1, 0), rank(2, 0, 0), rank(3, 1, 1)]);
    assert!(done.errors.contains("weft run: on red: 2 ranks share a GPU without MPS"), "{}", done.errors);
    assert!(!done.errors.contains("on blue: "), "{}", done.errors);

    let done = run(&folder, "", &format!("{hosts} --gpus all -- true"));
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(
        done.errors.contains("host red: --gpus all: 2 ranks of this host need a GPU each"),
        "{}",
        done.errors
    );
}

#[test]
fn wrong_uses_are_named() {
    for (name, gpus, arguments, wanted) in [
        ("few", "2", "-n 4 --gpus all", "and this host has 2 GPUs. Start fewer ranks, or use --gpus shared"),
        ("listed", "2", "-n 2 --gpus 1", "and the list has 1 GPU. Start fewer ranks, or use --gpus shared"),
        (
            "number",
            "2",
            "-n 1 --gpus 0,2",
            "--gpus 0,2: there is no GPU 2; this host has 2 GPUs, numbered from 0",
        ),
        ("none", "0", "-n 1 --gpus shared", "the rank of this host needs a GPU, and this host has none"),
        ("broken", "broken", "-n 1 --gpus all", "`nvidia-smi -L` exited with code 9: NVIDIA-SMI has failed"),
        ("word", "2", "-n 1 --gpus some", "use all, shared, or numbers of GPUs such as 0,2 or 0-3"),
        ("twice", "2", "-n 1 --gpus 0,0", "GPU 0 is listed twice; ranks share GPUs with --gpus shared"),
        ("mps", "2", "-n 1 --gpus all --mps", "--mps is for ranks that share GPUs; add --gpus shared"),
        ("true", "2", "-n 1 --true-local-rank", "--true-local-rank is for ranks that share GPUs"),
        (
            "pipes",
            "2",
            "-n 1 --gpus shared --mps -x CUDA_MPS_PIPE_DIRECTORY=/x",
            "names another; give one of the two",
        ),
    ] {
        for dry in ["", "--dry-run"] {
            let folder = host(&format!("misuse-{name}"), gpus);
            let done = run(&folder, "", &format!("{arguments} {dry} -- touch started"));
            assert_eq!(done.code, Some(2), "{arguments} {dry}: {}", done.errors);
            assert!(done.errors.contains(wanted), "{arguments} {dry}: {}", done.errors);
            assert!(!folder.join("started").exists());
        }
    }
}

#[test]
fn without_mps_the_package_is_named() {
    let folder = host("absent", "1");
    fs::remove_file(folder.join("bin/nvidia-cuda-mps-control")).unwrap();
    let weft = env!("CARGO_BIN_EXE_weft");
    let line = format!("PATH=$PWD/bin {weft} run -n 2 --bind none --gpus shared --mps -- /bin/true");
    // A short path: the pipes of a daemon are sockets.
    let temporary = PathBuf::from(format!("/tmp/weft-absent-{}", std::process::id()));
    fs::create_dir(&temporary).unwrap();
    let setup = format!("unset CUDA_VISIBLE_DEVICES; export TMPDIR={};", temporary.display());
    let done = shell(&folder, &format!("{setup} {line}"));
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(
        done.errors.contains("install the package nvidia-compute-utils-VERSION (Ubuntu)"),
        "{}",
        done.errors
    );
    fs::remove_dir(&temporary).expect("the folder of the daemon was removed");
}

#[test]
fn a_dry_run_shows_gpus() {
    let folder = host("dry", "1");
    let command = "-n 4 --gpus shared --mps --dry-run --hosts localhost,b --rsh rsh -- ./train";
    let done = run(&folder, "", command);
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    for wanted in [
        "CUDA_MPS_PIPE_DIRECTORY=(a new folder)",
        "  rank 1: CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_VISIBLE_DEVICES=0 GROUP_RANK=1 LOCAL_RANK=0",
        "  rank 2: CUDA_DEVICE_MAX_CONNECTIONS=(by the GPUs there) CUDA_VISIBLE_DEVICES=(by the GPUs there)",
    ] {
        assert!(done.output.contains(wanted), "{wanted}: {}", done.output);
    }
    assert_eq!(log(&folder), "", "nothing was started");
    let done = run(&folder, "", &command.replace("--dry-run", "--dry-run --json"));
    let plan: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(plan["hosts"][0]["ranks"][0]["environment"]["CUDA_VISIBLE_DEVICES"], "0");
}

#[test]
fn mps_runs_as_long_as_the_job() {
    for (name, end, code) in [("well", "exit 0", 0), ("failed", "exit $((RANK * 3))", 3)] {
        let folder = host(&format!("mps-{name}"), "1");
        let script = format!("echo $$ > client-$RANK; echo $CUDA_MPS_PIPE_DIRECTORY; {end}");
        let command = format!("-n 2 --no-tag --gpus shared --mps -- sh -c '{script}'");
        // The user's choice of GPUs and the folder of another daemon are not for this one.
        let done = run(&folder, "CUDA_VISIBLE_DEVICES=0", &command);
        assert_eq!(done.code, Some(code), "{}", done.errors);
        assert_eq!(log(&folder), format!("{STARTED}quit\n"));
        let pipes = fs::read_to_string(folder.join("bin/pipes")).unwrap();
        assert_eq!(done.output, pipes.repeat(2));
        assert_stopped(&folder);
    }
}

#[test]
fn restarts_have_a_daemon_each() {
    let folder = host("restarts", "1");
    let script = "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 9";
    let done = run(&folder, "", &format!("-n 2 --max-restarts 1 --gpus shared --mps -- sh -c '{script}'"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert_eq!(log(&folder), format!("{STARTED}quit\n").repeat(2));
    assert_stopped(&folder);
}

#[test]
fn mps_that_cannot_start_is_reported() {
    let folder = host("unstarted", "1");
    fs::write(folder.join("bin/fails"), "").unwrap();
    let done = run(&folder, "", "-n 2 --gpus shared --mps -- touch started");
    assert_eq!(done.code, Some(1), "{}", done.errors);
    let wanted = "`nvidia-cuda-mps-control -d` exited with code 1: An instance of this daemon is already running. Without --mps";
    assert!(done.errors.contains(wanted), "{}", done.errors);
    let pipes = fs::read_to_string(folder.join("bin/pipes")).unwrap();
    assert!(pipes.contains("/weft-mps-") && !Path::new(pipes.trim()).exists(), "{pipes}");
    assert!(!folder.join("started").exists());
}

#[test]
fn mps_stops_when_ranks_cannot_start() {
    let folder = host("unspawned", "1");
    // The daemon removes it when it starts.
    fs::create_dir(folder.join("fleeting")).unwrap();
    let done = run(&folder, "", "-n 2 --workdir fleeting --gpus shared --mps -- true");
    assert_eq!(done.code, Some(1), "{}", done.errors);
    assert!(done.errors.contains("cannot start rank 0: No such file"), "{}", done.errors);
    assert_eq!(log(&folder), format!("{STARTED}quit\n"));
    assert_stopped(&folder);
}

/// Rank 1 of three fails when the others, which ignore SIGTERM, are clients.
const RANK_1_FAILS: &str = "trap \"\" TERM; \
    if [ $RANK = 1 ]; then while [ ! -e client-0 ] || [ ! -e client-2 ]; do sleep 0.01; done; exit 5; fi; \
    echo $$ > new-$RANK; mv new-$RANK client-$RANK; exec sleep 600";

/// Clients that ignore SIGTERM are killed after the grace period, and their work on the GPU is ended first.
#[test]
fn clients_are_terminated_before_they_are_killed() {
    let folder = host("terminated", "1");
    let done = run(&folder, "", &format!("-n 3 --grace 200ms --gpus shared --mps -- sh -c '{RANK_1_FAILS}'"));
    assert_eq!(done.code, Some(5), "{}", done.errors);
    let terminated = "terminate_client 4242 a living client\n".repeat(2);
    assert_eq!(log(&folder), format!("{STARTED}{terminated}quit\n"), "process 1 is not ours to end");
    assert_stopped(&folder);
}

#[test]
fn clients_of_a_running_daemon_are_terminated_too() {
    let folder = host("running", "1");
    fs::create_dir(folder.join("none")).unwrap();
    fs::write(folder.join("none/control"), "").unwrap();
    let done = run(&folder, "", &format!("-n 3 --grace 200ms --gpus shared -- sh -c '{RANK_1_FAILS}'"));
    assert_eq!(done.code, Some(5), "{}", done.errors);
    assert!(!done.errors.contains("without MPS"), "{}", done.errors);
    let terminated = "terminate_client 4242 a living client\n".repeat(2);
    assert_eq!(log(&folder), terminated, "the daemon is not ours to stop");
}

#[test]
fn a_daemon_that_does_not_answer_is_killed() {
    for mood in ["stubborn", "deaf"] {
        let folder = host(mood, "1");
        fs::write(folder.join(format!("bin/{mood}")), "").unwrap();
        let done = run(&folder, "", "-n 2 --gpus shared --mps -- true");
        assert_eq!((done.code, done.errors.as_str()), (Some(0), ""), "{mood}");
        assert_stopped(&folder);
    }
}

/// `weft run` in the background, with two ranks that run.
fn background(folder: &Path, script: &str) -> Child {
    let script = format!(
        "{script} echo $PPID > helper; echo $$ > new-$RANK; mv new-$RANK client-$RANK; while :; do sleep 0.05; done"
    );
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let child = command(env!("CARGO_BIN_EXE_weft"))
        .args("run -n 2 --bind none --grace 200ms --gpus shared --mps -- sh -c".split(' '))
        .arg(script)
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (0..2).for_each(|rank| until("ranks run", || folder.join(format!("client-{rank}")).exists()));
    child
}

#[test]
fn ctrl_c_stops_mps() {
    let folder = host("interrupt", "1");
    let child = background(&folder, "");
    kill("INT", &child.id().to_string());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(log(&folder), format!("{STARTED}quit\n"));
    assert_stopped(&folder);
}

#[test]
fn a_second_ctrl_c_terminates_clients() {
    let folder = host("twice", "1");
    let child = background(&folder, "trap 'touch heard-$RANK' INT;");
    kill("INT", &child.id().to_string());
    let heard = |rank| folder.join(format!("heard-{rank}")).exists();
    until("the first is heard", || heard(0) && heard(1));
    kill("INT", &child.id().to_string());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(137));
    let terminated = "terminate_client 4242 a living client\n".repeat(2);
    assert_eq!(log(&folder), format!("{STARTED}{terminated}quit\n"));
    assert_stopped(&folder);
}

#[test]
fn mps_stops_when_the_helper_or_the_launcher_is_killed() {
    for who in ["helper", "launcher"] {
        let folder = host(&format!("killed-{who}"), "1");
        if who == "helper" {
            // The launcher has to find the daemon's process.
            fs::write(folder.join("bin/stubborn"), "").unwrap();
        }
        let mut child = background(&folder, "trap '' TERM;");
        let victim = if who == "helper" { pid(&folder.join("helper")) } else { child.id().to_string() };
        kill("KILL", &victim);
        child.wait().unwrap();
        let pipes = fs::read_to_string(folder.join("bin/pipes")).unwrap();
        until("the daemon stops", || !Path::new(pipes.trim()).exists());
        assert_stopped(&folder);
        (0..2).for_each(|rank| assert_gone(&pid(&folder.join(format!("client-{rank}")))));
    }
}
