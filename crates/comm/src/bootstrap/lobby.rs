//! Where those wait who have come and have not said who they are. Nobody is heard before there is something to hear, so one that says
//! nothing, or half of it, holds up nobody; and where too many do, the one that has been silent longest has to go.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::channel::{FIRST_BYTES, is_worth_hearing};

/// How many may wait.
const WAITING_MAX: usize = 512;
/// How often those are looked at who have begun to speak: no poll tells when they have said enough.
pub(super) const TICK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Lobby {
    waiting: VecDeque<Guest>,
}

struct Guest {
    socket: OwnedFd,
    since: Instant,
    is_silent: bool,
}

impl Lobby {
    /// Lets somebody in.
    pub(super) fn enter(&mut self, socket: OwnedFd) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Guest { socket, since: Instant::now(), is_silent: true });
    }

    /// Those who have said nothing at all, to be polled.
    pub(super) fn silent(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().filter(|guest| guest.is_silent).map(|guest| guest.socket.as_fd())
    }

    /// When to look again; nothing while a poll tells.
    pub(super) fn tick(&self, limit: Duration) -> Option<Duration> {
        if self.waiting.iter().any(|guest| !guest.is_silent) {
            return Some(TICK);
        }
        self.waiting.front().map(|guest| limit.saturating_sub(guest.since.elapsed()))
    }

    /// The one that came first of those who can be heard. Whoever has hung up or taken longer than the limit is gone.
    pub(super) fn next(&mut self, limit: Duration) -> Option<OwnedFd> {
        let mut found = None;
        self.waiting.retain_mut(|guest| {
            let mut said = [0; FIRST_BYTES];
            match recv(&guest.socket, &mut said[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, bytes)) => {
                    guest.is_silent = false;
                    if found.is_none() && is_worth_hearing(&said[..bytes.min(FIRST_BYTES)]) {
                        found = guest.socket.try_clone().ok();
                        return false;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return false,
            }
            guest.since.elapsed() < limit
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_silent_hold_up_nobody() {
        let limit = Duration::from_secs(60);
        let mut lobby = Lobby::default();
        let mut strangers = Vec::new();
        for _ in 0..2 * WAITING_MAX {
            let (stranger, socket) = UnixStream::pair().unwrap();
            strangers.push(stranger);
            lobby.enter(socket.into());
        }
        strangers[WAITING_MAX + 1].write_all(b"w").unwrap();
        assert!(lobby.next(limit).is_none());
        assert_eq!((lobby.silent().count(), lobby.tick(limit)), (WAITING_MAX - 1, Some(TICK)));
        let (mut rank, socket) = UnixStream::pair().unwrap();
        lobby.enter(socket.into());
        // Garbage is worth an answer: it may be another version.
        rank.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(lobby.next(limit).is_some());
        assert!(lobby.next(limit).is_none());
        drop(strangers);
        assert!(lobby.next(limit).is_none());
        assert_eq!(lobby.silent().count(), 0, "who hangs up without a word is gone");
    }
}
