//! Failures, cancellations and aborts of calls in the background: they reach all ranks, and errors name the rank and the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a call is made by address, on the caller's own thread")]

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{
    Background, Blame, Communicator, DataType, Error, Handle, Operation, Options, RawBuffers, Reduction,
    Request, while_waiting,
};
use weftlink_plan::Collective;
use weftlink_testkit::ports::Port;
use weftlink_testkit::processes::this_program;

/// A communicator's deadline that no test waits for: what ends before ended for another reason.
const LONG: Duration = Duration::from_secs(250);

fn options() -> Options {
    Options { deadline: LONG, single_copy: Some(false), ..Options::default() }
}

fn on_ranks<T: Send>(size: usize, work: impl Fn(Background) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::threads(size, options()).unwrap();
    std::thread::scope(|scope| {
        let run = |comm: Communicator| work(comm.into_background().unwrap());
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn start(background: &Background) -> Handle<Vec<f32>> {
    background.all_reduce(vec![1.0; 50], Reduction::Sum)
}

/// Whether ranks have made a call before, so that they wait in the next one for each other and not for memory.
const WARM: [bool; 2] = [false, true];

fn warm_up(background: &Background, warm: bool) {
    if warm {
        start(background).wait().unwrap();
    }
}

#[test]
fn a_timeout_names_the_missing_rank() {
    for warm in WARM {
        let gate = Barrier::new(2);
        on_ranks(2, |background| {
            warm_up(&background, warm);
            if background.rank() == 1 {
                gate.wait();
                // Late, and informed of it.
                return drop(start(&background).wait().unwrap_err());
            }
            let request = Request::new(Collective::AllReduce, vec![1.0; 50]).operation(Reduction::Sum);
            let error = background.start(request.deadline(Duration::from_millis(30))).wait().unwrap_err();
            assert!(error.to_string().contains("rank 1"), "{error}");
            assert!(!warm || matches!(error, Error::Deadline { .. }), "{error}");
            let later = start(&background).wait().unwrap_err();
            assert!(matches!(&later, Error::Failed { why, .. } if *why == error.to_string()), "{later}");
            gate.wait();
        });
    }
}

/// Makes a call with a deadline, then one for which rank 0 waits longer than that: what becomes of the second, or nothing if the
/// machine was too busy for the first.
type Way = fn(Communicator, Duration) -> Option<Result<(), Error>>;

fn in_the_background(comm: Communicator, deadline: Duration) -> Option<Result<(), Error>> {
    let request = || Request::new(Collective::AllReduce, vec![1.0]).operation(Reduction::Sum);
    let background = comm.into_background().unwrap();
    warm_up(&background, true);
    background.start(request().deadline(deadline)).wait().ok()?;
    if background.rank() == 1 {
        std::thread::sleep(2 * deadline);
    }
    Some(background.start(request()).wait().map(drop))
}

fn while_the_caller_waits(mut comm: Communicator, deadline: Duration) -> Option<Result<(), Error>> {
    let sum = |comm: &mut Communicator, deadline: Option<Duration>| {
        let mut values = [1.0];
        let request = Request::new(&Collective::AllReduce, &mut values[..]).operation(Reduction::Sum);
        comm.run(Request { deadline, ..request })
    };
    sum(&mut comm, None).unwrap();
    sum(&mut comm, Some(deadline)).ok()?;
    if comm.rank() == 1 {
        std::thread::sleep(2 * deadline);
    }
    Some(sum(&mut comm, None))
}

#[test]
fn call_deadlines_apply_to_one_call() {
    for way in [in_the_background as Way, while_the_caller_waits] {
        let try_with = |deadline: Duration| -> Option<()> {
            let ranks = Communicator::threads(2, options()).unwrap();
            let made: Vec<_> = std::thread::scope(|scope| {
                let start = |comm| scope.spawn(move || way(comm, deadline));
                let threads: Vec<_> = ranks.into_iter().map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let second: Option<Vec<_>> = made.into_iter().collect();
            second?.into_iter().for_each(|made| made.unwrap());
            Some(())
        };
        let tried = [200, 2_000, 20_000].map(Duration::from_millis).into_iter().find_map(try_with);
        assert!(tried.is_some(), "two threads did not finish a call within 20 s");
    }
}

#[test]
fn all_ranks_learn_which_rank_cancelled() {
    for warm in WARM {
        let gate = Barrier::new(3);
        on_ranks(3, |background| {
            warm_up(&background, warm);
            let number = if warm { 2 } else { 1 };
            let wanted = format!(" cancelled: rank 2 cancelled all-reduce #{number} (");
            // Rank 1 does not make the call, so the others wait for it.
            if background.rank() == 1 {
                gate.wait();
            }
            let (first, second) = (start(&background), start(&background));
            if background.rank() == 2 {
                assert!(first.cancel());
            }
            let error = first.wait().unwrap_err();
            assert!(matches!(error, Error::Cancelled { by: Blame { rank: 2, .. }, .. }), "{error}");
            assert!(error.to_string().contains(&wanted), "{error}");
            let error = second.wait().unwrap_err().to_string();
            assert!(error.contains(&wanted), "{error}");
            let error = start(&background).wait().unwrap_err().to_string();
            assert!(
                error.starts_with("this communicator failed before: ") && error.contains(&wanted),
                "{error}"
            );
            if background.rank() != 1 {
                gate.wait();
            }
        });
    }
}

#[test]
fn queued_calls_can_be_cancelled() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        warm_up(&background, true);
        if background.rank() == 1 {
            gate.wait();
            let error = start(&background).wait().unwrap_err().to_string();
            assert!(error.contains(" cancelled: rank 0 cancelled all-reduce #3"), "{error}");
            return;
        }
        let (running, queued) = (start(&background), start(&background));
        assert!(queued.cancel());
        let errors = [running, queued].map(|handle| handle.wait().unwrap_err().to_string());
        assert!(errors.iter().all(|error| error.contains("rank 0 cancelled all-reduce #3")), "{errors:?}");
        gate.wait();
    });
}

#[test]
fn an_abort_ends_running_and_later_calls() {
    let reason = "the loss is not a number, and more than fits into a line";
    for (warm, idle) in [(false, false), (true, false), (false, true), (true, true)] {
        let gate = Barrier::new(2);
        on_ranks(2, |background| {
            warm_up(&background, warm);
            if background.rank() == 1 {
                let running = (!idle).then(|| start(&background));
                // From a thread that has nothing to do with it.
                std::thread::scope(|scope| drop(scope.spawn(|| background.abort(reason))));
                if let Some(running) = running {
                    let error = running.wait().unwrap_err().to_string();
                    assert!(
                        error.contains(" cancelled: rank 1 aborted: the loss is not a number"),
                        "{error}"
                    );
                }
                gate.wait();
                return;
            }
            gate.wait();
            let error = start(&background).wait().unwrap_err();
            assert!(matches!(error, Error::Cancelled { by: Blame { rank: 1, .. }, .. }), "{error}");
            assert!(
                error.to_string().contains(" cancelled: rank 1 aborted: the loss is not a number"),
                "{error}"
            );
        });
    }
}

/// One of two ranks that join as processes do. Rank 0 waits in a call, and its poll hook aborts the communicator; rank 1 makes the call
/// afterwards.
fn abort_while_waiting(met: Bootstrap, warm: bool, aborted: (Sender<()>, &mut Receiver<()>)) -> String {
    let background = Communicator::new(met, options()).unwrap().into_background().unwrap();
    warm_up(&background, warm);
    if background.rank() == 1 {
        aborted.1.recv_timeout(LONG).unwrap();
        return start(&background).wait().unwrap_err().to_string();
    }
    let mut words = [1_u32; 50];
    let at = words.as_mut_ptr().cast::<u8>();
    let buffers =
        RawBuffers { data_type: DataType::U32, input: at, input_length: 50, output: at, output_length: 50 };
    let request = Request::new(Collective::AllReduce, buffers).operation(Reduction::Sum);
    let ender = background.clone();
    let work = move || {
        ender.abort("enough");
        // Once is enough for the other rank.
        let _ = aborted.0.send(());
    };
    let until = Instant::now() + LONG;
    let make = || {
        let mut request = request;
        loop {
            // SAFETY: it has returned before anything else touches the words.
            match unsafe { background.run_raw(request) } {
                Ok(made) => return made,
                // The worker has not released the communicator yet.
                Err(back) => request = *back,
            }
            assert!(Instant::now() < until, "the worker keeps the communicator");
            std::thread::yield_now();
        }
    };
    while_waiting(work, make).unwrap_err().to_string()
}

#[test]
fn a_poll_hook_may_abort_its_call() {
    for warm in WARM {
        let place = RendezvousAddress::Abstract(format!("weft-abort-{warm}-{}", std::process::id()));
        let meeting = Rendezvous::new(place, Token::new("background").unwrap(), 2, Duration::from_secs(60));
        let (sender, mut receiver) = channel();
        let (unused, mut never) = (sender.clone(), channel().1);
        let (sender, errors) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                abort_while_waiting(Bootstrap::join(&meeting, 1).unwrap(), warm, (unused, &mut receiver))
            });
            let met = Bootstrap::listen(&meeting).unwrap();
            let own = abort_while_waiting(met, warm, (sender.clone(), &mut never));
            (sender, [own, other.join().unwrap()])
        });
        drop(sender);
        for error in errors {
            assert!(error.contains("rank 0") && error.contains("enough"), "{error}");
        }
    }
}

#[test]
fn zero_timeouts_do_not_wait() {
    // Every wait ends at once, with or without a stall warning.
    for warn_after in [Duration::ZERO, LONG] {
        let ranks = Communicator::threads(2, Options { warn_after, ..options() }).unwrap();
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(|| {
                    let background = comm.into_background().unwrap();
                    if background.rank() == 0 {
                        let call = Request::new(Collective::Barrier, ()).deadline(Duration::ZERO);
                        let handle = background.start(call);
                        let handle = match handle.wait_timeout(Duration::ZERO) {
                            Ok(result) => result.map(|_| ()),
                            Err(handle) => handle.wait().map(|_| ()),
                        };
                        let error = handle.unwrap_err().to_string();
                        assert!(error.contains("rank 1"), "{error}");
                    }
                    both.wait();
                });
            }
        });
    }
    let meets = Communicator::threads(2, Options { deadline: Duration::ZERO, ..options() });
    assert!(meets.is_err_and(|error| !error.to_string().is_empty()));
}

#[test]
fn blocking_calls_see_aborts() {
    let ranks = Communicator::threads(2, options()).unwrap();
    let [mut one, two] = <[Communicator; 2]>::try_from(ranks).unwrap();
    let two = two.into_background().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || one.all_reduce(&mut [1.0], Reduction::Sum).unwrap_err());
        two.abort("enough");
        let error = waiting.join().unwrap().to_string();
        assert!(error.contains(" cancelled: rank 1 aborted: enough ("), "{error}");
    });
}

#[test]
fn a_panic_in_an_operation_aborts_all_ranks() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        let panics = background.rank() == 1;
        let operation = Operation::user_defined(true, move |a: f32, b: f32| {
            assert!(!panics, "my operation cannot add {a} and {b}");
            a + b
        });
        let ended = background.all_reduce(vec![1.0_f32, 2.0], operation).join();
        assert_eq!(ended.buffers.unwrap().len(), 2);
        if panics {
            let error = ended.result.unwrap_err();
            assert!(matches!(error, Error::Panicked { rank: 1, .. }), "{error}");
            assert!(error.to_string().contains("my operation cannot add"), "{error}");
        } else if let Err(error) = ended.result {
            // Where ranks have all that they need of each other by then, it went well here.
            assert!(matches!(error, Error::Aborted { by: 1, reason: "it panicked", .. }), "{error}");
        }
        gate.wait();
        let later = start(&background).wait().unwrap_err().to_string();
        assert!(later.contains("panicked"), "{later}");
        gate.wait();
        assert!(background.close().unwrap().into_background().is_err());
    });
}

#[test]
fn a_panic_before_the_call_aborts_all_ranks() {
    on_ranks(2, |background| {
        warm_up(&background, true);
        let panics = background.rank() == 1;
        let done = background.with(move |comm| {
            assert!(!panics, "before the call");
            comm.barrier()
        });
        let error = done.unwrap_err().to_string();
        assert!(error.contains("rank 1") && error.contains("panicked"), "{error}");
    });
}

#[test]
fn calls_of_a_worker_that_panicked_are_refused() {
    /// A panic payload whose drop panics.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("while a panic is dropped");
        }
    }
    on_ranks(2, |background| {
        warm_up(&background, true);
        if background.rank() == 0 {
            let error = background.with(Communicator::barrier).unwrap_err().to_string();
            assert!(error.contains("rank 1"), "{error}");
            return;
        }
        let (begin, begun) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel();
        let clone = background.clone();
        let other = std::thread::spawn(move || {
            clone.with(move |_| -> Result<(), Error> {
                begin.send(()).unwrap();
                gone.recv().unwrap();
                std::panic::panic_any(Bomb)
            })
        });
        begun.recv().unwrap();
        let queued: Vec<_> = (0..5).map(|_| background.barrier()).collect();
        go.send(()).unwrap();
        let error = other.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("its worker is gone"), "{error}");
        for handle in queued {
            let error = handle.wait().unwrap_err().to_string();
            assert!(error.contains("its worker is gone"), "{error}");
        }
        let error = start(&background).wait().unwrap_err().to_string();
        assert!(error.contains("its worker is gone"), "{error}");
        background.abort("after the peer has left");
        assert!(background.close().unwrap_err().to_string().contains("worker is gone"));
    });
}

#[test]
fn a_rank_that_leaves_is_named() {
    on_ranks(3, |background| {
        warm_up(&background, true);
        if background.rank() == 1 {
            return;
        }
        let error = start(&background).wait().unwrap_err();
        assert!(
            matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. } | Error::Aborted { .. }),
            "{error}"
        );
    });
}

const ROLE: &str = "WEFT_TEST_RANK";

#[test]
fn reasons_reach_other_hosts_after_their_rank_left() {
    let port = Port::reserve();
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port.number..=port.number };
    let meeting = Rendezvous::new(place, Token::new("reasons").unwrap(), 2, Duration::from_secs(60));
    let gate = Barrier::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (gate, network) = (&gate, Network { pretended_host: Some(rank), ..Network::default() });
            let meeting = Rendezvous { network, ..meeting.clone() };
            scope.spawn(move || {
                let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, 1) };
                let background =
                    Communicator::new(met.unwrap(), options()).unwrap().into_background().unwrap();
                warm_up(&background, true);
                if rank == 1 {
                    background.abort("the loss is not a number");
                    drop(background.close());
                    gate.wait();
                    return;
                }
                gate.wait();
                // Usually long enough to learn that the other rank has left; the reason must be there in both cases.
                std::thread::sleep(Duration::from_millis(300));
                let error = start(&background).wait().unwrap_err().to_string();
                assert!(error.contains(" cancelled: rank 1 aborted: the loss is not a number"), "{error}");
            });
        }
    });
}

/// The work of each of three processes, by the test that started it.
fn process(test: &str, rank: usize) {
    let place = RendezvousAddress::Abstract(format!("weft-{test}-{}", std::os::unix::process::parent_id()));
    let meeting = Rendezvous::new(place, Token::new("background").unwrap(), 3, Duration::from_secs(60));
    for warm in WARM {
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let background = Communicator::new(met.unwrap(), options()).unwrap().into_background().unwrap();
        warm_up(&background, warm);
        // Rank 1 has nothing to cancel, and makes its call after the others have ended.
        if rank == 1 {
            let file = std::env::var("WEFT_TEST_FILE").unwrap();
            let began = std::time::Instant::now();
            while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&format!("{warm}"))) {
                assert!(began.elapsed() < Duration::from_secs(60), "rank 0 did not end");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let handle = start(&background);
        if rank == 2 {
            assert!(handle.cancel());
        }
        let error = handle.wait().unwrap_err().to_string();
        assert!(error.contains(" cancelled: rank 2 cancelled all-reduce #"), "{error}");
        if rank == 0 {
            let file = std::env::var("WEFT_TEST_FILE").unwrap();
            let before = std::fs::read_to_string(&file).unwrap_or_default();
            std::fs::write(&file, format!("{before}{warm}\n")).unwrap();
        }
    }
}

#[test]
fn processes_learn_which_rank_cancelled() {
    const TEST: &str = "processes_learn_which_rank_cancelled";
    if let Ok(rank) = std::env::var(ROLE) {
        return process(TEST, rank.parse().unwrap());
    }
    let file = std::env::temp_dir().join(format!("weft-test-{}.txt", std::process::id()));
    let start = |rank: usize| {
        let mut command = this_program();
        command.args(["--exact", TEST, "--nocapture"]);
        command.env(ROLE, rank.to_string()).env("WEFT_TEST_FILE", &file).spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(start).collect();
    let ends: Vec<_> = children.into_iter().map(|mut child| child.wait().unwrap()).collect();
    let _ = std::fs::remove_file(&file);
    assert!(ends.iter().all(|end| end.success()), "{ends:?}");
}
