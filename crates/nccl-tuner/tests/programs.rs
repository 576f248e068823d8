//! A program in C that loads the tuner as NCCL does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use weftlink_testkit::processes::command;

fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libnccl_tuner_weft.so")
}

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-tuner-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn program(folder: &Path) -> PathBuf {
    let made = folder.join("tuner");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tuner.c");
    let mut compile = command("cc");
    compile
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&made)
        .arg(source)
        .arg("-ldl");
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made
}

fn run(program: &Path, mode: &str, version: u32, settings: &[(&str, &str)]) -> String {
    let mut run = command(program);
    run.arg(library()).arg(mode).arg(version.to_string()).env_clear().envs(settings.iter().copied());
    let done = run.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(
        done.status.success() && out.ends_with("ok\n"),
        "{mode} v{version}: {:?}\n{out}\n{err}",
        done.status
    );
    out.into_owned()
}

/// The choices that a program printed: function, bytes, algorithm, protocol, channels.
fn choices(out: &str) -> Vec<[i64; 5]> {
    let numbers = |line: &str| {
        let numbers: Vec<i64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    out.lines().filter_map(|line| line.strip_prefix("choice ")).map(numbers).collect()
}

const TABLE: &str = "collective,bytes_min,bytes_max,nodes,ranks,algorithm,protocol,channels\n\
    all_reduce,0,4K,1,8,Tree,LL,2\n\
    all_reduce,4097,65536,,,CollNetDirect,Simple,\n\
    all_gather,0,,2,,Ring,Simple,16\n";
const FABRIC: (&str, &str) = ("WEFT_TUNER_FABRIC", "hgx-h100");

#[test]
fn every_version_chooses_alike() {
    let folder = folder("choices");
    let (program, table) = (program(&folder), folder.join("table.csv"));
    std::fs::write(&table, TABLE).unwrap();
    let settings = [FABRIC, ("WEFT_TUNER_TABLE", table.to_str().unwrap())];
    let of: Vec<Vec<[i64; 5]>> =
        (2..=7).map(|version| choices(&run(&program, "choices", version, &settings))).collect();
    assert_eq!(of[1].len(), 5 * 9);
    for (version, other) in (4..).zip(&of[2..]) {
        assert_eq!(&of[1], other, "v3 and v{version}");
    }
    let row = |choices: &[[i64; 5]], function, bytes| {
        choices
            .iter()
            .find(|row| (row[0], row[1]) == (function, bytes))
            .map(|row| (row[2], row[3], row[4]))
            .unwrap()
    };
    for choices in &of {
        assert_eq!(row(choices, 4, 8), (0, 0, 2), "the first row of the table");
        assert_eq!(row(choices, 4, 65536), (2, 2, 0), "the second");
        assert_eq!(row(choices, 4, 1 << 33), (4, 2, 0), "NVLS by the model");
        assert_eq!(row(choices, 0, 1 << 26).0, 1, "rings broadcast");
    }
    // Without costs, only rings are surely there for an all-gather.
    assert_eq!(row(&of[0], 2, 1 << 20).0, 1);
}

#[test]
fn the_log_says_what_was_chosen_and_why() {
    let folder = folder("log");
    let program = program(&folder);
    let table = folder.join("table.csv");
    std::fs::write(&table, TABLE).unwrap();
    let out = run(&program, "choices", 5, &[FABRIC, ("WEFT_TUNER_TABLE", table.to_str().unwrap())]);
    let has = |words: &str| assert!(out.lines().any(|line| line.contains(words)), "no {words:?} in\n{out}");
    has("log 3 40 weft tuner: 8 ranks on 1 nodes, as 8 x h100 (nvswitch) with shipped constants");
    has("table.csv: 3 rows, of which some match 8 ranks on 1 nodes");
    has("weft tuner: AllReduce of 8 bytes: Tree LL, line 2 of the table; second best");
    has("weft tuner: AllReduce of 8589934592 bytes: NVLS Simple, ");
    has("us predicted; second best ");
    has("; NCCL by itself Tree LL, 100.0 us by its costs");
    // Once per class of sizes.
    let lines: Vec<&str> = out.lines().filter(|line| line.contains("AllReduce of 65536 ")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn whatever_is_passed_nccl_goes_on() {
    let program = program(&folder("edges"));
    for version in 2..=7 {
        let out = run(&program, "edges", version, &[FABRIC]);
        if version > 2 {
            // 1 GiB: NVLS where it is there, and a ring where it is not.
            assert!(out.contains("shape 7 3: 4 2") && out.contains("shape 12 5: 4 2"), "{out}");
            assert!(out.contains("shape 2 3: 1 2") && out.contains("shape 1 1: 0 0"), "{out}");
        }
        assert!(out.contains("no prediction for 1 ranks on 1 nodes"), "{out}");
    }
}

#[test]
fn files_that_cannot_be_used_leave_all_to_nccl() {
    let folder = folder("files");
    let program = program(&folder);
    let table = folder.join("table.csv");
    std::fs::write(&table, "collective,bytes_min\n").unwrap();
    let calibration = folder.join("mine.toml");
    std::fs::write(&calibration, "constants = 5\n").unwrap();
    let untouched = |settings: &[(&str, &str)], words: &str| {
        let out = run(&program, "choices", 5, settings);
        assert!(
            out.lines().any(|line| line.starts_with("log 2 ") && line.contains(words)),
            "no {words:?} in\n{out}"
        );
        // The costs of the program are lowest for trees, where there are any, and then for rings.
        let default = |function: i64| (i64::from(function != 4), 0, 0);
        assert!(choices(&out).iter().all(|row| (row[2], row[3], row[4]) == default(row[0])), "{out}");
    };
    untouched(
        &[FABRIC, ("WEFT_TUNER_TABLE", table.to_str().unwrap())],
        "line 1: there is no column `bytes_max`",
    );
    untouched(&[FABRIC, ("WEFT_TUNER_TABLE", "/nowhere/table.csv")], "WEFT_TUNER_TABLE=/nowhere/table.csv: ");
    untouched(
        &[FABRIC, ("WEFT_TUNER_CALIBRATION", calibration.to_str().unwrap())],
        "WEFT_TUNER_CALIBRATION=",
    );
    untouched(&[("WEFT_TUNER_FABRIC", "hgx-h1000")], "WEFT_TUNER_FABRIC=hgx-h1000: ");
    untouched(&[("WEFT_TUNER_FABRIC", "-")], "standard input belongs to the program");
}

#[test]
fn without_settings_this_machine_is_probed() {
    let out = run(&program(&folder("probed")), "choices", 5, &[]);
    assert!(out.contains("log 3 40 weft tuner: "), "{out}");
}

#[test]
fn many_threads_have_communicators_of_their_own() {
    let program = program(&folder("threads"));
    for version in [3, 5, 7] {
        run(&program, "threads", version, &[FABRIC]);
    }
}

/// `cargo nextest run -p weftlink-nccl-tuner what_a_call_costs --no-capture` prints it.
#[test]
fn what_a_call_costs() {
    print!("{}", run(&program(&folder("cost")), "cost", 5, &[FABRIC]));
}

#[test]
fn the_library_has_the_names_that_nccl_looks_for() {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let expected: Vec<String> = (2..=7).map(|version| format!("ncclTunerPlugin_v{version}")).collect();
    assert_eq!(names, expected);
    let read = Command::new("readelf").arg("-d").arg(library()).output().unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(text.contains("soname: [libnccl-tuner-weft.so]") && text.contains("NODELETE"), "{text}");
    assert!(!text.contains("libcuda") && !text.contains("libnccl.so"), "{text}");
}
