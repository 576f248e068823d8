//! `weft run --nccl` with real processes, and an empty library in place of Weft's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::{Outcome, scratch, shell};
use serde_json::Value;
use weftlink_testkit::processes::command;

/// A folder with a library.
fn with_library(name: &str) -> PathBuf {
    let folder = scratch(&format!("nccl-{name}"));
    let made = command("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(folder.join("libnccl.so.2"))
        .status();
    assert!(made.unwrap().success());
    folder
}

fn run(folder: &Path, before: &str, arguments: &str) -> Outcome {
    shell(folder, &format!("unset LD_PRELOAD VLLM_NCCL_SO_PATH; {before} weft run --bind none {arguments}"))
}

const SHOWN: &str = "-- sh -c 'echo $LD_PRELOAD $VLLM_NCCL_SO_PATH'";
const USED: &str = r#"echo "{\"uses\":\"nccl\"}" >> $WEFT_LAST_WORDS"#;
const ADVICE: &str = "weft run: --nccl: no rank made an NCCL communicator of Weft.";

#[test]
fn ranks_load_the_library_first() {
    let folder = with_library("loaded");
    let library = folder.join("libnccl.so.2").display().to_string();
    let done = run(&folder, "", &format!("-n 1 --nccl --nccl-library libnccl.so.2 {SHOWN}"));
    assert_eq!((done.code, done.output), (Some(0), format!("{library} {library}\n")), "{}", done.errors);
    let others = "LD_PRELOAD= VLLM_NCCL_SO_PATH=/own";
    let done = run(
        &folder,
        others,
        &format!("-n 1 -x LD_PRELOAD={library} --nccl --nccl-library {library} {SHOWN}"),
    );
    assert_eq!(done.output, format!("{library}:{library} /own\n"), "{}", done.errors);
    let done = run(&folder, "", &format!("-n 1 {SHOWN}"));
    assert_eq!(done.output, "\n");
}

#[test]
fn advice_follows_if_no_rank_uses_it() {
    let folder = with_library("advice");
    let options = "-n 2 --no-tag --nccl --nccl-library libnccl.so.2";
    let done = run(&folder, "", &format!("{options} -- true"));
    assert_eq!(done.code, Some(0));
    assert!(done.errors.starts_with(ADVICE) && done.errors.lines().count() == 1, "{}", done.errors);
    assert!(done.errors.contains("nm -D libtorch_cuda.so | grep ncclAllReduce"), "{}", done.errors);
    let done = run(&folder, "", &format!("{options} -- sh -c 'exit 3'"));
    assert!(done.code == Some(3) && done.errors.contains(ADVICE), "{}", done.errors);
    let done = run(&folder, "", &format!("{options} -- sh -c 'test $RANK = 0 || {USED}'"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    let done = run(&folder, "", &format!("{options} --json -- true"));
    let report: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(report["uses_nccl"], Value::Bool(false), "{}", done.output);
    let done = run(&folder, "", "-n 1 -- true");
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""), "without --nccl");
}

#[test]
fn a_library_that_is_missing_is_refused() {
    let folder = scratch("nccl-missing");
    let done = run(&folder, "", "-n 1 --nccl --nccl-library no/libnccl.so.2 -- true");
    assert_eq!(done.code, Some(2));
    let wanted = format!("weft run: --nccl: there is no {}/no/libnccl.so.2 here. ", folder.display());
    assert!(done.errors.starts_with(&wanted) && done.errors.contains("on every host"), "{}", done.errors);
    let done = run(&folder, "", "-n 1 --nccl --nccl-library 'a b/libnccl.so.2' -- true");
    assert!(
        done.code == Some(2) && done.errors.contains("LD_PRELOAD cannot name a path with a space"),
        "{}",
        done.errors
    );
    let done = run(&folder, "", "-n 1 --nccl-library x -- true");
    assert!(done.code == Some(2) && done.errors.contains("--nccl"), "{}", done.errors);
}

#[test]
fn the_library_must_be_on_every_host() {
    let folder = with_library("hosts");
    // The remote shell of host b hides the library before it starts the helper.
    let rsh = r#"--rsh "sh -c 'host=\$1; shift; test \$host = a || rm libnccl.so.2; exec \"\$@\"' rsh""#;
    let command = format!(
        "-n 2 --hosts a,b {rsh} --nccl --nccl-library libnccl.so.2 --workdir {} -- true",
        folder.display()
    );
    let done = run(&folder, "", &command);
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(
        done.errors.contains("libnccl.so.2 here. Install it at the same path on every host"),
        "{}",
        done.errors
    );
}

#[test]
fn dry_run_shows_it() {
    let folder = with_library("dry");
    let library = folder.join("libnccl.so.2").display().to_string();
    let done = run(
        &folder,
        "LD_PRELOAD=",
        "--dry-run -n 2 --hosts localhost,b --nccl --nccl-library libnccl.so.2 -- ./train",
    );
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let text = done.output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("LD_PRELOAD={library} ")), "{text}");
    assert!(text.contains(&format!("LD_PRELOAD={library}:(what is set there) ")), "{text}");
    assert_eq!(text.matches(&format!("VLLM_NCCL_SO_PATH={library}")).count(), 2, "{text}");
}
