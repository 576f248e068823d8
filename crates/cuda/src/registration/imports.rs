//! What this process has mapped of other processes' memory. All communicators of the process share it: the driver opens an IPC handle once
//! per context, and memory that is mapped twice would have two addresses, between which kernels would have to order accesses.
//!
//! A part is mapped at the owner's request and stays mapped until all holders have released it, which the owner
//! requests too: only the owner knows which addresses its calls and graphs use. A part that overlaps others replaces them, because the
//! owner can only have freed those.
//!
//! Closing an IPC handle may wait for kernels, and a kernel may wait for the owner, which waits for its answer. So such memory is set aside
//! and closed by a thread that launches calls, before it launches the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use super::message::{Handle, Part, Range};

/// The most parts of one owner. An owner releases parts long before.
const PARTS_MAX: usize = 1 << 16;

/// Maps memory of other processes.
pub(crate) trait Importer {
    /// An allocation that was opened by a handle. Dropping it closes the handle.
    type Opened: Send;
    /// Reserved addresses. Dropping them unmaps what is left.
    type Reserved: Send;

    /// Opens an allocation. Returns its address, too.
    fn open(&self, handle: &[u8], bytes: u64) -> Result<(Self::Opened, u64), String>;
    /// Reserves addresses. Returns the first, too.
    fn reserve(&self, bytes: u64) -> Result<(Self::Reserved, u64), String>;
    /// Maps a part at an offset of reserved addresses.
    fn map(
        &self,
        reserved: &mut Self::Reserved,
        offset: u64,
        bytes: u64,
        shared: Shared<'_>,
    ) -> Result<(), String>;
    /// Unmaps the part at an offset. Does not wait for kernels.
    fn unmap(reserved: &mut Self::Reserved, offset: u64);
}

/// How a part is shared that is mapped into reserved addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shared<'a> {
    Descriptor(BorrowedFd<'a>),
    Fabric(&'a [u8]),
}

/// A process that owns memory, by its token, and the GPU of this process that maps it, by its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) process: u64,
    pub(crate) reader: [u8; 16],
}

/// For whom a part is mapped: a communicator of this process, and the rank that asked it. Ranks of one process may share a part, and each
/// releases it for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) communicator: usize,
    pub(crate) owner: usize,
}

/// What is mapped.
pub(crate) struct Imports<I: Importer> {
    owners: BTreeMap<Owner, Owned<I>>,
    /// Closed later.
    retired: Vec<I::Opened>,
}

/// What is mapped of one owner, by its addresses.
struct Owned<I: Importer> {
    parts: BTreeMap<u64, Imported<I>>,
    ranges: BTreeMap<Range, Mirror<I>>,
}

struct Imported<I: Importer> {
    id: u64,
    bytes: u64,
    /// Here.
    address: u64,
    holders: BTreeSet<Holder>,
    memory: Memory<I>,
}

enum Memory<I: Importer> {
    Opened(I::Opened),
    In(Range),
}

/// Reserved addresses that mirror the owner's.
struct Mirror<I: Importer> {
    reserved: I::Reserved,
    address: u64,
    parts: usize,
}

impl<I: Importer> Imports<I> {
    pub(crate) const fn new() -> Imports<I> {
        Imports { owners: BTreeMap::new(), retired: Vec::new() }
    }

    /// Maps a part, or finds it mapped. Returns its address here.
    pub(crate) fn map(
        &mut self,
        importer: &I,
        owner: Owner,
        holder: Holder,
        part: &Part,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<u64, String> {
        let end = part.end().filter(|_| part.bytes > 0).ok_or("the part has no end")?;
        let owned = self
            .owners
            .entry(owner)
            .or_insert_with(|| Owned { parts: BTreeMap::new(), ranges: BTreeMap::new() });
        if let Some(known) = owned.parts.get_mut(&part.start)
            && (known.id, known.bytes) == (part.id, part.bytes)
        {
            known.holders.insert(holder);
            return Ok(known.address);
        }
        for start in owned.overlapping(part.start, end) {
            owned.remove(start, &mut self.retired);
        }
        if owned.parts.len() >= PARTS_MAX {
            return Err(format!("{PARTS_MAX} parts of this process's memory are mapped already"));
        }
        let (memory, address) = match &part.handle {
            Handle::Ipc(handle) => {
                // The driver may refuse addresses that the owner had before, until a thread that launches calls has closed them.
                let (opened, address) = importer.open(handle, part.bytes)?;
                (Memory::Opened(opened), address)
            }
            Handle::Descriptor { range } => {
                let shared = Shared::Descriptor(descriptor.ok_or("no descriptor came with the part")?);
                (Memory::In(*range), owned.map(importer, *range, part, shared)?)
            }
            Handle::Fabric { range, handle } => {
                (Memory::In(*range), owned.map(importer, *range, part, Shared::Fabric(handle))?)
            }
        };
        let holders = BTreeSet::from([holder]);
        let imported = Imported { id: part.id, bytes: part.bytes, address, holders, memory };
        owned.parts.insert(part.start, imported);
        Ok(address)
    }

    /// A holder no longer uses parts of an owner.
    pub(crate) fn release(&mut self, owner: Owner, holder: Holder, ids: &[u64]) {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        self.release_if(|whose, id, by| *whose == owner && by == holder && ids.contains(&id));
    }

    /// A communicator uses nothing any more.
    pub(crate) fn release_all(&mut self, communicator: usize) {
        self.release_if(|_, _, by| by.communicator == communicator);
    }

    /// Memory to be closed: to be dropped by a thread that may wait for kernels.
    pub(crate) fn take_retired(&mut self) -> Vec<I::Opened> {
        std::mem::take(&mut self.retired)
    }

    /// The same if there is any and kernels would not be waited for.
    pub(crate) fn take_retired_if(&mut self, is_idle: impl FnOnce() -> bool) -> Vec<I::Opened> {
        if self.retired.is_empty() || !is_idle() { Vec::new() } else { self.take_retired() }
    }

    fn release_if(&mut self, is_meant: impl Fn(&Owner, u64, Holder) -> bool) {
        for (owner, owned) in &mut self.owners {
            let mut unused = Vec::new();
            for (start, part) in &mut owned.parts {
                part.holders.retain(|holder| !is_meant(owner, part.id, *holder));
                if part.holders.is_empty() {
                    unused.push(*start);
                }
            }
            for start in unused {
                owned.remove(start, &mut self.retired);
            }
        }
        self.owners.retain(|_, owned| !owned.parts.is_empty());
    }
}

impl<I: Importer> Owned<I> {
    /// Maps a part into the mirror of a range. Returns its address.
    fn map(&mut self, importer: &I, range: Range, part: &Part, shared: Shared<'_>) -> Result<u64, String> {
        let offset = part.start.checked_sub(range.start);
        let offset =
            offset.filter(|offset| offset.checked_add(part.bytes).is_some_and(|end| end <= range.bytes));
        let offset = offset.ok_or("the part does not lie in its range")?;
        let is_new = !self.ranges.contains_key(&range);
        if is_new {
            let (reserved, address) = importer.reserve(range.bytes)?;
            self.ranges.insert(range, Mirror { reserved, address, parts: 0 });
        }
        let mirror = self.ranges.get_mut(&range).ok_or("the range is not reserved")?;
        match importer.map(&mut mirror.reserved, offset, part.bytes, shared) {
            Ok(()) => {
                mirror.parts += 1;
                Ok(mirror.address + offset)
            }
            Err(why) => {
                if is_new {
                    self.ranges.remove(&range);
                }
                Err(why)
            }
        }
    }

    /// The parts that overlap a range of the owner's addresses.
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        let before_end = self.parts.range(..end).rev();
        before_end.take_while(|(at, part)| *at + part.bytes > start).map(|(at, _)| *at).collect()
    }

    fn remove(&mut self, start: u64, retired: &mut Vec<I::Opened>) {
        match self.parts.remove(&start).map(|part| part.memory) {
            Some(Memory::Opened(opened)) => retired.push(opened),
            Some(Memory::In(range)) => {
                if let Some(mirror) = self.ranges.get_mut(&range) {
                    I::unmap(&mut mirror.reserved, start - range.start);
                    mirror.parts -= 1;
                    if mirror.parts == 0 {
                        self.ranges.remove(&range);
                    }
                }
            }
            None => {}
        }
    }
}
