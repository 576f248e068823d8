//! What the interpreter can compute with: contributions for the verifier, elements for the oracle, chunk numbers for
//! compilers, hops for costs.

pub mod chunks;
pub(crate) mod contributions;
pub mod elements;
pub mod hops;
