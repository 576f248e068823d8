//! Messages that cannot be delivered end with an error that says why, on both sides and in bounded time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code)] // Fork is unsafe to call, and so are messages by address.

mod endpoints;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use endpoints::{LONG, StartOwned, filled, on_communicators, on_ranks};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Blame, BlameKind, Communicator, Endpoint, Error, Options};
use weftlink_testkit::processes::{may_read_memory, this_program};

const SHORT: Duration = Duration::from_millis(30);

#[test]
fn a_receive_that_times_out_names_its_source() {
    on_ranks(2, |endpoint| {
        let peer = 1 - endpoint.rank();
        let error = endpoint.receive(Some(peer), 5, &mut [0; 8], SHORT).unwrap_err();
        let Error::Deadline { what, waited, .. } = &error else { panic!("{error}") };
        assert!(what.contains(&format!("8 bytes with tag 5 from rank {peer} (pid ")), "{error}");
        assert!(*waited >= SHORT && *waited < LONG, "{error}");
        let error = endpoint.receive(None, 5, &mut [0; 8], SHORT).unwrap_err();
        assert!(error.to_string().contains("from any rank"), "{error}");
        // The endpoint still works.
        endpoint.send(peer, 6, b"go on", LONG).unwrap();
        let mut got = [0; 5];
        endpoint.receive(Some(peer), 6, &mut got, LONG).unwrap();
        assert_eq!(&got, b"go on");
    });
}

#[test]
fn a_rendezvous_send_that_times_out_aborts_the_communicator() {
    let gate = Barrier::new(2);
    on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        if comm.rank() == 0 {
            let error = endpoint.send(1, 5, &[1; 100_000], SHORT).unwrap_err();
            let Error::Deadline { what, .. } = &error else { panic!("{error}") };
            assert!(what.starts_with("rank 1 (pid ") && what.ends_with("to receive 100000 bytes with tag 5"));
            assert_eq!(error.blamed(), [Blame::of(1, BlameKind::Late, "", std::process::id())]);
            gate.wait();
        } else {
            gate.wait();
            let error = endpoint.receive(Some(0), 5, &mut [0; 100_000], LONG).unwrap_err();
            assert!(matches!(error, Error::Aborted { by: 0, .. }), "{error}");
            // Rank 0 blames the rank that it waited for.
            assert_eq!(error.blamed(), [Blame::of(1, BlameKind::Late, "", std::process::id())]);
        }
        let error = endpoint.post_receive(None, 1, 4).recv().unwrap().unwrap_err();
        assert!(matches!(error, Error::Aborted { by: 0, .. }), "{error}");
        comm.barrier().unwrap_err();
    });
}

#[test]
fn a_queued_send_that_times_out_is_withdrawn() {
    let gate = Barrier::new(2);
    on_ranks(2, |endpoint| {
        const MANY: u64 = 60;
        if endpoint.rank() == 0 {
            // Rank 1 does not poll, so its ring fills up.
            let sent: Vec<_> =
                (0..MANY).map(|number| endpoint.send(1, 1, &number.to_le_bytes(), Duration::ZERO)).collect();
            let sent = sent.into_iter().enumerate().filter(|(_, sent)| sent.is_ok());
            let sent: Vec<u64> = sent.map(|(number, _)| number as u64).collect();
            assert!(!sent.is_empty() && sent.len() < MANY as usize, "{sent:?}");
            gate.wait();
            endpoint.send(1, 2, &(sent.len() as u64).to_le_bytes(), LONG).unwrap();
            let numbers: Vec<u8> = sent.iter().flat_map(|number| number.to_le_bytes()).collect();
            endpoint.send(1, 3, &numbers, LONG).unwrap();
        } else {
            gate.wait();
            let mut count = [0; 8];
            endpoint.receive(Some(0), 2, &mut count, LONG).unwrap();
            let mut numbers = vec![0; 8 * u64::from_le_bytes(count) as usize];
            endpoint.receive(Some(0), 3, &mut numbers, LONG).unwrap();
            for number in numbers.chunks(8) {
                let mut got = [0; 8];
                endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
                assert_eq!(got, number);
            }
            let more = endpoint.receive(Some(0), 1, &mut [0; 8], SHORT).unwrap_err();
            assert!(matches!(more, Error::Deadline { .. }), "{more}");
        }
    });
}

#[test]
fn a_receive_from_any_rank_ends_when_all_others_have_left() {
    on_communicators(3, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        if comm.rank() == 0 {
            let error = endpoint.receive(None, 1, &mut [0; 4], LONG).unwrap_err();
            assert!(matches!(error, Error::Left { .. }), "{error}");
        }
    });
}

#[test]
fn a_rank_that_leaves_is_named_and_its_messages_arrive() {
    on_communicators(3, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        if comm.rank() == 1 {
            endpoint.send(0, 1, b"farewell", LONG).unwrap();
            endpoint.send(2, 1, &filled(50_000, 1), LONG).unwrap();
            return;
        }
        if comm.rank() == 0 {
            let waiting = endpoint.post_receive(Some(1), 2, 4);
            let error = waiting.recv().unwrap().unwrap_err();
            assert!(matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. }), "{error}");
            let mut got = [0; 8];
            endpoint.receive(Some(1), 1, &mut got, LONG).unwrap();
            assert_eq!(&got, b"farewell");
            let error = endpoint.send(1, 1, &[1; 3], LONG).unwrap_err();
            assert!(matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. }), "{error}");
            endpoint.send(2, 7, b"done", LONG).unwrap();
        } else {
            let mut got = vec![0; 50_000];
            endpoint.receive(Some(1), 1, &mut got, LONG).unwrap();
            assert!(got == filled(50_000, 1));
            // Rank 0 may still send.
            assert_eq!(endpoint.receive(None, 7, &mut [0; 4], LONG).unwrap(), 0);
        }
    });
}

#[test]
fn messages_fail_with_the_cause_of_another_ranks_abort() {
    on_communicators(3, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        match comm.rank() {
            // Leaves.
            2 => {}
            0 => {
                let error = comm.window::<f32>(10).unwrap_err();
                assert_eq!((error.blamed()[0].rank, error.blamed()[0].kind), (2, BlameKind::Left), "{error}");
            }
            _ => {
                let error = endpoint.receive(Some(0), 1, &mut [0; 4], LONG).unwrap_err();
                assert!(matches!(error, Error::Aborted { by: 0, reason: "a rank has left", .. }), "{error}");
                assert_eq!((error.blamed()[0].rank, error.blamed()[0].kind), (2, BlameKind::Left), "{error}");
            }
        }
    });
}

#[test]
fn an_abort_ends_messages_too() {
    on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        let background = comm.into_background().unwrap();
        let waiting = endpoint.post_receive(Some(1 - endpoint.rank()), 2, 4);
        let sending = endpoint.post_send(1 - endpoint.rank(), 3, vec![0; 100_000]);
        if endpoint.rank() == 0 {
            background.abort("enough");
        }
        let error = waiting.recv().unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled { by: Blame { rank: 0, .. }, .. }), "{error}");
        assert!(error.to_string().contains("enough"), "{error}");
        assert!(matches!(sending.recv().unwrap(), Err(Error::Cancelled { by: Blame { rank: 0, .. }, .. })));
        let error = endpoint.send(0, 3, &[], LONG).unwrap_err();
        assert!(matches!(error, Error::Cancelled { by: Blame { rank: 0, .. }, .. }), "{error}");
    });
}

#[test]
fn an_endpoint_ends_with_its_communicator() {
    let ranks = Communicator::threads(2, Options::default()).unwrap();
    std::thread::scope(|scope| {
        for mut comm in ranks {
            scope.spawn(move || {
                let endpoint = comm.endpoint().unwrap();
                let waiting = endpoint.post_receive(Some(1 - comm.rank()), 2, 4);
                comm.barrier().unwrap();
                drop(comm);
                let error = waiting.recv().unwrap().unwrap_err();
                assert!(matches!(error, Error::Left { .. } | Error::Failed { .. }), "{error}");
                let error = endpoint.receive(None, 2, &mut [0; 4], LONG).unwrap_err();
                assert!(matches!(error, Error::Failed { .. }), "{error}");
            });
        }
    });
}

#[test]
fn a_panic_in_a_callback_is_contained() {
    on_ranks(2, |endpoint| {
        let peer = 1 - endpoint.rank();
        let done = |_: Result<usize, Error>| panic!("on purpose, by a test");
        // SAFETY: there are no bytes to write.
        unsafe { endpoint.start_receive(Some(peer), 1, std::ptr::null_mut(), 0, LONG, done) };
        let after = endpoint.post_receive(Some(peer), 2, 3);
        endpoint.send(peer, 1, &[], LONG).unwrap();
        endpoint.send(peer, 2, b"yes", LONG).unwrap();
        assert_eq!(after.recv().unwrap().unwrap().1, b"yes");
    });
}

#[test]
fn a_forked_process_is_refused() {
    let ranks = Communicator::threads(2, Options::default()).unwrap();
    let [mut one, mut two] = <[Communicator; 2]>::try_from(ranks).unwrap();
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| two.endpoint().unwrap());
        (one.endpoint().unwrap(), other.join().unwrap())
    });
    let waiting = first.post_receive(Some(1), 1, 3);
    // SAFETY: the child does what is tested, without printing, and ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_refused = |error: Error| error.to_string().contains("was forked");
        let sent = first.send(1, 1, b"bad", LONG).is_err_and(is_refused);
        let received = first.post_receive(Some(1), 1, 3).recv().unwrap().is_err_and(is_refused);
        drop((first, second));
        // SAFETY: ends the child without running what the parent has set up.
        unsafe { libc::_exit(if sent && received { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of our own, and a place for its end.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "how the child ended");
    second.send(0, 1, b"yes", LONG).unwrap();
    assert_eq!(waiting.recv().unwrap().unwrap().1, b"yes");
}

/// Set for a process that is rank 1: where it meets rank 0, and how messages are transferred.
const ROLE: &str = "WEFT_TEST_POST";

/// Runs both parts of a test, rank 0 here and rank 1 in a process of its own, with pulls and without.
fn with_a_process(test: &str, here: impl Fn(Endpoint, Child), there: impl Fn(Endpoint)) {
    let options =
        |single_copy| Options { deadline: LONG, single_copy: Some(single_copy), ..Options::default() };
    let meeting = |place: &str| {
        Rendezvous::new(
            RendezvousAddress::Abstract(place.to_owned()),
            Token::new("endpoint").unwrap(),
            2,
            LONG,
        )
    };
    if let Ok(place) = std::env::var(ROLE) {
        let met = Bootstrap::join(&meeting(&place), 1).unwrap();
        let mut comm = Communicator::new(met, options(place.ends_with("true"))).unwrap();
        return there(comm.endpoint().unwrap());
    }
    for single_copy in [true, false] {
        let place = format!("{test}-{}-{single_copy}", std::process::id());
        let child = this_program()
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, &place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let met = Bootstrap::listen(&meeting(&place)).unwrap();
        let mut comm = Communicator::new(met, options(single_copy)).unwrap();
        here(comm.endpoint().unwrap(), child);
    }
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn is_death_of_1(error: &Error) -> bool {
    matches!(error, Error::Died { died: Blame { rank: 1, .. }, rank: 0, .. })
}

#[test]
fn messages_go_between_processes() {
    let lengths = [0, 8, 5000, 1 << 20];
    let exchange = |endpoint: &Endpoint| {
        let peer = 1 - endpoint.rank();
        for (tag, bytes) in (0..).zip(lengths) {
            let received = endpoint.post_receive(Some(peer), tag, bytes);
            endpoint.send(peer, tag, &filled(bytes, tag), LONG).unwrap();
            assert!(received.recv().unwrap().unwrap().1 == filled(bytes, tag), "{bytes} bytes");
        }
        // Neither leaves before the other has everything.
        endpoint.send(peer, 99, &[], LONG).unwrap();
        endpoint.receive(Some(peer), 99, &mut [], LONG).unwrap();
    };
    let here = |endpoint: Endpoint, mut child: Child| {
        exchange(&endpoint);
        assert!(child.wait().unwrap().success());
    };
    with_a_process("messages_go_between_processes", here, |endpoint| exchange(&endpoint));
}

#[test]
fn the_death_of_a_process_ends_pending_messages() {
    let here = |endpoint: Endpoint, mut child: Child| {
        let receiving = endpoint.post_receive(Some(1), 1, 8);
        let from_any = endpoint.post_receive(None, 1, 8);
        // Longer than the ring: rank 1 does not receive it.
        let sending = endpoint.post_send(1, 2, vec![1; 3 << 20]);
        endpoint.receive(Some(1), 3, &mut [0; 2], LONG).unwrap();
        let began = Instant::now();
        kill(&mut child);
        for error in [receiving.recv().unwrap().unwrap_err(), from_any.recv().unwrap().unwrap_err()] {
            assert!(is_death_of_1(&error), "{error}");
        }
        let error = sending.recv().unwrap().unwrap_err();
        assert!(is_death_of_1(&error), "{error}");
        assert!(error.to_string().contains("send of 3145728 bytes with tag 2 to rank 1"), "{error}");
        let error = endpoint.receive(Some(1), 3, &mut [0; 2], LONG).unwrap_err();
        assert!(is_death_of_1(&error), "{error}");
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    };
    let there = |endpoint: Endpoint| {
        endpoint.send(0, 3, b"go", LONG).unwrap();
        wait_for_the_end();
    };
    with_a_process("the_death_of_a_process_ends_pending_messages", here, there);
}

#[test]
fn the_death_of_a_process_in_the_middle_of_a_message_ends_it() {
    // Rank 0 pulls the offer of rank 1 only after rank 1 has died, or never gets the remaining pieces.
    let here = |endpoint: Endpoint, mut child: Child| {
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line == "offered"));
        kill(&mut child);
        let error = endpoint.receive(Some(1), 4, &mut vec![0; 8 << 20], LONG).unwrap_err();
        assert!(is_death_of_1(&error), "{error}");
    };
    let there = |endpoint: Endpoint| {
        let sending = endpoint.post_send(0, 4, vec![7; 8 << 20]);
        println!("\noffered");
        std::io::stdout().flush().unwrap();
        wait_for_the_end();
        drop(sending);
    };
    with_a_process("the_death_of_a_process_in_the_middle_of_a_message_ends_it", here, there);
}

/// The kernel may refuse to read a sender's memory although the sender lives.
#[test]
fn unreadable_messages_fail_on_both_sides() {
    const BYTES: usize = 1 << 20;
    let is_unreadable = |error: &Error, by: u32| matches!(error, Error::Unreadable { rank, peer, .. } if *rank == by && peer.rank == 1 - by);
    let here = |endpoint: Endpoint, mut child: Child| {
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        match said.find(|line| ["offered", "skipped"].contains(&line.as_str())).as_deref() {
            Some("offered") => {
                let error = endpoint.receive(Some(1), 4, &mut vec![0; BYTES], LONG).unwrap_err();
                assert!(is_unreadable(&error, 0), "{error}");
            }
            said => assert_eq!(said, Some("skipped")),
        }
        // The communicator still works.
        endpoint.send(1, 5, b"go on", LONG).unwrap();
        assert!(child.wait().unwrap().success());
    };
    let there = |endpoint: Endpoint| {
        let is_read = std::env::var(ROLE).is_ok_and(|place| place.ends_with("true")) && may_read_memory();
        let hidden = is_read.then(|| {
            // SAFETY: fresh memory, which nobody in this process touches from here on; a message is sent from it by its address.
            let address = unsafe {
                let flags = MapFlags::PRIVATE;
                mmap_anonymous(std::ptr::null_mut(), BYTES, ProtFlags::empty(), flags).unwrap()
            };
            let (tell, told) = std::sync::mpsc::channel();
            let done = move |result: Result<(), Error>| tell.send(result).unwrap();
            // SAFETY: the memory stays mapped until the process ends.
            unsafe { endpoint.start_send(0, 4, address.cast(), BYTES, LONG, done) };
            told
        });
        println!("\n{}", if is_read { "offered" } else { "skipped" });
        std::io::stdout().flush().unwrap();
        endpoint.receive(Some(0), 5, &mut [0; 5], LONG).unwrap();
        if let Some(told) = hidden {
            let error = told.recv().unwrap().unwrap_err();
            assert!(is_unreadable(&error, 1), "{error}");
        }
    };
    with_a_process("unreadable_messages_fail_on_both_sides", here, there);
}

/// A death aborts the communicator, and so ends messages between living ranks too. Their errors name the rank that died.
#[test]
fn the_death_of_a_third_rank_ends_messages_and_is_named() {
    let test = "the_death_of_a_third_rank_ends_messages_and_is_named";
    let options = Options { deadline: LONG, ..Options::default() };
    let meeting = |place: &str| {
        Rendezvous::new(
            RendezvousAddress::Abstract(place.to_owned()),
            Token::new("endpoint").unwrap(),
            3,
            LONG,
        )
    };
    let is_death_of_2 = |error: &Error| {
        let blamed = error.blamed();
        let [Blame { rank: 2, kind: BlameKind::Died, pid: Some(pid), .. }] = blamed[..] else { return false };
        matches!(error, Error::Died { .. })
            && error.to_string().starts_with(&format!("rank 2 (pid {pid}) died "))
    };
    if let Ok(role) = std::env::var(ROLE) {
        let (rank, place) = role.split_once(' ').unwrap();
        let met = Bootstrap::join(&meeting(place), rank.parse().unwrap()).unwrap();
        let mut comm = Communicator::new(met, options).unwrap();
        let endpoint = comm.endpoint().unwrap();
        if rank == "2" {
            return wait_for_the_end();
        }
        endpoint.receive(Some(0), 1, &mut [0; 8], LONG).unwrap();
        endpoint.send(0, 3, b"go", LONG).unwrap();
        let error = endpoint.receive(Some(0), 2, &mut [0; 8], LONG).unwrap_err();
        assert!(is_death_of_2(&error), "{error}");
        return;
    }
    let place = format!("{test}-{}", std::process::id());
    let start = |rank: u32| {
        this_program()
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, format!("{rank} {place}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let (mut one, mut two) = (start(1), start(2));
    let mut comm = Communicator::new(Bootstrap::listen(&meeting(&place)).unwrap(), options).unwrap();
    let endpoint = comm.endpoint().unwrap();
    // A completed receive stays completed.
    endpoint.send(1, 1, &[1; 8], LONG).unwrap();
    endpoint.receive(Some(1), 3, &mut [0; 2], LONG).unwrap();
    let waiting = endpoint.post_receive(Some(1), 4, 8);
    kill(&mut two);
    let error = waiting.recv().unwrap().unwrap_err();
    assert!(is_death_of_2(&error), "{error}");
    assert!(error.to_string().starts_with(&format!("rank 2 (pid {}) died", two.id())), "{error}");
    assert!(one.wait().unwrap().success());
}

/// Waits until the parent kills this process, or is gone itself.
fn wait_for_the_end() {
    let mut nothing = String::new();
    let _ = std::io::stdin().read_line(&mut nothing);
}
