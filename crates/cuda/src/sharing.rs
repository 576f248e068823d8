//! The arenas of a plan, and windows, which all ranks map: in device memory, or in host memory where GPUs cannot access each other.

// Registers host memory.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_shm::memory::SharedMemory;

use crate::Error;
use crate::driver::{
    Allocation, Context, DeviceBuffer, DeviceMemory, HandleKind, Mapping, Registration, Stream,
};
use crate::program::Arenas;

/// Arenas on GPUs of this process by address. Ranks of one process share a mapping: with one each, device memory would have two addresses in
/// one address space, and kernels would have to order accesses to both.
static MAPPINGS: Mutex<Option<HashMap<u64, Weak<Mapping>>>> = Mutex::new(None);

/// Where ranks put what they send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Memory of the receiving GPU.
    Device,
    /// Pinned host memory that all GPUs map: where GPUs cannot access each other, or to try that out.
    Host,
}

/// The arenas of all ranks, and the rank's private memory. Each stays mapped until the last rank that uses it is done.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) arenas: Arenas,
    _memory: Mapped,
}

/// Fields are dropped in order: memory is registered as long as it is mapped.
#[derive(Debug)]
#[expect(dead_code, reason = "they hold the memory")]
enum Mapped {
    Device(Vec<Arc<Mapping>>),
    Host { registration: Registration, memory: SharedMemory, private: DeviceMemory },
}

/// What sharing needs.
pub(crate) struct Sharing<'a> {
    /// For messages.
    pub(crate) what: &'static str,
    pub(crate) context: &'a Context,
    pub(crate) stream: &'a Stream,
    pub(crate) in_process: &'a [bool],
    pub(crate) timeout: Duration,
}

impl Sharing<'_> {
    /// Allocates this rank's arena and private memory on its GPU, zeroed, and maps the arenas of the other ranks. All ranks call it.
    pub(crate) fn device(
        &self,
        group: &mut Bootstrap,
        [bytes, private_bytes]: [usize; 2],
    ) -> Result<Shared, Error> {
        let Sharing { what, context, stream, in_process, timeout } = *self;
        let device = context.device();
        let granularity = device.granularity(HandleKind::PosixDescriptor)?.recommended;
        let all_bytes = (bytes + private_bytes).next_multiple_of(granularity);
        let own = Allocation::create(device, all_bytes, HandleKind::PosixDescriptor)?;
        let mapping = Arc::new(Mapping::new(context, &[&own], &[device])?);
        mapping.fill(stream, 0, all_bytes, 0)?;
        stream.synchronize()?;
        publish(&mapping);
        let addresses = exchange(group, what, mapping.address().to_le_bytes().to_vec(), timeout)?;
        let descriptor = own.export_descriptor()?;
        let passed = group
            .pass_descriptors(what, descriptor.as_fd(), timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let mut mappings = Vec::new();
        for (rank, (address, passed)) in std::iter::zip(&addresses, passed).enumerate() {
            let missing = || Error::Group { why: format!("rank {rank} passed no memory") };
            mappings.push(if rank == group.rank() {
                Arc::clone(&mapping)
            } else if in_process[rank] {
                let address = address[..].try_into().map(u64::from_le_bytes).map_err(|_| missing())?;
                let theirs = published(address).ok_or_else(missing)?;
                if theirs.context().device().uuid != device.uuid {
                    theirs.allow(&[device])?;
                }
                theirs
            } else {
                let descriptor = passed.ok_or_else(missing)?;
                let theirs = Allocation::import_descriptor(context.driver(), descriptor.as_fd(), all_bytes)?;
                Arc::new(Mapping::new(context, &[&theirs], &[device])?)
            });
        }
        exchange(group, what, Vec::new(), timeout)?;
        let of_ranks = mappings.iter().map(|mapping| mapping.address()).collect();
        let arenas = Arenas { of_ranks, private: mapping.address() + bytes as u64 };
        Ok(Shared { arenas, _memory: Mapped::Device(mappings) })
    }

    /// Allocates the arenas of all ranks in host memory, and this rank's private memory on its GPU, zeroed. All ranks call it.
    pub(crate) fn host(
        &self,
        group: &mut Bootstrap,
        [bytes, private_bytes]: [usize; 2],
    ) -> Result<Shared, Error> {
        let Sharing { what, context, stream, in_process, timeout } = *self;
        let memory = group
            .share(what, bytes * in_process.len(), timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        // SAFETY: the memory is unmapped after the registration has ended.
        let registration = unsafe { Registration::new(context, memory.as_ptr(), memory.len())? };
        let private = DeviceMemory::new(context, private_bytes)?;
        private.fill(stream, 0, private_bytes, 0)?;
        stream.synchronize()?;
        exchange(group, what, Vec::new(), timeout)?;
        let of_ranks =
            (0..in_process.len()).map(|rank| registration.device() + (rank * bytes) as u64).collect();
        let arenas = Arenas { of_ranks, private: private.address() };
        Ok(Shared { arenas, _memory: Mapped::Host { registration, memory, private } })
    }
}

fn publish(mapping: &Arc<Mapping>) {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mappings = mappings.get_or_insert_default();
    mappings.retain(|_, mapping| mapping.strong_count() > 0);
    mappings.insert(mapping.address(), Arc::downgrade(mapping));
}

fn published(address: u64) -> Option<Arc<Mapping>> {
    let mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    mappings.as_ref()?.get(&address)?.upgrade()
}

pub(crate) fn exchange(
    group: &mut Bootstrap,
    what: &'static str,
    bytes: Vec<u8>,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    group.exchange(what, bytes, timeout).map_err(|why| Error::Group { why: why.to_string() })
}

/// A number that no other process has.
pub(crate) fn process_token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}
