//! In which order ranks end.
//!
//! When one rank fails the others follow within a millisecond, and which was the first is what people want to know. A thread
//! for each would note the time when it gets to run, which on a busy machine is in any order. So one thread listens to all:
//! the kernel tells it of processes in the order in which they ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Times are passed on in microseconds, and no two of them are the same.
const APART: Duration = Duration::from_micros(1);

/// Where ends are awaited.
pub(super) struct Ends {
    epoll: Arc<OwnedFd>,
    receivers: Vec<Option<Receiver<Instant>>>,
}

/// The end of one rank, as long as it is awaited.
pub(super) struct Awaited {
    _process: OwnedFd,
    ended: Receiver<Instant>,
}

impl Ends {
    /// For so many ranks.
    pub(super) fn new(ranks: usize) -> io::Result<Ends> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
        let listened = Arc::clone(&epoll);
        thread::Builder::new().spawn(move || listen(&listened, &senders))?;
        Ok(Ends { epoll, receivers: receivers.into_iter().map(Some).collect() })
    }

    /// Awaits the end of a rank's process from now on; nothing if the kernel cannot, or has no descriptor left for it.
    pub(super) fn of(&mut self, index: usize, pid: u32) -> Option<Awaited> {
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&*self.epoll, &process, epoll::EventData::new_u64(index as u64), once).ok()?;
        Some(Awaited { _process: process, ended: self.receivers.get_mut(index)?.take()? })
    }
}

impl Awaited {
    /// Waits until the process has ended, and tells when that was.
    pub(super) fn wait(&self) -> Option<Instant> {
        self.ended.recv().ok()
    }
}

/// Passes on when each process ended; all of them, unless the kernel fails, and then those who wait look for themselves.
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
