//! Programs in C and C++ that use the library, compiled without warnings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{compile, scratch, success};
use weftlink::plan::{Algorithm, Collective};
use weftlink_testkit::ports::reserved;
use weftlink_testkit::processes::command;

const SECRET: &str = "a secret of these tests";

#[test]
fn threads_make_every_call() {
    let program = c("threads.c", "threads");
    let plan = program.with_file_name("ring.json");
    let ring = Algorithm::Ring.flat(&Collective::AllReduce, 3, 1).unwrap();
    fs::write(&plan, ring.to_json()).unwrap();
    let printed = success(command(&program).arg(&plan));
    assert!(printed.starts_with("ring ") && printed.ends_with("\nok\n"), "{printed}");
}

#[test]
fn plans_of_msccl_run() {
    let program = c("threads.c", "msccl");
    let plan = program.with_file_name("ring.xml");
    let ring = Algorithm::Ring.flat(&Collective::AllReduce, 3, 1).unwrap();
    fs::write(&plan, ring.to_msccl().unwrap()).unwrap();
    let printed = success(command(&program).arg(&plan));
    assert!(printed.ends_with("\nok\n"), "{printed}");
}

#[test]
fn errors_are_sentences() {
    let printed = success(&mut command(c("errors.c", "errors")));
    let predicted = weftlink::sim::predict(
        weftlink::plan::Kind::AllReduce,
        &weftlink::fabric::resolve("hgx-h100").unwrap(),
        &[1 << 30],
        &Default::default(),
    );
    // The same number as from Rust.
    assert_eq!(printed, format!("{:.3}\nok\n", predicted.unwrap().rows[0].time_us()));
}

#[test]
fn processes_meet_at_an_address() {
    let program = c("processes.c", "processes");
    assert_eq!(ended(ranks(&program, 4, "")), vec![Some("4\n".to_owned()); 4]);
}

#[test]
fn a_forked_process_is_refused() {
    let program = c("processes.c", "fork");
    assert_eq!(ended(ranks(&program, 2, "fork")), vec![Some("2\n".to_owned()); 2]);
}

#[test]
fn a_dead_rank_is_named_and_the_others_shrink() {
    let program = c("processes.c", "die");
    let survivor = Some("3\n".to_owned());
    assert_eq!(ended(ranks(&program, 4, "die")), [survivor.clone(), survivor.clone(), None, survivor]);
}

#[test]
fn cpp_uses_the_library() {
    let folder = scratch("cpp");
    let program = folder.join("program");
    compile("g++", &["-std=c++14"], &source("cpp.cc"), &program);
    assert_eq!(success(&mut command(&program)), "the argument comm is a null pointer\n");
}

/// The example runs as a job of a launcher, and the guide shows the same text.
#[test]
fn the_example_sums_between_processes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("examples/all_reduce.c");
    let text = fs::read_to_string(&example).unwrap();
    assert!(
        fs::read_to_string(root.join("docs/c.md")).unwrap().contains(&text),
        "docs/c.md shows another example"
    );
    let program = scratch("example").join("all_reduce");
    compile("cc", &["-std=c99"], &example, &program);
    let place = format!("127.0.0.1:{}", reserved());
    let rank = |rank: u32| {
        let mut run = command(&program);
        run.env("WEFT_RENDEZVOUS", &place).env("WEFT_SECRET", SECRET);
        run.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        run.stdout(Stdio::piped()).spawn().unwrap()
    };
    let printed = ended((0..2).map(rank).collect());
    assert_eq!(printed, [Some("each of 2 ranks holds 1\n".to_owned()), Some(String::new())]);
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// A program in C, compiled in a folder of its own.
fn c(name: &str, folder: &str) -> PathBuf {
    let program = scratch(folder).join("program");
    compile("cc", &["-std=gnu99"], &source(name), &program);
    program
}

/// Starts the ranks of a job.
fn ranks(program: &Path, size: u32, fault: &str) -> Vec<Child> {
    let place = format!("127.0.0.1:{}", reserved());
    let rank = |rank: u32| {
        let mut run = command(program);
        run.args([&place, SECRET, &rank.to_string(), &size.to_string(), fault]);
        run.stdout(Stdio::piped()).spawn().unwrap()
    };
    (0..size).map(rank).collect()
}

/// What each rank printed, if it succeeded. Ranks have deadlines, so that all end.
fn ended(ranks: Vec<Child>) -> Vec<Option<String>> {
    let ended = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
    ended.map(|end| end.status.success().then(|| String::from_utf8(end.stdout).unwrap())).collect()
}
