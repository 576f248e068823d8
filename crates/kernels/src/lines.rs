//! Cache lines and pages: which arrays can be streamed to, and prefetching.

pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;

/// Number of parts of an array that a loop works on in turn. The hardware prefetcher follows each as a stream of its own, and
/// no stream crosses the end of its page.
pub(super) const PARTS: usize = 4;

/// Prefetch distance ahead of the stores.
const AHEAD_BYTES: usize = 1024;

/// The same where the array is processed in [`PARTS`] parts.
const AHEAD_BYTES_OF_PART: usize = 512;

/// Whether to write these targets with streaming stores: skipping the same number of elements aligns all of them to a line, and not
/// all of them are sources.
pub(super) fn can_stream<E>(targets: &[*mut E], sources: &[*const E]) -> bool {
    let within = |target: &*mut E| target.addr() % LINE_BYTES;
    let in_place = |target: &*mut E| sources.contains(&target.cast_const());
    targets.first().is_some_and(|first| {
        within(first).is_multiple_of(size_of::<E>())
            && targets.iter().all(|target| within(target) == within(first))
            && !targets.iter().all(in_place)
    })
}

/// Prefetches a line for writing: the transfer from whichever core has it overlaps other stores. An invalid address is harmless.
#[inline(always)]
fn prefetch_for_write<E>(line: *mut E) {
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

/// Elements in each of [`PARTS`] parts of `len`: whole lines, or 0 if a part would be shorter than a page.
#[inline(always)]
pub(super) fn part_of<E>(len: usize) -> usize {
    let (line, page) = (LINE_BYTES / size_of::<E>(), PAGE_BYTES / size_of::<E>());
    let part = len / PARTS / line * line;
    if part < page { 0 } else { part }
}

/// Prefetches `lines` lines of each target that follow `at` by the prefetch distance, if they lie before `end`: memory beyond it may
/// belong to another rank.
#[inline(always)]
pub(super) fn prefetch_ahead<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    prefetch_from(targets, lines, at + AHEAD_BYTES / size_of::<E>(), end);
}

/// The same within one of [`PARTS`] parts, which ends at `end`.
#[inline(always)]
pub(super) fn prefetch_ahead_in_part<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    prefetch_from(targets, lines, at + AHEAD_BYTES_OF_PART / size_of::<E>(), end);
}

#[inline(always)]
fn prefetch_from<E>(targets: &[*mut E], lines: usize, at: usize, end: usize) {
    let line = LINE_BYTES / size_of::<E>();
    if at + lines * line <= end {
        for target in targets {
            for index in 0..lines {
                prefetch_for_write(target.wrapping_add(at + index * line));
            }
        }
    }
}
