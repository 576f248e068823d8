//! What a communicator gives to a post.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Communicator;
use super::ended::cores;
use crate::bootstrap::{Connection, News};
use crate::counter::Counter;
use crate::data::Elements;
use crate::error::Error;
use crate::header::{Header, What};
use crate::kernels::Kernel;
use crate::memory::SharedMemory;
use crate::post::Readers;
use crate::wait::Waiter;

/// Connections of a post to each rank: one, because its frames keep their order.
const STREAMS: u32 = 1;

/// From here on messages are read by several threads at once, where they can be.
const READ_BYTES_MIN: usize = 4 << 20;
const READERS_MAX: usize = 8;

/// Everything of a communicator that its post needs, which outlives it.
pub(crate) struct PostParts {
    pub(crate) rank: usize,
    /// The post's own.
    pub(crate) memory: SharedMemory,
    /// What waiters and departures point into.
    pub(crate) control: Arc<SharedMemory>,
    /// How a thread of the caller's waits, and one beside it.
    pub(crate) waiters: [Waiter<'static>; 2],
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) names: Vec<String>,
    pub(crate) pids: Vec<u32>,
    pub(crate) readers: Option<Readers>,
    /// How memory is copied.
    pub(crate) copy: Kernel,
    pub(crate) tell: Box<dyn Fn(News) + Send>,
    /// To ranks on other hosts, and whether what goes over them is sealed.
    pub(crate) connections: Vec<(u32, Vec<Connection>)>,
    pub(crate) encrypt: bool,
}

impl Communicator {
    /// The host of each rank.
    pub(crate) fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Which messages the kernel reads. Where each end has a core and no more, copying in and out of rings at the same time is faster;
    /// where it has several, they read together.
    fn readers(&self) -> Option<Readers> {
        let share = cores() / self.ranks_here();
        let bytes_min = match share {
            _ if !self.readable => return None,
            _ if self.options.single_copy == Some(true) => 0,
            0 => 0,
            1 => return None,
            _ => READ_BYTES_MIN,
        };
        Some(Readers { bytes_min, threads: share.clamp(1, READERS_MAX) })
    }

    /// Allocates memory for a post with all ranks, and hands over what else it needs.
    pub(crate) fn post_parts(&mut self, bytes: usize) -> Result<PostParts, Error> {
        self.usable()?;
        let header = Header::allocating(What::Post, 0, 0, Elements::BYTES);
        let memory = self.share(header, bytes)?;
        let elsewhere = |rank: &u32| !self.shared.is_here(*rank);
        let peers: BTreeSet<u32> = (0..self.size as u32).filter(elsewhere).collect();
        let connections = match peers.is_empty() {
            true => Vec::new(),
            false => self
                .bootstrap
                .connect(&peers, STREAMS, self.options.deadline)
                .map_err(|error| self.abandon(&header, error.into()))?,
        };
        Ok(PostParts {
            rank: self.rank,
            memory,
            control: Arc::clone(&self.control),
            waiters: [self.shared.waiter, self.waiter_beside()],
            departures: self.shared.departures.clone(),
            names: self.shared.crier.names.clone(),
            pids: self.shared.pids.clone(),
            readers: self.readers(),
            copy: self.shared.copy,
            tell: Box::new(self.bootstrap.teller()),
            connections: peers.into_iter().zip(connections).collect(),
            encrypt: self.options.encrypt,
        })
    }
}
