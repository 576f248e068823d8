//! Ranks on GPUs meet: which of them share a process, a GPU or a context, and which memory all can access.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_knobs::{KnobError, Knobs};

use super::programs::Retired;
use super::{Communicator, Resources};
use crate::calls::{Calls, owner_of};
use crate::driver::{Context, Device, Event, RelaxedCapture, Stream};
use crate::kernels::Kernels;
use crate::loading::Loading;
use crate::lost::ContextWatch;
use crate::presence::Presence;
use crate::records::CALL_BYTES;
use crate::registration::BufferRegistry;
use crate::reports::Reports;
use crate::residency::{Resident, blocks_of_rank};
use crate::sharing::{Memory, exchange, process_token};
use crate::staging::Staging;
use crate::{Error, queues};

/// The most blocks of a rank where data moves through host memory.
pub(crate) const HOST_BLOCKS_MAX: usize = 64;

/// What a rank says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    process: u64,
    gpu: [u8; 16],
    multiprocessors: u32,
    /// Other communicators of its process on the GPU.
    others: u32,
    wants_host_memory: bool,
}

impl Identity {
    fn to_bytes(self) -> Vec<u8> {
        let Identity { process, gpu, multiprocessors, others, wants_host_memory } = self;
        let mut bytes = process.to_le_bytes().to_vec();
        bytes.extend(gpu);
        bytes.extend(multiprocessors.to_le_bytes());
        bytes.extend(others.to_le_bytes());
        bytes.push(u8::from(wants_host_memory));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Identity> {
        let (process, rest) = bytes.split_first_chunk()?;
        let (gpu, rest) = rest.split_first_chunk()?;
        let (multiprocessors, rest) = rest.split_first_chunk()?;
        let (others, rest) = rest.split_first_chunk()?;
        let [wants_host_memory] = rest else { return None };
        Some(Identity {
            process: u64::from_le_bytes(*process),
            gpu: *gpu,
            multiprocessors: u32::from_le_bytes(*multiprocessors),
            others: u32::from_le_bytes(*others),
            wants_host_memory: *wants_host_memory != 0,
        })
    }
}

impl Communicator {
    /// Joins the ranks of a group on a GPU. All ranks call it. The timeout is for joining and loading.
    ///
    /// Data moves through host memory where a GPU cannot access the memory of another, and if `WEFT_P2P` is off.
    pub fn new(group: Bootstrap, device: &Device, timeout: Duration) -> Result<Communicator, Error> {
        let knobs = setting("WEFT_P2P")?;
        let memory = if knobs.peer_access { Memory::Device } else { Memory::Host };
        Communicator::with_memory(group, device, memory, timeout)
    }

    /// The same, with the memory for what ranks send each other. Host memory is used if one rank asks for it.
    pub fn with_memory(
        mut group: Bootstrap,
        device: &Device,
        memory: Memory,
        timeout: Duration,
    ) -> Result<Communicator, Error> {
        static COMMUNICATORS: AtomicUsize = AtomicUsize::new(0);
        if let Some(rank) = (0..group.size()).find(|rank| group.hosts()[*rank] != group.hosts()[0]) {
            let why =
                format!("ranks 0 and {rank} are on different hosts, and calls on GPUs need one host so far");
            return Err(Error::Misuse { attempt: "join ranks on GPUs".to_owned(), why });
        }
        // Memory is registered while another thread may capture a graph.
        let _relaxed = RelaxedCapture::begin(device.driver())?;
        // As for calls on CPUs, unless the program says otherwise.
        let call_timeout = setting("WEFT_DEADLINE")?.deadline;
        let context = Context::primary(device)?;
        let stream = Stream::new(&context)?;
        let resident = Resident::new(device.uuid, group.id());
        let own = Identity {
            process: process_token(),
            gpu: device.uuid,
            multiprocessors: device.multiprocessors as u32,
            others: resident.others,
            wants_host_memory: memory == Memory::Host,
        };
        let all: Vec<Identity> = exchange(&mut group, "GPUs", own.to_bytes(), timeout)?
            .iter()
            .map(|bytes| Identity::from_bytes(bytes))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::Group { why: "a rank sent an unreadable identity".to_owned() })?;
        let in_process: Vec<bool> = all.iter().map(|other| other.process == own.process).collect();
        let ranks_on = |gpu: [u8; 16]| all.iter().filter(|other| other.gpu == gpu).count();
        let ranks_on_gpu = ranks_on(own.gpu);
        let is_in_context = |rank: &usize| in_process[*rank] && all[*rank].gpu == own.gpu;
        let in_context: Vec<usize> = (0..all.len()).filter(is_in_context).collect();
        if in_context.first() == Some(&group.rank()) {
            queues::warn_if_few(in_context.len());
        }
        // All ranks cut their elements into the same slices, so the smallest share counts.
        let others = all.iter().map(|rank| rank.others).max().unwrap_or(0);
        let share =
            |rank: &Identity| blocks_of_rank(rank.multiprocessors as usize, ranks_on(rank.gpu), others);
        let share = all.iter().map(share).min().unwrap_or(1);
        let visible = device.driver().devices()?;
        let (mut reaches_all, mut peers) = (true, Vec::new());
        for (rank, in_process) in std::iter::zip(&all, &in_process).filter(|(rank, _)| rank.gpu != own.gpu) {
            // A GPU that is hidden from this process cannot be mapped.
            let peer = visible.iter().find(|peer| rank.gpu == peer.uuid);
            let linked = peer.map(|peer| device.link_to(peer)).transpose()?.flatten().and(peer);
            reaches_all &= linked.is_some();
            // Another process has its own context there.
            if let Some(peer) = linked.filter(|_| *in_process) {
                context.enable_peer_access(&Context::primary(peer)?)?;
                peers.push(peer.clone());
            }
        }
        let here: Vec<usize> = (0..all.len()).filter(|rank| in_process[*rank]).collect();
        let first = (here[0] == group.rank() && here.len() > 1).then(|| Loading::first(&here));
        let mut said = vec![u8::from(reaches_all)];
        said.extend(first.as_ref().map_or(0, Loading::number).to_le_bytes());
        let said = exchange(&mut group, "access to GPUs", said, timeout)?;
        let is_host =
            all.iter().any(|rank| rank.wants_host_memory) || said.iter().any(|said| said.first() != Some(&1));
        let loading = match first {
            None if here.len() > 1 => Some(found(&said[here[0]], &here, group.rank())?),
            first => first,
        };
        let memory = if is_host { Memory::Host } else { Memory::Device };
        // More blocks do not make the link to the host faster, and thousands of polls make it slower.
        let share = if is_host { share.min(HOST_BLOCKS_MAX) } else { share };
        let presence = Presence::new(&context, &mut group, timeout)?;
        let number = COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
        let is_one_process = !in_process.contains(&false);
        let registry = if is_one_process || is_host {
            None
        } else {
            let links = group
                .link_ranks("buffers of GPUs", timeout)
                .map_err(|why| Error::Group { why: why.to_string() })?;
            let others = links.into_iter().filter(|link| !in_process[link.rank()]).collect();
            let processes = all.iter().map(|rank| rank.process).collect();
            Some(BufferRegistry::new(&context, others, processes, number, timeout)?)
        };
        let owner = owner_of(&group);
        let watch = ContextWatch::new(presence.words().clone(), !is_one_process, device.is_shared_by_mps);
        Ok(Communicator {
            number,
            watch,
            calls: Calls::new(owner),
            shares_context: in_context.len() > 1,
            is_one_gpu: ranks_on_gpu == all.len() && !is_host,
            memory,
            rank: group.rank(),
            group,
            event: Event::new(&context)?,
            last: None,
            actions: Vec::new(),
            captured: Vec::new(),
            has_captured: false,
            parameters: Box::new([0; CALL_BYTES]),
            program_bytes: 0,
            windows: 0,
            multicast: Arc::default(),
            peers,
            stream,
            ranks_on_gpu,
            ranks_on_gpu_max: all.iter().map(|rank| ranks_on(rank.gpu)).max().unwrap_or(1),
            share,
            _resident: resident,
            in_process,
            loading,
            timeout,
            call_timeout,
            resources: ManuallyDrop::new(Resources {
                kernels: Kernels::new(&context),
                plans: Vec::new(),
                retired: Retired::default(),
                reports: Reports::new(&context, owner)?,
                presence,
                registry,
                staging: Staging::default(),
            }),
            context,
        })
    }
}

/// The settings with one variable of the environment.
fn setting(name: &str) -> Result<Knobs, Error> {
    let misuse =
        |why: KnobError| Error::Misuse { attempt: "join ranks on GPUs".to_owned(), why: why.to_string() };
    Knobs::from_variable(name).map_err(misuse)
}

/// Finds the ranks of this process, by what the first of them has said.
fn found(said: &[u8], here: &[usize], rank: usize) -> Result<Loading, Error> {
    let number = said.get(1..).and_then(|number| number.try_into().ok()).map(u64::from_le_bytes);
    let place = here.iter().position(|other| *other == rank);
    let found = number.zip(place).and_then(|(number, place)| Loading::joining(number, place));
    found.ok_or_else(|| Error::Group { why: format!("rank {} of this process has left", here[0]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_round_trip() {
        let identity =
            Identity { process: 7, gpu: [3; 16], multiprocessors: 132, others: 2, wants_host_memory: true };
        let bytes = identity.to_bytes();
        assert_eq!(Identity::from_bytes(&bytes), Some(identity));
        assert_eq!(Identity::from_bytes(&bytes[1..]), None);
        assert_eq!(Identity::from_bytes(&[&bytes[..], &[0]].concat()), None);
    }
}
