//! Processes that connect and prove nothing do not hold up a rendezvous.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use meeting::{AMPLE, address, assert_success, exchange, loopback, meeting, role, run};
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress};

#[test]
fn foreign_connections_do_not_disturb_a_job() {
    // Less than it would take to wait for all of those who say nothing.
    let meeting = Rendezvous { address: loopback(), deadline: Duration::from_secs(20), ..meeting("", 3) };
    let RendezvousAddress::Tcp { ports, .. } = &meeting.address else { unreachable!() };
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
fn replayed_handshakes_delay_no_rank() {
    let meeting = Rendezvous { address: loopback(), deadline: Duration::from_secs(30), ..meeting("", 3) };
    let RendezvousAddress::Tcp { ports, .. } = &meeting.address else { unreachable!() };
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
        let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: on_the_way..=on_the_way };
        let through = Rendezvous { address: place, ..meeting.clone() };
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
fn idle_connections_do_not_exhaust_descriptors() {
    const TEST: &str = "idle_connections_do_not_exhaust_descriptors";
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
