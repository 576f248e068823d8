//! Where the probe reads: a folder that holds `sys/` and `proc/`, or a recording of one.
//!
//! The readers ask for paths such as `sys/bus/pci/devices` and never touch a file themselves, so that a recorded
//! machine goes the same way as a live one. What is read may be anything: nothing here trusts it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use weftlink_fabric::device::BusId;

use crate::ProbeError;

/// A tree of small files and symbolic links, addressed by paths without a leading slash.
pub trait Tree {
    /// What a file says, without trailing white space. None: there is no such file, or it cannot be read.
    fn read(&self, path: &str) -> Option<String>;

    /// The names in a folder, sorted; none if there is no such folder.
    fn list(&self, path: &str) -> Vec<String>;

    /// Where a symbolic link points, as written in it.
    fn link(&self, path: &str) -> Option<String>;
}

/// The most names a folder may hold: a hundred times the PCI functions of the largest servers.
pub(crate) const MAX_NAMES: usize = 65_536;
/// The most bytes read of a file. `/proc/cpuinfo` may be longer; its first processor is all that is asked for.
const MAX_FILE_BYTES: u64 = 65_536;

/// A folder of this machine: `/`, or a copy of its `sys/` and `proc/` elsewhere.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder that holds `sys/` and `proc/`.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }
}

impl Tree for Folder {
    fn read(&self, path: &str) -> Option<String> {
        let path = self.root.join(path);
        // A pipe or a device would block the open; sysfs and proc have plain files only.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .take(MAX_NAMES + 1)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.root.join(path)).ok()?.into_os_string().into_string().ok()
    }
}

/// The names in a folder that the kernel could have given: what has spaces or slashes in it is not one.
pub(crate) fn names(tree: &dyn Tree, path: &str, what: &'static str) -> Result<Vec<String>, ProbeError> {
    let mut names = tree.list(path);
    if names.len() > MAX_NAMES {
        return Err(ProbeError::TooMany { what, path: path.to_owned(), limit: MAX_NAMES });
    }
    names.retain(|name| is_name(name));
    Ok(names)
}

/// A hexadecimal number with or without `0x`, as sysfs writes ids.
pub(crate) fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// A path component that is a PCI address and nothing else: `0000:17:00.0`.
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
    fn only_whole_pci_addresses_count() {
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
    fn a_folder_reads_plain_files_only() {
        let root = Folder::new("/");
        assert_eq!(root.read("dev/zero"), None);
        assert_eq!(root.read("proc"), None);
        assert!(root.list("no/such/folder").is_empty());
    }
}
