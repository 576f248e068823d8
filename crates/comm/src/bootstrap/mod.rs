//! How the ranks of one host find each other, and the one thing they can then do together: share memory.
//!
//! A [`Bootstrap`] is one rank's end of the group. It is made in one of two ways:
//!
//! - [`Bootstrap::threads`]: the ranks are threads of this process and meet in a room (`room.rs`).
//! - [`Bootstrap::listen`] and [`Bootstrap::join`]: the ranks are processes. Rank 0 listens at a [`Place`], the others
//!   come, show who they are, and keep their connection (`meeting.rs`, `channel.rs`).
//!
//! From then on all ranks call [`Bootstrap::share`] in the same order with the same arguments. It gives each a mapping
//! of the same zeroed memory, and it is all or none: it returns memory only when every rank has mapped it, and an
//! error on one rank becomes the same error on all. So it is a barrier too. Every queue, counter and window of a
//! communicator lies in memory that came this way; no other message is needed.
//!
//! After an error the group is no longer in step, so the bootstrap is poisoned: it leaves the group, which the others
//! notice, and answers every later call with the cause. Start afresh with a new meeting.
//!
//! Deliberately absent: ranks of other hosts, and any watch over ranks between two calls. A rank that dies is noticed
//! by the next call, and by what watches [`Bootstrap::pids`].

mod channel;
mod environment;
mod error;
mod leader;
mod meeting;
mod room;
mod roster;

pub use environment::{
    Environment, EnvironmentError, Launcher, Rendezvous, SECRET_BYTES_MAX, Secret, Surroundings,
    expand_nodelist,
};
pub use error::{Ask, BootstrapError, Refusal};
pub use meeting::{Meeting, Place, Token};

use std::sync::Arc;
use std::time::Duration;

use channel::{Channel, Deadline, Message};
use leader::Leader;
use room::Room;

use crate::memory::SharedMemory;

/// One rank's end of a group of ranks that share memory. Dropping it leaves the group.
#[derive(Debug)]
pub struct Bootstrap {
    rank: usize,
    pids: Vec<u32>,
    link: Link,
}

impl Bootstrap {
    /// A group of threads of this process: one end for each, to be moved to its thread.
    pub fn threads(size: usize) -> Vec<Bootstrap> {
        let room = Arc::new(Room::new(size));
        let end = |rank| Bootstrap {
            rank,
            pids: vec![std::process::id(); size],
            link: Link::Room(Arc::clone(&room)),
        };
        (0..size).map(end).collect()
    }

    /// Rank 0 of a group of processes: listens at the place until every other rank has come.
    pub fn listen(meeting: &Meeting) -> Result<Bootstrap, BootstrapError> {
        let (leader, pids) = meeting::listen(meeting)?;
        Ok(Bootstrap { rank: 0, pids, link: Link::Leader(leader) })
    }

    /// Another rank of a group of processes: goes to the place, as soon as rank 0 listens there, and waits for all.
    pub fn join(meeting: &Meeting, rank: usize) -> Result<Bootstrap, BootstrapError> {
        let (channel, pids) = meeting::join(meeting, rank)?;
        Ok(Bootstrap { rank, pids, link: Link::Follower(channel) })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.pids.len()
    }

    /// The process of each rank, by the number it has in its own PID namespace.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// All ranks together allocate `bytes` of shared memory; `purpose` names it in errors and in `/proc/<pid>/maps`.
    pub fn share(
        &mut self,
        purpose: &str,
        bytes: usize,
        deadline: Duration,
    ) -> Result<SharedMemory, BootstrapError> {
        let result = match &mut self.link {
            Link::Poisoned(cause) => return Err(BootstrapError::Poisoned { cause: cause.clone() }),
            link => check(purpose).and_then(|()| {
                let ask = Ask { rank: self.rank, purpose: purpose.to_owned(), bytes };
                let deadline = Deadline::new(deadline);
                match link {
                    Link::Room(room) => room.share(&ask, deadline),
                    Link::Leader(leader) => leader.share(&ask, deadline, &self.pids),
                    Link::Follower(channel) => follow(channel, &ask, deadline, self.pids[0]),
                    Link::Poisoned(_) => unreachable!("answered above"),
                }
            }),
        };
        result.inspect_err(|error| self.poison(error))
    }

    /// Leaves the group because of something else than a call of this bootstrap, so that whoever calls it, or is waiting
    /// in it, need not wait for this rank.
    pub(crate) fn give_up(&mut self, cause: &str) {
        self.poison(&BootstrapError::GaveUp { rank: self.rank, cause: cause.to_owned() });
    }

    /// Tells the others why, as far as they still listen, and leaves.
    fn poison(&mut self, error: &BootstrapError) {
        match std::mem::replace(&mut self.link, Link::Poisoned(error.to_string())) {
            Link::Room(room) => room.fail(error),
            Link::Leader(leader) => leader.fail(error),
            Link::Follower(channel) => channel.tell(&Message::Failed(error.clone())),
            Link::Poisoned(_) => {}
        }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if let Link::Room(room) = &self.link {
            room.leave(self.rank);
        }
    }
}

#[derive(Debug)]
enum Link {
    Room(Arc<Room>),
    Leader(Leader),
    Follower(Channel),
    Poisoned(String),
}

/// The kernel takes names of memfds up to 249 bytes, without zeros.
const PURPOSE_BYTES_MAX: usize = 200;

fn check(purpose: &str) -> Result<(), BootstrapError> {
    if purpose.len() > PURPOSE_BYTES_MAX || purpose.contains('\0') {
        let what =
            format!("the purpose {purpose:?} must be at most {PURPOSE_BYTES_MAX} bytes, without zeros");
        return Err(BootstrapError::BadCall { what });
    }
    Ok(())
}

/// What any rank but 0 does: ask, map what is granted, say so, and go on when all have.
fn follow(
    channel: &Channel,
    ask: &Ask,
    deadline: Deadline,
    leader_pid: u32,
) -> Result<SharedMemory, BootstrapError> {
    // Rank 0 knows better than we do who is missing: give its verdict a moment to arrive.
    let verdict = deadline.later(Duration::from_secs(1));
    let leader = |broken: channel::Broken| broken.of(0, leader_pid, &ask.purpose, deadline);
    // When rank 0 has failed already it no longer reads, but what it said last can still be read.
    let _ = channel.send(&Message::Ask(ask.clone()), None, deadline);
    let memory = match channel.receive(verdict).map_err(leader)? {
        (Message::Grant, Some(fd)) => SharedMemory::from_fd(&fd, ask.bytes)
            .map_err(|error| BootstrapError::Memory { rank: ask.rank, reason: error.to_string() })?,
        (Message::Failed(error), _) => return Err(error),
        (other, _) => return Err(other.unexpected(0)),
    };
    channel.send(&Message::Mapped, None, deadline).map_err(leader)?;
    match channel.receive(verdict).map_err(leader)? {
        (Message::Done, _) => Ok(memory),
        (Message::Failed(error), _) => Err(error),
        (other, _) => Err(other.unexpected(0)),
    }
}
