//! The functions of NVRTC's library that Weft calls.
//!
//! They are declared here rather than taken from cudarc, which chooses the file itself and has no getter of cubins.

#![allow(unsafe_code, reason = "calls functions of a library that is loaded at run time")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix;

use super::{Architecture, Version};
use crate::error::Error;

const SUCCESS: c_int = 0;
/// More than any NVRTC knows.
const ARCHITECTURES_MAX: usize = 256;
const LOG_BYTES_MAX: usize = 1 << 20;
const CUBIN_BYTES_MAX: usize = 1 << 28;

type Opaque = *mut c_void;

/// The library's functions. The library is never unloaded, so they stay valid.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::type_complexity, reason = "signatures of C")]
pub(super) struct Library {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    architecture_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    architectures: unsafe extern "C" fn(*mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Opaque,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Opaque) -> c_int,
    compile: unsafe extern "C" fn(Opaque, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Opaque, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Opaque, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Opaque, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Opaque, *mut c_char) -> c_int,
}

/// Why a program was not compiled.
pub(super) struct Failure {
    pub(super) result: String,
    pub(super) log: String,
}

impl Library {
    /// Loads a file, or the library of this name on the loader's path.
    pub(super) fn open(path: &Path) -> Result<Library, Error> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: what a library named libnvrtc does when it is loaded is as trustworthy as what it does when it is called.
        let opened = unsafe { unix::Library::open(Some(path), flags) };
        let bad = |why: String| Error::BadNvrtc { path: path.to_owned(), why };
        Library::functions(opened.map_err(|error| bad(text(&error)))?).map_err(bad)
    }

    /// The library of this name that the process has loaded already.
    pub(super) fn loaded(soname: &str) -> Option<Library> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        // SAFETY: nothing is loaded, and initialisers have run already.
        let opened = unsafe { unix::Library::open(Some(soname), flags) };
        Library::functions(opened.ok()?).ok()
    }

    fn functions(library: unix::Library) -> Result<Library, String> {
        unsafe fn symbol<T: Copy>(library: &unix::Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller names the function's type.
            unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| text(&error))
        }
        // SAFETY: the types are those of the functions in nvrtc.h, the same since CUDA 11.2.
        let functions = unsafe {
            Library {
                version: symbol(&library, "nvrtcVersion")?,
                error_string: symbol(&library, "nvrtcGetErrorString")?,
                architecture_count: symbol(&library, "nvrtcGetNumSupportedArchs")?,
                architectures: symbol(&library, "nvrtcGetSupportedArchs")?,
                create: symbol(&library, "nvrtcCreateProgram")?,
                destroy: symbol(&library, "nvrtcDestroyProgram")?,
                compile: symbol(&library, "nvrtcCompileProgram")?,
                log_size: symbol(&library, "nvrtcGetProgramLogSize")?,
                log: symbol(&library, "nvrtcGetProgramLog")?,
                cubin_size: symbol(&library, "nvrtcGetCUBINSize")?,
                cubin: symbol(&library, "nvrtcGetCUBIN")?,
            }
        };
        // It stays loaded: the handle is dropped without closing it.
        let _ = library.into_raw();
        Ok(functions)
    }

    /// The file it was loaded from.
    pub(super) fn path(&self) -> Option<PathBuf> {
        // SAFETY: an all-zero value of this structure of integers and pointers is valid.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the address is of a loaded function, and the structure is ours.
        let is_found = unsafe { libc::dladdr(self.version as *const c_void, &raw mut found) } != 0;
        if !is_found || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name is a string of the loader's, which lives as long as the library.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    pub(super) fn version(&self) -> Result<Version, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both addresses are of integers.
        self.check(unsafe { (self.version)(&raw mut major, &raw mut minor) }, "nvrtcVersion")?;
        Ok(Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() })
    }

    pub(super) fn architectures(&self) -> Result<Vec<Architecture>, String> {
        let mut count = 0;
        // SAFETY: the address is of an integer.
        self.check(unsafe { (self.architecture_count)(&raw mut count) }, "nvrtcGetNumSupportedArchs")?;
        let count = usize::try_from(count).ok().filter(|count| *count <= ARCHITECTURES_MAX);
        let mut numbers: Vec<c_int> = vec![0; count.ok_or("it knows too many architectures")?];
        // SAFETY: the array has the length that the library asked for.
        self.check(unsafe { (self.architectures)(numbers.as_mut_ptr()) }, "nvrtcGetSupportedArchs")?;
        Ok(numbers.into_iter().map(|number| Architecture(number.unsigned_abs())).collect())
    }

    /// Compiles a source to a cubin.
    pub(super) fn compile(&self, name: &str, source: &str, options: &[&str]) -> Result<Vec<u8>, Failure> {
        let plain = |result: String| Failure { result, log: String::new() };
        let string =
            |text: &str| CString::new(text).map_err(|_| plain("a NUL byte in the source".to_owned()));
        let (name, source) = (string(name)?, string(source)?);
        let options = options.iter().map(|option| string(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Job { library: self, handle: ptr::null_mut() };
        let (headers, no_names) = (0, ptr::null());
        // SAFETY: both strings end in NUL, and NVRTC copies them; there are no headers.
        let code = unsafe {
            (self.create)(
                &raw mut program.handle,
                source.as_ptr(),
                name.as_ptr(),
                headers,
                no_names,
                no_names,
            )
        };
        self.check(code, "nvrtcCreateProgram").map_err(plain)?;
        let count = c_int::try_from(options.len()).map_err(|_| plain("too many options".to_owned()))?;
        // SAFETY: the program was created above; the options are strings that outlive the call.
        let code = unsafe { (self.compile)(program.handle, count, options.as_ptr()) };
        self.check(code, "nvrtcCompileProgram")
            .and_then(|()| program.cubin())
            .map_err(|result| Failure { result, log: program.log() })
    }

    fn check(&self, code: c_int, function: &str) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a constant string, or null.
        let name = unsafe { (self.error_string)(code) };
        let name = match name.is_null() {
            true => format!("error {code}"),
            // SAFETY: it is not null.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        Err(format!("{function}: {name}"))
    }
}

/// A program of NVRTC's, destroyed when it is dropped.
struct Job<'a> {
    library: &'a Library,
    /// Null before it was created.
    handle: Opaque,
}

impl Job<'_> {
    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: the program was created, and the address is of a `size_t`.
        let code = unsafe { (self.library.cubin_size)(self.handle, &raw mut length) };
        self.library.check(code, "nvrtcGetCUBINSize")?;
        if length == 0 || length > CUBIN_BYTES_MAX {
            return Err(format!("nvrtcGetCUBINSize: a cubin of {length} bytes"));
        }
        let mut bytes = vec![0; length];
        // SAFETY: the buffer has the length that the library asked for.
        let code = unsafe { (self.library.cubin)(self.handle, bytes.as_mut_ptr().cast()) };
        self.library.check(code, "nvrtcGetCUBIN").map(|()| bytes)
    }

    /// The compiler's messages; empty if there are none.
    fn log(&self) -> String {
        let mut length = 0;
        // SAFETY: the program was created, and the address is of a `size_t`.
        let code = unsafe { (self.library.log_size)(self.handle, &raw mut length) };
        if code != SUCCESS || length > LOG_BYTES_MAX {
            return String::new();
        }
        let mut bytes: Vec<u8> = vec![0; length];
        // SAFETY: the buffer has the length that the library asked for.
        let code = unsafe { (self.library.log)(self.handle, bytes.as_mut_ptr().cast()) };
        if code != SUCCESS {
            return String::new();
        }
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim_end().to_owned()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the program was created and nothing else destroys it. An error leaves nothing to do.
            let _ = unsafe { (self.library.destroy)(&raw mut self.handle) };
        }
    }
}

/// Loads the second half of NVRTC from the same folder. NVRTC opens it by name at the first compilation, and the libraries of some
/// packages have no search path of their own. Where the file is missing, NVRTC's own search goes on, and its log names the file.
pub(super) fn preload_builtins(folder: &Path, version: Version) {
    let path = folder.join(format!("libnvrtc-builtins.so.{version}"));
    if !path.is_file() {
        return;
    }
    // SAFETY: as for the library itself.
    let opened = unsafe { unix::Library::open(Some(&path), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match opened {
        Ok(library) => {
            let _ = library.into_raw();
        }
        Err(error) => tracing::warn!(target: "weft::plan", "cannot load {}: {error}", path.display()),
    }
}

/// The message of the loader, without that of the wrapper around it.
fn text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
