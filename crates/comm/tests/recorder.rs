//! The flight recorder and the counters can be read while ranks run, after they failed, and after they were killed.
//!
//! Tests of files start this program again as rank processes, with a role in the environment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use weftlink_comm::bootstrap::launcher::ExitReport;
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::recorder::{CallState, Process, RankState, read_folder};
use weftlink_comm::why::explain;
use weftlink_comm::{BlameKind, Communicator, Counters, Options, Record, Reduction};
use weftlink_testkit::processes::this_program;

const LONG: Duration = Duration::from_secs(60);

fn two(record: u32) -> (Communicator, Communicator) {
    let options = Options { deadline: LONG, record, ..Options::default() };
    let mut ranks = Communicator::threads(2, options).unwrap().into_iter();
    (ranks.next().unwrap(), ranks.next().unwrap())
}

/// Runs the same on both, and gives both back.
fn both(
    ranks: (Communicator, Communicator),
    work: impl Fn(&mut Communicator) + Sync,
) -> (Communicator, Communicator) {
    let run = |mut comm: Communicator| {
        work(&mut comm);
        comm
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| run(ranks.1));
        (run(ranks.0), one.join().unwrap())
    })
}

#[test]
fn calls_are_recorded_and_counted() {
    let (comm, other) = both(two(1024), |comm| {
        let mut window = comm.window::<f32>(100_000).unwrap();
        for _ in 0..40 {
            comm.all_reduce(&mut [1.0_f32, 2.0], Reduction::Sum).unwrap();
        }
        comm.broadcast(&mut [0_u8; 5000], 1).unwrap();
        comm.all_reduce(&mut window, Reduction::Maximum).unwrap();
    });
    let [record, of_other] = [&comm, &other].map(|comm| comm.flight_recorder().record());
    assert_eq!((record.rank, record.size, record.state), (0, 2, RankState::Running));
    assert_eq!(record.job, of_other.job);
    assert!(record.calls.iter().all(|call| call.state == CallState::Done));
    let numbers =
        |record: &Record| record.calls.iter().map(|call| (call.number, call.signature)).collect::<Vec<_>>();
    assert_eq!(numbers(&record), numbers(&of_other), "all ranks record the same calls");
    assert!(record.calls.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
    let last = record.calls.last().unwrap();
    assert_eq!(last.what, "all-reduce of 100000 f32 (max) in place");
    assert_eq!(
        (last.collective.as_str(), last.plan.as_str(), last.bytes),
        ("all-reduce", "two-shot", 400_000)
    );
    assert!(last.end_ns.unwrap() >= last.start_ns);
    let small: Vec<_> =
        record.calls.iter().filter(|call| call.what == "all-reduce of 2 f32 (sum) in place").collect();
    assert_eq!(small.len(), 40);
    assert!(small.iter().all(|call| call.plan == "exchange-ll" && call.bytes == 8));

    let counters = comm.counters();
    let of = |name: &str| counters.of_collective(name).map(|counted| (counted.calls, counted.bytes)).unwrap();
    assert_eq!(of("all-reduce"), (41, 40 * 8 + 400_000));
    assert_eq!(of("broadcast"), (1, 5000));
    assert_eq!(of("window").0, 1);
    assert_eq!(counters.calls(), record.calls.len() as u64);
    let why = explain(&[record, of_other]);
    assert!(!why.jobs[0].is_wrong, "{why:?}");
}

#[test]
fn only_the_last_calls_are_kept() {
    let (comm, _other) = both(two(16), |comm| {
        for count in 1..50 {
            // Another call each time, and the same again.
            for _ in 0..=count % 2 {
                comm.all_reduce(&mut vec![1.0_f32; count], Reduction::Sum).unwrap();
            }
        }
    });
    let record = comm.flight_recorder().record();
    assert_eq!(record.calls.len(), 16);
    let whats: Vec<&str> = record.calls.iter().map(|call| call.what.as_str()).collect();
    assert_eq!(whats[14..], ["all-reduce of 49 f32 (sum) in place"; 2]);
    assert_eq!(whats[13], "all-reduce of 48 f32 (sum) in place");
    assert_eq!(comm.counters().of_collective("all-reduce").unwrap().calls, 49 + 25);
}

#[test]
fn pending_calls_can_be_inspected() {
    let (mut zero, mut one) = two(64);
    let recorder = zero.flight_recorder();
    // Read once, so that nothing is allocated later.
    let all_reduce = |comm: &mut Communicator| comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
    (zero, one) = both((zero, one), all_reduce);
    let number = recorder.record().last_number().unwrap() + 1;
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            all_reduce(&mut zero);
            zero
        });
        // It waits, because no other rank makes its call.
        let is_waiting =
            |record: &Record| record.waiting.as_ref().is_some_and(|waiting| waiting.call == number);
        let record = until(|| Some(recorder.record()).filter(is_waiting));
        let waiting = record.waiting.as_ref().unwrap();
        assert_eq!((waiting.what.as_str(), waiting.rank), ("a message", Some(1)));
        let why = explain(&[record, one.flight_recorder().record()]);
        let sentences = &why.jobs[0].sentences;
        assert!(sentences[0].starts_with("Rank 1 fell behind first: its last call is #"), "{sentences:?}");
        let expected = format!(
            "Rank 0 waits for a message from rank 1 in #{number}, all-reduce of 4 f32 (sum) in place, for "
        );
        assert!(sentences[1].starts_with(&expected), "{sentences:?}");
        all_reduce(&mut one);
        let zero = waits.join().unwrap();
        let counters = zero.counters();
        let waits: u64 = counters.by_collective.iter().map(|counted| counted.waits).sum();
        let waited_ns: u64 = counters.by_collective.iter().map(|counted| counted.waited_ns).sum();
        assert!(waits > 0 && waited_ns > 0, "{counters:?}");
        assert!(zero.flight_recorder().record().waiting.is_none());
    });
}

#[test]
fn pending_groups_can_be_inspected() {
    let (mut zero, mut one) = two(64);
    let recorder = zero.flight_recorder();
    (zero, one) = both((zero, one), |comm| comm.group(|_| Ok(())).unwrap());
    let before = zero.counters();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let mut theirs = [0_u8; 3];
            zero.group(|group| group.receive(1, &mut theirs)).unwrap();
            assert_eq!(theirs, [7; 3]);
            zero
        });
        let record = until(|| Some(recorder.record()).filter(|record| record.waiting.is_some()));
        let waiting = record.waiting.as_ref().unwrap();
        assert_eq!((waiting.in_group, waiting.what.as_str(), waiting.rank), (true, "a message", Some(1)));
        let why = explain(&[record, one.flight_recorder().record()]);
        let sentences = &why.jobs[0].sentences;
        let expected = "Rank 0 waits for a message from rank 1 in a group of messages, for ";
        assert!(sentences[0].starts_with(expected), "{sentences:?}");
        one.group(|group| group.send(0, &[7_u8; 3])).unwrap();
        let zero = waits.join().unwrap();
        assert!(zero.flight_recorder().record().waiting.is_none());
        assert_eq!(zero.counters(), before);
    });
}

#[test]
fn pending_allocations_can_be_inspected() {
    let (mut zero, mut one) = two(64);
    let recorder = zero.flight_recorder();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || zero.window::<f32>(10).map(|_| zero));
        // A record reads calls before waits, and may miss a call that begins meanwhile.
        let is_there = |record: &Record| record.waiting.is_some() && !record.calls.is_empty();
        let record = until(|| Some(recorder.record()).filter(is_there));
        let waiting = record.waiting.unwrap();
        assert_eq!(
            (waiting.call, waiting.what.as_str(), waiting.rank),
            (1, "others to allocate memory", None)
        );
        assert_eq!(record.calls[0].what, "window of 10 f32");
        one.window::<f32>(10).unwrap();
        assert!(waits.join().unwrap().unwrap().flight_recorder().record().waiting.is_none());
    });
}

/// Looks again and again, for as long as a test may run, until there is something.
fn until<T>(look: impl Fn() -> Option<T>) -> T {
    for _ in 0..30_000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came");
}

#[test]
fn a_record_survives_its_file() {
    let (comm, _other) = both(two(16), |comm| comm.barrier().unwrap());
    let folder = folder("dump");
    let path = comm.dump(&folder).unwrap();
    let read = Record::read(&std::fs::read(&path).unwrap()).unwrap();
    let found = read_folder(&folder).unwrap();
    assert_eq!((found.records.len(), found.passed_over.len()), (1, 0));
    assert_eq!(found.records[0].calls, read.calls);
    assert_eq!(found.records[0].process, Some(Process::Runs), "it is this very process");
    // Other files are skipped, with a reason.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(folder.join("weft-record-1-rank1.json"), &text[..text.len() / 2]).unwrap();
    std::fs::write(folder.join("weft-record-2-rank1.json"), text.replace("\"version\": 1", "\"version\": 2"))
        .unwrap();
    std::fs::write(folder.join("weft-record-3-rank1.ring"), "weftring").unwrap();
    let why = read_folder(&folder).unwrap().passed_over;
    let reasons: Vec<&str> = why.iter().map(|(_, why)| why.as_str()).collect();
    assert!(reasons[0].starts_with("not a record: EOF while parsing"), "{reasons:?}");
    assert_eq!(
        reasons[1..],
        [
            "the record has version 2, and this program reads version 1; use the version of Weft that wrote it",
            "not a record: the memory of a recorder, truncated"
        ]
    );
    std::fs::remove_dir_all(folder).unwrap();
}

const ROLE: &str = "WEFT_TEST_ROLE";
const PLACE: &str = "WEFT_TEST_PLACE";
const RANKS: usize = 3;

#[test]
fn killed_ranks_leave_their_records() {
    if let Some((rank, mut comm)) = role(Duration::from_secs(1)) {
        for _ in 0..10 {
            comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
        }
        if rank == 2 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        let error = comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap_err();
        return println!("{error}");
    }
    let folder = folder("killed");
    std::fs::write(folder.join("words"), "").unwrap();
    for output in job("killed_ranks_leave_their_records", &folder) {
        if output.contains("[rank 0]") {
            assert!(output.contains("recorded in "), "{output}");
        }
    }
    let found = read_folder(&folder).unwrap();
    assert!(found.passed_over.is_empty(), "{:?}", found.passed_over);
    let states: Vec<_> =
        found.records.iter().map(|record| (record.rank, record.state, record.process)).collect();
    let wanted = [
        (0, RankState::Failed, Some(Process::Gone)),
        (1, RankState::Failed, Some(Process::Gone)),
        (2, RankState::Running, Some(Process::Gone)),
    ];
    for record in found.records.iter().filter(|record| record.rank != 2) {
        let blamed = &record.blamed;
        assert!(blamed.len() == 1 && blamed[0].rank == 2 && blamed[0].kind == BlameKind::Died, "{blamed:?}");
        let pid = found.records.iter().find(|record| record.rank == 2).map(|record| record.pid);
        assert_eq!(blamed[0].pid, pid);
    }
    // The launcher gets the same report.
    let words = std::fs::read_to_string(folder.join("words")).unwrap();
    let mut words: Vec<ExitReport> = words.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    words.sort_by_key(|words| words.rank);
    let reported: Vec<_> =
        words.iter().map(|words| (words.rank, words.is_starting, words.blamed[0].rank)).collect();
    assert_eq!(reported, [(0, false, 2), (1, false, 2)]);
    let states: BTreeMap<u32, _> = states.into_iter().map(|one| (one.0, one)).collect();
    assert_eq!(states.into_values().collect::<Vec<_>>(), wanted);
    let names: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.split_once("-rank")?.1.to_owned()))
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["0.json", "1.json", "2.ring"]);
    let why = explain(&found.records);
    let sentences = &why.jobs[0].sentences;
    assert!(
        sentences[0].starts_with("Rank 2 (") && sentences[0].contains("died after call #"),
        "{sentences:?}"
    );
    assert!(sentences.iter().any(|said| said.starts_with("Rank 2 fell behind first")), "{sentences:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn clean_exits_leave_only_counters() {
    if let Some((_, mut comm)) = role(LONG) {
        for _ in 0..12 {
            comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
        }
        let ring = std::fs::read_dir(std::env::var_os("WEFT_RECORD_DIR").unwrap()).unwrap().count();
        assert!(ring >= 1, "the record is there while the communicator is");
        return;
    }
    let folder = folder("peace");
    for output in job("clean_exits_leave_only_counters", &folder) {
        assert!(output.contains("1 passed"), "{output}");
    }
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["metrics.0.prom", "metrics.1.prom", "metrics.2.prom"]);
    for rank in 0..RANKS {
        let text = std::fs::read_to_string(folder.join(format!("metrics.{rank}.prom"))).unwrap();
        let series = exposition(&text);
        let calls =
            format!("weft_calls_total{{collective=\"all-reduce\",communicator=\"world\",rank=\"{rank}\"}}");
        assert_eq!(series.get(&calls), Some(&12.0), "{text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn split_communicators_have_their_own_counters() {
    if let Some((rank, mut comm)) = role(LONG) {
        comm.barrier().unwrap();
        // Ranks 0 and 2 are 1 and 0 of their part.
        let part = comm.split(Some(rank as u32 % 2), -(rank as i64)).unwrap();
        part.unwrap().all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
        return;
    }
    let folder = folder("parts");
    for output in job("split_communicators_have_their_own_counters", &folder) {
        assert!(output.contains("1 passed"), "{output}");
    }
    for rank in 0..RANKS {
        let text = std::fs::read_to_string(folder.join(format!("metrics.{rank}.prom"))).unwrap();
        let series = exposition(&text);
        let of = |collective: &str| -> Vec<&String> {
            let calls = format!("weft_calls_total{{collective=\"{collective}\",");
            series.keys().filter(|name| name.starts_with(&calls)).collect()
        };
        let (whole, part) = (of("barrier"), of("all-reduce"));
        assert!(whole.len() == 1 && whole[0].contains("communicator=\"world\""), "{text}");
        assert!(part.len() == 1 && !part[0].contains("communicator=\"world\""), "{text}");
        let own = format!("rank=\"{rank}\"");
        assert!(series.keys().all(|name| name.contains(&own)), "the rank is the job's: {text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn counters_have_the_prometheus_format() {
    let (zero, one) = both(two(16), |comm| {
        comm.all_reduce(&mut [1.0_f32; 100], Reduction::Sum).unwrap();
        comm.barrier().unwrap();
    });
    let mut all = [zero.counters(), one.counters()];
    let series = exposition(&Counters::prometheus(&all));
    assert_eq!(
        series["weft_bytes_total{collective=\"all-reduce\",communicator=\"world\",rank=\"1\"}"],
        400.0
    );
    assert_eq!(series["weft_calls_total{collective=\"barrier\",communicator=\"world\",rank=\"0\"}"], 1.0);
    assert!(!series.keys().any(|name| name.contains("\"scan\"")), "what was never called has no line");
    let (first, second) = all.split_at_mut(1);
    first[0].add(&second[0]);
    assert_eq!(first[0].of_collective("barrier").unwrap().calls, 2);
    assert_eq!(exposition(&Counters::prometheus(&[])).len(), 0);
}

/// Reads the text form as promtool does: every metric has its help and its type before its samples, which stand together;
/// names and labels are well formed, counters end in `_total`, no series is there twice.
fn exposition(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n') && !text.contains("\n\n"));
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut series = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let (mut helped, mut typed) = (String::new(), String::new());
    // Other comments are for people.
    for line in text.lines().filter(|line| !line.starts_with("# Weft, ")) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty() && seen.insert(name.to_owned()), "{line}");
            helped = name.to_owned();
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert_eq!(kind, format!("{helped} counter"));
            assert!(helped.ends_with("_total"), "{line}");
            typed.clone_from(&helped);
            continue;
        }
        let (labelled, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = labelled.strip_suffix('}').unwrap().split_once('{').unwrap();
        assert_eq!(name, typed);
        for label in labels.split(',') {
            let (name, value) = label.split_once('=').unwrap();
            let value = value.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
            assert!(is_name(name) && !value.contains(['"', '\\', '\n']), "{line}");
        }
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(series.insert(labelled.to_owned(), value).is_none(), "{line} is there twice");
    }
    series
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("weft-test-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// This process's rank in a job of [`RANKS`], if it was started for one.
fn role(deadline: Duration) -> Option<(usize, Communicator)> {
    let rank: usize = std::env::var(ROLE).ok()?.parse().ok()?;
    let place = RendezvousAddress::Abstract(std::env::var(PLACE).ok()?);
    let meeting = Rendezvous::new(place, Token::new("recorder").unwrap(), RANKS, LONG);
    let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
    let options = Options { deadline, ..Options::default() };
    Some((rank, Communicator::new(met.unwrap(), options).unwrap()))
}

/// Runs a test as ranks of a job that records into a folder, and gives what each printed.
fn job(test: &str, folder: &Path) -> Vec<String> {
    let start = |rank: usize| {
        this_program()
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, rank.to_string())
            .env(PLACE, format!("weft-recorder-{test}-{}", std::process::id()))
            .env("WEFT_JOB", "recorder")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("WEFT_LAST_WORDS", folder.join("words"))
            .env("WEFT_RECORD_DIR", folder)
            .env("WEFT_METRICS", format!("file:{}/metrics.%r.prom", folder.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let output = |rank: Child| {
        let output = rank.wait_with_output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    };
    ranks.into_iter().map(output).collect()
}

/// Another user has created links and pipes with the names of a rank's files, in a world-writable folder.
#[test]
fn foreign_links_and_pipes_are_not_followed() {
    const TEST: &str = "foreign_links_and_pipes_are_not_followed";
    if let Some((rank, mut comm)) = role(Duration::from_secs(1)) {
        let folder = PathBuf::from(std::env::var_os("WEFT_RECORD_DIR").unwrap());
        let job = comm.flight_recorder().record().job;
        comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
        let link =
            |name: String| std::os::unix::fs::symlink(folder.join("precious"), folder.join(name)).unwrap();
        link(format!("weft-record-{job}-rank{rank}.json.{}.new", std::process::id()));
        link(format!("weft-record-{job}-rank{rank}.json"));
        if rank == 2 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        let error = comm.all_reduce(&mut [1.0_f32; 4], Reduction::Sum).unwrap_err();
        return println!("{error}");
    }
    let folder = folder("links");
    std::fs::write(folder.join("precious"), "precious").unwrap();
    job(TEST, &folder);
    assert_eq!(std::fs::read_to_string(folder.join("precious")).unwrap(), "precious");
    let mut modes = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let found = entry.path().symlink_metadata().unwrap();
        if let Some((_, ending)) = name.split_once("-rank").filter(|_| found.is_file()) {
            modes.insert(ending.to_owned(), found.permissions().mode() & 0o777);
        }
    }
    let wanted = ["0.json", "1.json", "2.ring"].map(|name| (name.to_owned(), 0o600));
    assert_eq!(modes, BTreeMap::from(wanted), "records are there, and for their owner only");
    std::fs::remove_dir_all(folder).unwrap();
}
