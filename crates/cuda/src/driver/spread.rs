//! Memory of several GPUs behind one range of addresses: each has a share, and every GPU can use all of it.
//!
//! Unverified on more than one GPU: it was tested with several shares on one.

use super::memory::sealed::Sealed;
use super::{Allocation, Context, Device, DeviceAddress, DeviceBuffer, HandleKind, Mapping, Stream};
use crate::error::Error;

/// Memory of several GPUs with consecutive addresses, of any content at first. Dropping it unmaps it, at once: no kernel may use it any more.
///
/// Ranks in other processes can map it: each share has a handle. Kernels of a GPU reach the shares of the others over NVLink or PCIe, so work
/// runs best on the GPU whose share it uses.
#[derive(Debug)]
pub struct SpreadMemory {
    mapping: Mapping,
    shares: Vec<Share>,
}

/// The part of a GPU.
#[derive(Clone, Debug)]
pub struct Share {
    /// The GPU.
    pub device: Device,
    /// Where it begins.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

impl SpreadMemory {
    /// Allocates memory in equal shares on these GPUs, each rounded to what the driver can map (2 MiB). A short memory uses the first GPUs only. A
    /// GPU that is listed several times has several shares. The context is that of the first GPU.
    pub fn over(devices: &[Device], bytes: usize) -> Result<SpreadMemory, Error> {
        let misuse = |why: String| {
            Err(Error::Misuse { attempt: format!("allocate {bytes} bytes on {} GPUs", devices.len()), why })
        };
        let Some(first) = devices.first() else { return misuse("no GPU is listed".to_owned()) };
        let mut unit = 1;
        for device in devices {
            unit = unit.max(device.granularity(HandleKind::PosixDescriptor)?.minimum);
            for other in devices.iter().filter(|other| other.uuid != device.uuid) {
                if device.link_to(other)?.is_none() {
                    let (one, two) = (device.ordinal, other.ordinal);
                    return misuse(format!("GPU {one} cannot access the memory of GPU {two}"));
                }
            }
        }
        let Some(lengths) = lengths(bytes, devices.len(), unit) else {
            return misuse("the length is too large".to_owned());
        };
        let (mut shares, mut allocations, mut offset) = (Vec::new(), Vec::new(), 0);
        for (device, bytes) in std::iter::zip(devices, lengths) {
            allocations.push(Allocation::create(device, bytes, HandleKind::PosixDescriptor)?);
            shares.push(Share { device: device.clone(), offset, bytes });
            offset += bytes;
        }
        let context = Context::primary(first)?;
        let allocations: Vec<&Allocation> = allocations.iter().collect();
        let mapping = Mapping::new(&context, &allocations, &distinct(devices))?;
        Ok(SpreadMemory { mapping, shares })
    }

    /// The shares, by their addresses.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Calls a function for each share's part of a range that lies inside: its address, its offset from the start of the range, and its length.
    fn each_part(
        &self,
        offset: usize,
        bytes: usize,
        mut call: impl FnMut(DeviceAddress, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let shares = self.shares.iter().map(|share| (share.offset, share.bytes));
        parts(shares, offset, bytes)
            .try_for_each(|(from, length)| call(self.address() + from as u64, from - offset, length))
    }
}

impl Sealed for SpreadMemory {}

impl DeviceBuffer for SpreadMemory {
    fn context(&self) -> &Context {
        self.mapping.context()
    }

    fn address(&self) -> DeviceAddress {
        self.mapping.address()
    }

    fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    // A copy stays in one share.

    fn write(&self, stream: &Stream, offset: usize, source: &[u8]) -> Result<(), Error> {
        self.place(offset, source.len(), "write")?;
        let started = self.each_part(offset, source.len(), |target, at, length| {
            let source = source[at..at + length].as_ptr();
            // SAFETY: the target lies inside this memory; the source is borrowed until the copies are done.
            unsafe { stream.copy_from_host(target, source.cast(), length) }
        });
        stream.synchronize().and(started)
    }

    fn read(&self, stream: &Stream, offset: usize, target: &mut [u8]) -> Result<(), Error> {
        self.place(offset, target.len(), "read")?;
        let started = self.each_part(offset, target.len(), |source, at, length| {
            let target = target[at..at + length].as_mut_ptr();
            // SAFETY: the source lies inside this memory; the target is borrowed until the copies are done.
            unsafe { stream.copy_to_host(target.cast(), source, length) }
        });
        stream.synchronize().and(started)
    }

    fn fill(&self, stream: &Stream, offset: usize, bytes: usize, value: u8) -> Result<(), Error> {
        self.place(offset, bytes, "fill")?;
        self.each_part(offset, bytes, |target, _, length| {
            // SAFETY: the target lies inside this memory of a GPU, which is no memory of the process.
            unsafe { stream.fill_bytes(target, value, length) }
        })
    }
}

/// The lengths of equal shares in whole units; fewer if there are fewer units.
fn lengths(bytes: usize, shares: usize, unit: usize) -> Option<Vec<usize>> {
    let units = bytes.max(1).div_ceil(unit);
    units.checked_mul(unit)?;
    let of = |share: usize| (units / shares + usize::from(share < units % shares)) * unit;
    Some((0..shares).map(of).filter(|bytes| *bytes > 0).collect())
}

/// The offset and length of each share's part of a range.
fn parts(
    shares: impl Iterator<Item = (usize, usize)>,
    offset: usize,
    bytes: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let part = move |(first, length): (usize, usize)| {
        let [from, to] = [offset.max(first), (offset + bytes).min(first + length)];
        (from < to).then(|| (from, to - from))
    };
    shares.filter_map(part)
}

fn distinct(devices: &[Device]) -> Vec<&Device> {
    let is_first =
        |(at, device): &(usize, &Device)| !devices[..*at].iter().any(|one| one.uuid == device.uuid);
    devices.iter().enumerate().filter(is_first).map(|(_, device)| device).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn shares_are_equal_in_whole_units() {
        for (bytes, shares, expected) in [
            (0, 3, &[10][..]),
            (11, 3, &[10, 10]),
            (30, 3, &[10, 10, 10]),
            (31, 3, &[20, 10, 10]),
            (100, 3, &[40, 30, 30]),
        ] {
            assert_eq!(lengths(bytes, shares, 10).unwrap(), expected, "{bytes} bytes");
        }
        assert_eq!(lengths(usize::MAX, 3, 1 << 21), None);
    }

    #[test]
    fn a_range_is_cut_where_shares_end() {
        let cut = |offset, bytes| {
            parts([(0, 40), (40, 30), (70, 30)].into_iter(), offset, bytes).collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 100), [(0, 40), (40, 30), (70, 30)]);
        assert_eq!(cut(39, 2), [(39, 1), (40, 1)]);
        assert_eq!(cut(40, 30), [(40, 30)]);
        assert_eq!(cut(50, 0), []);
    }
}
