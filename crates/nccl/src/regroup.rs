//! Communicators made from others: split, shrunk, grown; and those that are revoked.

// Reads and writes the program's memory.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use weftlink::bootstrap::list;

use crate::abi::{self, ID_BYTES, NO_COLOR, ResultCode, UniqueId};
use crate::comm::Comm;
use crate::config::{self, Config};
use crate::failure::{Failure, check_place};
use crate::gpu::current_device;
use crate::id::Id;
use crate::init::{launch, meet};
use crate::messages::tag;
use crate::open::Open;
use crate::{group, registry};

/// A flag of `ncclCommShrink`: ends the calls of the parent first.
const SHRINK_ABORT: c_int = 1;

nccl! {
    /// All ranks of the communicator call it. Those with the same color form a communicator, in the order of their keys.
    fn ncclCommSplit(comm: abi::Comm, color: c_int, key: c_int, place: *mut abi::Comm, config: *mut abi::Config) {
        split(comm, color, key, place, config).inspect_err(group::note)
    }
}

fn split(
    comm: abi::Comm,
    color: c_int,
    key: c_int,
    place: *mut abi::Comm,
    config: *mut abi::Config,
) -> Result<(), Failure> {
    check_place(place, "the communicator")?;
    let parent = registry::find(comm)?;
    // SAFETY: the program's configuration.
    let config = unsafe { config::read(config, &parent.config) }?;
    let part = match color {
        NO_COLOR => None,
        _ => Some(
            u32::try_from(color).map_err(|_| Failure::argument(format!("the color {color} is negative")))?,
        ),
    };
    let device = parent.device;
    parent.check_started()?;
    let made = Comm::starting(config, device);
    launch(place, part.is_some(), made, Some(Arc::clone(&parent)), move || {
        let background = parent.open()?.background()?;
        let split = background.with(move |comm| comm.split(part, i64::from(key)))?;
        split.map(|comm| Open::new(comm, device)).transpose()
    })
}

nccl! {
    /// The ranks that are not excluded call it. The parent can be used afterwards unless it has failed, or is aborted here.
    fn ncclCommShrink(
        comm: abi::Comm, excluded: *mut c_int, count: c_int, place: *mut abi::Comm, config: *mut abi::Config, flags: c_int,
    ) {
        shrink(comm, excluded, count, place, config, flags).inspect_err(group::note)
    }
}

fn shrink(
    comm: abi::Comm,
    excluded: *mut c_int,
    count: c_int,
    place: *mut abi::Comm,
    config: *mut abi::Config,
    flags: c_int,
) -> Result<(), Failure> {
    check_place(place, "the communicator")?;
    let parent = registry::find(comm)?;
    // SAFETY: the program's configuration.
    let config = unsafe { config::read(config, &parent.config) }?;
    if flags & !SHRINK_ABORT != 0 {
        return Err(Failure::argument(format!(
            "the flags of ncclCommShrink are {flags:#x}, and only 1 is known"
        )));
    }
    let Ok(count) = usize::try_from(count) else {
        return Err(Failure::argument(format!("the number of excluded ranks is {count}")));
    };
    if excluded.is_null() && count > 0 {
        return Err(Failure::argument("the list of excluded ranks is NULL"));
    }
    parent.check_started()?;
    // SAFETY: the program's list.
    let excluded =
        (0..count).map(|at| unsafe { excluded.add(at).read_unaligned() } as usize).collect::<Vec<_>>();
    let device = parent.device;
    let made = Comm::starting(config, device);
    launch(place, true, made, Some(Arc::clone(&parent)), move || {
        let open = parent.open()?;
        if let Some(rank) = excluded.iter().find(|rank| **rank >= open.size) {
            return Err(Failure::argument(format!(
                "the excluded rank {rank} is not one of {} ranks",
                open.size
            )));
        }
        if excluded.contains(&open.rank) {
            return Err(Failure::usage(format!(
                "rank {} is excluded, and must not call ncclCommShrink",
                open.rank
            )));
        }
        if flags & SHRINK_ABORT != 0 || open.failure().is_some() {
            return Ok(Some(after_failure(&parent, &open, &excluded)?));
        }
        among(&open, &excluded, device).map(Some)
    })
}

/// The ranks that are left meet again, whoever is gone.
fn after_failure(parent: &Comm, open: &Open, excluded: &[usize]) -> Result<Open, Failure> {
    open.abort("its program called ncclCommShrink");
    let shrunk = open.take()?.shrink()?;
    let kept = (0..open.size).filter(|rank| !excluded.contains(rank));
    let missing: Vec<usize> = kept.filter(|rank| !shrunk.origins().contains(rank)).collect();
    if !missing.is_empty() {
        let text = format!("{} did not take part in ncclCommShrink", list(&missing));
        return Err(Failure { code: ResultCode::RemoteError, text });
    }
    Open::new(shrunk, parent.device)
}

/// The ranks that are not excluded meet at an identifier that the first of them makes.
fn among(open: &Open, excluded: &[usize], device: Option<usize>) -> Result<Open, Failure> {
    let kept: Vec<usize> = (0..open.size).filter(|rank| !excluded.contains(rank)).collect();
    let rank = kept.iter().position(|rank| *rank == open.rank).unwrap_or(0);
    let (id, timeout) = match rank {
        0 => {
            let id = Id::of_directory()?;
            let bytes = id.to_bytes().bytes;
            for other in &kept[1..] {
                open.endpoint.send(*other, tag::SHRINK, &bytes, open.timeout)?;
            }
            (id, open.timeout)
        }
        _ => {
            let mut bytes = [0; ID_BYTES];
            open.endpoint.receive(Some(kept[0]), tag::SHRINK, &mut bytes, open.timeout)?;
            (Id::from_bytes(&UniqueId { bytes })?, open.timeout)
        }
    };
    let met = meet(&id, rank, kept.len(), device);
    // The directory must live until all have met, and its thread is in the first rank's process.
    open.endpoint.flush(timeout);
    met
}

nccl! {
    /// An identifier for ranks that join: given to them, and to ncclCommGrow of the rank that made it.
    fn ncclCommGetUniqueId(comm: abi::Comm, id: *mut UniqueId) {
        check_place(id, "the identifier")?;
        registry::find(comm)?.open()?;
        // SAFETY: the program's place.
        unsafe { id.write_unaligned(Id::of_directory()?.to_bytes()) };
        Ok(())
    }
}

nccl! {
    /// Ranks of a communicator keep their numbers and pass it, one of them with the identifier. New ranks pass none, the identifier and their number.
    fn ncclCommGrow(
        comm: abi::Comm, ranks: c_int, id: *const UniqueId, rank: c_int, place: *mut abi::Comm, config: *mut abi::Config,
    ) {
        grow(comm, ranks, id, rank, place, config).inspect_err(group::note)
    }
}

fn grow(
    comm: abi::Comm,
    ranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    place: *mut abi::Comm,
    config: *mut abi::Config,
) -> Result<(), Failure> {
    check_place(place, "the communicator")?;
    let size =
        usize::try_from(ranks).map_err(|_| Failure::argument(format!("{ranks} ranks are negative")))?;
    // SAFETY: the program's identifier.
    let id = (!id.is_null()).then(|| unsafe { id.read_unaligned() });
    let parent = if comm.is_null() { None } else { Some(registry::find(comm)?) };
    let usual = parent.as_ref().map_or_else(Config::default, |parent| parent.config.clone());
    // SAFETY: the program's configuration.
    let config = unsafe { config::read(config, &usual) }?;
    let device = parent.as_ref().map_or_else(current_device, |parent| parent.device);
    let new = match (&parent, usize::try_from(rank), &id) {
        (Some(_), Err(_), _) => None,
        (None, Ok(rank), Some(id)) if rank < size => Some((rank, Id::from_bytes(id)?)),
        _ => {
            return Err(Failure::argument(
                "ranks of the communicator pass it and rank -1; new ranks pass no communicator, the identifier and their rank",
            ));
        }
    };
    if let Some(parent) = &parent {
        parent.check_started()?;
    }
    let made = Comm::starting(config, device);
    launch(place, true, made, parent.clone(), move || {
        let (rank, id) = match (new, parent) {
            (Some(new), _) => new,
            (None, Some(parent)) => agreed(&*parent.open()?, id, size)?,
            (None, None) => return Err(Failure::usage("there is no communicator to grow")),
        };
        meet(&id, rank, size, device).map(Some)
    })
}

/// The identifier that one of the ranks has.
fn agreed(open: &Open, id: Option<UniqueId>, size: usize) -> Result<(usize, Id), Failure> {
    if size <= open.size {
        let own = open.size;
        return Err(Failure::argument(format!("cannot grow a communicator of {own} ranks to {size}")));
    }
    let own: Vec<u8> = id.map_or_else(|| vec![0; ID_BYTES], |id| id.bytes.to_vec());
    let mut all = vec![0_u8; ID_BYTES * open.size];
    let all = open.background()?.with(move |comm| {
        comm.all_gather((&own[..], &mut all[..]))?;
        Ok(all)
    })?;
    let given: Vec<&[u8]> = all.chunks(ID_BYTES).filter(|id| id.iter().any(|byte| *byte != 0)).collect();
    let [given] = given[..] else {
        let ranks = given.len();
        return Err(Failure::usage(format!(
            "{ranks} ranks pass an identifier to ncclCommGrow: exactly one does"
        )));
    };
    let mut bytes = [0; ID_BYTES];
    bytes.copy_from_slice(given);
    Ok((open.rank, Id::from_bytes(&UniqueId { bytes })?))
}

nccl! {
    /// Ends all calls, of the other ranks too. Then the communicator can be shrunk or destroyed.
    fn ncclCommRevoke(comm: abi::Comm, flags: c_int) {
        if flags != 0 {
            return Err(Failure::argument(format!("the flags of ncclCommRevoke are {flags:#x}, and must be 0")));
        }
        let comm: Arc<Comm> = registry::find(comm)?;
        comm.revoke(Failure { code: ResultCode::InvalidUsage, text: "the communicator was revoked".to_owned() })
    }
}

/// Why memory is not given back.
fn suspended() -> Failure {
    Failure::usage("a communicator cannot be suspended: destroy it and make it again")
}

nccl! {
    fn ncclCommSuspend(_comm: abi::Comm, _flags: c_int) {
        Err(suspended())
    }
}

nccl! {
    fn ncclCommResume(_comm: abi::Comm) {
        Err(suspended())
    }
}
