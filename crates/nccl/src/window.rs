//! A window of a rank, and what it knows of the windows of the others.

use std::sync::OnceLock;

use crate::failure::Failure;

/// A window of this rank.
#[derive(Debug)]
pub(crate) struct Window {
    /// Its handle.
    pub(crate) number: usize,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) on_gpu: bool,
    /// The window of each rank, or why this rank cannot write to them. Empty until all ranks have registered theirs.
    pub(crate) peers: OnceLock<Result<Vec<Place>, String>>,
}

/// The window of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The rank's handle of it.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    /// For this rank's GPU, if the windows are memory of GPUs.
    pub(crate) address: u64,
}

impl Window {
    /// The window of a rank, for bytes at an offset.
    pub(crate) fn place(&self, peer: usize, offset: u64, bytes: usize) -> Result<Place, Failure> {
        let early =
            || Failure::usage("the window is not registered yet on all ranks: its group has not ended");
        let places = self.peers.get().ok_or_else(early)?;
        let places =
            places.as_ref().map_err(|why| Failure::usage(format!("cannot put to this window: {why}")))?;
        let place = places[peer];
        if offset.checked_add(bytes as u64).is_none_or(|end| end > place.bytes) {
            return Err(Failure::argument(format!(
                "{bytes} bytes at offset {offset} exceed the window of rank {peer}, which has {} bytes",
                place.bytes
            )));
        }
        Ok(place)
    }
}
