//! The number of draws of each kind. Any 1,000 consecutive seeds have exactly these numbers, so that their run time is known; slow kinds
//! get few.

use crate::draw::Kind;

/// Per 1,000 draws. The rest are spread evenly over the plain kinds.
pub(crate) const QUOTAS: [(Kind, u64); 11] = [
    (Kind::Counts, 150),
    (Kind::SingleCopy, 50),
    (Kind::Lane, 50),
    (Kind::Early, 100),
    (Kind::Handler, 40),
    (Kind::Flood, 30),
    (Kind::Descriptors, 30),
    (Kind::ForeignUid, 30),
    (Kind::Partition, 40),
    (Kind::Addresses, 20),
    (Kind::Resume, 10),
];

/// Seeds with one of these remainders modulo `OF` draw a kind that has a quota.
const REMAINDERS: [u64; 11] = [4, 5, 6, 8, 10, 11, 12, 15, 16, 18, 19];
const OF: u64 = 20;
/// The number of such seeds in 1,000.
const PLACES: u64 = 1000 / OF * REMAINDERS.len() as u64;
/// Spreads the kinds, so that a few dozen consecutive seeds have some of each. Coprime to `PLACES`.
const STRIDE: u64 = 377;

/// The kind of a seed, if it falls under a quota.
pub(crate) fn kind(seed: u64) -> Option<Kind> {
    let at = REMAINDERS.iter().position(|remainder| *remainder == seed % OF)? as u64;
    let place = seed / OF % (1000 / OF) * REMAINDERS.len() as u64 + at;
    let mut left = place * STRIDE % PLACES;
    for (kind, quota) in QUOTAS {
        if left < quota {
            return Some(kind);
        }
        left -= quota;
    }
    None
}

#[test]
fn every_thousand_seeds_meet_the_quotas() {
    for first in [1, 777] {
        let kinds: Vec<Kind> = (first..first + 1000).filter_map(kind).collect();
        for (kind, quota) in QUOTAS {
            assert_eq!(kinds.iter().filter(|one| **one == kind).count() as u64, quota, "{kind:?}");
        }
    }
}
