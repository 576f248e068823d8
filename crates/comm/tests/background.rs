//! Calls in the background: they give the same results, return their buffers, and fail with an error on every rank, never a hang.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code)] // Calls by address are unsafe to make.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use weftlink_comm::{
    Background, Communicator, DataType, Error, Operation, Options, QUEUE_MAX, RawBuffers, ReadOnly,
    Reduction, Request, Window,
};
use weftlink_plan::Collective;

/// Long enough that only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on each rank, and returns the results.
fn on_ranks<T: Send>(size: usize, work: impl Fn(Background) -> T + Sync) -> Vec<T> {
    let options = Options { deadline: LONG, single_copy: Some(false), ..Options::default() };
    let ranks = Communicator::threads(size, options).unwrap();
    std::thread::scope(|scope| {
        let run = |comm: Communicator| work(comm.into_background().unwrap());
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sum(values: Vec<f32>) -> Request<'static, Vec<f32>> {
    Request::new(Collective::AllReduce, values).operation(Reduction::Sum)
}

#[test]
fn results_return_buffers_of_all_kinds() {
    on_ranks(3, |background| {
        let me = background.rank() as f32;
        let windows = background.with(|comm| Ok((comm.window::<f32>(40)?, comm.window::<f32>(40)?)));
        let (mut one, two): (Window<f32>, Window<f32>) = windows.unwrap();
        one.fill(me);
        // All are started before the first is waited for.
        let vector = background.start(sum(vec![me; 1000]));
        let pair = background.all_reduce((vec![me; 50], vec![0.0; 50]), Reduction::Sum);
        let boxed = background.all_reduce(vec![me; 9].into_boxed_slice(), Reduction::Maximum);
        let pair_of_windows = background.all_reduce((one, two), Reduction::Sum);
        let shared: Arc<[f32]> = vec![me; 5].into();
        let multiplied = Operation::premultiplied_sum(2.0_f32);
        let shared = background.all_reduce((shared, vec![0.0; 5]), multiplied);
        let root = if me == 1.0 { vec![7_u64; 33] } else { vec![0; 33] };
        let root = background.broadcast(root, 1);
        let barrier = background.barrier();
        let numbers = [vector.number(), pair.number(), boxed.number(), pair_of_windows.number()];
        assert_eq!(numbers, [2, 3, 4, 5], "the windows were the first");
        assert_eq!(vector.wait().unwrap(), [3.0; 1000]);
        let (input, output) = pair.wait().unwrap();
        assert_eq!((&input[..], &output[..]), (&[me; 50][..], &[3.0; 50][..]));
        assert_eq!(boxed.wait().unwrap()[..], [2.0; 9]);
        let (one, two) = pair_of_windows.wait().unwrap();
        assert_eq!((&one[..], &two[..]), (&[me; 40][..], &[3.0; 40][..]));
        assert_eq!(shared.wait().unwrap().1, [6.0; 5]);
        assert_eq!(root.wait().unwrap(), [7; 33]);
        barrier.wait().unwrap();
        // Blocks of different lengths, and a rank that only gives.
        let counts = if me == 0.0 { (vec![1], vec![1, 2, 3]) } else { (vec![me as usize + 1], vec![]) };
        let mine = vec![me as i32; me as usize + 1];
        let gather = Collective::Gather { root: 0 };
        if me == 0.0 {
            let request = Request::new(gather, (mine, vec![9; 6]));
            let got = background.start(request.counts(counts.0, counts.1));
            assert_eq!(got.wait().unwrap().1, [0, 1, 1, 2, 2, 2]);
        } else {
            let request = Request::new(gather, ReadOnly(mine));
            background.start(request.counts(counts.0, counts.1)).wait().unwrap();
        }
        let mut comm = background.close().unwrap();
        comm.barrier().unwrap();
    });
}

#[test]
fn calls_run_in_order_on_the_worker() {
    on_ranks(2, |background| {
        let (here, log) = (std::thread::current().id(), Arc::new(Mutex::new(Vec::new())));
        let handles: Vec<_> = (0..200)
            .map(|number: usize| {
                let log = Arc::clone(&log);
                let operation = Operation::user_defined(true, move |a: u32, b: u32| {
                    log.lock().unwrap().push((number, std::thread::current().id()));
                    a + b
                });
                background.all_reduce(vec![number as u32], operation)
            })
            .collect();
        for (number, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.wait().unwrap(), [2 * number as u32]);
        }
        let log = log.lock().unwrap();
        assert!(log.is_sorted_by_key(|(number, _)| *number) && log.len() >= 100, "{}", log.len());
        assert!(log.iter().all(|(_, thread)| *thread != here));
    });
}

#[test]
fn handles_can_be_dropped_and_polled_and_time_out() {
    let (first, later) = (Barrier::new(2), Barrier::new(2));
    on_ranks(2, |background| {
        if background.rank() == 1 {
            first.wait();
        }
        drop(background.start(sum(vec![1.0; 10])));
        let handle = background.start(sum(vec![1.0; 10]));
        let handle = if background.rank() == 0 {
            // The other rank has not even submitted it.
            let handle = handle.wait_timeout(Duration::from_millis(5)).unwrap_err();
            assert!(!handle.is_done());
            first.wait();
            handle
        } else {
            handle
        };
        assert_eq!(handle.wait_timeout(LONG).unwrap().unwrap(), [2.0; 10]);

        let (sender, receiver) = mpsc::channel();
        let (before, after) = (sender.clone(), sender);
        background.start(sum(vec![2.0])).on_done(move |ended| before.send(ended.buffers.unwrap()).unwrap());
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), [4.0]);
        let handle = background.start(sum(vec![3.0]));
        background.barrier().wait().unwrap();
        assert!(handle.is_done() && !handle.cancel(), "what is over cannot be cancelled");
        handle.on_done(move |ended| after.send(ended.into_result().unwrap()).unwrap());
        assert_eq!(receiver.try_recv().unwrap(), [6.0], "the call has ended, so the callback runs at once");
        later.wait();
    });
}

#[test]
fn callbacks_may_start_calls_but_not_wait_for_them() {
    on_ranks(2, |background| {
        let (sender, receiver) = mpsc::channel();
        let again = background.clone();
        background.start(sum(vec![1.0])).on_done(move |ended| {
            let next = again.start(sum(ended.into_result().unwrap()));
            let error = again.barrier().wait().unwrap_err().to_string();
            let scoped = again.scope(|scope| {
                scope.start(Request::new(&Collective::Barrier, weftlink_comm::Buffers::none())).wait()
            });
            sender.send((next, error, scoped.unwrap_err().to_string())).unwrap();
            panic!("a callback that panics harms nobody");
        });
        let (next, waited, scoped) = receiver.recv_timeout(LONG).unwrap();
        assert!(waited.contains("cannot wait for a call"), "{waited}");
        assert!(scoped.contains("cannot wait for a call"), "{scoped}");
        assert_eq!(next.wait().unwrap(), [4.0]);
        assert_eq!(background.start(sum(vec![5.0])).wait().unwrap(), [10.0]);
    });
}

#[test]
fn many_threads_and_many_communicators_run_side_by_side() {
    let groups: Vec<_> = (0..4).map(|_| Communicator::threads(2, Options::default()).unwrap()).collect();
    std::thread::scope(|scope| {
        for comm in groups.into_iter().flatten() {
            scope.spawn(move || {
                let background = comm.into_background().unwrap();
                let done = AtomicUsize::new(0);
                // Ranks agree on nothing but that all submit the same call so often.
                std::thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| {
                            for _ in 0..20 {
                                assert_eq!(background.start(sum(vec![1.5; 77])).wait().unwrap(), [3.0; 77]);
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                });
                assert_eq!(done.into_inner(), 60);
            });
        }
    });
}

#[test]
fn scopes_lend_buffers() {
    on_ranks(2, |background| {
        let me = background.rank() as f32;
        let (given, mut got, mut other) = (vec![me; 2000], vec![0.0; 2000], [me; 3]);
        let add = |a: f32, b: f32| a + b + 100.0;
        let meanwhile = background.scope(|scope| {
            let reduce = Request::new(&Collective::AllReduce, (&given, &mut got)).operation(Reduction::Sum);
            let first = scope.start(reduce);
            let own = Operation::user_defined(true, add);
            let request = Request::new(&Collective::AllReduce, &mut other).operation(own);
            // Only the scope waits for this one.
            scope.start(request.deadline(LONG));
            let (sum, number) = (given.iter().sum::<f32>(), first.number());
            match first.wait_timeout(LONG) {
                Ok(result) => result.unwrap(),
                Err(late) => panic!("{late:?}"),
            }
            (sum, number)
        });
        assert_eq!(meanwhile, (2000.0 * me, 1));
        assert_eq!((&got[..], other), (&[1.0; 2000][..], [101.0; 3]));
    });
}

#[test]
fn panicking_scopes_wait_for_their_calls() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        let mut values = vec![1.0_f32; 100_000];
        if background.rank() == 1 {
            gate.wait();
        }
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            background.scope(|scope| {
                scope.start(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum));
                if scope_rank(&background) == 0 {
                    gate.wait();
                }
                panic!("on purpose");
            })
        }));
        assert!(left.is_err());
        assert!(values.iter().all(|value| *value == 2.0), "it was left after the call was over");
    });
}

fn scope_rank(background: &Background) -> usize {
    background.rank()
}

#[test]
fn raw_calls_run_their_callback() {
    on_ranks(2, |background| {
        let (input, mut output) = (vec![1_u16, 2, 3], vec![0_u16; 3]);
        let (sender, receiver) = mpsc::channel();
        let start = |buffers, sender: &mpsc::Sender<Result<(), Error>>| {
            let request =
                Request::new(Collective::AllReduce, buffers).operation(Reduction::Sum).deadline(LONG);
            let request = Request { yields_core: true, ..request };
            let sender = sender.clone();
            // SAFETY: the vectors are not touched before the callback runs.
            unsafe { background.start_raw(request, move |result| sender.send(result).unwrap()) }
        };
        let (data_type, input_at, output_at) =
            (DataType::U16, input.as_ptr().cast(), output.as_mut_ptr().cast());
        let apart =
            RawBuffers { data_type, input: input_at, input_length: 3, output: output_at, output_length: 3 };
        let handle = start(apart, &sender);
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), Ok(()));
        assert!(handle.is_done() && handle.number() == 1 && !handle.cancel());
        assert_eq!(output, [2, 4, 6]);
        let output_at = output.as_mut_ptr().cast::<u8>();
        start(RawBuffers { input: output_at, output: output_at, ..apart }, &sender);
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), Ok(()));
        assert_eq!(output, [4, 8, 12]);
        for wrong in [
            RawBuffers { input: std::ptr::null(), ..apart },
            RawBuffers { input: output_at, output: output_at, input_length: 2, ..apart },
            RawBuffers { input_length: usize::MAX, ..apart },
        ] {
            start(wrong, &sender);
            let error = receiver.recv_timeout(LONG).unwrap().unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        }
        background.barrier().wait().unwrap();
    });
}

#[test]
fn mismatches_show_both_calls() {
    let errors = on_ranks(2, |background| {
        background.start(sum(vec![1.0; 10])).wait().unwrap();
        let length = 10 + background.rank();
        let [first, second] = [(), ()].map(|()| background.start(sum(vec![1.0; length])));
        let ended = first.join();
        assert_eq!(ended.buffers.unwrap().len(), length, "they come back after an error too");
        (ended.result.unwrap_err().to_string(), second.wait().unwrap_err().to_string())
    });
    for (first, second) in errors {
        assert!(first.contains("of 10 f32") && first.contains("of 11 f32"), "{first}");
        assert!(
            second.starts_with("this communicator failed before: ") && second.contains(&first),
            "{second}"
        );
    }
}

#[test]
fn misuse_harms_no_other_call() {
    on_ranks(2, |background| {
        let error = background.start(Request::new(Collective::AllReduce, vec![1.0])).wait().unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
        assert_eq!(background.start(sum(vec![1.0])).wait().unwrap(), [2.0]);
    });
}

#[test]
fn a_full_queue_is_an_error() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        const CALLS: usize = QUEUE_MAX + 2;
        background.barrier().wait().unwrap();
        if background.rank() == 1 {
            gate.wait();
            // The other rank waits for the calls that it has started, so this rank makes as many.
            background.with(|comm| (0..QUEUE_MAX).try_for_each(|_| comm.barrier())).unwrap();
            gate.wait();
            return;
        }
        let handles: Vec<_> = (0..CALLS).map(|_| background.barrier()).collect();
        let (taken, refused): (Vec<_>, Vec<_>) = handles.into_iter().partition(|handle| handle.number() > 0);
        // The worker may have one in hand.
        assert!((QUEUE_MAX..CALLS).contains(&taken.len()), "{}", taken.len());
        for handle in refused {
            let error = handle.wait().unwrap_err();
            assert_eq!(error, Error::QueueFull { limit: QUEUE_MAX });
        }
        gate.wait();
        taken.into_iter().take(QUEUE_MAX).for_each(|handle| assert!(handle.wait().is_ok()));
        gate.wait();
    });
}

#[test]
fn submitted_calls_run_after_the_last_clone_is_dropped() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        if background.rank() == 1 {
            gate.wait();
            assert_eq!(background.start(sum(vec![1.0])).wait().unwrap(), [2.0]);
            return;
        }
        let handle = background.start(sum(vec![1.0]));
        drop(background);
        gate.wait();
        assert_eq!(handle.wait().unwrap(), [2.0]);
    });
}

#[test]
fn only_the_last_user_closes() {
    on_ranks(2, |background| {
        let other = background.clone();
        let error = background.close().unwrap_err();
        assert!(error.to_string().contains("other users"), "{error}");
        let call = other.start(sum(vec![1.0]));
        let mut comm = other.close().unwrap();
        assert!(call.is_done(), "closing waits for what was submitted");
        comm.barrier().unwrap();
        let again = comm.into_background().unwrap();
        again.barrier().wait().unwrap();
    });
}

#[test]
fn a_worker_is_not_bound_to_its_callers_core() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if std::thread::available_parallelism().unwrap().get() == 1 {
        println!("skipped: there is one core only");
        return;
    }
    on_ranks(1, |first| {
        let comm = first.close().unwrap();
        let before = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).unwrap();
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).unwrap();
        let background = comm.into_background().unwrap();
        let worker = background.with(|_| Ok(sched_getaffinity(None).unwrap())).unwrap();
        assert!(!worker.is_set(core) && worker.count() > 0, "{core}: {worker:?}");
    });
}

/// A sum of all ranks' words, in place.
fn raw_sum(words: &mut [u32]) -> Request<'static, RawBuffers> {
    let at = words.as_mut_ptr().cast::<u8>();
    let (data_type, length) = (DataType::U32, words.len());
    let buffers =
        RawBuffers { data_type, input: at, input_length: length, output: at, output_length: length };
    Request::new(Collective::AllReduce, buffers).operation(Reduction::Sum).deadline(LONG)
}

#[test]
fn callers_run_their_call_if_the_queue_is_empty() {
    on_ranks(2, |background| {
        let mut words = [1, 2];
        // SAFETY: it has returned before anything else touches the words.
        let made = unsafe { background.run_raw(raw_sum(&mut words)) };
        assert_eq!(made.map_err(|_| "others come first").unwrap(), Ok(()));
        assert_eq!(words, [2, 4]);

        // While the worker is in a call, `run_raw` returns the request; a queued request runs later.
        let (begun, begin) = std::sync::mpsc::channel();
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::spawn({
            let background = background.clone();
            move || {
                background.with(move |comm| {
                    begun.send(()).unwrap();
                    held.recv().unwrap();
                    comm.barrier()
                })
            }
        });
        begin.recv().unwrap();
        // SAFETY: as above.
        let refused = unsafe { background.run_raw(raw_sum(&mut words)) }.unwrap_err();
        let (sender, receiver) = std::sync::mpsc::channel();
        // SAFETY: the words are not touched before the callback runs.
        unsafe { background.start_raw(*refused, move |result| sender.send(result).unwrap()) };
        let_go.send(()).unwrap();
        busy.join().unwrap().unwrap();
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), Ok(()));
        assert_eq!(words, [4, 8]);
    });
}

/// A waiting caller and the worker race for the calls, which stay in order; a call cannot wait for another.
#[test]
fn a_waiting_caller_can_run_its_call() {
    on_ranks(2, |background| {
        let here = std::thread::current().id();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |number: usize| {
            let log = Arc::clone(&log);
            move || log.lock().unwrap().push((number, std::thread::current().id()))
        };
        let rounds = 300;
        for round in 0..rounds {
            let (again, first, second) = (background.clone(), note(2 * round), note(2 * round + 1));
            let operation = Operation::user_defined(true, move |a: u32, b: u32| {
                let barrier = Request::new(&Collective::Barrier, weftlink_comm::Buffers::none());
                again.scope(|scope| scope.start(barrier).wait()).unwrap_err();
                // SAFETY: no call is made.
                let made = unsafe { again.run_raw(raw_sum(&mut [])) };
                assert!(matches!(made, Ok(Err(Error::Misuse(_)))));
                a + b
            });
            background.all_reduce(vec![round as u32], operation).on_done(move |ended| {
                assert_eq!(ended.buffers.unwrap(), [2 * round as u32]);
                first();
            });
            let (mut words, (sender, receiver)) = ([round as u32], mpsc::channel());
            // SAFETY: the words are not touched before the callback runs.
            let handle = unsafe {
                background.start_raw(raw_sum(&mut words), move |result| {
                    second();
                    sender.send(result).unwrap();
                })
            };
            // Sometimes the worker has begun, and has to be waited for.
            if round % 3 > 0 {
                std::thread::sleep(Duration::from_micros(20 * (round as u64 % 3)));
            }
            while handle.help().unwrap() {}
            assert_eq!((receiver.recv_timeout(LONG).unwrap(), words), (Ok(()), [2 * round as u32]));
        }
        let log = log.lock().unwrap();
        assert!(log.iter().map(|(number, _)| *number).eq(0..2 * rounds));
        assert!(log.iter().any(|(_, thread)| *thread == here), "it never helped");
    });
}

/// A later call may depend on what the waiting caller does next.
#[test]
fn waiting_callers_run_no_later_calls() {
    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        for _ in 0..50 {
            let (mut words, (sender, receiver)) = ([[1; 2]; 2], mpsc::channel());
            let start = |words: &mut [u32]| {
                let sender = sender.clone();
                // SAFETY: the words are not touched before the callback runs.
                unsafe { background.start_raw(raw_sum(words), move |result| sender.send(result).unwrap()) }
            };
            let [first, second] = &mut words;
            let own = start(first);
            if background.rank() == 0 {
                start(second);
            }
            while own.help().unwrap() {}
            receiver.recv_timeout(LONG).unwrap().unwrap();
            gate.wait();
            if background.rank() == 1 {
                start(second);
            }
            receiver.recv_timeout(LONG).unwrap().unwrap();
            assert_eq!(words, [[2; 2]; 2]);
        }
    });
}

#[test]
fn memory_of_a_window_is_known_by_its_address() {
    let plan = |background: &Background| {
        background.with(|comm| Ok(comm.flight_recorder().record().calls.pop().unwrap().plan)).unwrap()
    };
    on_ranks(2, |background| {
        let mut window = background.with(|comm| comm.window::<u32>(1 << 18)).unwrap();
        let mut ordinary = vec![1_u32; 1 << 17];
        window.fill(1);
        let mut plans = Vec::new();
        for words in [&mut ordinary[..], &mut window[1 << 10..][..1 << 17]] {
            // The worker reports the end of a call before it releases the communicator.
            // SAFETY: the words are not touched before the call returns.
            let made = std::iter::repeat_with(|| unsafe { background.run_raw(raw_sum(words)) });
            assert_eq!(made.filter_map(Result::ok).next(), Some(Ok(())));
            assert!(words.iter().all(|word| *word == 2));
            plans.push(plan(&background));
        }
        assert_ne!(plans[0], plans[1], "symmetric memory has a faster plan");
        assert!(window[..1 << 10].iter().chain(&window[(1 << 17) + (1 << 10)..]).all(|word| *word == 1));
    });
}

/// Runs a future on this thread: what every runtime does, with nothing else to run.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(LONG),
        }
    }
}

#[test]
fn handles_are_futures() {
    on_ranks(2, |background| {
        let mut values = [background.rank() as f32, 1.0];
        block_on(async {
            let (first, second) = (background.start(sum(vec![1.0; 3])), background.start(sum(vec![2.0; 3])));
            // In any order, and also when the call is over.
            assert_eq!(second.await.unwrap(), [4.0; 3]);
            assert_eq!(first.await.unwrap(), [2.0; 3]);
            background.barrier().await.unwrap();
        });
        background.scope(|scope| {
            let request = Request::new(Collective::AllReduce, &mut values).operation(Reduction::Sum);
            let call = scope.start(request);
            block_on(async { call.await.unwrap() });
        });
        assert_eq!(values, [1.0, 2.0]);
    });
}

#[test]
fn a_pending_future_wakes_the_task_that_polled_it_last() {
    struct Woken(mpsc::Sender<u32>, u32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.send(self.1).unwrap();
        }
    }

    let gate = Barrier::new(2);
    on_ranks(2, |background| {
        if background.rank() == 1 {
            // Only now, so that the call of rank 0 was pending.
            gate.wait();
            background.start(sum(vec![1.0])).wait().unwrap();
            return;
        }
        let (sender, woken) = mpsc::channel();
        let mut call = pin!(background.start(sum(vec![1.0])).into_future());
        let mut poll = |number: u32| {
            let waker = Waker::from(Arc::new(Woken(sender.clone(), number)));
            call.as_mut().poll(&mut Context::from_waker(&waker))
        };
        assert!(poll(1).is_pending() && poll(2).is_pending());
        gate.wait();
        assert_eq!(woken.recv_timeout(LONG), Ok(2));
        assert_eq!(poll(3).map(Result::unwrap), Poll::Ready(vec![2.0]));
        assert!(woken.try_recv().is_err(), "the task that polled first was woken");
        let Poll::Ready(Err(error)) = poll(4) else { panic!("polled after its end") };
        assert!(error.to_string().contains("waited for already"), "{error}");
    });
}
