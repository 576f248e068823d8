//! Values of drivers as files of a tree, so that a live machine and a recorded one take the same code path.
//!
//! | file | value |
//! |---|---|
//! | `nvml/N/bus`, `nvml/N/name`, `nvml/N/nvlink/L` | as in recordings: [`crate::record`] |
//! | `nvml/N/links/L/speed_mb_per_s` | line rate each way |
//! | `nvml/N/links/L/tx_kib`, `rx_kib` | payload since the driver was loaded, in KiB |
//! | `nvml/N/links/L/tx_bytes_per_s`, `rx_bytes_per_s` | payload over the driver's own interval |
//! | `nvml/N/links/L/remote_link` | number of the link at the far end |
//! | `nvml/N/links/L/can_NAME` | capability: `1` or `0` |
//! | `nvml/N/links/L/NAME` | any other name is an error counter |
//! | `nvml/N/pcie_replays`, `pcie_tx_kb_per_s`, `pcie_rx_kb_per_s` | of the GPU's slot |

use crate::{GpuReports, Recording, Tree};

/// A source of values that are not in sysfs, such as a driver.
pub trait LinkSource {
    /// The values, as paths and contents.
    fn files(&self) -> Files;
}

/// Paths below the root of a tree and their contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    recording: Recording,
    /// Why values are missing.
    pub notes: Vec<String>,
}

impl Files {
    /// Adds a file, or replaces the one at its path.
    pub fn add(&mut self, path: impl Into<String>, value: impl ToString) {
        self.recording.add(path.into(), value.to_string());
    }

    /// Adds the reports of a driver on its GPUs.
    pub fn add_gpus(&mut self, reports: &GpuReports) {
        self.recording.add_gpus(reports);
    }

    /// The content of a file.
    pub fn read(&self, path: &str) -> Option<String> {
        self.recording.read(path)
    }
}

/// A machine without a driver that reports links.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDriver;

impl LinkSource for NoDriver {
    fn files(&self) -> Files {
        Files::default()
    }
}

/// A tree with further files in it, which replace those of the tree.
pub struct WithFiles<'t> {
    /// The tree.
    pub tree: &'t dyn Tree,
    /// The further files.
    pub files: &'t Files,
}

impl Tree for WithFiles<'_> {
    fn read(&self, path: &str) -> Option<String> {
        self.files.recording.read(path).or_else(|| self.tree.read(path))
    }

    fn list(&self, path: &str) -> Vec<String> {
        let mut names = self.tree.list(path);
        names.extend(self.files.recording.list(path));
        names.sort_unstable();
        names.dedup();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        self.tree.link(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_laid_over_a_tree() {
        let below: Recording = "# weft recording 1\na/x = 1\na/y = 2\na/z -> ../y\n".parse().unwrap();
        let mut files = Files::default();
        files.add("a/y", 3);
        files.add("a/w", "new");
        let tree = WithFiles { tree: &below, files: &files };
        assert_eq!(tree.list("a"), ["w", "x", "y", "z"]);
        assert_eq!(
            ["a/x", "a/y", "a/w", "a/v"].map(|path| tree.read(path)),
            [Some("1".to_owned()), Some("3".to_owned()), Some("new".to_owned()), None]
        );
        assert_eq!(tree.link("a/z").as_deref(), Some("../y"));
    }
}
