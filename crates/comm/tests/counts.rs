//! Ranks that disagree on the counts or types of a call, or make different calls with the same hash: all of them get an error that shows
//! both sides, and no data moves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Mutex;
use std::time::Duration;

use support::on_hosts;
use weftlink_comm::{Buffers, Communicator, Data, DataType, Error, Options, Reduction, Request, Window};
use weftlink_plan::Collective;

/// Long enough that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(120);
/// The content of outputs before a call that fails.
const UNTOUCHED: i32 = -1;

/// The ranks and memory of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ordinary,
    SingleCopy,
    Windows,
    /// A rank on each.
    Hosts,
    /// Two ranks on the first.
    MixedHosts,
}

impl Place {
    const ALL: [Place; 5] =
        [Place::Ordinary, Place::SingleCopy, Place::Windows, Place::Hosts, Place::MixedHosts];
}

/// Runs `work` on each rank and returns the results. No rank leaves before all are done, because the others would notice.
fn on_ranks<T: Send>(size: usize, place: Place, work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    let options =
        Options { deadline: DEADLINE, single_copy: Some(place == Place::SingleCopy), ..Options::default() };
    let gave: Vec<Mutex<Option<T>>> = (0..size).map(|_| Mutex::new(None)).collect();
    let done = std::sync::Barrier::new(size);
    let run = |mut comm: Communicator| {
        let one = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut comm)));
        done.wait();
        *gave[comm.rank()].lock().unwrap() = one.ok();
    };
    match place {
        Place::Hosts => on_hosts(size, 1, options, run),
        Place::MixedHosts => on_hosts(size, 2, options, run),
        _ => std::thread::scope(|scope| {
            for comm in Communicator::threads(size, options).unwrap() {
                scope.spawn(|| run(comm));
            }
        }),
    }
    gave.into_iter().map(|gave| gave.into_inner().unwrap().expect("no rank panics")).collect()
}

/// One rank's buffers, in ordinary memory or in windows.
enum Memory {
    Ordinary([Vec<i32>; 2]),
    Windows([Window<i32>; 2]),
}

impl Memory {
    fn new(comm: &mut Communicator, place: Place, length: usize) -> Self {
        let mut memory = match place {
            Place::Windows => {
                Memory::Windows([comm.window::<i32>(length).unwrap(), comm.window::<i32>(length).unwrap()])
            }
            _ => Memory::Ordinary([vec![0; length], vec![0; length]]),
        };
        let [input, output] = match &mut memory {
            Memory::Ordinary([input, output]) => [&mut input[..], &mut output[..]],
            Memory::Windows([input, output]) => [&mut input[..], &mut output[..]],
        };
        input.fill(1 + comm.rank() as i32);
        output.fill(UNTOUCHED);
        memory
    }

    fn run(
        &mut self,
        comm: &mut Communicator,
        collective: &Collective,
        given: &[usize],
        gotten: &[usize],
    ) -> Result<(), Error> {
        let [inputs, outputs] = [given, gotten].map(|counts| counts.iter().sum::<usize>());
        let buffers = match self {
            Memory::Ordinary([input, output]) => Buffers::from((&input[..inputs], &mut output[..outputs])),
            Memory::Windows([input, output]) => (input.part(0..inputs), output.part_mut(0..outputs)).into(),
        };
        comm.run(Request::new(collective, buffers).counts(given, gotten))
    }

    fn output(&self) -> &[i32] {
        match self {
            Memory::Ordinary([_, output]) => output,
            Memory::Windows([_, output]) => output,
        }
    }
}

/// The counts of a rank of three in a call in which rank 0 sends `sends` elements to rank 1, which expects `expects`.
fn counts(collective: &Collective, rank: usize, sends: usize, expects: usize) -> (Vec<usize>, Vec<usize>) {
    let seven = || vec![7; 3];
    match collective {
        Collective::AllToAll => match rank {
            0 => (vec![7, sends, 7], seven()),
            1 => (seven(), vec![expects, 7, 7]),
            _ => (seven(), seven()),
        },
        Collective::Gather { .. } => match rank {
            0 => (vec![sends], vec![]),
            1 => (vec![7], vec![expects, 7, 7]),
            _ => (vec![7], vec![]),
        },
        Collective::Scatter { .. } => match rank {
            0 => (vec![7, sends, 7], vec![7]),
            1 => (vec![], vec![expects]),
            _ => (vec![], vec![7]),
        },
        // Two messages go from rank 0 to rank 1, and the second is the one.
        Collective::SendReceive { .. } => match rank {
            0 => (vec![3, sends], vec![7]),
            1 => (vec![5], vec![3, expects]),
            _ => (vec![7], vec![5]),
        },
        // Rank 1 is behind rank 0: block 5 of rank 0 arrives as block 4.
        Collective::Neighbours { .. } => {
            let (mut given, mut gotten) = (vec![7; 6], vec![7; 6]);
            match rank {
                0 => given[5] = sends,
                1 => gotten[4] = expects,
                _ => {}
            }
            (given, gotten)
        }
        other => panic!("{other} has no counts of its own"),
    }
}

fn collectives() -> [Collective; 5] {
    [
        Collective::AllToAll,
        Collective::Gather { root: 1 },
        Collective::Scatter { root: 0 },
        Collective::SendReceive { messages: vec![(0, 1), (1, 2), (0, 1), (2, 0)] },
        Collective::Neighbours { torus: [1, 1, 3] },
    ]
}

fn disagree(place: Place, sizes: &[(usize, usize)]) {
    for collective in collectives() {
        for &(sends, expects) in sizes {
            let gave = on_ranks(3, place, |comm| {
                let rank = comm.rank();
                let longest = 6 * sends.max(expects).max(7);
                let mut memory = Memory::new(comm, place, longest);
                // A call that is right leaves data behind, and all that the next one needs is loaded.
                let (given, gotten) = counts(&collective, rank, sends, sends);
                memory.run(comm, &collective, &given, &gotten).unwrap();
                let mut memory = Memory::new(comm, place, longest);
                let (given, gotten) = counts(&collective, rank, sends, expects);
                let error = memory.run(comm, &collective, &given, &gotten).unwrap_err();
                let is_untouched = memory.output().iter().all(|value| *value == UNTOUCHED);
                (error, is_untouched, comm.barrier().unwrap_err())
            });
            let what = format!("{collective} in {place:?}, {sends} and {expects}: {gave:?}");
            let [sent, expected] =
                [format!("sending {sends} i32 to rank 1"), format!("expecting {expects} i32 from rank 0")];
            for (rank, (error, is_untouched, after)) in gave.iter().enumerate() {
                let text = error.to_string();
                assert!(text.contains(&sent) && text.contains(&expected), "{what}");
                // On other hosts, a rank whose counts match may have begun before it is aborted.
                let may_have_begun = matches!(place, Place::Hosts | Place::MixedHosts) && rank == 2;
                assert!(*is_untouched || may_have_begun, "rank {rank}: {what}");
                assert!(matches!(after, Error::Failed { .. }), "{what}");
                match error {
                    Error::Mismatch { rank: me, other, .. } => {
                        assert!(
                            rank < 2 && *me as usize == rank && other.rank as usize == 1 - rank,
                            "{what}"
                        );
                    }
                    // Aborted before it compared.
                    Error::Aborted { rank: me, .. } => assert!(*me as usize == rank, "{what}"),
                    _ => panic!("{what}"),
                }
            }
            let is_first = |(error, ..): &(Error, bool, Error)| matches!(error, Error::Mismatch { .. });
            assert!(gave.iter().any(is_first), "{what}");
        }
    }
}

#[test]
fn differing_counts_are_reported_in_ordinary_memory() {
    disagree(Place::Ordinary, &[(10, 20), (20, 10), (0, 5), (300_000, 400_000)]);
}

#[test]
fn differing_counts_are_reported_with_single_copy() {
    disagree(Place::SingleCopy, &[(10, 20), (20, 10), (300_000, 400_000), (400_000, 300_000)]);
}

#[test]
fn differing_counts_are_reported_in_windows() {
    disagree(Place::Windows, &[(10, 20), (20, 10), (100_000, 200_000), (200_000, 100_000)]);
}

#[test]
fn differing_counts_are_reported_across_hosts() {
    disagree(Place::Hosts, &[(10, 20), (20, 10), (30_000, 40_000)]);
}

#[test]
fn differing_counts_are_reported_across_hosts_with_several_ranks() {
    disagree(Place::MixedHosts, &[(10, 20), (40_000, 30_000)]);
}

#[test]
fn a_rank_with_inconsistent_counts_gets_an_error() {
    for place in [Place::Ordinary, Place::Hosts] {
        let gave = on_ranks(2, place, |comm| {
            // The counts to the other rank match.
            let received = if comm.rank() == 0 { [4, 4] } else { [5, 4] };
            let (input, mut output) = (vec![1; 9], vec![UNTOUCHED; received.iter().sum()]);
            comm.all_to_all_v((&input[..], &mut output[..]), &[4, 5], &received).unwrap_err().to_string()
        });
        let both = ["sending 5 i32 to rank 1", "expecting 4 i32 from rank 1"];
        assert!(gave.iter().all(|error| both.iter().all(|side| error.contains(side))), "{gave:?}");
    }
}

#[test]
fn matching_counts_work_everywhere() {
    for place in Place::ALL {
        let gave = on_ranks(3, place, |comm| {
            let mut right = Vec::new();
            for sends in [10, 0, 3000, 70_000] {
                for collective in collectives() {
                    let mut memory = Memory::new(comm, place, 6 * sends.max(7));
                    let (given, gotten) = counts(&collective, comm.rank(), sends, sends);
                    memory.run(comm, &collective, &given, &gotten).unwrap();
                    let got: usize = gotten.iter().sum();
                    let (written, rest) = memory.output().split_at(got);
                    right.push(written.iter().all(|value| (1..=3).contains(value)));
                    right.push(rest.iter().all(|value| *value == UNTOUCHED));
                }
            }
            right.into_iter().all(|right| right)
        });
        assert!(gave.into_iter().all(|right| right), "{place:?}");
    }
}

/// Makes the same call of each collective that only moves elements, with elements of some type.
fn moved<T: Data + Default>(comm: &mut Communicator, which: usize) -> Result<(), Error> {
    let (rank, ring) = (comm.rank() as u32, [(0, 1), (1, 2), (2, 0)]);
    let (mine, mut all) = (vec![T::default(); 300], vec![T::default(); 900]);
    let mut one = mine.clone();
    match which {
        0 => comm.broadcast(&mut one[..], 0),
        1 => comm.all_gather((&mine[..], &mut all[..])),
        2 if rank == 1 => comm.gather((&mine[..], &mut all[..]), 1),
        2 => comm.gather(&mine[..], 1),
        3 if rank == 0 => comm.scatter((&all[..], &mut one[..]), 0),
        3 => comm.scatter(&mut one[..], 0),
        4 => comm.all_to_all((&mine[..], &mut one[..])),
        5 => comm.send_receive((&mine[..], &mut one[..]), &ring, 300),
        6 => comm.all_gather_v((&mine[..], &mut all[..]), &[300; 3]),
        7 => comm.all_to_all_v((&mine[..], &mut one[..]), &[100; 3], &[100; 3]),
        _ => comm.group(|group| {
            group.send((rank as usize + 1) % 3, &mine)?;
            group.receive((rank as usize + 2) % 3, &mut one)
        }),
    }
}

#[test]
fn types_of_equal_size_are_distinguished() {
    for place in [Place::Ordinary, Place::SingleCopy, Place::Hosts] {
        for which in 0..9 {
            // A failed call also ends the one before on a rank that is still in it.
            let all_are_done = std::sync::Barrier::new(3);
            let gave = on_ranks(3, place, |comm| {
                // Both calls have been made before, alike.
                let alike = moved::<f32>(comm, which).and_then(|()| moved::<i32>(comm, which));
                all_are_done.wait();
                alike.unwrap();
                match comm.rank() {
                    1 => moved::<i32>(comm, which),
                    _ => moved::<f32>(comm, which),
                }
            });
            let errors: Vec<String> =
                gave.iter().filter_map(|gave| Some(gave.as_ref().err()?.to_string())).collect();
            // A rank that only sends may be done before any rank has noticed.
            let may_pass = matches!(which, 0 | 2 | 3 | 5 | 8);
            assert!(errors.len() == 3 || may_pass && !errors.is_empty(), "{place:?} {which}: {gave:?}");
            assert!(gave[1].is_err() || which == 2, "{place:?} {which}: {gave:?}");
            for error in errors {
                assert!(error.contains(" f32") && error.contains(" i32"), "{place:?} {which}: {error}");
            }
        }
    }
}

#[test]
fn uneven_calls_move_bytes() {
    for place in [Place::Ordinary, Place::Hosts] {
        let gave = on_ranks(3, place, |comm| (0..9).try_for_each(|which| moved::<u8>(comm, which)));
        assert!(gave.iter().all(Result::is_ok), "{gave:?}");
    }
}

/// Two all-reduces whose 32-bit hashes are the same: bit-or of n + 12,526 i32, and logical and of n bools.
fn collide(comm: &mut Communicator, place: Place, n: usize, warm: &[usize]) -> Result<(), Error> {
    let long = n + 12_526;
    let (mut bits, mut truths) = (vec![0x0102_0304_i32; long], vec![1_u8; n]);
    let mut windows = (place == Place::Windows)
        .then(|| (comm.window::<i32>(long).unwrap(), comm.window::<u8>(long).unwrap()));
    let mut call = |comm: &mut Communicator, is_bits: bool, less: usize| match &mut windows {
        Some((bits, _)) if is_bits => comm.all_reduce(bits.part_mut(0..long - less), Reduction::BitOr),
        Some((_, truths)) => {
            let truths = Buffers::from(truths.part_mut(0..n - less)).of_type(DataType::Bool)?;
            comm.all_reduce(truths, Reduction::LogicalAnd)
        }
        None if is_bits => comm.all_reduce(&mut bits[..long - less], Reduction::BitOr),
        None => {
            let truths = Buffers::from(&mut truths[..n - less]).of_type(DataType::Bool)?;
            comm.all_reduce(truths, Reduction::LogicalAnd)
        }
    };
    for &less in warm {
        call(comm, true, less).unwrap();
        call(comm, false, less).unwrap();
    }
    call(comm, comm.rank() == 0, 0)
}

#[test]
fn calls_with_the_same_hash_are_distinguished() {
    for place in Place::ALL {
        for n in [10, 1000, 30_000, 200_000] {
            // Made before by both, or never, while the plans are loaded.
            for warm in [[0], [1]] {
                let gave = on_ranks(2, place, |comm| collide(comm, place, n, &warm));
                for (rank, gave) in gave.iter().enumerate() {
                    let Err(error @ Error::Mismatch { .. }) = gave else {
                        panic!("{place:?}, {n}, rank {rank}: {gave:?}");
                    };
                    let text = error.to_string();
                    let both = [format!("of {} i32 (bit-or)", n + 12_526), format!("of {n} bool")];
                    assert!(both.iter().all(|side| text.contains(side)), "{text}");
                }
            }
        }
    }
}
