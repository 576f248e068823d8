//! Which built-in plan a call runs, and where it comes from.
//!
//! Every rank must choose alike, so the choice depends only on what all ranks share: the number of ranks, the bytes, and
//! whether the buffers are symmetric (which the call's signature holds them to). Where exchange gives way to ring was
//! measured with 2 to 16 ranks: `bench/runs/2026-11-15-thresholds-16-core-vm`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use weftlink_plan::{Algorithm, Collective, Verified, verify};

use crate::Error;

/// What fits into one packet: a few cache lines that carry their own flags.
const PACKETS_BYTES_MAX: usize = 448;
/// Divided by the square of the ranks: up to there sending everything to everyone is faster than two trips around.
const EXCHANGE_BYTES_MAX: usize = 1 << 20;

/// The algorithm for an all-reduce.
pub(crate) fn all_reduce(ranks: usize, bytes: usize, symmetric: bool) -> Algorithm {
    if bytes <= PACKETS_BYTES_MAX {
        Algorithm::ExchangeLl
    } else if symmetric {
        Algorithm::TwoShot
    } else if bytes <= EXCHANGE_BYTES_MAX / ranks.max(1).pow(2) {
        Algorithm::Exchange
    } else {
        Algorithm::Ring
    }
}

/// The plan of a built-in algorithm, proved once in a process however many of its threads are ranks.
pub(crate) fn proved(algorithm: Algorithm, ranks: u32) -> Result<Arc<Verified>, Error> {
    static PROVED: Mutex<BTreeMap<(Algorithm, u32), Arc<Verified>>> = Mutex::new(BTreeMap::new());
    let mut plans = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(plan) = plans.get(&(algorithm, ranks)) {
        return Ok(Arc::clone(plan));
    }
    let written = algorithm.flat(&Collective::AllReduce, ranks, 1);
    let plan = written.map_err(|why| Error::Misuse(why.to_string()))?.without_switches();
    let plan = Arc::new(verify(plan)?);
    plans.insert((algorithm, ranks), Arc::clone(&plan));
    Ok(plan)
}
