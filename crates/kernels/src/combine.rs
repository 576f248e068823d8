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
//! - Streamed, blocks cost up to a third: whole lines go to the targets in turn. Up to two targets of two sources are
//!   written in four pages at a time, which gains up to a quarter.
//! - Streamed to where all of it was just read, results take up to two thirds longer than cached: such calls are
//!   cached. Where only some targets are sources, neither is reliably better.
//! - What another core has just written is read in four parts side by side where there is one target: 5.2 ns a line become
//!   4 from 64 KiB on (`benches/lines.rs`). With two targets that gained nothing, and what another core has just read was
//!   written slower that way.
//! - What another core has just read is written faster if its lines are taken a kilobyte ahead: 12 ns a line become 10 in
//!   messages of 4 KiB, 6 become 5 in those of 256 KiB (`benches/lines.rs`). Reading ahead by instruction gained nothing.
//! - What goes to and fro, written by whoever read it, is taken for writing when it is read: an all-reduce of 256 MiB on two
//!   cores went from 65 ms to 44, and in four parts side by side, also with two targets, to 36.
//!
//! The shapes that plans are made of have loops of their own, where the pointers live in registers: they differ from
//! the general loop in their types only.

use super::Access;
use super::blocks::few;
use super::convert::Lane;
use super::instructions::{Loops, typed};
use super::lines::{LINE_BYTES, PAGE_BYTES, PARTS, part_of, streams, take_ahead, take_ahead_in_part};
use super::operations::{Operation, Sum};
use super::vector::Vector;

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
    unsafe fn run(targets: &[*mut u8], sources: &[*const u8], len: usize, access: Access) {
        const { assert!(LINE * V::LANES * size_of::<V::Element>() == LINE_BYTES) };
        if len * size_of::<V::Element>() <= FEW_BYTES {
            // SAFETY: The caller's promise.
            return unsafe { few::<V::Element, Sum>(targets, sources, len) };
        }
        let (targets, sources) = typed::<V::Element>(targets, sources);
        let can_stream = V::STREAMS && streams(&targets[..access.streamed], sources);
        let access = Access { streamed: if can_stream { access.streamed } else { 0 }, ..access };
        // SAFETY: The caller's promise, for pointers that are the caller's.
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
/// As for [`super::Kernel::combine`]; and targets that are streamed are aligned alike.
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
    // SAFETY: The caller's promise. What is streamed comes after the head, at a line's start.
    unsafe {
        if head > 0 {
            cached::<V, 1>(targets, sources, 0, head, false);
        }
        if access.streamed > 0 {
            past_caches::<V, LINE>(targets, sources, head, len, access);
        } else if access.from_peers
            && (targets.as_ref().len() == 1 || access.returned && sources.as_ref().len() == 2)
        {
            let done = side_by_side::<V, BLOCK>(targets, sources, head, len, access.returned);
            cached::<V, BLOCK>(targets, sources, done, len, access.returned);
        } else {
            cached::<V, BLOCK>(targets, sources, head, len, access.to_peers);
        }
    }
}

/// How many elements lie before the next line's start; none if no whole number does.
fn elements_to_line<E>(pointer: *mut E) -> usize {
    let bytes = pointer.addr().wrapping_neg() % LINE_BYTES;
    if bytes.is_multiple_of(size_of::<E>()) { bytes / size_of::<E>() } else { 0 }
}

/// Most of the elements from `at` to `end`, through the caches, in parts that are far from each other, to lines that are taken
/// ahead or not. Returns where the rest begins.
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
                take_ahead_in_part(targets.as_ref(), step / line, within + index * part, end);
            }
            // SAFETY: The caller's promise; all parts together end before `end`.
            unsafe { block::<V, BLOCK>(targets, sources, within + index * part, 0) };
        }
    }
    at + PARTS * part
}

/// The elements from `at` to `end`, through the caches, to lines that are taken ahead or not.
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
    // SAFETY: The caller's promise; what is touched from `at` on stays below `end`.
    unsafe {
        while end - at >= step {
            if ahead {
                take_ahead(targets.as_ref(), step / line, at, end);
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
            for target in targets.as_ref() {
                value.store_part(target.add(at), end - at);
            }
        }
    }
}

/// The elements from `at` to `end`, past the caches for so many targets but for the last part of a line.
///
/// # Safety
/// As for [`super::Kernel::combine`]; and at `at`, those targets are at a line's start.
#[inline(always)]
unsafe fn past_caches<V: Vector, const LINE: usize>(
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
    // SAFETY: The caller's promise; what is touched from `at` on stays below `end`, and `at` moves by whole lines.
    unsafe {
        while side_by_side && end - at >= PARTS * page {
            for within in (at..at + page).step_by(line) {
                for index in 0..PARTS {
                    let here = within + index * page;
                    take_ahead(others, 1, here, end);
                    block::<V, LINE>(targets, sources, here, streamed);
                }
            }
            at += PARTS * page;
        }
        while end - at >= line {
            take_ahead(others, 1, at, end);
            block::<V, LINE>(targets, sources, at, streamed);
            at += line;
        }
        V::fence();
        cached::<V, 1>(targets, sources, at, end, false);
    }
}

/// `N` registers full of elements, from `at` on.
///
/// # Safety
/// As for [`super::Kernel::combine`], for these elements; and those targets that are streamed are at a line's start.
#[inline(always)]
unsafe fn block<V: Vector, const N: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    at: usize,
    streamed: usize,
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
        for (number, target) in targets.as_ref().iter().enumerate() {
            for (index, value) in values.iter().enumerate() {
                let to = target.add(at + index * V::LANES);
                if number < streamed { value.stream(to) } else { value.store(to) }
            }
        }
    }
}
