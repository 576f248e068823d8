//! The system calls of `memory.rs` for Miri, which does not support memory shared through a descriptor: ranks that are threads of the
//! interpreted process map a descriptor to the same block of ordinary memory. Miri then checks the order of all their accesses.
//!
//! Deliberately absent: processes, and copies that are private ([`mremap_fixed`] leaves what is shared): calls that fail.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

const PAGE: usize = 4096;

/// Blocks by the descriptor for which they were made. A descriptor that is closed leaves its block to the next of its number.
static BLOCKS: Mutex<BTreeMap<RawFd, Block>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Default)]
struct Block {
    address: usize,
    bytes: usize,
    seals: u32,
}

pub(super) struct Stat {
    pub(super) st_size: i64,
    #[allow(dead_code, reason = "a test of descriptors asks")]
    pub(super) st_blocks: i64,
}

fn blocks() -> MutexGuard<'static, BTreeMap<RawFd, Block>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block(fd: impl AsFd) -> Block {
    blocks().get(&fd.as_fd().as_raw_fd()).copied().unwrap_or_default()
}

pub(super) fn memfd_create(_name: &str, _flags: MemfdFlags) -> Result<OwnedFd> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
    blocks().insert(fd.as_raw_fd(), Block::default());
    Ok(fd)
}

pub(super) fn ftruncate(fd: impl AsFd, bytes: u64) -> Result<()> {
    let (fd, bytes) = (fd.as_fd().as_raw_fd(), bytes as usize);
    let layout = Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| rustix::io::Errno::NOMEM)?;
    // SAFETY: the layout has a size. Whoever maps it keeps its address exposed, so this is never freed before the program ends.
    let address = unsafe { alloc_zeroed(layout) }.expose_provenance();
    blocks().insert(fd, Block { address, bytes, seals: 0 });
    Ok(())
}

pub(super) fn fallocate(_fd: impl AsFd, _flags: FallocateFlags, _from: u64, _bytes: u64) -> Result<()> {
    Ok(())
}

pub(super) fn fcntl_add_seals(fd: impl AsFd, seals: SealFlags) -> Result<()> {
    if let Some(block) = blocks().get_mut(&fd.as_fd().as_raw_fd()) {
        block.seals |= seals.bits();
    }
    Ok(())
}

pub(super) fn fcntl_get_seals(fd: impl AsFd) -> Result<SealFlags> {
    Ok(SealFlags::from_bits_retain(block(fd).seals))
}

pub(super) fn fstat(fd: impl AsFd) -> Result<Stat> {
    let bytes = block(fd).bytes as i64;
    Ok(Stat { st_size: bytes, st_blocks: bytes / 512 })
}

pub(super) unsafe fn mmap(
    _near: *mut c_void,
    _bytes: usize,
    _access: ProtFlags,
    _flags: MapFlags,
    fd: impl AsFd,
    _from: u64,
) -> Result<*mut c_void> {
    Ok(std::ptr::with_exposed_provenance_mut(block(fd).address))
}

pub(super) unsafe fn munmap(_address: *mut c_void, _bytes: usize) -> Result<()> {
    Ok(())
}

pub(super) unsafe fn madvise(_address: *mut c_void, _bytes: usize, _advice: Advice) -> Result<()> {
    Ok(())
}

pub(super) unsafe fn mmap_anonymous(
    _near: *mut c_void,
    bytes: usize,
    _access: ProtFlags,
    _flags: MapFlags,
) -> Result<*mut c_void> {
    let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| rustix::io::Errno::NOMEM)?;
    // SAFETY: callers ask for some bytes.
    Ok(unsafe { alloc_zeroed(layout) }.cast())
}

pub(super) unsafe fn mremap_fixed(
    copy: *mut c_void,
    bytes: usize,
    _new_bytes: usize,
    _flags: MremapFlags,
    target: *mut c_void,
) -> Result<*mut c_void> {
    let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| rustix::io::Errno::NOMEM)?;
    // SAFETY: what `mmap_anonymous` gave for as many bytes, which no other thread knows of.
    unsafe { dealloc(copy.cast(), layout) };
    Ok(target)
}
