//! One-sided calls: a rank writes to a window of another and signals it, or waits for signals.
//!
//! Signals are counted for each pair of ranks, not for each window. With memory of GPUs they are enqueued on the program's stream. A communicator
//! without GPUs has windows of host memory, and its calls are done when the function returns.

// Passes addresses and streams of the program on.
#![allow(unsafe_code)]

use weftlink::cuda::{self, AddressedRank};

use crate::comm::Comm;
use crate::failure::Failure;
use crate::lock::lock;
use crate::open::Open;
use crate::signals::Header;
use crate::window::{Place, Window};
use crate::work::{OneSided, Put};
use crate::{device, gpu};

/// Registers the windows of a group, in their order.
pub(crate) fn register(comm: &Comm, open: &Open, calls: &[OneSided]) -> Result<(), Failure> {
    calls.iter().try_for_each(|call| match call {
        OneSided::Register(window) => meet(window, comm, open),
        OneSided::Signal { .. } | OneSided::Wait { .. } => Ok(()),
    })
}

/// Makes all puts and signals of a group in their order, then all waits: none waits for a signal that a rank sends in the same group.
pub(crate) fn run(comm: &Comm, open: &Open, calls: &[OneSided]) -> Result<(), Failure> {
    for call in calls {
        if let OneSided::Signal { peer, put, stream } = call {
            signal(comm, open, *peer, put.as_ref(), *stream)?;
        }
    }
    for call in calls {
        if let OneSided::Wait { signals, stream } = call {
            wait(comm, open, signals, *stream)?;
        }
    }
    Ok(())
}

fn signal(comm: &Comm, open: &Open, peer: usize, put: Option<&Put>, stream: u64) -> Result<(), Failure> {
    let is_on_gpu = put.map_or_else(|| lock(&open.gpu).is_some(), |put| put.on_gpu);
    if is_on_gpu {
        let put = put.map(|put| [put.place.address + put.offset, put.from, put.bytes as u64]);
        // SAFETY: the program keeps both buffers until the stream has executed the copy, as it must with NCCL.
        return on_gpu(open, |gpu| Ok(unsafe { gpu.put_signal(stream, peer, put) }?));
    }
    gpu::finish(comm.device, stream)?;
    let header = |put: &Put| Header { window: put.place.number, offset: put.offset, bytes: put.bytes as u64 };
    open.signals.send(peer, put.map(|put| (header(put), put.from)), open.timeout)
}

fn wait(comm: &Comm, open: &Open, signals: &[(usize, u32)], stream: u64) -> Result<(), Failure> {
    if lock(&open.gpu).is_none() {
        gpu::uncaptured(comm.device, stream)?;
        return open.signals.wait(signals, || open.known_failure(), open.timeout);
    }
    on_gpu(open, |gpu| {
        // SAFETY: the program's stream.
        signals.iter().try_for_each(|(peer, count)| Ok(unsafe { gpu.wait_signals(stream, *peer, *count) }?))
    })
}

fn on_gpu(
    open: &Open,
    enqueue: impl FnOnce(&mut AddressedRank) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut gpu = lock(&open.gpu);
    enqueue(gpu.as_mut().ok_or_else(|| Failure::usage("the communicator is closed"))?)
}

/// Learns the windows of all ranks. All ranks call it, in the same order.
fn meet(window: &Window, comm: &Comm, open: &Open) -> Result<(), Failure> {
    if !window.on_gpu {
        // Others may write as soon as they have heard of it.
        open.signals.add(window.number as u64, window.address, window.bytes as u64);
    }
    let own = vec![window.number as u64, window.bytes as u64, u64::from(window.on_gpu)];
    let all = open.gathered(own)?;
    let place = |row: &Vec<u64>| Place { number: row[0], bytes: row[1], address: 0 };
    let places = all.iter().map(place).collect();
    let places = match all.iter().map(|row| row[2] as usize).sum() {
        0 => Ok(places),
        on_gpu if on_gpu < open.size => Err(format!(
            "{on_gpu} of {} ranks registered memory of a GPU, and the others host memory",
            open.size
        )),
        _ if open.spans_hosts => {
            Err("its ranks are on several hosts, where GPUs cannot write to each other's memory".to_owned())
        }
        _ => share(window, comm, open, places)?,
    };
    let _ = window.peers.set(places);
    Ok(())
}

/// Has the GPUs of all ranks map the memory of all.
fn share(
    window: &Window,
    comm: &Comm,
    open: &Open,
    mut places: Vec<Place>,
) -> Result<Result<Vec<Place>, String>, Failure> {
    let has_joined = lock(&open.gpu).is_some();
    if !has_joined {
        device::join(comm, open, window.address)?;
    }
    let shared = match &mut *lock(&open.gpu) {
        Some(gpu) => gpu.collectives_mut().communicator().share_buffer(window.address, window.bytes),
        None => return Err(Failure::usage("the communicator is closed")),
    };
    let is_shared = shared.is_ok();
    let (row, mut refused) = match shared {
        Ok(addresses) => (addresses, None),
        Err(error @ cuda::Error::Misuse { .. }) => (vec![0; open.size], Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    for (rank, row) in open.gathered(row)?.iter().enumerate() {
        places[rank].address = row[open.rank];
        if row[open.rank] == 0 {
            refused.get_or_insert_with(|| format!("other ranks cannot map the memory of rank {rank}"));
        }
    }
    if let (Some(_), true, Some(gpu)) = (&refused, is_shared, &mut *lock(&open.gpu)) {
        gpu.collectives_mut().communicator().unshare_buffer(window.address, window.bytes);
    }
    Ok(refused.map_or(Ok(places), Err))
}
