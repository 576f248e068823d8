//! Buffers that ranks in other processes read and write.
//!
//! A call announces its buffers to each peer with the addresses that this peer uses, so the peer must have mapped them before. The owner has
//! it do so: in the first call with a buffer, it sends the handle of each part to a thread of each peer's process, which maps the part and
//! answers with its address, and then launches. Peers agree on nothing and their calling threads take no part. Later calls compare the
//! parts' ids and launch.
//!
//! - `message`: what goes between processes.
//! - `exports`: the owner's side. Which parts a buffer has, and where peers have mapped them.
//! - `evicted`: parts that peers may unmap when calls have ended.
//! - `imports`: the reader's side. What this process has mapped, for all its communicators.
//! - `service`: the thread, and requests that wait for answers.
//! - `memory`: the same with the driver.

mod evicted;
mod exports;
mod imports;
mod memory;
mod message;
mod service;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weftlink_bootstrap::RankLink;

use crate::Error;
use crate::driver::{Context, DeviceAddress, Event, RelaxedCapture, Stream};
use crate::sharing::process_token;
use crate::staging::Buffer;
use evicted::Evicted;
use exports::{Exporter, Exports, Refusal};
use imports::{Holder, Imports, Owner};
use memory::DriverMemory;
use message::Part;
use service::{Handler, MapError, Service};

/// The parts that peers keep mapped, unless one call has more: 20 GiB of PyTorch's expandable segments.
const PARTS_MAX: usize = 1024;
/// Parts that peers map at a time: each has a descriptor for each peer on its way.
const PARTS_AT_ONCE: usize = 16;

/// What this process has mapped.
static IMPORTS: Mutex<Imports<DriverMemory>> = Mutex::new(Imports::new());

/// The buffers of a rank that ranks in other processes have mapped, and theirs.
#[derive(Debug)]
pub(crate) struct BufferRegistry {
    /// Stops first: its thread maps memory.
    service: Option<Service>,
    memory: DriverMemory,
    exports: Exports,
    evicted: Evicted<Event>,
    communicator: usize,
    ranks: usize,
    /// Whether calls close memory that owners have replaced, which waits for kernels. If ranks share the process, those may wait for a call
    /// that a thread launches next; then memory is closed when a communicator is dropped.
    closes: bool,
    timeout: Duration,
}

/// What a communicator knows of its earlier calls.
#[derive(Clone, Copy)]
pub(crate) struct CallState<'a> {
    /// Whether none is under way.
    pub(crate) are_over: &'a dyn Fn() -> bool,
    /// Whether one has failed.
    pub(crate) has_failed: &'a dyn Fn() -> bool,
}

/// Why the addresses of buffers at other ranks are unknown.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// Other processes cannot map this memory. Nothing else is wrong.
    Unshareable(String),
    /// Something else.
    Error(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Obstacle {
        Obstacle::Error(error)
    }
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Obstacle {
        match refusal {
            Refusal::Unshareable(why) => Obstacle::Unshareable(why),
            Refusal::Failed(why) => failed(why).into(),
        }
    }
}

impl From<MapError> for Obstacle {
    fn from(error: MapError) -> Obstacle {
        match error {
            MapError::Refused(why) => Obstacle::Unshareable(why),
            MapError::Lost(why) => Obstacle::Error(Error::Group { why }),
        }
    }
}

impl BufferRegistry {
    /// Starts to map memory of the ranks at the other ends of links. `processes` has the token of each rank's process, `communicator` is
    /// the number of the communicator in this process.
    pub(crate) fn new(
        context: &Context,
        links: Vec<RankLink>,
        processes: Vec<u64>,
        communicator: usize,
        timeout: Duration,
    ) -> Result<BufferRegistry, Error> {
        let ranks = processes.len();
        let own = process_token();
        let is_linked = |rank: usize| links.iter().any(|link| link.rank() == rank);
        if let Some(rank) = (0..ranks).find(|rank| processes[*rank] != own && !is_linked(*rank)) {
            return Err(refused(format!("rank {rank} is on another host")));
        }
        let closes = processes.iter().filter(|process| **process == own).count() == 1;
        let memory = DriverMemory { context: context.clone() };
        let make = {
            let memory = memory.clone();
            move || {
                let relaxed = memory.context.make_current();
                let relaxed = relaxed.and_then(|()| RelaxedCapture::begin(memory.context.driver()));
                Mapper { relaxed, memory, processes, communicator }
            }
        };
        let service = Service::start(links, make).map_err(|why| Error::Group { why })?;
        Ok(BufferRegistry {
            service: Some(service),
            memory,
            exports: Exports::new(PARTS_MAX),
            evicted: Evicted::new(),
            communicator,
            ranks,
            closes,
            timeout,
        })
    }

    /// The addresses of two buffers as each rank uses them. Parts of captured calls stay mapped until the communicator is dropped. If a peer
    /// has not mapped a buffer yet, this waits until it has.
    pub(crate) fn views(
        &mut self,
        buffers: [Buffer; 2],
        is_captured: bool,
        calls: &CallState<'_>,
    ) -> Result<Vec<[DeviceAddress; 2]>, Obstacle> {
        // A thread may capture a graph, this one included.
        let _relaxed = RelaxedCapture::begin(self.memory.context.driver())?;
        if !is_captured {
            let ended = self.evicted.take_ended(Event::is_done, calls.has_failed)?;
            self.release(&ended)?;
            if self.closes {
                close_retired(calls.are_over);
            }
        }
        self.exports.begin_call();
        let mut views = vec![buffers.map(|(address, _)| address); self.ranks];
        for (which, (address, bytes)) in buffers.into_iter().enumerate().filter(|(_, (_, bytes))| *bytes > 0)
        {
            if let Some(service) = &self.service {
                let (exports, evicted) = (&mut self.exports, &mut self.evicted);
                register(exports, &self.memory, service, (address, bytes), self.timeout, evicted)?;
            }
            let there = self.exports.addresses(address, bytes, is_captured).map_err(|apart| {
                let rank = self.peers().nth(apart.peer).unwrap_or_default();
                Obstacle::Unshareable(format!(
                    "the buffer at {address:#x} lies in several reservations, which rank {rank} cannot map side by side. Use one allocation"
                ))
            })?;
            for (rank, address) in std::iter::zip(self.peers(), there) {
                views[rank][which] = address;
            }
        }
        if !is_captured {
            self.evicted.add(self.exports.evict());
        }
        Ok(views)
    }

    /// The address of a buffer at each rank, which stays mapped there until it is let go.
    pub(crate) fn hold(
        &mut self,
        (address, bytes): Buffer,
        calls: &CallState<'_>,
    ) -> Result<Vec<DeviceAddress>, Obstacle> {
        let views = self.views([(address, bytes), (address, 0)], false, calls)?;
        self.exports.hold(address, bytes);
        Ok(views.into_iter().map(|[there, _]| there).collect())
    }

    /// Later releases may unmap the buffer.
    pub(crate) fn let_go(&mut self, (address, bytes): Buffer) {
        self.exports.let_go(address, bytes);
    }

    /// A call with the last views was launched, and not captured.
    pub(crate) fn launched(&mut self, stream: &Stream) -> Result<(), Error> {
        let context = &self.memory.context;
        self.evicted.launched(|| {
            let event = Event::new(context)?;
            event.record(stream)?;
            Ok(event)
        })
    }

    /// Has peers unmap all parts that no captured call uses, and closes what they have released. No call of this rank is under way.
    pub(crate) fn release_all(&mut self) -> Result<(), Error> {
        let mut ids = self.exports.take_unpinned();
        ids.extend(self.evicted.take_all());
        self.release(&ids)?;
        if self.closes {
            close_retired(|| true);
        }
        Ok(())
    }

    fn release(&self, ids: &[u64]) -> Result<(), Error> {
        match &self.service {
            Some(service) if !ids.is_empty() => service.release(ids).map_err(|why| Error::Group { why }),
            _ => Ok(()),
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        self.service.iter().flat_map(Service::peers)
    }
}

/// Has peers map the parts of a buffer that they have not mapped. Returns how many.
fn register<E>(
    exports: &mut Exports,
    exporter: &impl Exporter,
    service: &Service,
    (address, bytes): Buffer,
    timeout: Duration,
    evicted: &mut Evicted<E>,
) -> Result<usize, Obstacle> {
    let missing = exports.missing(exporter, address, bytes)?;
    for parts in missing.chunks(PARTS_AT_ONCE) {
        // The release of parts that are used again would follow the request, and unmap them.
        let revived = evicted.revive(parts);
        let export = |part: &Part| Ok((part.clone(), exporter.descriptor_of(part)?));
        let exported = parts.iter().map(export).collect::<Result<Vec<_>, String>>();
        let mapped = match exported {
            Ok(exported) => service.map(&exported, timeout),
            Err(why) => {
                evicted.add(revived);
                return Err(failed(why).into());
            }
        };
        if let Err(MapError::Refused(_)) = &mapped {
            // Other peers may have mapped parts, which no call uses: a peer does not refuse parts that it has mapped before. Calls under way may
            // use those that were evicted.
            let ids = parts.iter().map(|part| part.id).filter(|id| !revived.contains(id)).collect::<Vec<_>>();
            evicted.add(revived);
            service.release(&ids).map_err(failed)?;
        }
        let mapped = mapped?;
        for (part, addresses) in std::iter::zip(parts, mapped) {
            exports.insert(part, addresses);
        }
    }
    Ok(missing.len())
}

impl Drop for BufferRegistry {
    /// No kernel of this rank uses memory of its peers any more.
    fn drop(&mut self) {
        self.service = None;
        let retired = {
            let mut imports = IMPORTS.lock().unwrap_or_else(PoisonError::into_inner);
            imports.release_all(self.communicator);
            imports.take_retired()
        };
        drop(retired);
    }
}

/// Closes memory that owners have replaced or released, unless the service thread is just mapping some, or a call is under way: the driver may
/// let other threads wait while it waits for the kernel, which may wait for a peer that has the service thread map a buffer.
fn close_retired(are_calls_over: impl FnOnce() -> bool) {
    let retired = IMPORTS.try_lock().map(|mut imports| imports.take_retired_if(are_calls_over));
    drop(retired);
}

/// Maps memory at the request of other processes.
struct Mapper {
    /// A thread may capture a graph meanwhile.
    relaxed: Result<RelaxedCapture, Error>,
    memory: DriverMemory,
    processes: Vec<u64>,
    communicator: usize,
}

impl Mapper {
    fn owner(&self, rank: usize) -> Owner {
        Owner { process: self.processes[rank], reader: self.memory.context.device().uuid }
    }

    fn holder(&self, owner: usize) -> Holder {
        Holder { communicator: self.communicator, owner }
    }
}

impl Handler for Mapper {
    fn map(&mut self, owner: usize, part: &Part, descriptor: Option<BorrowedFd<'_>>) -> Result<u64, String> {
        if let Err(why) = &self.relaxed {
            return Err(why.to_string());
        }
        let mut imports = IMPORTS.lock().unwrap_or_else(PoisonError::into_inner);
        imports.map(&self.memory, self.owner(owner), self.holder(owner), part, descriptor)
    }

    fn release(&mut self, owner: usize, ids: &[u64]) {
        let mut imports = IMPORTS.lock().unwrap_or_else(PoisonError::into_inner);
        imports.release(self.owner(owner), self.holder(owner), ids);
    }
}

fn failed(why: String) -> Error {
    Error::Group { why: format!("cannot share a buffer with other processes: {why}") }
}

fn refused(why: String) -> Error {
    Error::Misuse { attempt: "share a buffer with other processes".to_owned(), why }
}
