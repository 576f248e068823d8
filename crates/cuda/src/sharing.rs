//! The arenas of a plan, which each rank allocates and all ranks map.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;

use crate::Error;
use crate::driver::{Allocation, Context, DeviceBuffer, HandleKind, Mapping, Stream};
use crate::program::Arenas;

/// Arenas of this process by address. Ranks of one process share a mapping: one of their own would give the memory two addresses, between
/// which accesses are not ordered.
static MAPPINGS: Mutex<Option<HashMap<u64, Weak<Mapping>>>> = Mutex::new(None);

/// All arenas of a plan. Each stays mapped until the last rank that uses it is done.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) arenas: Arenas,
    _mappings: Vec<Arc<Mapping>>,
}

/// Allocates this rank's arena, zeroed, and maps those of the other ranks. All ranks call it.
pub(crate) fn share(
    group: &mut Bootstrap,
    context: &Context,
    stream: &Stream,
    in_process: &[bool],
    bytes: u64,
    timeout: Duration,
) -> Result<Shared, Error> {
    let device = context.device();
    let granularity = device.granularity(HandleKind::PosixDescriptor)?.recommended;
    let bytes = (bytes as usize).next_multiple_of(granularity);
    let own = Allocation::create(device, bytes, HandleKind::PosixDescriptor)?;
    let mapping = Arc::new(Mapping::new(context, &[&own], &[device])?);
    mapping.fill(stream, 0, bytes, 0)?;
    stream.synchronize()?;
    publish(&mapping);
    let addresses = exchange(group, "arenas", mapping.address().to_le_bytes().to_vec(), timeout)?;
    let descriptor = own.export_descriptor()?;
    let passed = group
        .pass_descriptors("arenas", descriptor.as_fd(), timeout)
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
            let theirs = Allocation::import_descriptor(context.driver(), descriptor.as_fd(), bytes)?;
            Arc::new(Mapping::new(context, &[&theirs], &[device])?)
        });
    }
    exchange(group, "arenas are mapped", Vec::new(), timeout)?;
    let arenas = Arenas(mappings.iter().map(|mapping| mapping.address()).collect());
    Ok(Shared { arenas, _mappings: mappings })
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
