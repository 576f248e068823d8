//! A library as it is asked for: `nccl:2.28`, `gloo`, `msccl:ring.xml`.

use thiserror::Error;
use weftlink_fabric::nearest::did_you_mean;

use crate::setup::{Library, Version};

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The library.
    pub library: Library,
    /// Its version; the newest that is known where it is not said.
    pub version: Option<Version>,
    /// The program that MSCCL is to run: a file, which whoever asked reads.
    pub program: Option<String>,
}

/// Nothing that is known was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AskedError {
    /// No such library.
    #[error("unknown library `{name}`.{} Known libraries: {}.", near(name), known())]
    Name {
        /// What was asked for.
        name: String,
    },
    /// No such version.
    #[error("no version {version:?} of {} is known; known are {}", library.name(), versions(*library))]
    Version {
        /// Of what.
        library: Library,
        /// What was asked for.
        version: String,
    },
    /// MSCCL without anything to run.
    #[error("msccl runs a program; say which file holds it, as in msccl:ring.xml")]
    NoProgram,
}

/// Reads `NAME`, `NAME:VERSION` or `msccl:FILE`.
pub fn asked(text: &str) -> Result<Asked, AskedError> {
    let (name, rest) = match text.split_once(':') {
        Some((name, rest)) => (name, Some(rest)),
        None => (text, None),
    };
    let lower = name.trim().to_ascii_lowercase();
    let by_alias = match lower.as_str() {
        "mpi" | "ompi" | "open-mpi" => Some(Library::OpenMpi),
        name => Library::from_name(name),
    };
    let library = by_alias.ok_or_else(|| AskedError::Name { name: name.to_owned() })?;
    if library == Library::Msccl {
        let file = rest.map(str::trim).filter(|file| !file.is_empty()).ok_or(AskedError::NoProgram)?;
        return Ok(Asked { library, version: None, program: Some(file.to_owned()) });
    }
    let Some(said) = rest.map(str::trim) else { return Ok(Asked { library, version: None, program: None }) };
    let unknown = || AskedError::Version { library, version: said.to_owned() };
    let version = Version::parse(said).ok().flatten().ok_or_else(unknown)?;
    if !ranges(library).iter().any(|(first, last)| (*first..=*last).contains(&version)) {
        return Err(unknown());
    }
    Ok(Asked { library, version: Some(version), program: None })
}

fn near(name: &str) -> String {
    did_you_mean(name, Library::ALL.iter().map(|library| library.name()))
}

/// Names and what may follow them, for messages.
pub fn known() -> String {
    let each = |library: &Library| match library {
        Library::Msccl => "msccl:FILE".to_owned(),
        library if ranges(*library).is_empty() => library.name().to_owned(),
        library => format!("{}[:{}]", library.name(), versions(*library)),
    };
    Library::ALL.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// The versions of a library whose behaviour is known, first and last of each series.
fn ranges(library: Library) -> &'static [(Version, Version)] {
    const fn series(major: u32, first: u32, last: u32) -> (Version, Version) {
        (Version { major, minor: first }, Version { major, minor: last })
    }
    match library {
        // From the first with trees to the newest whose sources were read.
        Library::Nccl => &[const { series(2, 4, 32) }],
        // It counts as the NCCL that it is made of; the version of ROCm is not its own.
        Library::Rccl => &[const { series(2, 7, 30) }],
        // The decisions of 4.1 are still those of 5.0.
        Library::OpenMpi => &[const { series(4, 1, 1) }, const { series(5, 0, 0) }],
        Library::OneCcl => &[const { series(2021, 1, 17) }, const { series(2022, 0, 2) }],
        Library::Msccl | Library::Gloo | Library::Weft => &[],
    }
}

fn versions(library: Library) -> String {
    let each = |(first, last): &(Version, Version)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    match ranges(library) {
        [] => format!("none: it is {} alone", library.name()),
        some => some.iter().map(each).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_versions_are_read() {
        let plain = |library, version| Asked { library, version, program: None };
        let version = |major, minor| Some(Version { major, minor });
        assert_eq!(asked("nccl").unwrap(), plain(Library::Nccl, None));
        assert_eq!(asked("nccl:2.28").unwrap(), plain(Library::Nccl, version(2, 28)));
        assert_eq!(asked("NCCL:2.28.9").unwrap(), plain(Library::Nccl, version(2, 28)));
        assert_eq!(asked("mpi").unwrap(), plain(Library::OpenMpi, None));
        assert_eq!(asked("openmpi:4.1").unwrap(), plain(Library::OpenMpi, version(4, 1)));
        assert_eq!(asked("oneccl:2022.2").unwrap(), plain(Library::OneCcl, version(2022, 2)));
        assert_eq!(asked("weft").unwrap(), plain(Library::Weft, None));
        let program = asked("msccl:dir/a:b.xml").unwrap().program;
        assert_eq!(program.as_deref(), Some("dir/a:b.xml"));
        for library in Library::ALL.iter().filter(|library| **library != Library::Msccl) {
            assert_eq!(asked(library.name()).unwrap().library, *library);
        }
    }

    #[test]
    fn what_is_not_known_is_told_with_what_is() {
        let message = |text| asked(text).unwrap_err().to_string();
        assert_eq!(
            message("ncll:2.28"),
            "unknown library `ncll`. Did you mean `nccl`? Known libraries: nccl[:2.4 to 2.32], rccl[:2.7 to 2.30], \
             oneccl[:2021.1 to 2021.17, 2022.0 to 2022.2], msccl:FILE, gloo, openmpi[:4.1, 5.0], weft."
        );
        assert_eq!(message("nccl:3.0"), "no version \"3.0\" of nccl is known; known are 2.4 to 2.32");
        assert_eq!(message("nccl:"), "no version \"\" of nccl is known; known are 2.4 to 2.32");
        assert_eq!(
            message("gloo:1.0"),
            "no version \"1.0\" of gloo is known; known are none: it is gloo alone"
        );
        assert!(message("msccl").contains("msccl:ring.xml"));
        assert!(message("").starts_with("unknown library ``."));
    }
}
