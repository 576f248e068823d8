//! How many blocks a communicator may have on a GPU: the kernels of its ranks wait for each other, so all their blocks must run at once, and
//! compute kernels beside them.
//!
//! A kernel has blocks of up to 512 threads with at most 64 registers each, of which a multiprocessor runs two. The ranks of one communicator
//! have one on each multiprocessor together: half of the GPU's registers and a quarter of its threads. Other communicators of the process may run
//! at the same time. Each one that is made while others are there has half of what is left, so that the blocks of all of them fit.

use std::sync::{Mutex, PoisonError};

type Gpu = [u8; 16];

/// The ranks of this process: the GPU of each, and the communicator.
static RANKS: Mutex<Vec<(Gpu, u64)>> = Mutex::new(Vec::new());

/// A rank's place on its GPU.
#[derive(Debug)]
pub(crate) struct Resident {
    gpu: Gpu,
    communicator: u64,
    /// Other communicators of this process on the GPU.
    pub(crate) others: u32,
}

impl Resident {
    pub(crate) fn new(gpu: Gpu, communicator: u64) -> Resident {
        let mut ranks = RANKS.lock().unwrap_or_else(PoisonError::into_inner);
        let on_gpu = ranks.iter().filter(|(other, _)| *other == gpu);
        let mut others: Vec<u64> =
            on_gpu.map(|(_, other)| *other).filter(|other| *other != communicator).collect();
        others.sort_unstable();
        others.dedup();
        ranks.push((gpu, communicator));
        Resident { gpu, communicator, others: others.len() as u32 }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let mut ranks = RANKS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ranks.iter().position(|rank| *rank == (self.gpu, self.communicator)) {
            ranks.swap_remove(at);
        }
    }
}

/// How many blocks each rank of a communicator may have on its GPU. `ranks`: the communicator's ranks there. `others`: the communicators that its
/// processes have there already.
pub(crate) fn blocks_of_rank(multiprocessors: usize, ranks: usize, others: u32) -> usize {
    let all = multiprocessors.checked_shr(others).unwrap_or(0);
    (all / ranks.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_communicators_fit_and_one_takes_half() {
        for ranks in [1, 2, 3, 4, 8] {
            let blocks: Vec<usize> =
                (0..6).map(|others| ranks * blocks_of_rank(132, ranks, others)).collect();
            assert!(blocks[0] <= 132, "half of the GPU: {blocks:?}");
            assert!(blocks.iter().sum::<usize>() <= 264, "{blocks:?}");
        }
        assert_eq!(blocks_of_rank(132, 2, 0), 66);
        assert_eq!(blocks_of_rank(132, 2, 1), 33);
        assert_eq!(blocks_of_rank(132, 8, 40), 1);
    }

    #[test]
    fn ranks_of_one_communicator_count_once() {
        let (gpu, other) = ([7; 16], [8; 16]);
        let first = [0; 3].map(|_| Resident::new(gpu, 1));
        assert_eq!(first.each_ref().map(|rank| rank.others), [0; 3]);
        assert_eq!(Resident::new(other, 2).others, 0);
        let second = [0; 2].map(|_| Resident::new(gpu, 2));
        assert_eq!(second.each_ref().map(|rank| rank.others), [1; 2]);
        drop(first);
        assert_eq!(Resident::new(gpu, 3).others, 1);
        drop(second);
        assert_eq!(Resident::new(gpu, 3).others, 0);
    }
}
