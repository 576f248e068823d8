//! Ranks meet and share memory, as threads and as processes; and every way in which that can fail.
//!
//! Processes are made by running this very test binary again with a role in the environment. No test depends on how
//! fast anything is: waits that must succeed have a minute, waits that must fail a few milliseconds.
#![allow(unsafe_code)] // Shared memory is reached through a raw pointer.
#![allow(clippy::unwrap_used)] // All of this is test.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Meeting, Network, Place, Refusal, Token};
use weftlink_knobs::Knobs;
use weftlink_shm::memory::SharedMemory;
use weftlink_testkit::ports::reserved_range;
use weftlink_testkit::processes::{command, this_program};

const AMPLE: Duration = Duration::from_secs(60);
const BRIEF: Duration = Duration::from_millis(30);

const ROLE: &str = "WEFT_TEST_ROLE";
const PLACE: &str = "WEFT_TEST_PLACE";
const SIZE: &str = "WEFT_TEST_SIZE";

#[test]
fn threads_share() {
    for size in [1, 2, 8] {
        let ends = Bootstrap::threads(size);
        assert_eq!(ends.len(), size);
        thread::scope(|scope| {
            for end in ends {
                scope.spawn(|| exchange(end));
            }
        });
    }
    assert!(Bootstrap::threads(0).is_empty());
}

#[test]
fn processes_share() {
    if let Some((rank, meeting)) = role() {
        return exchange(Bootstrap::join(&meeting, rank).unwrap());
    }
    for size in 1..=4 {
        let meeting = meeting("share", size);
        let children = others("processes_share", &meeting);
        let end = Bootstrap::listen(&meeting).unwrap();
        assert_eq!(end.pids()[0], std::process::id());
        for (index, child) in children.iter().enumerate() {
            assert_eq!(end.pids()[index + 1], child.id());
        }
        exchange(end);
        children.into_iter().for_each(assert_success);
    }
}

#[test]
fn they_also_meet_at_a_path_where_a_stale_socket_lies() {
    let path = std::env::temp_dir().join(format!("weft-test-{}.socket", std::process::id()));
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let meeting = Meeting { place: Place::Path(path.clone()), ..meeting("path", 2) };
    thread::scope(|scope| {
        scope.spawn(|| exchange(Bootstrap::join(&meeting, 1).unwrap()));
        exchange(Bootstrap::listen(&meeting).unwrap());
    });
    assert!(!path.exists());

    let _taken = UnixListener::bind(&path).unwrap();
    let error = Bootstrap::listen(&meeting).unwrap_err();
    assert!(matches!(error, BootstrapError::Place { .. }), "{error}");
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_wrong_ones_are_refused_and_the_right_ones_still_meet() {
    let meeting = meeting("refusals", 3);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());

        let refused = |meeting: &Meeting, rank| match Bootstrap::join(meeting, rank).unwrap_err() {
            BootstrapError::Refused { reason, rank: named, .. } if named == rank => reason,
            other => panic!("{other}"),
        };
        let stranger = Meeting { token: Token::new("guess").unwrap(), ..meeting.clone() };
        assert_eq!(refused(&stranger, 2), Refusal::Token);
        let larger = Meeting { size: 4, ..meeting.clone() };
        assert_eq!(refused(&larger, 2), Refusal::Size { joiner: 4, listener: 3 });
        assert_eq!(refused(&larger, 3), Refusal::Size { joiner: 4, listener: 3 });

        // Another version, not Weft at all, nothing at all, and one that goes without a hello.
        for greeting in [&b"weftlink\x63\0\0\0"[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
            let mut stream = UnixStream::connect_addr(&address(&meeting)).unwrap();
            stream.write_all(greeting).unwrap();
        }

        let two = Bootstrap::join(&meeting, 2).unwrap();
        for end in [zero.join().unwrap(), one.join().unwrap(), two] {
            scope.spawn(|| exchange(end));
        }
    });
}

#[test]
fn a_second_of_the_same_rank_is_refused() {
    let meeting = meeting("twice", 3);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        // One that came and ended has left its place.
        let impatient = Meeting { deadline: 3 * BRIEF, ..meeting.clone() };
        assert!(Bootstrap::join(&impatient, 1).is_err());
        // Whichever of the two comes first is in; rank 2 comes when the other has been refused.
        let (tell, told) = std::sync::mpsc::channel();
        let ones: Vec<_> = (0..2)
            .map(|_| {
                let (tell, meeting) = (tell.clone(), &meeting);
                scope.spawn(move || {
                    let end = Bootstrap::join(meeting, 1);
                    tell.send(end.as_ref().err().cloned()).unwrap();
                    end.ok()
                })
            })
            .collect();
        let error = told.recv().unwrap().expect("nobody is in before rank 2 comes");
        let expected = Refusal::Duplicate { rank: 1, pid: std::process::id() };
        assert!(matches!(&error, BootstrapError::Refused { reason, .. } if *reason == expected), "{error}");
        let two = Bootstrap::join(&meeting, 2).unwrap();
        let one = ones.into_iter().filter_map(|one| one.join().unwrap()).next().unwrap();
        for end in [zero.join().unwrap(), one, two] {
            scope.spawn(|| exchange(end));
        }
    });
}

#[test]
fn another_version_is_named_beside_ours() {
    let meeting = meeting("version", 2);
    let listener = UnixListener::bind_addr(&address(&meeting)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"weftlink\x63\0\0\0").unwrap());
        let error = Bootstrap::join(&meeting, 1).unwrap_err().to_string();
        assert!(error.contains("version 7.") && error.contains("version 99"), "{error}");
    });
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad\r\n").unwrap());
        let error = Bootstrap::join(&meeting, 1).unwrap_err();
        assert!(matches!(error, BootstrapError::Refused { reason: Refusal::NotWeft, .. }), "{error}");
    });
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let meeting = |size| meeting("nonsense", size);
    let errors = [
        Bootstrap::listen(&meeting(0)),
        Bootstrap::listen(&meeting(100_000)),
        Bootstrap::join(&meeting(2), 2),
        Bootstrap::join(&meeting(2), 0),
    ]
    .map(Result::unwrap_err);
    for error in errors {
        assert!(matches!(error, BootstrapError::BadCall { .. }), "{error}");
    }
    assert!(Token::new("x".repeat(4097)).is_err());
    let mut end = Bootstrap::threads(1).remove(0);
    assert!(matches!(end.share(&"x".repeat(201), 1, AMPLE), Err(BootstrapError::BadCall { .. })));
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let meeting = Meeting { deadline: BRIEF, ..meeting("missing", 4) };
    let error = Bootstrap::listen(&meeting).unwrap_err().to_string();
    assert!(error.starts_with("ranks 1, 2 and 3 did not come within 0.03 s"), "{error}");
    let error = Bootstrap::join(&meeting, 1).unwrap_err();
    assert!(matches!(error, BootstrapError::NobodyListens { .. }), "{error}");

    for mut ends in [Bootstrap::threads(3), group("silent", 3)] {
        let mut two = ends.remove(2);
        let _silent = ends.remove(1);
        let (zeros, twos) = thread::scope(|scope| {
            let zero = scope.spawn(|| ends[0].share("heap", 8, BRIEF).unwrap_err());
            let two = scope.spawn(|| two.share("heap", 8, AMPLE).unwrap_err());
            (zero.join().unwrap(), two.join().unwrap())
        });
        let missing = |ranks: &[usize]| BootstrapError::Missing {
            ranks: ranks.to_vec(),
            purpose: "heap".to_owned(),
            limit: BRIEF,
        };
        // Rank 2 may have come after rank 0 gave up, and waits for nobody but rank 1 either.
        for error in [&zeros, &twos] {
            let blamed: Vec<u32> = error.blamed().iter().map(|blame| blame.rank).collect();
            let late = matches!(error, BootstrapError::Late { .. }) && blamed == [1];
            assert!(late || *error == missing(&[1]) || *error == missing(&[1, 2]), "{error}");
        }
        for (mut end, first) in [(ends.remove(0), zeros), (two, twos)] {
            let error = end.share("heap", 8, AMPLE).unwrap_err();
            assert_eq!(error, BootstrapError::Poisoned { cause: first.to_string(), blamed: first.blamed() });
        }
    }
}

#[test]
fn different_asks_are_an_error_on_every_rank_that_shows_both() {
    for ends in [Bootstrap::threads(3), group("mismatch", 3)] {
        let errors = on_all(ends, |mut end| {
            let bytes = if end.rank() == 1 { 4096 } else { 8192 };
            end.share("heap", bytes, AMPLE).unwrap_err()
        });
        for error in &errors {
            let text = error.to_string();
            assert!(matches!(error, BootstrapError::Mismatch { .. }), "{text}");
            assert!(text.contains("rank 1 asked 4096 bytes for \"heap\""), "{text}");
            assert!(text.contains("asked 8192 bytes for \"heap\""), "{text}");
            assert_eq!(error, &errors[0]);
        }
    }
    for ends in [Bootstrap::threads(2), group("mismatch-purpose", 2)] {
        let errors = on_all(ends, |mut end| {
            end.share(["heap", "counters"][end.rank()], 64, AMPLE).unwrap_err().to_string()
        });
        assert!(errors[0].contains("\"heap\"") && errors[0].contains("\"counters\""), "{errors:?}");
        assert_eq!(errors[0], errors[1]);
    }
}

#[test]
fn shortage_is_an_error_on_every_rank() {
    for ends in [Bootstrap::threads(2), group("short", 2)] {
        for error in on_all(ends, |mut end| end.share("all of it", 1 << 46, AMPLE).unwrap_err()) {
            assert!(matches!(error, BootstrapError::Memory { .. }), "{error}");
            assert!(error.to_string().contains("70368744177664 bytes"), "{error}");
        }
    }
}

#[test]
fn one_that_leaves_is_named_to_all() {
    for (ends, leaver) in [
        (Bootstrap::threads(3), 1),
        (group("left-1", 3), 1),
        (Bootstrap::threads(3), 0),
        (group("left-0", 3), 0),
    ] {
        let errors =
            on_all(ends, |mut end| (end.rank() != leaver).then(|| end.share("heap", 8, AMPLE).unwrap_err()));
        for error in errors.into_iter().flatten() {
            let (pid, purpose) = (std::process::id(), "heap".to_owned());
            assert_eq!(error, BootstrapError::Left { rank: leaver, pid, purpose });
        }
    }
}

#[test]
fn a_killed_process_is_named_to_all() {
    if let Some((rank, meeting)) = role() {
        let _end = Bootstrap::join(&meeting, rank).unwrap();
        thread::sleep(AMPLE); // The parent does not let it sleep so long.
        unreachable!("it was to be killed");
    }
    let meeting = meeting("killed", 3);
    thread::scope(|scope| {
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());
        let mut two = run("a_killed_process_is_named_to_all", &meeting, 2);
        let mut zero = Bootstrap::listen(&meeting).unwrap();
        let mut one = one.join().unwrap();
        two.kill().unwrap();
        let one = scope.spawn(move || one.share("heap", 8, AMPLE).unwrap_err());
        for error in [zero.share("heap", 8, AMPLE).unwrap_err(), one.join().unwrap()] {
            assert!(matches!(error, BootstrapError::Died { rank: 2, pid, .. } if pid == two.id()), "{error}");
        }
        two.wait().unwrap();
    });
}

#[test]
fn nothing_is_left_open() {
    if role().is_none() {
        // In a process of its own, where no other test opens anything.
        return assert_success(run("nothing_is_left_open", &meeting("leak", 2), 1));
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("/memfd:").count();
    for make in [|| Bootstrap::threads(2), || group("leak-inner", 2)] {
        let before = open();
        let during = on_all(make(), |mut end| {
            let shared: Vec<SharedMemory> =
                (0..100).map(|bytes| end.share("heap", bytes * 100, AMPLE).unwrap()).collect();
            (shared, end)
        });
        // A listener, an eventfd and a connection for each end, but nothing for what they share.
        assert!(open() <= before + 8, "{} descriptors, {before} before", open());
        assert_eq!(mapped(), 2 * 99); // The one without bytes maps nothing.
        drop(during);
        assert_eq!((open(), mapped()), (before, 0));
    }
}

/// Everybody writes its number where everybody else can read it.
fn exchange(mut end: Bootstrap) {
    let (rank, size) = (end.rank(), end.size());
    let cell = |memory: &SharedMemory, rank: usize| {
        assert!(rank * 4 + 4 <= memory.len());
        // SAFETY: In bounds and aligned; every rank reaches this memory only as atomics.
        unsafe { AtomicU32::from_ptr(memory.as_ptr().cast::<u32>().add(rank)) }
            .fetch_add(1 + rank as u32, Ordering::SeqCst)
    };
    let numbers = end.share("numbers", size * 4, AMPLE).unwrap();
    assert_eq!(cell(&numbers, rank), 0);
    let other = end.share("nothing", 0, AMPLE).unwrap(); // A barrier: all have written.
    assert_eq!(other.len(), 0);
    for rank in 0..size {
        assert!(cell(&numbers, rank) > rank as u32);
    }
    end.share("the end", 1, AMPLE).unwrap();
}

fn on_all<T: Send>(ends: Vec<Bootstrap>, work: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn hosts_meet_over_the_network() {
    // As many hosts as ranks, then two ranks on each, then all on one: by TCP either way, with IPv4, IPv6 and a name.
    for (ranks_per_host, host) in [(1, "127.0.0.1"), (2, "::1"), (8, "localhost")] {
        let place = Place::Tcp { host: host.to_owned(), ports: reserved_range() };
        let meeting = Meeting { place, ..meeting("", 5) };
        let ends = together(&meeting, |rank| Network {
            pretended_host: Some(1 + rank as u64 / ranks_per_host),
            ..Network::default()
        });
        let hosts: Vec<u32> = (0..5).map(|rank| (rank / ranks_per_host) as u32).collect();
        for heard in on_all(ends, |mut end| {
            assert_eq!(end.hosts(), hosts);
            // Memory is shared inside a host, and nowhere else.
            let memory = end.share("numbers", 8, AMPLE).unwrap();
            // SAFETY: aligned and in bounds; ranks reach it only as atomics.
            let number = unsafe { AtomicU32::from_ptr(memory.as_ptr().cast::<u32>()) };
            number.fetch_add(1, Ordering::SeqCst);
            end.share("all have added", 0, AMPLE).unwrap();
            let mates = hosts.iter().filter(|host| **host == hosts[end.rank()]).count();
            assert_eq!(number.load(Ordering::SeqCst), mates as u32);
            end.exchange("say", vec![end.rank() as u8; end.rank()], AMPLE).unwrap()
        }) {
            assert_eq!(heard, (0..5).map(|rank| vec![rank as u8; rank]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn ranks_without_shared_memory_are_hosts_of_their_own() {
    let meeting = Meeting { place: loopback(), ..meeting("", 3) };
    let ends = together(&meeting, |_| Network { shared_memory: false, ..Network::default() });
    assert_eq!(ends[2].hosts(), [0, 1, 2]);
}

#[test]
fn ranks_that_are_set_up_differently_are_refused_and_told_in_what() {
    let meeting = Meeting { place: loopback(), ..meeting("", 2) };
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        let terms = vec![("WEFT_ENCRYPT".to_owned(), "on".to_owned())];
        let other = Meeting { network: Network { terms, ..Network::default() }, ..meeting.clone() };
        let error = Bootstrap::join(&other, 1).unwrap_err().to_string();
        assert!(
            error.contains("WEFT_ENCRYPT: it has on, rank 0 has unset. Give all ranks the same"),
            "{error}"
        );
        let wrong = Meeting { token: Token::new("guess").unwrap(), ..meeting.clone() };
        let error = Bootstrap::join(&wrong, 1).unwrap_err();
        assert!(matches!(error, BootstrapError::Refused { reason: Refusal::Token, .. }), "{error}");
        Bootstrap::join(&meeting, 1).unwrap();
        zero.join().unwrap();
    });
}

#[test]
fn a_port_that_somebody_else_has_is_passed_over() {
    // Whoever has it says something, says nothing, or is another job.
    for answer in
        [&b"HTTP/1.1 400 Bad\r\n\r\n"[..], b"weftlink\x02\0\0\0 but another job, which refuses all that"]
    {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = taken.local_addr().unwrap().port();
        thread::spawn(move || {
            // Gone with this process.
            for stream in taken.incoming() {
                let _ = stream.unwrap().write_all(answer);
            }
        });
        let ports = first..=first.saturating_add(20);
        let meeting = Meeting { place: Place::Tcp { host: "127.0.0.1".into(), ports }, ..meeting("", 3) };
        let ends = together(&meeting, |_| Network::default());
        assert_eq!(ends.len(), 3);
    }
}

#[test]
fn strangers_do_not_disturb_a_meeting_or_what_comes_after() {
    // Less than it would take to wait for all of those who say nothing.
    let meeting = Meeting { place: loopback(), deadline: Duration::from_secs(20), ..meeting("", 3) };
    let Place::Tcp { ports, .. } = &meeting.place else { unreachable!() };
    let port = *ports.start();
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        // Many more than there are helpers for, some of whom begin as ranks do; none is waited for.
        let connect = || loop {
            if let Ok(stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                return stream;
            }
        };
        let mut silent: Vec<_> = (0..400).map(|_| connect()).collect();
        for stream in silent.iter_mut().step_by(2) {
            let _ = stream.write_all(b"weftlink\x05\0\0\0");
        }
        for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 1000], b"weftlink\x02\0\0\0", &[0xff; 70_000]] {
            let _ = connect().write_all(garbage);
        }
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());
        let two = Bootstrap::join(&meeting, 2).unwrap();
        for end in [zero.join().unwrap(), one.join().unwrap(), two] {
            scope.spawn(|| exchange(end));
        }
    });
}

/// Carries one connection to a port, and returns the first bytes that come from the side that connected.
fn record_handshake(listener: &std::net::TcpListener, port: u16, bytes: usize) -> Vec<u8> {
    use std::io::Read;
    let (mut come, _) = listener.accept().unwrap();
    let mut there = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (mut back, mut from) = (come.try_clone().unwrap(), there.try_clone().unwrap());
    // Both copies end with the connection.
    thread::spawn(move || std::io::copy(&mut from, &mut back));
    let mut recording = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        let got = come.read(&mut recording[filled..]).unwrap();
        assert!(got > 0, "the connection ended after {filled} bytes");
        there.write_all(&recording[filled..filled + got]).unwrap();
        filled += got;
    }
    thread::spawn(move || std::io::copy(&mut come, &mut there));
    recording
}

#[test]
fn replayed_handshakes_hold_up_nobody() {
    let meeting = Meeting { place: loopback(), deadline: Duration::from_secs(30), ..meeting("", 3) };
    let Place::Tcp { ports, .. } = &meeting.place else { unreachable!() };
    let port = *ports.start();
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        // Somebody on the way hears how rank 1 begins.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let on_the_way = listener.local_addr().unwrap().port();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        let place = Place::Tcp { host: "127.0.0.1".to_owned(), ports: on_the_way..=on_the_way };
        let through = Meeting { place, ..meeting.clone() };
        let one = scope.spawn(move || Bootstrap::join(&through, 1).unwrap());
        let recording = record_handshake(&listener, port, 12 + 48);
        // Far more replays than could be listened to for five seconds each, 64 at a time, and more all the while.
        let over = &over;
        let flood = scope.spawn(move || {
            let mut replays = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                        // The listener may have hung up.
                        let _ = stream.write_all(&recording);
                        replays.push_back(stream);
                    }
                }
                replays.drain(..replays.len().saturating_sub(640));
                thread::sleep(Duration::from_millis(100));
            }
        });
        thread::sleep(Duration::from_secs(1));
        let two = Bootstrap::join(&meeting, 2);
        over.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        for end in [zero.join().unwrap(), one.join().unwrap(), two.unwrap()] {
            scope.spawn(|| exchange(end));
        }
    });
}

/// How much processor time a process has used.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

#[test]
fn silent_connections_leave_room_for_ranks_where_descriptors_are_few() {
    const TEST: &str = "silent_connections_leave_room_for_ranks_where_descriptors_are_few";
    if let Some((_, meeting)) = role() {
        let few = rustix::process::Rlimit { current: Some(128), maximum: Some(128) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
        return exchange(Bootstrap::listen(&meeting).unwrap());
    }
    let meeting = meeting("few", 3);
    let zero = run(TEST, &meeting, 0);
    let connect = || UnixStream::connect_addr(&address(&meeting));
    let until = std::time::Instant::now() + AMPLE;
    while connect().is_err() {
        assert!(std::time::Instant::now() < until, "rank 0 does not listen");
        thread::sleep(Duration::from_millis(1));
    }
    let mut silent: Vec<UnixStream> = (0..400).map(|_| connect().unwrap()).collect();
    // One that cannot let anybody in any more waits, and does not try all the time.
    let (began, before) = (std::time::Instant::now(), processor_time(zero.id()));
    thread::sleep(Duration::from_secs(2));
    let (used, passed) = (processor_time(zero.id()) - before, began.elapsed());
    assert!(used < passed / 4, "rank 0 used {used:?} of {passed:?} for nothing");
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        // As many as before, however many are turned away.
        let flood = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                silent.rotate_left(40);
                // Once the ranks have met nobody listens any more.
                for stream in &mut silent[..40] {
                    connect().into_iter().for_each(|new| *stream = new);
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1));
        let two = Bootstrap::join(&meeting, 2);
        let one = one.join().unwrap();
        over.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        let (one, two) = (one.unwrap(), two.unwrap());
        scope.spawn(|| exchange(one));
        exchange(two);
    });
    assert_success(zero);
}

#[test]
fn ranks_that_wait_for_others_to_come_say_for_whom() {
    // Rank 0 with nobody else, rank 1 without rank 0, and ranks 0 and 1 without rank 2.
    let start = |name: &str, rank: usize| {
        let place = format!("weft-test-{}-warn-{name}", std::process::id());
        let mut command = this_program();
        command.args(["--exact", "ranks_that_wait_for_others_to_come_say_for_whom", "--nocapture"]);
        command.env(ROLE, rank.to_string()).env(SIZE, "3").env(PLACE, place).env("WEFT_WARN_AFTER", "100ms");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    if let Some((rank, meeting)) = role() {
        let network = Network::of(&weftlink_knobs::Knobs::from_environment().unwrap());
        let meeting = Meeting { network, deadline: Duration::from_secs(3), ..meeting };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        return assert!(met.is_err());
    }
    let alone = [(start("zero", 0), "ranks 1 and 2"), (start("one", 1), "rank 0")];
    let together = [(start("both", 0), "rank 2"), (start("both", 1), "rank 2")];
    for (child, whom) in alone.into_iter().chain(together) {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_said = |line: &str| line.contains("weft WARN") && line.ends_with(&format!(" s for {whom}"));
        assert!(
            errors.lines().any(|line| line.contains(" has waited ") && is_said(line)),
            "{whom}: {errors}"
        );
        assert!(output.status.success(), "{errors}");
    }
}

fn loopback() -> Place {
    Place::Tcp { host: "127.0.0.1".to_owned(), ports: reserved_range() }
}

/// A group that talks through sockets as processes do, all in this process.
fn group(name: &str, size: usize) -> Vec<Bootstrap> {
    together(&meeting(name, size), |_| Network::default())
}

/// All ranks of a meeting, all in this process.
fn together(meeting: &Meeting, network: impl Fn(usize) -> Network) -> Vec<Bootstrap> {
    let size = meeting.size;
    thread::scope(|scope| {
        let join = |rank| {
            let meeting = Meeting { network: network(rank), ..meeting.clone() };
            scope.spawn(move || match rank {
                0 => Bootstrap::listen(&meeting).unwrap(),
                _ => Bootstrap::join(&meeting, rank).unwrap(),
            })
        };
        let threads: Vec<_> = (0..size).map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn meeting(name: &str, size: usize) -> Meeting {
    let place = Place::Abstract(format!("weft-test-{}-{name}-{size}", std::process::id()));
    Meeting::new(place, Token::new("secret").unwrap(), size, AMPLE)
}

fn address(meeting: &Meeting) -> SocketAddr {
    let Place::Abstract(name) = &meeting.place else { panic!("{}", meeting.place) };
    SocketAddr::from_abstract_name(name).unwrap()
}

/// The rank and the meeting that this process was started for, if it was.
fn role() -> Option<(usize, Meeting)> {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let place = Place::Abstract(std::env::var(PLACE).ok()?);
    Some((number(ROLE)?, Meeting { place, ..meeting("", number(SIZE)?) }))
}

fn others(test: &str, meeting: &Meeting) -> Vec<Child> {
    (1..meeting.size).map(|rank| run(test, meeting, rank)).collect()
}

fn run(test: &str, meeting: &Meeting, rank: usize) -> Child {
    let Place::Abstract(name) = &meeting.place else { panic!("{}", meeting.place) };
    this_program()
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, rank.to_string())
        .env(SIZE, meeting.size.to_string())
        .env(PLACE, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn assert_success(child: Child) {
    assert_passed(&child.wait_with_output().unwrap());
}

fn assert_passed(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let file = std::env::temp_dir().join(format!("weft-no-socket-{}", std::process::id()));
    std::fs::write(&file, "precious").unwrap();
    let place = Place::Path(file.clone());
    let (token, deadline) = (Token::new("t").unwrap(), Duration::from_secs(1));
    let error = Bootstrap::listen(&Meeting::new(place, token, 2, deadline)).unwrap_err().to_string();
    assert!(error.contains("something else than a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(file).unwrap();
}

/// Somebody else: the user `nobody` of every distribution.
const NOBODY: u32 = 65_534;

/// A copy of this program that every user may run, in a folder that every user may write; nothing, with the reason on the screen, where
/// this process cannot run anything as another user. Dropping it removes the folder.
struct Abroad {
    folder: PathBuf,
}

impl Abroad {
    fn new(name: &str) -> Option<Abroad> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can run a process as another user");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("weft-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), folder.join("program")).unwrap();
        for path in [folder.clone(), folder.join("program")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        Some(Abroad { folder })
    }

    /// This test again, by a user.
    fn again(&self, test: &str, user: u32) -> Command {
        let mut command = command(self.folder.join("program"));
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).current_dir(&self.folder);
        command.uid(user).gid(user).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Abroad {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_of_another_user(error: &BootstrapError) -> bool {
    matches!(error, BootstrapError::Refused { reason: Refusal::User { .. }, .. })
}

/// What a process of another user is told to do.
const DEED: &str = "WEFT_TEST_DEED";

#[test]
fn another_user_is_turned_away_on_unix_sockets() {
    const TEST: &str = "another_user_is_turned_away_on_unix_sockets";
    if let Some((rank, meeting)) = role() {
        match std::env::var(DEED).unwrap().as_str() {
            "join" => {
                let error = Bootstrap::join(&meeting, rank).unwrap_err();
                assert!(is_of_another_user(&error), "{error}");
            }
            "listen" => {
                println!("listens");
                // Until it is killed; nobody comes.
                let _ = Bootstrap::listen(&meeting);
            }
            _ => {
                // Not our library: whatever it sends, it hears nothing.
                let mut stream = UnixStream::connect_addr(&address(&meeting)).unwrap();
                let _ = stream.write_all(b"weftlink\x63\0\0\0");
                let mut heard = Vec::new();
                let _ = stream.read_to_end(&mut heard);
                assert!(heard.is_empty(), "{heard:?}");
            }
        }
        return;
    }
    let Some(abroad) = Abroad::new("users") else { return };
    let start = |meeting: &Meeting, deed: &str| {
        let Place::Abstract(name) = &meeting.place else { panic!("{}", meeting.place) };
        let mut command = abroad.again(TEST, NOBODY);
        command.env(ROLE, "1").env(SIZE, "2").env(PLACE, name).env(DEED, deed).spawn().unwrap()
    };
    // It comes to a job that it knows the secret of. The right one joins after it.
    let joined = meeting("users-join", 2);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&joined).unwrap());
        assert_success(start(&joined, "join"));
        assert_success(start(&joined, "knock"));
        let one = Bootstrap::join(&joined, 1).unwrap();
        let zero = zero.join().unwrap();
        scope.spawn(|| exchange(zero));
        exchange(one);
    });
    // It has the place of a job before its rank 0.
    let taken = meeting("users-listen", 2);
    let mut child = start(&taken, "listen");
    let error = Bootstrap::join(&taken, 1).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_of_another_user(&error), "{error}");
}

#[test]
fn another_user_cannot_join_a_job_without_a_secret() {
    const TEST: &str = "another_user_cannot_join_a_job_without_a_secret";
    if std::env::var(DEED).is_ok() {
        let knobs = Knobs::from_environment().unwrap();
        return match Bootstrap::from_environment(&knobs) {
            Ok(end) => exchange(end),
            Err(error) => panic!("not in: {error}"),
        };
    }
    let Some(abroad) = Abroad::new("guess") else { return };
    let port = reserved_range().start().to_string();
    let tcp = |rank: usize| {
        let place = format!("127.0.0.1:{port}");
        vec![("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned()), ("WEFT_RENDEZVOUS", place)]
    };
    // Everything that a rank of srun is told is known to others, but for the number of the user, which the name of the socket has.
    let job = std::process::id().to_string();
    let srun = |rank: usize| {
        let mut told = vec![("SLURM_JOB_ID", job.clone()), ("SLURM_PROCID", rank.to_string())];
        for (name, value) in [("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_NNODES", "1")] {
            told.push((name, value.to_owned()));
        }
        told
    };
    let kinds: [&dyn Fn(usize) -> Vec<(&'static str, String)>; 2] = [&tcp, &srun];
    for told in kinds {
        let start = |rank: usize, user: u32| {
            let mut command = abroad.again(TEST, user);
            command.env_clear().env(DEED, "join").env("WEFT_DEADLINE", "60").envs(told(rank)).spawn().unwrap()
        };
        let zero = start(0, 0);
        if told(1)[0].0 == "RANK" {
            let output = start(1, NOBODY).wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(
                !output.status.success() && said.contains("runs as user 0, and this one as user 65534"),
                "{said}"
            );
        }
        let one = start(1, 0);
        for rank in [zero, one] {
            let output = rank.wait_with_output().unwrap();
            assert_passed(&output);
        }
    }
}

#[test]
fn a_socket_of_somebody_else_or_in_use_stays_where_it_is() {
    let Some(abroad) = Abroad::new("paths") else { return };
    let path = abroad.folder.join("socket");
    let listen = |path: &Path| {
        let place = Place::Path(path.to_owned());
        Bootstrap::listen(&Meeting::new(place, Token::new("t").unwrap(), 2, BRIEF)).unwrap_err().to_string()
    };
    // Nobody listens there, but it is not ours.
    drop(UnixListener::bind(&path).unwrap());
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    let before = path.symlink_metadata().unwrap().ino();
    let error = listen(&path);
    assert!(error.contains("there is a socket of user 65534"), "{error}");
    assert_eq!(path.symlink_metadata().unwrap().ino(), before);
    // Ours, but somebody else's by the time that it is given up.
    std::fs::remove_file(&path).unwrap();
    let other = abroad.folder.join("other");
    thread::scope(|scope| {
        let place = Place::Path(path.clone());
        let meeting = Meeting::new(place, Token::new("t").unwrap(), 2, Duration::from_secs(2));
        let waits = scope.spawn(move || Bootstrap::listen(&meeting).unwrap_err());
        while !path.exists() {
            thread::sleep(Duration::from_millis(1));
        }
        let _taken = UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let error = waits.join().unwrap();
        assert!(matches!(error, BootstrapError::Missing { .. }), "{error}");
        assert!(path.exists(), "another listens there now");
    });
}

#[test]
fn an_empty_secret_is_an_error() {
    const TEST: &str = "an_empty_secret_is_an_error";
    if std::env::var(DEED).is_ok() {
        let knobs = Knobs::from_environment().unwrap();
        return println!("{}", Bootstrap::from_environment(&knobs).unwrap_err());
    }
    assert!(Token::new("").is_err());
    for name in ["WEFT_SECRET", "WEFT_SECRET_FILE"] {
        let output = this_program()
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env_clear()
            .envs([
                (DEED, "meet"),
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("WEFT_RENDEZVOUS", "127.0.0.1:1"),
                (name, " "),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("{name} is set and empty")), "{said}");
    }
}
