//! What the world is built of: links, GPUs and whole systems, each figure with its source.

pub mod gpus;
pub mod links;
pub mod switches;
pub mod systems;
