//! Verified plans on NVIDIA GPUs.
//!
//! The crate builds, and its tests pass, where no CUDA is installed: the [`driver`] and [`nvrtc`] are loaded at run time.

pub mod cache;
pub mod driver;
mod error;
pub mod nvrtc;

pub use error::Error;
