//! What peers have mapped of this rank's memory: for each part, the address that each peer uses.
//!
//! Every call walks its buffers part by part and compares the id of each part, never its address alone: memory that was freed and allocated
//! again at the same address has another id. The number of parts is bounded. Parts that no recent call used are released first; parts of
//! calls that were captured into graphs stay, because a graph holds the peers' addresses, and so do parts of buffers that are held: peers write to
//! them without a call of the owner.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::message::Part;

/// What the owner asks the driver about its memory.
pub(crate) trait Exporter {
    /// The id of the part at an address.
    fn id_at(&self, address: u64) -> Result<u64, Refusal>;
    /// The part at an address.
    fn part_at(&self, address: u64) -> Result<Part, Refusal>;
    /// The descriptor of a part that is shared by one.
    fn descriptor_of(&self, part: &Part) -> Result<Option<OwnedFd>, String>;
}

/// Why other processes cannot map a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The driver does not share memory of this kind.
    Unshareable(String),
    /// Something else.
    Failed(String),
}

/// The parts that peers have mapped, by their addresses.
#[derive(Debug)]
pub(crate) struct Exports {
    parts: BTreeMap<u64, Exported>,
    parts_max: usize,
    calls: u64,
    /// Buffers that stay mapped until they are let go: address and length.
    held: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Exported {
    id: u64,
    bytes: u64,
    /// For each peer.
    addresses: Vec<u64>,
    /// The last call that used it.
    call: u64,
    is_pinned: bool,
}

impl Exports {
    pub(crate) fn new(parts_max: usize) -> Exports {
        Exports { parts: BTreeMap::new(), parts_max, calls: 0, held: Vec::new() }
    }

    /// Begins a call: parts that later functions name are in use by it.
    pub(crate) fn begin_call(&mut self) {
        self.calls += 1;
    }

    /// The parts of a buffer that peers have not mapped.
    pub(crate) fn missing(
        &self,
        exporter: &impl Exporter,
        address: u64,
        bytes: u64,
    ) -> Result<Vec<Part>, Refusal> {
        let failed = |why: &str| Refusal::Failed(format!("{why} at {address:#x}"));
        let end = address.checked_add(bytes).ok_or_else(|| failed("no buffer has this length"))?;
        let (mut at, mut missing) = (address, Vec::new());
        while at < end {
            let id = exporter.id_at(at)?;
            at = match self.at(at) {
                Some((start, known)) if known.id == id => start + known.bytes,
                _ => {
                    let part = exporter.part_at(at)?;
                    let next = part.end().filter(|next| part.start <= at && at < *next);
                    let next = next.ok_or_else(|| failed("the driver does not know the buffer"))?;
                    missing.push(part);
                    next
                }
            };
        }
        Ok(missing)
    }

    /// All peers have mapped a part, each at its address.
    pub(crate) fn insert(&mut self, part: &Part, addresses: Vec<u64>) {
        let end = part.start + part.bytes;
        let overlaps = |(at, known): &(&u64, &Exported)| **at + known.bytes > part.start;
        let freed: Vec<u64> = self.parts.range(..end).rev().take_while(overlaps).map(|(at, _)| *at).collect();
        freed.iter().for_each(|at| {
            self.parts.remove(at);
        });
        let exported =
            Exported { id: part.id, bytes: part.bytes, addresses, call: self.calls, is_pinned: false };
        self.parts.insert(part.start, exported);
    }

    /// The address of a buffer at each peer, for the call that began last. All its parts were inserted. An error names the peer at which it
    /// is not contiguous.
    pub(crate) fn addresses(
        &mut self,
        address: u64,
        bytes: u64,
        is_captured: bool,
    ) -> Result<Vec<u64>, NotContiguous> {
        let mut first: Option<(u64, Vec<u64>)> = None;
        let end = address.saturating_add(bytes);
        let from = self.at(address).map_or(address, |(start, _)| start);
        for (&start, part) in self.parts.range_mut(from..end) {
            (part.call, part.is_pinned) = (self.calls, part.is_pinned || is_captured);
            let (origin, bases) = first.get_or_insert_with(|| (start, part.addresses.clone()));
            let offset = start - *origin;
            let pairs = std::iter::zip(&*bases, &part.addresses);
            if let Some(peer) = pairs.into_iter().position(|(base, here)| base.wrapping_add(offset) != *here)
            {
                return Err(NotContiguous { peer });
            }
        }
        let (origin, bases) = first.unwrap_or_default();
        Ok(bases.into_iter().map(|base| base.wrapping_add(address - origin)).collect())
    }

    /// Forgets the parts that were not used for longest, if there are too many. Returns their ids: peers may unmap them once the calls that
    /// were launched before have ended.
    pub(crate) fn evict(&mut self) -> Vec<u64> {
        let excess = self.parts.len().saturating_sub(self.parts_max);
        let is_free = |start: u64, part: &Exported| !part.is_pinned && !is_held(&self.held, start, part);
        let free = self.parts.iter().filter(|(start, part)| part.call < self.calls && is_free(**start, part));
        let mut oldest: Vec<(u64, u64)> = free.map(|(start, part)| (part.call, *start)).collect();
        oldest.sort_unstable();
        oldest.truncate(excess);
        oldest.iter().filter_map(|(_, start)| self.parts.remove(start)).map(|part| part.id).collect()
    }

    /// Keeps the parts of a buffer until it is let go as often as it was held.
    pub(crate) fn hold(&mut self, address: u64, bytes: u64) {
        self.held.push((address, bytes));
    }

    pub(crate) fn let_go(&mut self, address: u64, bytes: u64) {
        if let Some(at) = self.held.iter().position(|held| *held == (address, bytes)) {
            self.held.swap_remove(at);
        }
    }

    /// Forgets all parts but pinned and held ones. Returns their ids.
    pub(crate) fn take_unpinned(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        let held = &self.held;
        self.parts.retain(|start, part| {
            let stays = part.is_pinned || is_held(held, *start, part);
            if !stays {
                ids.push(part.id);
            }
            stays
        });
        ids
    }

    /// The part that an address lies in.
    fn at(&self, address: u64) -> Option<(u64, &Exported)> {
        let (start, part) = self.parts.range(..=address).next_back()?;
        (address - start < part.bytes).then_some((*start, part))
    }
}

/// Whether a part has bytes of a buffer that is held.
fn is_held(held: &[(u64, u64)], start: u64, part: &Exported) -> bool {
    let end = start.saturating_add(part.bytes);
    held.iter().any(|(address, bytes)| *address < end && start < address.saturating_add(*bytes))
}

/// A buffer lies in parts that a peer could not map side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotContiguous {
    pub(crate) peer: usize,
}
