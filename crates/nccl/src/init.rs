//! Making communicators: by rank, for all GPUs of a process, with several identifiers.

// Reads and writes the program's memory.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Once};

use weftlink::bootstrap::launcher::report_use;
use weftlink::bootstrap::{Bootstrap, Network, Rendezvous};
use weftlink::cuda::driver::Driver;
use weftlink::{Communicator, Options};

use crate::abi::{self, UniqueId};
use crate::comm::Comm;
use crate::config::{self, Config};
use crate::failure::{Failure, check_place};
use crate::gpu::current_device;
use crate::group::{self, Start};
use crate::id::Id;
use crate::open::Open;
use crate::settings::{self, knobs};
use crate::{loaded, log, registry};

/// Registers a communicator, unless this rank gets none, and starts it: now, or when the group ends, or on a thread of its own.
pub(crate) fn launch(
    into: *mut abi::Comm,
    is_member: bool,
    comm: Arc<Comm>,
    parent: Option<Arc<Comm>>,
    meet: impl FnOnce() -> Result<Option<Open>, Failure> + Send + 'static,
) -> Result<(), Failure> {
    loaded::check()?;
    let pointer = if is_member { registry::add(Arc::clone(&comm)) } else { std::ptr::null_mut() };
    let name = comm.config.name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
    log::info(comm.device, &format!("comm {pointer:p}{name} - Init START"));
    // SAFETY: the program's place for a pointer, which the caller has checked.
    unsafe { into.write_unaligned(pointer) };
    group::start(Start { comm, parent, meet: Some(Box::new(meet)), place: into as usize })
}

/// The ranks of an identifier meet.
pub(crate) fn meet(id: &Id, rank: usize, size: usize, device: Option<usize>) -> Result<Open, Failure> {
    let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
    let (address, token) = id.place(rank, size)?;
    log::info(device, &format!("rank {rank} of {size} meets the others at {address}"));
    let rendezvous = Rendezvous {
        network: Network::of(&settings),
        ..Rendezvous::new(address, token, size, settings.deadline)
    };
    let group = match rank {
        0 => Bootstrap::listen(&rendezvous)?,
        _ => Bootstrap::join(&rendezvous, rank)?,
    };
    opened(group, device)
}

/// Tells the launcher once that this process uses the library.
static REPORTED: Once = Once::new();

/// The communicator of a group that has met.
pub(crate) fn opened(group: Bootstrap, device: Option<usize>) -> Result<Open, Failure> {
    let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
    let comm = Communicator::new(group, Options::of(&settings))?;
    let (rank, size, hosts) = (comm.rank(), comm.size(), comm.spans_hosts());
    let open = Open::new(comm, device)?;
    log::version();
    REPORTED.call_once(|| report_use("nccl"));
    let ways = if hosts { "shared memory inside hosts and TCP between them" } else { "shared memory" };
    log::info(device, &format!("rank {rank} nranks {size} via {ways} - Init COMPLETE"));
    for name in settings::unknown_once() {
        log::info(device, &format!("{name} is set, and means nothing here"));
    }
    Ok(open)
}

fn check_rank(rank: c_int, size: c_int) -> Result<(usize, usize), Failure> {
    match (usize::try_from(rank), usize::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::argument(format!("rank {rank} is not one of {size} ranks"))),
    }
}

fn init_rank(
    comm: *mut abi::Comm,
    size: c_int,
    id: &UniqueId,
    rank: c_int,
    config: Config,
) -> Result<(), Failure> {
    check_place(comm, "the communicator")?;
    let (rank, size) = check_rank(rank, size)?;
    let id = match settings::given("NCCL_COMM_ID") {
        Some(_) => Id::new()?,
        None => Id::from_bytes(id)?,
    };
    let device = current_device();
    let made = Comm::starting(config, device);
    launch(comm, true, made, None, move || meet(&id, rank, size, device).map(Some))
}

nccl! {
    fn ncclCommInitRank(comm: *mut abi::Comm, ranks: c_int, id: UniqueId, rank: c_int) {
        init_rank(comm, ranks, &id, rank, Config::default()).inspect_err(group::note)
    }
}

nccl! {
    fn ncclCommInitRankConfig(comm: *mut abi::Comm, ranks: c_int, id: UniqueId, rank: c_int, config: *mut abi::Config) {
        // SAFETY: the program's configuration.
        let config = unsafe { config::read(config, &Config::default()) };
        config.and_then(|config| init_rank(comm, ranks, &id, rank, config)).inspect_err(group::note)
    }
}

nccl! {
    /// Several identifiers let NCCL meet faster. Here ranks meet in a tree, so the first is enough.
    fn ncclCommInitRankScalable(
        comm: *mut abi::Comm, ranks: c_int, rank: c_int, ids: c_int, id: *mut UniqueId, config: *mut abi::Config,
    ) {
        let start = || {
            if id.is_null() || ids < 1 || ids > ranks {
                return Err(Failure::argument(format!("{ids} identifiers for {ranks} ranks: there are 1 to {ranks}")));
            }
            // SAFETY: the program's identifiers and configuration.
            let (first, config) = unsafe { (id.read_unaligned(), config::read(config, &Config::default())?) };
            init_rank(comm, ranks, &first, rank, config)
        };
        start().inspect_err(group::note)
    }
}

nccl! {
    /// Communicators of GPUs of this process, which may repeat. Without CUDA, of as many ranks on host memory.
    fn ncclCommInitAll(comms: *mut abi::Comm, count: c_int, devices: *const c_int) {
        check_place(comms, "the communicators")?;
        let (_, size) = check_rank(0, count)?;
        let has_gpus = Driver::load().is_ok();
        let device = |rank: usize| match devices.is_null() {
            true => has_gpus.then_some(rank),
            // SAFETY: the program's list has an entry for each.
            false => has_gpus.then(|| unsafe { devices.add(rank).read_unaligned() } as usize),
        };
        group::begin();
        for (rank, end) in Bootstrap::threads(size).into_iter().enumerate() {
            let device = device(rank);
            let made = Comm::starting(Config { blocking: true, ..Config::default() }, device);
            // SAFETY: the program's list has a place for each.
            let place = unsafe { comms.add(rank) };
            if let Err(failure) = launch(place, true, made, None, move || opened(end, device).map(Some)) {
                group::note(&failure);
            }
        }
        group::end()
    }
}

nccl! {
    fn ncclGetVersion(version: *mut c_int) {
        check_place(version, "the version")?;
        knobs().map_err(|error| Failure::argument(error.to_string()))?;
        // SAFETY: the program's place.
        unsafe { version.write_unaligned(settings::version()) };
        Ok(())
    }
}
