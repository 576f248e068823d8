//! Standard output that cannot be written to, for every command.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{scratch, shell};

const COMMANDS: [&str; 12] = [
    "--help",
    "--version",
    "topo hgx-h100",
    "topo hgx-h100 --svg -",
    "topo hgx-h100 --json",
    "plan all-reduce --algorithm ring",
    "plan --list",
    "knobs",
    "bench all-reduce -e 64 --iters 1",
    "bench all-reduce -e 64 --iters 1 --json",
    "run -n 1 -- echo one",
    "run -n 2 --dry-run -- echo one",
];

#[test]
fn full_device_is_an_error_that_names_the_file() {
    let folder = scratch("output-full");
    for command in COMMANDS {
        let done = shell(&folder, &format!("weft {command} > /dev/full"));
        assert_eq!(done.code, Some(1), "{command}: {}", done.errors);
        let told = "weft: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!(done.errors, told, "{command}");
    }
    let done = shell(&folder, "weft topo hgx-h100 --svg /dev/full");
    assert_eq!(done.errors, "weft: cannot write /dev/full: No space left on device (os error 28)\n");
}

#[test]
fn closed_pipe_is_no_error() {
    let folder = scratch("output-enough");
    for command in COMMANDS {
        // The shell's exit code is that of the last of a pipe, so the command's own goes through a file.
        let done = shell(&folder, &format!("{{ weft {command}; echo $? > code; }} | head -1"));
        assert!(done.errors.is_empty(), "{command}: {}", done.errors);
        assert_eq!(done.output.lines().count(), 1, "{command}");
        assert_eq!(std::fs::read_to_string(folder.join("code")).unwrap(), "0\n", "{command}");
    }
}

#[test]
fn dev_null_works() {
    let done = shell(
        &scratch("output-nowhere"),
        "weft plan --list <> /dev/null >&0 && weft plan --list > /dev/null",
    );
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
}
