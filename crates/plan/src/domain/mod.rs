//! Domains in which the [interpreter](crate::interpret) runs verified plans: elements for the oracle, origins of chunks for compilers,
//! hops for costs. The verifier's own domain is in `verify`.

pub mod chunks;
pub mod elements;
pub mod hops;
