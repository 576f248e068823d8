//! The least time of a call on one GPU: every input byte is read once and every output byte written once, at the copy rate.
//!
//! With D bytes in the larger buffer of each of n ranks that is 2nD for an all-reduce and an all-to-all, (n+1)D for all-gather,
//! reduce-scatter, broadcast and reduce. Reads are faster than writes, and small calls stay in the L2 cache, so a call may be a little faster.

use crate::bench::job::Case;

/// The bytes that all ranks together must read and write.
pub(super) fn bytes(case: &Case, count: usize, ranks: usize) -> u64 {
    let blocks = |rank: u32| {
        let (gives, gets) =
            (case.collective.gives(rank, ranks as u32), case.collective.gets(rank, ranks as u32));
        u64::from(gives) + u64::from(gets)
    };
    (0..ranks as u32).map(blocks).sum::<u64>() * (count * case.data_type.bytes()) as u64
}

/// The microseconds of a call.
pub(super) fn us(case: &Case, count: usize, ranks: usize, copy_bytes_per_s: f64) -> f64 {
    bytes(case, count, ranks) as f64 / copy_bytes_per_s * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::tests::gpu_job;

    #[test]
    fn bytes_are_those_that_must_move() {
        const D: u64 = 1 << 20;
        for (name, moved) in [
            ("all-reduce", 16),
            ("all-to-all", 16),
            ("all-gather", 9),
            ("reduce-scatter", 9),
            ("broadcast", 9),
            ("reduce", 9),
            ("gather", 2),
            ("scatter", 2),
            ("scan", 16),
            ("exclusive-scan", 15),
            ("sendrecv", 16),
        ] {
            let job = gpu_job(&format!("{name} --gpu -n 8 --size 1MiB")).unwrap();
            let (case, count) = (&job.cases[0], job.rows[0].1);
            assert_eq!(bytes(case, count, 8), moved * D, "{name}");
        }
    }

    #[test]
    fn the_limit_of_an_h200() {
        let job = gpu_job("all-reduce --gpu -n 8 --size 1GiB").unwrap();
        let limit = us(&job.cases[0], job.rows[0].1, 8, 3.95e12);
        assert!((limit - 4349.3).abs() < 0.1, "{limit}");
    }
}
