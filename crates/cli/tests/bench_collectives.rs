//! `weft bench` for every collective and with every option that changes what is measured or where it goes. How long anything
//! takes is never looked at.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::{Outcome, scratch, shell};
use serde_json::Value;
use weftlink_plan::Collective;

fn bench(name: &str, arguments: &str) -> Outcome {
    shell(&scratch(name), &format!("weft bench {arguments}"))
}

/// The output of a run that must go well.
fn measured(name: &str, arguments: &str) -> String {
    let done = bench(name, arguments);
    assert_eq!(done.code, Some(0), "weft bench {arguments}\n{}\n{}", done.output, done.errors);
    assert!(done.errors.is_empty(), "{}", done.errors);
    done.output
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

fn json(name: &str, arguments: &str) -> Value {
    serde_json::from_str(&measured(name, &format!("{arguments} --json"))).unwrap()
}

#[test]
fn every_collective_on_one_two_and_three_ranks() {
    for collective in Collective::NAMES.into_iter().filter(|name| *name != "barrier") {
        for (ranks, memory) in [(1, 0), (2, 0), (3, 0), (2, 2), (3, 2)] {
            let run = format!("{collective} -n {ranks} -R {memory} -b 4 -e 70000 -f 25 --iters 3 --threads");
            let table = measured("bench-every", &run);
            assert!(table.contains("values : 0 OK"), "{run}\n{table}");
            assert!(rows(&table).len() >= 3, "{run}\n{table}");
            for row in rows(&table) {
                assert_eq!(row[8], "0", "{run}: {row:?}");
                assert!(["0", "N/A"].contains(&row[12]), "{run}: {row:?}");
            }
        }
    }
    let table = measured("bench-every", "barrier -n 3 --iters 3");
    assert_eq!(rows(&table)[0][..5], ["0", "0", "float", "none", "-1"]);
}

#[test]
fn collective_aliases_work() {
    for (name, collective) in [
        ("allreduce", "all-reduce"),
        ("all_reduce", "all-reduce"),
        ("allgather", "all-gather"),
        ("reducescatter", "reduce-scatter"),
        ("alltoall", "all-to-all"),
        ("bcast", "broadcast"),
        ("sendrecv", "send-receive"),
    ] {
        let table = measured("bench-names", &format!("{name} -b 16 -e 16 --iters 1"));
        assert!(table.contains(&format!(": {collective} on this host")), "{table}");
    }
    let done = bench("bench-names", "allredcue");
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(done.errors.contains("all-reduce"), "{}", done.errors);
}

#[test]
fn sizes_and_counts_are_those_of_nccl_tests() {
    for (collective, size, count) in [
        ("all-reduce", "1024", "256"),
        ("all-gather", "1024", "64"),
        ("reduce-scatter", "1024", "64"),
        ("all-to-all", "1024", "64"),
        ("gather", "1024", "64"),
        ("scatter", "1024", "64"),
        ("broadcast", "1024", "256"),
        ("send-receive", "1024", "256"),
    ] {
        let table = measured("bench-sizes", &format!("{collective} -n 4 -b 1K -e 1K --iters 1 --threads"));
        assert_eq!(rows(&table)[0][..2], [size, count], "{collective}");
    }
}

#[test]
fn root_minus_1_measures_every_root() {
    let table = measured("bench-roots", "broadcast -n 3 -r -1 -b 64 -e 64 --iters 1");
    assert_eq!(rows(&table).iter().map(|row| row[4]).collect::<Vec<_>>(), ["0", "1", "2"]);
    let table = measured("bench-roots", "reduce -n 3 -r 2 -b 64 -e 64 --iters 1");
    assert_eq!(rows(&table)[0][3..5], ["sum", "2"]);
    for (arguments, told) in [
        ("gather -r 5", "-r 5: there are 2 ranks"),
        ("all-gather -o sum", "-o does not apply to all-gather, which has no reduction"),
        ("barrier -b 8", "a barrier has no size"),
        ("p2p --stats", "--stats does not apply to p2p"),
        ("p2p -n 33", "p2p measures up to 32 ranks"),
        ("p2p -d half", "-d does not apply to p2p, which takes"),
        ("--tune -c 1", "-c does not apply to --tune, which takes"),
        ("--tune -n 1", "--tune needs at least two ranks"),
        ("--tune --collectives barrier", "barrier has only one algorithm"),
    ] {
        let done = bench("bench-roots", arguments);
        assert_eq!(done.code, Some(2), "{arguments}: {}", done.errors);
        assert!(done.errors.contains(told), "{arguments}: {}", done.errors);
    }
}

#[test]
fn every_type_and_operation_is_correct() {
    let table = measured("bench-types", "all-gather -n 3 -d all -b 480 -e 480 --iters 2 --threads");
    assert_eq!(rows(&table).len(), 17);
    assert!(table.contains("bfloat16") && table.contains("complex128"), "{table}");
    for collective in ["all-reduce", "reduce-scatter", "scan"] {
        let run = format!("{collective} -n 3 -d all -o all -b 480 -e 480 --iters 2 --threads");
        let table = measured("bench-types", &run);
        assert!(rows(&table).iter().any(|row| row[2..4] == ["float", "sum"]), "{table}");
        assert!(table.contains("values : 0 OK"), "{table}");
    }
}

#[test]
fn average_selects_the_rank_times() {
    for (average, field) in [(1, "ranks_time_us_mean"), (2, "ranks_time_us_min"), (3, "ranks_time_us_max")] {
        let run = json("bench-average", &format!("all-reduce -n 2 -b 8 -e 8 --iters 3 -a {average}"));
        let way = &run["rows"][0]["out_of_place"];
        assert_eq!(way["time_us"], way[field]);
    }
    let run = json("bench-average", "all-reduce -n 2 -b 8 -e 8 --iters 3 -a 0");
    let way = &run["rows"][0]["out_of_place"];
    assert_eq!(way["time_us"], way["ranks_time_us"][0]);
}

#[test]
fn stats_prints_percentiles() {
    let run = json("bench-stats", "all-reduce -n 2 -b 64 -e 64 --iters 50 --stats=all");
    for way in ["out_of_place", "in_place"] {
        let stats = &run["rows"][0][way]["stats"];
        assert_eq!(stats["calls"], 50);
        let names = ["min_us", "p50_us", "p95_us", "p99_us", "max_us"];
        let times = names.map(|name| stats[name].as_f64().unwrap());
        assert!(times.is_sorted(), "{times:?}");
    }
    let table = measured("bench-stats", "all-reduce -n 2 -b 64 -e 64 --iters 50 --stats=all");
    assert!(table.contains("#  in place, 50 calls (us): min "), "{table}");
    let run = json("bench-stats", "all-reduce -n 2 -b 64 -e 64 --iters 5");
    assert_eq!(run["rows"][0]["in_place"]["stats"], Value::Null);
}

#[test]
fn cache_both_adds_rotating_rows() {
    let arguments = "all-reduce -n 2 -b 64K -e 64K --iters 3 --cache both -R 2 --threads";
    let table = measured("bench-cache", arguments);
    let caches: Vec<_> = rows(&table).iter().map(|row| row[15]).collect();
    assert_eq!(caches, ["cached", "rotating"], "{table}");
    assert!(table.contains("# rotating: calls use different buffers in turn, "), "{table}");
    let run = json("bench-cache", "scatter -n 2 -b 8 -e 8 --iters 3 --cache rotating --threads");
    assert_eq!((&run["rows"][0]["cache"], &run["out_of_bounds"]), (&"rotating".into(), &0.into()));
}

#[test]
fn tour_covers_all_memory_and_ends_with_a_sentence() {
    let table = measured("bench-tour", "-n 2 -b 8 -e 64K -f 8192 --iters 2");
    assert_eq!(rows(&table.replace("All-reduce of", "# All-reduce of")).len(), 2 + 2 * 2);
    assert!(table.contains("# ordinary memory:\n") && table.contains("# symmetric memory:\n"), "{table}");
    let sentence = table.lines().last().unwrap();
    assert!(sentence.starts_with("All-reduce of 64 KiB between 2 ranks: "), "{sentence}");
    assert!(sentence.contains(" in ordinary memory; 8 bytes in "), "{sentence}");
}

#[test]
fn min_bandwidth_fails_slow_runs() {
    let run = "all-reduce -n 2 -b 64 -e 64 --iters 2";
    let done = bench("bench-least", &format!("{run} --min-bandwidth 100000"));
    assert_eq!(done.code, Some(1), "{}", done.errors);
    assert!(done.errors.contains("below the minimum of 100000.0000"), "{}", done.errors);
    measured("bench-least", &format!("{run} --min-bandwidth 0"));
    let folder = scratch("bench-least");
    let done = shell(&folder, &format!("NCCL_TESTS_MIN_BW=100000 weft bench {run}"));
    assert_eq!(done.code, Some(1), "{}", done.errors);
    assert!(
        done.errors.contains("the minimum of 90000.0000"),
        "nine tenths, as in nccl-tests: {}",
        done.errors
    );
    let done = shell(&folder, &format!("NCCL_TESTS_MIN_BW=fast weft bench {run}"));
    assert_eq!(done.code, Some(2), "{}", done.errors);
}

#[test]
fn csv_json_and_plot_hold_all_rows() {
    let folder = scratch("bench-files");
    let run = "weft bench all-reduce -n 2 -b 8 -e 4K -f 8 --iters 2";
    let done = shell(&folder, &format!("{run} --csv rows.csv -J run.json --plot plot.svg"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert_eq!(rows(&done.output).len(), 4);
    let csv = fs::read_to_string(folder.join("rows.csv")).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 4 * 2);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    assert_eq!((lines[0][0], lines[1][0], lines[1][7]), ("collective", "all-reduce", "8"));
    let document: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("run.json")).unwrap()).unwrap();
    assert_eq!(document["rows"].as_array().unwrap().len(), 4);
    let picture = fs::read_to_string(folder.join("plot.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert_eq!(picture.matches("<path class=\"p\"").count(), 3, "a line in each panel, and one below");
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    let done = shell(&folder, &format!("{run} --csv -"));
    assert_eq!(done.output.lines().count(), 9, "{}", done.output);
    let done = shell(&folder, &format!("{run} --plot nowhere/plot.svg"));
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(done.errors.contains("cannot write nowhere/plot.svg"), "{}", done.errors);
    assert!(done.output.is_empty(), "before anything is measured: {}", done.output);
}

#[test]
fn predictions_follow_from_the_probe() {
    let run = json("bench-predict", "all-reduce -n 2 -b 8 -e 8 --iters 2");
    assert!(run["latency_us"].as_f64().unwrap() > 0.0 && run["bandwidth_gb_per_s"].as_f64().unwrap() > 0.0);
    assert!(run["rows"][0]["predicted_us"].as_f64().unwrap() > 0.0);
    let run = json("bench-predict", "all-reduce -n 1 -b 8 -e 8 --iters 2");
    assert_eq!(run["rows"][0]["predicted_us"], Value::Null, "a rank alone sends nothing");
}

#[test]
fn steps_lie_within_their_calls() {
    let folder = scratch("bench-trace");
    let run = "weft bench all-reduce -n 3 -b 64 -e 64K -f 1024 --iters 2 --algorithm ring --trace trace.json";
    let done = shell(&folder, run);
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let span = |event: &Value| {
        let start = event["ts"].as_f64().unwrap();
        (start, start + event["dur"].as_f64().unwrap())
    };
    let lasting = || events.iter().filter(|event| event["ph"] == "X");
    let (calls, steps): (Vec<_>, Vec<_>) =
        lasting().partition(|event| event["name"].as_str().unwrap().starts_with("all-reduce of "));
    assert_eq!(calls.len(), 3 * 2, "a call of each rank at each size");
    assert!(steps.iter().any(|step| step["name"].as_str().unwrap().contains("received from")), "{steps:?}");
    assert!(steps.iter().any(|step| step["name"] == "wait"));
    for step in &steps {
        let (start, end) = span(step);
        let holds = |call: &&&Value| {
            let (first, last) = span(call);
            of(call) == of(step) && first <= start + 1e-6 && end <= last + 1e-6
        };
        assert_eq!(calls.iter().filter(holds).count(), 1, "{step}");
    }
    for rank in 0..3 {
        let mut times: Vec<_> =
            steps.iter().filter(|step| of(step).0 == rank).map(|step| span(step)).collect();
        times.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6), "one after the other: {times:?}");
    }
}

#[test]
fn p2p_prints_matrices() {
    let table = measured("bench-pairs", "p2p -n 3 -e 64K --threads");
    for title in [
        "Unidirectional bandwidth matrix (GB/s)",
        "Bidirectional bandwidth matrix (GB/s)",
        "Latency matrix (us)",
    ] {
        assert!(table.lines().any(|line| line.starts_with(title)), "{table}");
    }
    let run = json("bench-pairs", "p2p -n 2 -b 64 -e 64K");
    let pairs = &run["pairs"];
    assert_eq!((&pairs["small_bytes"], &pairs["large_bytes"]), (&64.into(), &65_536.into()));
    for (from, to) in [(0, 1), (1, 0)] {
        for matrix in ["latency_us", "one_way_gb_per_s", "both_ways_gb_per_s"] {
            assert!(pairs[matrix][from][to].as_f64().unwrap() > 0.0, "{matrix} {from} {to}");
        }
    }
    assert_eq!(pairs["latency_us"][1][1], Value::Null);
    assert!(pairs["one_way_gb_per_s"][1][1].as_f64().unwrap() > 0.0);
}

#[test]
fn tune_writes_a_table_that_ranks_use() {
    let folder = scratch("bench-tune");
    let run = "weft bench --tune --collectives all-reduce,all-gather -b 64 -e 1K --output tuning.toml";
    let done = shell(&folder, run);
    assert_eq!((done.code, done.output.as_str(), done.errors.as_str()), (Some(0), "", ""));
    let text = fs::read_to_string(folder.join("tuning.toml")).unwrap();
    for line in
        ["collective = \"all-reduce\"", "collective = \"all-gather\"", "memory = \"symmetric\"", "ranks = 2"]
    {
        assert!(text.contains(line), "{text}");
    }
    let measure = "weft bench all-reduce -n 2 -b 64 -e 64 --iters 1";
    let done = shell(&folder, &format!("WEFT_TUNING=tuning.toml {measure}"));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let choice = "[[choice]]\ncollective = \"all-reduce\"\nranks = 2\nalgorithm = \"ring\"\n";
    for memory in ["ordinary", "readable"] {
        fs::write(folder.join(format!("{memory}.toml")), format!("{choice}memory = \"{memory}\"\n")).unwrap();
    }
    // Which of the two it is depends on what the kernel allows.
    let algorithms: Vec<String> = ["ordinary", "readable"]
        .iter()
        .map(|memory| shell(&folder, &format!("WEFT_TUNING={memory}.toml {measure}")).output)
        .map(|table| rows(&table)[0][14].to_owned())
        .collect();
    assert!(algorithms.contains(&"ring".to_owned()), "{algorithms:?}");
    fs::write(folder.join("wrong.toml"), choice.replace("ring", "rign")).unwrap();
    let done = shell(&folder, &format!("WEFT_TUNING=wrong.toml {measure}"));
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(
        done.errors.contains("WEFT_TUNING=wrong.toml: line 1: missing field `memory`"),
        "{}",
        done.errors
    );
    let done = shell(&folder, &format!("WEFT_TUNING=nothere.toml {measure}"));
    assert_eq!((done.code, done.output.as_str()), (Some(2), ""), "{}", done.errors);
    assert!(done.errors.contains("cannot read WEFT_TUNING=nothere.toml: No such file"), "{}", done.errors);
}
