//! Parses the name of a library: `nccl:2.28`, `gloo`, `msccl:ring.xml`.

use thiserror::Error;
use weftlink_fabric::nearest::did_you_mean;

use crate::setup::{Library, Version};

/// A library, and its version or program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibrarySpec {
    /// The library.
    pub library: Library,
    /// Its version; `None` is the newest known.
    pub version: Option<Version>,
    /// The file of the program that MSCCL runs; the caller reads it.
    pub program: Option<String>,
}

/// Why a library's name cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LibrarySpecError {
    /// Unknown library.
    #[error("unknown library `{name}`.{} Known libraries: {}.", near(name), known())]
    Name {
        /// The given name.
        name: String,
    },
    /// Unknown version.
    #[error("unknown version `{version}` of {}. Known versions: {}.", library.name(), versions(*library))]
    Version {
        /// The library.
        library: Library,
        /// The given version.
        version: String,
    },
    /// MSCCL without a program.
    #[error("msccl runs a program; name its file, as in msccl:ring.xml")]
    NoProgram,
}

/// Parses `NAME`, `NAME:VERSION` or `msccl:FILE`.
pub fn parse_library(text: &str) -> Result<LibrarySpec, LibrarySpecError> {
    let (name, rest) = match text.split_once(':') {
        Some((name, rest)) => (name, Some(rest)),
        None => (text, None),
    };
    let lower = name.trim().to_ascii_lowercase();
    let by_alias = match lower.as_str() {
        "mpi" | "ompi" | "open-mpi" => Some(Library::OpenMpi),
        name => Library::from_name(name),
    };
    let library = by_alias.ok_or_else(|| LibrarySpecError::Name { name: name.to_owned() })?;
    if library == Library::Msccl {
        let file = rest.map(str::trim).filter(|file| !file.is_empty()).ok_or(LibrarySpecError::NoProgram)?;
        return Ok(LibrarySpec { library, version: None, program: Some(file.to_owned()) });
    }
    let Some(given) = rest.map(str::trim) else {
        return Ok(LibrarySpec { library, version: None, program: None });
    };
    let unknown = || LibrarySpecError::Version { library, version: given.to_owned() };
    let version = Version::parse(given).ok().flatten().ok_or_else(unknown)?;
    if !ranges(library).iter().any(|(first, last)| (*first..=*last).contains(&version)) {
        return Err(unknown());
    }
    Ok(LibrarySpec { library, version: Some(version), program: None })
}

fn near(name: &str) -> String {
    did_you_mean(name, Library::ALL.iter().map(|library| library.name()))
}

/// All libraries with their versions, for messages.
pub fn known() -> String {
    let each = |library: &Library| match library {
        Library::Msccl => "msccl:FILE".to_owned(),
        library if ranges(*library).is_empty() => library.name().to_owned(),
        library => format!("{}[:{}]", library.name(), versions(*library)),
    };
    Library::ALL.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// The known versions of a library: first and last of each series.
fn ranges(library: Library) -> &'static [(Version, Version)] {
    const fn series(major: u32, first: u32, last: u32) -> (Version, Version) {
        (Version { major, minor: first }, Version { major, minor: last })
    }
    match library {
        // From the first version with trees to the newest whose sources were examined.
        Library::Nccl => &[const { series(2, 4, 32) }],
        // RCCL has the version of the NCCL it is based on, not that of ROCm.
        Library::Rccl => &[const { series(2, 7, 30) }],
        // 5.0 makes the same decisions as 4.1.
        Library::OpenMpi => &[const { series(4, 1, 1) }, const { series(5, 0, 0) }],
        Library::OneCcl => &[const { series(2021, 1, 17) }, const { series(2022, 0, 2) }],
        Library::Msccl | Library::Gloo | Library::Weft => &[],
    }
}

/// The newest known version; `None` for libraries without versions.
pub fn newest(library: Library) -> Option<Version> {
    ranges(library).last().map(|(_, last)| *last)
}

fn versions(library: Library) -> String {
    let each = |(first, last): &(Version, Version)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    match ranges(library) {
        [] => format!("none; use `{}` without a version", library.name()),
        some => some.iter().map(each).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_with_and_without_versions() {
        let plain = |library, version| LibrarySpec { library, version, program: None };
        let version = |major, minor| Some(Version { major, minor });
        assert_eq!(parse_library("nccl").unwrap(), plain(Library::Nccl, None));
        assert_eq!(parse_library("nccl:2.28").unwrap(), plain(Library::Nccl, version(2, 28)));
        assert_eq!(parse_library("NCCL:2.28.9").unwrap(), plain(Library::Nccl, version(2, 28)));
        assert_eq!(parse_library("mpi").unwrap(), plain(Library::OpenMpi, None));
        assert_eq!(parse_library("openmpi:4.1").unwrap(), plain(Library::OpenMpi, version(4, 1)));
        assert_eq!(parse_library("oneccl:2022.2").unwrap(), plain(Library::OneCcl, version(2022, 2)));
        assert_eq!(parse_library("weft").unwrap(), plain(Library::Weft, None));
        let program = parse_library("msccl:dir/a:b.xml").unwrap().program;
        assert_eq!(program.as_deref(), Some("dir/a:b.xml"));
        for library in Library::ALL.iter().filter(|library| **library != Library::Msccl) {
            assert_eq!(parse_library(library.name()).unwrap().library, *library);
        }
    }

    #[test]
    fn errors_list_the_known_names_and_versions() {
        let message = |text| parse_library(text).unwrap_err().to_string();
        assert_eq!(
            message("ncll:2.28"),
            "unknown library `ncll`. Did you mean `nccl`? Known libraries: nccl[:2.4 to 2.32], rccl[:2.7 to 2.30], \
             oneccl[:2021.1 to 2021.17, 2022.0 to 2022.2], msccl:FILE, gloo, openmpi[:4.1, 5.0], weft."
        );
        assert_eq!(message("nccl:3.0"), "unknown version `3.0` of nccl. Known versions: 2.4 to 2.32.");
        assert_eq!(message("nccl:"), "unknown version `` of nccl. Known versions: 2.4 to 2.32.");
        assert_eq!(
            message("gloo:1.0"),
            "unknown version `1.0` of gloo. Known versions: none; use `gloo` without a version."
        );
        assert!(message("msccl").contains("msccl:ring.xml"));
        assert!(message("").starts_with("unknown library ``."));
    }
}
