//! Creates endpoints of a communicator.

use std::collections::BTreeSet;
use std::sync::Arc;

use weftlink_recorder::header::{CallKind, Header};

use super::Communicator;
use crate::error::Error;
use crate::p2p::{Endpoint, Parts, PullPolicy};

/// Connections of a endpoint to each rank: one, because its frames keep their order.
const STREAMS: u32 = 1;

impl Communicator {
    /// A mailbox for messages between two ranks. All ranks call it; from then on each sends and receives as it likes, from any
    /// thread, also while the communicator makes other calls or is in the [background](Communicator::into_background).
    pub fn endpoint(&mut self) -> Result<Endpoint, Error> {
        self.open_endpoint(pulls(self.readable, self.options.single_copy, self.own_cores))
    }

    /// An endpoint for groups.
    pub(super) fn endpoint_of_groups(&mut self) -> Result<Endpoint, Error> {
        let usual = pulls(self.readable, self.options.single_copy, self.own_cores);
        let in_groups = PullPolicy { bytes_min: GROUP_READ_BYTES_MIN, threads: 1 };
        self.open_endpoint(usual.or(self.readable.then_some(in_groups)))
    }

    fn open_endpoint(&mut self, pulls: Option<PullPolicy>) -> Result<Endpoint, Error> {
        self.usable()?;
        let header = Header::allocating(CallKind::Endpoint, 0, 0, (None, 1));
        let memory = self.share(header, Endpoint::bytes(&self.hosts))?;
        let elsewhere = |rank: &u32| !self.shared.is_here(*rank);
        let peers: BTreeSet<u32> = (0..self.size as u32).filter(elsewhere).collect();
        let connections = match peers.is_empty() {
            true => Vec::new(),
            false => self
                .bootstrap
                .connect(&peers, STREAMS, self.options.deadline)
                .map_err(|error| self.abandon(&header, error.into()))?,
        };
        let parts = Parts {
            rank: self.rank,
            memory,
            control: Arc::clone(&self.control),
            waiters: [self.shared.waiter, self.waiter_beside()],
            departures: self.shared.departures.clone(),
            identities: self.identities(),
            processes: self.shared.processes.clone(),
            pulls,
            copy: self.shared.copy,
            notify: Box::new(self.bootstrap.notifier()),
            abort_cause: Box::new(self.bootstrap.abort_cause_reader()),
            connections: peers.into_iter().zip(connections).collect(),
            encrypt: self.options.encrypt,
        };
        Endpoint::of(parts, &self.hosts)
    }
}

/// In groups, where ranks have one core each, the kernel reads messages of this length and more. Most groups go both ways, so that each rank
/// would copy its own message into a ring and its peer's out of it: 1.3 to 3.1 times as long for 1 MiB between two ranks.
const GROUP_READ_BYTES_MIN: usize = 256 << 10;
/// Several threads read messages from this length, where possible; a shorter message is read before other threads have started.
const READ_BYTES_MIN: usize = 4 << 20;
/// Where two ranks of 16 cores read 16 MiB, eight threads get 43 GB/s, four 25, one 10.
const READERS_MAX: usize = 8;

/// The messages that are read through the kernel, by the number of cores per rank. With less than one core, all messages: one copy takes less
/// time than two. With one core, none: both ends copy in and out of rings at the same time, which is faster. With more, several threads
/// read together.
fn pulls(readable: bool, wanted: Option<bool>, own_cores: usize) -> Option<PullPolicy> {
    let bytes_min = match own_cores {
        _ if !readable => return None,
        _ if wanted == Some(true) => 0,
        0 => 0,
        1 => return None,
        _ => READ_BYTES_MIN,
    };
    Some(PullPolicy { bytes_min, threads: own_cores.clamp(1, READERS_MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_settings_depend_on_cores() {
        let read = |readable, wanted, cores| {
            pulls(readable, wanted, cores).map(|pulls| (pulls.bytes_min, pulls.threads))
        };
        assert_eq!(read(false, Some(true), 8), None);
        assert_eq!(read(true, Some(true), 1), Some((0, 1)));
        assert_eq!(read(true, None, 0), Some((0, 1)));
        assert_eq!(read(true, None, 1), None);
        assert_eq!(read(true, None, 3), Some((READ_BYTES_MIN, 3)));
        assert_eq!(read(true, None, 64), Some((READ_BYTES_MIN, READERS_MAX)));
    }
}
