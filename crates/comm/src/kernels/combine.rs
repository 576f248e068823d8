//! The loops for sums that have registers of their own: f32, f64, and f16 and bf16, which are widened as they are loaded.
//!
//! A block of registers is loaded from the first source, added to the others, and stored to every target, before
//! the next is touched; so a target may be a source. What does not fill a block goes register by register, what does
//! not fill a register by a masked one: nothing is ever computed twice, which in place would be wrong.
//!
//! What was measured, on Sapphire Rapids, and decides the shape of the loops (`benches/kernels.rs`):
//!
//! - Cached, blocks of two lines are as fast as any where results go elsewhere; where they go in place as well, they
//!   beat single lines by a fifth in the second-level cache. The general loop takes larger blocks, to pay less often
//!   for walking its lists.
//! - Streamed, blocks cost up to a third: whole lines go to the targets in turn. One target of one or two sources is
//!   written in four pages at a time, which gains up to a quarter; with more arrays that gains nothing or costs.
//! - Streamed to where all of it was just read, results take up to two thirds longer than cached: such calls are
//!   cached. Where only some targets are sources, neither is reliably better.
//! - Prefetching by instruction gains nothing anywhere.
//!
//! The shapes that plans are made of have loops of their own, where the pointers live in registers: they differ from
//! the general loop in their types only.

use super::blocks::few;
use super::convert::Lane;
use super::operations::{Operation, Sum};
use super::set::{Loops, typed};
use super::vector::Vector;

pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;

/// How many pages of a single target are written side by side, where they are.
pub(super) const PAGES: usize = 4;

/// From how many bytes on the target is aligned first: an unaligned store of a whole line touches two. Where all arrays
/// are misaligned alike this saves up to two fifths; where not, the loads lose about what the stores gain.
const ALIGN_BYTES_MIN: usize = 1024;

/// Up to so many bytes are added one by one.
pub(super) const FEW_BYTES: usize = 16;

/// Sums in registers. `LINE` of them are a line; `BLOCK` and `LARGE` are taken at a time, in the loops for certain shapes
/// and in the general one.
pub(super) struct Sums<V, const LINE: usize, const BLOCK: usize, const LARGE: usize>(
    std::marker::PhantomData<V>,
);

impl<V: Vector, const LINE: usize, const BLOCK: usize, const LARGE: usize> Loops
    for Sums<V, LINE, BLOCK, LARGE>
where
    V::Element: Lane,
    Sum: Operation<<V::Element as Lane>::Wide>,
{
    #[inline(always)]
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, streaming: bool) {
        const { assert!(LINE * V::LANES * size_of::<V::Element>() == LINE_BYTES) };
        if len * size_of::<V::Element>() <= FEW_BYTES {
            // SAFETY: The caller's promise.
            return unsafe { few::<V::Element, Sum>(targets, sources, len) };
        }
        let (targets, sources) = typed::<V::Element>(targets, sources);
        let streaming = streaming && V::STREAMS && streams(targets, sources);
        // SAFETY: The caller's promise, for pointers that are the caller's.
        unsafe {
            match (sources, targets) {
                (&[a, b], &[target]) => all::<V, LINE, BLOCK>([target], [a, b], len, streaming),
                (&[a, b], &[one, other]) => all::<V, LINE, BLOCK>([one, other], [a, b], len, streaming),
                _ => all::<V, LINE, LARGE>(targets, sources, len, streaming),
            }
        }
    }
}

/// Whether results can be streamed, and should be: peeling off the same number of elements brings all targets to a line's
/// start, and not all of them are sources.
pub(super) fn streams<E>(targets: &[*mut E], sources: &[*const E]) -> bool {
    let within = |target: &*mut E| target.addr() % LINE_BYTES;
    let in_place = |target: &*mut E| sources.contains(&target.cast_const());
    targets.first().is_some_and(|first| {
        within(first).is_multiple_of(size_of::<E>())
            && targets.iter().all(|target| within(target) == within(first))
            && !targets.iter().all(in_place)
    })
}

/// # Safety
/// As for [`super::Kernel::combine`]; and if `streaming`, targets are aligned alike.
#[inline(always)]
unsafe fn all<V: Vector, const LINE: usize, const BLOCK: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    len: usize,
    streaming: bool,
) {
    let aligning = streaming || len * size_of::<V::Element>() >= ALIGN_BYTES_MIN;
    let head = match targets.as_ref() {
        [first, ..] if aligning => elements_to_line(*first).min(len),
        _ => 0,
    };
    // SAFETY: The caller's promise. What is streamed comes after the head, at a line's start.
    unsafe {
        if head > 0 {
            cached::<V, 1>(targets, sources, 0, head);
        }
        if streaming {
            streamed::<V, LINE>(targets, sources, head, len);
        } else {
            cached::<V, BLOCK>(targets, sources, head, len);
        }
    }
}

/// How many elements lie before the next line's start; none if no whole number does.
fn elements_to_line<E>(pointer: *mut E) -> usize {
    let bytes = pointer.addr().wrapping_neg() % LINE_BYTES;
    if bytes.is_multiple_of(size_of::<E>()) { bytes / size_of::<E>() } else { 0 }
}

/// The elements from `at` to `end`, through the caches.
///
/// # Safety
/// As for [`super::Kernel::combine`].
#[inline(always)]
unsafe fn cached<V: Vector, const BLOCK: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    mut at: usize,
    end: usize,
) {
    // SAFETY: The caller's promise; what is touched from `at` on stays below `end`.
    unsafe {
        while end - at >= BLOCK * V::LANES {
            block::<V, BLOCK, false>(targets, sources, at);
            at += BLOCK * V::LANES;
        }
        while BLOCK > 1 && end - at >= V::LANES {
            block::<V, 1, false>(targets, sources, at);
            at += V::LANES;
        }
        if let ([first, rest @ ..], true) = (sources.as_ref(), at < end) {
            let mut value = V::load_part(first.add(at), end - at);
            for source in rest {
                value = value.add(V::load_part(source.add(at), end - at));
            }
            for target in targets.as_ref() {
                value.store_part(target.add(at), end - at);
            }
        }
    }
}

/// The elements from `at` to `end`, past the caches but for the last part of a line.
///
/// # Safety
/// As for [`super::Kernel::combine`]; and at `at`, all targets are at a line's start.
#[inline(always)]
unsafe fn streamed<V: Vector, const LINE: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    mut at: usize,
    end: usize,
) {
    let (line, page) = (LINE * V::LANES, PAGE_BYTES / size_of::<V::Element>());
    let side_by_side = targets.as_ref().len() == 1 && sources.as_ref().len() == 2;
    // SAFETY: The caller's promise; what is touched from `at` on stays below `end`, and `at` moves by whole lines.
    unsafe {
        while side_by_side && end - at >= PAGES * page {
            for within in (at..at + page).step_by(line) {
                for index in 0..PAGES {
                    block::<V, LINE, true>(targets, sources, within + index * page);
                }
            }
            at += PAGES * page;
        }
        while end - at >= line {
            block::<V, LINE, true>(targets, sources, at);
            at += line;
        }
        V::fence();
        cached::<V, 1>(targets, sources, at, end);
    }
}

/// `N` registers full of elements, from `at` on.
///
/// # Safety
/// As for [`super::Kernel::combine`], for these elements; and with `STREAM`, they are at a line's start in all targets.
#[inline(always)]
unsafe fn block<V: Vector, const N: usize, const STREAM: bool>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    at: usize,
) {
    let [first, rest @ ..] = sources.as_ref() else { return };
    // SAFETY: The caller's promise. Registers divide lines, so each that is streamed is aligned to itself.
    unsafe {
        // No closure makes this array: it would be a function of its own, without the instruction set.
        let mut values = [V::load(first.add(at)); N];
        for (index, value) in values.iter_mut().enumerate().skip(1) {
            *value = V::load(first.add(at + index * V::LANES));
        }
        for source in rest {
            for (index, value) in values.iter_mut().enumerate() {
                *value = value.add(V::load(source.add(at + index * V::LANES)));
            }
        }
        for target in targets.as_ref() {
            for (index, value) in values.iter().enumerate() {
                let to = target.add(at + index * V::LANES);
                if STREAM { value.stream(to) } else { value.store(to) }
            }
        }
    }
}
