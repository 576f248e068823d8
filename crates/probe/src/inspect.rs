//! Everything that can be read about a machine, as one tree: for examinations, and to be recorded for another machine.
//!
//! Paths below `sys/` and `proc/` are files of the kernel. The others are virtual:
//!
//! | path | content |
//! |---|---|
//! | `nvml/driver_version`, `nvml/cuda_version`, `nvml/reason` | the NVIDIA driver, or why it reports nothing |
//! | `nvml/N/NAME` | a value of GPU `N`; `not supported` if the GPU lacks it, and `NAME.reason` if the driver refuses it |
//! | `log/kernel` | the end of the kernel's log |
//! | `run/COMMAND` | the output of a command, one of a fixed list |
//! | `pci-config/ADDRESS` | configuration space of a PCI function, as hexadecimal digits |
//!
//! For `log/kernel` and `run/COMMAND`, `PATH.reason` says why the text is missing, or how the command failed. Only what somebody asks for is
//! read, and nothing is read twice, so that a [`recording`](Inspection::recording) contains what its readers saw, without what
//! identifies the machine or a person.

mod anonymous;
mod command;
mod kernel_log;
mod nvml_values;
mod pci_config;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use weftlink_fabric::device::BusId;

use crate::gpu_source::{GpuReports, GpuSource, gpu_numbers, read_gpu};
use crate::interfaces::{NET, NVME, RDMA};
use crate::pci::DEVICES;
use crate::record::{anonymize, function, interface};
use crate::recording::{Entry, LISTS, Recording};
use crate::tree::{Folder, Tree, hexadecimal, pci_address, pci_addresses};

const ENVIRONMENT: &str = "proc/self/environ";
const LOG: &str = "log/kernel";
/// Prints the names of a cluster's hosts, which a recording must not contain.
const NAMES_OF_HOSTS: &str = "run/scontrol";

/// An inspected machine.
pub struct Inspection {
    root: PathBuf,
    folder: Folder,
    /// True for the machine itself, whose driver, log and commands can be asked.
    is_live: bool,
    reports: GpuReports,
    /// Virtual files that exist from the start.
    fixed: Recording,
    seen: RefCell<Seen>,
}

/// Everything that was asked for, with the answer.
#[derive(Default)]
struct Seen {
    files: BTreeMap<String, Option<String>>,
    links: BTreeMap<String, Option<String>>,
    lists: BTreeMap<String, Vec<String>>,
}

/// Inspects the machine whose `sys/` and `proc/` are in `root`. For `/`, that is this machine, with its driver, log and commands; any other
/// folder is a copy, whose virtual paths are plain files.
pub fn inspect(root: &Path) -> Inspection {
    let is_live = root == Path::new("/");
    let folder = Folder::new(root);
    let mut fixed = Recording::default();
    let mut reports = if is_live {
        let (reports, values) = nvml_values::read();
        values.into_iter().for_each(|(path, value)| fixed.add(path, value));
        reports
    } else {
        GpuReports {
            gpus: gpu_numbers(&folder).into_iter().filter_map(|number| read_gpu(&folder, number)).collect(),
            reason: folder.read("nvml/reason"),
        }
    };
    if reports.gpus.is_empty() && reports.reason.is_none() {
        reports.reason = Some("the folder contains no reports of a driver".to_owned());
    }
    if is_live {
        fixed.add_gpus(&reports);
    }
    Inspection { root: root.to_owned(), folder, is_live, reports, fixed, seen: RefCell::default() }
}

impl Inspection {
    /// Adds a virtual file that another reader of the machine has made; it replaces the one at its path.
    pub fn add(&mut self, path: impl Into<String>, value: impl Into<String>) {
        let path = path.into();
        let seen = self.seen.get_mut();
        seen.files.remove(&path);
        seen.lists.clear();
        self.fixed.add(path, value.into());
    }

    /// What was read of the machine so far, without names, addresses, serial numbers and other ids. Probe it and run the checks before,
    /// so that it contains what they need.
    pub fn recording(&self) -> Recording {
        let seen = self.seen.borrow();
        let host = seen.files.get(crate::HOST_NAME).cloned().flatten().unwrap_or_default();
        let mut entries = self.fixed.entries.clone();
        for (path, text) in &seen.files {
            if let Some(text) = text {
                entries.insert(path.clone(), Entry::File(text.clone()));
            }
        }
        for (path, target) in &seen.links {
            if let Some(target) = target {
                entries.insert(path.clone(), Entry::Link(target.clone()));
            }
        }
        entries.retain(|path, _| !path.starts_with(NAMES_OF_HOSTS));
        remove_unused(&mut entries);
        add_lists(&mut entries, &seen.lists);
        let mut entries = anonymize(entries);
        for (path, entry) in &mut entries {
            if let Entry::File(text) = entry {
                *text = match path.as_str() {
                    LOG => anonymous::kernel_log(text, &host),
                    "proc/net/route" => anonymous::routes(text),
                    ENVIRONMENT => anonymous::text(&anonymous::environment(text), &host),
                    _ => anonymous::text(text, &host),
                };
            }
        }
        Recording { entries }
    }

    fn compute(&self, path: &str) -> Option<String> {
        if let Some(value) = self.fixed.read(path) {
            return Some(value);
        }
        let (name, is_reason) = path.strip_suffix(".reason").map_or((path, false), |name| (name, true));
        if let (Some(address), false) = (path.strip_prefix("pci-config/"), is_reason) {
            let function = pci_address(address)?;
            let config = self.root.join(DEVICES).join(function.to_string()).join("config");
            return pci_config::read(&config).or_else(|| self.folder.read(path));
        }
        let command = name.strip_prefix("run/");
        if !self.is_live || (name != LOG && command.is_none()) {
            return if path.starts_with("nvml/") && self.is_live { None } else { self.folder.read(path) };
        }
        let output = command.map_or_else(kernel_log::read, command::run_allowed);
        let (asked, other) =
            if is_reason { (output.reason, output.text) } else { (output.text, output.reason) };
        let beside = if is_reason { name.to_owned() } else { format!("{name}.reason") };
        self.seen.borrow_mut().files.insert(beside, other);
        asked
    }

    fn bridges(&self) -> Vec<String> {
        let is_bridge = |name: &String| {
            let class = self.read(&format!("{DEVICES}/{name}/class"));
            class.as_deref().and_then(hexadecimal).is_some_and(|class| class >> 8 == 0x0604)
        };
        self.folder.list(DEVICES).into_iter().filter(is_bridge).collect()
    }
}

impl Tree for Inspection {
    fn read(&self, path: &str) -> Option<String> {
        if let Some(known) = self.seen.borrow().files.get(path) {
            return known.clone();
        }
        let value = self.compute(path);
        self.seen.borrow_mut().files.insert(path.to_owned(), value.clone());
        value
    }

    fn list(&self, path: &str) -> Vec<String> {
        if let Some(known) = self.seen.borrow().lists.get(path) {
            return known.clone();
        }
        let names = match path {
            "pci-config" => self.bridges(),
            _ => Some(self.fixed.list(path))
                .filter(|names| !names.is_empty())
                .unwrap_or_else(|| self.folder.list(path)),
        };
        self.seen.borrow_mut().lists.insert(path.to_owned(), names.clone());
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        if let Some(known) = self.seen.borrow().links.get(path) {
            return known.clone();
        }
        let target = self.folder.link(path);
        self.seen.borrow_mut().links.insert(path.to_owned(), target.clone());
        target
    }
}

impl GpuSource for Inspection {
    fn gpus(&self) -> GpuReports {
        self.reports.clone()
    }
}

/// Removes the PCI functions of which only the class and the place were read, and the interfaces of such functions.
fn remove_unused(entries: &mut BTreeMap<String, Entry>) {
    let is_place = |path: &str| {
        path.ends_with("/class") || path.matches('/').count() == DEVICES.matches('/').count() + 1
    };
    let used: BTreeSet<BusId> =
        entries.keys().filter(|path| !is_place(path)).filter_map(|path| function(path)).collect();
    let unused_owner = |entry: &Entry| match entry {
        Entry::Link(target) => pci_addresses(target).last().is_some_and(|bus| !used.contains(bus)),
        Entry::File(_) => false,
    };
    let dropped: BTreeSet<String> = entries
        .iter()
        .filter(|(path, entry)| interface(path).is_some() && unused_owner(entry))
        .map(|(path, _)| path.clone())
        .collect();
    entries.retain(|path, _| match (function(path), interface(path)) {
        (Some(bus), _) => used.contains(&bus),
        (None, Some((class, name))) => !dropped.contains(&format!("{class}/{name}")),
        (None, None) => true,
    });
}

/// Keeps the names of folders in which nothing was read; those of others follow from their files.
fn add_lists(entries: &mut BTreeMap<String, Entry>, lists: &BTreeMap<String, Vec<String>>) {
    let follows = |path: &str| {
        path == "nvml" || path.starts_with("nvml/") || [DEVICES, NET, RDMA, NVME].contains(&path)
    };
    let recording = Recording { entries: std::mem::take(entries) };
    let mut added = Vec::new();
    for (path, names) in lists.iter().filter(|(path, names)| !follows(path) && !names.is_empty()) {
        let known = recording.list(path);
        if names.iter().any(|name| !known.contains(name)) {
            added.push((format!("{LISTS}/{path}"), Entry::File(names.join("\n"))));
        }
    }
    *entries = recording.entries;
    entries.extend(added);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{probe, record};

    #[test]
    fn this_machine_is_inspected_and_its_recording_reads_the_same() {
        let mut live = inspect(Path::new("/"));
        live.add("software/0/name", "libnccl");
        assert_eq!(live.list("software"), ["0"]);
        let fabric = probe(&live, &live).unwrap();
        let paths = [
            "log/kernel",
            "log/kernel.reason",
            "run/systemctl is-active nvidia-fabricmanager",
            "nvml/driver_version",
        ];
        let values = paths.map(|path| live.read(path).is_some());
        let uncounted = live.list("proc/sys/kernel");
        let recording: Recording = live.recording().to_string().parse().unwrap();
        let again = probe(&recording, &recording).unwrap();
        assert_eq!(again.devices(), fabric.devices());
        assert_eq!(paths.map(|path| recording.read(path).is_some()), values);
        assert!(values[0] != values[1], "a log or a reason");
        assert_eq!(recording.list("proc/sys/kernel"), uncounted);
        assert_eq!(again.hosts()[0].name, "host0");
        assert_eq!(recording.read("run/rm x"), None);
        assert_eq!(recording.read("software/0/name").as_deref(), Some("libnccl"));
    }

    #[test]
    fn a_copy_of_a_machine_runs_nothing() {
        let root = std::env::temp_dir().join(format!("weft-inspect-{}", std::process::id()));
        std::fs::create_dir_all(root.join("log")).unwrap();
        std::fs::create_dir_all(root.join("nvml/0")).unwrap();
        for (file, text) in
            [("log/kernel", "[1.0] NVRM: x"), ("nvml/0/bus", "0000:01:00.0"), ("nvml/0/ecc_mode", "on")]
        {
            std::fs::write(root.join(file), text).unwrap();
        }
        let copy = inspect(&root);
        assert_eq!(copy.gpus().gpus.len(), 1);
        assert_eq!(copy.read("log/kernel").as_deref(), Some("[1.0] NVRM: x"));
        assert_eq!(copy.read("nvml/0/ecc_mode").as_deref(), Some("on"));
        assert_eq!(copy.read("run/ipmitool sel elist"), None);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_inspection_probes_like_a_record() {
        let live = inspect(Path::new("/"));
        probe(&live, &live).unwrap();
        let (inspected, recorded) = (live.recording(), record(&Folder::new("/"), &live).unwrap());
        assert_eq!(probe(&inspected, &inspected).unwrap(), probe(&recorded, &recorded).unwrap());
    }
}
