//! What the interpreter can compute with: contributions for the verifier, elements for the oracle.

pub(crate) mod contributions;
pub mod elements;
