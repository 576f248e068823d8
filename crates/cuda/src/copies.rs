//! Rates of copies between a GPU and host memory and between two GPUs, with their data checked: `weft doctor --measure` compares them with
//! what the wiring should give.

// Enqueues copies between addresses of memory that it owns.
#![allow(unsafe_code)]

use crate::Error;
use crate::driver::{Context, DeviceBuffer, DeviceMemory, Event, PinnedMemory, Stream};

/// Timed copies of a measurement, after one that warms up.
const COPIES: u32 = 8;

/// What a target holds before a copy.
const POISON: u8 = 0xa5;

/// A measured copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copied {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The first byte of the target that differs from the source; nothing if the data arrived.
    pub wrong_at: Option<usize>,
}

/// Copies from pinned host memory to a GPU.
pub fn from_host(context: &Context, bytes: usize) -> Result<Copied, Error> {
    let stream = Stream::new(context)?;
    let (host, target) = (pattern(context, bytes)?, DeviceMemory::new(context, bytes)?);
    target.fill(&stream, 0, bytes, POISON)?;
    // SAFETY: both have these bytes, live until the stream is done, and nothing else uses them.
    let copy = || unsafe { stream.copy_from_host(target.address(), host.host().cast(), bytes) };
    let bytes_per_s = rate(context, &stream, bytes, copy)?;
    Ok(Copied { bytes_per_s, wrong_at: wrong_at(&stream, &target)? })
}

/// Copies from a GPU to pinned host memory.
pub fn to_host(context: &Context, bytes: usize) -> Result<Copied, Error> {
    let stream = Stream::new(context)?;
    let (source, host) = (DeviceMemory::new(context, bytes)?, PinnedMemory::new(context, bytes)?);
    source.write(&stream, 0, &(0..bytes).map(byte).collect::<Vec<_>>())?;
    // SAFETY: the driver allocated these bytes, and nothing else uses them yet.
    unsafe { host.host().write_bytes(POISON, bytes) };
    // SAFETY: both have these bytes, live until the stream is done, and nothing else uses them.
    let copy = || unsafe { stream.copy_to_host(host.host().cast(), source.address(), bytes) };
    let bytes_per_s = rate(context, &stream, bytes, copy)?;
    // SAFETY: the memory has these bytes, which were written above, and no copy runs any more.
    let there = unsafe { std::slice::from_raw_parts(host.host(), bytes) };
    Ok(Copied { bytes_per_s, wrong_at: first_wrong(there) })
}

/// Copies from one GPU to another: directly where the source may access the target, as the driver does it otherwise.
pub fn between(source: &Context, target: &Context, bytes: usize) -> Result<Copied, Error> {
    // Without this, the driver stages every copy in host memory.
    if source.device().link_to(target.device())?.is_some() {
        source.enable_peer_access(target)?;
    }
    let stream = Stream::new(source)?;
    let (from, into) = (DeviceMemory::new(source, bytes)?, DeviceMemory::new(target, bytes)?);
    from.write(&stream, 0, &(0..bytes).map(byte).collect::<Vec<_>>())?;
    let beside = Stream::new(target)?;
    into.fill(&beside, 0, bytes, POISON)?;
    beside.synchronize()?;
    // SAFETY: both have these bytes, live until the stream is done, and nothing else uses them.
    let copy = || unsafe { stream.copy(into.address(), from.address(), bytes) };
    let bytes_per_s = rate(source, &stream, bytes, copy)?;
    Ok(Copied { bytes_per_s, wrong_at: wrong_at(&beside, &into)? })
}

/// Bytes per second of copies one after the other. No copy runs any more when it returns, also with an error.
fn rate(
    context: &Context,
    stream: &Stream,
    bytes: usize,
    copy: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    let [start, end] = [Event::with_timing(context)?, Event::with_timing(context)?];
    let timed = || {
        copy()?;
        start.record(stream)?;
        (0..COPIES).try_for_each(|_| copy())?;
        end.record(stream)
    };
    let enqueued = timed();
    stream.synchronize().and(enqueued)?;
    let seconds = end.elapsed_since(&start)?.as_secs_f64();
    Ok(bytes as f64 * f64::from(COPIES) / seconds.max(1e-9))
}

/// Pinned host memory with the pattern.
fn pattern(context: &Context, bytes: usize) -> Result<PinnedMemory, Error> {
    let memory = PinnedMemory::new(context, bytes)?;
    for at in 0..bytes {
        // SAFETY: the driver allocated these bytes, and nothing else uses them yet.
        unsafe { memory.host().add(at).write(byte(at)) };
    }
    Ok(memory)
}

/// A byte of the pattern: no two pages hold the same.
fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn wrong_at(stream: &Stream, memory: &DeviceMemory) -> Result<Option<usize>, Error> {
    let mut there = vec![0; memory.bytes()];
    memory.read(stream, 0, &mut there)?;
    Ok(first_wrong(&there))
}

fn first_wrong(there: &[u8]) -> Option<usize> {
    there.iter().enumerate().position(|(at, found)| *found != byte(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found() {
        let mut there: Vec<u8> = (0..100_000).map(byte).collect();
        assert_eq!(first_wrong(&there), None);
        there[65_537] ^= 1;
        assert_eq!(first_wrong(&there), Some(65_537));
        assert!((0..64).any(|at| byte(at) != byte(at + 4096)), "pages differ");
        assert!((0..64).any(|at| byte(at) != POISON));
    }
}
