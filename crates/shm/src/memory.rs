//! Memory that ranks share: a memfd, zeroed, of a fixed size, mapped by each of them.
//!
//! One rank creates it ([`SharedMemory::create`]) and hands the descriptor to the others, which map the same pages
//! ([`SharedMemory::from_fd`]). The descriptor may be closed once all ranks have mapped it; the pages live as long as any
//! mapping or descriptor does, so a killed rank leaks nothing.
//!
//! Two things make it safe to touch every byte later without a check:
//!
//! - The pages are allocated before the mapping is handed out, and a request that exceeds what the machine and the
//!   control group have left is refused first. Shortage is an error here, never a SIGBUS or an out-of-memory kill at
//!   some later store. The check and the allocation are two steps, so others who allocate at the same moment can
//!   still defeat it.
//! - The size is sealed before any other process sees the descriptor, so that no rank can truncate the file under the
//!   others. A descriptor without these seals is refused.
//!
//! Deliberately absent: what lies in the memory and who may touch it when, which the protocols above decide and the reason why only a raw pointer is offered; and placement on NUMA nodes: pages come from the node of
//! the rank that creates them.
#![allow(unsafe_code)] // mmap and its kin are unsafe by nature, and so is copying what is mapped; nothing else here is.

use std::alloc::{Layout, handle_alloc_error};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
#[cfg(not(miri))]
use rustix::fs::{fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
#[cfg(not(miri))]
use rustix::mm::{madvise, mmap, mmap_anonymous, mremap_fixed, munmap};

use crate::{available, limits};

#[cfg(miri)]
mod interpreted;
#[cfg(miri)]
use interpreted::{
    fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, madvise, memfd_create, mmap,
    mmap_anonymous, mremap_fixed, munmap,
};

/// A mapping of memory that other ranks have mapped too.
///
/// The memory stays mapped, at the same address, until this is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: The mapping belongs to the process and not to a thread; it may be used and unmapped from any of them.
unsafe impl Send for SharedMemory {}
// SAFETY: A shared reference only yields the address and the length, which never change. Whoever reads or writes
// through the address does so in unsafe code of their own, and must already order it with other processes.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New zeroed memory and the descriptor by which others can map it. `name` shows in `/proc/<pid>/maps`.
    pub fn create(name: &str, bytes: usize) -> Result<(SharedMemory, OwnedFd), MemoryError> {
        let what = |step: &'static str| {
            move |reason: Errno| MemoryError::Create { name: name.to_owned(), bytes, step, reason }
        };
        if let Some(left) = available::memory_bytes().filter(|&left| bytes as u64 > left) {
            return Err(MemoryError::Short { name: name.to_owned(), bytes, left });
        }
        if let Some(limit) = limits::file_bytes().filter(|&limit| bytes as u64 > limit) {
            return Err(MemoryError::FileSize { name: name.to_owned(), bytes, limit });
        }
        let fd = sealable(name).map_err(what("memfd_create"))?;
        ftruncate(&fd, bytes as u64).map_err(what("ftruncate"))?;
        let memory = SharedMemory::map(&fd, bytes)?;
        if bytes > 0 {
            memory.populate();
            allocate(&fd, bytes).map_err(what("fallocate"))?;
        }
        fcntl_add_seals(&fd, SEALS).map_err(what("fcntl(F_ADD_SEALS)"))?;
        Ok((memory, fd))
    }

    /// Maps the memory that another rank created, having checked that it is as large as agreed and cannot shrink.
    pub fn from_fd(fd: impl AsFd, bytes: usize) -> Result<SharedMemory, MemoryError> {
        let found = fstat(&fd).map_err(|reason| MemoryError::Strange { reason })?.st_size;
        if u64::try_from(found).ok() != Some(bytes as u64) {
            return Err(MemoryError::Size { bytes, found });
        }
        let seals = fcntl_get_seals(&fd).map_err(|reason| MemoryError::Strange { reason })?;
        if !seals.contains(SEALS) {
            return Err(MemoryError::Unsealed { missing: format!("{:?}", SEALS - seals) });
        }
        SharedMemory::map(&fd, bytes)
    }

    /// Maps `bytes` of a file of this process. Unlike memory that ranks share it is not sealed: a process that may write the file
    /// can truncate it, and then the kernel kills a process that touches what is gone.
    pub fn of_file(file: &File, bytes: usize) -> Result<SharedMemory, MemoryError> {
        let found = fstat(file).map_err(|reason| MemoryError::Strange { reason })?.st_size;
        if u64::try_from(found).ok() != Some(bytes as u64) {
            return Err(MemoryError::Size { bytes, found });
        }
        SharedMemory::map(file, bytes)
    }

    /// Where the memory starts, at a page's boundary. Without bytes nothing is mapped, and this must not be read.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Takes a range of pages out of what is shared, for good: from now on this mapping holds a copy of its own there,
    /// at the same addresses, and what others write goes where only they see it. What they are writing meanwhile may or
    /// may not be in the copy. Other threads of this process may keep reading the range.
    ///
    /// Returns how many bytes were kept: where there is no memory for the rest of the copy, that rest is zeroed instead, which takes none
    /// until it is written.
    ///
    /// # Panics
    /// If the range is not one of whole pages within the memory.
    pub fn keep_private(&self, at: usize, bytes: usize) -> usize {
        let page = rustix::param::page_size();
        assert!(
            at.is_multiple_of(page) && bytes.is_multiple_of(page),
            "whole pages from {at} on, {bytes} bytes"
        );
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{bytes} bytes at {at}");
        // A piece at a time, so that the copy needs little address space besides what it replaces.
        for done in (0..bytes).step_by(PIECE_BYTES) {
            let piece = PIECE_BYTES.min(bytes - done);
            if available::memory_bytes().is_some_and(|left| (piece as u64) > left)
                || self.copy_privately(at + done, piece).is_err()
            {
                self.zero_privately(at + done, bytes - done);
                return done;
            }
        }
        bytes
    }

    /// Puts a copy of a range in its place.
    fn copy_privately(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: The new mapping replaces none. The range is within ours and both are whole words. Reads are volatile,
        // word by word, because others may be writing; they only get old words or new ones. Moving the copy over the
        // range is one step for all threads of this process, which find the range mapped before and after.
        unsafe {
            let target = self.base.as_ptr().add(at);
            let copy =
                mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
            for word in 0..bytes / size_of::<u64>() {
                copy.cast::<u64>().add(word).write(target.cast::<u64>().add(word).read_volatile());
            }
            let moved = mremap_fixed(copy, bytes, bytes, MremapFlags::MAYMOVE, target.cast());
            moved.map(|_| ()).inspect_err(|_| {
                let _ = munmap(copy, bytes);
            })
        }
    }

    /// Puts zeros in the place of a range, which need no memory until they are written.
    fn zero_privately(&self, at: usize, bytes: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: The range is within our mapping, which is replaced in one step; what is there is not needed any more.
        let zeroed = unsafe {
            let target = self.base.as_ptr().add(at);
            mmap_anonymous(target.cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        if zeroed.is_err() {
            handle_alloc_error(Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>()));
        }
    }

    fn map(fd: impl AsFd, bytes: usize) -> Result<SharedMemory, MemoryError> {
        if bytes == 0 {
            return Ok(SharedMemory { base: NOWHERE, bytes });
        }
        if let Some(left) = limits::address_space_bytes().filter(|&left| bytes as u64 > left) {
            return Err(MemoryError::AddressSpace { bytes, left });
        }
        // SAFETY: The kernel picks the address, so no existing mapping is replaced.
        let base = unsafe {
            mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd.as_fd(), 0)
        };
        let base = base.map_err(|reason| MemoryError::Map { bytes, reason })?;
        let base = NonNull::new(base.cast()).ok_or(MemoryError::Map { bytes, reason: Errno::NOMEM })?;
        let memory = SharedMemory { base, bytes };
        memory.advise(Advice::LinuxHugepage);
        Ok(memory)
    }

    /// Faults every page in through the mapping. Unlike fallocate, this follows the advice to use huge pages, which some
    /// systems grant only on advice. Kernels before 5.14 do not support it.
    fn populate(&self) {
        self.advise(Advice::LinuxPopulateWrite);
    }

    /// The kernel may ignore advice: huge pages make it faster, not different.
    fn advise(&self, advice: Advice) {
        // SAFETY: The range is ours and mapped, and neither advice given here changes what it holds.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: The range was mapped by `map`, is unmapped only here, and by contract its address
            // is not used after this value is dropped. Unmapping a valid range fails only if the kernel runs out of map entries.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Memory could not be shared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// There is not enough memory left. Ask for less, or free some.
    #[error(
        "cannot allocate {bytes} bytes of shared memory for {name:?}: {left} are left. Use smaller buffers or \
         fewer ranks, or raise the memory limit of the machine or container"
    )]
    Short {
        /// What the memory is for.
        name: String,
        /// The bytes asked for.
        bytes: usize,
        /// The bytes left.
        left: u64,
    },
    /// Shared memory counts as a file, and files may not be so large. Raise the limit of this process.
    #[error(
        "{bytes} bytes of shared memory for {name:?} are more than the {limit} that a file of this process may have. Raise \
         the limit of the size of files (ulimit -f)"
    )]
    FileSize {
        /// What the memory is for.
        name: String,
        /// The bytes asked for.
        bytes: usize,
        /// How many a file may have.
        limit: u64,
    },
    /// The address space of this process has no room for it. Raise its limit, or ask for less.
    #[error(
        "cannot map {bytes} bytes of shared memory: the limited address space of this process has {left} left for it. Raise \
         the limit (ulimit -v), or use smaller buffers or fewer ranks"
    )]
    AddressSpace {
        /// How many bytes.
        bytes: usize,
        /// How many there is room for.
        left: u64,
    },
    /// The kernel refused it.
    #[error(
        "cannot create {bytes} bytes of shared memory for {name:?}: {step}: {reason}. If memory is short, use smaller \
         buffers or raise the limit"
    )]
    Create {
        /// What the memory is for.
        name: String,
        /// How many bytes were asked for.
        bytes: usize,
        /// The call that failed.
        step: &'static str,
        /// Why.
        reason: Errno,
    },
    /// The kernel did not map it.
    #[error("cannot map {bytes} bytes of shared memory: {reason}. Is the address space limited (ulimit -v)?")]
    Map {
        /// How many bytes.
        bytes: usize,
        /// Why.
        reason: Errno,
    },
    /// Another size than agreed. One side is wrong: a bug, or not our descriptor.
    #[error("{bytes} bytes of shared memory were agreed on, but the descriptor holds {found}")]
    Size {
        /// What was agreed.
        bytes: usize,
        /// What was found.
        found: i64,
    },
    /// Its size could still change while it is mapped.
    #[error(
        "the descriptor of the shared memory lacks the seals {missing}: its size could change while it is mapped"
    )]
    Unsealed {
        /// Which are not there.
        missing: String,
    },
    /// Not a memfd at all.
    #[error("the descriptor is not one of shared memory: {reason}")]
    Strange {
        /// Why.
        reason: Errno,
    },
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The address of no bytes: aligned as a page is, and not null.
const NOWHERE: NonNull<u8> =
    NonNull::without_provenance(std::num::NonZero::new(4096).expect("4096 is not 0"));

/// How much is copied at a time when pages stop being shared.
const PIECE_BYTES: usize = 4 << 20;

/// How often an allocation that a signal interrupts is retried.
const INTERRUPTIONS_MAX: usize = 1000;

/// Systems may insist that memory is never executable; kernels before 6.3 do not know how to say so.
fn sealable(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        created => created,
    }
}

fn allocate(fd: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    for _ in 0..INTERRUPTIONS_MAX {
        match fallocate(fd, FallocateFlags::empty(), 0, bytes as u64) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::INTR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_are_the_same_zeroed_memory() {
        let (one, fd) = SharedMemory::create("test", 10_000).unwrap();
        let other = SharedMemory::from_fd(&fd, 10_000).unwrap();
        drop(fd);
        assert_ne!(one.as_ptr(), other.as_ptr());
        assert_eq!((one.len(), other.len()), (10_000, 10_000));
        for at in 0..10_000 {
            // SAFETY: Within the mapping, and no other thread knows of it.
            unsafe {
                assert_eq!(other.as_ptr().add(at).read_volatile(), 0);
                one.as_ptr().add(at).write_volatile(at as u8);
                assert_eq!(other.as_ptr().add(at).read_volatile(), at as u8);
            }
        }
        drop(one);
        // SAFETY: As above; the other mapping's end does not touch this one.
        assert_eq!(unsafe { other.as_ptr().add(9_999).read_volatile() }, 9_999_u32 as u8);
    }

    #[test]
    fn no_bytes_map_nothing() {
        let (one, fd) = SharedMemory::create("test", 0).unwrap();
        let other = SharedMemory::from_fd(&fd, 0).unwrap();
        assert!(one.is_empty() && other.is_empty());
        assert!(!one.as_ptr().is_null());
    }

    #[test]
    fn private_memory_is_not_shared() {
        let page = rustix::param::page_size();
        let (one, fd) = SharedMemory::create("test", 4 * page).unwrap();
        let other = SharedMemory::from_fd(&fd, 4 * page).unwrap();
        // SAFETY: Within both mappings, and no other thread knows of them.
        unsafe {
            one.as_ptr().write_bytes(1, 4 * page);
            assert_eq!(one.keep_private(page, 2 * page), 2 * page);
            other.as_ptr().write_bytes(2, 4 * page);
            let seen: Vec<u8> =
                (0..4).map(|number| one.as_ptr().add(number * page).read_volatile()).collect();
            assert_eq!(seen, [2, 1, 1, 2]);
            one.as_ptr().write_bytes(3, 4 * page);
            let seen: Vec<u8> =
                (0..4).map(|number| other.as_ptr().add(number * page).read_volatile()).collect();
            assert_eq!(seen, [3, 2, 2, 3]);
        }
        assert_eq!(one.keep_private(0, 0), 0);
        assert_eq!(one.keep_private(0, 4 * page), 4 * page);
    }

    #[test]
    fn shortage_is_an_error_that_names_the_bytes() {
        for bytes in [1_usize << 46, usize::MAX] {
            let error = SharedMemory::create("the heap", bytes).unwrap_err().to_string();
            assert!(error.contains(&bytes.to_string()) && error.contains("the heap"), "{error}");
        }
    }

    #[test]
    fn a_name_the_kernel_refuses_is_an_error() {
        let error = SharedMemory::create(&"x".repeat(300), 1).unwrap_err();
        assert!(matches!(error, MemoryError::Create { step: "memfd_create", .. }), "{error}");
    }

    #[test]
    fn all_pages_are_resident_from_the_start() {
        let (_memory, fd) = SharedMemory::create("test", 1 << 20).unwrap();
        assert_eq!(fstat(&fd).unwrap().st_blocks * 512, 1 << 20);
    }

    #[test]
    fn the_size_is_checked_and_cannot_change() {
        let (_memory, fd) = SharedMemory::create("test", 8192).unwrap();
        assert_eq!(
            SharedMemory::from_fd(&fd, 4096).unwrap_err(),
            MemoryError::Size { bytes: 4096, found: 8192 }
        );
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 16384), Err(Errno::PERM));
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let fd = sealable("test").unwrap();
        ftruncate(&fd, 4096).unwrap();
        let error = SharedMemory::from_fd(&fd, 4096).unwrap_err();
        assert!(matches!(error, MemoryError::Unsealed { .. }), "{error}");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let error = SharedMemory::from_fd(&file, bytes).unwrap_err();
        assert!(matches!(error, MemoryError::Strange { .. } | MemoryError::Unsealed { .. }), "{error}");
    }
}
