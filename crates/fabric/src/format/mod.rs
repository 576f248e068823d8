//! Files that describe or draw a fabric.

pub mod dot;
pub mod svg;
