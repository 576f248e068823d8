//! Communicators made of others: parts of one, what is left of one after deaths, one that grows. Ranks are threads, and
//! processes of one host and of pretended ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "it forks")]

use std::process::Child;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Blame, Communicator, Error, Options, Reduction};
use weftlink_testkit::ports::reserved;
use weftlink_testkit::processes::this_program;

const AMPLE: Duration = Duration::from_secs(60);
const ROLE: &str = "WEFT_TEST_ROLE";

fn options() -> Options {
    Options { deadline: AMPLE, ..Options::default() }
}

/// Adds up ranks' numbers, and checks it.
fn check(comm: &mut Communicator, calls: usize) -> Result<(), Error> {
    let (rank, size) = (comm.rank(), comm.size());
    for call in 0..calls {
        let mut sum = vec![(rank + call) as u64; 1 + call % 300];
        comm.all_reduce(&mut sum[..], Reduction::Sum)?;
        let expected: u64 = (0..size).map(|rank| (rank + call) as u64).sum();
        assert!(sum.iter().all(|value| *value == expected), "call {call} of rank {rank}");
    }
    Ok(())
}

/// All ranks of a job as threads of this process, `per_host` to a host.
fn on_hosts<T: Send>(size: usize, per_host: usize, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let meeting = meeting(size);
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let meeting = of_host(&meeting, 1 + rank / per_host);
            let work = &work;
            scope.spawn(move || work(Communicator::new(met(&meeting, rank), options()).unwrap()))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn meeting(size: usize) -> Rendezvous {
    let port = reserved();
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
    Rendezvous::new(place, Token::new("regroup").unwrap(), size, AMPLE)
}

fn of_host(meeting: &Rendezvous, host: usize) -> Rendezvous {
    let network = Network { pretended_host: Some(host as u64), ..Network::default() };
    Rendezvous { network, ..meeting.clone() }
}

fn met(meeting: &Rendezvous, rank: usize) -> Bootstrap {
    if rank == 0 { Bootstrap::listen(meeting).unwrap() } else { Bootstrap::join(meeting, rank).unwrap() }
}

#[test]
fn split_communicators_work_beside_their_parent() {
    let work = |mut comm: Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        // The other way around, by their keys; the last rank is in no part.
        let part = (rank + 1 < size).then_some((rank % 2) as u32);
        let split = comm.split(part, -(rank as i64)).unwrap();
        assert_eq!(split.is_some(), part.is_some());
        std::thread::scope(|scope| {
            if let Some(mut split) = split {
                let mut expected: Vec<usize> = (0..size - 1).filter(|other| other % 2 == rank % 2).collect();
                expected.reverse();
                assert_eq!(split.origins(), expected);
                assert_eq!(split.origins()[split.rank()], rank);
                scope.spawn(move || check(&mut split, 50).unwrap());
            }
            check(&mut comm, 50).unwrap();
        });
        // Parts of parts.
        let mut half = comm.split(Some(u32::from(rank >= size / 2)), 0).unwrap().unwrap();
        let mut quarter = half.split(Some((half.rank() % 2) as u32), 0).unwrap().unwrap();
        check(&mut quarter, 10).unwrap();
        check(&mut half, 10).unwrap();
        // A group for another executor.
        let mut group = comm.duplicate_group().unwrap();
        let ranks = group.exchange("ranks", vec![rank as u8], Duration::from_secs(60)).unwrap();
        assert_eq!(ranks, (0..size as u8).map(|rank| [rank]).collect::<Vec<_>>());
        check(&mut comm, 10).unwrap();
    };
    weftlink_comm::on_threads(5, |comm| {
        work(comm);
        Ok(())
    })
    .unwrap();
    on_hosts(5, 2, work);
}

#[test]
fn splits_match_only_splits() {
    let errors = on_hosts(3, 3, |mut comm| match comm.rank() {
        1 => comm.barrier().unwrap_err().to_string(),
        _ => comm.split(Some(0), 0).unwrap_err().to_string(),
    });
    for error in errors {
        assert!(error.contains("split") && error.contains("barrier"), "{error}");
    }
}

#[test]
fn survivors_continue() {
    let work = |mut comm: Communicator| {
        check(&mut comm, 3).unwrap();
        if comm.rank() == 1 {
            return; // It leaves; the others find out in their next call.
        }
        let error = check(&mut comm, 3).unwrap_err();
        assert!(
            matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. } | Error::Aborted { .. }),
            "{error}"
        );
        let mut comm = comm.shrink().unwrap();
        assert_eq!(comm.origins(), [0, 2, 3]);
        check(&mut comm, 100).unwrap();
    };
    weftlink_comm::on_threads(4, |comm| {
        work(comm);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_shrinks_too_late_is_excluded() {
    let is_over = std::sync::Barrier::new(3);
    let (meeting, deadline) = (meeting(3), Duration::from_secs(2));
    let work = |rank: usize| {
        let bootstrap = met(&of_host(&meeting, 1 + rank), rank);
        if rank == 2 {
            std::thread::sleep(2 * deadline);
        }
        let regrouped = bootstrap.shrink(deadline);
        match rank {
            2 => assert_eq!(regrouped.as_ref().unwrap_err(), &BootstrapError::Excluded { rank: 2 }),
            _ => assert_eq!(regrouped.as_ref().unwrap().origins(), [0, 1]),
        }
        // The others are there until the late rank has its answer.
        is_over.wait();
    };
    std::thread::scope(|scope| {
        let start = |rank: usize| scope.spawn(move || work(rank));
        (0..3).map(start).collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// Ranks 1 and 2 drop the communicator after it has failed, and their processes live on with another one.
#[test]
fn ranks_that_dropped_a_failed_communicator_need_no_vote() {
    let (has_dropped, is_over) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
    on_hosts(3, 1, |mut comm| {
        let rank = comm.rank();
        let other = comm.split(Some(rank as u32), 0).unwrap();
        // Calls that differ fail on all ranks.
        let called = if rank == 0 { comm.barrier() } else { check(&mut comm, 1) };
        called.unwrap_err();
        let survivor = (rank == 0).then_some(comm);
        has_dropped.wait();
        let began = std::time::Instant::now();
        let shrunk = survivor.map(Communicator::shrink);
        let time = began.elapsed();
        is_over.wait();
        drop(other);
        if let Some(shrunk) = shrunk {
            assert_eq!(shrunk.unwrap().origins(), [0]);
            assert!(time < AMPLE / 2, "it waited for ranks that had left: {time:?}");
        }
    });
}

/// A rank process: makes calls until ranks die, and continues with the survivors.
fn rank_of_a_dying_job(role: &str) {
    let mut words = role.split(' ');
    let mut number = || words.next().unwrap().parse::<usize>().unwrap();
    let (rank, size, port, per_host, dies, also) =
        (number(), number(), number(), number(), number(), number());
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port as u16..=port as u16 };
    let meeting = Rendezvous::new(place, Token::new("regroup").unwrap(), size, AMPLE);
    let mut comm = Communicator::new(met(&of_host(&meeting, 1 + rank / per_host), rank), options()).unwrap();
    // Whoever is slower than the one that dies may see it in the first calls already.
    let error = loop {
        match check(&mut comm, 20) {
            Ok(()) if rank == dies => std::process::abort(),
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let name = format!("rank {dies} (");
    assert!(error.to_string().starts_with(&name), "rank {rank}: {error}");
    if rank == also {
        // At a random moment, while the others shrink.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(std::process::id() as u64 % 7));
            std::process::abort();
        });
    }
    let mut comm = comm.shrink().unwrap();
    loop {
        match check(&mut comm, 300) {
            Ok(()) if comm.origins().contains(&also) => {} // It is about to die.
            Ok(()) => break,
            Err(error) => {
                assert!(matches!(error, Error::Died { .. }), "rank {rank}: {error}");
                comm = comm.shrink().unwrap();
            }
        }
    }
    let left: Vec<usize> = (0..size).filter(|rank| ![dies, also].contains(rank)).collect();
    assert_eq!(comm.origins(), left);
}

#[test]
fn survivors_name_dead_ranks_and_continue() {
    if let Ok(role) = std::env::var(ROLE) {
        return rank_of_a_dying_job(&role);
    }
    // Which rank dies first, and which while the others shrink: the root of the tree, inner ranks, leaves.
    for (size, per_host, dies, also) in [(2, 2, 0, 9), (5, 5, 1, 9), (5, 2, 0, 1), (4, 1, 3, 0)] {
        let port = reserved();
        let start = |rank: usize| -> Child {
            let mut command = this_program();
            command.args(["--exact", "survivors_name_dead_ranks_and_continue", "--nocapture"]);
            command.env(ROLE, format!("{rank} {size} {port} {per_host} {dies} {also}"));
            command.spawn().unwrap()
        };
        let mut ranks: Vec<Child> = (0..size).map(start).collect();
        for (rank, child) in ranks.iter_mut().enumerate() {
            let ended = child.wait().unwrap();
            let dies = [dies, also].contains(&rank);
            assert_eq!(ended.success(), !dies, "rank {rank} of {size}, {per_host} to a host: {ended}");
        }
    }
}

/// A rank of four whose tree is 0 over 1 and 2, and 2 over 3: rank 2 leaves while rank 0 waits for rank 3, which then dies.
fn rank_below_one_that_leaves(role: &str) {
    let mut words = role.split(' ');
    let mut number = || words.next().unwrap().parse::<usize>().unwrap();
    let (rank, port, dies_after_ms) = (number(), number() as u16, number() as u64);
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
    let meeting = Rendezvous::new(place, Token::new("regroup").unwrap(), 4, AMPLE);
    let mut comm = Communicator::new(met(&of_host(&meeting, 1), rank), options()).unwrap();
    let message = |comm: &mut Communicator| {
        let (mine, mut theirs) = (vec![3_u64; rank / 3], vec![0; usize::from(rank == 0)]);
        comm.send_receive((&mine, &mut theirs), &[(3, 0)], 1)
    };
    message(&mut comm).unwrap();
    match rank {
        0 => {
            let error = message(&mut comm).unwrap_err();
            assert!(matches!(error, Error::Died { died: Blame { rank: 3, .. }, .. }), "{error}");
        }
        3 => {
            std::thread::sleep(Duration::from_millis(dies_after_ms));
            std::process::abort();
        }
        // Ranks without a part in the call return at once, unless they learn of the death first.
        _ => {
            let made = message(&mut comm);
            assert!(
                matches!(made, Ok(()) | Err(Error::Died { died: Blame { rank: 3, .. }, .. })),
                "{made:?}"
            );
        }
    }
}

#[test]
fn deaths_below_a_departed_rank_reach_its_parent() {
    const NAME: &str = "deaths_below_a_departed_rank_reach_its_parent";
    if let Ok(role) = std::env::var(ROLE) {
        return rank_below_one_that_leaves(&role);
    }
    // Before it is linked to another rank, and after. At the deadline it would be another error.
    for dies_after_ms in [0, 600] {
        let port = reserved();
        let start = |rank: usize| -> Child {
            let mut command = this_program();
            command.args(["--exact", NAME, "--nocapture"]);
            command.env(ROLE, format!("{rank} {port} {dies_after_ms}")).spawn().unwrap()
        };
        let mut ranks: Vec<Child> = (0..4).map(start).collect();
        for (rank, child) in ranks.iter_mut().enumerate() {
            assert_eq!(child.wait().unwrap().success(), rank != 3, "rank {rank}");
        }
    }
}

/// A rank of four whose tree is 0 over 1 and 2, and 2 over 3: ranks 2 and 3 leave together, the others stay.
fn rank_that_leaves_with_its_parent(role: &str) {
    let mut words = role.split(' ');
    let mut number = || words.next().unwrap().parse::<usize>().unwrap();
    let (rank, port, later_us) = (number(), number() as u16, number() as u64);
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
    let meeting = Rendezvous::new(place, Token::new("regroup").unwrap(), 4, AMPLE);
    let mut comm = Communicator::new(met(&of_host(&meeting, 1), rank), options()).unwrap();
    let message = |comm: &mut Communicator| {
        let (mine, mut theirs) = (vec![7_u64; usize::from(rank == 1)], vec![0; usize::from(rank == 0)]);
        comm.send_receive((&mine, &mut theirs), &[(1, 0)], 1)
    };
    message(&mut comm).unwrap();
    if rank >= 2 {
        std::thread::sleep(Duration::from_micros(later_us * (rank as u64 - 2)));
        return;
    }
    // A rank whose departure was not received is probed after 0.8 s, when its process is gone.
    std::thread::sleep(Duration::from_millis(1500));
    let made = message(&mut comm);
    assert!(matches!(made, Ok(()) | Err(Error::Left { .. })), "rank {rank}: {made:?}");
}

#[test]
fn simultaneous_departures_are_not_deaths() {
    const NAME: &str = "simultaneous_departures_are_not_deaths";
    if let Ok(role) = std::env::var(ROLE) {
        return rank_that_leaves_with_its_parent(&role);
    }
    let start = |port: u16, rank: usize, later_us: u64| -> Child {
        let mut command = this_program();
        command.args(["--exact", NAME, "--nocapture"]);
        command.env(ROLE, format!("{rank} {port} {later_us}")).spawn().unwrap()
    };
    for later_us in [0, 300, 2_000] {
        let port = reserved();
        let ranks: Vec<Child> = (0..4).map(|rank| start(port, rank, later_us)).collect();
        for (rank, mut child) in ranks.into_iter().enumerate() {
            assert!(child.wait().unwrap().success(), "rank {rank}, {later_us} us");
        }
    }
}

/// A rank that forks and dies while the child lives on, with all that it had open.
#[test]
fn a_forked_child_does_not_hide_a_death() {
    if let Ok(port) = std::env::var(ROLE) {
        let port: u16 = port.parse().unwrap();
        let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
        let meeting = Rendezvous::new(place, Token::new("regroup").unwrap(), 2, AMPLE);
        let mut comm = Communicator::new(met(&of_host(&meeting, 2), 1), options()).unwrap();
        check(&mut comm, 3).unwrap();
        // SAFETY: the child does nothing but sleep and end.
        if unsafe { libc::fork() } == 0 {
            std::thread::sleep(AMPLE / 2);
            // SAFETY: it ends here.
            unsafe { libc::_exit(0) };
        }
        std::process::abort();
    }
    let meeting = meeting(2);
    let RendezvousAddress::Tcp { ports, .. } = &meeting.address else { unreachable!() };
    let mut command = this_program();
    command.args(["--exact", "a_forked_child_does_not_hide_a_death", "--nocapture"]);
    let mut child = command.env(ROLE, ports.start().to_string()).spawn().unwrap();
    let began = std::time::Instant::now();
    let mut comm = Communicator::new(met(&of_host(&meeting, 1), 0), options()).unwrap();
    check(&mut comm, 3).unwrap();
    let error = check(&mut comm, 1).unwrap_err();
    assert!(matches!(error, Error::Died { died: Blame { rank: 1, .. }, .. }), "{error}");
    assert!(began.elapsed() < AMPLE / 2, "it was noticed when the child ended");
    child.wait().unwrap();
}

#[test]
fn a_communicator_grows() {
    let (small, large) = (meeting(2), meeting(4));
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let (small, large) = (&small, &large);
            scope.spawn(move || {
                let mut comm = if rank < 2 {
                    let mut comm = Communicator::new(met(small, rank), options()).unwrap();
                    check(&mut comm, 10).unwrap();
                    comm.grow(large).unwrap()
                } else {
                    Communicator::new(met(large, rank), options()).unwrap()
                };
                assert_eq!((comm.rank(), comm.size()), (rank, 4));
                check(&mut comm, 10).unwrap();
            });
        }
    });
}
