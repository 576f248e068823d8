//! Faults are errors on every rank they concern, name the cause, and never hang.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use weftlink_comm::{Blame, BlameKind, Buffers, Communicator, Error, Operation, Options, Reduction, Request};
use weftlink_plan::{Algorithm, Collective, verify};

/// Long enough that only a real wait for nothing reaches it.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(600);

/// Runs something on each rank, with patience of all kinds, and returns what each gave.
fn on_ranks<T: Send>(
    size: usize,
    deadline: Duration,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<Vec<T>> {
    let run = |spin| {
        let ranks = Communicator::threads(size, Options { deadline, spin: Some(spin), ..Options::default() })
            .unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    vec![run(true), run(false)]
}

/// Ranks that an error blames, and why.
fn blamed(error: &Error) -> Vec<(u32, BlameKind)> {
    error.blamed().iter().map(|blame| (blame.rank, blame.kind)).collect()
}

/// Loads every plan, so that later differences are not noticed while loading.
fn load_all(comm: &mut Communicator) {
    for algorithm in Algorithm::doing(&Collective::AllReduce) {
        comm.built_in(algorithm, &Collective::AllReduce).unwrap();
    }
}

#[test]
fn differing_counts_show_both_sides() {
    for counts in [[2, 3], [500, 1000], [30_000, 40_000], [2, 40_000]] {
        for errors in on_ranks(2, LONG, |mut comm| {
            load_all(&mut comm);
            let mut values = vec![1.0_f32; counts[comm.rank()]];
            comm.all_reduce(&mut values, Reduction::Sum).unwrap_err()
        }) {
            for (rank, error) in errors.iter().enumerate() {
                let Error::Mismatch { mine, theirs, other, .. } = error else { panic!("{error}") };
                assert!(mine.contains(&format!("of {} f32", counts[rank])), "{error}");
                assert!(theirs.contains(&format!("of {} f32", counts[1 - rank])), "{error}");
                assert_eq!(error.blamed(), std::slice::from_ref(other));
                assert_eq!(*other, Blame::of(1 - rank, BlameKind::Differs, "", std::process::id()));
            }
        }
    }
}

#[test]
fn differing_buffer_modes_are_reported() {
    for errors in on_ranks(2, LONG, |mut comm| {
        load_all(&mut comm);
        let plan = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
        let (mut a, mut b) = (comm.window::<f32>(5000).unwrap(), comm.window::<f32>(5000).unwrap());
        let in_place = comm.rank() == 0;
        let called = if in_place {
            comm.run(Request::new(&Collective::AllReduce, &mut a).operation(Reduction::Sum).plan(plan))
        } else {
            comm.run(Request::new(&Collective::AllReduce, (&a, &mut b)).operation(Reduction::Sum).plan(plan))
        };
        called.unwrap_err().to_string()
    }) {
        assert!(
            errors.iter().all(|error| error.contains("in place") && error.contains("out of place")),
            "{errors:?}"
        );
    }
}

#[test]
fn mismatches_are_reported_while_plans_load() {
    for errors in on_ranks(2, LONG, |mut comm| {
        let mut values = vec![1.0_f32; if comm.rank() == 0 { 2 } else { 50_000 }];
        comm.all_reduce(&mut values, Reduction::Sum).unwrap_err().to_string()
    }) {
        for error in errors {
            assert!(error.contains("of 2 f32") && error.contains("of 50000 f32"), "{error}");
        }
    }
}

#[test]
fn mismatches_are_reported_if_one_side_allocates() {
    // The others wait in a call whose plan they have; rank 1 loads one, or allocates a window.
    for allocate in [false, true] {
        for errors in on_ranks(3, LONG, |mut comm| {
            let mut window = comm.window::<f32>(5000).unwrap();
            comm.all_reduce(&mut window, Reduction::Sum).unwrap();
            if comm.rank() != 1 {
                comm.all_reduce(&mut window, Reduction::Sum).unwrap_err()
            } else if allocate {
                comm.window::<f32>(77).unwrap_err()
            } else {
                comm.all_reduce(&mut vec![1.0; 5000], Reduction::Maximum).unwrap_err()
            }
        }) {
            let other = if allocate { "window of 77 f32" } else { "of 5000 f64 (max)" };
            for error in errors {
                assert!(matches!(error, Error::Mismatch { .. }), "{error}");
                assert!(error.to_string().contains(other), "{error}");
            }
        }
    }
}

#[test]
fn windows_of_different_lengths_are_shown() {
    for errors in
        on_ranks(2, LONG, |mut comm| comm.window::<f32>(1000 + comm.rank()).unwrap_err().to_string())
    {
        for error in errors {
            assert!(error.contains("window of 1000 f32") && error.contains("window of 1001 f32"), "{error}");
        }
    }
}

#[test]
fn the_panic_of_one_rank_propagates() {
    let run = || {
        weftlink_comm::on_threads(3, |mut comm| {
            assert_ne!(comm.rank(), 1, "the reason");
            comm.all_reduce(&mut [1.0], Reduction::Sum)
        })
    };
    let panic = std::panic::catch_unwind(run).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("the reason"), "{text}");
}

#[test]
fn mismatches_abort_uninvolved_ranks() {
    for errors in on_ranks(4, LONG, |mut comm| {
        load_all(&mut comm);
        let plan = comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap();
        let mut values = vec![1.0_f32; if comm.rank() == 2 { 700 } else { 800 }];
        comm.run(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(plan))
            .unwrap_err()
    }) {
        for error in &errors {
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        }
        let bystander = errors[0].to_string();
        assert!(bystander.contains("rank 2 calls all-reduce of 700 f32"), "{bystander}");
    }
}

#[test]
fn a_missing_rank_is_named_at_the_deadline() {
    for algorithm in Algorithm::doing(&Collective::AllReduce) {
        let (done, wait) = (std::sync::Barrier::new(2), SHORT);
        for errors in on_ranks(2, wait, |mut comm| {
            load_all(&mut comm);
            let plan = comm.built_in(algorithm, &Collective::AllReduce).unwrap();
            let (a, mut b) = (comm.window::<f32>(300).unwrap(), comm.window::<f32>(300).unwrap());
            let error = (comm.rank() == 0).then(|| {
                comm.run(
                    Request::new(&Collective::AllReduce, (&a, &mut b)).operation(Reduction::Sum).plan(plan),
                )
                .unwrap_err()
                .to_string()
            });
            // Only then may rank 1 go: a rank that leaves is another error.
            done.wait();
            error
        }) {
            let error = errors[0].as_ref().unwrap();
            assert!(
                error.contains("timed out")
                    && error.contains("rank 0 was waiting for")
                    && error.contains("rank 1"),
                "{algorithm}: {error}"
            );
        }
    }
}

#[test]
fn departures_are_reported_at_once() {
    for lanes in [1, 2] {
        for errors in on_ranks(3, LONG, |mut comm| {
            let plan = comm.load(verify(Algorithm::Ring.plan(3, lanes)).unwrap()).unwrap();
            let mut values = vec![1.0; 1000];
            comm.run(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(plan))
                .unwrap();
            if comm.rank() == 1 {
                return None;
            }
            Some(
                comm.run(
                    Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(plan),
                )
                .unwrap_err(),
            )
        }) {
            assert!(errors[1].is_none());
            for error in [&errors[0], &errors[2]] {
                let error = error.as_ref().unwrap();
                assert!(
                    matches!(
                        error,
                        Error::Left { left: Blame { rank: 1, .. }, call: 3, .. }
                            | Error::Aborted { call: 3, .. }
                    ),
                    "{error}"
                );
                // Also on a rank that another one aborted.
                assert_eq!(blamed(error), [(1, BlameKind::Left)], "{error}");
            }
        }
    }
}

#[test]
fn plans_are_compiled_once() {
    for sums in on_ranks(2, LONG, |mut comm| {
        let mut values = vec![1.0; 100_000];
        comm.all_reduce(&mut values, Reduction::Sum).unwrap();
        let ring = comm.load(verify(Algorithm::Ring.plan(2, 1)).unwrap()).unwrap();
        assert_eq!(ring, comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap());
        comm.run(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(ring))
            .unwrap();
        values[0]
    }) {
        assert_eq!(sums, [4.0, 4.0]);
    }
}

#[test]
fn failed_communicators_refuse_calls() {
    for errors in on_ranks(2, LONG, |mut comm| {
        load_all(&mut comm);
        let mut values = vec![1.0; 10 + comm.rank()];
        let first = comm.all_reduce(&mut values, Reduction::Sum).unwrap_err();
        (first, comm.all_reduce(&mut values, Reduction::Sum).unwrap_err(), comm.window::<f32>(1).unwrap_err())
    }) {
        for (first, second, third) in errors {
            assert!(matches!(&second, Error::Failed { why, .. } if *why == first.to_string()), "{second}");
            assert_eq!(blamed(&second), blamed(&first));
            assert!(matches!(third, Error::Failed { .. }), "{third}");
        }
    }
}

#[test]
fn misuse_is_refused_without_harm() {
    for results in on_ranks(2, LONG, |mut comm| {
        let direct = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
        let one_shot = comm.built_in(Algorithm::OneShot, &Collective::AllReduce).unwrap();
        let mut window = comm.window::<f32>(64).unwrap();
        let mut values = vec![1.0; 64];
        let says = |error: Error, what: &str| {
            assert!(error.to_string().contains(what), "{error} does not say {what}")
        };
        says(
            comm.all_reduce((&[1.0][..], &mut values[..]), Reduction::Sum).unwrap_err(),
            "got an input of 1 elements and an output of 64",
        );
        says(
            comm.run(
                Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(direct),
            )
            .unwrap_err(),
            "symmetric memory",
        );
        says(
            comm.run(
                Request::new(&Collective::AllReduce, &mut window).operation(Reduction::Sum).plan(one_shot),
            )
            .unwrap_err(),
            "in place",
        );
        says(comm.load(verify(Algorithm::Ring.plan(3, 1)).unwrap()).unwrap_err(), "for 3 ranks");
        let gather = Algorithm::Ring.flat(&Collective::AllGather, 2, 1).unwrap();
        let gather = comm.load(verify(gather).unwrap()).unwrap();
        says(
            comm.run(
                Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(gather),
            )
            .unwrap_err(),
            "computes all-gather",
        );
        let mut other = Communicator::threads(1, Options::default()).unwrap().remove(0);
        says(
            other
                .run(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(direct))
                .unwrap_err(),
            "another communicator",
        );
        says(other.all_reduce(&mut window, Reduction::Sum).unwrap_err(), "another communicator");
        comm.all_reduce(&mut values, Reduction::Sum).unwrap();
        values[63]
    }) {
        assert_eq!(results, [2.0, 2.0]);
    }
}

#[test]
fn thousands_of_calls_of_all_sizes_stay_right() {
    for results in on_ranks(3, LONG, |mut comm| {
        let mut window = comm.window::<f32>(2000).unwrap();
        for round in 0..2000usize {
            let count = [1, 2, 13, 112, 113, 500, 1999][round % 7];
            let mut values = vec![comm.rank() as f32 + round as f32; count];
            window[..count].copy_from_slice(&values);
            comm.all_reduce(&mut values, Reduction::Sum).unwrap();
            comm.all_reduce(window.part_mut(0..count), Reduction::Sum).unwrap();
            let expected = 3.0 + 3.0 * round as f32;
            assert!(values.iter().chain(&window[..count]).all(|&value| value == expected), "round {round}");
        }
        true
    }) {
        assert_eq!(results, [true; 3]);
    }
}

#[test]
fn windows_are_private_after_a_failed_call() {
    let step = std::sync::Barrier::new(2);
    for kept in on_ranks(2, SHORT, |mut comm| {
        let plan = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
        let (mut first, mut second) = (comm.window::<f32>(5000).unwrap(), comm.window::<f32>(5000).unwrap());
        first.fill(1.0);
        second.fill(2.0);
        if comm.rank() == 0 {
            comm.run(
                Request::new(&Collective::AllReduce, first.part_mut(0..4000))
                    .operation(Reduction::Sum)
                    .plan(plan),
            )
            .unwrap_err();
            assert!(first.iter().all(|&value| value == 1.0), "what a call did not change is still there");
            first.fill(7.0);
            step.wait();
            // Rank 1 is late, sees that rank 0 has entered, and does its part.
            step.wait();
        } else {
            step.wait();
            comm.run(
                Request::new(&Collective::AllReduce, first.part_mut(0..4000))
                    .operation(Reduction::Sum)
                    .plan(plan),
            )
            .unwrap_err();
            step.wait();
            first.fill(7.0);
        }
        drop(comm);
        first.iter().all(|&value| value == 7.0) && second.iter().all(|&value| value == 2.0)
    }) {
        assert_eq!(kept, [true; 2], "a peer wrote into memory that its rank had back");
    }
}

#[test]
fn peers_in_a_step_cannot_access_returned_windows() {
    let step = std::sync::Barrier::new(2);
    let in_middle = |mut comm: Communicator, separate: bool| {
        let rank = comm.rank();
        let plan = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
        let [mut given, mut window] = [comm.window::<f32>(64).unwrap(), comm.window::<f32>(64).unwrap()];
        given.fill(1.0);
        window.fill(1.0);
        let waited = std::sync::atomic::AtomicBool::new(false);
        let slow = |one: f32, other: f32| {
            // Rank 1 reduces elements when rank 0 aborts, and writes the results after that.
            if rank == 1 && !waited.swap(true, std::sync::atomic::Ordering::Relaxed) {
                step.wait();
            }
            one + other
        };
        let sum = Operation::user_defined(true, slow);
        let buffers = match separate {
            true => Buffers::from((&given, &mut window)),
            false => Buffers::from(&mut window),
        };
        let request = Request::new(&Collective::AllReduce, buffers);
        let ran = comm.run(request.operation(sum).plan(plan));
        if rank == 0 {
            assert!(matches!(ran, Err(Error::Deadline { .. })), "{ran:?}");
            window.fill(7.0);
            step.wait();
        }
        step.wait();
        rank == 1 || window.iter().all(|&value| value == 7.0)
    };
    for separate in [false, true] {
        for kept in on_ranks(2, SHORT, |comm| in_middle(comm, separate)) {
            assert_eq!(kept, [true; 2], "a peer wrote into memory that its rank had back");
        }
    }
}

#[test]
fn late_ranks_are_blamed_on_all_ranks() {
    for blamed in on_ranks(3, SHORT, |mut comm| {
        let plan = comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap();
        let sum = |comm: &mut Communicator| {
            comm.run(
                Request::new(&Collective::AllReduce, &mut [1.0; 64]).operation(Reduction::Sum).plan(plan),
            )
        };
        sum(&mut comm).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(4 * SHORT);
        }
        sum(&mut comm).unwrap_err().blamed().iter().map(|blame| (blame.rank, blame.kind)).collect::<Vec<_>>()
    }) {
        assert_eq!(blamed, vec![vec![(1, BlameKind::Late)]; 3]);
    }
}

#[test]
fn misuse_on_one_rank_does_not_affect_the_others() {
    for results in on_ranks(2, LONG, |mut comm| {
        let mut values = vec![1.0; 64];
        if comm.rank() == 0 {
            let error = comm.all_reduce((&[1.0][..], &mut values[..]), Reduction::Sum).unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
            let mut window =
                Communicator::threads(1, Options::default()).unwrap()[0].window::<f32>(64).unwrap();
            let error = comm.all_reduce(&mut window, Reduction::Sum).unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        }
        comm.all_reduce(&mut values, Reduction::Sum).map(|()| values[63])
    }) {
        assert_eq!(results, [Ok(2.0), Ok(2.0)]);
    }
}

#[test]
fn plans_of_any_name_can_be_loaded() {
    for name in ["é".repeat(33), format!("x{}", "é".repeat(60)), "\u{1}\0\"".repeat(64), String::new()] {
        for results in on_ranks(2, LONG, |mut comm| {
            let plan = weftlink_plan::Plan { name: name.clone(), ..Algorithm::Ring.plan(2, 1) };
            comm.load(verify(plan).unwrap()).map(|_| ())
        }) {
            assert_eq!(results, [Ok(()), Ok(())], "{name:?}");
        }
    }
}

#[test]
fn allocations_fail_if_peers_have_failed() {
    let done = std::sync::Barrier::new(3);
    for errors in on_ranks(3, LONG, |mut comm| {
        let plan = comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap();
        let mut values = vec![1.0; 10 + comm.rank()];
        let error = match comm.rank() {
            0 => comm.window::<f32>(1).map(|_| ()).unwrap_err(),
            _ => comm
                .run(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(plan))
                .unwrap_err(),
        };
        // No rank leaves before this, because the others would notice.
        done.wait();
        error.to_string()
    }) {
        assert!(errors.iter().all(|error| error.contains("call #2 does not match")), "{errors:?}");
    }
}

#[test]
fn windows_are_private_after_an_abort() {
    for spin in [true, false] {
        let barrier = std::sync::Barrier::new(2);
        let ranks =
            Communicator::threads(2, Options { deadline: SHORT, spin: Some(spin), ..Options::default() })
                .unwrap();
        let work = |mut comm: Communicator| {
            let plan = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
            let mut window = comm.window::<f32>(64).unwrap();
            window.fill(1.0);
            if comm.rank() == 1 {
                barrier.wait();
            }
            let error = comm
                .run(Request::new(&Collective::AllReduce, &mut window).operation(Reduction::Sum).plan(plan))
                .unwrap_err();
            if comm.rank() == 0 {
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                barrier.wait();
            } else {
                assert!(matches!(error, Error::Aborted { by: 0, .. }), "{error}");
            }
            assert_eq!(blamed(&error), [(1, BlameKind::Late)], "{error}");
            barrier.wait();
            assert_eq!(*window, [1.0; 64], "rank {}: nobody writes here any more", comm.rank());
        };
        std::thread::scope(|scope| {
            ranks.into_iter().for_each(|comm| drop(scope.spawn(|| work(comm))));
        });
    }
}
