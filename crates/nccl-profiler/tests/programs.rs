//! A program in C that loads the profiler as NCCL does; traces and records are read back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weftlink_recorder::recorder::{CallState, Record, read_folder};
use weftlink_recorder::why;
use weftlink_testkit::processes::command;

fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libnccl_profiler_weft.so")
}

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-profiler-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn program(folder: &Path) -> PathBuf {
    let made = folder.join("profiler");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/profiler.c");
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

fn start(program: &Path, arguments: &str, settings: &[(&str, &Path)]) -> Command {
    let mut run = command(program);
    let mut arguments = arguments.split(' ');
    run.env_clear().arg(library()).arg(arguments.next().unwrap()).args(arguments);
    run.envs(settings.iter().copied());
    run
}

fn run(program: &Path, arguments: &str, settings: &[(&str, &Path)]) -> String {
    let done = start(program, arguments, settings).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.ends_with("ok\n"), "{arguments}: {:?}\n{out}\n{err}", done.status);
    assert!(!err.contains("panicked"), "{err}");
    out.into_owned()
}

/// A trace, its slices, and the names of its processes.
fn trace(path: &Path) -> (Value, Vec<Value>, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let slices: Vec<Value> = events.iter().filter(|event| event["ph"] == "X").cloned().collect();
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names = names.map(|event| event["args"]["name"].as_str().unwrap().to_owned()).collect();
    check(&slices);
    (document, slices, names)
}

/// Slices of a row are apart or inside each other.
fn check(slices: &[Value]) {
    let mut rows: std::collections::BTreeMap<(i64, i64), Vec<(f64, f64)>> = Default::default();
    for slice in slices {
        let number = |key: &str| slice[key].as_f64().unwrap();
        let (begin, end) = (number("ts"), number("ts") + number("dur"));
        assert!(number("dur") >= 0.0, "{slice}");
        rows.entry((number("pid") as i64, number("tid") as i64)).or_default().push((begin, end));
    }
    for slices in rows.values_mut() {
        slices.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
        for pair in slices.windows(2) {
            // Times are sums of doubles.
            assert!(pair[1].0 >= pair[0].1 - 0.01 || pair[1].1 <= pair[0].1 + 0.01, "{pair:?}");
        }
    }
}

fn named<'s>(slices: &'s [Value], name: &str) -> Vec<&'s Value> {
    slices.iter().filter(|slice| slice["name"] == name).collect()
}

#[test]
fn every_version_reports_what_it_has() {
    let folder = folder("kinds");
    let program = program(&folder);
    // v1 and v2: group to proxy thread; v3 and v4: kernels and networks, too.
    for (version, known) in [(1, 6), (2, 6), (3, 8), (4, 8), (5, 12), (6, 15), (7, 16)] {
        let path = folder.join(format!("v{version}.json"));
        let out = run(&program, &format!("kinds {version}"), &[("WEFT_PROFILE", &path)]);
        assert!(out.contains(&format!("kinds {known} mask ffdf\n")), "v{version}: {out}");
        let (document, slices, names) = trace(&path);
        let coll =
            named(&slices, "AllReduce RING LL128").into_iter().chain(named(&slices, "AllReduce Ring LL128"));
        let coll = coll.into_iter().find(|one| one["args"]["count"] == 1 << 20).unwrap();
        let arguments = &coll["args"];
        assert_eq!(
            (&arguments["channels"], &arguments["warps"], &arguments["sequence"]),
            (&2.into(), &16.into(), &17.into())
        );
        let data_type = arguments["data_type"].as_str().unwrap();
        assert!(data_type.ends_with("loat16"), "{data_type}");
        let unknown = document["otherData"]["events_of_unknown_types"].as_u64().unwrap();
        let kinds = if version <= 4 { 8 } else { 18 };
        assert!(unknown > kinds - known, "v{version}: {unknown} of unknown types");
        let rank = match version {
            1..=3 => "rank 3, communicator 000000abcdef",
            _ => "rank 3 of 8 on 1 nodes, communicator 00000000feed",
        };
        assert_eq!(names, [rank, "network operations for other processes"]);
        let of_others: Vec<&Value> = slices.iter().filter(|slice| slice["pid"] == -1).collect();
        assert_eq!(of_others.len(), 2);
        if version >= 3 {
            let socket =
                named(&slices, "network").into_iter().find(|one| one["args"]["socket"] == 5).unwrap();
            assert_eq!(
                (&socket["args"]["bytes"], &socket["args"]["plugin"]),
                (&4096.into(), &"0x20001".into())
            );
        }
        if version >= 6 {
            let batch = named(&slices, "copy-engine batch");
            assert_eq!(
                (&batch[0]["args"]["operations"], &batch[0]["args"]["bytes"]),
                (&5.into(), &12345.into())
            );
        }
        if version >= 7 {
            assert_eq!(named(&slices, "compute").len(), 1);
        }
    }
}

#[test]
fn the_trace_shows_collectives_with_their_parts() {
    let folder = folder("exit");
    let (program, path) = (program(&folder), folder.join("trace.%r.json"));
    // The program ends without ending its communicator.
    run(&program, "exit 5", &[("WEFT_PROFILE", &path)]);
    let (document, slices, names) = trace(&folder.join("trace.1.json"));
    assert_eq!(names, ["rank 1 of 2 on 1 nodes, communicator 00000000000e (exits)"]);
    assert_eq!(document["otherData"]["events_dropped"], 0);
    let only = |name: &str| {
        let all = named(&slices, name);
        assert_eq!(all.len(), 1, "{name}");
        all[0].clone()
    };
    let end = |slice: &Value| slice["ts"].as_f64().unwrap() + slice["dur"].as_f64().unwrap();
    let coll = only("AllReduce RING LL128");
    for part in named(&slices, "kernel channel").into_iter().chain(named(&slices, "proxy operation")) {
        assert!(end(part) <= end(&coll) + 0.01, "a collective lasts as long as its parts");
    }
    let kernels = named(&slices, "kernel channel");
    let gpu = |slice: &Value| (slice["args"]["gpu_start_ns"].clone(), slice["args"]["gpu_stop_ns"].clone());
    assert_eq!(kernels.iter().map(|one| gpu(one)).collect::<Vec<_>>(), vec![(1000.into(), 5000.into()); 2]);
    let call = only("AllReduce");
    assert_eq!((&call["args"]["stream"], &call["args"]["is_captured"]), (&"0xbeef".into(), &true.into()));
    let waits = only("waits for the network (receive)");
    assert_eq!(waits["args"]["value"], 4096);
    assert_eq!(only("group call")["args"]["states"][0]["name"], "group start ended");
    let net = only("network");
    assert_eq!((&net["args"]["queue_pair"], &net["args"]["request"]), (&77.into(), &99.into()));
    let send =
        named(&slices, "proxy operation").into_iter().find(|one| one["args"]["is_send"] == true).unwrap();
    assert_eq!((&send["args"]["peer"], &send["args"]["channel"]), (&0.into(), &1.into()));
}

#[test]
fn whatever_is_passed_nccl_goes_on() {
    let folder = folder("edges");
    let program = program(&folder);
    for version in 1..=7 {
        let path = folder.join(format!("v{version}.json"));
        let settings = [
            ("WEFT_PROFILE", path.as_path()),
            ("WEFT_PROFILE_EVENTS", Path::new("1024")),
            ("WEFT_RECORD_DIR", folder.as_path()),
        ];
        let out = run(&program, &format!("edges {version}"), &settings);
        let dropped =
            out.lines().find_map(|line| line.strip_prefix("dropped ")).unwrap().parse::<u32>().unwrap();
        assert!((1900..=2100).contains(&dropped), "{dropped}");
        let (document, slices, _) = trace(&path);
        assert_eq!(document["otherData"]["events_dropped"], dropped);
        assert!(document["otherData"]["stale_handles"].as_u64().unwrap() >= 10);
        assert!(slices.iter().any(|slice| slice["args"]["has_not_ended"] == true));
    }
    let leave_none = read_folder(&folder).unwrap();
    assert!(leave_none.records.is_empty() && leave_none.passed_over.is_empty(), "{leave_none:?}");
}

#[test]
fn threads_with_communicators_of_their_own() {
    let folder = folder("threads");
    let program = program(&folder);
    for version in [1, 4, 7] {
        let path = folder.join(format!("v{version}.json"));
        let settings = [("WEFT_PROFILE", path.as_path()), ("WEFT_RECORD_DIR", folder.as_path())];
        let out = run(&program, &format!("threads {version}"), &settings);
        let (document, slices, names) = trace(&path);
        assert_eq!(names.len(), 8);
        assert_eq!(document["otherData"]["events_dropped"], 0, "{out}");
        assert!(slices.iter().all(|slice| slice["args"]["has_not_ended"].is_null()));
        let sends = named(&slices, "Send");
        assert_eq!(sends.len(), 8 * 60, "v{version}");
        if version >= 4 {
            let calls = slices.iter().filter_map(|slice| slice["args"]["call"].as_u64());
            assert_eq!(calls.max(), Some(60));
        }
    }
    assert!(read_folder(&folder).unwrap().records.is_empty(), "communicators that end well leave no record");
}

#[test]
fn a_job_that_hangs_leaves_records_that_weft_explains() {
    let folder = folder("hang");
    let program = program(&folder);
    for version in 4..=7 {
        let records = folder.join(format!("v{version}"));
        for rank in 0..2 {
            let mut run =
                start(&program, &format!("hang {version} {rank}"), &[("WEFT_RECORD_DIR", &records)]);
            let done = run.output().unwrap();
            assert_eq!(
                String::from_utf8_lossy(&done.stdout),
                "ok\n",
                "{:?}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        let found = read_folder(&records).unwrap();
        assert_eq!((found.records.len(), found.passed_over.len()), (2, 0));
        let of = |rank: u32| found.records.iter().find(|record| record.rank == rank).unwrap();
        assert!(found.records.iter().all(|record| (record.job.as_str(), record.size) == ("000000000bad", 2)));
        let calls = |record: &Record| {
            let call = |call: &weftlink_recorder::recorder::CallRecord| {
                (call.number, call.what.clone(), call.bytes, call.plan.clone(), call.state)
            };
            record.calls.iter().map(call).collect::<Vec<_>>()
        };
        let reduce = |number, state| {
            (number, "all-reduce of 1000 bf16 out of place".to_owned(), 2000, "Ring LL128".to_owned(), state)
        };
        let gather = (
            2,
            "all-gather of 500 bf16 out of place".to_owned(),
            2000,
            "Ring LL128".to_owned(),
            CallState::Done,
        );
        assert_eq!(calls(of(0)), [reduce(1, CallState::Done), gather.clone(), reduce(3, CallState::Running)]);
        assert_eq!(calls(of(1)), [reduce(1, CallState::Done), gather]);
        assert!(of(0).calls[0].end_ns.unwrap() >= of(0).calls[0].start_ns);
        let why = why::explain(&found.records);
        let sentences = why.jobs[0].sentences.join("\n");
        assert!(
            why.jobs[0].is_wrong && sentences.contains("in call #3, all-reduce of 1000 bf16"),
            "{sentences}"
        );
    }
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let folder = folder("off");
    let program = program(&folder);
    let out = run(&program, "kinds 5", &[]);
    assert!(
        out.contains("mask 0\n") && out.contains("neither WEFT_PROFILE nor WEFT_RECORD_DIR is set"),
        "{out}"
    );
    let path = folder.join("trace.json");
    let only = [("WEFT_PROFILE", path.as_path()), ("NCCL_PROFILE_EVENT_MASK", Path::new("2"))];
    assert!(run(&program, "kinds 5", &only).contains("mask 2\n"));
    let wrong = [("WEFT_PROFILE", Path::new("/nowhere/trace.json")), ("WEFT_PROFILE_EVENTS", Path::new("7"))];
    let out = run(&program, "kinds 5", &wrong);
    assert!(
        out.contains("log 2 4001 weft profiler: cannot write WEFT_PROFILE=/nowhere/trace.json: "),
        "{out}"
    );
    assert!(out.contains("WEFT_PROFILE_EVENTS=7: expected a number from 1024 to 4194304"), "{out}");
}

/// `cargo nextest run -p weftlink-nccl-profiler what_an_event_costs --no-capture` prints it.
#[test]
fn what_an_event_costs() {
    let folder = folder("cost");
    let (program, path) = (program(&folder), folder.join("trace.json"));
    print!("{}", run(&program, "cost 5", &[("WEFT_PROFILE", &path)]));
}

#[test]
fn the_library_has_the_names_that_nccl_looks_for() {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let expected: Vec<String> = (1..=7).map(|version| format!("ncclProfiler_v{version}")).collect();
    assert_eq!(names, expected);
    let read = Command::new("readelf").arg("-d").arg(library()).output().unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(text.contains("soname: [libnccl-profiler-weft.so]") && text.contains("NODELETE"), "{text}");
    assert!(!text.contains("libcuda") && !text.contains("libnccl.so"), "{text}");
}
