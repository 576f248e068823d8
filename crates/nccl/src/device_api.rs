//! The host's part of NCCL's device API. Kernels that are built with `nccl_device.h` know the layout of NCCL's own structures, which are not offered;
//! functions that would fill them say so.

// Writes to the program's memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use crate::abi::{self, MAGIC, Properties, Team, Window};
use crate::failure::{Failure, check_place};
use crate::open::Open;
use crate::registry;

/// Why there is no device API.
fn not_offered() -> Failure {
    Failure::usage(
        "the device API (nccl_device.h) is not offered: its kernels know the layout of NCCL's own structures",
    )
}

nccl! {
    fn ncclCommQueryProperties(comm: abi::Comm, properties: *mut Properties) {
        check_place(properties, "the properties")?;
        // SAFETY: the program's structure.
        let (size, magic) = unsafe { ((*properties).size, (*properties).magic) };
        if magic != MAGIC || size < offset_of!(Properties, gin_type) {
            return Err(Failure::argument("the properties were not set to NCCL_COMM_PROPERTIES_INITIALIZER"));
        }
        let comm = registry::find(comm)?;
        let open = comm.open()?;
        let device = comm.device.map_or(-1, |device| device as c_int);
        // SAFETY: the program's structure is as long as it says.
        unsafe {
            (*properties).rank = open.rank as c_int;
            (*properties).ranks = open.size as c_int;
            (*properties).cuda_device = device;
            (*properties).nvml_device = device;
            (*properties).has_device_api = false;
            (*properties).has_multimem = false;
            if size >= offset_of!(Properties, lsa_teams) {
                (*properties).gin_type = 0;
            }
            if size >= offset_of!(Properties, has_host_rma) {
                (*properties).lsa_teams = 1;
            }
            if size >= size_of::<Properties>() {
                (*properties).has_host_rma = open.has_puts(comm.device);
                (*properties).railed_gin_type = 0;
            }
        }
        Ok(())
    }
}

nccl! { fn ncclDevCommCreate(_comm: abi::Comm, _needs: *const c_void, _made: *mut c_void) { Err(not_offered()) } }
nccl! { fn ncclDevCommDestroy(_comm: abi::Comm, _made: *const c_void) { Err(not_offered()) } }
nccl! { fn ncclGetLsaMultimemDevicePointer(_window: Window, _offset: usize, _place: *mut *mut c_void) { Err(not_offered()) } }
nccl! {
    fn ncclGetMultimemDevicePointer(_window: Window, _offset: usize, _multimem: *mut c_void, _place: *mut *mut c_void) {
        Err(not_offered())
    }
}
nccl! {
    fn ncclGetLsaDevicePointer(_window: Window, _offset: usize, _rank: c_int, _place: *mut *mut c_void) { Err(not_offered()) }
}
nccl! {
    fn ncclGetPeerDevicePointer(_window: Window, _offset: usize, _rank: c_int, _place: *mut *mut c_void) { Err(not_offered()) }
}
nccl! {
    fn ncclLsaBarrierCreateRequirement(_team: Team, _count: c_int, _handle: *mut c_void, _needs: *mut c_void) {
        Err(not_offered())
    }
}
nccl! {
    fn ncclGinBarrierCreateRequirement(
        _comm: abi::Comm, _team: Team, _count: c_int, _handle: *mut c_void, _needs: *mut c_void,
    ) {
        Err(not_offered())
    }
}
nccl! {
    fn ncclLLA2ACreateRequirement(_blocks: c_int, _slots: c_int, _handle: *mut c_void, _needs: *mut c_void) {
        Err(not_offered())
    }
}
nccl! {
    fn ncclGinOutboxCreateRequirement(_blocks: c_int, _log2_bytes: c_int, _handle: *mut c_void, _needs: *mut c_void) {
        Err(not_offered())
    }
}
nccl! {
    fn ncclGinInboxA2ACreateRequirement(
        _peers: Team, _blocks: c_int, _log2_bytes: c_int, _handle: *mut c_void, _needs: *mut c_void,
    ) {
        Err(not_offered())
    }
}

nccl! {
    /// The slots of 8 bytes that elements need.
    fn ncclLLA2ACalcSlots(elements: c_int, element_bytes: c_int) -> c_int, or_if_it_panics 0; {
        elements.saturating_mul(element_bytes.saturating_add(7) / 8)
    }
}

/// The team of a pointer that is no communicator.
const NO_RANKS: Team = Team { ranks: 0, rank: 0, stride: 1 };

/// All ranks of a communicator.
fn world(comm: abi::Comm) -> Team {
    let open = registry::find(comm).and_then(|comm| comm.open());
    let all = |open: Arc<Open>| Team { ranks: open.size as c_int, rank: open.rank as c_int, stride: 1 };
    open.map_or(NO_RANKS, all)
}

/// The number that a rank of one team has in another. Wraps around if the program passes numbers that are no ranks.
fn from(own: Team, team: Team, rank: c_int) -> c_int {
    own.rank.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

nccl! {
    fn ncclTeamWorld(comm: abi::Comm) -> Team, or_if_it_panics NO_RANKS; {
        world(comm)
    }
}

nccl! {
    /// The ranks that read each other's memory: all ranks of one host. With several hosts, every rank is a team of its own.
    fn ncclTeamLsa(comm: abi::Comm) -> Team, or_if_it_panics NO_RANKS; {
        let open = registry::find(comm).and_then(|comm| comm.open());
        match open {
            Ok(open) if open.spans_hosts => Team { ranks: 1, rank: 0, stride: 1 },
            _ => world(comm),
        }
    }
}

nccl! {
    /// The ranks that have the same place in their teams of [`ncclTeamLsa`].
    fn ncclTeamRail(comm: abi::Comm) -> Team, or_if_it_panics NO_RANKS; {
        let open = registry::find(comm).and_then(|comm| comm.open());
        match open {
            Ok(open) if open.spans_hosts => world(comm),
            _ => Team { ranks: 1, rank: 0, stride: 1 },
        }
    }
}

nccl! {
    fn ncclTeamRankToWorld(comm: abi::Comm, team: Team, rank: c_int) -> c_int, or_if_it_panics -1; {
        from(world(comm), team, rank)
    }
}

nccl! {
    fn ncclTeamRankToLsa(comm: abi::Comm, team: Team, rank: c_int) -> c_int, or_if_it_panics -1; {
        from(ncclTeamLsa(comm), team, rank)
    }
}
