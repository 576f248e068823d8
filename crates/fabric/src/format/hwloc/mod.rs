//! The XML of hwloc's `lstopo --of xml`, versions 2 and 3: the NUMA nodes, PCIe tree, GPUs and NICs of one host.
//!
//! The format has the rate of a PCIe link, but not its generation and width: those are the widest slot of that rate. It has
//! neither NVLinks nor the rates of network ports, and a note says so.
//!
//! Deliberately absent: caches, cores and memory; distances; PCI functions that are neither GPU, NIC nor drive.

mod build;
mod functions;
mod numa;
mod objects;

pub use build::read;

/// True if the first element is that of hwloc.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // Declarations and comments before the root element; real files have two.
    for _ in 0..16 {
        rest = rest.trim_ascii_start();
        let end: &[u8] = if rest.starts_with(b"<!--") {
            b"-->"
        } else if rest.starts_with(b"<?") || rest.starts_with(b"<!") {
            b">"
        } else {
            let after = rest.strip_prefix(b"<topology").and_then(<[u8]>::first);
            return after.is_some_and(|next| next.is_ascii_whitespace() || matches!(next, b'>' | b'/'));
        };
        let Some(at) = rest.windows(end.len()).position(|part| part == end) else { return false };
        rest = &rest[at + end.len()..];
    }
    false
}
