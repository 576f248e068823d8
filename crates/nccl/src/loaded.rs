//! Whether the program uses this NCCL, and not another one in the same process.
//!
//! A program, and a library such as libtorch_cuda.so, uses the first library in the global scope that has NCCL's functions: the program's own
//! libraries, in the order of `LD_PRELOAD`, the link line, and `dlopen` with `RTLD_GLOBAL`. If that is this one, another may be mapped and is not
//! used: PyTorch maps the NCCL of its wheel by path, whatever is preloaded. If nothing global has the functions, this library was loaded by a
//! handle, and a second NCCL belongs to somebody else in the process.
//!
//! The functions are looked for by their `pnccl` names, because a profiler may define the others.

// Asks the dynamic linker.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use crate::failure::Failure;
use crate::log;

/// Refuses to make communicators if the program uses another NCCL. The first answer counts.
pub(crate) fn check() -> Result<(), Failure> {
    static CHECKED: OnceLock<Result<(), Failure>> = OnceLock::new();
    CHECKED.get_or_init(look).clone()
}

fn look() -> Result<(), Failure> {
    let own = look as *const c_void;
    let (own_file, global) = (file_of(own), global());
    let mapped = others(own);
    let other = match global {
        Some(found) if file_of(found) == own_file => {
            for other in mapped {
                log::info(None, &format!("{other} is mapped, too; the program uses {own_file}"));
            }
            return Ok(());
        }
        Some(found) => file_of(found),
        None => match mapped.into_iter().next() {
            Some(other) => other,
            None => return Ok(()),
        },
    };
    Err(Failure::usage(format!(
        "two NCCLs are in this process, and the program uses {other} instead of {own_file}, or both. Load Weft's first: LD_PRELOAD={own_file}, \
         or weft run --nccl. To see them: grep libnccl /proc/{}/maps",
        std::process::id()
    )))
}

/// The function that programs find, if it is in the global scope.
fn global() -> Option<*const c_void> {
    // SAFETY: a handle of the program itself, which loads nothing; the name ends with 0.
    unsafe {
        let program = libc::dlopen(std::ptr::null(), libc::RTLD_LAZY);
        if program.is_null() {
            return None;
        }
        let found = libc::dlsym(program, c"pncclAllReduce".as_ptr());
        libc::dlclose(program);
        (!found.is_null()).then_some(found.cast_const())
    }
}

/// The file of the library or program that an address is in.
fn file_of(address: *const c_void) -> String {
    // SAFETY: integers and pointers, which the linker fills; its names live as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return "an unknown file".to_owned();
        }
        CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned()
    }
}

/// What to look for, and what was found.
struct Search {
    own: u64,
    others: Vec<String>,
}

/// The files of other libraries that are called NCCL.
fn others(own: *const c_void) -> Vec<String> {
    let mut search = Search { own: own as u64, others: Vec::new() };
    // SAFETY: the function gets this search, and is done with it when the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.others
}

/// Called for every loaded object. Does not panic.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the linker passes an object with its segments, and the search of `others`.
    let (name, base, segments, search) = unsafe {
        let info = &*info;
        if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
            return 0;
        }
        let segments = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (CStr::from_ptr(info.dlpi_name), info.dlpi_addr, segments, &mut *search.cast::<Search>())
    };
    let name = name.to_string_lossy();
    // Plugins are called libnccl-net.so and the like.
    let is_nccl = name.rsplit('/').next().is_some_and(|file| file.starts_with("libnccl.so"));
    let has_own = segments.iter().any(|segment| {
        let start = base.wrapping_add(segment.p_vaddr);
        segment.p_type == libc::PT_LOAD && search.own.wrapping_sub(start) < segment.p_memsz
    });
    if is_nccl && !has_own {
        search.others.push(name.into_owned());
    }
    0
}
