//! Connections that one thread reads together: those of a rendezvous.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weftlink_membership::durations::{ACCEPT_POLL, SEND};
use weftlink_membership::rendezvous::Connection;
use weftlink_shm::poll_hook;

use super::broken::Broken;
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::message::Message;
use super::monitor::Monitor;

/// Numbered connections, and which of them may have something to read.
pub(super) struct Connections {
    channels: BTreeMap<Connection, Channel>,
    added: Connection,
    ready: BTreeSet<Connection>,
    /// Written to when the monitor thread has accepted a connection.
    wake: Arc<OwnedFd>,
}

impl Connections {
    pub(super) fn new(monitor: &Monitor) -> Result<Connections, BootstrapError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| BootstrapError::System { what: format!("cannot make an eventfd: {error}") })?;
        let wake = Arc::new(wake);
        monitor.wake_on_arrival(&wake);
        Ok(Connections { channels: BTreeMap::new(), added: 0, ready: BTreeSet::new(), wake })
    }

    pub(super) fn add(&mut self, channel: Channel) -> Connection {
        self.added += 1;
        self.channels.insert(self.added, channel);
        // Bytes that were read ahead are here already, and poll does not report them.
        self.ready.insert(self.added);
        self.added
    }

    pub(super) fn remove(&mut self, connection: Connection) -> Option<Channel> {
        self.channels.remove(&connection)
    }

    /// Queues a message. A connection that cannot be written to has ended, which reading finds.
    pub(super) fn post(&mut self, connection: Connection, message: &Message) {
        if let Some(channel) = self.channels.get(&connection)
            && channel.post(message).is_err()
        {
            self.ready.insert(connection);
        }
    }

    /// Closes a connection, once what was sent is written.
    pub(super) fn close(&mut self, connection: Connection) {
        if let Some(channel) = self.channels.remove(&connection) {
            let _ = channel.drain(Deadline::new(SEND));
        }
    }

    /// Writes what was sent, [`SEND`] at most.
    pub(super) fn drain(&self) {
        let deadline = Deadline::new(SEND);
        self.channels.values().for_each(|channel| drop(channel.drain(deadline)));
    }

    /// The next message of each connection that has one, and which connections have ended. Those are removed. No more than one: a
    /// connection that becomes a link after it belongs to the group from then on.
    pub(super) fn receive(&mut self) -> Vec<(Connection, Result<Message, Broken>)> {
        let mut received = Vec::new();
        for connection in std::mem::take(&mut self.ready) {
            let Some(channel) = self.channels.get(&connection) else { continue };
            match channel.receive_next() {
                Ok(None) => {}
                Ok(Some((message, _))) => {
                    self.ready.insert(connection);
                    received.push((connection, Ok(message)));
                }
                Err(_) if mutant!("ends-not-seen") => {}
                Err(broken) => {
                    self.channels.remove(&connection);
                    received.push((connection, Err(broken)));
                }
            }
        }
        received
    }

    /// Waits until something can be read or a connection has arrived, but not longer than a moment: not everything wakes this
    /// thread.
    pub(super) fn wait(&mut self, until: Option<Instant>) {
        poll_hook::poll();
        if !self.ready.is_empty() {
            return;
        }
        let left = until.map_or(ACCEPT_POLL, |until| until.saturating_duration_since(Instant::now()));
        // Not to the millisecond before the time.
        let left = poll_hook::at_most((left + Duration::from_micros(1)).min(ACCEPT_POLL));
        let mut watched = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        for channel in self.channels.values() {
            let writable = if channel.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            watched.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN | writable));
        }
        let left = Timespec::try_from(left).ok();
        if poll(&mut watched, left.as_ref()).is_ok() {
            let channels = self.channels.iter().zip(&watched[1..]);
            for ((connection, channel), _) in channels.filter(|(_, place)| !place.revents().is_empty()) {
                self.ready.insert(*connection);
                let _ = channel.flush();
            }
        }
        drop(watched);
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }
}
