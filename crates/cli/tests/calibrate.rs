//! `weft sim calibrate`, and predictions with what it found.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use common::{Outcome, json, root, scratch, shell, shown};
use serde_json::Value;

fn refused(folder: &Path, command: &str, why: &str) {
    let Outcome { output, errors, code } = shell(folder, command);
    assert_eq!((code, output.as_str()), (Some(2), ""), "{command}\n{errors}");
    let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(errors.contains(why), "{command}\n{errors}");
}

/// A log of nccl-tests on one host with eight GPUs.
fn log(host: &str, program: &str, calls: &[(u64, f64)]) -> String {
    let mut text = format!("# Collective test starting: {program}\n# Using devices\n");
    for rank in 0..8 {
        let pid = 1000 + rank;
        writeln!(
            text,
            "#  Rank  {rank} Group  0 Pid   {pid} on {host} device  {rank} [0000:1b:00] NVIDIA H100 80GB HBM3"
        )
        .unwrap();
    }
    text += "NCCL version 2.27.3+cuda12.8\n#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n";
    for (bytes, time_us) in calls {
        let rate = *bytes as f64 / time_us / 1e3;
        writeln!(text, "{bytes} {bytes} float sum -1 {time_us:.2} {rate:.2} {rate:.2} 0 {time_us:.2} {rate:.2} {rate:.2} 0").unwrap();
    }
    text
}

/// The predicted calls, all slower by a factor.
fn calls(folder: &Path, question: &str, slower: f64) -> Vec<(u64, f64)> {
    let found = json(folder, &format!("weft sim {question}"));
    let rows = found["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["bytes"].as_u64().unwrap(), slower * row["time_us"].as_f64().unwrap())).collect()
}

#[test]
fn a_slower_machine_is_predicted_as_slow_as_it_is() {
    let folder = scratch("calibrate-slower");
    let question =
        |collective: &str| format!("{collective} hgx-h100 --library nccl:2.27 --sizes 8..32KiB -f 4");
    let measured = calls(&folder, &question("all-reduce"), 1.5);
    fs::write(folder.join("a.log"), log("node1", "all_reduce_perf", &measured)).unwrap();
    let text = shown(&folder, "weft sim calibrate a.log --fabric hgx-h100 -o mine.toml");
    for part in ["nccl 2.27 on hgx-h100", "HopLlUs", "Use it with --calibration mine.toml"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let shipped = calls(&folder, &question("all-gather"), 1.0);
    let calibrated = calls(&folder, &format!("{} --calibration mine.toml", question("all-gather")), 1.0);
    for ((_, before), (_, after)) in shipped.iter().zip(&calibrated) {
        assert!((1.2..1.8).contains(&(after / before)), "{before} us became {after} us");
    }
    let large = |also: &str| {
        calls(&folder, &format!("all-gather hgx-h100 --library nccl:2.27 --size 4GiB{also}"), 1.0)[0].1
    };
    let (before, after) = (large(""), large(" --calibration mine.toml"));
    assert!(
        (after / before - 1.0).abs() < 0.02,
        "small calls say nothing about bandwidth: {before} and {after} us"
    );
}

#[test]
fn every_command_that_predicts_takes_a_calibration() {
    let folder = scratch("calibrate-commands");
    let log = root().join("testdata/nccl-tests/sophia-all_reduce.log");
    shown(&folder, &format!("weft sim calibrate {} --fabric '2x dgx-a100' -o mine.toml", log.display()));
    // Twice the bandwidth and half the latency.
    let file = fs::read_to_string(folder.join("mine.toml")).unwrap();
    let mut constant = String::new();
    let changed: Vec<String> = file
        .lines()
        .map(|line| match line.strip_prefix("value = ") {
            Some(value) if constant.ends_with("Us]") => {
                format!("value = {}", value.parse::<f64>().unwrap() / 2.0)
            }
            _ => {
                constant = if line.starts_with('[') { line.to_owned() } else { constant.clone() };
                line.to_owned()
            }
        })
        .collect();
    // Corrections belong to the constants as they were.
    let changed = changed.join("\n");
    let (changed, _) = changed.split_once("\n[[corrections]]").unwrap_or((&changed, ""));
    fs::write(folder.join("fast.toml"), changed).unwrap();
    let differs = |command: &str| {
        let shipped = shown(&folder, command);
        let calibrated = shown(&folder, &format!("{command} --calibration fast.toml"));
        assert_ne!(shipped, calibrated, "{command}");
    };
    differs("weft sim all-reduce '2x dgx-a100' --size 64KiB --json");
    differs("weft sim compare '2x dgx-a100' dgx-a100 --size 64KiB --json");
    differs("weft plan all-reduce '2x dgx-a100' --size 64KiB --json");
    differs("weft sim all-reduce '2x dgx-a100' --size 64KiB --explain");
    for command in [
        "weft sim all-reduce '2x dgx-a100' --size 64KiB",
        "weft sim compare '2x dgx-a100' dgx-a100 --size 64KiB",
        "weft sim copy gpu0 gpu1 --fabric dgx-a100 --size 1MiB",
        "weft sim all-reduce -n 4",
        "weft plan all-reduce '2x dgx-a100' --size 64KiB",
        "weft plan all-reduce '2x dgx-a100' --sizes 8..1MiB",
        "weft plan all-reduce '2x dgx-a100' --size 1MiB --algorithm ring",
    ] {
        let value = json(&folder, &format!("{command} --calibration fast.toml"));
        let note = value["calibration"].as_str().unwrap_or_default();
        assert!(note.starts_with("calibrated on 29 calls"), "{command}: {value}");
        let text = shown(&folder, &format!("{command} --calibration fast.toml"));
        assert!(text.contains("calibrated on 29 calls of nccl"), "{command}: {text}");
    }
    shown(&folder, "weft bench all-reduce -n 2 --size 8 --iters 1 --calibration fast.toml");
}

#[test]
fn cores_are_calibrated_with_the_json_of_bench() {
    let folder = scratch("calibrate-cores");
    let predicted = calls(&folder, "all-reduce -n 2 --sizes 64..4MiB -f 4", 2.0);
    let rows: Vec<Value> = predicted
        .iter()
        .map(|(bytes, time_us)| serde_json::json!({"collective": "all-reduce", "bytes": bytes, "out_of_place": {"time_us": time_us}, "in_place": null}))
        .collect();
    let bench = serde_json::json!({
        "ranks": 2, "buffers": "ordinary", "gpu": null, "hosts": [0, 0],
        "environment": {"cores_allowed": 2, "reads_peers": true}, "rows": rows,
    });
    fs::write(folder.join("bench.json"), bench.to_string()).unwrap();
    let found = json(&folder, "weft sim calibrate bench.json -o cores.toml");
    let errors = found["errors"].as_array().unwrap();
    assert!(errors.iter().all(|row| row["after"].as_f64() < row["before"].as_f64()), "{found}");
    let after = calls(&folder, "all-reduce -n 2 --size 1KiB --calibration cores.toml", 1.0)[0].1;
    let before = calls(&folder, "all-reduce -n 2 --size 1KiB", 1.0)[0].1;
    assert!(after > 1.3 * before, "{before} us became {after} us");
    // The real thing is read, too.
    let real = shell(&folder, "weft bench all-reduce -n 2 --sizes 8..64KiB --iters 20 --json");
    fs::write(folder.join("real.json"), real.output).unwrap();
    let Outcome { errors, code, .. } = shell(&folder, "weft sim calibrate real.json");
    assert!(code == Some(0) || errors.contains("2 ranks on 1 cores"), "{errors}");
    let forced = shell(&folder, "weft bench all-reduce -n 2 --size 64KiB --iters 20 --algorithm ring --json");
    fs::write(folder.join("forced.json"), forced.output).unwrap();
    refused(&folder, "weft sim calibrate forced.json", "it measured one plan");
    refused(&folder, "weft sim calibrate real.json --fabric hgx-h100", "leave them out");
}

#[test]
fn a_slow_host_is_named_and_left_out() {
    let folder = scratch("calibrate-outlier");
    let measured = calls(&folder, "all-reduce hgx-h100 --library nccl:2.27 --sizes 8..1MiB -f 8", 1.0);
    let slow: Vec<(u64, f64)> = measured.iter().map(|(bytes, time_us)| (*bytes, 1.4 * time_us)).collect();
    for (host, calls) in [("a", &measured), ("b", &slow), ("c", &measured), ("d", &measured)] {
        fs::write(folder.join(format!("{host}.log")), log(host, "all_reduce_perf", calls)).unwrap();
    }
    let found = json(&folder, "weft sim calibrate a.log b.log c.log d.log --fabric hgx-h100");
    let outliers = found["outliers"].as_array().unwrap();
    assert_eq!(outliers.len(), 1, "{found}");
    assert_eq!(outliers[0]["host"], "b");
    assert_eq!(found["calls"].as_u64(), Some(3 * measured.len() as u64));
}

#[test]
fn calibration_on_one_collective_is_judged_by_the_others() {
    let folder = scratch("calibrate-on");
    let file = fs::read_to_string(root().join("testdata/measurements/published.csv")).unwrap();
    let mut lines = file.lines();
    let head = lines.next().unwrap().to_owned();
    let rows: Vec<&str> = lines.filter(|line| line.starts_with("sophia-")).collect();
    fs::write(folder.join("m.csv"), format!("{head}\n{}\n", rows.join("\n"))).unwrap();
    let all = json(&folder, "weft sim accuracy m.csv");
    let others = json(&folder, "weft sim accuracy m.csv --calibrate-on all-reduce --out p.csv");
    let tables = |found: &Value, of: &str| {
        found[of].as_array().unwrap().iter().map(|band| band["tables"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(tables(&others, "all") < tables(&all, "all"), "the tables of all-reduce are not counted");
    assert_eq!(tables(&others, "all"), tables(&others, "uncalibrated"));
    let left_out = rows.iter().filter(|row| !row.contains(",all_reduce,")).count();
    assert_eq!(fs::read_to_string(folder.join("p.csv")).unwrap().lines().count(), left_out + 1);
    refused(
        &folder,
        "weft sim accuracy m.csv --calibrate-on fewest-nodes",
        "with tables to calibrate on and others",
    );
    refused(&folder, "weft sim accuracy m.csv --calibrate-on all-reduces", "all-reduce");
}

#[test]
fn wrong_files_get_advice() {
    let folder = scratch("calibrate-wrong");
    fs::write(folder.join("a.log"), log("node1", "all_reduce_perf", &[(1024, 10.0)])).unwrap();
    fs::write(folder.join("empty.log"), "nothing\n").unwrap();
    fs::write(folder.join("short.csv"), "collective,size_bytes,time_us\nall_reduce,1024,-1\n").unwrap();
    let calibrate = |rest: &str, why: &str| refused(&folder, &format!("weft sim calibrate {rest}"), why);
    calibrate(
        "a.log",
        "name the machine that was measured (8 ranks on 1 host of NVIDIA H100 80GB HBM3) with --fabric",
    );
    calibrate("a.log --fabric dgx-2", "no --fabric has the GPUs and hosts that were measured (8 ranks");
    calibrate("a.log --fabric hgx-h100 --fabric dgx-a100", "several --fabric could have been measured");
    calibrate("a.log --fabric hgx-h100 --fabric dgx-2", "no log was measured on --fabric dgx-2");
    calibrate("a.log a.log --fabric hgx-h100", "given twice");
    calibrate("a.log --fabric hgx-h100 -o a.log", "is one of the logs");
    calibrate("all-gather=a.log --fabric hgx-h100", "names another");
    calibrate("a.log --fabric hgx-h100 --library msccl:x.xml", "name another library");
    assert!(
        fs::read_to_string(folder.join("a.log")).unwrap().contains("all_reduce_perf"),
        "the log is untouched"
    );
    calibrate("empty.log --fabric hgx-h100", "no table of nccl-tests");
    calibrate("none.log --fabric hgx-h100", "cannot read none.log");
    calibrate("sums=a.log --fabric hgx-h100", "no collective");
    calibrate("short.csv --fabric hgx-h100", "time_us is \"-1\"");
    let other = shown(&folder, "weft sim calibrate a.log --fabric dgx-a100 | tr '\\n' ' '");
    assert!(other.contains("measured on NVIDIA H100 80GB HBM3, and dgx-a100 has"), "{other}");
    refused(&folder, "weft sim all-reduce hgx-h100 --calibration a.log", "weft sim calibrate LOG... -o FILE");
}
