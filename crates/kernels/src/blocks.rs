//! The loops for any type and operation: written for one element, compiled for registers.
//!
//! A kilobyte of results at a time comes to lie in a buffer of our own: the compiler knows that no array overlaps it, and
//! makes of every loop what it would make of it by hand, for each type. The buffer stays in the first-level cache. From a
//! second-level cache on, sums of f32 are as fast as those that never leave the registers (`combine.rs`); nearer, those are
//! faster. A target may be a source: what is read of a block is read before any of it is written.

use std::mem::MaybeUninit;

use super::Access;
use super::convert::Lane;
use super::instructions::{Instructions, Loops, typed};
use super::lines::{LINE_BYTES, PAGE_BYTES, PARTS, streams, take_ahead};
use super::operations::{Map, Operation};

/// How much is computed at a time. Half of it costs up to a third in the first-level cache.
const BLOCK_BYTES: usize = 1024;

/// The loops for one set, type and operation.
pub(super) struct Blocks<S, T, O>(std::marker::PhantomData<(S, T, O)>);

impl<S: Instructions, T: Lane, O: Operation<T::Wide>> Loops for Blocks<S, T, O> {
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        let (size, block) = (size_of::<T>(), BLOCK_BYTES / size_of::<T>());
        let (targets, sources) = typed::<T>(targets, sources);
        let can_stream = S::STREAMS && streams(&targets[..access.streamed], sources);
        let streamed = if can_stream { access.streamed } else { 0 };
        let mut results = Buffer::<[MaybeUninit<u8>; PARTS * BLOCK_BYTES]>(MaybeUninit::uninit());
        let results = results.0.as_mut_ptr().cast::<T>();
        // The first block is short, so that the others start with a line of the first target.
        let misaligned = if len > block || streamed > 0 { targets[0].addr() % LINE_BYTES / size } else { 0 };
        let page = PAGE_BYTES / size;
        let side_by_side = (streamed > 0 || access.from_peers) && targets.len() == 1 && sources.len() == 2;
        let mut at = 0;
        while at < len {
            let is_short = at == 0 && misaligned > 0;
            let pages = if side_by_side && !is_short && len - at >= PARTS * page { PARTS } else { 1 };
            let end = if pages == PARTS { at + page } else { at + 1 };
            for start in (at..end).step_by(block) {
                let count = (block - if is_short { misaligned } else { 0 }).min(len - start);
                // SAFETY: The caller's promise; what is touched stays below `len`, and within the buffer. What is streamed
                // starts at a line's start in all targets, because the first block ends at one.
                unsafe {
                    let (past, through) = targets.split_at(if count == block { streamed } else { 0 });
                    for index in 0..pages {
                        let (results, start) = (results.add(index * block), start + index * page);
                        combined::<T, O>(results, sources, start, count);
                        if access.to_peers {
                            take_ahead(through, BLOCK_BYTES / LINE_BYTES, start, len);
                        }
                        store(results, through, start, count);
                    }
                    stream::<S, T>(results, past, start, pages);
                }
                at = start + count;
            }
            at += (pages - 1) * page;
        }
        if streamed > 0 {
            S::fence();
        }
    }
}

/// A line's start, uninitialised.
#[repr(align(64))]
struct Buffer<T>(MaybeUninit<T>);

/// Combines `count` elements of all sources from `at` on into `results`.
///
/// # Safety
/// They can be read, and so many results written, at most a block; no source overlaps `results`.
#[inline(always)]
unsafe fn combined<T: Lane, O: Operation<T::Wide>>(
    results: *mut T,
    sources: &[*const T],
    at: usize,
    count: usize,
) {
    let mut buffer = Buffer::<[MaybeUninit<u32>; BLOCK_BYTES]>(MaybeUninit::uninit());
    // What is narrower than f32 has at most as many elements in a block as the buffer has words.
    let wide: *mut T::Wide = if T::SAME { results.cast() } else { buffer.0.as_mut_ptr().cast() };
    let [first, second, rest @ ..] = sources else { return };
    // SAFETY: The caller's promise; reads take any alignment.
    unsafe {
        let (first, second) = (first.add(at), second.add(at));
        for index in 0..count {
            let left = first.add(index).read_unaligned().widen();
            let right = second.add(index).read_unaligned().widen();
            wide.add(index).write(O::apply(left, right));
        }
        for source in rest {
            let source = source.add(at);
            for index in 0..count {
                let right = source.add(index).read_unaligned().widen();
                wide.add(index).write(O::apply(wide.add(index).read(), right));
            }
        }
        if !T::SAME {
            for index in 0..count {
                results.add(index).write(T::narrow(wide.add(index).read()));
            }
        }
    }
}

/// Copies `count` results to all targets, from `at` on.
///
/// # Safety
/// So many can be read there and written here.
#[inline(always)]
unsafe fn store<T>(results: *const T, targets: &[*mut T], at: usize, count: usize) {
    for target in targets {
        // SAFETY: The caller's promise. As bytes they need no alignment.
        unsafe {
            let to = target.add(at).cast::<u8>();
            std::ptr::copy_nonoverlapping(results.cast::<u8>(), to, count * size_of::<T>());
        }
    }
}

/// Copies blocks of results, one in each of so many pages, to all targets and past the caches, line by line.
///
/// # Safety
/// So many can be read there and written here, at a line's start.
#[inline(always)]
unsafe fn stream<S: Instructions, T>(results: *const T, targets: &[*mut T], start: usize, pages: usize) {
    let (block, page) = (BLOCK_BYTES / size_of::<T>(), PAGE_BYTES / size_of::<T>());
    for line in (0..block).step_by(LINE_BYTES / size_of::<T>()) {
        for index in 0..pages {
            for target in targets {
                // SAFETY: The caller's promise.
                unsafe {
                    let to = target.add(start + index * page + line);
                    S::stream(results.add(index * block + line).cast(), to.cast());
                }
            }
        }
    }
}

/// Does something to each element of `source`; `target` may be the same array.
///
/// # Safety
/// `len` elements can be read and written; the arrays are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn map<T: Lane, M: Map<T>>(target: *mut u8, source: *const u8, len: usize, by: M::By) {
    let block = BLOCK_BYTES / size_of::<T>();
    let (target, source) = (target.cast::<T>(), source.cast::<T>());
    let mut results = Buffer::<[MaybeUninit<u8>; BLOCK_BYTES]>(MaybeUninit::uninit());
    let results = results.0.as_mut_ptr().cast::<T>();
    for at in (0..len).step_by(block) {
        let count = block.min(len - at);
        // SAFETY: The caller's promise; what is touched from `at` on stays below `len`.
        unsafe {
            let source = source.add(at);
            for index in 0..count {
                let value = source.add(index).read_unaligned().widen();
                results.add(index).write(T::narrow(M::apply(value, by)));
            }
            if M::IS_RARE && std::ptr::eq(target, source.sub(at)) && are_same(results, source, count) {
                continue;
            }
            store(results, &[target], at, count);
        }
    }
}

/// Whether so many elements are the same bytes.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn are_same<T>(one: *const T, other: *const T, count: usize) -> bool {
    let bytes = count * size_of::<T>();
    // SAFETY: The caller's promise; every element is plain bytes without gaps.
    unsafe {
        let bytes = |of: *const T| std::slice::from_raw_parts(of.cast::<u8>(), bytes);
        bytes(one) == bytes(other)
    }
}

/// A few elements, one by one: what is about to be read was just written in words, or will be read in words at once, and
/// neither waits for the other as it would with registers.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
pub(super) unsafe fn few<T: Lane, O: Operation<T::Wide>>(
    targets: &[*mut u8],
    sources: &[*const u8],
    len: usize,
) {
    // SAFETY: The caller's promise.
    let value =
        |source: &*const u8, at: usize| unsafe { source.cast::<T>().add(at).read_unaligned().widen() };
    match (targets, sources) {
        // The usual case, of which there are no lists to walk.
        ([target], [first, second]) => {
            for at in 0..len {
                let result = T::narrow(O::apply(value(first, at), value(second, at)));
                // SAFETY: The caller's promise.
                unsafe { target.cast::<T>().add(at).write_unaligned(result) };
            }
        }
        (targets, [first, rest @ ..]) => {
            for at in 0..len {
                let values = rest.iter().map(|source| value(source, at));
                let result = T::narrow(values.fold(value(first, at), O::apply));
                for target in targets {
                    // SAFETY: The caller's promise.
                    unsafe { target.cast::<T>().add(at).write_unaligned(result) };
                }
            }
        }
        (_, []) => {}
    }
}
