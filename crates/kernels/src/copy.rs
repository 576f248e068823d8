//! Copies of one source to all targets, independent of the element type.
//!
//! Short copies use `memcpy`. Longer ones go line by line to the targets in turn. A single target is written in four pages in turn if it
//! is streamed, and in four parts in turn if the source comes from a peer or the data is migratory; lines that a peer has read are
//! prefetched (`combine.rs` has the measurements).

use super::Access;
use super::instructions::{Instructions, Loops};
use super::lines::{
    LINE_BYTES, PAGE_BYTES, PARTS, can_stream, part_of, prefetch_ahead, prefetch_ahead_in_part,
};

/// Up to this size `memcpy` is as fast.
const MEMCPY_BYTES_MAX: usize = 512;

/// The loops for one set.
pub(super) struct Copies<S>(std::marker::PhantomData<S>);

impl<S: Instructions> Loops for Copies<S> {
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        let &[source] = sources else { return };
        let streamed = S::STREAMS && can_stream(&targets[..access.streamed], sources);
        // SAFETY: The caller's promise.
        unsafe {
            match (streamed, targets) {
                (false, _) if len <= MEMCPY_BYTES_MAX => rest(targets, source, 0, len),
                (false, &[target]) => all::<S>([], [target], source, len, access),
                (true, &[target]) => all::<S>([target], [], source, len, access),
                (false, _) => all::<S>([], targets, source, len, access),
                (true, _) => {
                    let (streamed, cached) = targets.split_at(access.streamed);
                    all::<S>(streamed, cached, source, len, access);
                }
            }
        }
    }
}

/// Copies to targets with streaming stores (`streamed`) and with ordinary ones (`cached`).
///
/// # Safety
/// As for [`super::Kernel::combine`]; the streamed targets have the same alignment.
#[inline(always)]
unsafe fn all<S: Instructions>(
    streamed: impl AsRef<[*mut u8]> + Copy,
    cached: impl AsRef<[*mut u8]> + Copy,
    source: *const u8,
    len: usize,
    access: Access,
) {
    let (first, streaming) =
        (streamed.as_ref().iter().chain(cached.as_ref()).next(), !streamed.as_ref().is_empty());
    let Some(first) = first else { return };
    let mut at = (first.addr().wrapping_neg() % LINE_BYTES).min(len);
    let migratory = [source.cast_mut()];
    let migratory = if access.migratory && access.from_peers { &migratory[..] } else { &[] };
    let ahead = if access.to_peers { cached.as_ref() } else { &[] };
    // Streamed parts are pages; data from a peer is read faster in few, long parts.
    let part = if streaming { PAGE_BYTES } else { part_of::<u8>(len - at) };
    let is_one = streamed.as_ref().len() + cached.as_ref().len() == 1;
    let side_by_side = is_one && part > 0 && (streaming || access.from_peers || access.migratory);
    // SAFETY: The caller's promise; all accesses are below `len`. Streamed lines are aligned.
    unsafe {
        rest(streamed, source, 0, at);
        rest(cached, source, 0, at);
        while side_by_side && len - at >= PARTS * part {
            for within in (at..at + part).step_by(LINE_BYTES) {
                for index in 0..PARTS {
                    prefetch_ahead_in_part(migratory, 1, within + index * part, at + (index + 1) * part);
                    line::<S>(streamed, cached, source, within + index * part);
                }
            }
            at += PARTS * part;
        }
        while !migratory.is_empty() && len - at >= LINE_BYTES {
            prefetch_ahead(migratory, 1, at, len);
            line::<S>(streamed, cached, source, at);
            at += LINE_BYTES;
        }
        while len - at >= LINE_BYTES {
            prefetch_ahead(ahead, 1, at, len);
            line::<S>(streamed, cached, source, at);
            at += LINE_BYTES;
        }
        if streaming {
            S::fence();
        }
        rest(streamed, source, at, len);
        rest(cached, source, at, len);
    }
}

/// Copies a line to all targets but the source itself: streaming it to the source would evict it before the next target reads it.
///
/// # Safety
/// The source is valid for reads and the targets for writes of a line; the streamed targets are aligned to a line there.
#[inline(always)]
unsafe fn line<S: Instructions>(
    streamed: impl AsRef<[*mut u8]>,
    cached: impl AsRef<[*mut u8]>,
    source: *const u8,
    at: usize,
) {
    type Line = [u8; LINE_BYTES];
    // SAFETY: The caller's promise; each line is read before it is written.
    unsafe {
        for target in streamed.as_ref().iter().filter(|target| !std::ptr::eq(**target, source)) {
            S::stream(source.add(at), target.add(at));
        }
        for target in cached.as_ref().iter().filter(|target| !std::ptr::eq(**target, source)) {
            let line = source.add(at).cast::<Line>().read_unaligned();
            target.add(at).cast::<Line>().write_unaligned(line);
        }
    }
}

/// Copies the bytes from `at` to `end` with ordinary stores.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn rest(targets: impl AsRef<[*mut u8]>, source: *const u8, at: usize, end: usize) {
    for target in targets.as_ref() {
        if !std::ptr::eq(*target, source) {
            // SAFETY: The caller's promise: target and source differ, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source.add(at), target.add(at), end - at) }
        }
    }
}
