//! Messages between ranks of different hosts keep the same promises as those of one host.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code)] // Messages are passed by address.

mod endpoints;
mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use endpoints::{LONG, StartOwned, filled};
use support::on_hosts;
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Blame, BlameKind, Communicator, Endpoint, Error, Options, Reduction};
use weftlink_testkit::ports::reserved;
use weftlink_testkit::processes::this_program;

/// Runs the work on four ranks of two hosts, with checksums or with encryption.
fn on_four(encrypt: bool, work: impl Fn(&Endpoint) + Sync) {
    let options = Options { deadline: LONG, encrypt, ..Options::default() };
    on_hosts(4, 2, options, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        work(&endpoint);
        comm.barrier().unwrap();
    });
}

#[test]
fn messages_of_all_lengths_go_everywhere() {
    const LENGTHS: [usize; 6] = [0, 8, 33, 16 << 10, 70_000, 1 << 20];
    // Encryption is slow in debug builds.
    for (encrypt, lengths) in [(false, &LENGTHS[..]), (true, &LENGTHS[..5])] {
        on_four(encrypt, |endpoint| {
            let me = endpoint.rank() as u64;
            for (tag, bytes) in (0..).zip(lengths.iter().copied()) {
                let received: Vec<_> =
                    (0..4).map(|from| endpoint.post_receive(Some(from), tag, bytes)).collect();
                let sent: Vec<_> =
                    (0..4).map(|to| endpoint.post_send(to, tag, filled(bytes, me + 4 * to as u64))).collect();
                for (from, got) in received.into_iter().enumerate() {
                    let wanted = filled(bytes, from as u64 + 4 * me);
                    assert!(got.recv().unwrap().unwrap() == (from, wanted), "{bytes} bytes from {from}");
                }
                sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
            }
        });
    }
}

/// Whether an error blames this rank of this process alone, and names its host.
fn blames(error: &Error, rank: u32, kind: BlameKind) -> bool {
    let blamed = error.blamed();
    let [blame] = &blamed[..] else { return false };
    (blame.rank, blame.kind, blame.pid) == (rank, kind, Some(std::process::id())) && blame.host.is_some()
}

#[test]
fn a_message_that_is_not_received_ends_the_communicator_on_all_hosts() {
    on_hosts(4, 2, Options { deadline: LONG, ..Options::default() }, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        let error = match comm.rank() {
            0 => endpoint.send(2, 5, &[1; 100_000], Duration::from_millis(100)).unwrap_err(),
            _ => endpoint.receive(Some(0), 6, &mut [0; 4], LONG).unwrap_err(),
        };
        assert!(blames(&error, 2, BlameKind::Late), "{error}: {:?}", error.blamed());
    });
}

#[test]
fn tags_overtake_each_other_and_any_source_includes_all_hosts() {
    on_four(false, |endpoint| {
        if endpoint.rank() == 0 {
            for bytes in [50_000, 8] {
                let mut seen = [0_u64; 4];
                for _ in 0..3 * 20 {
                    let mut got = vec![0; bytes];
                    let from = endpoint.receive(None, bytes as u64, &mut got, LONG).unwrap();
                    assert!(got == filled(bytes, 100 * from as u64 + seen[from]), "rank {from}");
                    seen[from] += 1;
                }
                assert_eq!(seen, [0, 20, 20, 20]);
            }
        } else {
            let number = |number: u64| 100 * endpoint.rank() as u64 + number;
            let short: Vec<_> = (0..20).map(|at| endpoint.post_send(0, 8, filled(8, number(at)))).collect();
            (0..20).for_each(|at| endpoint.send(0, 50_000, &filled(50_000, number(at)), LONG).unwrap());
            short.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
        }
    });
}

#[test]
fn unexpected_messages_beyond_the_window_stay_with_their_sender() {
    on_four(false, |endpoint| {
        const COUNT: u64 = 300;
        let bytes = 9000;
        match endpoint.rank() {
            0 => {
                let sent: Vec<_> =
                    (0..COUNT).map(|number| endpoint.post_send(3, 1, filled(bytes, number))).collect();
                endpoint.send(3, 2, b"after all", LONG).unwrap();
                sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
            }
            3 => {
                endpoint.receive(Some(0), 2, &mut [0; 9], LONG).unwrap();
                for number in 0..COUNT {
                    let mut got = vec![0; bytes];
                    endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
                    assert!(got == filled(bytes, number), "message {number}");
                }
            }
            _ => {}
        }
    });
}

#[test]
fn differing_lengths_and_timeouts_are_reported() {
    on_four(false, |endpoint| {
        let error = endpoint.receive(Some(3 - endpoint.rank()), 1, &mut [0; 4], Duration::from_millis(30));
        assert!(matches!(error, Err(Error::Deadline { .. })), "{error:?}");
        match endpoint.rank() {
            0 => {
                let error = endpoint.send(2, 2, &[0; 100_000], LONG).unwrap_err();
                assert!(matches!(error, Error::Mismatch { rank: 0, .. }), "{error}");
                assert!(blames(&error, 2, BlameKind::Differs), "{error}: {:?}", error.blamed());
            }
            2 => {
                let error = endpoint.receive(Some(0), 2, &mut [0; 99_999], LONG).unwrap_err();
                assert!(matches!(error, Error::Mismatch { rank: 2, .. }), "{error}");
                assert!(blames(&error, 0, BlameKind::Differs), "{error}: {:?}", error.blamed());
            }
            _ => {}
        }
    });
}

#[test]
fn messages_and_collectives_overlap_between_hosts() {
    on_hosts(2, 1, Options { deadline: LONG, ..Options::default() }, |mut comm| {
        comm.all_reduce(&mut [1.0_f32; 100], Reduction::Sum).unwrap();
        let endpoint = comm.endpoint().unwrap();
        let background = comm.into_background().unwrap();
        let peer = 1 - endpoint.rank();
        let sums: Vec<_> =
            (0..20).map(|_| background.all_reduce(vec![1.0_f32; 1000], Reduction::Sum)).collect();
        for number in 0..20 {
            let received = endpoint.post_receive(Some(peer), number, 60_000);
            endpoint.send(peer, number, &filled(60_000, number), LONG).unwrap();
            assert!(received.recv().unwrap().unwrap().1 == filled(60_000, number));
        }
        sums.into_iter().for_each(|sum| assert_eq!(sum.wait().unwrap()[999], 2.0));
        background.barrier().wait().unwrap();
    });
}

#[test]
fn messages_of_a_rank_that_left_arrive_before_the_departure() {
    on_hosts(2, 1, Options { deadline: LONG, ..Options::default() }, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        if comm.rank() == 0 {
            (0..5).for_each(|number| endpoint.send(1, number, &filled(10_000, number), LONG).unwrap());
            return;
        }
        let error = endpoint.receive(Some(0), 77, &mut [0; 4], LONG).unwrap_err();
        assert!(matches!(error, Error::Left { left: Blame { rank: 0, .. }, .. }), "{error}");
        for number in 0..5 {
            let mut got = vec![0; 10_000];
            endpoint.receive(Some(0), number, &mut got, LONG).unwrap();
            assert!(got == filled(10_000, number));
        }
    });
}

#[test]
fn the_death_of_a_rank_on_another_host_ends_pending_messages() {
    const ROLE: &str = "WEFT_TEST_POST_HOSTS";
    let meeting = |port: u16, host: u64| {
        let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
        let network = Network { pretended_host: Some(host), ..Network::default() };
        Rendezvous { network, ..Rendezvous::new(place, Token::new("endpoint").unwrap(), 2, LONG) }
    };
    let options = Options { deadline: LONG, ..Options::default() };
    if let Ok(port) = std::env::var(ROLE) {
        let met = Bootstrap::join(&meeting(port.parse().unwrap(), 2), 1).unwrap();
        let mut comm = Communicator::new(met, options).unwrap();
        let endpoint = comm.endpoint().unwrap();
        endpoint.send(0, 3, b"go", LONG).unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let port = reserved();
    let mut child = this_program()
        .args(["--exact", "the_death_of_a_rank_on_another_host_ends_pending_messages", "--nocapture"])
        .env(ROLE, port.to_string())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut comm = Communicator::new(Bootstrap::listen(&meeting(port, 1)).unwrap(), options).unwrap();
    let endpoint = comm.endpoint().unwrap();
    let receiving = endpoint.post_receive(Some(1), 1, 8);
    let sending = endpoint.post_send(1, 2, vec![1; 3 << 20]);
    endpoint.receive(Some(1), 3, &mut [0; 2], LONG).unwrap();
    let began = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    for error in [receiving.recv().unwrap().unwrap_err(), sending.recv().unwrap().unwrap_err()] {
        let Error::Died { died: Blame { rank: 1, host: Some(_), pid, .. }, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(pid, Some(child.id()));
    }
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
}
