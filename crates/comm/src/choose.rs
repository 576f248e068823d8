//! Which built-in plan a call runs, and where it comes from. Every rank must choose alike, so the choice depends only on what all ranks share:
//! the number of ranks, the bytes, and whether the buffers are symmetric (which the call's signature holds them to).
//!
//! Measured on two cores with the command `weft bench`; see `bench/runs/`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use weftlink_plan::{Algorithm, Refusal, Verified, verify};

/// Up to here a message is a few cache lines that carry their own flags.
const PACKETS_BYTES_MAX: usize = 448;
/// Up to here sending everything to everyone costs less than two trips around, divided by the messages that takes.
const EXCHANGE_BYTES_MAX: usize = 64 << 10;

/// The algorithm for an all-reduce.
pub(crate) fn all_reduce(ranks: usize, bytes: usize, symmetric: bool) -> Algorithm {
    if bytes <= PACKETS_BYTES_MAX {
        Algorithm::ExchangeLl
    } else if symmetric {
        Algorithm::TwoShot
    } else if bytes <= EXCHANGE_BYTES_MAX / ranks.max(1) {
        Algorithm::Exchange
    } else {
        Algorithm::Ring
    }
}

/// The plan of a built-in algorithm, proved once in a process however many of its threads are ranks.
pub(crate) fn proved(algorithm: Algorithm, ranks: u32) -> Result<Arc<Verified>, Refusal> {
    static PROVED: Mutex<BTreeMap<(Algorithm, u32), Arc<Verified>>> = Mutex::new(BTreeMap::new());
    let mut plans = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(plan) = plans.get(&(algorithm, ranks)) {
        return Ok(Arc::clone(plan));
    }
    let plan = Arc::new(verify(algorithm.plan(ranks, 1))?);
    plans.insert((algorithm, ranks), Arc::clone(&plan));
    Ok(plan)
}
