//! The input of a probe: a folder with `sys/` and `proc/`, or a recording of one.
//!
//! The readers request paths such as `sys/bus/pci/devices` and never open a file themselves, so a recorded machine takes
//! the same code path as a live one. Nothing that is read is trusted.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use weftlink_fabric::device::BusId;

use crate::ProbeError;

/// A tree of small files and symbolic links, addressed by paths without a leading slash.
pub trait Tree {
    /// The content of a file, without trailing white space. None if it cannot be read.
    fn read(&self, path: &str) -> Option<String>;

    /// The names in a folder, sorted; empty if it cannot be read.
    fn list(&self, path: &str) -> Vec<String>;

    /// The target of a symbolic link, unresolved.
    fn link(&self, path: &str) -> Option<String>;
}

/// Names in a folder: a hundred times the PCI functions of the largest servers.
const NAMES_MAX: usize = 65_536;
/// Bytes read of a file. `/proc/cpuinfo` may be longer; only its first processor is used.
const FILE_BYTES_MAX: u64 = 65_536;

/// A folder of the local machine: `/`, or a copy of `sys/` and `proc/`.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder with `sys/` and `proc/`.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }
}

impl Tree for Folder {
    fn read(&self, path: &str) -> Option<String> {
        let path = self.root.join(path);
        // Opening a pipe or a device could block; sysfs and proc contain regular files only.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .take(NAMES_MAX + 1)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.root.join(path)).ok()?.into_os_string().into_string().ok()
    }
}

/// The valid names in a folder: printable, without spaces and slashes.
pub(crate) fn names(tree: &dyn Tree, path: &str, what: &'static str) -> Result<Vec<String>, ProbeError> {
    let mut names = tree.list(path);
    if names.len() > NAMES_MAX {
        return Err(ProbeError::TooMany { what, path: path.to_owned(), limit: NAMES_MAX });
    }
    names.retain(|name| is_name(name));
    Ok(names)
}

/// Parses a hexadecimal number with or without `0x`, as sysfs writes ids.
pub(crate) fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Parses a path component that is a PCI address: `0000:17:00.0`.
pub(crate) fn pci_address(name: &str) -> Option<BusId> {
    let (rest, function) = name.split_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    let shaped =
        (4..=8).contains(&domain.len()) && bus.len() == 2 && device.len() == 2 && function.len() == 1;
    if shaped && parts.next().is_none() { name.parse().ok() } else { None }
}

/// The PCI addresses along a path, outermost first.
pub(crate) fn pci_addresses(path: &str) -> Vec<BusId> {
    path.split('/').filter_map(pci_address).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 256 && name.chars().all(|c| c.is_ascii_graphic() && c != '/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_pci_addresses_are_parsed() {
        assert_eq!(
            pci_addresses("../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/net/eth0"),
            [BusId::new(0, 0x16, 1, 0), BusId::new(0, 0x17, 0, 0)]
        );
        assert_eq!(pci_address("10000:e1:00.0"), Some(BusId::new(0x10000, 0xe1, 0, 0)));
        for name in ["pci0000:16", "0000:16", "0000:16:01", "eth0", "", "0000:16:01.0.0", "zzzz:16:01.0"] {
            assert_eq!(pci_address(name), None, "{name}");
        }
    }

    #[test]
    fn a_folder_reads_regular_files_only() {
        let root = Folder::new("/");
        assert_eq!(root.read("dev/zero"), None);
        assert_eq!(root.read("proc"), None);
        assert!(root.list("no/such/folder").is_empty());
    }
}
