//! What the tests of the bootstrap share: places where ranks meet, groups, and processes.
//!
//! Processes are made by running the test binary again with a role in the environment. No test depends on how fast anything is:
//! waits that must succeed have a minute, waits that must fail a few milliseconds.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(unsafe_code)] // Shared memory is reached through a raw pointer.
#![allow(clippy::unwrap_used)] // All of this is test.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_shm::memory::SharedMemory;
use weftlink_testkit::ports::reserved_range;
use weftlink_testkit::processes::this_program;

pub(crate) const AMPLE: Duration = Duration::from_secs(60);
pub(crate) const BRIEF: Duration = Duration::from_millis(30);

pub(crate) const ROLE: &str = "WEFT_TEST_ROLE";
pub(crate) const PLACE: &str = "WEFT_TEST_PLACE";
pub(crate) const SIZE: &str = "WEFT_TEST_SIZE";

/// Everybody writes its number where everybody else can read it.
pub(crate) fn exchange(mut end: Bootstrap) {
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

pub(crate) fn on_all<T: Send>(ends: Vec<Bootstrap>, work: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn loopback() -> RendezvousAddress {
    RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: reserved_range() }
}

/// A group that talks through sockets as processes do, all in this process.
pub(crate) fn group(name: &str, size: usize) -> Vec<Bootstrap> {
    together(&meeting(name, size), |_| Network::default())
}

/// All ranks of a meeting, all in this process.
pub(crate) fn together(meeting: &Rendezvous, network: impl Fn(usize) -> Network) -> Vec<Bootstrap> {
    let size = meeting.size;
    thread::scope(|scope| {
        let join = |rank| {
            let meeting = Rendezvous { network: network(rank), ..meeting.clone() };
            scope.spawn(move || match rank {
                0 => Bootstrap::listen(&meeting).unwrap(),
                _ => Bootstrap::join(&meeting, rank).unwrap(),
            })
        };
        let threads: Vec<_> = (0..size).map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn meeting(name: &str, size: usize) -> Rendezvous {
    let place = RendezvousAddress::Abstract(format!("weft-test-{}-{name}-{size}", std::process::id()));
    Rendezvous::new(place, Token::new("secret").unwrap(), size, AMPLE)
}

pub(crate) fn address(meeting: &Rendezvous) -> SocketAddr {
    let RendezvousAddress::Abstract(name) = &meeting.address else { panic!("{}", meeting.address) };
    SocketAddr::from_abstract_name(name).unwrap()
}

/// The rank and the meeting that this process was started for, if it was.
pub(crate) fn role() -> Option<(usize, Rendezvous)> {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let place = RendezvousAddress::Abstract(std::env::var(PLACE).ok()?);
    Some((number(ROLE)?, Rendezvous { address: place, ..meeting("", number(SIZE)?) }))
}

pub(crate) fn others(test: &str, meeting: &Rendezvous) -> Vec<Child> {
    (1..meeting.size).map(|rank| run(test, meeting, rank)).collect()
}

pub(crate) fn run(test: &str, meeting: &Rendezvous, rank: usize) -> Child {
    let RendezvousAddress::Abstract(name) = &meeting.address else { panic!("{}", meeting.address) };
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

pub(crate) fn assert_success(child: Child) {
    assert_passed(&child.wait_with_output().unwrap());
}

pub(crate) fn assert_passed(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// The variable that selects the action of a process that runs as another user.
pub(crate) const DEED: &str = "WEFT_TEST_DEED";
