//! Communicators on a stand-in for the driver that runs no kernels: what a rank does beside captures, without memory, or when it cannot run a
//! call. Each test runs itself again as a process that loads the stand-ins.

#![allow(unsafe_code, reason = "calls the stand-in for the driver, and calls that take addresses")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Algorithm, Collective, DataType, Reduction, verify};
use weftlink_testkit::processes::this_program;

use crate::driver::Stream;
use crate::lost_tests::{build, build_driver};
use crate::{AddressedRank, Collectives, Communicator, Error, Memory, Message, devices};

const FOLDER: &str = "WEFT_TEST_FOLDER";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Well below the timeout, on a slow machine too.
const PROMPTLY: Duration = Duration::from_secs(20);

/// As in `lost_tests/driver.cc`.
#[derive(Clone, Copy)]
enum Setting {
    Capturing,
    Busy,
    Blocks,
    Full,
}

#[derive(Clone, Copy)]
enum Count {
    Invalidated,
    Launched,
}

fn set(setting: Setting, value: i32) {
    // SAFETY: the stand-in has this function of this type, and stays loaded.
    unsafe {
        let driver = Library::new("libcuda.so.1").unwrap();
        driver.get::<unsafe extern "C" fn(i32, i32)>("stand_in_set").unwrap()(setting as i32, value);
        let _ = driver.into_raw();
    }
}

fn count(count: Count) -> i32 {
    // SAFETY: as above.
    unsafe {
        let driver = Library::new("libcuda.so.1").unwrap();
        let number = driver.get::<unsafe extern "C" fn(i32) -> i32>("stand_in_count").unwrap()(count as i32);
        let _ = driver.into_raw();
        number
    }
}

/// Runs a test in a process with the stand-ins.
fn with_stand_ins(test: &str, run: fn()) {
    if let Ok(folder) = std::env::var(FOLDER) {
        // SAFETY: the stand-in does nothing when it is loaded.
        let _ = unsafe { Library::new(Path::new(&folder).join("libnvrtc.so.13")) }.unwrap().into_raw();
        return run();
    }
    let folder = std::env::temp_dir().join(format!("weft-test-stand-in-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    build_driver(&folder);
    build("nvrtc.cc", &folder.join("libnvrtc.so.13"));
    let mut program = this_program();
    program.args(["--exact", &format!("stand_in_tests::{test}"), "--nocapture"]);
    program.env("LD_LIBRARY_PATH", &folder).env(FOLDER, &folder).env("WEFT_CACHE", folder.join("cache"));
    let status = program.status().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(status.success(), "{status}");
}

/// Runs work on threads with a rank each, which share the context.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |group| scope.spawn(move || work(group));
        let threads: Vec<_> = Bootstrap::threads(ranks).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn join(group: Bootstrap) -> Collectives {
    Collectives::new(group, &devices().unwrap()[0], TIMEOUT).unwrap()
}

/// Enqueues a small all-reduce.
fn call(collectives: &mut Collectives, stream: &Stream) -> Result<(), Error> {
    // SAFETY: no kernel runs.
    unsafe { collectives.call(&Collective::AllReduce, stream, [4096; 2], 8, DataType::F32, Reduction::Sum) }
}

#[test]
fn a_communicator_is_dropped_beside_a_capture() {
    with_stand_ins("a_communicator_is_dropped_beside_a_capture", || {
        let mut alone = join(Bootstrap::alone());
        let stream = Stream::new(alone.context()).unwrap();
        call(&mut alone, &stream).unwrap();
        assert_eq!(count(Count::Launched), 1);
        set(Setting::Capturing, 1);
        drop(alone);
        assert_eq!(count(Count::Invalidated), 0);
        set(Setting::Capturing, 0);
        // Where ranks share the context, the first to leave cannot wait for it. That is no failure of the others' calls.
        let all_joined = Barrier::new(2);
        let failures = on_ranks(2, |group| {
            let rank = group.rank();
            let collectives = join(group);
            all_joined.wait();
            if rank == 0 {
                set(Setting::Capturing, 1);
                drop(collectives);
                set(Setting::Capturing, 0);
                all_joined.wait();
                return None;
            }
            all_joined.wait();
            collectives.failure()
        });
        assert_eq!(failures, [None, None]);
    });
}

/// Another thread captures in global mode, in which allocations of threads that have not relaxed theirs end the capture.
#[test]
fn plans_are_loaded_into_host_memory_beside_a_capture() {
    with_stand_ins("plans_are_loaded_into_host_memory_beside_a_capture", || {
        let gpu = devices().unwrap().remove(0);
        set(Setting::Capturing, 1);
        let mut alone = Communicator::with_memory(Bootstrap::alone(), &gpu, Memory::Host, TIMEOUT).unwrap();
        assert!(!alone.accesses_buffers());
        let plan = Algorithm::Exchange.flat(&Collective::AllReduce, 1, 1).unwrap();
        alone.load(verify(plan).unwrap()).unwrap();
        drop(alone);
        assert_eq!(count(Count::Invalidated), 0);
    });
}

/// The root of a plan may need more than the others.
#[test]
fn a_rank_that_cannot_run_a_call_ends_those_of_the_others() {
    with_stand_ins("a_rank_that_cannot_run_a_call_ends_those_of_the_others", || {
        let errors = on_ranks(2, |group| {
            let is_first = group.rank() == 0;
            let mut collectives = join(group);
            let stream = Stream::new(collectives.context()).unwrap();
            collectives.plan_of(&Collective::AllReduce, 8, DataType::F32).unwrap();
            if !is_first {
                set(Setting::Blocks, 0);
            }
            // Both load their kernels together.
            let refused = call(&mut collectives, &stream).unwrap_err().to_string();
            [refused, collectives.check().unwrap_err().to_string()]
        });
        for error in errors.into_iter().flatten() {
            assert!(error.contains("rank 1 cannot run "), "{error}");
            assert!(error.contains("it needs 1 blocks on each rank, and the GPU runs 0 at once"), "{error}");
        }
    });
}

/// The others get the reason at once, and all can try again.
#[test]
fn ranks_hear_that_another_has_no_memory() {
    with_stand_ins("ranks_hear_that_another_has_no_memory", || {
        on_ranks(3, |group| {
            let rank = group.rank();
            let mut collectives = join(group);
            set(Setting::Full, i32::from(rank == 1));
            let begin = Instant::now();
            let window = collectives.communicator().window(1 << 20).unwrap_err().to_string();
            let plan = collectives.plan_of(&Collective::AllReduce, 8, DataType::F32).unwrap_err().to_string();
            for (error, what) in [(window, "windows"), (plan, "arenas")] {
                let said =
                    if rank == 1 { String::new() } else { format!("rank 1 could not set up {what}: ") };
                assert!(error.starts_with(&format!("{said}cannot allocate ")), "{error}");
                assert!(error.contains("Free memory of the GPU"), "{error}");
            }
            assert!(begin.elapsed() < PROMPTLY, "{:?}", begin.elapsed());
            set(Setting::Full, 0);
            collectives.communicator().window(1 << 10).unwrap();
            collectives.plan_of(&Collective::AllReduce, 8, DataType::F32).unwrap();
        });
    });
}

/// A rank that has failed loads nothing, and those that do hear why.
#[test]
fn ranks_that_load_hear_that_another_has_failed() {
    with_stand_ins("ranks_that_load_hear_that_another_has_failed", || {
        on_ranks(2, |group| {
            let rank = group.rank();
            let mut collectives = join(group);
            if rank == 1 {
                // The other rank waits by now, or fails by itself.
                std::thread::sleep(Duration::from_millis(200));
                collectives.abort();
            }
            let begin = Instant::now();
            let error = collectives.plan_of(&Collective::AllReduce, 8, DataType::F32).unwrap_err();
            assert!(error.to_string().contains("rank 1 aborted the calls"), "{error}");
            assert!(begin.elapsed() < PROMPTLY, "{:?}", begin.elapsed());
        });
    });
}

/// Without a GPU, messages are enqueued and never run.
#[test]
fn messages_are_enqueued_and_wrong_ones_refused() {
    with_stand_ins("messages_are_enqueued_and_wrong_ones_refused", || {
        let all_enabled = Barrier::new(2);
        let ranks = on_ranks(2, |group| {
            let mut rank = AddressedRank::new(group, 0, TIMEOUT).unwrap();
            let stream = Stream::new(rank.collectives().context()).unwrap();
            let own = rank.collectives().rank();
            // The stand-in copies.
            let mut memory = [0_u64; 2];
            let address = memory.as_mut_ptr().addr() as u64;
            let message = |peer, bytes| Message { peer, address, bytes };
            // SAFETY: no kernel runs.
            let exchange = |rank: &mut AddressedRank, sends: &[Message], receives: &[Message]| unsafe {
                rank.exchange(stream.raw().addr() as u64, sends, receives)
            };
            let early = exchange(&mut rank, &[], &[]).unwrap_err().to_string();
            assert!(early.contains("all ranks call `enable_messages` first"), "{early}");
            rank.enable_messages().unwrap();
            rank.enable_messages().unwrap();
            all_enabled.wait();
            let refused = exchange(&mut rank, &[message(2, 8)], &[]).unwrap_err();
            assert!(matches!(refused, Error::Misuse { .. }), "{refused}");
            // Not for all, and misuse does not end the communicator.
            exchange(&mut rank, &[], &[]).unwrap();
            exchange(&mut rank, &[message(own, 8)], &[Message { address: address + 8, ..message(own, 8) }])
                .unwrap();
            all_enabled.wait();
            assert_eq!(count(Count::Launched), 0, "a kernel is for other ranks");
            all_enabled.wait();
            exchange(&mut rank, &[message(1 - own, 8)], &[message(1 - own, 100)]).unwrap();
            all_enabled.wait();
            assert_eq!(count(Count::Launched), 2);
            all_enabled.wait();
            // With a long table, in three parts.
            exchange(&mut rank, &vec![message(1 - own, 8); 600], &[]).unwrap();
            all_enabled.wait();
            assert_eq!(count(Count::Launched), 2 + 2 * 4);
            (rank, stream)
        });
        assert!(ranks.iter().all(|(rank, _)| rank.collectives().failure().is_none()));
    });
}

/// The stand-in copies, and runs no kernel: bytes arrive, and signals and waits are launched.
#[test]
fn puts_reach_shared_buffers() {
    with_stand_ins("puts_reach_shared_buffers", || {
        let all_are_here = Barrier::new(2);
        on_ranks(2, |group| {
            let mut rank = AddressedRank::new(group, 0, TIMEOUT).unwrap();
            let stream = Stream::new(rank.collectives().context()).unwrap().raw().addr() as u64;
            let mut window = vec![0_u64; 4];
            let own = window.as_mut_ptr().addr() as u64;
            let numbers = [7_u64, 8];
            let source = numbers.as_ptr().addr() as u64;
            // SAFETY: no kernel runs, and the copy is within the window.
            let put = |rank: &mut AddressedRank| unsafe {
                rank.put_signal(stream, 1 - rank.collectives().rank(), Some([own + 8, source, 16]))
            };
            assert!(
                put(&mut rank).unwrap_err().to_string().contains("all ranks call `enable_messages` first")
            );
            let before = rank.device_bytes();
            rank.enable_messages().unwrap();
            assert!(rank.device_bytes() > before);
            let shared = rank.collectives_mut().communicator().share_buffer(own, 32).unwrap();
            assert_eq!(shared, [own; 2]);
            put(&mut rank).unwrap();
            assert_eq!(window, [0, 7, 8, 0]);
            // SAFETY: no kernel runs.
            unsafe { rank.wait_signals(stream, 0, 1000) }.unwrap();
            rank.collectives_mut().communicator().unshare_buffer(own, 32);
            all_are_here.wait();
            assert_eq!(count(Count::Launched), 4);
            all_are_here.wait();
        });
        let mut alone =
            Collectives::with_memory(Bootstrap::alone(), &devices().unwrap()[0], Memory::Host, TIMEOUT)
                .unwrap();
        let refused = alone.communicator().share_buffer(4096, 8).unwrap_err();
        assert!(refused.to_string().contains("do not access each other's memory"), "{refused}");
    });
}

/// Signals that are enqueued are sent before the rank leaves.
#[test]
fn leaving_waits_for_signals() {
    with_stand_ins("leaving_waits_for_signals", || {
        let mut alone = join(Bootstrap::alone());
        let stream = Stream::new(alone.context()).unwrap();
        let window = alone.communicator().window(64).unwrap();
        set(Setting::Busy, 1);
        // SAFETY: no kernel runs.
        (0..2).for_each(|_| unsafe { alone.communicator().signal(&window, &stream, 0).unwrap() });
        assert_eq!(count(Count::Launched), 2);
        let (left, has_left) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| left.send(alone.leave()).unwrap());
            assert!(has_left.recv_timeout(Duration::from_millis(200)).is_err(), "the stream is busy");
            set(Setting::Busy, 0);
            has_left.recv_timeout(PROMPTLY).unwrap().unwrap();
        });
    });
}
