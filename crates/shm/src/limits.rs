//! Limits of this process (`ulimit`), so that a shortage is an error that says which limit to raise.
//!
//! A process that exceeds them is killed, or its allocator ends it: by SIGXFSZ at the limit of a file's size, which is that of
//! shared memory too, and by SIGABRT where the address space ends. So whatever is large is compared with them first. The check and
//! the use are two steps; other threads can still use up what is left in between.

use std::fs::File;
use std::io::{self, Write};

use rustix::process::{Resource, getrlimit};

/// The address space reserved for small allocations when something large is mapped.
const SPARE_BYTES: u64 = 8 << 20;
/// The stack of a thread that receives from or monitors other ranks.
pub const STACK_BYTES: usize = 512 << 10;

/// The largest file, shared memory included, that this process may make; nothing if there is no limit.
pub fn file_bytes() -> Option<u64> {
    // An interpreter makes no system calls.
    if cfg!(miri) {
        return None;
    }
    getrlimit(Resource::Fsize).current
}

/// Fails if a file of this many bytes would exceed the limit.
pub fn fits_a_file(bytes: u64) -> io::Result<()> {
    match file_bytes() {
        Some(limit) if bytes > limit => {
            let what =
                format!("{bytes} bytes are more than a file may have ({limit}). Raise the limit (ulimit -f)");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
        }
        _ => Ok(()),
    }
}

/// Appends to a file, if it stays within the limit.
pub fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if file_bytes().is_some() {
        fits_a_file(file.metadata()?.len().saturating_add(bytes.len() as u64))?;
    }
    file.write_all(bytes)
}

/// How much address space is left for something large; nothing if there is no limit.
pub fn address_space_bytes() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let limit = getrlimit(Resource::As).current?;
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_whitespace().next()?.parse().ok()?;
    let used = pages.saturating_mul(rustix::param::page_size() as u64);
    Some(limit.saturating_sub(used).saturating_sub(SPARE_BYTES))
}

/// Why a thread could not be started, and what to do about it.
pub fn no_thread(error: &io::Error) -> String {
    format!("cannot start a thread: {}", thread_advice(error))
}

/// The same without what was tried.
pub fn thread_advice(error: &io::Error) -> String {
    let advice = "Raise the limit of threads (ulimit -u, or the container's limit of processes) or of address space (ulimit -v)";
    format!("{error}. {advice}")
}
