//! Ranks meet over the network: hosts, ports and interfaces.
#![allow(unsafe_code)] // Shared memory is reached through a raw pointer.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use meeting::{AMPLE, loopback, meeting, on_all, together};
use weftlink_comm::bootstrap::{Network, Rendezvous, RendezvousAddress};
use weftlink_testkit::ports::reserved_range;

#[test]
fn ranks_join_over_the_network() {
    // As many hosts as ranks, then two ranks on each, then all on one: by TCP either way, with IPv4, IPv6 and a name.
    for (ranks_per_host, host) in [(1, "127.0.0.1"), (2, "::1"), (8, "localhost")] {
        let place = RendezvousAddress::Tcp { host: host.to_owned(), ports: reserved_range() };
        let meeting = Rendezvous { address: place, ..meeting("", 5) };
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
fn ranks_without_shared_memory_are_separate_hosts() {
    let meeting = Rendezvous { address: loopback(), ..meeting("", 3) };
    let ends = together(&meeting, |_| Network { shared_memory: false, ..Network::default() });
    assert_eq!(ends[2].hosts(), [0, 1, 2]);
}

#[test]
fn ports_in_use_are_skipped() {
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
        let meeting = Rendezvous {
            address: RendezvousAddress::Tcp { host: "127.0.0.1".into(), ports },
            ..meeting("", 3)
        };
        let ends = together(&meeting, |_| Network::default());
        assert_eq!(ends.len(), 3);
    }
}
