//! Known links, GPUs and systems, each figure with its source.

pub mod gpus;
pub mod links;
pub mod switches;
pub mod systems;
