//! The loops for any type and operation: written for one element, vectorised by the compiler.
//!
//! A loop computes a kilobyte of results into a local buffer. The compiler knows that no array overlaps the buffer, so it vectorises
//! the loop for every type, and the buffer stays in the L1 cache. For data in L2 or beyond, sums of f32 are as fast as those that
//! stay in registers (`combine.rs`); for data in L1 the latter are faster. A target may be a source: a block is read before
//! any of it is written.

use std::mem::MaybeUninit;

use super::Access;
use super::convert::Widen;
use super::instructions::{Instructions, Loops, cast};
use super::lines::{LINE_BYTES, PAGE_BYTES, PARTS, can_stream, prefetch_ahead};
use super::operations::{Map, Operation};

/// Bytes computed at a time. Half as many cost up to a third of the speed in the L1 cache.
const BLOCK_BYTES: usize = 1024;

/// The loops for one set, type and operation.
pub(super) struct Blocks<S, T, O>(std::marker::PhantomData<(S, T, O)>);

impl<S: Instructions, T: Widen, O: Operation<T::Wide>> Loops for Blocks<S, T, O> {
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        let (size, block) = (size_of::<T>(), BLOCK_BYTES / size_of::<T>());
        let (targets, sources) = cast::<T>(targets, sources);
        let streams = S::STREAMS && can_stream(&targets[..access.streamed], sources);
        let streamed = if streams { access.streamed } else { 0 };
        let mut results = Buffer::<[MaybeUninit<u8>; PARTS * BLOCK_BYTES]>(MaybeUninit::uninit());
        let results = results.0.as_mut_ptr().cast::<T>();
        // The first block is short, so that the others start at a line of the first target.
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
                // SAFETY: The caller's promise; all accesses are below `len`, and within the buffer. Streamed blocks start at a line in
                // all targets, because the first block ends at one.
                unsafe {
                    let (streamed_to, cached_to) =
                        targets.split_at(if count == block { streamed } else { 0 });
                    for index in 0..pages {
                        let (results, start) = (results.add(index * block), start + index * page);
                        combine_block::<T, O>(results, sources, start, count);
                        if access.to_peers {
                            prefetch_ahead(cached_to, BLOCK_BYTES / LINE_BYTES, start, len);
                        }
                        store(results, cached_to, start, count);
                    }
                    stream::<S, T>(results, streamed_to, start, pages);
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

/// An uninitialised buffer, aligned to a line.
#[repr(align(64))]
struct Buffer<T>(MaybeUninit<T>);

/// Combines `count` elements of all sources from `at` on into `results`.
///
/// # Safety
/// `results` is valid for writes and each source for reads of these elements, at most a block; no source overlaps `results`.
#[inline(always)]
unsafe fn combine_block<T: Widen, O: Operation<T::Wide>>(
    results: *mut T,
    sources: &[*const T],
    at: usize,
    count: usize,
) {
    let mut buffer = Buffer::<[MaybeUninit<u32>; BLOCK_BYTES]>(MaybeUninit::uninit());
    // The buffer has a word for each element of a block, even for elements of one byte.
    let wide: *mut T::Wide = if T::IS_WIDE { results.cast() } else { buffer.0.as_mut_ptr().cast() };
    let [first, second, rest @ ..] = sources else { return };
    // SAFETY: The caller's promise; the reads allow any alignment.
    unsafe {
        let (first, second) = (first.add(at), second.add(at));
        for index in 0..count {
            let left = first.add(index).read_unaligned().widen();
            let right = second.add(index).read_unaligned().widen();
            wide.add(index).write(settled::<T>(O::apply(left, right)));
        }
        for source in rest {
            let source = source.add(at);
            for index in 0..count {
                let right = source.add(index).read_unaligned().widen();
                wide.add(index).write(settled::<T>(O::apply(wide.add(index).read(), right)));
            }
        }
        if !T::IS_WIDE {
            for index in 0..count {
                results.add(index).write(T::narrow(wide.add(index).read()));
            }
        }
    }
}

/// A result of an operation. That of a wide type is narrowed at once, which only makes NaNs canonical.
#[inline(always)]
fn settled<T: Widen>(value: T::Wide) -> T::Wide {
    if T::IS_WIDE { T::narrow(value).widen() } else { value }
}

/// Copies `count` results to all targets, from `at` on.
///
/// # Safety
/// `results` is valid for reads and the targets for writes of these elements.
#[inline(always)]
unsafe fn store<T>(results: *const T, targets: &[*mut T], at: usize, count: usize) {
    for target in targets {
        // SAFETY: The caller's promise. A copy of bytes needs no alignment.
        unsafe {
            let to = target.add(at).cast::<u8>();
            std::ptr::copy_nonoverlapping(results.cast::<u8>(), to, count * size_of::<T>());
        }
    }
}

/// Copies a block of results to each of `pages` consecutive pages of all targets, line by line with streaming stores.
///
/// # Safety
/// `results` is valid for reads and the targets for writes of these blocks; the targets are aligned to lines there.
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

/// Applies a map to each element of `source`; `target` may be the same array.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `len` elements; the arrays are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn map<T: Widen, M: Map<T>>(target: *mut u8, source: *const u8, len: usize, by: M::By) {
    let block = BLOCK_BYTES / size_of::<T>();
    let (target, source) = (target.cast::<T>(), source.cast::<T>());
    let mut results = Buffer::<[MaybeUninit<u8>; BLOCK_BYTES]>(MaybeUninit::uninit());
    let results = results.0.as_mut_ptr().cast::<T>();
    for at in (0..len).step_by(block) {
        let count = block.min(len - at);
        // SAFETY: The caller's promise; all accesses are below `len`.
        unsafe {
            let source = source.add(at);
            for index in 0..count {
                let value = source.add(index).read_unaligned().widen();
                results.add(index).write(T::narrow(M::apply(value, by)));
            }
            store(results, &[target], at, count);
        }
    }
}

/// Combines a few elements one by one. Such short data was just written in words, or is about to be read in words: wider accesses would
/// stall on store forwarding.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
pub(super) unsafe fn scalar<T: Widen, O: Operation<T::Wide>>(
    targets: &[*mut u8],
    sources: &[*const u8],
    len: usize,
) {
    // SAFETY: The caller's promise.
    let value =
        |source: &*const u8, at: usize| unsafe { source.cast::<T>().add(at).read_unaligned().widen() };
    match (targets, sources) {
        // The usual case, without loops over targets and sources.
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
                let result = if rest.is_empty() {
                    // SAFETY: The caller's promise.
                    unsafe { first.cast::<T>().add(at).read_unaligned() }
                } else {
                    T::narrow(values.fold(value(first, at), O::apply))
                };
                for target in targets {
                    // SAFETY: The caller's promise.
                    unsafe { target.cast::<T>().add(at).write_unaligned(result) };
                }
            }
        }
        (_, []) => {}
    }
}
