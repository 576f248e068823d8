//! Limits of this process (`ulimit`): exceeding one is an error that says what to raise, not a signal or a panic.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::anyhow;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;

/// With less address space, small allocations may fail, which aborts the process.
const ADDRESS_SPACE_BYTES_MIN: u64 = 64 << 20;
/// The stack of a thread that forwards messages.
const STACK_BYTES: usize = 256 << 10;

/// Checks the limits, and turns signals about them into errors.
pub(crate) fn prepare() -> Result<(), String> {
    if let Some(limit) = getrlimit(Resource::As).current.filter(|limit| *limit < ADDRESS_SPACE_BYTES_MIN) {
        let (limit, least) = (limit >> 10, ADDRESS_SPACE_BYTES_MIN >> 10);
        return Err(format!(
            "the address space of this process is limited to {limit} KiB; it needs {least} KiB. Raise the limit (ulimit -v {least})"
        ));
    }
    // With a handler, a write beyond the limit of the file size is an error. Child processes do not inherit it.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))
        .map(drop)
        .map_err(|error| format!("cannot handle SIGXFSZ: {error}"))
}

/// Starts a thread that receives messages.
pub(crate) fn listener(work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let started = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    started.map(drop).map_err(|error| anyhow!(weftlink_shm::limits::no_thread(&error)))
}

/// Advice for a process that could not be started.
pub(crate) fn no_process(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            ". Raise the limit of processes (ulimit -u, or that of the container) or of memory (ulimit -v)"
        }
        _ => "",
    }
}
