//! Programs in C that were written for NCCL, on host memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{build_driver, compile, run, with_library};

fn program(test: &str, name: &str, arguments: &[&str]) {
    let folder = with_library(test);
    let program = compile(&folder, name);
    for arguments in arguments {
        run(&program, arguments, &[]);
    }
}

#[test]
fn collectives_of_threads() {
    program("collectives-threads", "collectives", &["all threads 1", "all threads 2", "all threads 3"]);
}

#[test]
fn collectives_of_processes() {
    program("collectives-processes", "collectives", &["all processes 2", "all processes 4"]);
}

#[test]
fn groups_of_threads_and_processes() {
    program("messages", "groups", &["messages threads 3", "messages processes 4"]);
}

#[test]
fn communicators_made_from_others() {
    program("families", "groups", &["families threads 4", "families processes 3"]);
}

#[test]
fn functions_that_do_not_block() {
    program("without-blocking", "groups", &["without_blocking threads 2", "without_blocking processes 3"]);
}

#[test]
fn registered_memory_and_windows() {
    program("registered", "groups", &["registered threads 2", "registered processes 2"]);
}

#[test]
fn puts_and_signals() {
    program(
        "puts",
        "onesided",
        &["puts threads 1", "puts threads 3", "puts processes 2", "puts processes 4"],
    );
}

#[test]
fn puts_and_signals_that_are_refused() {
    program("puts-wrong", "onesided", &["wrong threads 2", "wrong processes 1", "deregistered processes 2"]);
}

#[test]
fn puts_and_signals_without_blocking_or_of_one_thread() {
    program("puts-all", "onesided", &["without_blocking processes 2", "all x 1", "all x 4"]);
}

#[test]
fn a_rank_ends_while_others_wait_for_its_signal() {
    program("puts-ended", "onesided", &["killed processes 3", "left processes 2"]);
}

#[test]
fn a_window_is_not_written_to_after_it_was_deregistered() {
    program(
        "puts-under-way",
        "onesided",
        &[
            "under_way threads 2",
            "under_way processes 2",
            "under_way_leaves threads 2",
            "under_way_leaves processes 2",
            "under_way_aborts processes 2",
        ],
    );
}

#[test]
fn a_communicator_with_windows_is_shrunk() {
    program("puts-shrunk", "onesided", &["shrunk threads 3", "shrunk processes 4"]);
}

#[test]
fn all_ranks_send_many_signals_before_they_wait() {
    program("puts-crowd", "onesided", &["crowd threads 2", "crowd processes 3"]);
}

/// The library looks for the driver when another library was loaded, and not in each call.
#[test]
fn a_program_that_uses_cuda_late() {
    let folder = with_library("late");
    build_driver(&folder);
    let settings = [("TEST_CUDA", "1"), ("LD_LIBRARY_PATH", folder.to_str().unwrap())];
    run(&compile(&folder, "late"), "processes 2", &settings);
}

/// It needs a GPU to run.
#[test]
fn the_program_for_a_gpu_compiles() {
    compile(&with_library("gpu"), "gpu");
}

#[test]
fn one_thread_makes_the_calls_of_all_ranks() {
    program("all", "groups", &["all x 1", "all x 2", "all x 5"]);
}

#[test]
fn ranks_that_end() {
    program("faults", "faults", &["killed 3", "aborted 3", "revoked 2", "different 2"]);
}

#[test]
fn wrong_arguments_and_settings() {
    let folder = with_library("wrong");
    let program = compile(&folder, "faults");
    run(&program, "wrong 1", &[]);
    run(&program, "wrong 1", &[("WEFT_NCCL_VERSION", "22809")]);
}

#[test]
fn a_forked_process_makes_its_own_communicator() {
    program("forked", "faults", &["forked 1"]);
}

#[test]
fn the_log_is_that_of_nccl() {
    let folder = with_library("log");
    let program = compile(&folder, "collectives");
    let settings = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL"), ("NCCL_IB_HCA", "mlx5_0")];
    let out = run(&program, "all threads 2", &settings);
    let has = |words: &str| assert!(out.lines().any(|line| line.contains(words)), "no {words:?} in\n{out}");
    has("NCCL version 2.30.7+weft");
    has(" [-] NCCL INFO rank 1 nranks 2 via shared memory - Init COMPLETE");
    has("NCCL INFO NCCL_IB_HCA is set, and means nothing here");
    has("NCCL INFO AllReduce: sendbuff 0x");
    assert_eq!(out.matches("NCCL_IB_HCA is set").count(), 1, "once");
}
