//! The order in which ranks exit.
//!
//! When one rank fails, the others follow within a millisecond, and the user needs to know which was first. Threads that each
//! wait for one process would run in any order on a busy machine. So one thread polls all processes: the kernel reports them in
//! the order in which they exited.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Times are in microseconds, and no two are equal.
const APART: Duration = Duration::from_micros(1);

/// Waits for processes to exit.
pub(super) struct Ends {
    epoll: Arc<OwnedFd>,
    receivers: Vec<Option<Receiver<Instant>>>,
}

/// The pending exit of one rank.
pub(super) struct Awaited {
    _process: OwnedFd,
    ended: Receiver<Instant>,
}

impl Ends {
    /// For up to `ranks` processes.
    pub(super) fn new(ranks: usize) -> io::Result<Ends> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
        let listened = Arc::clone(&epoll);
        thread::Builder::new().spawn(move || listen(&listened, &senders))?;
        Ok(Ends { epoll, receivers: receivers.into_iter().map(Some).collect() })
    }

    /// Starts to wait for a process. Returns nothing if the kernel has no pidfd, or no descriptor left.
    pub(super) fn of(&mut self, index: usize, pid: u32) -> Option<Awaited> {
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&*self.epoll, &process, epoll::EventData::new_u64(index as u64), once).ok()?;
        Some(Awaited { _process: process, ended: self.receivers.get_mut(index)?.take()? })
    }
}

impl Awaited {
    /// Waits until the process has exited; returns when that was.
    pub(super) fn wait(&self) -> Option<Instant> {
        self.ended.recv().ok()
    }
}

/// Reports the exit time of each process. If polling fails, the waiters check for themselves.
fn listen(epoll: &OwnedFd, ranks: &[Sender<Instant>]) {
    let mut last: Option<Instant> = None;
    let mut events = Vec::with_capacity(64);
    let mut left = ranks.len();
    while left > 0 {
        events.clear();
        match epoll::wait(epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        for event in &events {
            let at = last.map_or_else(Instant::now, |last| Instant::now().max(last + APART));
            last = Some(at);
            left -= 1;
            if let Some(rank) = ranks.get(event.data.u64() as usize) {
                let _ = rank.send(at);
            }
        }
    }
}
