//! Runs plans between CPU ranks of one host, over shared memory.
//!
//! Unsafe code is denied in this crate but in the modules that say why they need it.

mod available;
pub mod bootstrap;
pub mod kernels;
pub mod memory;
