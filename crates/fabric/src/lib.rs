//! The fabric of a multi-GPU machine: what is wired to what, and how fast.
//!
//! A [`Fabric`] holds hosts, devices and directed links. It comes from the [`catalog`], from a cluster
//! spec, from a file, or from a probe of the machine; it answers questions about paths,
//! bandwidth and domains. The crate is pure: it reads no file, clock or socket, only bytes that the caller passes in.

pub mod bisection;
pub mod bytes;
pub mod catalog;
pub mod cliff;
pub mod cluster;
mod components;
pub mod device;
pub mod domains;
pub mod fabric;
pub mod figure;
pub mod format;
mod gpu_model;
mod id;
pub mod link;
pub mod maxflow;
pub mod nearest;
mod nic_slots;
pub mod paths;
mod peer_access;
pub mod rate;
pub mod spec;
pub mod summary;

pub use cluster::resolve;
pub use device::{Device, DeviceKind};
pub use fabric::{Fabric, FabricBuilder, FabricError};
pub use id::{DeviceId, HostId};
pub use link::{Link, LinkKind, LinkSpec, Measure, SpecId};
pub use paths::{Path, PathType, Paths};
pub use peer_access::PeerAccess;
pub use spec::ClusterSpec;
