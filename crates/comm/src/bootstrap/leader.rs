//! Rank 0's side of a group of processes: it hears what all ask, and answers all.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::channel::{Channel, Deadline, Message};
use super::error::{Ask, BootstrapError};
use crate::memory::SharedMemory;

/// A channel to each of the ranks 1, 2, ..., in this order.
#[derive(Debug)]
pub(super) struct Leader {
    channels: Vec<Channel>,
}

impl Leader {
    pub(super) fn new(channels: Vec<Channel>) -> Leader {
        Leader { channels }
    }

    pub(super) fn share(
        &self,
        ask: &Ask,
        deadline: Deadline,
        pids: &[u32],
    ) -> Result<SharedMemory, BootstrapError> {
        let mut mismatch = None;
        self.gather(&ask.purpose, deadline, pids, |rank, message| match message {
            Message::Ask(theirs) if theirs.rank == rank => {
                if (&theirs.purpose, theirs.bytes) != (&ask.purpose, ask.bytes) {
                    mismatch = mismatch.take().or(Some(theirs));
                }
                Ok(())
            }
            other => Err(other.unexpected(rank)),
        })?;
        if let Some(other) = mismatch {
            return Err(BootstrapError::Mismatch { one: ask.clone(), other });
        }
        let (memory, fd) = SharedMemory::create(&ask.purpose, ask.bytes)
            .map_err(|error| BootstrapError::Memory { rank: 0, reason: error.to_string() })?;
        for (index, channel) in self.channels.iter().enumerate() {
            let sent = channel.send(&Message::Grant, Some(fd.as_fd()), deadline);
            sent.map_err(|broken| broken.of(index + 1, pids[index + 1], &ask.purpose, deadline))?;
        }
        self.gather(&ask.purpose, deadline, pids, |rank, message| match message {
            Message::Mapped => Ok(()),
            other => Err(other.unexpected(rank)),
        })?;
        self.say_all(&Message::Done, &ask.purpose, deadline, pids)?;
        Ok(memory)
    }

    /// Says the same to all.
    pub(super) fn say_all(
        &self,
        message: &Message,
        purpose: &str,
        deadline: Deadline,
        pids: &[u32],
    ) -> Result<(), BootstrapError> {
        for (index, channel) in self.channels.iter().enumerate() {
            let sent = channel.send(message, None, deadline);
            sent.map_err(|broken| broken.of(index + 1, pids[index + 1], purpose, deadline))?;
        }
        Ok(())
    }

    /// Tells everybody that it is over.
    pub(super) fn fail(&self, error: &BootstrapError) {
        for channel in &self.channels {
            channel.tell(&Message::Failed(error.clone()));
        }
    }

    /// Takes one message of each rank, in whatever order they come; notices at once when a rank leaves, whether or
    /// not it has said its part.
    fn gather(
        &self,
        purpose: &str,
        deadline: Deadline,
        pids: &[u32],
        mut take: impl FnMut(usize, Message) -> Result<(), BootstrapError>,
    ) -> Result<(), BootstrapError> {
        let mut silent: Vec<bool> = vec![true; self.channels.len()];
        while silent.contains(&true) {
            let Some(ready) = self.ready(deadline)? else {
                let ranks = (1..pids.len()).filter(|rank| silent[rank - 1]).collect();
                return Err(BootstrapError::Missing {
                    ranks,
                    purpose: purpose.to_owned(),
                    limit: deadline.limit(),
                });
            };
            for index in ready {
                let (rank, channel) = (index + 1, &self.channels[index]);
                let (message, _) = channel
                    .receive(deadline)
                    .map_err(|broken| broken.of(rank, pids[rank], purpose, deadline))?;
                match message {
                    Message::Failed(error) => return Err(error),
                    message if silent[index] => take(rank, message)?,
                    message => return Err(message.unexpected(rank)),
                }
                silent[index] = false;
            }
        }
        Ok(())
    }

    /// The channels that have something to say, or have ended; `None` when the deadline has passed.
    fn ready(&self, deadline: Deadline) -> Result<Option<Vec<usize>>, BootstrapError> {
        let mut fds: Vec<PollFd<'_>> =
            self.channels.iter().map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        while let Some(left) = deadline.left() {
            // A Duration of at most a year fits.
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let said = |(_, fd): &(usize, &PollFd<'_>)| !fd.revents().is_empty();
                    return Ok(Some(fds.iter().enumerate().filter(said).map(|(index, _)| index).collect()));
                }
                Err(error) => {
                    return Err(BootstrapError::Protocol { rank: 0, what: format!("poll failed: {error}") });
                }
            }
        }
        Ok(None)
    }
}
