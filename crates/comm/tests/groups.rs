//! Groups of messages that only their senders and receivers know.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Blame, BlameKind, Communicator, Error, Options, Reduction};
use weftlink_testkit::processes::this_program;

fn options() -> Options {
    Options { deadline: Duration::from_secs(60), ..Options::default() }
}

fn on_ranks<T: Send>(size: usize, work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::threads(size, options()).unwrap();
    std::thread::scope(|scope| {
        let run = |mut comm: Communicator| work(&mut comm);
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The contents of the n-th message of a group from a rank to another.
fn message(from: usize, to: usize, number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| (from * 1_000_000 + to * 100_000 + number * 10_000 + at) as u32).collect()
}

/// The messages of a group: from, to, length.
type Messages = Vec<(usize, usize, usize)>;

/// Runs a group, and checks the received data.
fn check(comm: &mut Communicator, messages: &Messages) {
    let me = comm.rank();
    let number = |position: usize| {
        let (from, to, _) = messages[position];
        messages[..position].iter().filter(|earlier| (earlier.0, earlier.1) == (from, to)).count()
    };
    let wanted = |position: usize| {
        let (from, to, length) = messages[position];
        message(from, to, number(position), length)
    };
    let positions = 0..messages.len();
    let sent: Vec<_> =
        positions.clone().filter(|&at| messages[at].0 == me).map(|at| (messages[at].1, wanted(at))).collect();
    let mut got: Vec<_> = positions
        .filter(|&at| messages[at].1 == me)
        .map(|at| (at, messages[at].0, vec![u32::MAX; messages[at].2]))
        .collect();
    comm.group(|group| {
        // In another order than on the other side, except for messages of one rank.
        got.iter_mut().try_for_each(|(_, from, target)| group.receive(*from, target))?;
        sent.iter()
            .rev()
            .map(|(to, _)| *to)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .rev()
            .try_for_each(|to| {
                sent.iter()
                    .filter(|(other, _)| *other == to)
                    .try_for_each(|(to, source)| group.send(*to, source))
            })
    })
    .unwrap();
    for (position, from, target) in got {
        assert_eq!(target, wanted(position), "from rank {from} to {me} of {messages:?}");
    }
}

fn all_kinds(size: usize) -> Vec<Messages> {
    let ring = |length: usize| (0..size).map(|rank| (rank, (rank + 1) % size, length)).collect();
    let last = size - 1;
    vec![
        vec![],
        ring(1),
        ring(40_000),
        ring(300_000),
        // One message, unknown to the others.
        vec![(last, 0, 12)],
        // To itself.
        vec![(0, 0, 5), (0, 0, 7), (last, last, 1000)],
        // Several between the same two, of different lengths, some without elements.
        vec![(0, last, 3), (0, last, 0), (last, 0, 70_000), (0, last, 9), (last, 0, 1)],
        vec![(0, last, 0)],
        (0..40).map(|number| (number % size, (number * 7 + 1) % size, number * 3)).collect(),
        // All to all, unevenly.
        (0..size * size).map(|pair| (pair / size, pair % size, pair * 11)).collect(),
    ]
}

#[test]
fn messages_arrive_in_order() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            for _ in 0..2 {
                all_kinds(size).iter().for_each(|messages| check(comm, messages));
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn groups_of_many_patterns_work() {
    // The 512 subsets of the ordered pairs of three ranks.
    on_ranks(3, |comm| {
        for ways in 0..512 {
            let messages =
                (0..9).filter(|pair| ways >> pair & 1 == 1).map(|pair| (pair / 3, pair % 3, 2 + pair % 2));
            check(comm, &messages.collect());
        }
    });
}

/// Opens what groups need, with all ranks.
fn open(comm: &mut Communicator) {
    comm.group(|_| Ok(())).unwrap();
}

#[test]
fn only_the_two_ranks_of_a_message_take_part() {
    let gate = Barrier::new(3);
    on_ranks(3, |comm| {
        open(comm);
        // Rank 2 makes no call until the others are through.
        if comm.rank() < 2 {
            (0..100).for_each(|round| check(comm, &vec![(0, 1, round * 50), (1, 0, 3)]));
        }
        gate.wait();
        comm.barrier().unwrap();
    });
}

#[test]
fn messages_match_in_order_across_groups() {
    on_ranks(2, |comm| {
        open(comm);
        let (long, mut one, mut two) = (vec![7_u32; 50_000], vec![0; 50_000], [0_u32; 3]);
        if comm.rank() == 0 {
            comm.group(|group| {
                group.send(1, &long)?;
                group.send(1, &[1_u32, 2, 3])
            })
            .unwrap();
        } else {
            comm.group(|group| group.receive(0, &mut one)).unwrap();
            comm.group(|group| group.receive(0, &mut two)).unwrap();
            assert!(one == long && two == [1, 2, 3]);
        }
    });
}

#[test]
fn a_message_does_not_wait_for_the_others_of_its_group() {
    // Rank 2 sends to rank 0 and receives from rank 1 in one group; rank 1 sends only after it has heard from rank 0.
    on_ranks(3, |comm| {
        open(comm);
        let (data, mut got) = (vec![comm.rank() as u8; 100_000], vec![9_u8; 100_000]);
        match comm.rank() {
            0 => {
                comm.group(|group| group.receive(2, &mut got)).unwrap();
                comm.group(|group| group.send(1, &data)).unwrap();
            }
            1 => {
                comm.group(|group| group.receive(0, &mut got)).unwrap();
                comm.group(|group| group.send(2, &data)).unwrap();
            }
            _ => comm
                .group(|group| {
                    group.receive(1, &mut got)?;
                    group.send(0, &data)
                })
                .unwrap(),
        }
        assert_eq!(got[99_999] as usize, (comm.rank() + 2) % 3);
    });
}

#[test]
fn a_group_has_many_messages() {
    const MANY: usize = 20_000;
    on_ranks(2, |comm| {
        let (peer, mine) = (1 - comm.rank(), (0..MANY as u32).collect::<Vec<_>>());
        let mut theirs = vec![0; MANY];
        comm.group(|group| {
            mine.chunks(1).try_for_each(|one| group.send(peer, one))?;
            theirs.chunks_mut(1).try_for_each(|one| group.receive(peer, one))
        })
        .unwrap();
        assert!(theirs == mine);
    });
}

#[test]
fn a_rank_that_does_not_exist_is_a_misuse() {
    on_ranks(2, |comm| {
        let error = comm.group(|group| group.send(9, &[1_u8])).unwrap_err();
        assert_eq!(error.to_string(), "there is no rank 9: there are 2");
        check(comm, &vec![(0, 1, 100)]);
    });
}

#[test]
fn messages_that_differ_fail_and_name_both_lengths() {
    for bytes in [40, 100_000] {
        let errors = on_ranks(3, |comm| {
            open(comm);
            let (data, mut target) = (vec![7_u8; bytes], vec![0_u8; bytes + 4]);
            let error = match comm.rank() {
                1 => comm.group(|group| group.send(2, &data)).err(),
                2 => comm.group(|group| group.receive(1, &mut target)).err(),
                _ => None,
            };
            assert!(target.iter().all(|byte| *byte == 0), "nothing was moved");
            // The communicator has failed, on all ranks.
            (error.map(|error| error.to_string()), comm.barrier().unwrap_err().to_string())
        });
        let shows = |error: &str| {
            error.contains(&format!("send of {bytes} u8"))
                && error.contains(&format!("receive of {} u8", bytes + 4))
        };
        assert!(errors[2].0.as_deref().is_some_and(shows), "{errors:?}");
        // A short message may be buffered before its receive is posted.
        assert!(errors[1].0.as_deref().map_or(bytes == 40, shows), "{errors:?}");
        assert!(errors.iter().all(|(_, later)| shows(later)), "{errors:?}");
    }
}

#[test]
fn unmatched_messages_time_out_and_name_the_peer() {
    let short = Options { deadline: Duration::from_secs(1), ..options() };
    for bytes in [8, 100_000] {
        for sends in [false, true] {
            let ranks = Communicator::threads(2, short).unwrap();
            let gate = Barrier::new(2);
            std::thread::scope(|scope| {
                for mut comm in ranks {
                    let gate = &gate;
                    scope.spawn(move || {
                        open(&mut comm);
                        let (data, mut target) = (vec![7_u8; bytes], vec![0_u8; bytes]);
                        if comm.rank() == 0 {
                            let done = comm.group(|group| match sends {
                                true => group.send(1, &data),
                                false => group.receive(1, &mut target),
                            });
                            // A short message is buffered.
                            if !(sends && bytes == 8) {
                                let error = done.unwrap_err();
                                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                                assert!(error.to_string().contains("rank 1 (pid "), "{error}");
                                assert_eq!(
                                    error.blamed(),
                                    [Blame::of(1, BlameKind::Late, "", std::process::id())]
                                );
                                assert!(comm.group(|_| Ok(())).is_err());
                            }
                        }
                        gate.wait();
                    });
                }
            });
        }
    }
}

#[test]
fn a_rank_that_left_is_named() {
    let ranks = Communicator::threads(2, options()).unwrap();
    std::thread::scope(|scope| {
        for mut comm in ranks {
            scope.spawn(move || {
                open(&mut comm);
                if comm.rank() == 1 {
                    // Arrives although its sender leaves at once.
                    return comm.group(|group| group.send(0, &[5_u32])).unwrap();
                }
                let mut got = [0_u32; 1];
                comm.group(|group| group.receive(1, &mut got)).unwrap();
                assert_eq!(got, [5]);
                let error = comm.group(|group| group.receive(1, &mut got)).unwrap_err();
                assert!(matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. }), "{error}");
            });
        }
    });
}

#[test]
fn differing_calls_are_reported() {
    let errors = on_ranks(2, |comm| {
        comm.barrier().unwrap();
        match comm.rank() {
            0 => comm.group(|_| Ok(())).unwrap_err().to_string(),
            _ => comm.all_reduce(&mut [1.0], Reduction::Sum).unwrap_err().to_string(),
        }
    });
    for error in errors {
        assert!(error.contains("endpoint") && error.contains("all-reduce of 1 f64"), "{error}");
    }
}

#[test]
fn processes_send_groups() {
    const ROLE: &str = "WEFT_TEST_RANK";
    const SIZE: usize = 3;
    if let Ok(rank) = std::env::var(ROLE) {
        let rank: usize = rank.parse().unwrap();
        let place =
            RendezvousAddress::Abstract(format!("weft-groups-{}", std::os::unix::process::parent_id()));
        let token = Token::new("groups").unwrap();
        let meeting = Rendezvous::new(place, token, SIZE, Duration::from_secs(60));
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let mut comm = Communicator::new(met.unwrap(), options()).unwrap();
        all_kinds(SIZE).iter().for_each(|messages| check(&mut comm, messages));
        return comm.barrier().unwrap();
    }
    let start = |rank: usize| {
        let mut command = this_program();
        command.args(["--exact", "processes_send_groups", "--nocapture"]).env(ROLE, rank.to_string());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..SIZE).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}
