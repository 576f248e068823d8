//! What ranks put into their buffers, and what must come out.
//!
//! Element i of rank r is a whole number, `h(i) + r`, where h looks random and is below 2048. The sum over n ranks is
//! `n·h(i) + n(n-1)/2`, whatever the order of addition: up to [`RANKS_MAX`] ranks every partial sum is exact in an
//! f32. An element that came from elsewhere has another h; a rank that was left out or counted twice changes the sum.
//! The salt tells the data of one check from that of another.

/// The most ranks whose sums are exact.
pub(super) const RANKS_MAX: usize = 4096;
const HASH_BITS: u32 = 11;

/// Fills the input of a rank.
pub(super) fn fill(buffer: &mut [f32], rank: usize, salt: u64) {
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = (hash(index, salt) + rank as u64) as f32;
    }
}

/// Fills an output with what no sum can be.
pub(super) fn poison(buffer: &mut [f32]) {
    buffer.fill(f32::NAN);
}

/// How many elements are not the sum over so many ranks.
pub(super) fn wrong(buffer: &[f32], ranks: usize, salt: u64) -> u64 {
    let n = ranks as u64;
    let of_ranks = n * n.saturating_sub(1) / 2;
    let is_wrong = |(index, element): (usize, &f32)| *element != (n * hash(index, salt) + of_ranks) as f32;
    buffer.iter().enumerate().filter(|&element| is_wrong(element)).count() as u64
}

/// Multiplication by the golden ratio mixes upwards, so the top bits depend on all of the index and the salt.
fn hash(index: usize, salt: u64) -> u64 {
    (index as u64 ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HASH_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed(ranks: usize, salt: u64) -> Vec<f32> {
        let mut sum = vec![0.0; 5000];
        for rank in 0..ranks {
            let mut part = vec![0.0; sum.len()];
            fill(&mut part, rank, salt);
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        sum
    }

    #[test]
    fn sums_are_exact() {
        for ranks in [1, 2, 3, 64, 1000, RANKS_MAX] {
            assert_eq!(wrong(&summed(ranks, 7), ranks, 7), 0, "{ranks} ranks");
        }
        let largest = (RANKS_MAX * ((1 << HASH_BITS) - 1) + RANKS_MAX * (RANKS_MAX - 1) / 2) as u64;
        assert!(largest < 1 << f32::MANTISSA_DIGITS);
    }

    #[test]
    fn mistakes_show() {
        let sum = summed(3, 1);
        let all = sum.len() as u64;
        let elsewhere = [&sum[2048..], &sum[..2048]].concat();
        assert!(wrong(&elsewhere, 3, 1) > all * 99 / 100, "elements of another place");
        assert!(wrong(&sum, 3, 2) > all * 99 / 100, "data of another check");
        assert_eq!(wrong(&summed(2, 1), 3, 1), all, "a rank left out");
        let twice: Vec<f32> = sum.iter().map(|sum| sum + 1.0).collect();
        assert_eq!(wrong(&twice, 3, 1), all, "rank 1 in place of rank 0");
        let mut poisoned = sum.clone();
        poison(&mut poisoned[10..13]);
        assert_eq!(wrong(&poisoned, 3, 1), 3);
    }
}
