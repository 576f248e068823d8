//! Thousands of communicators leak nothing; and a process that is forked while there are some neither hangs nor disturbs them.
//!
//! The tests count resources of the whole process, so they take turns.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code)] // Fork is unsafe to call.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Background, Communicator, Error, Options, Reduction};
use weftlink_testkit::processes::this_program;

static TURN: Mutex<()> = Mutex::new(());

const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options { deadline: LONG, single_copy: Some(false), ..Options::default() }
}

/// The resources of a process: descriptors, threads, kilobytes of memory, mappings.
#[derive(Debug)]
struct Has {
    descriptors: usize,
    threads: usize,
    resident_kb: usize,
    mappings: usize,
}

impl Has {
    fn now() -> Has {
        let entries = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Has {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            resident_kb: resident.trim().trim_end_matches(" kB").parse().unwrap(),
            mappings: std::fs::read_to_string("/proc/self/maps").unwrap().matches("weft:").count(),
        }
    }

    /// Waits until the counts are back to these: detached threads take a moment to exit.
    fn assert_back_to(before: &Has) {
        let began = Instant::now();
        loop {
            let now = Has::now();
            // The allocator keeps what it may need again; a leak of a page a group would be more.
            let memory = now.resident_kb < before.resident_kb + 6000;
            if memory
                && now.descriptors <= before.descriptors
                && now.threads <= before.threads
                && now.mappings == 0
            {
                return;
            }
            assert!(began.elapsed() < LONG, "{before:?} became {now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn use_it(comm: Communicator, close: bool) {
    let background = comm.into_background().unwrap();
    let sum = background.all_reduce(vec![1.0_f32; 4], Reduction::Sum).wait().unwrap();
    assert_eq!(sum, [2.0; 4]);
    if close {
        drop(background.close().unwrap());
    }
}

#[test]
fn groups_of_threads_leak_nothing() {
    let _turn = TURN.lock().unwrap();
    let round = |number: usize| {
        let ranks = Communicator::threads(2, options()).unwrap();
        std::thread::scope(|scope| {
            ranks
                .into_iter()
                .for_each(|comm| drop(scope.spawn(move || use_it(comm, number.is_multiple_of(2)))));
        });
    };
    (0..50).for_each(round);
    let before = Has::now();
    (0..2000).for_each(round);
    Has::assert_back_to(&Has { threads: before.threads.min(3), ..before });
}

#[test]
fn endpoints_leak_nothing() {
    let _turn = TURN.lock().unwrap();
    let round = |number: usize| {
        let ranks = Communicator::threads(2, options()).unwrap();
        let work = |mut comm: Communicator| {
            let endpoint = comm.endpoint().unwrap();
            let (peer, (sender, receiver)) = (1 - comm.rank(), std::sync::mpsc::channel());
            let mut got = vec![0_u8; 100_000];
            // SAFETY: the memory lives until the callback has run.
            unsafe {
                let done = move |result: Result<usize, Error>| sender.send(result.is_ok()).unwrap();
                endpoint.start_receive(Some(peer), 1, got.as_mut_ptr(), got.len(), LONG, done);
            }
            // In alternation the message arrives, or this rank leaves first.
            if number.is_multiple_of(2) {
                endpoint.send(peer, 1, &vec![1; got.len()], LONG).unwrap();
                assert!(receiver.recv().unwrap() && got == vec![1; got.len()]);
                comm.barrier().unwrap();
            } else {
                comm.barrier().unwrap();
                drop((comm, endpoint));
                assert!(!receiver.recv().unwrap());
            }
        };
        std::thread::scope(|scope| {
            ranks.into_iter().for_each(|comm| drop(scope.spawn(move || work(comm))));
        });
    };
    (0..10).for_each(round);
    let before = Has::now();
    (0..100).for_each(round);
    Has::assert_back_to(&Has { threads: before.threads.min(3), ..before });
}

#[test]
fn groups_of_processes_leak_nothing() {
    const TEST: &str = "groups_of_processes_leak_nothing";
    const ROLE: &str = "WEFT_TEST_PARENT";
    let work = |rank: usize, parent: String| {
        let round = |number: usize| {
            let place = RendezvousAddress::Abstract(format!("weft-many-{parent}-{number}"));
            let token = Token::new("many").unwrap();
            let meeting = Rendezvous::new(place, token, 2, LONG);
            let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
            use_it(Communicator::new(met.unwrap(), options()).unwrap(), number.is_multiple_of(2));
        };
        (0..20).for_each(round);
        let before = Has::now();
        (20..220).for_each(round);
        Has::assert_back_to(&Has { threads: before.threads.min(3), ..before });
    };
    if let Ok(parent) = std::env::var(ROLE) {
        return work(1, parent);
    }
    let _turn = TURN.lock().unwrap();
    let parent = std::process::id().to_string();
    let mut other = this_program().args(["--exact", TEST, "--nocapture"]).env(ROLE, &parent).spawn().unwrap();
    work(0, parent);
    assert!(other.wait().unwrap().success());
}

/// The descriptors that replace connections in a forked process are closed on exec.
#[test]
fn exec_after_fork_inherits_nothing() {
    let _turn = TURN.lock().unwrap();
    let place = RendezvousAddress::Abstract(format!("weft-inherits-{}", std::process::id()));
    let meeting = Rendezvous::new(place, Token::new("inherits").unwrap(), 2, LONG);
    let ranks = std::thread::scope(|scope| {
        let other = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());
        [Bootstrap::listen(&meeting).unwrap(), other.join().unwrap()]
    });
    let mut command = std::process::Command::new("ls");
    command.args(["-l", "/proc/self/fd"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // `pre_exec` makes the standard library fork instead of using posix_spawn.
    // SAFETY: the function does nothing.
    unsafe { command.pre_exec(|| Ok(())) };
    let listed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    // This process may pass on descriptors that it inherited; sockets are its own.
    let is_socket = |number: &str| {
        let place = std::fs::read_link(format!("/proc/self/fd/{number}"));
        place.is_ok_and(|place| place.to_string_lossy().starts_with("socket:"))
    };
    let instead = |line: &&str| {
        let number = line.strip_suffix(" -> /dev/null").and_then(|line| line.split(' ').next_back());
        number.is_some_and(is_socket)
    };
    let inherited: Vec<&str> = listed.lines().filter(instead).collect();
    assert!(listed.contains("pipe:") && inherited.is_empty(), "{inherited:?} of {listed}");
    drop(ranks);
}

/// A fork may happen while a thread writes counters, and the objects that the child drops belong to the parent.
#[test]
fn a_forked_process_writes_no_counters() {
    const TEST: &str = "a_forked_process_writes_no_counters";
    const FILE: &str = "WEFT_TEST_COUNTERS";
    if let Ok(file) = std::env::var(FILE) {
        let own =
            || std::fs::read_to_string(&file).unwrap().contains(&format!("process {} ", std::process::id()));
        let ranks = Communicator::threads(1, options()).unwrap();
        let began = Instant::now();
        while !std::path::Path::new(&file).exists() {
            assert!(began.elapsed() < LONG, "nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the child drops what it has and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(ranks);
            // SAFETY: ends the child without running what the parent has set up.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: a child of our own, and a place for its end.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(own(), "another process wrote the counters");
        return drop(ranks);
    }
    let file = std::env::temp_dir().join(format!("weft-counters-{}", std::process::id()));
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]).env(FILE, &file);
    let done = command.env("WEFT_METRICS", format!("file:{}", file.display())).output().unwrap();
    let _ = std::fs::remove_file(&file);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn forked_processes_neither_hang_nor_disturb_the_job() {
    let _turn = TURN.lock().unwrap();
    let ranks = Communicator::threads(3, options()).unwrap();
    let [one, two, three] = <[Communicator; 3]>::try_from(ranks).unwrap();
    // One blocks and two do not.
    let (one, two) = (one.into_background().unwrap(), two.into_background().unwrap());
    let call = |background: &Background| background.all_reduce(vec![1.0_f32; 8], Reduction::Sum);
    let open = call(&one);
    // SAFETY: the child does what is tested, without printing, and ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = |result: Result<Vec<f32>, Error>| {
            result.is_err_and(|error| error.to_string().contains("was forked"))
        };
        let started = refused(call(&one).wait());
        let inherited = refused(open.wait());
        one.abort("a child has nothing to say");
        let scoped = one.scope(|_| 5) == 5;
        drop((one, two, three));
        let right = started && inherited && scoped;
        // SAFETY: ends the child without running what the parent has set up.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let began = Instant::now();
    let mut status = 0;
    // SAFETY: a child of our own, and a place for its end.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if began.elapsed() > LONG {
            // SAFETY: the same child.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "how the child ended");
    // No rank has noticed.
    let mut three = three;
    std::thread::scope(|scope| {
        scope.spawn(|| call(&two).wait().unwrap());
        scope.spawn(|| three.all_reduce(&mut [1.0_f32; 8], Reduction::Sum).unwrap());
        assert_eq!(open.wait().unwrap(), [3.0; 8]);
    });
}
