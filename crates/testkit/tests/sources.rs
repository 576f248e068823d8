//! Two invariants of the sources: lock-free code takes its atomics from `shm/src/sync.rs`, where loom can replace them, and `knobs` alone
//! reads the environment. Each exception is a file with its reason; the test fails on an exception that is no longer needed.
//! Unit tests do not count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Files that use `std::sync::atomic` directly. None of these atomics is in memory that ranks share, or orders accesses that loom would have to
/// check.
const ATOMICS: &[(&str, &str)] = &[
    ("bootstrap/src/fork.rs", "read in a child after fork, where only atomics are safe; all relaxed"),
    ("bootstrap/src/group.rs", "a flag of one process; all relaxed"),
    ("bootstrap/src/monitor.rs", "flags of one process: a stop request, a closed link"),
    ("bootstrap/src/monitor/thread.rs", "the same flags"),
    ("bootstrap/src/reparent.rs", "the same flags"),
    (
        "comm/src/racy_copy.rs",
        "bytes that a peer may be writing, read at any address; loom has no such access",
    ),
    ("comm/src/communicator/start.rs", "numbers communicators; relaxed"),
    ("comm/src/communicator/mod.rs", "the public type of a traced run's tickets"),
    ("comm/src/communicator/trace.rs", "numbers the steps of a traced run, which only tests make"),
    ("cuda/src/communicator/join.rs", "numbers communicators; relaxed"),
    ("cuda/src/driver/mod.rs", "counts libraries of the process; relaxed"),
    ("cuda/src/presence.rs", "words in host memory that GPUs read"),
    ("cuda/src/reports.rs", "words in host memory that GPUs write"),
    ("python/src/cuda.rs", "a flag of one process: the communicator is closed"),
    ("cuda/src/gpu_tests/faults/wire.rs", "numbers the jobs of a test; relaxed"),
    ("cuda/src/gpu_tests/faults/stand_in.rs", "words that processes of a test share in place of GPUs"),
    ("cuda/src/host_tests/faults.rs", "the same words, for kernels that are fibers of a test"),
    ("cuda/src/host_tests/messages.rs", "the same words, for kernels that are fibers of a test"),
    ("cuda/src/host_tests/windows.rs", "the same words, for kernels that are fibers of a test"),
    ("cli/src/links.rs", "a flag that signal handlers set"),
    ("nccl-plugin/src/boundary.rs", "whether a panic switched the plugin off"),
    ("nccl-profiler/src/abi/mod.rs", "counts events of unknown kinds; relaxed"),
    (
        "nccl-profiler/src/communicator/mod.rs",
        "counts and states for one monitor thread; relaxed or behind a mutex",
    ),
    (
        "nccl-profiler/src/communicator/process.rs",
        "how many communicators live; whether the trace has something new",
    ),
    ("nccl-profiler/src/communicator/trace.rs", "reads counts; relaxed"),
    (
        "nccl-profiler/src/pool.rs",
        "a ring of slots with sequence numbers; its protocol is at the top of the file",
    ),
    ("nccl-tuner/src/communicator.rs", "which classes of calls were logged; relaxed"),
    ("cli/src/limits.rs", "a flag that a signal handler sets"),
    ("cli/src/run/signals.rs", "set by signal handlers"),
    ("nccl/src/comm.rs", "counts unfinished calls; whether it is revoked"),
    ("nccl/src/messages.rs", "counts unfinished messages"),
    ("python/src/communicator.rs", "counts pending calls; relaxed"),
    ("python/src/torch/group.rs", "numbers calls; relaxed"),
    ("python/src/torch/lanes.rs", "counts the remaining parts of a call; their results are under a mutex"),
];

/// Files outside `knobs` that read environment variables.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("shm/src/mutants.rs", "which planted defect is on; only in builds of `make mutants`"),
    ("cuda/src/gpu_tests/faults/wire.rs", "the rank and rendezvous of a process that a test starts"),
    ("cuda/src/gpu_tests/processes.rs", "the rank and rendezvous of a process that a test starts"),
    ("cuda/src/gpu_tests/waits.rs", "the role of a process that a test starts"),
    ("cuda/src/host_tests/waits.rs", "the role of a process that a test starts"),
    ("cuda/src/queues.rs", "CUDA_DEVICE_MAX_CONNECTIONS, a variable of CUDA"),
    ("bootstrap/src/environment.rs", "variables of other launchers: Slurm, Open MPI, MPICH, torchrun"),
    ("bootstrap/src/launcher.rs", "variables that `weft run` sets for its ranks; not user settings"),
    ("cli/src/knobs.rs", "names that look like settings, for `weft knobs`"),
    ("cli/src/bench/args/mod.rs", "a default of `weft bench`, beside its flag"),
    ("cli/src/run/args.rs", "variables that `weft run` forwards on request"),
    ("cli/src/run/environment.rs", "OMP_NUM_THREADS, which `weft run` sets unless the user does"),
    ("cli/src/run/mod.rs", "names that look like settings"),
    ("probe/src/inspect/command.rs", "PATH"),
    ("probe/src/software.rs", "PATH, LD_LIBRARY_PATH and others in which programs search for libraries"),
    ("cli/src/screen.rs", "COLUMNS and the locale"),
    ("cli/src/run/program.rs", "PATH"),
    ("testkit/src/schedules.rs", "which seeded schedules a test runs"),
    ("testkit/src/processes.rs", "tests start processes without the settings of the shell"),
];

#[test]
fn atomics_come_from_the_facade() {
    let found = files_with(&["sync::atomic"], |file| !file.starts_with("shm/src/sync.rs"));
    compare(found, ATOMICS, "take atomics from weftlink_shm::sync");
}

#[test]
fn knobs_alone_read_the_environment() {
    let reads = ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("];
    let found = files_with(&reads, |file| !file.starts_with("knobs/src"));
    compare(found, ENVIRONMENT, "read settings through weftlink_knobs");
}

fn compare(found: Vec<String>, listed: &[(&str, &str)], advice: &str) {
    let is_listed = |file: &String| listed.iter().any(|(listed, _)| listed == file);
    let new: Vec<&String> = found.iter().filter(|file| !is_listed(file)).collect();
    assert!(new.is_empty(), "{new:?}: {advice}, or list the file with its reason");
    let gone: Vec<&str> = listed
        .iter()
        .map(|(file, _)| *file)
        .filter(|file| !found.iter().any(|found| found == file))
        .collect();
    assert!(gone.is_empty(), "{gone:?}: no longer needed; remove it from the list");
}

/// Source files, by their path below `crates`, whose code contains one of these.
fn files_with(words: &[&str], counts: impl Fn(&str) -> bool) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let sources = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut found: Vec<String> = sources
        .flat_map(|folder| files(&folder))
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .filter(|path| !path.file_stem().unwrap().to_str().unwrap().ends_with("tests"))
        .filter(|path| {
            let text = fs::read_to_string(path).unwrap();
            code(&text).any(|line| words.iter().any(|word| line.contains(word)))
        })
        .map(|path| path.strip_prefix(crates).unwrap().to_str().unwrap().to_owned())
        .filter(|file| counts(file))
        .collect();
    found.sort_unstable();
    found
}

/// The lines of a file up to its unit tests, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test = |at: &usize| {
        lines[*at].starts_with("#[cfg(")
            && lines[*at].contains("test")
            && lines[*at + 1..].iter().take(3).any(|line| line.starts_with("mod tests {"))
    };
    let end = (0..lines.len()).find(is_test).unwrap_or(lines.len());
    lines.into_iter().take(end).filter(|line| !line.trim_start().starts_with("//"))
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.map(|entry| entry.unwrap().path()).flat_map(below).collect()
}
