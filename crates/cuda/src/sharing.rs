//! The arenas of a plan, and windows, which all ranks map: in device memory, or in host memory where GPUs cannot access each other.

// Registers host memory.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
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
    /// What this rank has allocated on its GPU.
    pub(crate) device_bytes: usize,
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
        let allocated = self.allocate(bytes + private_bytes);
        let ((mapping, descriptor), addresses) =
            self.agree(group, allocated, |(mapping, _)| mapping.address().to_le_bytes().to_vec())?;
        let passed = group
            .pass_descriptors(self.what, descriptor.as_fd(), self.timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let mapped = self.map(group.rank(), &mapping, &addresses, passed);
        let (mappings, _) = self.agree(group, mapped, |_| Vec::new())?;
        let of_ranks = mappings.iter().map(|mapping| mapping.address()).collect();
        let arenas = Arenas { of_ranks, private: mapping.address() + bytes as u64 };
        Ok(Shared { arenas, device_bytes: mapping.bytes(), _memory: Mapped::Device(mappings) })
    }

    /// This rank's memory, zeroed, and its descriptor.
    fn allocate(&self, bytes: usize) -> Result<(Arc<Mapping>, OwnedFd), Error> {
        let device = self.context.device();
        let granularity = device.granularity(HandleKind::PosixDescriptor)?.recommended;
        let bytes = bytes.next_multiple_of(granularity);
        let own = Allocation::create(device, bytes, HandleKind::PosixDescriptor)?;
        let mapping = Arc::new(Mapping::new(self.context, &[&own], &[device])?);
        mapping.fill(self.stream, 0, bytes, 0)?;
        self.stream.synchronize()?;
        publish(&mapping);
        Ok((mapping, own.export_descriptor()?))
    }

    /// Maps the memory of all ranks: of those in this process by its address, of others by its descriptor.
    fn map(
        &self,
        own: usize,
        mapping: &Arc<Mapping>,
        addresses: &[Vec<u8>],
        passed: Vec<Option<OwnedFd>>,
    ) -> Result<Vec<Arc<Mapping>>, Error> {
        let device = self.context.device();
        let mut mappings = Vec::new();
        for (rank, (address, passed)) in std::iter::zip(addresses, passed).enumerate() {
            let missing = || Error::Group { why: format!("rank {rank} passed no memory") };
            mappings.push(if rank == own {
                Arc::clone(mapping)
            } else if self.in_process[rank] {
                let address = address[..].try_into().map(u64::from_le_bytes).map_err(|_| missing())?;
                let theirs = published(address).ok_or_else(missing)?;
                if theirs.context().device().uuid != device.uuid {
                    theirs.allow(&[device])?;
                }
                theirs
            } else {
                let (descriptor, bytes) = (passed.ok_or_else(missing)?, mapping.bytes());
                let theirs = Allocation::import_descriptor(self.context.driver(), descriptor.as_fd(), bytes)?;
                Arc::new(Mapping::new(self.context, &[&theirs], &[device])?)
            });
        }
        Ok(mappings)
    }

    /// Allocates the arenas of all ranks in host memory, and this rank's private memory on its GPU, zeroed. All ranks call it.
    pub(crate) fn host(
        &self,
        group: &mut Bootstrap,
        [bytes, private_bytes]: [usize; 2],
    ) -> Result<Shared, Error> {
        let (what, ranks) = (self.what, self.in_process.len());
        let memory = group
            .share(what, of_all(bytes, ranks)?, self.timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let registered = self.register(&memory, private_bytes);
        let ((registration, private), _) = self.agree(group, registered, |_| Vec::new())?;
        let of_ranks = (0..ranks).map(|rank| registration.device() + (rank * bytes) as u64).collect();
        let arenas = Arenas { of_ranks, private: private.address() };
        let device_bytes = private.bytes();
        Ok(Shared { arenas, device_bytes, _memory: Mapped::Host { registration, memory, private } })
    }

    /// Lets the GPU use host memory, which outlives the registration, and allocates private memory.
    fn register(
        &self,
        memory: &SharedMemory,
        private_bytes: usize,
    ) -> Result<(Registration, DeviceMemory), Error> {
        // SAFETY: the caller unmaps the memory after the registration has ended.
        let registration = unsafe { Registration::new(self.context, memory.as_ptr(), memory.len())? };
        let private = DeviceMemory::new(self.context, private_bytes)?;
        private.fill(self.stream, 0, private_bytes, 0)?;
        self.stream.synchronize()?;
        Ok((registration, private))
    }

    /// The result of this rank's step with the `bytes` of all ranks, if it succeeded on all.
    fn agree<T>(
        &self,
        group: &mut Bootstrap,
        result: Result<T, Error>,
        bytes: impl FnOnce(&T) -> Vec<u8>,
    ) -> Result<(T, Vec<Vec<u8>>), Error> {
        agree(group, self.what, result, bytes, self.timeout)
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

/// The bytes of the arenas of all ranks.
fn of_all(bytes: usize, ranks: usize) -> Result<usize, Error> {
    bytes.checked_mul(ranks).filter(|all| isize::try_from(*all).is_ok()).ok_or_else(|| {
        let why = "no host has so much memory".to_owned();
        Error::Misuse { attempt: format!("allocate {bytes} bytes for each of {ranks} ranks"), why }
    })
}

const DONE: u8 = 0;
const FAILED: u8 = 1;

/// The result of a step of this rank, with the `bytes` of all ranks, if it succeeded on all. If not, all ranks get an error, with the reason of
/// the first rank that has one, and the group can be used again.
pub(crate) fn agree<T>(
    group: &mut Bootstrap,
    what: &'static str,
    result: Result<T, Error>,
    bytes: impl FnOnce(&T) -> Vec<u8>,
    timeout: Duration,
) -> Result<(T, Vec<Vec<u8>>), Error> {
    let said = match &result {
        Ok(value) => [&[DONE], &bytes(value)[..]].concat(),
        Err(why) => [&[FAILED], why.to_string().as_bytes()].concat(),
    };
    let all = exchange(group, what, said, timeout)?;
    let value = result?;
    let all = all.into_iter().enumerate().map(|(rank, said)| match said.split_first() {
        Some((&DONE, bytes)) => Ok(bytes.to_vec()),
        Some((_, why)) => {
            let why = String::from_utf8_lossy(why);
            Err(Error::Group { why: format!("rank {rank} could not set up {what}: {why}") })
        }
        None => Err(Error::Group { why: format!("rank {rank} sent an unreadable message") }),
    });
    Ok((value, all.collect::<Result<_, _>>()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_longer_than_the_address_space_are_refused() {
        assert_eq!(of_all(1 << 20, 128), Ok(1 << 27));
        // Its product is 0 in 64 bits, and memory of that length could be shared.
        for (bytes, ranks) in [(1 << 59, 32), ((1 << 59) + 4096, 32), (1 << 58, 32)] {
            let error = of_all(bytes, ranks);
            assert!(matches!(error, Err(Error::Misuse { .. })), "{error:?}");
        }
    }
}
