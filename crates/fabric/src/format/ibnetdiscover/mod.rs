//! The output of `ibnetdiscover`: the switches, adapters and cables of an InfiniBand network.
//!
//! Every cable is listed at both of its ends and counted once. Adapters whose descriptions start with the same word are
//! those of one host: `node001 mlx5_0` and `node001 mlx5_1`.
//!
//! Deliberately absent: routers and the aggregation nodes in switches, which are no hosts; chassis, whose switches are
//! listed one by one.

mod hosts;
mod lines;
mod read;

pub use read::read;

/// True if the text has lines that only `ibnetdiscover` writes.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    bytes.split(|b| *b == b'\n').any(|line| {
        let line = line.trim_ascii_start();
        line.starts_with(b"switchguid=")
            || line.starts_with(b"caguid=")
            || line.starts_with(b"# Topology file: generated on")
    })
}
