//! What the plugins for NCCL share: the numbers and names that NCCL passes ([`names`], [`text`]), its logger ([`log`]), and the boundary
//! that no panic passes ([`boundary`]).
//!
//! Deliberately absent: the structures of the interfaces. Each plugin has those of its own, a file per version.

pub mod boundary;
pub mod log;
pub mod names;
pub mod text;
