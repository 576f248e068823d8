//! A process of this host that is watched.

use std::fs::read_to_string;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `PF_EXITING` of the kernel: the thread runs none of its program any more.
const EXITING: u64 = 4;

/// A process that is watched: its descriptor is readable once it has ended.
#[derive(Debug)]
pub(super) struct Process {
    descriptor: OwnedFd,
    pid: Pid,
}

impl Process {
    /// Nothing where the kernel does not allow it.
    pub(super) fn watch(pid: Pid) -> Option<Process> {
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Process { descriptor, pid })
    }

    /// Whether it exits or has ended. A process that exits closes its files one by one, so connections may end long before it does.
    pub(super) fn is_exiting(&self) -> bool {
        // In this order: if the process has ended in between, another one may have its number.
        are_threads_exiting(self.pid) || self.has_ended()
    }

    fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(self, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether all threads of a process exit. The first one may have ended long before the others.
fn are_threads_exiting(pid: Pid) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    all_exit(threads.flatten().filter_map(|thread| read_to_string(thread.path().join("stat")).ok()))
}

/// Whether these are threads that exit. If none could be read, as without a free descriptor, nothing is known of them.
fn all_exit(stats: impl Iterator<Item = String>) -> bool {
    let mut stats = stats.peekable();
    stats.peek().is_some() && stats.all(|stat| is_exiting(&stat).unwrap_or(false))
}

/// Reads the state and the flags of a thread. Its name, in parentheses, may contain anything.
fn is_exiting(stat: &str) -> Option<bool> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(matches!(state, "Z" | "X") || flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::process::Stdio;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use rustix::fs::inotify;
    use rustix::process::{Signal, getpid, kill_process};
    use weftlink_membership::durations::INQUIRY;
    use weftlink_testkit::processes::{command, this_program};

    use super::*;
    use crate::monitor::tests::{AMPLE, until};
    use crate::{Bootstrap, Event, Rendezvous, RendezvousAddress, Token};

    /// Files that the kernel takes 2 to 10 ms each to close. Most systems allow a user 128.
    const SLOW_FILES: usize = 120;

    /// The kernel closes the files of a process from the last one on: the connections first, and then those that the process opened before,
    /// as the driver of a GPU does.
    #[test]
    fn a_killed_process_that_exits_slowly_has_died() {
        const ADDRESS: &str = "WEFT_TEST_PLACE";
        let meeting = |address: &str| {
            let address = RendezvousAddress::Abstract(address.to_owned());
            Rendezvous::new(address, Token::new("slow exit").unwrap(), 2, AMPLE)
        };
        if let Ok(address) = std::env::var(ADDRESS) {
            let files = (0..SLOW_FILES).map_while(|_| inotify::init(inotify::CreateFlags::empty()).ok());
            let files: Vec<_> = files.collect();
            for file in &files {
                inotify::add_watch(file, "/", inotify::WatchFlags::MODIFY).unwrap();
            }
            let _group = Bootstrap::join(&meeting(&address), 1).unwrap();
            kill_process(getpid(), Signal::KILL).unwrap();
            unreachable!("it is killed");
        }
        // Until one has exited slowly: the kernel sometimes closes all of them at once.
        for attempt in 0..8 {
            let address = format!("weft-test-{}-slow-exit-{attempt}", std::process::id());
            let mut rank = this_program();
            rank.args(["--exact", "process::tests::a_killed_process_that_exits_slowly_has_died"]);
            let mut rank = rank.env(ADDRESS, &address).stdout(Stdio::null()).spawn().unwrap();
            let group = Bootstrap::listen(&meeting(&address)).unwrap();
            let begin = Instant::now();
            let (sender, events) = channel();
            group.set_event_handler(Box::new(move |event| {
                let _ = sender.send(event.clone());
                None
            }));
            assert_eq!(events.recv_timeout(AMPLE), Ok(Event::Died { rank: 1 }));
            rank.wait().unwrap();
            if begin.elapsed() > INQUIRY {
                break;
            }
        }
    }

    #[test]
    fn a_process_exits_once_it_is_killed() {
        let mut child = command("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = Process::watch(Pid::from_child(&child)).unwrap();
        assert!(!process.is_exiting());
        child.kill().unwrap();
        until(|| are_threads_exiting(process.pid).then_some(()));
        child.wait().unwrap();
        assert!(process.is_exiting(), "a process id that is free or has been reused counts as exiting");
    }

    #[test]
    fn threads_that_exit_are_recognized() {
        let stat = |state: &str, flags: u64| format!("12 (a ) (b) {state} 1 2 3 0 -1 {flags} 10 0");
        assert_eq!(is_exiting(&stat("S", 0x40_0040)), Some(false));
        assert_eq!(is_exiting(&stat("D", 0x40_0044)), Some(true));
        assert_eq!(is_exiting(&stat("Z", 0)), Some(true));
        assert_eq!(is_exiting("12 (a)"), None);
        let all = |states: &[&str]| all_exit(states.iter().map(|state| stat(state, 0)));
        assert!(all(&["Z", "X"]) && !all(&["Z", "S"]));
        assert!(!all(&[]), "a process of which no thread can be read may live");
    }
}
