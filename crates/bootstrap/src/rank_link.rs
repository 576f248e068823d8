//! Connections between ranks of one host that outlive an exchange: messages of the caller's, each with a descriptor if it needs one. A
//! thread of the caller reads them, so no rank has to be in a call for another to get an answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::broken::Broken;
use super::channel::Channel;
use super::deadline::Deadline;
use super::descriptors::{connect_pairs, failure};
use super::error::BootstrapError;
use super::group::Group;
use super::message::Message;
use super::{Bootstrap, Link};

/// A connection to another rank of this host. Several threads may use it. Nothing here blocks but [`RankLink::failure`].
#[derive(Debug)]
pub struct RankLink {
    group: Arc<Group>,
    rank: u32,
    purpose: String,
    channel: Channel,
    /// Why it ended.
    broken: OnceLock<Broken>,
}

/// A message, and the descriptor that came with it.
pub type Parcel = (Vec<u8>, Option<OwnedFd>);

/// A link has ended: [`RankLink::failure`] says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEnded;

impl Bootstrap {
    /// Connects every two ranks of each host. Returns this rank's connections in the order of ranks; none if the ranks are threads of
    /// one process. All ranks call this together, and it is a barrier.
    pub fn link_ranks(&mut self, purpose: &str, deadline: Duration) -> Result<Vec<RankLink>, BootstrapError> {
        let ask = self.ask(purpose, 0)?;
        let turn = self.sweeps.wrapping_add(1);
        // No rank connects for this turn before this exchange.
        self.exchange(purpose, Vec::new(), deadline)?;
        let until = Deadline::new(deadline);
        let links = match &self.link {
            Link::Tree { group, monitor: Some(monitor), .. } => {
                let link = |(rank, channel)| RankLink {
                    group: Arc::clone(group),
                    rank,
                    purpose: purpose.to_owned(),
                    channel,
                    broken: OnceLock::new(),
                };
                connect_pairs(group, monitor, turn, purpose, until)
                    .map(|channels| channels.into_iter().map(link).collect())
            }
            _ => Ok(Vec::new()),
        };
        let links = links.map_err(|error| self.fall(error, &ask, until))?;
        self.exchange(purpose, Vec::new(), deadline)?;
        Ok(links)
    }
}

impl RankLink {
    /// The rank at the other end.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Queues a message and writes as much as fits; [`RankLink::flush`] writes the rest.
    pub fn post(&self, bytes: Vec<u8>, descriptor: Option<BorrowedFd<'_>>) -> Result<(), LinkEnded> {
        let queued = self.channel.queue(&Message::Parcel(bytes), descriptor);
        queued.map_err(|broken| self.end(broken)).map(|_| ())
    }

    /// Sets the eventfd that is written to when messages wait for room in the socket: it wakes the thread that flushes.
    pub fn set_wake(&self, wake: &Arc<OwnedFd>) {
        self.channel.set_wake(wake);
    }

    /// Whether messages wait for room in the socket.
    pub fn wants_to_write(&self) -> bool {
        self.channel.wants_to_write()
    }

    /// Writes messages that wait, as far as the socket has room.
    pub fn flush(&self) -> Result<(), LinkEnded> {
        self.channel.flush().map_err(|broken| self.end(broken))
    }

    /// Takes all messages that have arrived, and whether more may come.
    pub fn receive_ready(&self) -> (Vec<Parcel>, Result<(), LinkEnded>) {
        let (received, broken) = match self.channel.receive_ready() {
            Ok(received) => (received, None),
            Err((received, broken)) => (received, Some(broken)),
        };
        let mut parcels = Vec::with_capacity(received.len());
        for (message, descriptor) in received {
            match message {
                Message::Parcel(bytes) => parcels.push((bytes, descriptor)),
                other => {
                    let what = other.unexpected(self.rank()).to_string();
                    return (parcels, Err(self.end(Broken::Strange(what))));
                }
            }
        }
        (parcels, broken.map_or(Ok(()), |broken| Err(self.end(broken))))
    }

    /// What happened to the peer of a link that has ended. Waits a moment for the report of its death.
    pub fn failure(&self) -> BootstrapError {
        let broken = self.broken.get().cloned().unwrap_or(Broken::Ended);
        failure(&self.group, self.rank, broken, &self.purpose, Deadline::new(Duration::ZERO))
    }

    fn end(&self, broken: Broken) -> LinkEnded {
        let _ = self.broken.set(broken);
        LinkEnded
    }
}

impl AsFd for RankLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::{Rendezvous, RendezvousAddress, Token};

    const AMPLE: Duration = Duration::from_secs(60);

    fn together<R: Send>(ranks: usize, name: &str, run: impl Fn(Bootstrap) -> R + Sync) -> Vec<R> {
        let place = format!("weft-test-{}-{name}", std::process::id());
        let meeting =
            Rendezvous::new(RendezvousAddress::Abstract(place), Token::new("secret").unwrap(), ranks, AMPLE);
        let (meeting, run) = (&meeting, &run);
        std::thread::scope(|scope| {
            let join = |rank| match rank {
                0 => Bootstrap::listen(meeting),
                rank => Bootstrap::join(meeting, rank),
            };
            let threads: Vec<_> =
                (0..ranks).map(|rank| scope.spawn(move || run(join(rank).unwrap()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn receive(link: &RankLink) -> Result<Parcel, BootstrapError> {
        loop {
            let (mut parcels, ended) = link.receive_ready();
            match (parcels.pop(), ended) {
                (Some(parcel), _) => return Ok(parcel),
                (None, Err(LinkEnded)) => return Err(link.failure()),
                _ => {
                    poll(&mut [PollFd::new(link, PollFlags::IN)], None).unwrap();
                }
            }
        }
    }

    #[test]
    fn every_two_ranks_exchange_messages_with_descriptors() {
        together(3, "links", |mut group| {
            let links = group.link_ranks("parcels", AMPLE).unwrap();
            let others: Vec<usize> = (0..3).filter(|rank| *rank != group.rank()).collect();
            assert_eq!(links.iter().map(RankLink::rank).collect::<Vec<_>>(), others);
            let mut ends = Vec::new();
            for link in &links {
                let (own, theirs) = UnixStream::pair().unwrap();
                link.post(vec![group.rank() as u8], Some(theirs.as_fd())).unwrap();
                ends.push(own);
            }
            for (link, mut own) in std::iter::zip(&links, ends) {
                let (bytes, descriptor) = receive(link).unwrap();
                assert_eq!(bytes, [link.rank() as u8]);
                UnixStream::from(descriptor.unwrap()).write_all(&[7]).unwrap();
                let mut read = [0];
                own.read_exact(&mut read).unwrap();
                assert_eq!(read, [7]);
                link.post(vec![0; 100_000], None).unwrap();
            }
            for link in &links {
                while link.wants_to_write() {
                    poll(&mut [PollFd::new(link, PollFlags::OUT)], None).unwrap();
                    link.flush().unwrap();
                }
                assert_eq!(receive(link).unwrap().0.len(), 100_000);
            }
        });
        let in_process =
            Bootstrap::threads(1).into_iter().map(|mut group| group.link_ranks("parcels", AMPLE).unwrap());
        assert_eq!(in_process.flatten().count(), 0);
    }

    #[test]
    fn the_end_of_a_peer_is_an_error_that_names_it() {
        let ends = together(2, "link-ends", |mut group| {
            let links = group.link_ranks("parcels", AMPLE).unwrap();
            (group.rank() == 0).then(|| receive(&links[0]).unwrap_err().to_string())
        });
        assert!(ends[0].as_ref().unwrap().contains("rank 1"), "{ends:?}");
    }
}
