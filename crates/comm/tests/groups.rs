//! Groups of messages that only their senders and receivers know.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options, Reduction};
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
        // More than one word each.
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
    // More patterns than have plans of their own: the 512 subsets of the ordered pairs of three ranks.
    on_ranks(3, |comm| {
        for ways in 0..512 {
            let messages =
                (0..9).filter(|pair| ways >> pair & 1 == 1).map(|pair| (pair / 3, pair % 3, 2 + pair % 2));
            check(comm, &messages.collect());
        }
    });
}

#[test]
fn mismatched_groups_fail_on_all_ranks_and_move_nothing() {
    on_ranks(4, |comm| {
        let (data, mut target) = ([7_u8; 64], [0_u8; 64]);
        let me = comm.rank();
        let mut errors = Vec::new();
        let mut expect =
            |comm: &mut Communicator, wanted: &str, what: &dyn Fn(usize) -> Option<(bool, usize, usize)>| {
                let group = comm.group(|group| match what(me) {
                    Some((true, to, bytes)) => group.send(to, &data[..bytes]),
                    Some((false, from, bytes)) => group.receive(from, &mut target[..bytes]),
                    None => Ok(()),
                });
                let error = group.unwrap_err();
                assert!(matches!(error, Error::Misuse(_)), "{error}");
                assert_eq!(error.to_string(), wanted);
                assert_eq!(target, [0; 64], "nothing was moved");
                errors.push(error);
            };
        expect(comm, "rank 1 sends 40 bytes to rank 2, which receives 44", &|rank| match rank {
            1 => Some((true, 2, 40)),
            2 => Some((false, 1, 44)),
            _ => None,
        });
        expect(comm, "rank 3 receives from rank 0, which does not send", &|rank| {
            (rank == 3).then_some((false, 0, 4))
        });
        expect(comm, "rank 0 sends to rank 1, which does not receive", &|rank| {
            (rank == 0).then_some((true, 1, 4))
        });
        expect(comm, "rank 2 sends to rank 9, but there are 4 ranks", &|rank| {
            (rank == 2).then_some((true, 9, 4))
        });
        assert_eq!(errors.len(), 4);
        check(comm, &vec![(0, 3, 100)]);
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
        assert!(error.contains("group of messages") && error.contains("all-reduce of 1 f64"), "{error}");
    }
    // An all-gather of as many bytes is not the same either.
    let errors = on_ranks(2, |comm| match comm.rank() {
        0 => comm.group(|_| Ok(())).unwrap_err().to_string(),
        _ => comm.all_gather(&mut [0_u64; 32]).unwrap_err().to_string(),
    });
    assert!(errors.iter().all(|error| error.contains("group of messages")), "{errors:?}");
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
