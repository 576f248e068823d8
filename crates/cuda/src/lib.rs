//! Verified plans on NVIDIA GPUs.
//!
//! The crate builds, and its tests pass, where no CUDA is installed: the [`driver`] and [`nvrtc`] are loaded at run time.

mod addressed;
mod arena;
pub mod cache;
mod call;
mod calls;
#[cfg(test)]
mod cases;
mod choose;
mod collectives;
mod communicator;
mod contributions;
pub mod copies;
pub mod driver;
mod error;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod host_tests;
mod kernels;
mod loading;
mod lost;
#[cfg(test)]
mod lost_tests;
mod messages;
mod multicast;
pub mod nvrtc;
mod pool;
mod presence;
mod program;
pub mod queues;
mod rank;
pub mod ranks;
mod records;
mod registration;
mod reports;
mod residency;
mod sharing;
mod source;
mod staging;
#[cfg(test)]
mod stand_in_tests;
mod versions;
mod window;

pub use addressed::{AddressedBuffers, AddressedCall, AddressedRank, device_of};
pub use arena::adapted;
pub use call::{Operation, in_one_buffer, is_for_gpus};
pub use choose::{Choice, choose, choose_through_switch};
pub use collectives::{Collectives, LoadedPlan};
pub use communicator::{Communicator, Messages, PlanId};
pub use driver::SpreadMemory;
pub use error::Error;
pub use messages::Message;
pub use presence::Aborter;
pub use rank::{
    Arranged, Buffer, Buffers, Lengths, Part, PartMut, Rank, Window, arrange, devices, on_threads,
};
pub use sharing::Memory;
pub use window::{DeviceWindow, WINDOW_H, WindowMemory};
