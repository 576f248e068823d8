//! The number of cores of a rank: those it may use, divided among the ranks that may use the same.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};

use weftlink_bootstrap::{Bootstrap, BootstrapError};
use weftlink_knobs::parsed;

/// The cores of this rank, rounded down: 0 if there are more ranks than cores. All ranks call it; `here` lists which are on this host.
pub(super) fn own(
    bootstrap: &mut Bootstrap,
    here: &[bool],
    deadline: Duration,
) -> Result<usize, BootstrapError> {
    let mine = usable();
    let all = bootstrap.exchange("weft: cores", mine.clone(), deadline)?;
    let here = all.iter().zip(here).filter(|(_, here)| **here).map(|(cores, _)| &**cores);
    // Ranks of the job outside of this group share the cores too.
    // `weft run --gpus shared` hides their number from the program.
    let of_job = parsed("WEFT_LOCAL_WORLD_SIZE").or_else(|| parsed("LOCAL_WORLD_SIZE"));
    Ok(share(&mine, here, of_job.unwrap_or(0)).min(available()))
}

/// The cores that this process may use, limited by its CPU quota.
pub(super) fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The cores that this thread may run on, one bit each.
fn usable() -> Vec<u8> {
    let cores = sched_getaffinity(None).unwrap_or_else(|_| {
        let mut cores = CpuSet::new();
        (0..available().min(CpuSet::MAX_CPU)).for_each(|core| cores.set(core));
        cores
    });
    let bit = |core: usize| u8::from(core < CpuSet::MAX_CPU && cores.is_set(core)) << (core % 8);
    (0..CpuSet::MAX_CPU).step_by(8).map(|first| (first..first + 8).map(bit).sum()).collect()
}

/// A rank's cores divided among the ranks that may use some of them; among the job's ranks on this host if those are more.
fn share<'a>(mine: &[u8], all: impl Iterator<Item = &'a [u8]>, of_job: usize) -> usize {
    let cores = mine.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    let meets = |other: &&[u8]| mine.iter().zip(*other).any(|(mine, other)| mine & other != 0);
    match all.filter(meets).count() {
        0 | 1 => cores,
        ranks => cores / ranks.max(of_job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_among_ranks() {
        let own = |all: &[&[u8]], of_job| share(all[0], all.iter().copied(), of_job);
        assert_eq!(own(&[&[0b11], &[0b11]], 0), 1, "unbound");
        assert_eq!(own(&[&[0b01], &[0b10]], 2), 1, "bound to one each");
        assert_eq!(own(&[&[0b0000_1111], &[0b1111_0000]], 2), 4, "bound to four each");
        assert_eq!(own(&[&[0xff, 0xff], &[0xff, 0xff]], 0), 8);
        assert_eq!(own(&[&[0xff, 0xff], &[0xff, 0xff]], 16), 1, "two of sixteen ranks");
        assert_eq!(own(&[&[0b11], &[0b11], &[0b11]], 0), 0);
        assert_eq!(own(&[&[0b11]], 0), 2, "alone");
    }

    #[test]
    fn usable_cores_match_the_system() {
        let cores = usable().iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
        assert!(cores >= available(), "{cores}");
    }
}
