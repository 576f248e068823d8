//! Copying: one source to all targets, whatever the elements are.
//!
//! A few bytes are left to the system's `memcpy`. More go line by line to the targets in turn: to a single target in four
//! pages side by side if it is written past the caches, in four parts if it comes from a peer or goes to and fro, and to peers'
//! lines that are taken ahead (see `combine.rs` for what all that gains).

use super::Access;
use super::instructions::{Instructions, Loops};
use super::lines::{LINE_BYTES, PAGE_BYTES, PARTS, part_of, streams, take_ahead, take_ahead_in_part};

/// Up to so many bytes `memcpy` is as fast.
const FEW_BYTES: usize = 512;

/// The loops for one set.
pub(super) struct Copies<S>(std::marker::PhantomData<S>);

impl<S: Instructions> Loops for Copies<S> {
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        let &[source] = sources else { return };
        let streamed = S::STREAMS && streams(&targets[..access.streamed], sources);
        // SAFETY: The caller's promise.
        unsafe {
            match (streamed, targets) {
                (false, _) if len <= FEW_BYTES => rest(targets, source, 0, len),
                (false, &[target]) => all::<S>([], [target], source, len, access),
                (true, &[target]) => all::<S>([target], [], source, len, access),
                (false, _) => all::<S>([], targets, source, len, access),
                (true, _) => {
                    let (past, through) = targets.split_at(access.streamed);
                    all::<S>(past, through, source, len, access);
                }
            }
        }
    }
}

/// Copies to targets past the caches and through them.
///
/// # Safety
/// As for [`super::Kernel::combine`]; targets past the caches are aligned alike.
#[inline(always)]
unsafe fn all<S: Instructions>(
    past: impl AsRef<[*mut u8]> + Copy,
    through: impl AsRef<[*mut u8]> + Copy,
    source: *const u8,
    len: usize,
    access: Access,
) {
    let (first, streaming) = (past.as_ref().iter().chain(through.as_ref()).next(), !past.as_ref().is_empty());
    let Some(first) = first else { return };
    let mut at = (first.addr().wrapping_neg() % LINE_BYTES).min(len);
    let returned = [source.cast_mut()];
    let returned = if access.returned && access.from_peers { &returned[..] } else { &[] };
    let ahead = if access.to_peers { through.as_ref() } else { &[] };
    // Written past the caches, parts are pages; what comes from a peer is better read in few and long ones.
    let part = if streaming { PAGE_BYTES } else { part_of::<u8>(len - at) };
    let is_one = past.as_ref().len() + through.as_ref().len() == 1;
    let side_by_side = is_one && part > 0 && (streaming || access.from_peers || access.returned);
    // SAFETY: The caller's promise; what is touched from `at` on stays below `len`. What is streamed starts at a line's start.
    unsafe {
        rest(past, source, 0, at);
        rest(through, source, 0, at);
        while side_by_side && len - at >= PARTS * part {
            for within in (at..at + part).step_by(LINE_BYTES) {
                for index in 0..PARTS {
                    take_ahead_in_part(returned, 1, within + index * part, at + (index + 1) * part);
                    line::<S>(past, through, source, within + index * part);
                }
            }
            at += PARTS * part;
        }
        while !returned.is_empty() && len - at >= LINE_BYTES {
            take_ahead(returned, 1, at, len);
            line::<S>(past, through, source, at);
            at += LINE_BYTES;
        }
        while len - at >= LINE_BYTES {
            take_ahead(ahead, 1, at, len);
            line::<S>(past, through, source, at);
            at += LINE_BYTES;
        }
        if streaming {
            S::fence();
        }
        rest(past, source, at, len);
        rest(through, source, at, len);
    }
}

/// Copies a line, past the caches and through them; not to where it is, which past the caches would make it come from memory
/// for the next target.
///
/// # Safety
/// It can be read there and written here, at a line's start where it goes past the caches.
#[inline(always)]
unsafe fn line<S: Instructions>(
    past: impl AsRef<[*mut u8]>,
    through: impl AsRef<[*mut u8]>,
    source: *const u8,
    at: usize,
) {
    type Line = [u8; LINE_BYTES];
    // SAFETY: The caller's promise; what is read is read before it is written.
    unsafe {
        for target in past.as_ref().iter().filter(|target| !std::ptr::eq(**target, source)) {
            S::stream(source.add(at), target.add(at));
        }
        for target in through.as_ref().iter().filter(|target| !std::ptr::eq(**target, source)) {
            let line = source.add(at).cast::<Line>().read_unaligned();
            target.add(at).cast::<Line>().write_unaligned(line);
        }
    }
}

/// The bytes from `at` to `end`, through the caches.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn rest(targets: impl AsRef<[*mut u8]>, source: *const u8, at: usize, end: usize) {
    for target in targets.as_ref() {
        if !std::ptr::eq(*target, source) {
            // SAFETY: The caller's promise: the two do not overlap, being different.
            unsafe { std::ptr::copy_nonoverlapping(source.add(at), target.add(at), end - at) }
        }
    }
}
