//! A multicast object over memory of all ranks (NVLS): one rank creates it, every rank adds its GPU, then binds its memory, then maps the object.
//!
//! Compiled and never run: no machine with an NVLink switch that multicasts has run it.

mod ranges;

use std::os::fd::AsFd;

use weftlink_bootstrap::Bootstrap;

use crate::Error;
use crate::driver::{Allocation, DeviceAddress, DeviceBuffer, HandleKind, Mapping, Multicast};
use crate::sharing::{Sharing, exchange};
pub(crate) use ranges::{InWindow, Listed, MulticastRanges};

/// For messages of the exchanges.
const WHAT: &str = "multicast memory";

/// Memory of all ranks behind one range of addresses.
#[derive(Debug)]
pub(crate) struct MulticastMapping {
    /// Unmapped before memory is unbound.
    mapping: Mapping,
    _object: Multicast,
}

impl MulticastMapping {
    /// Binds the memory at an address of this rank, which has the same length on all ranks. All ranks call it; each has a GPU of its own. If a
    /// step fails on one rank, all get an error.
    pub(crate) fn new(
        sharing: &Sharing<'_>,
        group: &mut Bootstrap,
        own: DeviceAddress,
    ) -> Result<MulticastMapping, Error> {
        let Sharing { context, timeout, .. } = *sharing;
        let (device, driver) = (context.device(), context.driver());
        let memory = Allocation::retain(context, own);
        let memory = agree(sharing, group, memory)?;
        let created = match group.rank() {
            0 => {
                let (ranks, kind) = (group.size() as u32, HandleKind::PosixDescriptor);
                Multicast::create(driver, ranks, memory.bytes(), kind).map(Some)
            }
            _ => Ok(None),
        };
        let created = agree(sharing, group, created)?;
        // The other ranks pass something, too.
        let exported = created.as_ref().map_or(&memory, Multicast::object).export_descriptor();
        let exported = agree(sharing, group, exported)?;
        let bytes = created.as_ref().map_or(0, |object| object.object().bytes());
        let sizes = exchange(group, WHAT, bytes.to_le_bytes().to_vec(), timeout)?;
        let passed = group
            .pass_descriptors(WHAT, exported.as_fd(), timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let object = match created {
            Some(object) => Ok(object),
            None => imported(driver, &sizes[0], passed.into_iter().next().flatten()),
        };
        let mut object = agree(sharing, group, object)?;
        let added = object.add(device);
        agree(sharing, group, added)?;
        let bound = object.bind(device, &memory, 0);
        agree(sharing, group, bound)?;
        let mapping = Mapping::new(context, &[object.object()], &[device]);
        let mapping = agree(sharing, group, mapping)?;
        Ok(MulticastMapping { mapping, _object: object })
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.mapping.address()
    }
}

fn imported(
    driver: crate::driver::Driver,
    bytes: &[u8],
    descriptor: Option<std::os::fd::OwnedFd>,
) -> Result<Multicast, Error> {
    let missing = || Error::Group { why: "rank 0 passed no multicast object".to_owned() };
    let bytes = bytes.try_into().map(usize::from_le_bytes).map_err(|_| missing())?;
    let descriptor = descriptor.ok_or_else(missing)?;
    let object = Allocation::import_descriptor(driver, descriptor.as_fd(), bytes)?;
    Ok(Multicast::imported(driver, object))
}

/// The result of a step, if it succeeded on all ranks.
fn agree<T>(sharing: &Sharing<'_>, group: &mut Bootstrap, result: Result<T, Error>) -> Result<T, Error> {
    let said = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = exchange(group, WHAT, said.into_bytes(), sharing.timeout)?;
    let value = result?;
    match all.iter().position(|said| !said.is_empty()) {
        None => Ok(value),
        Some(rank) => {
            let said = String::from_utf8_lossy(&all[rank]);
            Err(Error::Group { why: format!("rank {rank} could not set up multicast memory: {said}") })
        }
    }
}
