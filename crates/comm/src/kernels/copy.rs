//! Copying: one source to all targets, whatever the elements are.
//!
//! Cached, it is the system's `memcpy`, a few pages at a time where there is more than one target, so that the second finds
//! the source in the nearest cache. Streamed, a line goes to the targets in turn, and a single target is written in four
//! pages side by side (see `combine.rs` for what that gains).

use super::combine::{LINE_BYTES, PAGE_BYTES, PAGES, streams};
use super::set::{Loops, Set};

/// What is copied to one target before the next has its turn.
const PART_BYTES: usize = 8 << 10;

/// The loops for one set.
pub(super) struct Copies<S>(std::marker::PhantomData<S>);

impl<S: Set> Loops for Copies<S> {
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, streaming: bool) {
        let &[source] = sources else { return };
        // SAFETY: The caller's promise; what is touched from `at` on stays below `len`. What is streamed starts at a line's
        // start in all targets.
        unsafe {
            if !(streaming && S::STREAMS && streams(targets, sources)) {
                let part = if targets.len() == 1 { len } else { PART_BYTES };
                return parts(targets, source, 0, len, part);
            }
            let mut at = (targets[0].addr().wrapping_neg() % LINE_BYTES).min(len);
            parts(targets, source, 0, at, LINE_BYTES);
            while targets.len() == 1 && len - at >= PAGES * PAGE_BYTES {
                for within in (at..at + PAGE_BYTES).step_by(LINE_BYTES) {
                    for index in 0..PAGES {
                        let line = within + index * PAGE_BYTES;
                        S::stream(source.add(line), targets[0].add(line));
                    }
                }
                at += PAGES * PAGE_BYTES;
            }
            while len - at >= LINE_BYTES {
                for target in targets {
                    S::stream(source.add(at), target.add(at));
                }
                at += LINE_BYTES;
            }
            S::fence();
            parts(targets, source, at, len, LINE_BYTES);
        }
    }
}

/// The bytes from `at` to `end`, through the caches, `part` at a time.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn parts(targets: &[*mut u8], source: *const u8, mut at: usize, end: usize, part: usize) {
    while at < end {
        let count = part.min(end - at);
        for target in targets {
            if !std::ptr::eq(*target, source) {
                // SAFETY: The caller's promise: the two do not overlap, being different.
                unsafe { std::ptr::copy_nonoverlapping(source.add(at), target.add(at), count) }
            }
        }
        at += count;
    }
}
