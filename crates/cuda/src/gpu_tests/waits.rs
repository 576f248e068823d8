//! Kernels that wait on a GPU, as `weft why --attach` sees them from another process: the test runs itself again as that process.

use std::process::{Child, Stdio};

use weftlink_plan::{Algorithm, DataType};
use weftlink_recorder::attach::attach;
use weftlink_recorder::recorder::Record;
use weftlink_recorder::why::explain;
use weftlink_testkit::processes::this_program;

use super::*;

const ROLE: &str = "WEFT_TEST_ROLE";
/// The calls of the process fail after this, so that it ends if nothing kills it.
const CALL_TIMEOUT: Duration = Duration::from_secs(100);

/// Two ranks on one GPU, as threads. They make a call together; then rank 0 makes two more.
fn hang() {
    let mut ranks = Ranks::new(2, Memory::Device);
    let plan = verify(Algorithm::TwoShot.flat(&Collective::AllReduce, 2, 1).unwrap()).unwrap();
    let plans = ranks.load("all-reduce".to_owned(), &plan);
    let context = ranks.comms[0].context().clone();
    let count = 1 << 18;
    let bytes = count * size_of::<f32>();
    let buffers: Vec<_> =
        (0..2).map(|_| [0; 2].map(|_| DeviceMemory::new(&context, bytes).unwrap())).collect();
    let all = ranks.comms.iter_mut().zip(&plans).zip(&buffers).collect();
    together(all, |((comm, &plan), buffers)| {
        let addresses = buffers.each_ref().map(DeviceBuffer::address);
        comm.prepare_call(plan, addresses, count, DataType::F32, Reduction::Sum).unwrap();
    });
    let mut run = |rank: usize| {
        let addresses = buffers[rank].each_ref().map(DeviceBuffer::address);
        let (comm, stream) = (&mut ranks.comms[rank], &ranks.streams[rank]);
        comm.set_call_timeout(CALL_TIMEOUT);
        // SAFETY: the buffers live until the streams are idle.
        unsafe { comm.run(plans[rank], stream, addresses, count, DataType::F32, Reduction::Sum).unwrap() };
    };
    for rank in [0, 1, 0, 0] {
        run(rank);
    }
    // Waits until the call has failed.
    ranks.streams[0].synchronize().unwrap();
}

/// A process that is killed with the test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn a_kernel_that_waits_is_explained_from_another_process() {
    if std::env::var(ROLE).is_ok() {
        return hang();
    }
    let mut program = this_program();
    program.args(["--exact", "gpu_tests::waits::a_kernel_that_waits_is_explained_from_another_process"]);
    program.args(["--ignored", "--nocapture"]).env(ROLE, "ranks").stdout(Stdio::null());
    let mut child = Started(program.spawn().unwrap());
    let has_waited = |record: &Record| {
        let waiting = record.waiting.as_ref().filter(|waiting| waiting.blocks.is_some());
        waiting.is_some_and(|waiting| record.taken_ns.unwrap() - waiting.since_ns > 2_000_000_000)
    };
    let mut records = Vec::new();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.0.try_wait().unwrap().is_none(), "the process has ended");
        records = attach(&child.0.id().to_string()).map_or(Vec::new(), |attached| attached.records);
        if records.iter().any(has_waited) {
            break;
        }
    }
    let why = explain(&records);
    let [job] = &why.jobs[..] else { panic!("{why:?}") };
    println!("{job:#?}");
    // The first call is the load.
    let call = "all-reduce of 262144 f32 (sum) out of place";
    let [behind, waits] = &job.sentences[..] else { panic!("{job:?}") };
    let start =
        format!("Rank 1 fell behind first: the last call that it has enqueued is #2, {call}, and it has");
    assert!(behind.starts_with(&start), "{behind}");
    assert!(behind.ends_with(&format!(", while rank 0 is in #3, {call}.")), "{behind}");
    assert!(
        waits.starts_with(&format!("Rank 0 waits for rank 1 to make the call in #3, {call}, for ")),
        "{waits}"
    );
    let waiting = records[0].waiting.as_ref().unwrap();
    assert_eq!((waiting.call, waiting.rank), (3, Some(1)));
    // The program has enqueued one call more.
    assert_eq!(records[0].last_number(), Some(4));
}
