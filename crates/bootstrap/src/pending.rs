//! Connections that have not proved anything yet. Each is greeted at once, and no thread serves it before it has sent enough, so one that sends
//! nothing, or half of it, blocks no other. Where too many wait, those that have sent nothing are closed first, then those that
//! have not sent enough; the oldest first.
//!
//! Connections take descriptors, of which the program needs some too: how many may wait follows from the limit of this process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, getrlimit};

use super::greeting::{Challenge, FIRST_BYTES, is_worth_hearing};

/// How many may wait, and how many may be heard by helpers at the same time, where descriptors are plenty.
const WAITING_MAX: usize = 512;
const HELPERS_MAX: usize = 64;
/// The parts of this process's descriptors that they may take.
const WAITING_SHARE: usize = 4;
const HELPERS_SHARE: usize = 8;
/// How often connections that have begun to send are checked: poll does not report when they have sent enough.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// How many unproved connections this process affords.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    waiting: usize,
    pub(super) helpers: usize,
}

impl Limits {
    /// By the number of descriptors that this process may have.
    pub(super) fn of_this_process() -> Limits {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Limits::with(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn with(descriptors: usize) -> Limits {
        Limits {
            waiting: (descriptors / WAITING_SHARE).clamp(1, WAITING_MAX),
            helpers: (descriptors / HELPERS_SHARE).clamp(1, HELPERS_MAX),
        }
    }
}

pub(super) struct PendingConnections {
    limits: Limits,
    waiting: VecDeque<PendingConnection>,
}

/// A connection that was accepted and greeted.
pub(super) struct PendingConnection {
    pub(super) socket: OwnedFd,
    pub(super) challenge: Challenge,
    since: Instant,
    is_silent: bool,
}

/// What a connection has said so far.
#[derive(PartialEq, Eq)]
enum Said {
    Nothing,
    Something,
    Enough,
    /// It has hung up.
    Gone,
}

impl PendingConnection {
    fn said(&self) -> Said {
        let mut said = [0; FIRST_BYTES];
        match recv(&self.socket, &mut said[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Said::Gone,
            Ok((_, bytes)) if is_worth_hearing(&said[..bytes.min(FIRST_BYTES)]) => Said::Enough,
            Ok(_) => Said::Something,
            Err(Errno::AGAIN | Errno::INTR) => Said::Nothing,
            Err(_) => Said::Gone,
        }
    }
}

impl PendingConnections {
    pub(super) fn new(limits: Limits) -> PendingConnections {
        PendingConnections { limits, waiting: VecDeque::new() }
    }

    /// Greets a connection and adds it.
    pub(super) fn enter(&mut self, socket: OwnedFd) {
        if self.waiting.len() >= self.limits.waiting && !self.evict() {
            self.waiting.pop_front();
        }
        if let Some(challenge) = Challenge::greet(&socket) {
            self.waiting.push_back(PendingConnection {
                socket,
                challenge,
                since: Instant::now(),
                is_silent: true,
            });
        }
    }

    /// Closes a connection that has not sent enough. Returns whether there was one.
    pub(super) fn evict(&mut self) -> bool {
        let first =
            |wanted: &[Said]| self.waiting.iter().position(|connection| wanted.contains(&connection.said()));
        let found = first(&[Said::Nothing, Said::Gone]).or_else(|| first(&[Said::Something]));
        found.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Connections that have sent nothing, to be polled.
    pub(super) fn silent(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting
            .iter()
            .filter(|connection| connection.is_silent)
            .map(|connection| connection.socket.as_fd())
    }

    /// When to check again; nothing while poll reports it.
    pub(super) fn tick(&self, limit: Duration) -> Option<Duration> {
        if self.waiting.iter().any(|connection| !connection.is_silent) {
            return Some(TICK);
        }
        self.waiting.front().map(|connection| limit.saturating_sub(connection.since.elapsed()))
    }

    /// The oldest connection that can be served. Closes those that have hung up or taken longer than the limit.
    pub(super) fn next(&mut self, limit: Duration) -> Option<PendingConnection> {
        let mut at = 0;
        while let Some(connection) = self.waiting.get_mut(at) {
            match connection.said() {
                Said::Enough => return self.waiting.remove(at),
                said @ (Said::Nothing | Said::Something) if connection.since.elapsed() < limit => {
                    connection.is_silent = said == Said::Nothing;
                    at += 1;
                }
                _ => drop(self.waiting.remove(at)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn enter(pending: &mut PendingConnections) -> UnixStream {
        let (stranger, socket) = UnixStream::pair().unwrap();
        pending.enter(socket.into());
        stranger
    }

    #[test]
    fn silent_connections_delay_no_rank() {
        let mut pending = PendingConnections::new(Limits::with(usize::MAX));
        let mut strangers: Vec<UnixStream> = (0..2 * WAITING_MAX).map(|_| enter(&mut pending)).collect();
        strangers[WAITING_MAX + 1].write_all(b"w").unwrap();
        assert!(pending.next(LIMIT).is_none());
        assert_eq!((pending.silent().count(), pending.tick(LIMIT)), (WAITING_MAX - 1, Some(TICK)));
        let mut rank = enter(&mut pending);
        // Garbage is worth an answer: it may be another version.
        rank.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(pending.next(LIMIT).is_some());
        assert!(pending.next(LIMIT).is_none());
        drop(strangers);
        assert!(pending.next(LIMIT).is_none());
        assert_eq!(pending.silent().count(), 0, "who hangs up without a word is gone");
    }

    #[test]
    fn silent_connections_do_not_evict_active_ones() {
        let mut pending = PendingConnections::new(Limits::with(32));
        assert_eq!(pending.limits, Limits { waiting: 8, helpers: 4 });
        let (mut half, mut whole) = (enter(&mut pending), enter(&mut pending));
        half.write_all(b"weftlink").unwrap();
        whole.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let silent: Vec<UnixStream> = (0..100).map(|_| enter(&mut pending)).collect();
        assert_eq!(pending.waiting.len(), 8);
        assert!(pending.next(LIMIT).is_some(), "the one that has said enough is still there");
        assert!(pending.next(LIMIT).is_none());
        assert_eq!((pending.waiting.len(), pending.silent().count()), (7, 6));
        drop(silent);
        assert!(pending.evict() && pending.next(LIMIT).is_none());
        assert_eq!(pending.waiting.len(), 1, "the one that has said half of it is still there");
    }
}
