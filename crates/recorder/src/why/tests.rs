use weftlink_bootstrap::BlameKind;

use super::sentences::named;
use super::*;
use crate::recorder::{KernelRecord, WaitRecord};

fn call(number: u32, what: &str, state: CallState, start_ns: u64) -> CallRecord {
    CallRecord {
        number,
        what: what.to_owned(),
        signature: 1 + what.bytes().map(u32::from).sum::<u32>(),
        collective: what.split(' ').next().unwrap().to_owned(),
        count: 8,
        data_type: Some("f32".to_owned()),
        reduction: None,
        plan: "ring".to_owned(),
        bytes: 32,
        state,
        start_ns,
        end_ns: (state != CallState::Running).then_some(start_ns + 500),
        waited_ns: 0,
    }
}

/// A rank with `done` calls, one each second.
fn rank(rank: u32, size: u32, done: u32) -> Record {
    let calls = (1..=done).map(|number| {
        call(number, "all-reduce of 8 f32", CallState::Done, u64::from(number) * 1_000_000_000)
    });
    Record {
        version: 1,
        job: "abc".to_owned(),
        rank,
        size,
        host: "here".to_owned(),
        pid: 100 + rank,
        process_start: 0,
        pid_namespace: 0,
        state: RankState::Running,
        error: None,
        blamed: Vec::new(),
        aborted_by: None,
        settings: Vec::new(),
        realtime_offset_ns: 0,
        taken_ns: Some(100_000_000_000),
        waiting: None,
        calls: calls.collect(),
        kernels: None,
        process: None,
    }
}

/// The same rank in one more call, waiting for another rank.
fn in_call(mut record: Record, what: &str, awaits: Option<u32>) -> Record {
    let number = record.last_number().unwrap_or(0) + 1;
    record.calls.push(call(number, what, CallState::Running, 90_000_000_000));
    record.waiting = awaits.map(|rank| WaitRecord {
        call: number,
        in_group: false,
        what: "to make the call".to_owned(),
        rank: Some(rank),
        lane: Some(0),
        step: Some(2),
        since_ns: 88_000_000_000,
        blocks: None,
    });
    record
}

/// The same rank in a group of messages after its calls, waiting for another rank.
fn in_group(mut record: Record, what: &str, awaits: u32) -> Record {
    record.waiting = Some(WaitRecord {
        call: record.last_number().unwrap_or(0) + 1,
        in_group: true,
        what: what.to_owned(),
        rank: Some(awaits),
        lane: None,
        step: None,
        since_ns: 88_000_000_000,
        blocks: None,
    });
    record
}

fn sentences_of(records: &[Record]) -> Vec<String> {
    let mut why = explain(records);
    assert_eq!(why.jobs.len(), 1);
    why.jobs.remove(0).sentences
}

const CALL: &str = "all-reduce of 8 f32";

#[test]
fn a_rank_that_called_nothing_is_named() {
    let records =
        [in_call(rank(0, 3, 2), CALL, Some(2)), in_call(rank(1, 3, 2), CALL, Some(2)), rank(2, 3, 2)];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 2 fell behind first: its last call is #2, all-reduce of 8 f32, and it has called nothing for 98.0 s, \
             while ranks 0 and 1 are in #3, all-reduce of 8 f32.",
            "Ranks 0 and 1 wait for rank 2 to make the call in #3, all-reduce of 8 f32, for 12.0 s.",
        ]
    );
}

#[test]
fn a_rank_that_waits_did_not_fall_behind() {
    // Rank 2 waits for rank 3 in a call that ranks 0 and 1 have done without it.
    let late = in_call(rank(3, 4, 2), CALL, None);
    let records = [
        in_call(rank(0, 4, 3), CALL, Some(3)),
        in_call(rank(1, 4, 3), CALL, Some(2)),
        in_call(rank(2, 4, 2), CALL, Some(3)),
        late,
    ];
    let sentences = sentences_of(&records);
    assert!(
        sentences[0].starts_with(
            "Rank 3 fell behind first: it is still in #3, all-reduce of 8 f32, while ranks 0 and 1 are in #4,"
        ),
        "{sentences:?}"
    );
    assert_eq!(sentences.last().unwrap(), "In the end, all of them wait for rank 3.");
}

#[test]
fn ranks_that_wait_for_each_other_did_not_fall_behind() {
    let records = [
        in_call(rank(0, 3, 3), CALL, Some(1)),
        in_call(rank(1, 3, 2), CALL, Some(2)),
        in_call(rank(2, 3, 2), CALL, Some(1)),
    ];
    let sentences = sentences_of(&records);
    assert!(sentences.iter().all(|sentence| !sentence.contains("fell behind")), "{sentences:?}");
    assert_eq!(sentences.last().unwrap(), "Deadlock: ranks 1 > 2 wait for each other in a cycle.");
}

#[test]
fn a_rank_that_died_in_a_wait_is_the_end_of_the_chain() {
    let mut dead = in_call(rank(2, 3, 2), CALL, Some(1));
    dead.process = Some(Process::Gone);
    let records = [in_call(rank(0, 3, 3), CALL, Some(1)), in_call(rank(1, 3, 2), CALL, Some(2)), dead];
    let sentences = sentences_of(&records);
    assert!(sentences[0].starts_with("Rank 2 (here, pid 102) died in call #3, "), "{sentences:?}");
    assert!(sentences[1].starts_with("Rank 2 fell behind first: it ended in #3, "), "{sentences:?}");
    assert_eq!(sentences.last().unwrap(), "In the end, all of them wait for rank 2.");
}

#[test]
fn a_rank_that_waits_for_one_without_a_record_did_not_fall_behind() {
    let records = [in_call(rank(0, 3, 3), CALL, Some(1)), in_call(rank(1, 3, 2), CALL, Some(2))];
    let sentences = sentences_of(&records);
    assert!(sentences.iter().all(|sentence| !sentence.contains("fell behind")), "{sentences:?}");
    assert!(sentences[0].starts_with("There is no record of rank 2"), "{sentences:?}");
}

#[test]
fn different_calls_are_all_shown() {
    let others = [0, 1, 2].map(|one| in_call(rank(one, 4, 40), CALL, Some(3)));
    let odd = in_call(rank(3, 4, 40), "broadcast of 8 bytes", Some(0));
    let records: Vec<Record> = others.into_iter().chain([odd]).collect();
    let sentences = sentences_of(&records);
    assert_eq!(
        sentences[0],
        "Call #41 differs: rank 3 is in broadcast of 8 bytes, while ranks 0 to 2 are in all-reduce of 8 f32."
    );
    assert_eq!(sentences.last().unwrap(), "Deadlock: ranks 0 > 3 wait for each other in a cycle.");
}

#[test]
fn a_chain_of_waits_is_followed_to_its_end() {
    let mut last = rank(3, 4, 1);
    last.process = Some(Process::Gone);
    let records = [
        in_call(rank(0, 4, 1), CALL, Some(1)),
        in_call(rank(1, 4, 1), CALL, Some(2)),
        in_call(rank(2, 4, 1), CALL, Some(3)),
        last,
    ];
    let sentences = sentences_of(&records);
    assert_eq!(
        sentences[0],
        "Rank 3 (here, pid 103) died after call #1, all-reduce of 8 f32: it was killed or crashed."
    );
    assert_eq!(sentences.last().unwrap(), "In the end, all of them wait for rank 3.");
}

#[test]
fn waits_without_a_rank_are_reported() {
    let records = [0, 1].map(|one| {
        let mut record = in_call(rank(one, 2, 2), CALL, Some(0));
        let waiting = record.waiting.as_mut().unwrap();
        (waiting.what, waiting.rank) = ("others to allocate memory".to_owned(), None);
        record
    });
    assert_eq!(
        sentences_of(&records),
        ["Ranks 0 and 1 wait for others to allocate memory in #3, all-reduce of 8 f32, for 12.0 s."]
    );
}

#[test]
fn waits_of_groups_are_not_those_of_the_next_call() {
    let mut in_collective = in_call(rank(2, 3, 1), CALL, Some(0));
    in_collective.waiting.as_mut().unwrap().what = "a message".to_owned();
    let in_message_group = in_group(rank(1, 3, 1), "a message", 0);
    let at_work = in_call(rank(0, 3, 1), CALL, None);
    assert_eq!(
        sentences_of(&[at_work, in_message_group, in_collective]),
        [
            "Rank 1 waits for a message from rank 0 in a group of messages, for 12.0 s.",
            "Rank 2 waits for a message from rank 0 in #2, all-reduce of 8 f32, for 12.0 s.",
        ]
    );
}

#[test]
fn waits_of_groups_for_ranks_with_later_calls_are_reported() {
    // The root of two broadcasts does not wait for rank 1, which is in a group before them.
    let records = [rank(0, 3, 3), in_group(rank(1, 3, 1), "a message", 0), rank(2, 3, 3)];
    assert_eq!(
        sentences_of(&records),
        ["Rank 1 waits for a message from rank 0 in a group of messages, for 12.0 s."]
    );
    let records = [in_group(rank(0, 2, 1), "to receive", 1), in_call(rank(1, 2, 1), CALL, Some(0))];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 0 waits for rank 1 to receive in a group of messages, for 12.0 s.",
            "Rank 1 waits for rank 0 to make the call in #2, all-reduce of 8 f32, for 12.0 s.",
            "Deadlock: ranks 0 > 1 wait for each other in a cycle.",
        ]
    );
}

#[test]
fn a_stopped_rank_is_not_reported_as_waiting() {
    // Rank 1 was stopped in a call that rank 0 has done.
    let mut stopped = in_call(rank(1, 2, 1), CALL, Some(0));
    stopped.process = Some(Process::Stopped);
    let mut ahead = in_call(rank(0, 2, 2), CALL, Some(1));
    ahead.process = Some(Process::Runs);
    assert_eq!(
        sentences_of(&[ahead, stopped]),
        [
            "Rank 1 (here, pid 101) is stopped, by a signal or a debugger.",
            "Rank 1 fell behind first: it is still in #2, all-reduce of 8 f32, while rank 0 is in #3, all-reduce of 8 f32.",
            "Rank 0 waits for rank 1 to make the call in #3, all-reduce of 8 f32, for 12.0 s.",
        ]
    );
}

#[test]
fn ranks_that_make_progress_are_not_reported() {
    let at_work = |mut record: Record| {
        record.process = Some(Process::Runs);
        record.taken_ns = Some(88_000_001_000);
        record
    };
    let records = [in_call(rank(0, 2, 2), CALL, Some(1)), rank(1, 2, 2)].map(at_work);
    assert_eq!(sentences_of(&records), ["Nothing is wrong: both ranks are at work, around call #3."]);
}

#[test]
fn errors_that_follow_from_others_are_summarized() {
    let failed = |number: u32, error: &str, aborted_by: Option<u32>| {
        let mut record = in_call(rank(number, 3, 1), CALL, None);
        record.aborted_by = aborted_by;
        record.state = RankState::Failed;
        record.error = Some(error.to_owned());
        record
    };
    let records = [
        failed(0, "call #2: rank 0 waited 1.0 s for rank 2 (pid 7) to make the call (lane 0, step 0)", None),
        failed(1, "call #2: rank 0 gave up (a deadline passed), so rank 1 does", Some(0)),
    ];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 0 failed: call #2: rank 0 waited 1.0 s for rank 2 (pid 7) to make the call (lane 0, step 0).",
            "Rank 1 aborted because of that.",
            "There is no record of rank 2: it ended, ran elsewhere or never started.",
        ]
    );
}

#[test]
fn a_rank_that_no_error_blames_was_stopped_by_its_launcher() {
    let gone = |number: u32| Record { process: Some(Process::Gone), ..rank(number, 3, 1) };
    let mut failed = in_call(rank(0, 3, 1), CALL, None);
    (failed.state, failed.error) = (RankState::Failed, Some("an error that names no rank".to_owned()));
    failed.blamed = vec![Blame::new(0, BlameKind::Failed), Blame::new(2, BlameKind::Died)];
    let sentences = sentences_of(&[failed, gone(1), gone(2)]);
    assert!(sentences[0].starts_with("Rank 1 (here, pid 101) ended after call #1, "), "{sentences:?}");
    assert!(
        sentences[0].ends_with("most likely its launcher stopped it, since the errors blame another rank.")
    );
    assert!(sentences[1].starts_with("Rank 2 (here, pid 102) died after call #1, "), "{sentences:?}");
}

#[test]
fn jobs_are_separate() {
    let mut other = rank(0, 1, 3);
    other.job = "fine".to_owned();
    let why = explain(&[other, in_call(rank(0, 2, 3), CALL, Some(1)), rank(1, 2, 3)]);
    let found: Vec<_> = why.jobs.iter().map(|job| (job.job.as_str(), job.is_wrong)).collect();
    assert_eq!(found, [("abc", true), ("fine", false)]);
    assert_eq!(why.jobs[1].sentences, ["Nothing is wrong: the only rank is at call #3."]);
    assert!(explain(&[]).jobs.is_empty());
}

#[test]
fn a_straggler_is_reported() {
    let mut slow = rank(1, 2, 9);
    slow.calls.iter_mut().for_each(|call| call.start_ns += 5_000_000);
    let why = explain(&[rank(0, 2, 9), slow]);
    let job = &why.jobs[0];
    assert!(!job.is_wrong);
    assert_eq!(
        job.sentences[1],
        "Rank 1 usually comes last: in 9 of 9 calls, with a median of 5.0 ms after the first rank."
    );
    let late = Lateness { rank: 1, median_ns: 5_000_000, most_ns: 5_000_000, was_last: 9, calls: 9 };
    assert_eq!(job.late[0], late);
}

#[test]
fn numbers_that_wrap_are_still_in_order() {
    let numbered = |mut record: Record| {
        record.calls.iter_mut().for_each(|call| call.number = call.number.wrapping_add(u32::MAX - 2));
        record
    };
    let records = [numbered(rank(0, 2, 5)), numbered(rank(1, 2, 3))];
    let sentences = sentences_of(&records);
    assert!(sentences[0].starts_with("Rank 1 fell behind first: its last call is #0,"), "{sentences:?}");
}

#[test]
fn ranks_are_listed_briefly() {
    for (ranks, name) in [
        (&[3][..], "rank 3"),
        (&[0, 1], "ranks 0 and 1"),
        (&[0, 1, 2, 3, 5, 9, 10], "ranks 0 to 3, 5, 9 and 10"),
        (&[], "no rank"),
    ] {
        assert_eq!(named(ranks), name);
    }
    let odd: Vec<u32> = (0..100).map(|rank| 2 * rank).collect();
    assert_eq!(named(&odd), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and more");
}

/// A rank on a GPU that has enqueued calls and reports its waits.
fn on_gpu(one: u32, size: u32, enqueued: u32) -> Record {
    let mut record = rank(one, size, enqueued);
    record.calls.iter_mut().for_each(|call| (call.state, call.end_ns) = (CallState::Enqueued, None));
    record.kernels = Some(KernelRecord { started: None });
    record
}

/// The same rank, of which blocks wait in a call.
fn waits_in(mut record: Record, call: u32, what: &str, awaits: u32) -> Record {
    record.kernels = Some(KernelRecord { started: Some(call) });
    record.waiting = Some(WaitRecord {
        call,
        in_group: false,
        what: what.to_owned(),
        rank: Some(awaits),
        lane: Some(0),
        step: Some(2),
        since_ns: 88_000_000_000,
        blocks: Some([131, 132]),
    });
    record
}

fn started(mut record: Record, call: u32) -> Record {
    record.kernels = Some(KernelRecord { started: Some(call) });
    record
}

const NOT_STARTED: &str = "work before it on its stream has not ended, or the GPU has no free queue for it \
                           (CUDA_DEVICE_MAX_CONNECTIONS) or no room";

/// Both have enqueued later calls, which does not mean that the earlier one has ended.
#[test]
fn kernels_that_have_not_started_are_named() {
    let records = [
        waits_in(on_gpu(0, 3, 9), 5, "to make the call", 1),
        on_gpu(1, 3, 7),
        waits_in(on_gpu(2, 3, 8), 5, "a message", 0),
    ];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 0 waits for rank 1 to make the call in #5, all-reduce of 8 f32, for 12.0 s.".to_owned(),
            "Rank 2 waits for a message from rank 0 in #5, all-reduce of 8 f32, for 12.0 s.".to_owned(),
            format!("Rank 1 has enqueued #5, and its kernel has not started: {NOT_STARTED}."),
            "In the end, all of them wait for rank 1.".to_owned(),
        ]
    );
    let job = explain(&records).jobs.remove(0);
    let lines: Vec<_> = job.ranks.iter().map(|line| (line.call, line.call_state)).collect();
    assert_eq!(lines, [(Some(5), "running"), (Some(7), "enqueued"), (Some(5), "running")]);
    assert_eq!(job.ranks[0].waiting, "rank 1 to make the call (lane 0, step 2; 131 of 132 waiting blocks)");
}

#[test]
fn silent_ranks_are_described_by_what_is_known_of_them() {
    let last = |records: &[Record]| sentences_of(records).pop().unwrap();
    let waits = waits_in(on_gpu(0, 3, 9), 5, "a message", 1);
    assert_eq!(
        last(&[waits.clone(), started(on_gpu(1, 3, 9), 3), waits_in(on_gpu(2, 3, 9), 5, "a message", 1)]),
        format!(
            "Rank 1 has enqueued #5, and no block of its kernel waits: the kernel has not started ({NOT_STARTED}), or still moves data."
        )
    );
    let both = [waits.clone(), on_gpu(1, 3, 9), on_gpu(2, 3, 9)];
    let of_both = [both[0].clone(), waits_in(both[1].clone(), 5, "a signal", 2), both[2].clone()];
    assert!(last(&of_both).starts_with("In the end, all of them wait for rank 2"), "{of_both:?}");
    assert_eq!(
        last(&[waits, started(on_gpu(1, 3, 9), 5), on_gpu(2, 3, 9)]),
        "Rank 1 has started #5, and no block of its kernel waits: the kernel still moves data, or the GPU has no room for all blocks."
    );
}

#[test]
fn a_program_that_has_not_enqueued_the_call_fell_behind() {
    let records = [waits_in(on_gpu(0, 3, 9), 5, "to make the call", 1), on_gpu(1, 3, 4), on_gpu(2, 3, 6)];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 1 fell behind first: the last call that it has enqueued is #4, all-reduce of 8 f32, and it has called nothing for 96.0 s, \
             while rank 0 is in #5, all-reduce of 8 f32.",
            "Rank 0 waits for rank 1 to make the call in #5, all-reduce of 8 f32, for 12.0 s.",
        ]
    );
}

/// A kernel of a later call has started, so this rank has done its part of the earlier one, and the wait for it just ends.
#[test]
fn ranks_whose_later_kernels_have_started_are_not_awaited() {
    let waits = waits_in(on_gpu(0, 2, 9), 5, "a message", 1);
    for other in [started(on_gpu(1, 2, 9), 6), waits_in(on_gpu(1, 2, 9), 6, "to make the call", 0)] {
        let sentences = sentences_of(&[waits.clone(), other]);
        assert!(sentences.iter().all(|sentence| !sentence.starts_with("Rank 0 waits")), "{sentences:?}");
    }
}

/// Graphs run calls again, so numbers do not show which of two comes later.
#[test]
fn captured_calls_are_never_past() {
    let captured = |mut record: Record| {
        record.calls.iter_mut().for_each(|call| call.state = CallState::Captured);
        record
    };
    let records = [
        captured(waits_in(on_gpu(0, 2, 9), 2, "to make the call", 1)),
        captured(started(on_gpu(1, 2, 9), 8)),
    ];
    assert_eq!(
        sentences_of(&records),
        [
            "Rank 0 waits for rank 1 to make the call in #2, all-reduce of 8 f32, for 12.0 s.".to_owned(),
            format!(
                "Rank 1 has captured #2 in a graph, and no block of its kernel waits: the graph was not launched again, or the kernel \
                 has not started ({NOT_STARTED}), or still moves data."
            ),
        ]
    );
}

/// Programs enqueue calls at different times; nothing waits.
#[test]
fn programs_on_gpus_that_are_ahead_are_not_reported() {
    let at_work = |mut record: Record| {
        record.process = Some(Process::Runs);
        record
    };
    let mut slow = on_gpu(1, 2, 12);
    slow.calls.iter_mut().for_each(|call| call.start_ns += 5_000_000);
    let records = [on_gpu(0, 2, 19), slow].map(at_work);
    assert_eq!(sentences_of(&records), ["Nothing is wrong: both ranks are at work, around call #19."]);
    // Without reports, nobody knows.
    let hidden = records.map(|record| Record { kernels: None, ..record });
    let sentences = sentences_of(&hidden);
    assert_eq!(sentences[0], "No problem is visible: both ranks are at work, around call #19.");
    assert!(sentences[1].starts_with("The waits of kernels of ranks 0 and 1 are unknown: "), "{sentences:?}");
}

/// The first call of a kind loads a plan, which the program waits for.
#[test]
fn programs_that_load_a_plan_wait_for_the_others() {
    let mut loads = on_gpu(0, 2, 4);
    loads.calls.push(call(5, "load of plan 7", CallState::Running, 88_000_000_000));
    loads.waiting = Some(WaitRecord {
        rank: None,
        blocks: None,
        lane: None,
        step: None,
        ..waits_in(on_gpu(0, 2, 1), 5, "others to allocate memory", 0).waiting.unwrap()
    });
    assert_eq!(
        sentences_of(&[loads, on_gpu(1, 2, 4)]),
        [
            "Rank 1 fell behind first: the last call that it has enqueued is #4, all-reduce of 8 f32, and it has called nothing for 96.0 s, \
             while rank 0 is in #5, load of plan 7.",
            "Rank 0 waits for others to allocate memory in #5, load of plan 7, for 12.0 s.",
        ]
    );
}

/// A kernel of the program waits for a signal, after its rank's calls.
#[test]
fn waits_of_kernels_of_the_program_are_reported() {
    let mut waits = waits_in(on_gpu(0, 2, 4), 0, "a signal", 1);
    waits.waiting.as_mut().unwrap().in_group = true;
    assert_eq!(
        sentences_of(&[waits.clone(), started(on_gpu(1, 2, 4), 3)]),
        ["Rank 0 waits for a signal from rank 1 in a kernel of the program, for 12.0 s."]
    );
    assert_eq!(explain(&[waits]).jobs[0].ranks[0].call, Some(4));
}
