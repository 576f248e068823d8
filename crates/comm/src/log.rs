//! Words for people.

use std::fmt::Display;

/// What a word is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subsystem {
    Meet,
    Fault,
}

/// A warning.
pub(crate) fn warn<T: Display>(_subsystem: Subsystem, rank: Option<u32>, text: impl FnOnce() -> T) {
    let rank = rank.map_or(String::new(), |rank| format!(" [rank {rank}]"));
    eprintln!("weft WARN{rank} {}", text());
}
