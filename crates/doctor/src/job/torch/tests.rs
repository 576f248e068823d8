use proptest::prelude::*;

use super::*;

fn read(name: &str, text: &str) -> Result<Job, JobError> {
    let mut job = Job::default();
    add(&mut job, name, text.as_bytes()).map(|()| job)
}

const KERNEL: &str = r#"{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)","pid":2,"tid":9,"ts":5.5,"dur":10,
    "args":{"device":2,"External id":7,"Collective name":"allreduce","In msg nelems":256,"Out msg nelems":256,"Group size":8,"dtype":"Float",
    "Process Group Name":"0","Process Group Ranks":"[0, 1]","Seq":4}}"#;

#[test]
fn a_kernel_has_its_call_in_its_arguments() {
    let text =
        format!(r#"{{"distributedInfo":{{"rank":5}},"traceEvents":[{KERNEL}],"baseTimeNanoseconds":1000}}"#);
    let job = read("trace.json", &text).unwrap();
    let [rank] = &job.ranks[..] else { panic!("one rank") };
    assert_eq!((rank.name.as_str(), rank.number), ("rank 5", 5));
    let [call] = &rank.calls[..] else { panic!("one call") };
    assert_eq!(
        *call,
        Call {
            kind: Some(Kind::AllReduce),
            bytes: Some(1024),
            ranks: Some(8),
            group: Some("0 [0, 1]".into()),
            sequence: Some(4),
            start_ns: 6500,
            duration_ns: Some(10_000),
        }
    );
    assert_eq!(job.data_parallel, None, "no event of the host");
}

#[test]
fn a_list_of_events_is_a_trace() {
    let job = read("x/Trace_Rank_12.json", &format!("[{KERNEL}]")).unwrap();
    assert_eq!(job.ranks[0].name, "rank 12");
}

#[test]
fn hosts_and_ranks_are_in_names_of_files() {
    assert_eq!(
        host_of("logs/node-7.cluster_4711.1699999999999.pt.trace.json"),
        Some("node-7.cluster".to_owned())
    );
    for name in ["rank3.json", "node_x.17.pt.trace.json", "_12.17.pt.trace.json", ""] {
        assert_eq!(host_of(name), None, "{name}");
    }
    for (name, rank) in [
        ("rank-3_step_5.json", Some(3)),
        ("a/rank/7.json", None),
        ("rank.json", None),
        ("rank99999999999", None),
    ] {
        assert_eq!(rank_of(name), rank, "{name}");
    }
}

#[test]
fn the_host_s_record_completes_a_kernel() {
    let text = r#"{"traceEvents":[
        {"cat":"kernel","name":"ncclKernel_AllGather_RING_LL_Sum_int8_t(x)","pid":0,"ts":2,"dur":3,"args":{"External id":31}},
        {"cat":"kernel","name":"ncclKernel_AllGather_RING_LL_Sum_int8_t(x)","pid":0,"ts":9,"dur":3,"args":{"External id":99}},
        {"cat":"cpu_op","name":"record_param_comms","pid":1,"ts":1,"dur":1,"args":{"External id":31,"Collective name":"_allgather_base",
         "dtype":"Half","In msg nelems":100,"Out msg nelems":800,"Group size":8}}]}"#;
    let job = read("rank0.json", text).unwrap();
    let calls = &job.ranks[0].calls;
    assert_eq!((calls[0].bytes, calls[0].ranks, calls[0].duration_ns), (Some(1600), Some(8), Some(3000)));
    assert_eq!((calls[1].bytes, calls[1].kind), (None, Some(Kind::AllGather)));
}

#[test]
fn without_kernels_the_host_s_records_are_the_calls() {
    let text = r#"{"traceEvents":[
        {"cat":"cpu_op","name":"record_param_comms","ts":1,"dur":1,"args":{"Collective name":"allreduce","dtype":"Float","In msg nelems":4,"Out msg nelems":4}},
        {"cat":"cpu_op","name":"record_param_comms","ts":2,"dur":1,"args":{"Collective name":"wait","dtype":"Float","In msg nelems":4}}]}"#;
    let job = read("rank0.json", text).unwrap();
    let [call] = &job.ranks[0].calls[..] else { panic!("one call") };
    assert_eq!((call.bytes, call.duration_ns), (Some(16), None));
    assert_eq!(job.notes.len(), 1);
}

#[test]
fn devices_of_one_process_are_ranks() {
    let text = r#"{"traceEvents":[
        {"cat":"Kernel","name":"ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)","pid":0,"ts":2,"dur":3,"args":{"device":0}},
        {"cat":"Kernel","name":"ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)","pid":1,"ts":2,"dur":3,"args":{"device":1}},
        {"cat":"gpu_memcpy","name":"Memcpy PtoP","pid":2,"ts":2,"dur":3,"args":{"device":2}},
        {"cat":"user_annotation","name":"DataParallel.forward","pid":9,"ts":0,"dur":9},
        {"cat":"user_annotation","name":"DistributedDataParallel.forward","pid":9,"ts":0,"dur":9},
        {"cat":"gpu_user_annotation","name":"ProfilerStep#1","pid":9,"ts":0,"dur":9},
        {"cat":"user_annotation","name":"ProfilerStep#1","pid":9,"ts":0,"dur":9}]}"#;
    let job = read("x.json", text).unwrap();
    let names: Vec<&str> = job.ranks.iter().map(|rank| rank.name.as_str()).collect();
    assert_eq!(names, ["GPU 0", "GPU 1"]);
    assert_eq!(job.ranks[0].steps_ns, [9000]);
    assert_eq!(job.data_parallel, Some(BTreeMap::from([("DataParallel.forward", 1)])));
}

#[test]
fn damaged_traces_are_refused_with_a_reason() {
    assert_eq!(read("x", "{}"), Err(JobError::NoEvents));
    for text in [
        "",
        "{",
        r#"{"traceEvents":[{"name":"a"}"#,
        r#"{"traceEvents":{}}"#,
        r#"{"traceEvents":[7]}"#,
        "[] x",
        "7",
    ] {
        let error = read("x", text).unwrap_err();
        assert!(matches!(error, JobError::Json(_)), "{text}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(read("x", &deep), Err(JobError::Json(_))));
}

#[test]
fn a_trace_above_the_limit_is_refused() {
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.fill(b' ');
            Ok(into.len())
        }
    }
    // A smaller limit than that of traces: 2 GiB take too long here.
    let error = stream::read_limited(Endless, 1 << 20, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error, JobError::TooLarge);
}

proptest! {
    #[test]
    fn no_text_panics(text in r#"[\[\]{}":,0-9a-z\\ -]{0,80}"#) {
        let _ = read("x", &text);
        let _ = read("x", &format!(r#"{{"traceEvents":[{text}]}}"#));
    }

    #[test]
    fn no_values_panic(
        cat in prop::sample::select(vec!["kernel", "cpu_op", "gpu_memcpy"]),
        name in prop::sample::select(vec!["ncclDevKernel_AllReduce", "record_param_comms", "gemm"]),
        numbers in prop::collection::vec(any::<f64>().prop_filter("JSON has none", |number| number.is_finite()), 4),
        integers in prop::collection::vec(any::<i64>(), 4),
    ) {
        let text = format!(
            r#"{{"baseTimeNanoseconds":{},"traceEvents":[{{"cat":"{cat}","name":"{name}","pid":{},"ts":{},"dur":{},
            "args":{{"In msg nelems":{},"dtype":"Double","Collective name":"allreduce","Group size":{},"External id":{}}}}}]}}"#,
            integers[0], integers[1], numbers[0], numbers[1], numbers[2], integers[2], integers[3]
        );
        let job = read("x", &text).unwrap();
        let _ = crate::job::explain(&job, None);
    }
}
