//! Cache lines and pages, as far as loops care about them.

pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;

/// How many parts of an array are gone through side by side, where they are: each is a stream of its own to what fetches
/// lines ahead, and none of those goes past the end of its page.
pub(super) const PARTS: usize = 4;

/// How far ahead of the stores the targets' lines are taken.
const AHEAD_BYTES: usize = 1024;

/// The same in each of several parts.
const AHEAD_BYTES_OF_PART: usize = 512;

/// Whether results can be streamed to these targets, and should be: peeling off the same number of elements brings all of
/// them to a line's start, and not all of them are sources.
pub(super) fn streams<E>(targets: &[*mut E], sources: &[*const E]) -> bool {
    let within = |target: &*mut E| target.addr() % LINE_BYTES;
    let in_place = |target: &*mut E| sources.contains(&target.cast_const());
    targets.first().is_some_and(|first| {
        within(first).is_multiple_of(size_of::<E>())
            && targets.iter().all(|target| within(target) == within(first))
            && !targets.iter().all(in_place)
    })
}

/// Asks for a line to be written soon, which any core may have by now: it comes while others are written. An address that
/// cannot be written does no harm.
#[inline(always)]
pub(super) fn take<E>(line: *mut E) {
    // SAFETY: A hint: it changes neither memory nor registers, and no address makes it fail.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line.addr(), options(nomem, nostack, preserves_flags));
    }
    // SAFETY: As above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}

/// How many elements each of [`PARTS`] parts of `len` has: whole lines; none if they were shorter than a page.
#[inline(always)]
pub(super) fn part_of<E>(len: usize) -> usize {
    let (line, page) = (LINE_BYTES / size_of::<E>(), PAGE_BYTES / size_of::<E>());
    let part = len / PARTS / line * line;
    if part < page { 0 } else { part }
}

/// Takes so many lines of targets that will be written a little later than those from `at` on, if they come before `end`: what
/// lies behind may be another rank's.
#[inline(always)]
pub(super) fn take_ahead<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    take_later(targets, lines, at + AHEAD_BYTES / size_of::<E>(), end);
}

/// The same in one of several parts, which ends at `end`.
#[inline(always)]
pub(super) fn take_ahead_in_part<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    take_later(targets, lines, at + AHEAD_BYTES_OF_PART / size_of::<E>(), end);
}

#[inline(always)]
fn take_later<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    let line = LINE_BYTES / size_of::<E>();
    if at + lines * line <= end {
        for target in targets {
            for index in 0..lines {
                take(target.wrapping_add(at + index * line));
            }
        }
    }
}
