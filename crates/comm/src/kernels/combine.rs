//! The loops, for any register and operation.
//!
//! A block of U registers is loaded from the first source, combined with the others, and stored to every target,
//! before the next is touched; so a target may be a source. What does not fill a block goes register by register, what
//! does not fill a register by a masked one: nothing is ever computed twice, which in place would be wrong.
//!
//! The shapes that plans are made of have loops of their own, where the pointers live in registers: they differ from
//! the general loop in their types only.

use super::Store;
use super::vector::{Operation, Vector};

const LINE_BYTES: usize = 64;

/// From how many bytes on it pays to first align the target: every unaligned store of a whole line touches two.
const ALIGN_BYTES_MIN: usize = 1024;

/// Combines all sources into all targets.
///
/// # Safety
/// As for [`super::Kernels::sum_f32`], and the machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn combine<V: Vector, O: Operation<V>, const U: usize>(
    targets: &[*mut V::Element],
    sources: &[*const V::Element],
    len: usize,
    store: Store,
) {
    let streaming = store == Store::Streaming && aligned_alike(targets);
    // SAFETY: The caller's promise, for pointers that are the caller's.
    unsafe {
        match (sources, targets) {
            (&[source], &[target]) if !streaming => copy(target, source, len),
            (&[source], &[target]) => all::<V, O, U>([target], [source], len, streaming),
            (&[a, b], &[target]) => all::<V, O, U>([target], [a, b], len, streaming),
            (&[a, b], &[one, other]) => all::<V, O, U>([one, other], [a, b], len, streaming),
            _ => all::<V, O, U>(targets, sources, len, streaming),
        }
    }
}

/// Whether peeling off the same number of elements brings all targets to a line's start.
fn aligned_alike<E>(targets: &[*mut E]) -> bool {
    let within = |target: &*mut E| target.addr() % LINE_BYTES;
    targets.first().is_some_and(|first| {
        within(first).is_multiple_of(size_of::<E>())
            && targets.iter().all(|target| within(target) == within(first))
    })
}

/// # Safety
/// As for [`combine`].
unsafe fn copy<E>(target: *mut E, source: *const E, len: usize) {
    if !std::ptr::eq(target, source) {
        // SAFETY: The caller's promise: the two do not overlap, being different. As bytes they need no alignment.
        unsafe { std::ptr::copy_nonoverlapping(source.cast::<u8>(), target.cast(), len * size_of::<E>()) }
    }
}

/// # Safety
/// As for [`combine`]; and if `streaming`, targets are aligned alike.
#[inline(always)]
unsafe fn all<V: Vector, O: Operation<V>, const U: usize>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    len: usize,
    streaming: bool,
) {
    let bytes = len * size_of::<V::Element>();
    let head = match targets.as_ref() {
        [first, ..] if streaming || bytes >= ALIGN_BYTES_MIN => elements_to_line(*first).min(len),
        _ => 0,
    };
    // SAFETY: The caller's promise. What is streamed comes after the head, at a line's start.
    unsafe {
        if head > 0 {
            span::<V, O, U, false>(targets, sources, 0, head);
        }
        if streaming {
            span::<V, O, U, true>(targets, sources, head, len);
            V::fence();
        } else {
            span::<V, O, U, false>(targets, sources, head, len);
        }
    }
}

/// How many elements lie before the next line's start; none if no whole number does.
fn elements_to_line<E>(pointer: *mut E) -> usize {
    let bytes = pointer.addr().wrapping_neg() % LINE_BYTES;
    if bytes.is_multiple_of(size_of::<E>()) { bytes / size_of::<E>() } else { 0 }
}

/// The elements from `at` to `end`.
///
/// # Safety
/// As for [`combine`]; and with `STREAM`, all targets are at a line's start at `at`.
#[inline(always)]
unsafe fn span<V: Vector, O: Operation<V>, const U: usize, const STREAM: bool>(
    targets: impl AsRef<[*mut V::Element]> + Copy,
    sources: impl AsRef<[*const V::Element]> + Copy,
    mut at: usize,
    end: usize,
) {
    let ([first, rest @ ..], targets) = (sources.as_ref(), targets.as_ref()) else { return };
    // SAFETY: The caller's promise; `at` and what is touched from there stay below `end`. Registers divide lines, so
    // every register of a streamed span is aligned to itself.
    unsafe {
        while end - at >= U * V::LANES {
            // No closure here: it would be a function of its own, without the instruction set.
            let mut block = [V::load(first.add(at)); U];
            for (unit, value) in block.iter_mut().enumerate().skip(1) {
                *value = V::load(first.add(at + unit * V::LANES));
            }
            for source in rest {
                for (unit, value) in block.iter_mut().enumerate() {
                    *value = O::apply(*value, V::load(source.add(at + unit * V::LANES)));
                }
            }
            for target in targets {
                for (unit, value) in block.iter().enumerate() {
                    let to = target.add(at + unit * V::LANES);
                    if STREAM { value.stream(to) } else { value.store(to) }
                }
            }
            at += U * V::LANES;
        }
        while end - at >= V::LANES {
            let mut value = V::load(first.add(at));
            for source in rest {
                value = O::apply(value, V::load(source.add(at)));
            }
            for target in targets {
                let to = target.add(at);
                if STREAM { value.stream(to) } else { value.store(to) }
            }
            at += V::LANES;
        }
        if at < end {
            let mut value = V::load_part(first.add(at), end - at);
            for source in rest {
                value = O::apply(value, V::load_part(source.add(at), end - at));
            }
            for target in targets {
                value.store_part(target.add(at), end - at);
            }
        }
    }
}
