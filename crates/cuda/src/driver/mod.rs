//! The CUDA driver: a thin safe layer over its C interface.
//!
//! Everything begins with [`Driver::load`], which fails where there is no driver; no other type can be made without it. Handles are owned:
//! dropping one releases it. Each method makes the context of its object current for the call and then restores the caller's, so it works on
//! any thread and beside PyTorch.
//!
//! The unsafe code of the crate that talks to the driver is in this module.
//!
//! Deliberately absent: a context of our own (PyTorch uses the primary one, and so do we), PTX, arrays, textures, managed memory.

#![allow(unsafe_code, reason = "calls the C functions of the CUDA driver")]

mod context;
mod device;
mod event;
mod functions;
mod graph;
mod ipc;
mod launch;
mod memory;
mod module;
mod multicast;
mod pinned;
mod pointer;
mod spread;
mod stream;
mod vmm;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::os::unix;

pub use context::{Context, Entered};
pub use device::{Device, PeerLink};
pub use event::Event;
pub use graph::Graph;
pub use ipc::{IpcHandle, IpcMemory};
pub use launch::{Launch, Parameters};
pub use memory::{DeviceAddress, DeviceBuffer, DeviceMemory};
pub use module::{Function, FunctionAttributes, Module};
pub use multicast::Multicast;
pub use pinned::{PinnedMemory, Registration};
pub use pointer::{MemoryKind, Pointer};
pub use spread::{Share, SpreadMemory};
pub use stream::{Capture, RelaxedCapture, Stream};
pub use vmm::{Allocation, AllocationInfo, Granularity, HandleKind, Mapping, Reservation};

use crate::error::{self, Error};
use functions::{CaptureFunctions, Code, Functions, MulticastFunctions, OtherFunctions};

const SUCCESS: Code = 0;
/// Of `dlopen`.
const RTLD_NOLOAD: c_int = 4;
/// The process is exiting, and the driver has released everything already.
const DEINITIALIZED: Code = 4;
/// The process was forked, and what it drops belongs to another.
const NOT_INITIALIZED: Code = 3;

struct Table {
    functions: Functions,
    others: OtherFunctions,
    multicast: Option<MulticastFunctions>,
    captures: Option<CaptureFunctions>,
}

/// A driver that was loaded and initialised.
#[derive(Clone, Copy)]
pub struct Driver {
    table: &'static Table,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

impl Driver {
    /// Loads the driver's library on the first call, and initialises CUDA. An error is not remembered.
    pub fn load() -> Result<Driver, Error> {
        static TABLE: OnceLock<Table> = OnceLock::new();
        let table = match TABLE.get() {
            Some(table) => table,
            None => {
                let table = load_table()?;
                TABLE.get_or_init(|| table)
            }
        };
        let driver = Driver { table };
        // SAFETY: the flags must be 0. Later calls return at once.
        driver.check(unsafe { (driver.cu().cuInit)(0) }, || "initialise CUDA".to_owned())?;
        Ok(driver)
    }

    /// The driver, if the program has loaded it. Loads nothing.
    pub fn if_loaded() -> Option<Driver> {
        static LOADED: OnceLock<Driver> = OnceLock::new();
        /// How many libraries there were when the driver was looked for in vain. The search reads folders, for 40 us.
        static SEARCHED: AtomicU64 = AtomicU64::new(0);
        LOADED.get().copied().or_else(|| {
            let libraries = libraries_loaded();
            if libraries > 0 && SEARCHED.load(Ordering::Relaxed) == libraries {
                return None;
            }
            // SAFETY: nothing is loaded.
            let loaded = unsafe { unix::Library::open(Some("libcuda.so.1"), RTLD_NOLOAD | unix::RTLD_NOW) };
            if loaded.is_err() {
                SEARCHED.store(libraries, Ordering::Relaxed);
            }
            let driver = loaded.ok().and_then(|_| Driver::load().ok())?;
            Some(*LOADED.get_or_init(|| driver))
        })
    }

    /// The version of CUDA that the driver supports: 13000 for 13.0.
    pub fn version(self) -> Result<u32, Error> {
        let mut version: c_int = 0;
        // SAFETY: the address is of an integer.
        let code = unsafe { (self.cu().cuDriverGetVersion)(&raw mut version) };
        self.check(code, || "read the driver's version".to_owned())?;
        Ok(version.unsigned_abs())
    }

    fn cu(self) -> &'static Functions {
        &self.table.functions
    }

    fn multicast(self) -> Result<&'static MulticastFunctions, Error> {
        let missing = "cuMulticastCreate (CUDA 12.1)";
        self.table
            .multicast
            .as_ref()
            .ok_or_else(|| Error::DriverTooOld { version: self.version().unwrap_or(0), missing })
    }

    /// An error, unless the call succeeded.
    fn check(self, code: Code, attempt: impl FnOnce() -> String) -> Result<(), Error> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(code, attempt())) }
    }

    /// Logs that something could not be released.
    fn released(self, code: Code, attempt: impl FnOnce() -> String) {
        if error::is_context_lost(code) {
            // The driver has released everything with the context, whose loss a call has reported.
            tracing::debug!(target: "weft::fault", "{}", self.error(code, attempt()));
        } else if ![SUCCESS, DEINITIALIZED, NOT_INITIALIZED].contains(&code) {
            tracing::warn!(target: "weft::fault", "{}", self.error(code, attempt()));
        }
    }

    #[cold]
    fn error(self, code: Code, attempt: String) -> Error {
        let others = &self.table.others;
        let text = |read: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the functions take any number and store the address of a constant string, or null.
            let found = unsafe { read(code, &raw mut text) };
            let is_found = found == SUCCESS && !text.is_null();
            // SAFETY: it is a string that the driver never frees.
            is_found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        Error::Cuda {
            attempt,
            code,
            name: text(others.cuGetErrorName).unwrap_or_else(|| format!("CUDA error {code}")),
            text: text(others.cuGetErrorString).unwrap_or_else(|| "no description".to_owned()),
            advice: error::advice(code),
        }
    }
}

fn load_table() -> Result<Table, Error> {
    // SAFETY: the driver's library may be loaded at any time; it starts nothing until cuInit.
    let opened = unsafe { unix::Library::new("libcuda.so.1") };
    let library = opened.map_err(|error| Error::NoDriver {
        why: std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
    })?;
    let table = tables(&library);
    // It stays loaded: the functions are used until the process ends.
    let _ = library.into_raw();
    table
}

/// How many libraries the process has loaded so far; 0 if the C library does not say.
fn libraries_loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, bytes: usize, loaded: *mut c_void) -> c_int {
        if bytes >= size_of::<libc::dl_phdr_info>() {
            // SAFETY: the C library's structure, and the number below.
            unsafe { *loaded.cast::<u64>() = (*info).dlpi_adds };
        }
        // Every library has the same number.
        1
    }
    let mut loaded = 0_u64;
    // SAFETY: the function is called before this returns, with the address of an integer.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loaded).cast()) };
    loaded
}

fn tables(library: &unix::Library) -> Result<Table, Error> {
    let version = || {
        let mut version: c_int = 0;
        // SAFETY: the type is the function's.
        let read = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> Code>("cuDriverGetVersion") };
        // SAFETY: the address is of an integer.
        let code = read.map(|read| unsafe { read(&raw mut version) });
        code.ok().filter(|code| *code == SUCCESS).map_or(0, |_| version.unsigned_abs())
    };
    let too_old = |missing| Error::DriverTooOld { version: version(), missing };
    Ok(Table {
        functions: Functions::of(library).map_err(too_old)?,
        others: OtherFunctions::of(library).map_err(too_old)?,
        multicast: MulticastFunctions::of(library).ok(),
        captures: CaptureFunctions::of(library).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True where a driver is installed; the tests of the driver itself are the example's.
    fn has_driver() -> bool {
        // SAFETY: as in `load_table`.
        unsafe { unix::Library::new("libcuda.so.1") }.is_ok()
    }

    #[test]
    fn without_a_driver_loading_is_an_error_that_says_what_to_do() {
        match Driver::load() {
            Err(error @ Error::NoDriver { .. }) => {
                assert!(!has_driver());
                let text = error.to_string();
                assert!(text.starts_with("the CUDA driver (libcuda.so.1) cannot be loaded: "), "{text}");
                assert!(text.contains("Install the NVIDIA driver"), "{text}");
                assert!(text.contains("libcuda.so.1: cannot open shared object file"), "{text}");
                assert_eq!(Driver::load().unwrap_err(), error, "again");
            }
            other => assert!(has_driver(), "{other:?}"),
        }
    }

    #[test]
    fn a_library_without_the_functions_is_too_old() {
        // SAFETY: the C library is loaded already.
        let library = unsafe { unix::Library::new("libc.so.6") }.unwrap();
        let error = tables(&library).err().unwrap();
        assert_eq!(error, Error::DriverTooOld { version: 0, missing: "cuInit" });
    }
}
