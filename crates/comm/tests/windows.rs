//! Open windows: data written before a signal is visible after it, misuse is refused, and dropping an open window aborts all ranks with
//! an error that names the rank.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options, Reduction, SIGNALS, Window};
use weftlink_testkit::processes::this_program;

const ROUNDS: u64 = 1000;
/// Long enough that only a real wait for nothing reaches it.
const LONG: Duration = Duration::from_secs(60);

fn options(spin: bool) -> Options {
    Options { deadline: LONG, spin: Some(spin), ..Options::default() }
}

/// Runs something on each rank, with patience of both kinds, and returns what each gave.
fn on_ranks<T: Send>(size: usize, work: impl Fn(Communicator) -> T + Sync) -> Vec<Vec<T>> {
    let run = |spin| {
        let ranks = Communicator::threads(size, options(spin)).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    vec![run(true), run(false)]
}

/// The words that a rank puts in a round.
fn word(rank: usize, round: u64, at: u64) -> u64 {
    (rank as u64) << 48 | round << 16 | at
}

/// In each round, every rank puts a few words into the part of the next one, and checks what it received.
fn ring_of_puts(mut comm: Communicator, lengths: &[u64]) {
    let (me, size) = (comm.rank(), comm.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let most = *lengths.iter().max().unwrap();
    let mut window = comm.window::<u64>(most as usize + 2).unwrap();
    window.fill(7);
    comm.open(&mut window, |open| {
        for round in 0..ROUNDS {
            let length = lengths[round as usize % lengths.len()];
            let mine: Vec<u64> = (0..length).map(|at| word(me, round, at)).collect();
            let signal = round as usize % SIGNALS;
            open.put(next, 1, &mine).unwrap();
            open.signal(next, signal).unwrap();
            open.wait(before, signal).unwrap();
            let mut got = vec![0; length as usize];
            open.get(me, 1, &mut got).unwrap();
            let wanted: Vec<u64> = (0..length).map(|at| word(before, round, at)).collect();
            assert_eq!(got, wanted, "rank {me}, round {round}");
            // The previous rank may continue only after this was read: its next put changes it.
            open.signal(before, (signal + 1) % SIGNALS).unwrap();
            open.wait(next, (signal + 1) % SIGNALS).unwrap();
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((window[0], window[most as usize + 1]), (7, 7), "what lies around is left alone");
}

#[test]
fn threads_put_around_a_ring() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |comm| ring_of_puts(comm, &[1, 7, 8, 9, 100]));
    }
}

#[test]
fn processes_put_around_a_ring() {
    const RANK: &str = "WEFT_TEST_RANK";
    const RANKS: usize = 3;
    if let Ok(rank) = std::env::var(RANK) {
        let rank: usize = rank.parse().unwrap();
        let name = format!("weft-windows-{}", std::env::var("WEFT_TEST_PARENT").unwrap());
        let meeting =
            Rendezvous::new(RendezvousAddress::Abstract(name), Token::new("windows").unwrap(), RANKS, LONG);
        let bootstrap = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let comm = Communicator::new(bootstrap.unwrap(), options(false)).unwrap();
        ring_of_puts(comm, &[1, 100, 5000]);
        return;
    }
    let start = |rank: usize| {
        let mut command = this_program();
        command.args(["--exact", "processes_put_around_a_ring", "--nocapture"]);
        command.env(RANK, rank.to_string()).env("WEFT_TEST_PARENT", std::process::id().to_string());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..RANKS).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

/// Of a window that is passed in place, a rank's own block is not the first.
#[test]
fn calls_in_place_find_each_ranks_own_block_of_a_window() {
    for count in [10, 100_000] {
        on_ranks(3, |mut comm| {
            let (me, size) = (comm.rank(), comm.size());
            let mut window = comm.window::<u32>(size * count).unwrap();
            let own = me * count..(me + 1) * count;
            for round in 0..4_u32 {
                window.fill(9);
                window[own.clone()].fill(100 * round + me as u32);
                comm.all_gather(&mut window).unwrap();
                for (rank, block) in window.chunks(count).enumerate() {
                    assert!(block.iter().all(|value| *value == 100 * round + rank as u32), "{rank} to {me}");
                }
                // No rank writes before all have read.
                comm.barrier().unwrap();
                for (at, value) in window.iter_mut().enumerate() {
                    *value = round + (me * (at / count + 1)) as u32;
                }
                comm.reduce_scatter(&mut window, Reduction::Sum).unwrap();
                let sum = 3 * round + (me as u32 + 1) * 3;
                assert!(window[own.clone()].iter().all(|value| *value == sum), "at {me}");
            }
        });
    }
}

#[test]
fn a_rank_copies_between_two_others_and_within_one() {
    for got in on_ranks(3, |mut comm| {
        let mut window = comm.window::<u16>(10).unwrap();
        let me = comm.rank();
        (0..10).for_each(|at| window[at] = (100 * me + at) as u16);
        comm.open(&mut window, |open| {
            if me == 0 {
                open.copy((1, 0..3), (2, 5)).unwrap();
                // Side by side is not overlapping, and nothing overlaps nothing.
                open.copy((2, 0..2), (2, 2)).unwrap();
                open.copy((2, 1..1), (2, 1)).unwrap();
            }
            Ok(())
        })
        .unwrap();
        window.to_vec()
    }) {
        assert_eq!(got[1], (100..110).collect::<Vec<_>>());
        assert_eq!(got[2], [200, 201, 200, 201, 204, 100, 101, 102, 208, 209]);
    }
}

#[test]
fn invalid_calls_are_refused_and_the_communicator_stays_usable() {
    for kept in on_ranks(2, |mut comm| {
        let mut window = comm.window::<u32>(8).unwrap();
        window.fill(5);
        let me = comm.rank();
        comm.open(&mut window, |open| {
            let mut into = [0; 4];
            let max = usize::MAX;
            let refused = [
                open.put(0, 5, &[1; 4]),
                open.put(2, 0, &[1]),
                open.put(0, max, &[1]),
                open.get(1, 5, &mut into),
                open.get(max, 0, &mut into),
                open.get(0, max - 1, &mut into),
                open.copy((0, 0..4), (0, 3)),
                open.copy((0, 0..4), (0, 0)),
                open.copy((0, 6..9), (1, 0)),
                open.copy((0, 0..3), (1, 6)),
                open.copy((0, 0..3), (0, max)),
                open.copy((0, max - 3..max), (0, 0)),
                open.copy((2, 0..1), (0, 0)),
                open.signal(2, 0),
                open.signal(0, SIGNALS),
                open.wait(2, 0),
                open.wait(0, SIGNALS),
            ];
            for (at, refused) in refused.into_iter().enumerate() {
                assert!(matches!(refused, Err(Error::Misuse(_))), "number {at}: {refused:?}");
            }
            assert_eq!(into, [0; 4]);
            // It is all still there, and works.
            open.put(1 - me, 2, &[me as u32]).unwrap();
            open.signal(1 - me, SIGNALS - 1).unwrap();
            open.wait(1 - me, SIGNALS - 1).unwrap();
            Ok(())
        })
        .unwrap();
        let mut sum = [1];
        comm.all_reduce(&mut sum, Reduction::Sum).unwrap();
        assert_eq!(sum, [2]);
        window.to_vec()
    }) {
        assert_eq!(kept, [[5, 5, 1, 5, 5, 5, 5, 5], [5, 5, 0, 5, 5, 5, 5, 5]]);
    }
}

#[test]
fn windows_of_other_communicators_are_refused() {
    for kept in on_ranks(2, |mut comm| {
        let mut window = comm.window::<u8>(1).unwrap();
        let mut other = Communicator::threads(1, options(true)).unwrap().remove(0);
        let refused = other.open(&mut window, |_| Ok(())).unwrap_err();
        assert!(
            matches!(&refused, Error::Misuse(what) if what.contains("another communicator")),
            "{refused}"
        );
        comm.open(&mut window, |_| Ok(()))
    }) {
        assert_eq!(kept, [Ok(()), Ok(())]);
    }
}

#[test]
fn a_failed_closure_aborts_all_ranks() {
    for panics in [false, true] {
        let done = Barrier::new(3);
        for ends in on_ranks(3, |mut comm| {
            let mut window = comm.window::<u32>(1000).unwrap();
            window.fill(1);
            let (me, done) = (comm.rank(), &done);
            let error = if me == 1 {
                let lose = || {
                    comm.open(&mut window, |_| {
                        assert!(!panics, "on purpose");
                        Err::<(), _>(Error::Misuse("on purpose".to_owned()))
                    })
                };
                let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(lose));
                assert_eq!(lost.is_err(), panics);
                comm.barrier().unwrap_err()
            } else {
                // One waits for a signal, the other for the end.
                comm.open(&mut window, |open| if me == 0 { open.wait(1, 3) } else { Ok(()) }).unwrap_err()
            };
            // Each has its memory back, as it was, to itself.
            assert_eq!(*window, [1; 1000]);
            window.fill(10 + me as u32);
            done.wait();
            let alone = window.iter().all(|value| *value == 10 + me as u32);
            // No rank leaves before this, because the others would notice.
            done.wait();
            (alone, error.to_string())
        }) {
            for (rank, (alone, error)) in ends.iter().enumerate() {
                assert!(alone, "rank {rank}");
                assert!(error.contains("rank 1"), "rank {rank}: {error}");
            }
        }
    }
}

#[test]
fn missing_signals_time_out() {
    let done = Barrier::new(2);
    let ranks =
        Communicator::threads(2, Options { deadline: Duration::from_millis(200), ..Options::default() })
            .unwrap();
    let work = |mut comm: Communicator| {
        let mut window = comm.window::<u8>(1).unwrap();
        let me = comm.rank();
        let ended = comm.open(&mut window, |open| {
            let waited = if me == 0 { open.wait(1, 2) } else { Ok(()) };
            done.wait();
            waited
        });
        done.wait();
        ended.unwrap_err()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let named = matches!(ends[0], Error::Deadline { .. }) && ends[0].to_string().contains("rank 1");
        assert!(named && matches!(ends[1], Error::Aborted { by: 0, .. }), "{ends:?}");
    });
}

/// The errors of two ranks that open and close a window differently, or make other calls.
fn differ(
    work: impl Fn(&mut Communicator, [Window<u32>; 2]) -> Result<(), Error> + Sync,
) -> Vec<Vec<String>> {
    on_ranks(2, |mut comm| {
        let windows = [comm.window(4).unwrap(), comm.window(4).unwrap()];
        let mut first = comm.window::<u32>(4).unwrap();
        // Opening has been warmed up, so that the mismatch is not detected during setup.
        comm.open(&mut first, |_| Ok(())).unwrap();
        comm.all_reduce(&mut [1], Reduction::Sum).unwrap();
        work(&mut comm, windows).unwrap_err().to_string()
    })
}

#[test]
fn opening_while_another_rank_reduces_is_shown_from_both_sides() {
    for errors in differ(|comm, [mut window, _]| match comm.rank() {
        0 => comm.open(&mut window, |_| Ok(())),
        _ => comm.all_reduce(&mut [1], Reduction::Sum),
    }) {
        for error in errors {
            assert!(
                error.contains("all-reduce of 1 i32") && error.contains("opening of window 0"),
                "{error}"
            );
        }
    }
}

#[test]
fn opening_different_windows_is_shown_from_both_sides() {
    for errors in differ(|comm, mut windows| {
        let rank = comm.rank();
        comm.open(&mut windows[rank], |_| Ok(()))
    }) {
        for error in errors {
            assert!(
                error.contains("opening of window 0") && error.contains("opening of window 1"),
                "{error}"
            );
        }
    }
}
