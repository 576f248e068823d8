//! Verified plans on NVIDIA GPUs.
//!
//! The crate builds, and its tests pass, where no CUDA is installed: the driver and NVRTC are loaded at run time.

mod arena;
mod contributions;
#[cfg(test)]
mod host_tests;
mod program;
mod records;
mod source;
