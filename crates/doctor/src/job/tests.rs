use std::fs::File;

use proptest::prelude::*;
use weftlink_fabric::resolve;
use weftlink_recorder::recorder::Record;

use super::*;
use crate::finding::{Finding, Severity};

/// The job of files in testdata/jobs.
fn job(files: &[&str]) -> Job {
    let mut job = Job::default();
    for file in files {
        let path = format!("{}/../../testdata/jobs/{file}", env!("CARGO_MANIFEST_DIR"));
        job.add_trace(file, File::open(path).unwrap()).unwrap();
    }
    job
}

fn small_calls() -> Job {
    job(&[
        "small-calls-rank0.json",
        "small-calls-rank1.json",
        "small-calls-rank2.json",
        "small-calls-rank3.json",
    ])
}

fn slow_group() -> Job {
    job(&["slow-group-rank0.json", "slow-group-rank1.json", "slow-group-rank2.json", "slow-group-rank3.json"])
}

/// A call of a made-up job.
fn call(kind: Kind, bytes: u64, sequence: u64, duration_us: u64) -> Call {
    Call {
        kind: Some(kind),
        bytes: Some(bytes),
        ranks: Some(8),
        group: Some("0".into()),
        sequence: Some(sequence),
        start_ns: sequence as i64 * 10_000_000,
        duration_ns: Some(duration_us * 1000),
    }
}

/// A job in which all ranks make the same calls.
fn same(ranks: u32, calls: &[Call]) -> Job {
    let rank =
        |number| Rank { name: format!("rank {number}"), number, calls: calls.to_vec(), ..Rank::default() };
    Job { sources: vec![Source::Torch], ranks: (0..ranks).map(rank).collect(), ..Job::default() }
}

fn finding<'r>(report: &'r Report, id: &str) -> Option<&'r Finding> {
    report.findings.iter().find(|finding| finding.id == id)
}

fn is_fine(report: &Report, id: &str) -> bool {
    report.fine.iter().any(|(fine, _)| *fine == id)
}

fn is_unknown(report: &Report, id: &str) -> bool {
    report.uninspected.iter().any(|one| one.id == id)
}

#[test]
fn a_job_that_hides_its_large_calls_is_fine() {
    let (summary, report) = explain(&job(&["overlapped-rank0.json", "overlapped-rank1.json"]), None);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.uninspected.is_empty(), "{:?}", report.uninspected);
    assert_eq!(report.exit_code(), 0);
    let rank = &summary.ranks[0];
    assert_eq!((rank.steps, rank.step_us, rank.communication_us), (2, Some(10_000.0), Some(4_000.0)));
    assert!(rank.exposed_us.unwrap() < 10.0, "{rank:?}");
    let [all_reduce] = &summary.collectives[..] else { panic!("{:?}", summary.collectives) };
    assert_eq!((all_reduce.all.calls, all_reduce.all.bytes), (16, 16 * 26_214_400));
    assert_eq!(summary.matched, [8, 0]);
}

#[test]
fn small_calls_ask_for_larger_buckets() {
    let (summary, report) = explain(&small_calls(), None);
    let found = finding(&report, "job-small-calls").unwrap();
    assert!(found.what.starts_with("91 % of the calls are below 100 KiB and take"), "{}", found.what);
    assert!(found.evidence[0].text.starts_with("120 of 132 calls below 100 KiB"), "{:?}", found.evidence);
    // 31 us at 105 GB/s, times 20: 62 MiB.
    assert!(found.fixes[0].starts_with("raise bucket_cap_mb to 100 "), "{:?}", found.fixes);
    let cost = found.cost.as_ref().unwrap();
    assert!(cost.usual_gb_per_s > cost.now_gb_per_s, "{cost:?}");
    let classes: Vec<_> =
        summary.collectives[0].sizes.iter().map(|class| (class.below_bytes, class.calls)).collect();
    assert_eq!(classes, [(Some(10 << 10), 12), (Some(100 << 10), 108), (Some(100 << 20), 12)]);
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn small_calls_that_take_little_time_are_fine() {
    let mut calls: Vec<Call> = (0..10).map(|at| call(Kind::AllReduce, 4096, at, 10)).collect();
    calls.push(call(Kind::AllReduce, 1 << 30, 10, 5_000));
    let (_, report) = explain(&same(8, &calls), None);
    assert!(finding(&report, "job-small-calls").is_none() && is_fine(&report, "job-small-calls"));
}

#[test]
fn small_calls_of_other_collectives_have_other_fixes() {
    let calls: Vec<Call> = (0..9)
        .map(|at| call([Kind::AllGather, Kind::Broadcast, Kind::AllToAll][at as usize % 3], 4096, at, 10))
        .collect();
    let (_, report) = explain(&same(8, &calls), None);
    let fixes = finding(&report, "job-small-calls").unwrap().fixes.join("\n");
    for word in ["fully_shard", "broadcast_buffers=False", "CUDA graph"] {
        assert!(fixes.contains(word), "{fixes}");
    }
    assert!(!fixes.contains("bucket_cap_mb"), "{fixes}");
    let mut other = same(8, &[call(Kind::Gather, 4096, 0, 10)]);
    for kind in [Some(Kind::Gather), None] {
        other.ranks.iter_mut().for_each(|rank| rank.calls[0].kind = kind);
        let (_, report) = explain(&other, None);
        assert!(finding(&report, "job-small-calls").unwrap().fixes[0].contains("one buffer"));
    }
}

#[test]
fn without_a_large_call_the_default_bucket_is_named() {
    let calls: Vec<Call> = (0..9).map(|at| call(Kind::AllReduce, 4096, at, 10)).collect();
    let (_, report) = explain(&same(8, &calls), None);
    let found = finding(&report, "job-small-calls").unwrap();
    assert!(
        found.fixes[0].contains("bucket_cap_mb=25") && found.fixes[0].contains("8 calls"),
        "{:?}",
        found.fixes
    );
    assert_eq!(found.cost, None);
}

#[test]
fn sizes_without_times_are_a_note() {
    let mut job = same(2, &[call(Kind::AllReduce, 4096, 0, 10)]);
    job.ranks.iter_mut().for_each(|rank| rank.calls[0].duration_ns = None);
    let (_, report) = explain(&job, None);
    assert_eq!(finding(&report, "job-small-calls").unwrap().severity, Severity::Note);
    assert!(is_unknown(&report, "job-exposed") && is_unknown(&report, "job-imbalance"));
}

#[test]
fn nsight_systems_has_no_sizes() {
    let (summary, report) = explain(&job(&["nsys-cuda_gpu_trace.csv"]), None);
    assert!(is_unknown(&report, "job-small-calls") && is_unknown(&report, "job-data-parallel"));
    assert!(summary.rates.is_empty());
    assert_eq!(summary.collectives[0].unsized_calls, 12);
    let late = finding(&report, "job-imbalance").unwrap();
    assert!(late.what.contains("mostly for GPU 1, which comes last in 6 of 6 calls"), "{}", late.what);
    assert!(finding(&report, "job-exposed").is_some());
}

#[test]
fn communication_that_nothing_hides_is_found() {
    let (_, report) = explain(&small_calls(), None);
    let found = finding(&report, "job-exposed").unwrap();
    assert!(found.what.starts_with("for 24 % of the time, only communication runs"), "{}", found.what);
    assert!(found.evidence[0].text.contains("waiting for other ranks"), "{:?}", found.evidence);
}

#[test]
fn the_rank_that_the_others_wait_for_is_named() {
    let (summary, report) = explain(&small_calls(), None);
    let found = finding(&report, "job-imbalance").unwrap();
    assert!(found.what.contains("mostly for rank 2, which comes last in 3 of 33 calls"), "{}", found.what);
    assert!(found.evidence[0].source == "rank 2", "{:?}", found.evidence);
    assert!(found.fixes[0].starts_with("its own kernels are slow"), "{:?}", found.fixes);
    assert_eq!(summary.ranks[2].came_last, 3);
    assert!(summary.ranks[0].waited_us > 2_000.0 && summary.ranks[2].waited_us < 1.0, "{:?}", summary.ranks);
}

#[test]
fn a_rank_whose_host_is_late_has_an_idle_device() {
    let mut job = same(4, &(0..6).map(|at| call(Kind::AllReduce, 1 << 24, at, 1_000)).collect::<Vec<_>>());
    for rank in &mut job.ranks {
        rank.other_work.add(0, 5_000_000);
        rank.other_work.merge();
    }
    job.ranks[3].calls.iter_mut().for_each(|call| call.duration_ns = Some(200_000));
    let (_, report) = explain(&job, None);
    let found = finding(&report, "job-imbalance").unwrap();
    assert!(found.what.contains("mostly for rank 3"), "{}", found.what);
    assert!(found.fixes[0].starts_with("its device is idle"), "{:?}", found.fixes);
}

#[test]
fn ranks_that_take_turns_are_no_single_cause() {
    let mut job = same(4, &(0..8).map(|at| call(Kind::AllReduce, 1 << 24, at, 1_000)).collect::<Vec<_>>());
    for (at, rank) in job.ranks.iter_mut().enumerate() {
        rank.calls.iter_mut().skip(at).step_by(4).for_each(|call| call.duration_ns = Some(200_000));
    }
    let (_, report) = explain(&job, None);
    assert!(finding(&report, "job-imbalance").unwrap().what.contains("no single rank"));
}

#[test]
fn one_rank_of_a_job_cannot_show_who_is_late() {
    let (summary, report) = explain(&job(&["older-pytorch-rank3.json"]), None);
    assert!(is_unknown(&report, "job-imbalance"));
    assert!(finding(&report, "job-small-calls").is_none());
    let rates: Vec<_> =
        summary.rates.iter().map(|rate| (rate.collective, rate.bytes, rate.includes_waiting)).collect();
    assert_eq!(rates, [("all-gather", 16 << 20, true), ("reduce-scatter", 16 << 20, true)]);
    // 16 MiB in 230 us, of which seven eighths cross a link.
    assert!((summary.rates[0].busbw_gb_per_s - 63.8).abs() < 0.1, "{:?}", summary.rates);
}

#[test]
fn a_group_with_a_slow_link_is_named() {
    let (_, report) = explain(&slow_group(), None);
    let found = finding(&report, "job-slow-group").unwrap();
    assert!(found.what.contains("between rank 2, rank 3 takes 2.6x as long"), "{}", found.what);
    let cost = found.cost.as_ref().unwrap();
    assert!((cost.usual_gb_per_s / cost.now_gb_per_s - 2.6).abs() < 0.05, "{cost:?}");
    // The traces of one group say nothing about the other.
    let (_, report) = explain(&job(&["slow-group-rank0.json", "slow-group-rank2.json"]), None);
    assert!(is_unknown(&report, "job-slow-group"), "{report:?}");
}

#[test]
fn groups_that_are_alike_are_fine_and_one_group_does_not_apply() {
    let mut job = slow_group();
    for call in job.ranks.iter_mut().flat_map(|rank| &mut rank.calls) {
        call.duration_ns = Some(120_000);
    }
    let (_, report) = explain(&job, None);
    assert!(is_fine(&report, "job-slow-group"));
    let (_, report) = explain(&small_calls(), None);
    assert!(!is_fine(&report, "job-slow-group") && !is_unknown(&report, "job-slow-group"));
}

#[test]
fn data_parallel_is_found_and_distributed_data_parallel_is_not() {
    let (_, report) = explain(&job(&["data-parallel.json"]), None);
    let found = finding(&report, "job-data-parallel").unwrap();
    assert!(found.evidence.iter().any(|line| line.source == "ReduceAddCoalesced" && line.text == "2 calls"));
    assert!(found.fixes[0].contains("torchrun"));
    let (_, report) = explain(&small_calls(), None);
    assert!(finding(&report, "job-data-parallel").is_none() && is_fine(&report, "job-data-parallel"));
    let (_, report) = explain(&Job { data_parallel: None, ..small_calls() }, None);
    assert!(is_unknown(&report, "job-data-parallel"));
    let recorder = Job { sources: vec![Source::Recorder], data_parallel: None, ..small_calls() };
    assert!(!is_unknown(&explain(&recorder, None).1, "job-data-parallel"));
}

#[test]
fn calls_slower_than_predicted_are_found() {
    let fabric = resolve("hgx-h100").unwrap();
    let calls =
        |us: u64| -> Vec<Call> { (0..6).map(|at| call(Kind::AllReduce, 256 << 20, at, us)).collect() };
    // 256 MiB take about 1 ms on eight H100.
    let (summary, report) = explain(&same(8, &calls(9_000)), Some(&fabric));
    let found = finding(&report, "job-below-prediction").unwrap();
    assert!(found.what.starts_with("all-reduce of 256 MiB on 8 ranks is slower"), "{}", found.what);
    let cost = found.cost.as_ref().unwrap();
    assert!(cost.usual_gb_per_s > 4.0 * cost.now_gb_per_s, "{cost:?}");
    assert!(summary.rates[0].predicted_us.is_some() && !summary.rates[0].includes_waiting);
    let (_, report) = explain(&same(8, &calls(1_100)), Some(&fabric));
    assert!(is_fine(&report, "job-below-prediction"), "{:?}", report.findings);
    // The times of one rank include waiting.
    let (_, report) = explain(&same(1, &calls(9_000)), Some(&fabric));
    assert!(is_unknown(&report, "job-below-prediction"));
    // Without a fabric, or with another, nothing is predicted.
    for fabric in [None, Some(&resolve("hgx-h100-4").unwrap())] {
        let (_, report) = explain(&same(8, &calls(9_000)), fabric);
        assert!(
            finding(&report, "job-below-prediction").is_none()
                && !is_unknown(&report, "job-below-prediction")
        );
    }
}

#[test]
fn a_job_without_calls_is_unknown() {
    for job in [Job::default(), same(2, &[])] {
        let (_, report) = explain(&job, None);
        assert!(report.findings.is_empty());
        assert!(is_unknown(&report, "job-small-calls"));
        assert_eq!(report.exit_code(), 3);
    }
}

#[test]
fn records_show_sizes_and_who_is_late_but_no_overlap() {
    let records: Vec<Record> = [0, 1, 3]
        .map(|rank| {
            let name = format!("weft-record-3f9a1c2b77d0-rank{rank}.json");
            let path = format!("{}/../../testdata/records/{name}", env!("CARGO_MANIFEST_DIR"));
            Record::read(&std::fs::read(path).unwrap()).unwrap()
        })
        .to_vec();
    let mut job = Job::default();
    records::add(&mut job, &records).unwrap();
    let (summary, report) = explain(&job, resolve("hgx-h100-4").ok().as_ref());
    assert_eq!(summary.ranks.len(), 3);
    assert_eq!(summary.collectives[0].collective, "all-reduce");
    assert!(!is_unknown(&report, "job-small-calls"), "sizes are known");
    assert!(is_unknown(&report, "job-exposed"));
    assert!(
        summary.rates.iter().all(|rate| rate.predicted_us.is_none()),
        "CPU ranks are not the fabric's GPUs"
    );
    assert!(!is_unknown(&report, "job-imbalance"), "{:?}", report.uninspected);
}

#[test]
fn files_of_other_formats_are_refused_with_a_command() {
    let refused = |bytes: &[u8]| Job::default().add_trace("x", bytes).unwrap_err();
    assert_eq!(refused(b"SQLite format 3\0\x10\0"), JobError::Sqlite);
    assert!(JobError::Sqlite.to_string().contains("nsys stats --report cuda_gpu_trace"));
    assert_eq!(refused(&[0x1f, 0x8b, 8]), JobError::Compressed);
    assert_eq!(refused(b""), JobError::Empty);
    assert_eq!(refused(b" \n"), JobError::Empty);
    assert!(matches!(refused(b"QDSTRM\0\0"), JobError::Unknown(_)));
    assert!(matches!(refused(b"hello"), JobError::Unknown(_)));
}

#[test]
fn sizes_are_in_powers_of_1024() {
    let sizes = [0, 1, 1023, 100 << 10, 1 << 20, 3 << 19, 25 << 20, 1 << 30, u64::MAX].map(size);
    assert_eq!(
        sizes,
        ["0 bytes", "1 byte", "1023 bytes", "100 KiB", "1 MiB", "1.5 MiB", "25 MiB", "1 GiB", "16777216 TiB"]
    );
}

#[test]
fn two_traces_of_one_rank_keep_both() {
    let job = job(&["overlapped-rank0.json", "overlapped-rank0.json"]);
    let names: Vec<&str> = job.ranks.iter().map(|rank| rank.name.as_str()).collect();
    assert_eq!(names, ["rank 0", "rank 0 (trace 1)"]);
}

proptest! {
    #[test]
    fn no_job_panics(
        calls in prop::collection::vec((0_u64..4, 0_usize..6, prop::option::of(any::<u64>()), any::<i64>(), prop::option::of(any::<u64>())), 0..24),
    ) {
        let kinds = [Kind::AllReduce, Kind::AllGather, Kind::Broadcast, Kind::Barrier, Kind::SendReceive, Kind::AllToAll];
        let mut job = same(3, &[]);
        for (at, (group, kind, bytes, start_ns, duration_ns)) in calls.into_iter().enumerate() {
            job.ranks[at % 3].calls.push(Call {
                kind: (group > 0).then_some(kinds[kind]),
                bytes,
                ranks: bytes.map(|bytes| bytes as u32),
                group: (group > 1).then(|| group.to_string().into()),
                sequence: (group > 2).then_some(at as u64 / 3),
                start_ns,
                duration_ns,
            });
        }
        job.ranks.iter_mut().for_each(|rank| rank.shares_clock = true);
        let (summary, report) = explain(&job, None);
        prop_assert!(report.findings.iter().all(|one| !one.evidence.is_empty() && !one.fixes.is_empty()), "{report:?}");
        prop_assert!(serde_json::to_string(&summary).is_ok() && serde_json::to_string(&report).is_ok());
    }

    #[test]
    fn no_damaged_trace_panics(
        file in prop::sample::select(vec!["data-parallel.json", "older-pytorch-rank3.json", "nsys-cuda_gpu_trace.csv"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0-9.,:\"{}[]en \\\n".to_vec())), 1..6),
        end in any::<prop::sample::Index>(),
    ) {
        let path = format!("{}/../../testdata/jobs/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut bytes = std::fs::read(path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // One in a few is cut off.
        let end = end.index(bytes.len() * 4).min(bytes.len());
        for name in ["rank0.json", "rank1.json"] {
            let mut job = Job::default();
            if job.add_trace(name, &bytes[..end]).is_ok() && job.add_trace("x", &bytes[..end]).is_ok() {
                let (_, report) = explain(&job, None);
                prop_assert!(report.findings.iter().all(|one| !one.evidence.is_empty() && !one.fixes.is_empty()), "{report:?}");
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Job::default().add_trace("x", &bytes[..]);
    }
}
