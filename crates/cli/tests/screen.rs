//! Output for people fits the terminal, has colour only where it shows, and is ASCII where the locale asks for it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::{Outcome, scratch, shell};

/// Every command, with every view that people read.
///
/// Exempt are `--json`, files on standard output (`--svg -`, `--emit json`, `completions`) and the rows of `weft bench` on a
/// pipe, because programs read those; and what the ranks of `weft run` print, which is not ours.
const COMMANDS: &[&str] = &[
    "weft --help",
    "weft --version",
    "weft help plan",
    "weft topo --help",
    "weft plan --help",
    "weft plan verify --help",
    "weft plan import --help",
    "weft sim --help",
    "weft sim compare --help",
    "weft sim copy --help",
    "weft sim accuracy --help",
    "weft bench --help",
    "weft run --help",
    "weft why --help",
    "weft knobs --help",
    "weft completions --help",
    "weft man --help",
    "weft topo",
    "weft topo hgx-h100",
    "weft topo dgx-1-v100",
    "weft topo dgx-2",
    "weft topo dgx-a100",
    "weft topo 8x-mi300x",
    "weft topo 2x-rtx4090",
    "weft topo gb200-nvl72",
    "weft topo '2x hgx-h100 + 8x ndr'",
    "weft topo '2x hgx-h100 + 8x ndr' --matrix --tree --cliff",
    "weft topo '2x hgx-h100 + 8x ndr' --path host0/gpu0 host1/gpu5 --bytes 1GB",
    "weft topo --list systems",
    "weft topo --list links",
    "weft topo --list gpus",
    "weft topo --list switches",
    "weft plan --list",
    "weft plan all-reduce hgx-h100 --size 64MiB",
    "weft plan all-reduce '2x hgx-h100 + 8x ndr' --size 1GiB",
    "weft plan all-reduce '2x hgx-h100 + 8x ndr' --sizes 8..1GiB",
    "weft plan all-reduce '2x hgx-h100 + 8x ndr' --algorithm hierarchical",
    "weft plan all-to-all hgx-h100 --algorithm pairwise --show 3",
    "weft plan all-reduce -n 4 --algorithm ring",
    "weft plan all-reduce -n 4 --algorithm two-shot",
    "weft plan all-reduce -n 2 --algorithm one-shot --emit json | weft plan verify -",
    "weft sim all-reduce hgx-h100",
    "weft sim all-reduce '4x hgx-h100 + 8x ndr' --size 1GiB --explain",
    "weft sim all-to-all-v 4x-rtx4090 --size 1GiB --counts 4,2,1,1",
    "weft sim all-reduce '16x hgx-h100 + 8x ndr' --sizes 1KiB..1GiB -f 32",
    "weft sim all-reduce '2x hgx-h100 + 8x ndr' --size 1GiB --beside all-to-all:256MiB --slow host1/nic0,leaf0=0.5",
    "weft sim all-reduce -n 8",
    "weft sim all-to-all 8x-mi300x --size 64MiB",
    "weft sim all-reduce dgx-h100 --gpus 0-3 --size 1GiB --sockets",
    "weft plan all-reduce -n 4 --algorithm ring --show 0",
    "weft topo '16x hgx-h100 + 8x ndr'",
    "weft sim compare hgx-b200 8x-rtx5090 '2x hgx-h100 + 8x eth100'",
    "weft sim copy gpu0 gpu1 --fabric 8x-rtx4090",
    "weft knobs",
    "weft knobs WEFT_INTERFACE WEFT_ENCRYPT",
    "weft run -n 2 --dry-run -- echo one",
    "weft run -n 2 --hosts a,b --gpus shared --mps --dry-run -- echo one",
    // Errors.
    "weft topo hgx-h10",
    "weft topo '5x hgx-h100 + 8x ndrr'",
    "weft plan al-reduce hgx-h100",
    "weft plan all-reduce hgx-h100 --algorithm rign",
    "weft sim all-reduce hgx-h100 --algorithm rign",
    "weft sim all-reduce hgx-h100 --library ncll",
    "weft sim all-reduce hgx-h100 --size 1TB",
    "weft bench all-reduce -d flaot",
    "weft bench all-reduce --plan nothing.json",
    "weft run -n 2 -- false",
    "weft run -n 2 -- nosuchprog",
    "weft why",
    "WEFT_STREAMS=many weft knobs",
    "WEFT_DEADLNE=5s weft knobs",
];

fn run(folder: &Path, environment: &str, command: &str) -> Outcome {
    let exports = environment.split_whitespace().map(|pair| format!("export {pair}; ")).collect::<String>();
    shell(folder, &format!("{exports}{command}"))
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain += before;
        rest = after.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, after)| after);
    }
    plain + rest
}

#[test]
fn lines_fit_into_80_columns() {
    let folder = scratch("screen-80");
    for command in COMMANDS {
        let done = run(&folder, "COLUMNS=80", command);
        let lines = done.output.lines().chain(done.errors.lines());
        for line in lines {
            let length = line.chars().count();
            assert!(length <= 80, "{command}: a line of {length} characters\n{line}");
            let is_help = command.contains("help");
            assert!(is_help || !line.ends_with(' '), "{command}: a space at the end\n{line:?}");
        }
    }
}

#[test]
fn without_a_terminal_lines_have_at_most_100_columns() {
    let folder = scratch("screen-100");
    // In a pipe, rows of a matrix and the verdict on a plan stay lines, for programs.
    let is_whole = |command: &&&str| {
        !command.starts_with("weft topo '2x") && !command.contains("dgx-2") && !command.contains("verify -")
    };
    for command in COMMANDS.iter().filter(is_whole) {
        let done = shell(&folder, command);
        let longest = done.output.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(longest <= 100, "{command}: {longest}");
        assert!(!done.output.contains('\u{1b}') && !done.errors.contains('\u{1b}'), "{command}");
    }
}

#[test]
fn the_c_locale_gets_ascii() {
    let folder = scratch("screen-ascii");
    let drawn =
        ["weft topo hgx-h100", "weft topo '2x hgx-h100 + 8x ndr' --cliff", "weft topo hgx-h100 --tree"];
    for command in COMMANDS.iter().chain(&drawn) {
        let done = run(&folder, "LC_ALL=C", command);
        assert!(
            done.output.is_ascii() && done.errors.is_ascii(),
            "{command}\n{}{}",
            done.output,
            done.errors
        );
    }
    for command in drawn {
        for environment in ["LC_ALL=C.UTF-8", "LC_ALL= LC_CTYPE=en_US.utf8 LANG=C"] {
            assert!(!run(&folder, environment, command).output.is_ascii(), "{environment} {command}");
        }
        for environment in ["LC_ALL= LC_CTYPE=POSIX LANG=C.UTF-8", "LC_ALL= LC_CTYPE= LANG=de_DE.ISO-8859-1"]
        {
            assert!(run(&folder, environment, command).output.is_ascii(), "{environment} {command}");
        }
    }
}

/// Runs a command on a terminal of 80 columns.
fn on_a_terminal(folder: &Path, environment: &str, command: &str) -> String {
    let words = format!("{environment} stty cols 80 rows 24; {environment} {command}").replace('\'', "'\\''");
    let done =
        shell(folder, &format!("unset COLUMNS NO_COLOR; export TERM=xterm; script -qec '{words}' /dev/null"));
    assert_eq!(done.code, Some(0), "{command}\n{}{}", done.output, done.errors);
    done.output.replace("\r\n", "\n").replace('\r', "\n")
}

#[test]
fn terminal_output_is_coloured_and_narrow() {
    let folder = scratch("screen-terminal");
    let plan = "weft plan all-reduce hgx-h100 --size 64MiB";
    let bench = "weft bench all-reduce -n 2 -e 64 --iters 1";
    assert!(on_a_terminal(&folder, "", plan).contains("\u{1b}[32m"), "the chosen row is green");
    assert!(!on_a_terminal(&folder, "NO_COLOR=1", plan).contains("\u{1b}["));
    assert!(!on_a_terminal(&folder, "", &format!("{plan} --color never")).contains("\u{1b}["));
    assert!(shell(&folder, &format!("{plan} --color always")).output.contains("\u{1b}[32m"));
    assert!(shell(&folder, "weft topo hgx-h10 --color=always").errors.contains("\u{1b}["));
    for command in [
        plan,
        bench,
        "weft bench all-reduce -n 2 -b 64K -e 64K --iters 1 --cache both -d half",
        "weft topo dgx-2",
    ] {
        let shown = without_colours(&on_a_terminal(&folder, "", command));
        let longest = shown.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!((40..=80).contains(&longest), "{command}: {longest}\n{shown}");
    }
    let columns = |output: &str| output.lines().find(|line| line.contains("algorithm")).unwrap().to_owned();
    let narrow = columns(&without_colours(&on_a_terminal(&folder, "", bench)));
    let piped = columns(&shell(&folder, bench).output);
    assert!(
        !narrow.contains("algbw") && piped.contains("algbw") && piped.contains("redop"),
        "{narrow}\n{piped}"
    );
    assert_eq!(columns(&run(&folder, "COLUMNS=80", bench).output), piped, "programs read a pipe");
}
