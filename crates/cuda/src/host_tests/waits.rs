//! Kernels that wait, as `weft why --attach` sees them from another process. The test runs itself again as that process: its kernels are
//! fibers, and report what they wait for to the memory that readers find.

use std::process::Stdio;
use std::time::Duration;

use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Reduction, Verified, verify};
use weftlink_recorder::attach::attach;
use weftlink_recorder::recorder::{Owner, Record};
use weftlink_recorder::why::explain;
use weftlink_testkit::processes::this_program;

use super::faults::{COUNT, Job, Kernels, all_reduce};
use crate::call::Key;
use crate::calls::Calls;

const ROLE: &str = "WEFT_TEST_ROLE";
const RANKS: usize = 3;
/// In case that nothing ends the process.
const LIFETIME: Duration = Duration::from_secs(120);

/// Ranks that have loaded a plan. Ranks 0 and 1 run a call, and then enqueue another; rank 2 makes `calls` calls, which do not start.
fn hang(plan: &Verified, job: u64, calls: u32) {
    let key = Key {
        count: COUNT,
        data_type: DataType::F32,
        reduction: Reduction::Sum,
        aliasing: Aliasing::OutOfPlace,
    };
    let mut ranks: Vec<Calls> = (0..RANKS).map(|rank| Calls::new(Owner { rank, size: RANKS, job })).collect();
    let mut number = 0;
    for (rank, recorded) in ranks.iter_mut().enumerate() {
        let began = recorded.loads(plan);
        recorded.loaded(began, Some((0, &*plan.name)));
        for call in 0..if rank == 2 { calls } else { 2 } {
            let this = recorded.begin(0, plan, &key, rank as u32);
            recorded.enqueued(false);
            number = if call == 0 { this } else { number };
        }
    }
    let kernels = Job::numbered(plan, Kernels::Any, job);
    std::thread::spawn(|| {
        std::thread::sleep(LIFETIME);
        std::process::exit(1);
    });
    kernels.run(&[(0, number), (1, number)], Duration::from_secs(1_000_000), 0);
}

/// The records of a process in which this test hangs, as if read long after kernels of two ranks began to wait: a second of the scheduler's
/// time takes half a minute.
fn records_of(test: &str) -> Vec<Record> {
    let mut child = this_program()
        .args(["--exact", &format!("host_tests::waits::{test}"), "--nocapture"])
        .env(ROLE, "ranks")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut found = Vec::new();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        let records = attach(&child.id().to_string()).map_or(Vec::new(), |attached| attached.records);
        let has_waited = |record: &&Record| {
            let waiting = record.waiting.as_ref();
            waiting.is_some_and(|waiting| record.taken_ns.unwrap() - waiting.since_ns > 5_000_000)
        };
        if records.iter().filter(has_waited).count() == 2 {
            found = records;
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found.len(), RANKS, "no kernel reported a wait");
    found.iter_mut().for_each(|record| record.taken_ns = record.taken_ns.map(|taken| taken + 2_000_000_000));
    found
}

/// The sentences without times.
fn sentences(records: &[Record]) -> Vec<String> {
    let job = explain(records).jobs.remove(0);
    assert!(job.is_wrong);
    let is_time = |part: &str| part.ends_with(" s") && part.trim_end_matches(" s").parse::<f32>().is_ok();
    let without_time = |sentence: &String| {
        let (start, end) = sentence.rsplit_once(", for ").unwrap_or((sentence, ""));
        if is_time(end.trim_end_matches('.')) { start.to_owned() } else { sentence.clone() }
    };
    job.sentences.iter().map(without_time).collect()
}

const CALL: &str = "all-reduce of 300 f32 (sum) out of place";

#[test]
fn a_rank_that_has_not_enqueued_a_call_is_named() {
    let plan = verify(all_reduce(Algorithm::Exchange, 3, 1, Protocol::Ll)).unwrap();
    if std::env::var(ROLE).is_ok() {
        return hang(&plan, 0xa11, 0);
    }
    let records = records_of("a_rank_that_has_not_enqueued_a_call_is_named");
    let [behind, waits] = &sentences(&records)[..] else { panic!("{:?}", sentences(&records)) };
    let start = format!("Rank 2 fell behind first: its last call is #1, load of plan {:016x}, ", plan.hash());
    assert!(behind.starts_with(&start), "{behind}");
    assert!(behind.ends_with(&format!(", while ranks 0 and 1 are in #2, {CALL}.")), "{behind}");
    assert_eq!(*waits, format!("Ranks 0 and 1 wait for a message from rank 2 in #2, {CALL}"));
    for record in &records[..2] {
        let waiting = record.waiting.as_ref().unwrap();
        assert_eq!((waiting.call, waiting.rank, waiting.lane), (2, Some(2), Some(0)), "{waiting:?}");
        assert_eq!(record.kernels.unwrap().started, Some(2));
        let [these, all] = waiting.blocks.unwrap();
        assert!(these > 0 && these <= all && all <= 2, "{waiting:?}");
    }
}

/// All ranks have enqueued two calls. Kernels announce themselves in this plan, and that of rank 2 has not.
#[test]
fn a_kernel_that_has_not_started_is_named() {
    let plan = verify(Algorithm::TwoShot.flat(&Collective::AllReduce, 3, 1).unwrap()).unwrap();
    if std::env::var(ROLE).is_ok() {
        return hang(&plan, 0xa12, 2);
    }
    let records = records_of("a_kernel_that_has_not_started_is_named");
    let found = sentences(&records);
    assert_eq!(
        found[0],
        format!("Ranks 0 and 1 wait for rank 2 to make the call in #2, {CALL}"),
        "{found:?}"
    );
    assert!(found[1].starts_with("Rank 2 has enqueued #2, and its kernel has not started: "), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");
}
