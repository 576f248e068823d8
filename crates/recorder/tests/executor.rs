//! What an executor of plans needs of a group, without the CPU engine: who is where, bytes exchanged, descriptors passed, memory
//! that all ranks of a host map, deaths heard of, calls recorded, and an abort. A GPU executor uses these and nothing else.
#![allow(clippy::unwrap_used)] // All of this is test.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use weftlink_bootstrap::{Bootstrap, Event, Failure, Reason, Rendezvous, RendezvousAddress, Token};
use weftlink_recorder::recorder::{Places, Recorder, Who};
use weftlink_shm::memory::SharedMemory;
use weftlink_testkit::processes::this_program;

const AMPLE: Duration = Duration::from_secs(60);
const RANKS: usize = 4;

/// One rank of an executor, up to where the last rank dies.
fn run(group: &mut Bootstrap) {
    let (rank, size) = (group.rank(), group.size());
    assert_eq!((group.hosts(), group.pids().len()), (&vec![0; size][..], size));
    let said = group.exchange("an executor's handles", vec![rank as u8; rank], AMPLE).unwrap();
    assert!((0..size).all(|rank| said[rank] == vec![rank as u8; rank]));

    // As memory of a device would be: whoever has the descriptor has the memory.
    for round in 0..3 {
        let (_, descriptor) = SharedMemory::create("an executor's memory", 4096).unwrap();
        let own = File::from(descriptor);
        own.write_at(&[rank as u8, round], 0).unwrap();
        let passed = group.pass_descriptors("an executor's memory", own.as_fd(), AMPLE).unwrap();
        drop(own);
        for (rank, descriptor) in passed.into_iter().enumerate() {
            let mut read = [0; 2];
            File::from(descriptor.unwrap()).read_at(&mut read, 0).unwrap();
            assert_eq!(read, [rank as u8, round]);
        }
    }

    let shared = group.share("an executor's flags", 4096, AMPLE).unwrap();
    assert_eq!(shared.len(), 4096);

    let mut recorder = Recorder::new(Who { rank, size, job: group.id() }, 16, 0, &Places::default());
    recorder.begin(1);
    recorder.end();
    assert_eq!(recorder.reader().record().last_number(), Some(1));
}

#[test]
fn threads_of_one_process() {
    thread::scope(|scope| {
        for mut group in Bootstrap::threads(RANKS) {
            scope.spawn(move || run(&mut group));
        }
    });
    run(&mut Bootstrap::alone());
}

#[test]
fn processes_of_one_host() {
    let is_child = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    if let (Some(rank), Ok(place)) = (is_child("WEFT_TEST_ROLE"), std::env::var("WEFT_TEST_PLACE")) {
        return process(Bootstrap::join(&meeting(place), rank).unwrap());
    }
    let place = format!("weft-test-{}-executor", std::process::id());
    let children: Vec<Child> = (1..RANKS)
        .map(|rank| {
            this_program()
                .args(["--exact", "processes_of_one_host", "--nocapture", "--test-threads=1"])
                .env("WEFT_TEST_ROLE", rank.to_string())
                .env("WEFT_TEST_PLACE", &place)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    process(Bootstrap::listen(&meeting(place)).unwrap());
    for (rank, child) in (1..).zip(children) {
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(if rank == RANKS - 1 { 7 } else { 0 }),
            "rank {rank}: {output:?}"
        );
    }
}

fn meeting(place: String) -> Rendezvous {
    Rendezvous::new(RendezvousAddress::Abstract(place), Token::new("secret").unwrap(), RANKS, AMPLE)
}

fn process(mut group: Bootstrap) {
    let (sender, events) = mpsc::channel();
    group.set_event_handler(Box::new(move |event| {
        let _ = sender.send(event.clone());
        None
    }));
    run(&mut group);
    group.exchange("all have come so far", Vec::new(), AMPLE).unwrap();
    if group.rank() == RANKS - 1 {
        std::process::exit(7);
    }
    let died = loop {
        if let Event::Died { rank } = events.recv_timeout(AMPLE).unwrap() {
            break rank;
        }
    };
    assert_eq!(died as usize, RANKS - 1);
    let failure = Failure { why: format!("rank {died} died"), blamed: Vec::new(), aborted_by: None };
    group.give_up(&failure, died, Reason::Died.code().get());
    assert!(group.exchange("after the end", Vec::new(), AMPLE).is_err());
}
