//! `weft bench` from the outside: real runs of small sizes, what it refuses, and that nothing outlives it. How long
//! anything takes is never looked at.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{Outcome, root, scratch, shell};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use weftlink_testkit::processes::command;

fn bench(name: &str, arguments: &str) -> Outcome {
    shell(&scratch(name), &format!("weft bench all-reduce {arguments}"))
}

/// The output of a run that must go well.
fn measured(name: &str, arguments: &str) -> String {
    let done = bench(name, arguments);
    assert_eq!(done.code, Some(0), "weft bench all-reduce {arguments}\n{}\n{}", done.output, done.errors);
    assert!(done.errors.is_empty(), "{}", done.errors);
    done.output
}

/// The cells of each row of a table.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

fn json(name: &str, arguments: &str) -> Value {
    serde_json::from_str(&measured(name, &format!("{arguments} --json"))).unwrap()
}

#[test]
fn table_has_the_columns_of_nccl_tests() {
    let table = measured("bench-table", "-n 2 -b 8 -e 4KiB -f 8 --iters 3");
    let rows = rows(&table);
    let sizes: Vec<_> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(sizes, [("8", "2"), ("64", "16"), ("512", "128"), ("4096", "1024")]);
    for row in &rows {
        assert_eq!(row.len(), 15, "{row:?}");
        assert_eq!(row[2..5], ["float", "sum", "-1"]);
        assert!(
            row[5..8].iter().chain(&row[9..12]).all(|cell| cell.parse::<f64>().unwrap() >= 0.0),
            "{row:?}"
        );
        assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
    }
    assert_eq!(rows[0][14], "exchange-ll");
    for line in [
        "# weft 0",
        "# 2 ranks (processes), ordinary memory",
        "#  Rank   1 Pid",
        "# Out of bounds values : 0 OK",
    ] {
        assert!(table.lines().any(|found| found.starts_with(line)), "{line}\n{table}");
    }
    assert!(table.contains("# Avg bus bandwidth    : "), "{table}");
}

#[test]
fn step_bytes_adds_to_the_size() {
    let table = measured("bench-steps", "-b 10 -e 31 -i 10 --iters 1 -w 0");
    let sizes: Vec<_> = rows(&table).iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["8", "20", "28"], "whole elements");
}

#[test]
fn nccl_tests_spellings_work() {
    let arguments = "-b 1K -e 4K -f 4 -o sum -d float --warmup_iters 1 --local_register 2 --iters 1";
    let table = measured("bench-spelling", arguments);
    let sizes: Vec<_> = rows(&table).iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["1024", "4096"]);
    assert!(table.contains("# 1 warm-up call, 1 timed call; "), "{table}");
    let table = measured("bench-spelling", "-b 1M -e 2M -i 1M --iters 1 -w 0");
    assert_eq!(rows(&table).iter().map(|row| row[1]).collect::<Vec<_>>(), ["262144", "524288"]);
}

#[test]
fn one_rank_is_singular() {
    let table = measured("bench-one", "-n 1 -e 8 --iters 1");
    assert!(table.contains("# 1 rank (a process), "), "{table}");
    let table = measured("bench-one", "-n 1 -e 8 --iters 1 --threads");
    assert!(table.contains("# 1 rank (a thread), "), "{table}");
}

#[test]
fn help_is_wrapped_once() {
    let help = shell(&scratch("bench-help"), "COLUMNS=100 weft bench --help 2> /dev/null").output;
    for paragraph in help[help.find("Options have the names of nccl-tests").unwrap()..].split("\n\n") {
        let lines: Vec<_> = paragraph.trim().lines().collect();
        // A line of at most 100 columns that is not the last has no room for the next one's first word.
        for pair in lines.windows(2) {
            let next = pair[1].split(' ').next().unwrap();
            assert!(pair[0].len() + 1 + next.len() > 100, "{help}");
        }
    }
    assert!(help.contains("K, M and G alone are 2^10, 2^20 and 2^30"), "{help}");
    assert!(
        help.contains(
            "Exit code 1 if an element is wrong, a rank fails or the average is below --min-bandwidth."
        ),
        "{help}"
    );
    assert!(!help.contains("-g,"), "{help}");
}

#[test]
fn every_algorithm_on_processes_and_threads() {
    for threads in ["", "--threads"] {
        for (algorithm, buffers) in [
            ("exchange-ll", "-R 0"),
            ("exchange", "-R 2"),
            ("ring", "-R 0"),
            ("ring --lanes 2", "-R 2"),
            ("one-shot", "-R 2"),
            ("two-shot", "-R 2"),
            ("pull", "-R 2"),
            ("staged --lanes 2", "-R 0"),
        ] {
            let run =
                format!("-n 3 -b 4 -e 70000 -f 25 --iters 2 {threads} --algorithm {algorithm} {buffers}");
            let table = measured("bench-algorithms", &run);
            assert_eq!(rows(&table).len(), 4);
            assert!(
                table.contains(&format!("# plan {}, ", algorithm.replace(" --lanes 2", " of 2 lanes"))),
                "{table}"
            );
            for row in rows(&table) {
                let in_place = if algorithm == "one-shot" { "N/A" } else { "0" };
                assert_eq!((row[8], row[12]), ("0", in_place), "{run}: {row:?}");
                assert_eq!(row[14], algorithm.split(' ').next().unwrap());
            }
        }
    }
}

#[test]
fn plans_that_read_peers_run_where_the_kernel_reads() {
    let run = |single_copy: &str| {
        let bench = "weft bench all-reduce -n 2 -b 64 -e 64 --iters 1 --algorithm pull";
        shell(&scratch("bench-reads"), &format!("WEFT_SINGLE_COPY={single_copy} {bench}"))
    };
    let off = run("off");
    assert_eq!(off.code, Some(1), "{}", off.errors);
    assert!(off.errors.contains("add -R 2") && off.output.contains("nothing was measured"), "{}", off.output);
    // Where it may not, it says the same.
    let on = run("on");
    assert!(
        on.code == Some(0) && on.output.contains("0 OK") || on.errors.contains("add -R 2"),
        "{}",
        on.errors
    );
}

#[test]
fn one_rank_and_more_ranks_than_cores() {
    for arguments in ["-n 1", "-n 1 -R 2", "-n 8 --bind none", "-n 5 -R 2 --bind none --threads"] {
        let table = measured("bench-ranks", &format!("{arguments} -b 64 -e 4KiB -f 64 --iters 3"));
        assert_eq!(rows(&table).len(), 2);
        assert!(table.contains("values : 0 OK"), "{table}");
    }
}

#[test]
fn json_matches_the_table() {
    let run = json("bench-json", "-n 2 -b 8 -e 64 --iters 7 -R 2 -w 2 --deadline 30");
    assert_eq!(run["weft"], "bench/1");
    assert_eq!(run["collective"], "all-reduce");
    assert_eq!((&run["ranks"], &run["ranks_are"]), (&2.into(), &"processes".into()));
    assert_eq!(run["pids"].as_array().unwrap().len(), 2);
    assert_eq!((&run["buffers"], &run["checked"]), (&"symmetric".into(), &true.into()));
    assert_eq!((&run["interrupted"], &run["error"]), (&false.into(), &Value::Null));
    assert_eq!((&run["out_of_bounds"], &run["warmup_iterations"]), (&0.into(), &2.into()));
    assert!(run["average_busbw_gb_per_s"].as_f64().unwrap() > 0.0);
    let rows = run["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, bytes) in rows.iter().zip([8, 64]) {
        assert_eq!((&row["bytes"], &row["count"]), (&bytes.into(), &(bytes / 4).into()));
        for way in ["out_of_place", "in_place"] {
            let way = &row[way];
            assert_eq!((&way["iterations"], &way["wrong"]), (&7.into(), &0.into()));
            assert_eq!(way["ranks_time_us"].as_array().unwrap().len(), 2);
            assert_eq!(way["time_us"], way["ranks_time_us_max"]);
            let (algbw, busbw) =
                (way["algbw_gb_per_s"].as_f64().unwrap(), way["busbw_gb_per_s"].as_f64().unwrap());
            assert!(algbw > 0.0 && (algbw - busbw).abs() < 1e-9, "2(n-1)/n is 1 for two ranks");
        }
    }
}

#[test]
fn docs_list_every_json_field() {
    let guide = fs::read_to_string(root().join("docs/bench.md")).unwrap();
    let run = json("bench-fields", "-b 8 -e 8 --iters 1 --algorithm ring");
    let row = &run["rows"][0];
    for object in [&run, &run["plan"], row, &row["out_of_place"]] {
        for field in object.as_object().unwrap().keys() {
            assert!(guide.contains(&format!("`{field}`")), "docs/bench.md does not tell what {field} is");
        }
    }
}

#[test]
fn check_0_reports_no_verdict() {
    let run = json("bench-unchecked", "-b 8 -e 8 --iters 1 -c 0 --algorithm one-shot -R 2");
    assert_eq!((&run["checked"], &run["out_of_bounds"]), (&false.into(), &Value::Null));
    assert_eq!(run["rows"][0]["out_of_place"]["wrong"], Value::Null);
    assert_eq!(run["rows"][0]["in_place"], Value::Null, "one-shot does not work in place");
    let table = measured("bench-unchecked", "-b 8 -e 8 --iters 1 -c 0");
    assert_eq!(rows(&table)[0][8], "N/A");
    assert!(table.contains("values : N/A"), "{table}");
}

#[test]
fn ranks_agree_on_the_number_of_calls() {
    let run = json("bench-agreed", "-n 3 -b 8 -e 8 --bind none");
    let calls = run["rows"][0]["in_place"]["iterations"].as_u64().unwrap();
    assert!((5..=500_000).contains(&calls), "{calls}");
}

#[test]
fn wrong_arguments_exit_with_2() {
    for (arguments, told) in [
        ("-n 0", "must be a whole number between 1 and 1024"),
        ("-b 2", "-b 2: the smallest size is 4 bytes, one float"),
        ("-b 1MiB -e 1KiB", "the smallest size (-b 1 MiB) is larger than the largest (-e 1 KiB)"),
        ("-f 1", "must be a whole number of 2 or more"),
        ("-i 1", "-i must be at least 4 bytes"),
        ("-f 2 -i 8", "cannot be used with"),
        ("-b 4 -e 1GiB -i 4", "more than 10000 sizes"),
        ("-b lots", "is not a size"),
        ("-b -1", "`-1` is not a size"),
        ("-e 99999999TB", "`99999999TB` is too large; the largest size is 1 PB"),
        ("-o add", "Known operations: sum, prod, min, max, avg, mulsum, logical-and"),
        ("-o bit-xor", "bit-xor is not defined for float"),
        ("-d flaot", "unknown type `flaot`. Did you mean `float`? Known types: int8, uint8,"),
        ("-r 0", "-r applies to reduce, broadcast, gather and scatter only"),
        ("-a 4", "write 0 (rank 0), 1 (mean), 2 (minimum) or 3 (maximum)"),
        ("--min-bandwidth -1", "write GB/s"),
        ("--cache warm", "possible values: cached, rotating, both"),
        ("--tune", "cannot be used with"),
        ("--output x.toml", "--output requires --tune"),
        ("--stats=some", "possible values: undisturbed, all"),
        ("-g 8", "-g: -n sets the number of ranks; each is a process (or a thread with --threads)"),
        ("-g", "-g: -n sets the number of ranks;"),
        ("--nthreads 2", "-t: -n sets the number of ranks;"),
        ("-z 1", "-z: calls on a CPU always block"),
        ("-m 4", "-m: aggregation of calls applies to GPUs only"),
        ("-N 2", "-N: there are no cycles; run the command again"),
        ("-p 1", "-p: ranks always start in parallel"),
        ("-G 2", "-G: CUDA graphs apply to GPUs only"),
        ("-y 1", "-y: applies to GPUs only"),
        ("-C 1", "-C: times are CPU times already"),
        ("-S 1", "-S: rows have no timestamps"),
        ("-D 1", "-D: applies to GPUs only"),
        ("-V 8", "-V: applies to GPUs only"),
        ("-M 1", "-M: applies to GPUs only"),
        ("-u 1", "-u: buffers are always aligned"),
        ("-I", "-I: use --stats to time calls one by one"),
        ("-x 1", "-x: applies to GPUs only"),
        ("--nonsense", "unexpected argument '--nonsense' found"),
        ("--deadline -1", "write a time, such as 500ms, 5s"),
        ("-R 1", "CPU memory needs no registration"),
        ("-R 3", "write 0 (ordinary) or 2 (symmetric)"),
        ("-c 2", "write 0 or 1"),
        ("--iters 0", "must be a whole number of 1 or more"),
        ("--deadline 0", "it is 0; write a time, such as 30s"),
        ("--deadline soon", "write a time, such as 500ms, 5s"),
        ("--size 64 -b 8", "cannot be used with"),
        ("--sizes 64..8", "64 B is larger than 8 B"),
        ("--algorithm rign", "exchange-ll, exchange, one-shot, two-shot, pull, staged, ring"),
        ("--algorithm two-shot", "must be symmetric: add -R 2"),
        ("--algorithm exchange --lanes 2", "--lanes works with --algorithm ring and staged"),
        ("--lanes 2", "--algorithm"),
        ("--plan nothere.json", "cannot read nothere.json"),
        ("-n 1000 --bind core -e 8", "needs a core for each of 1000 ranks"),
        ("-e 900TB", "choose smaller sizes"),
    ] {
        let done = bench("bench-misuse", arguments);
        assert_eq!(done.code, Some(2), "{arguments}: {}", done.errors);
        assert!(done.errors.contains(told), "{arguments}: {}", done.errors);
        assert!(done.output.is_empty(), "{arguments}: {}", done.output);
        assert!(!done.errors.contains("as a value"), "{arguments}: {}", done.errors);
    }
    let done = shell(&scratch("bench-misuse"), "weft bench -g 8");
    assert!(done.errors.contains("-n sets the number of ranks"), "without a collective too: {}", done.errors);
    let done = shell(&scratch("bench-misuse"), "weft bench-rank 0");
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(done.errors.contains("is internal to `weft bench`"), "{}", done.errors);
}

/// A run that would take hours, with its ranks.
struct Endless {
    command: Child,
    ranks: Vec<i32>,
}

impl Endless {
    fn start(arguments: &str) -> Self {
        let command = command(env!("CARGO_BIN_EXE_weft"))
            .args(["bench", "all-reduce", "-n", "2"])
            .args(arguments.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = command.id() as i32;
        let mut ranks = Vec::new();
        wait_until("two ranks", || {
            ranks = children_of(pid);
            ranks.len() == 2
        });
        Self { command, ranks }
    }

    fn signal(pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// What it printed when it ended, once it and all its ranks are gone.
    fn end(mut self) -> Outcome {
        let (mut output, mut errors) = (String::new(), String::new());
        if let Some(mut stdout) = self.command.stdout.take() {
            stdout.read_to_string(&mut output).unwrap();
        }
        self.command.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let code = self.command.wait().unwrap().code();
        wait_until("the ranks to be gone", || self.ranks.iter().all(|&rank| parent_of(rank).is_none()));
        Outcome { output, errors, code }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // A test that failed leaves it running.
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that run a rank for this one, in the order of their ranks.
fn children_of(pid: i32) -> Vec<i32> {
    let numbers =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut ranks: Vec<(String, i32)> = numbers
        .filter(|&child| parent_of(child) == Some(pid))
        .filter_map(|child| Some((fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?, child)))
        .filter(|(line, _)| line.contains("\0bench-rank\0"))
        .collect();
    ranks.sort();
    ranks.into_iter().map(|(_, child)| child).collect()
}

/// The parent of a process, if it is there and not only waiting to be buried.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

const ENDLESS: &str = "-b 8 -e 8 --iters 4000000000";

#[test]
fn error_names_the_killed_rank() {
    let run = Endless::start(ENDLESS);
    let victim = run.ranks[1];
    Endless::signal(victim, Signal::KILL);
    let done = run.end();
    assert_eq!(done.code, Some(1), "{}", done.errors);
    let told = format!("weft: rank 1 (pid {victim}) was killed by SIGKILL");
    assert!(done.errors.contains(&told), "{}", done.errors);
}

#[test]
fn error_names_the_suspended_rank() {
    let run = Endless::start(&format!("{ENDLESS} --deadline 5"));
    Endless::signal(run.ranks[1], Signal::STOP);
    let done = run.end();
    assert_eq!(done.code, Some(1), "{}", done.errors);
    assert!(done.errors.contains("rank 1"), "{}", done.errors);
}

#[test]
fn ranks_exit_when_the_command_is_killed() {
    let mut run = Endless::start(ENDLESS);
    run.command.kill().unwrap();
    assert_eq!(run.end().code, None);
}

#[test]
fn ctrl_c_keeps_finished_rows() {
    // Thousands of rows, so that there are always more to come.
    let mut run = Endless::start("-b 8 -e 40000 -i 4 --iters 100000");
    let mut reader = BufReader::new(run.command.stdout.take().unwrap());
    let mut before = String::new();
    while before.lines().all(|line| line.starts_with('#')) {
        assert!(reader.read_line(&mut before).unwrap() > 0, "{before}");
    }
    Endless::signal(run.command.id() as i32, Signal::INT);
    reader.read_to_string(&mut before).unwrap();
    let done = run.end();
    assert_eq!(done.code, Some(130), "{}", done.errors);
    assert!(done.errors.contains("interrupted"), "{}", done.errors);
    assert_eq!(rows(&before)[0][0], "8", "{before}");
    assert!(before.contains("values : 0 OK"), "{before}");
}

#[test]
fn ctrl_c_at_a_terminal_stops_the_ranks() {
    let run = Endless::start(ENDLESS);
    kill_process_group(Pid::from_raw(run.command.id() as i32).unwrap(), Signal::INT).unwrap();
    let done = run.end();
    assert_eq!(done.code, Some(130), "{}", done.errors);
    assert_eq!(done.errors, "weft: interrupted\n");
}

#[test]
fn json_reports_the_interruption() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let run = Endless::start(&format!("{ENDLESS} --json"));
        Endless::signal(run.command.id() as i32, signal);
        let done = run.end();
        assert_eq!(done.code, Some(code), "{}", done.errors);
        let run: Value = serde_json::from_str(&done.output).unwrap();
        assert_eq!((&run["interrupted"], &run["error"]), (&true.into(), &Value::Null));
        assert_eq!((&run["rows"], &run["out_of_bounds"]), (&Value::Array(vec![]), &Value::Null));
    }
}

/// A run under small limits: an error that names the limit, whatever it is, and never a signal or a panic.
fn short(name: &str, limits: &str, arguments: &str, advice: &str) {
    let done =
        shell(&scratch(name), &format!("{limits}; exec weft bench all-reduce -n 2 --iters 5 {arguments}"));
    assert_eq!(done.code, Some(1), "{limits}\n{}\n{}", done.output, done.errors);
    assert!(!done.errors.contains("panicked") && !done.errors.contains("SIG"), "{limits}\n{}", done.errors);
    assert!(done.errors.contains(advice), "{limits}: no {advice:?} in\n{}", done.errors);
}

#[test]
fn too_little_address_space_is_an_error() {
    short("bench-address-space", "ulimit -v 60000", "-e 1MiB", "ulimit -v");
    // Enough for the program, and too little for its buffers.
    for kib in [150_000, 400_000] {
        short("bench-address-space", &format!("ulimit -v {kib}"), "-b 512MiB -e 512MiB", "ulimit -v");
    }
}

#[test]
fn too_small_files_are_an_error() {
    for blocks in [0, 64] {
        short("bench-files", &format!("ulimit -f {blocks}"), "-e 1MiB", "ulimit -f");
    }
}

#[test]
fn thread_limit_is_an_error_or_harmless() {
    let folder = scratch("bench-threads");
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can run a process as a user who runs nothing else");
        return;
    }
    // A user without a name, so that no other processes count for its limit.
    let program = std::env::temp_dir().join(format!("weft-bench-threads-{}", std::process::id()));
    fs::copy(env!("CARGO_BIN_EXE_weft"), &program).unwrap();
    for processes in [1, 2, 4, 6, 8, 10] {
        let began = Instant::now();
        let user = 1_000_000 + std::process::id() % 100_000;
        let done = command("sh")
            .args([
                "-c",
                &format!(
                    "ulimit -u {processes}; exec {} bench all-reduce -n 2 -e 1MiB --iters 5",
                    program.display()
                ),
            ])
            .current_dir(&folder)
            .env("WEFT_DEADLINE", "300")
            .uid(user)
            .gid(user)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!errors.contains("panicked"), "{processes} processes: {errors}");
        match done.status.code() {
            Some(0) => {}
            Some(1) => assert!(errors.contains("ulimit -u"), "{processes} processes: {errors}"),
            other => panic!("{processes} processes: {other:?}, {errors}"),
        }
        // Far from the deadline: no rank waits for the one that cannot start.
        assert!(
            began.elapsed() < Duration::from_secs(150),
            "{processes} processes took {:?}",
            began.elapsed()
        );
    }
    fs::remove_file(program).unwrap();
}
