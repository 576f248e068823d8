//! Messages between two ranks arrive whole and in order per tag, over every kind of transfer and with every kind of wait.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code)] // Messages are passed by address.

mod endpoints;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use endpoints::{LONG, StartOwned, filled, on_communicators, on_ranks};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use weftlink_comm::{Blame, DataType, Endpoint, Error, MESSAGES_MAX, Reduction};

/// Lengths on either side of every change of protocol: in the line, in the ring, offered, in one piece and in many.
const LENGTHS: [usize; 10] = [0, 1, 8, 32, 33, 1000, 16 << 10, (16 << 10) + 1, 100_000, (4 << 20) + 5];

#[test]
fn messages_of_all_lengths_arrive_whole() {
    on_ranks(2, |endpoint| {
        let peer = 1 - endpoint.rank();
        for (tag, bytes) in (0..).zip(LENGTHS) {
            let mine = filled(bytes, tag + endpoint.rank() as u64);
            let theirs = filled(bytes, tag + peer as u64);
            let mut got = vec![0; bytes];
            if endpoint.rank() == 0 {
                endpoint.send(peer, tag, &mine, LONG).unwrap();
                assert_eq!(endpoint.receive(Some(peer), tag, &mut got, LONG).unwrap(), peer);
            } else {
                assert_eq!(endpoint.receive(None, tag, &mut got, LONG).unwrap(), peer);
                endpoint.send(peer, tag, &mine, LONG).unwrap();
            }
            assert!(got == theirs, "{bytes} bytes");
        }
    });
}

#[test]
fn messages_of_one_tag_keep_their_order() {
    on_ranks(2, |endpoint| {
        // More than the ring holds, short and long in turn, blocking and not.
        let length = |number: u64| [8, 20_000, 0, 100, 70_000][number as usize % 5];
        if endpoint.rank() == 0 {
            let mut sent = Vec::new();
            for number in 0..100 {
                let message = filled(length(number), number);
                if number % 7 == 6 {
                    endpoint.send(1, 3, &message, LONG).unwrap();
                } else {
                    sent.push(endpoint.post_send(1, 3, message));
                }
            }
            sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
        } else {
            let mut expected = Vec::new();
            for number in 0..100 {
                if number % 5 == 4 {
                    let mut got = vec![0; length(number)];
                    endpoint.receive(Some(0), 3, &mut got, LONG).unwrap();
                    assert!(got == filled(length(number), number), "message {number}");
                } else {
                    expected.push((number, endpoint.post_receive(Some(0), 3, length(number))));
                }
            }
            for (number, got) in expected {
                let (from, got) = got.recv().unwrap().unwrap();
                assert!(from == 0 && got == filled(length(number), number), "message {number}");
            }
        }
    });
}

#[test]
fn tags_overtake_each_other() {
    on_ranks(2, |endpoint| {
        let lengths = [5, 3000, 40_000, 0, 200_000];
        if endpoint.rank() == 0 {
            let sent: Vec<_> = (0..)
                .zip(lengths)
                .map(|(tag, bytes)| endpoint.post_send(1, tag, filled(bytes, tag)))
                .collect();
            sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
        } else {
            for (tag, bytes) in [4, 1, 3, 0, 2].map(|tag| (tag as u64, lengths[tag])) {
                let mut got = vec![0; bytes];
                endpoint.receive(Some(0), tag, &mut got, LONG).unwrap();
                assert!(got == filled(bytes, tag), "tag {tag}");
            }
        }
    });
}

#[test]
fn unexpected_messages_beyond_the_window_stay_with_their_sender() {
    on_ranks(2, |endpoint| {
        // Three times the window, and none of it is what the receiver asks for first.
        const COUNT: u64 = 400;
        let bytes = 8000;
        if endpoint.rank() == 0 {
            let sent: Vec<_> =
                (0..COUNT).map(|number| endpoint.post_send(1, 1, filled(bytes, number))).collect();
            endpoint.send(1, 2, b"after all", LONG).unwrap();
            sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
        } else {
            let mut first = [0; 9];
            endpoint.receive(Some(0), 2, &mut first, LONG).unwrap();
            assert_eq!(&first, b"after all");
            for number in 0..COUNT {
                let mut got = vec![0; bytes];
                endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
                assert!(got == filled(bytes, number), "message {number}");
            }
        }
    });
}

#[test]
fn credit_returns_when_unexpected_messages_are_received() {
    let gate = Barrier::new(2);
    on_ranks(2, |endpoint| {
        // Each round is half a window; together they are five windows.
        const ROUNDS: u64 = 10;
        const COUNT: u64 = 64;
        let bytes = 8000;
        if endpoint.rank() == 0 {
            for round in 0..ROUNDS {
                for number in 0..COUNT {
                    endpoint.send(1, 1, &filled(bytes, number), LONG).unwrap();
                }
                endpoint.send(1, 2, &round.to_le_bytes(), LONG).unwrap();
                endpoint.receive(Some(1), 3, &mut [], LONG).unwrap();
            }
            // There is credit for one more, so the send completes although rank 1 does not receive it now.
            endpoint.send(1, 1, &filled(bytes, 7), Duration::from_millis(200)).unwrap();
            gate.wait();
        } else {
            for round in 0..ROUNDS {
                let mut got = [0; 8];
                endpoint.receive(Some(0), 2, &mut got, LONG).unwrap();
                assert_eq!(u64::from_le_bytes(got), round);
                for number in 0..COUNT {
                    let mut got = vec![0; bytes];
                    endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
                    assert!(got == filled(bytes, number), "message {number} of round {round}");
                }
                endpoint.send(0, 3, &[], LONG).unwrap();
            }
            gate.wait();
            let mut got = vec![0; bytes];
            endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
            assert!(got == filled(bytes, 7));
        }
    });
}

#[test]
fn receives_beyond_the_limit_are_refused() {
    on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        if comm.rank() == 0 {
            let waiting: Vec<_> = (0..MESSAGES_MAX).map(|_| endpoint.post_receive(Some(1), 1, 0)).collect();
            let error = endpoint.receive(Some(1), 2, &mut [], LONG).unwrap_err();
            assert!(matches!(error, Error::QueueFull { limit: MESSAGES_MAX }), "{error}");
            endpoint.send(1, 3, &[], LONG).unwrap_err();
            comm.barrier().unwrap();
            // Rank 1 sends one and leaves. There is room for another receive again.
            waiting[0].recv().unwrap().unwrap();
            let error = endpoint.receive(Some(1), 2, &mut [], LONG).unwrap_err();
            assert!(matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. }), "{error}");
        } else {
            comm.barrier().unwrap();
            endpoint.send(0, 1, &[], LONG).unwrap();
        }
    });
}

#[test]
fn a_completed_receive_has_answered_its_sender() {
    on_ranks(2, |endpoint| {
        // More answers than a ring holds, to a slow sender, from a receiver that makes no more turns afterwards.
        const COUNT: u64 = 100;
        if endpoint.rank() == 0 {
            let (tell, told) = channel();
            for number in 0..COUNT {
                let (tell, message) = (tell.clone(), vec![number as u8; 20_000]);
                let (address, bytes) = (message.as_ptr(), message.len());
                let done = move |result: Result<(), Error>| {
                    drop(message);
                    std::thread::sleep(Duration::from_millis(if number == 0 { 30 } else { 0 }));
                    tell.send(result).unwrap();
                };
                // SAFETY: the callback owns the message.
                unsafe { endpoint.start_send(1, 1, address, bytes, LONG, done) };
            }
            (0..COUNT).for_each(|_| told.recv().unwrap().unwrap());
        } else {
            for number in 0..COUNT {
                let mut got = vec![0; 20_000];
                endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
                assert!(got == [number as u8; 20_000], "message {number}");
            }
        }
    });
}

#[test]
fn any_source_takes_the_first_arrival() {
    on_ranks(4, |endpoint| {
        for bytes in [8, 50_000] {
            if endpoint.rank() == 0 {
                let mut from = [0; 4];
                for _ in 0..3 * 5 {
                    let mut got = vec![0; bytes];
                    let sender = endpoint.receive(None, bytes as u64, &mut got, LONG).unwrap();
                    assert!(got == filled(bytes, 10 * sender as u64 + from[sender]), "rank {sender}");
                    from[sender] += 1;
                }
                assert_eq!(from, [0, 5, 5, 5]);
            } else {
                for number in 0..5 {
                    let message = filled(bytes, 10 * endpoint.rank() as u64 + number);
                    endpoint.send(0, bytes as u64, &message, LONG).unwrap();
                }
            }
        }
    });
}

#[test]
fn a_rank_sends_to_itself() {
    on_ranks(1, |endpoint| {
        for bytes in [0, 7, 256, 257, 100_000] {
            // First the message precedes the receive, then the receive precedes the message.
            let sent = endpoint.post_send(0, 1, filled(bytes, 1));
            let mut got = vec![0; bytes];
            assert_eq!(endpoint.receive(Some(0), 1, &mut got, LONG).unwrap(), 0);
            sent.recv().unwrap().unwrap();
            let received = endpoint.post_receive(None, 2, bytes);
            endpoint.send(0, 2, &filled(bytes, 2), LONG).unwrap();
            assert!(got == filled(bytes, 1) && received.recv().unwrap().unwrap().1 == filled(bytes, 2));
        }
        let error = endpoint.send(0, 3, &[0; 1000], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        // It was withdrawn.
        let error = endpoint.receive(Some(0), 3, &mut [0; 1000], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    });
}

#[test]
fn differing_types_fail_on_both_sides() {
    on_ranks(2, |endpoint| {
        for (tag, bytes) in (0..).zip([8, 70_000]) {
            let sent = filled(bytes, tag);
            if endpoint.rank() == 0 {
                let told = endpoint.of_type(DataType::F32).send(1, tag, &sent, LONG);
                // A short send has completed long ago.
                assert_eq!(told.is_err(), bytes > 16 << 10, "{bytes} bytes");
                endpoint.of_type(DataType::F32).send(1, tag, &sent, LONG).unwrap();
            } else {
                let mut got = vec![0; bytes];
                let error =
                    endpoint.of_type(DataType::I32).receive(Some(0), tag, &mut got, LONG).unwrap_err();
                let text = error.to_string();
                assert!(
                    matches!(error, Error::Mismatch { rank: 1, other: Blame { rank: 0, .. }, .. }),
                    "{text}"
                );
                let (sends, receives) =
                    (format!("send of {} f32", bytes / 4), format!("receive of {} i32", bytes / 4));
                assert!(text.contains(&sends) && text.contains(&receives), "{text}");
                assert!(got.iter().all(|byte| *byte == 0), "a message that does not fit is not written");
                endpoint.of_type(DataType::F32).receive(Some(0), tag, &mut got, LONG).unwrap();
                assert_eq!(got, sent);
            }
        }
    });
}

#[test]
fn differing_lengths_fail_on_both_sides() {
    on_ranks(2, |endpoint| {
        for (tag, (sent, wanted)) in
            (0..).zip([(8, 9), (9, 8), (0, 1), (100_000, 99_999), (70_000, 80_000), (5, 70_000)])
        {
            if endpoint.rank() == 0 {
                let told = endpoint.send(1, tag, &filled(sent, tag), LONG);
                // A short send has completed long ago.
                assert_eq!(told.is_err(), sent > 16 << 10, "{sent} bytes");
                if let Err(error) = told {
                    let text = error.to_string();
                    assert!(
                        matches!(error, Error::Mismatch { rank: 0, other: Blame { rank: 1, .. }, .. }),
                        "{text}"
                    );
                    assert!(text.contains(&format!("send of {sent} bytes")), "{text}");
                    assert!(text.contains(&format!("receive of {wanted} bytes")), "{text}");
                }
            } else {
                let error = endpoint.receive(Some(0), tag, &mut vec![0; wanted], LONG).unwrap_err();
                let text = error.to_string();
                assert!(
                    matches!(error, Error::Mismatch { rank: 1, other: Blame { rank: 0, .. }, .. }),
                    "{text}"
                );
                assert!(text.contains(&format!("send of {sent} bytes with tag {tag} to rank 1")), "{text}");
                assert!(
                    text.contains(&format!("receive of {wanted} bytes with tag {tag} from rank 0")),
                    "{text}"
                );
            }
        }
        // The endpoint still works.
        let mut got = [0; 3];
        endpoint.send(1 - endpoint.rank(), 50, b"yes", LONG).unwrap();
        endpoint.receive(None, 50, &mut got, LONG).unwrap();
        assert_eq!(&got, b"yes");
    });
}

#[test]
fn unknown_ranks_are_refused() {
    on_ranks(2, |endpoint| {
        let error = endpoint.send(2, 0, &[], LONG).unwrap_err();
        assert!(matches!(&error, Error::Misuse(why) if why.contains("no rank 2")), "{error}");
        let error = endpoint.post_receive(Some(7), 0, 4).recv().unwrap().unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
    });
}

#[test]
fn messages_and_collectives_overlap() {
    endpoints::on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        let background = comm.into_background().unwrap();
        let peer = 1 - endpoint.rank();
        let sums: Vec<_> =
            (0..50).map(|_| background.all_reduce(vec![1.0_f32; 1000], Reduction::Sum)).collect();
        for number in 0..50 {
            let bytes = if number % 2 == 0 { 8 } else { 60_000 };
            let received = endpoint.post_receive(Some(peer), number, bytes);
            endpoint.send(peer, number, &filled(bytes, number), LONG).unwrap();
            assert!(received.recv().unwrap().unwrap().1 == filled(bytes, number));
        }
        sums.into_iter().for_each(|sum| assert_eq!(sum.wait().unwrap()[999], 2.0));
        background.barrier().wait().unwrap();
    });
}

#[test]
fn threads_of_a_rank_wait_at_the_same_time() {
    on_ranks(2, |endpoint| {
        let peer = 1 - endpoint.rank();
        std::thread::scope(|scope| {
            for tag in 0..4_u64 {
                let endpoint = endpoint.clone();
                scope.spawn(move || {
                    for number in 0..50 {
                        let bytes = [8, 3000, 30_000][number as usize % 3];
                        let mut got = vec![0; bytes];
                        let received = endpoint.post_receive(Some(peer), 100 + tag, 8);
                        endpoint.send(peer, 100 + tag, &filled(8, number), LONG).unwrap();
                        if (number + tag) % 2 == endpoint.rank() as u64 % 2 {
                            endpoint.send(peer, tag, &filled(bytes, number + tag), LONG).unwrap();
                        } else {
                            endpoint.receive(Some(peer), tag, &mut got, LONG).unwrap();
                            assert!(got == filled(bytes, number + tag), "tag {tag}, message {number}");
                        }
                        assert!(received.recv().unwrap().unwrap().1 == filled(8, number));
                    }
                });
            }
        });
    });
}

#[test]
fn messages_arrive_after_their_endpoint_is_dropped() {
    endpoints::on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        let lengths = [8, 1000, 100_000];
        if comm.rank() == 0 {
            let sent: Vec<_> = (0..)
                .zip(lengths)
                .map(|(tag, bytes)| endpoint.post_send(1, tag, filled(bytes, tag)))
                .collect();
            drop(endpoint);
            sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
        } else {
            let received: Vec<_> =
                (0..).zip(lengths).map(|(tag, bytes)| endpoint.post_receive(Some(0), tag, bytes)).collect();
            drop(endpoint);
            for (tag, (bytes, received)) in (0..).zip(lengths.into_iter().zip(received)) {
                assert!(received.recv().unwrap().unwrap().1 == filled(bytes, tag));
            }
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_flushes_before_it_leaves_loses_nothing() {
    endpoints::on_communicators(2, |mut comm| {
        let endpoint = comm.endpoint().unwrap();
        let length = |number: u64| [8, 20_000, 3000][number as usize % 3];
        if comm.rank() == 0 {
            let sent: Vec<_> =
                (0..200).map(|number| endpoint.post_send(1, 1, filled(length(number), number))).collect();
            assert!(endpoint.flush(LONG));
            sent.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
            return;
        }
        for number in 0..200 {
            let mut got = vec![0; length(number)];
            endpoint.receive(Some(0), 1, &mut got, LONG).unwrap();
            assert!(got == filled(length(number), number), "message {number}");
        }
        // Sends to a rank that has left, or to oneself, do not count.
        let error = endpoint.send(0, 2, &[0; 100_000], LONG).unwrap_err();
        assert!(matches!(error, Error::Left { left: Blame { rank: 0, .. }, .. }), "{error}");
        let kept = endpoint.post_send(1, 3, vec![0; 1000]);
        assert!(endpoint.flush(Duration::ZERO));
        endpoint.receive(Some(1), 3, &mut [0; 1000], LONG).unwrap();
        kept.recv().unwrap().unwrap();
    });
}

/// One message of a schedule.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    to: usize,
    tag: u64,
    bytes: usize,
}

const RANKS: usize = 4;

fn schedule() -> impl Strategy<Value = Vec<Sent>> {
    let bytes = prop_oneof![4 => 0_usize..40, 2 => 40_usize..4000, 2 => 10_000_usize..80_000];
    let sent = (0..RANKS, 0..RANKS, 0_u64..3, bytes);
    prop::collection::vec(sent.prop_map(|(from, to, tag, bytes)| Sent { from, to, tag, bytes }), 1..120)
}

/// A rank's part of a schedule: sends and receives in an order that depends on the rank, the last receives blocking.
fn take_part(endpoint: &Endpoint, schedule: &[Sent]) {
    let me = endpoint.rank();
    let content = |number: usize, sent: &Sent| filled(sent.bytes, number as u64);
    let mut sends: Vec<Receiver<Result<(), Error>>> = Vec::new();
    let mut received = Vec::new();
    let receives: Vec<_> = schedule.iter().enumerate().filter(|(_, sent)| sent.to == me).collect();
    let mut next = receives.iter();
    for (number, sent) in schedule.iter().enumerate().filter(|(_, sent)| sent.from == me) {
        sends.push(endpoint.post_send(sent.to, sent.tag, content(number, sent)));
        // Receives are posted before or after the sends, depending on the rank.
        for (number, sent) in next.by_ref().take(me) {
            received.push((*number, endpoint.post_receive(Some(sent.from), sent.tag, sent.bytes)));
        }
    }
    for &(number, sent) in next {
        let mut got = vec![0; sent.bytes];
        endpoint.receive(Some(sent.from), sent.tag, &mut got, LONG).unwrap();
        assert!(got == content(number, sent), "message {number}, {sent:?}");
    }
    for (number, got) in received {
        assert!(got.recv().unwrap().unwrap().1 == content(number, &schedule[number]), "message {number}");
    }
    sends.into_iter().for_each(|sent| sent.recv().unwrap().unwrap());
}

#[test]
fn random_schedules_deliver_everything() {
    let config = Config { cases: 12, failure_persistence: None, max_shrink_iters: 30, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&schedule(), |schedule| {
            on_ranks(RANKS, |endpoint| take_part(&endpoint, &schedule));
            Ok(())
        })
        .unwrap();
}

#[test]
fn rings_work_after_their_counters_wrap_many_times() {
    // Enough rounds that every counter wraps around rings and windows many times.
    on_ranks(2, |endpoint| {
        let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
        let (tell, told) = channel();
        for round in 0..3000_u64 {
            if round % 100 == 0 {
                let tell = tell.clone();
                let done = move |result: Result<(), Error>| tell.send(result.is_ok()).unwrap();
                // SAFETY: there are no bytes to read.
                unsafe { endpoint.start_send(me, 7, std::ptr::null(), 0, LONG, done) };
                endpoint.receive(Some(me), 7, &mut [], LONG).unwrap();
                assert!(told.recv().unwrap());
            }
            let mut got = [0; 600];
            let mine = [round as u8; 600];
            if me == 0 {
                endpoint.send(peer, 1, &mine, LONG).unwrap();
                endpoint.receive(Some(peer), 1, &mut got, LONG).unwrap();
            } else {
                endpoint.receive(Some(peer), 1, &mut got, LONG).unwrap();
                endpoint.send(peer, 1, &mine, LONG).unwrap();
            }
            assert_eq!(got, mine);
        }
    });
}

/// Receives messages with these numbers, each posted by the callback of the one before. Those from this rank are sent just before.
fn receive_in_turn(
    endpoint: Arc<Endpoint>,
    from: usize,
    mut numbers: std::ops::Range<u64>,
    done: Sender<()>,
) {
    let Some(number) = numbers.next() else {
        drop(endpoint);
        return done.send(()).unwrap();
    };
    if from == endpoint.rank() {
        drop(endpoint.post_send(from, 1, number.to_le_bytes().to_vec()));
    }
    let mut message = Box::new([0; 8]);
    let (address, next) = (message.as_mut_ptr(), Arc::clone(&endpoint));
    let arrived = move |result: Result<usize, Error>| {
        assert_eq!((result.unwrap(), u64::from_le_bytes(*message)), (from, number));
        receive_in_turn(next, from, numbers, done);
    };
    // SAFETY: the callback owns the memory.
    unsafe { endpoint.start_receive(Some(from), 1, address, 8, LONG, arrived) };
}

#[test]
fn callbacks_that_post_the_next_receive_do_not_nest() {
    const MESSAGES: u64 = 30_000;
    on_ranks(2, |endpoint| {
        let (me, endpoint) = (endpoint.rank(), Arc::new(endpoint));
        if me == 1 {
            (0..MESSAGES).for_each(|number| endpoint.send(0, 1, &number.to_le_bytes(), LONG).unwrap());
            return;
        }
        for from in [0, 1] {
            let (done, is_done) = channel();
            receive_in_turn(Arc::clone(&endpoint), from, 0..MESSAGES, done);
            // A callback that fails drops its end.
            is_done.recv().unwrap();
        }
    });
}
