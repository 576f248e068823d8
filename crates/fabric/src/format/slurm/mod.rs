//! Slurm's `topology.conf`: the switches of the tree plugin, or the blocks of the block plugin.
//!
//! The file says which switch a node or switch is below, and nothing about cables, NICs and rates; the units of
//! `LinkSpeed` are arbitrary and Slurm itself ignores it. A block becomes a leaf switch, and one spine joins the blocks.
//!
//! Deliberately absent: `topology.yaml`, and included files.

mod lines;
mod read;

pub use read::read;

/// True if the text has a line that defines a switch or a block.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    bytes.split(|b| *b == b'\n').any(|line| {
        let line = line.trim_ascii_start();
        let starts = |key: &[u8]| line.get(..key.len()).is_some_and(|start| start.eq_ignore_ascii_case(key));
        starts(b"SwitchName=") || starts(b"BlockName=")
    })
}
