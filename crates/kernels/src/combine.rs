//! The loops for sums in vector registers: f32, f64, and f16 and bf16, which are widened as they are loaded.
//!
//! A loop loads a block of registers from the first source, adds the others, and stores the block to every target before it goes
//! on; so a target may be a source. A remainder shorter than a block goes register by register, and one shorter than a register with a
//! mask: no element is computed twice, which would be wrong in place.
//!
//! Measurements on Sapphire Rapids that decide the shape of the loops (`benches/kernels.rs`):
//!
//! - Ordinary stores: blocks of two lines are as fast as any size out of place; in place they beat single lines by a fifth in the
//!   L2 cache. The general loop uses larger blocks, since it loops over lists of pointers for each.
//! - Streaming stores: blocks cost up to a third, so single lines go to the targets in turn. With two sources and up to two
//!   targets, writing four pages in turn gains up to a quarter.
//! - Streaming to targets that are all sources takes up to two thirds longer than ordinary stores, so such calls do not stream.
//!   Where only some targets are sources, neither is reliably better.
//! - Data that another core has just written: with one target, reading four parts in turn takes 4 ns per line instead of 5.2, from
//!   64 KiB on (`benches/lines.rs`). With two targets it gained nothing, and writing data that another core has just read was slower
//!   that way.
//! - Data that another core has just read: prefetching its lines for writing a kilobyte ahead takes 10 ns per line instead of 12 in
//!   messages of 4 KiB, 5 instead of 6 in those of 256 KiB (`benches/lines.rs`). Prefetching for reading gained nothing.
//! - Migratory data, which the reader writes next, is prefetched for writing when it is read: an all-reduce of 256 MiB on two cores
//!   went from 65 ms to 44, and to 36 in four parts in turn, also with two targets.
//!
//! - NaNs: one comparison tests two registers for NaN, and one branch a block, so that blocks without NaN cost no more than before.
//!
//! The shapes that plans use have loops of their own, which keep the pointers in registers; they differ from the general loop only in
//! their types.

use super::Access;
use super::blocks::scalar;
use super::convert::Widen;
use super::instructions::{Loops, cast};
use super::lines::{
    LINE_BYTES, PAGE_BYTES, PARTS, can_stream, part_of, prefetch_ahead, prefetch_ahead_in_part,
};
use super::operations::{Operation, Sum};
use super::vector::Vector;

/// From this size on, the loop aligns the first target: an unaligned store of a whole line touches two lines. Where all arrays are
/// misaligned alike this saves up to two fifths; otherwise the loads lose about what the stores gain.
const ALIGN_BYTES_MIN: usize = 1024;

/// Up to this size, elements are added one by one.
pub(super) const SCALAR_BYTES_MAX: usize = 16;

/// Sums in registers. A line has `LINE` registers; the loops for certain shapes process `BLOCK` at a time, the general loop `LARGE`.
pub(super) struct Sums<V, const LINE: usize, const BLOCK: usize, const LARGE: usize>(
    std::marker::PhantomData<V>,
);

impl<V: Vector, const LINE: usize, const BLOCK: usize, const LARGE: usize> Loops
    for Sums<V, LINE, BLOCK, LARGE>
where
    V::Element: Widen,
    Sum: Operation<<V::Element as Widen>::Wide>,
{
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        const { assert!(LINE * V::LANES * size_of::<V::Element>() == LINE_BYTES) };
        if len * size_of::<V::Element>() <= SCALAR_BYTES_MAX {
            // SAFETY: The caller's promise.
            return unsafe { scalar::<V::Element, Sum>(targets, sources, len) };
        }
        let (targets, sources) = cast::<V::Element>(targets, sources);
        let streams = V::STREAMS && can_stream(&targets[..access.streamed], sources);
        let access = Access { streamed: if streams { access.streamed } else { 0 }, ..access };
        // SAFETY: The caller's promise.
        unsafe {
            match (sources, targets) {
                (&[a, b], &[target]) => all::<V, LINE, BLOCK>([target], [a, b], len, access),
                (&[a, b], &[one, other]) => all::<V, LINE, BLOCK>([one, other], [a, b], len, access),
                _ => all::<V, LINE, LARGE>(targets, sources, len, access),
            }
        }
    }
}

/// # Safety
/// As for [`super::Kernel::combine`]; and streamed targets have the same alignment.
#[inline(always)]
unsafe fn all<V: Vector, const LINE: usize, const BLOCK: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    len: usize,
    access: Access,
) {
    let aligning = access.streamed > 0 || len * size_of::<V::Element>() >= ALIGN_BYTES_MIN;
    let head = match targets.as_ref() {
        [first, ..] if aligning => elements_to_line(*first).min(len),
        _ => 0,
    };
    // SAFETY: The caller's promise. Streaming starts after the head, at a line.
    unsafe {
        if head > 0 {
            cached::<V, 1>(targets, sources, 0, head, false);
        }
        if access.streamed > 0 {
            streaming::<V, LINE>(targets, sources, head, len, access);
        } else if access.from_peers
            && (targets.as_ref().len() == 1 || access.migratory && sources.as_ref().len() == 2)
        {
            let done = side_by_side::<V, BLOCK>(targets, sources, head, len, access.migratory);
            cached::<V, BLOCK>(targets, sources, done, len, access.migratory);
        } else {
            cached::<V, BLOCK>(targets, sources, head, len, access.to_peers);
        }
    }
}

/// Elements before the next line starts, or 0 if that is not a whole number of elements.
fn elements_to_line<E>(pointer: *mut E) -> usize {
    let bytes = pointer.addr().wrapping_neg() % LINE_BYTES;
    if bytes.is_multiple_of(size_of::<E>()) { bytes / size_of::<E>() } else { 0 }
}

/// Combines most of the elements from `at` to `end` with ordinary stores, in [`PARTS`] parts in turn; `ahead` prefetches the targets.
/// Returns the start of the remainder.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn side_by_side<V: Vector, const BLOCK: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    at: usize,
    end: usize,
    ahead: bool,
) -> usize {
    let (step, line) = (BLOCK * V::LANES, LINE_BYTES / size_of::<V::Element>());
    let part = part_of::<V::Element>(end - at) / step * step;
    for within in (at..at + part).step_by(step) {
        for index in 0..PARTS {
            if ahead {
                let end = at + (index + 1) * part;
                prefetch_ahead_in_part(targets.as_ref(), step / line, within + index * part, end);
            }
            // SAFETY: The caller's promise; all parts together end before `end`.
            unsafe { block::<V, BLOCK>(targets, sources, within + index * part, 0) };
        }
    }
    at + PARTS * part
}

/// Combines the elements from `at` to `end` with ordinary stores; `ahead` prefetches the targets.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn cached<V: Vector, const BLOCK: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    mut at: usize,
    end: usize,
    ahead: bool,
) {
    let (step, line) = (BLOCK * V::LANES, LINE_BYTES / size_of::<V::Element>());
    // SAFETY: The caller's promise; all accesses are below `end`.
    unsafe {
        while end - at >= step {
            if ahead {
                prefetch_ahead(targets.as_ref(), step / line, at, end);
            }
            block::<V, BLOCK>(targets, sources, at, 0);
            at += step;
        }
        while BLOCK > 1 && end - at >= V::LANES {
            block::<V, 1>(targets, sources, at, 0);
            at += V::LANES;
        }
        if let ([first, rest @ ..], true) = (sources.as_ref(), at < end) {
            let mut value = V::load_part(first.add(at), end - at);
            for source in rest {
                value = value.add(V::load_part(source.add(at), end - at));
            }
            let mut values = [value];
            V::canonical(&mut values);
            for target in targets.as_ref() {
                values[0].store_part(target.add(at), end - at);
            }
        }
    }
}

/// Combines the elements from `at` to `end`, with streaming stores for `access.streamed` targets; the last part of a line is cached.
///
/// # Safety
/// As for [`super::Kernel::combine`]; and the streamed targets are aligned to a line at `at`.
#[inline(always)]
unsafe fn streaming<V: Vector, const LINE: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    mut at: usize,
    end: usize,
    access: Access,
) {
    let streamed = access.streamed;
    let (line, page) = (LINE * V::LANES, PAGE_BYTES / size_of::<V::Element>());
    let side_by_side = targets.as_ref().len() <= 2 && sources.as_ref().len() == 2;
    let others = if access.to_peers { &targets.as_ref()[streamed..] } else { &[] };
    // SAFETY: The caller's promise; all accesses are below `end`, and `at` advances by whole lines.
    unsafe {
        while side_by_side && end - at >= PARTS * page {
            for within in (at..at + page).step_by(line) {
                for index in 0..PARTS {
                    let here = within + index * page;
                    prefetch_ahead(others, 1, here, end);
                    block::<V, LINE>(targets, sources, here, streamed);
                }
            }
            at += PARTS * page;
        }
        while end - at >= line {
            prefetch_ahead(others, 1, at, end);
            block::<V, LINE>(targets, sources, at, streamed);
            at += line;
        }
        V::fence();
        cached::<V, 1>(targets, sources, at, end, false);
    }
}

/// Combines `N` registers of elements, from `at` on.
///
/// # Safety
/// As for [`super::Kernel::combine`], for these elements; and the streamed targets are aligned to a line at `at`.
#[inline(always)]
unsafe fn block<V: Vector, const N: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    at: usize,
    streamed: usize,
) {
    let [first, rest @ ..] = sources.as_ref() else { return };
    // SAFETY: The caller's promise. Registers divide lines, so each streaming store is aligned to its size.
    unsafe {
        // Not `array::from_fn`: its closure would be compiled without the instruction set.
        let mut values = [V::load(first.add(at)); N];
        for (index, value) in values.iter_mut().enumerate().skip(1) {
            *value = V::load(first.add(at + index * V::LANES));
        }
        for source in rest {
            for (index, value) in values.iter_mut().enumerate() {
                *value = value.add(V::load(source.add(at + index * V::LANES)));
            }
        }
        V::canonical(&mut values);
        for (number, target) in targets.as_ref().iter().enumerate() {
            for (index, value) in values.iter().enumerate() {
                let to = target.add(at + index * V::LANES);
                if number < streamed { value.stream(to) } else { value.store(to) }
            }
        }
    }
}
