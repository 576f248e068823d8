//! NVRTC, the compiler of CUDA C++ that programs load at run time.
//!
//! [`Nvrtc::find`] loads the first suitable library of these places: the process itself, the Python environments around it, CUDA
//! toolkits, the loader's default path. It is suitable if it knows the architecture of the GPU and is not of a later major version
//! than the driver, which would refuse its output. [`Nvrtc::compile`] makes a [`Cubin`] for one architecture, without any header.
//!
//! Deliberately absent: PTX. A driver refuses PTX of a later version and compiles the rest again at every start.

mod library;
mod search;

use std::fmt;
use std::path::{Path, PathBuf};

use library::Library;

use crate::error::Error;
pub use crate::versions::{Architecture, Version};

/// Options of every compilation: no contraction of multiplication and addition, so that results have the bits of the CPU's.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// A source, and how to compile it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// One translation unit without `#include`.
    pub source: &'a str,
    /// Options besides [`OPTIONS`], such as `-DNAME=VALUE`.
    pub options: &'a [&'a str],
    /// The architecture to compile for.
    pub architecture: Architecture,
}

/// Machine code for one architecture, as NVRTC made it.
///
/// The driver trusts the lengths inside a cubin, so no safe code makes one from bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Cubin {
    bytes: Vec<u8>,
}

impl Cubin {
    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// For [`crate::cache`], which has compared the checksum of what NVRTC made.
    pub(crate) fn checked(bytes: Vec<u8>) -> Cubin {
        Cubin { bytes }
    }
}

impl fmt::Debug for Cubin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cubin({} bytes)", self.bytes.len())
    }
}

/// A loaded NVRTC. It stays loaded until the process ends.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    library: Library,
    path: PathBuf,
    version: Version,
    /// In ascending order.
    architectures: Vec<Architecture>,
}

impl Nvrtc {
    /// Loads the first library that can compile for `architecture` and whose output the driver accepts. `driver` is the version of
    /// CUDA that the driver supports (13000 for 13.0); without it, any version is accepted.
    pub fn find(architecture: Architecture, driver: Option<u32>) -> Result<Nvrtc, Error> {
        let mut searched = Vec::new();
        let mut unsuitable = Vec::new();
        let around = search::Surroundings::of_this_process();
        for stage in search::STAGES {
            let place = stage(&around);
            searched.extend(place.searched);
            for candidate in place.candidates {
                match Nvrtc::open_candidate(&candidate) {
                    Ok(Some(nvrtc)) => match nvrtc.why_unsuitable(architecture, driver) {
                        None => {
                            let (version, shown) = (nvrtc.version, nvrtc.path.display());
                            tracing::info!(target: "weft::plan", "kernels are compiled by NVRTC {version}, {shown}");
                            return Ok(nvrtc);
                        }
                        Some(why) => unsuitable.push(format!("{} ({why})", nvrtc.path.display())),
                    },
                    Ok(None) => {}
                    Err(error) => unsuitable.push(error.to_string()),
                }
            }
        }
        unsuitable.dedup();
        let is_of_12 = architecture < Architecture(75) || driver.is_some_and(|version| version < 13_000);
        let package = if is_of_12 { "nvidia-cuda-nvrtc-cu12" } else { "nvidia-cuda-nvrtc" };
        Err(Error::NoNvrtc { architecture, package, searched, unsuitable })
    }

    /// Loads a library file, and the file `libnvrtc-builtins` beside it.
    pub fn open(path: &Path) -> Result<Nvrtc, Error> {
        Nvrtc::describe(Library::open(path)?, path)
    }

    /// The library, unless the loader has none of that name.
    fn open_candidate(candidate: &search::Candidate) -> Result<Option<Nvrtc>, Error> {
        let library = match candidate {
            search::Candidate::Loaded(soname) => Library::loaded(soname),
            search::Candidate::Default(soname) => Library::open(Path::new(soname)).ok(),
            search::Candidate::File(path) => Some(Library::open(path)?),
        };
        let Some(library) = library else { return Ok(None) };
        let path = match candidate {
            search::Candidate::File(path) => path.clone(),
            search::Candidate::Loaded(soname) | search::Candidate::Default(soname) => {
                library.path().unwrap_or_else(|| soname.into())
            }
        };
        Nvrtc::describe(library, &path).map(Some)
    }

    fn describe(library: Library, path: &Path) -> Result<Nvrtc, Error> {
        let bad = |why: String| Error::BadNvrtc { path: path.to_owned(), why };
        let version = library.version().map_err(bad)?;
        let mut architectures = library.architectures().map_err(bad)?;
        architectures.sort_unstable();
        if let Some(folder) = path.parent() {
            library::preload_builtins(folder, version);
        }
        Ok(Nvrtc { library, path: path.to_owned(), version, architectures })
    }

    fn why_unsuitable(&self, architecture: Architecture, driver: Option<u32>) -> Option<String> {
        let version = self.version;
        if let Some(driver) = driver.map(|driver| driver / 1000).filter(|driver| version.major > *driver) {
            return Some(format!("NVRTC {version} is later than CUDA {driver}, which the driver supports"));
        }
        match self.target_for(architecture) {
            Some(_) => None,
            None => Some(format!("NVRTC {version} does not know {architecture}")),
        }
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The architectures that it can compile for.
    pub fn architectures(&self) -> &[Architecture] {
        &self.architectures
    }

    /// The architecture to compile for, given the GPU's: the same, or the nearest below it with the same major number, whose code runs
    /// on it too.
    pub fn target_for(&self, gpu: Architecture) -> Option<Architecture> {
        target_among(&self.architectures, gpu)
    }

    /// Compiles a program.
    pub fn compile(&self, program: &Program<'_>) -> Result<Cubin, Error> {
        let architecture = format!("--gpu-architecture={}", program.architecture);
        let options: Vec<&str> = [architecture.as_str()]
            .into_iter()
            .chain(OPTIONS)
            .chain(program.options.iter().copied())
            .collect();
        let error = |failure: library::Failure| Error::Compile {
            program: program.name.to_owned(),
            architecture: program.architecture,
            version: self.version,
            result: failure.result,
            log: failure.log,
        };
        self.library.compile(program.name, program.source, &options).map(Cubin::checked).map_err(error)
    }
}

fn target_among(known: &[Architecture], gpu: Architecture) -> Option<Architecture> {
    known.iter().copied().filter(|known| known.0 / 10 == gpu.0 / 10 && *known <= gpu).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_architecture_of_the_same_major_is_taken() {
        let known = [75, 80, 86, 90, 100, 120].map(Architecture);
        let target = |gpu| target_among(&known, Architecture(gpu)).map(|target| target.0);
        assert_eq!(target(90), Some(90));
        assert_eq!(target(89), Some(86));
        assert_eq!(target(103), Some(100));
        assert_eq!(target(121), Some(120));
        assert_eq!(target(70), None, "75 is later than 70");
        assert_eq!(target(110), None);
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let error = Nvrtc::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap_err();
        assert!(error.to_string().contains("Cargo.toml is not a usable NVRTC: "), "{error}");
        // A library, but another one.
        let error = Nvrtc::open(Path::new("libc.so.6")).unwrap_err();
        assert!(error.to_string().contains("nvrtc"), "{error}");
    }
}
