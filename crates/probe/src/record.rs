//! Recording: keeps everything that a probe reads, so that a probe of the recording reads the same.
//!
//! A recording is anonymous: it contains no host name, no serial numbers, and none of the MAC addresses and GUIDs that
//! occur in names of interfaces and paths. Functions that are not part of the fabric are left out.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::device::BusId;

use crate::cpu::{CPUINFO, identifying_lines};
use crate::interfaces::{NET, NVME, RDMA};
use crate::kfd;
use crate::pci::DEVICES;
use crate::recording::{Entry, Recording};
use crate::tree::{Tree, pci_address, pci_addresses};
use crate::{GpuReports, GpuSource, HOST_NAME, ProbeError, probe};

/// Probes a machine and records what was read. The recording's [`Display`](std::fmt::Display) is the text to save.
pub fn record(tree: &dyn Tree, gpus: &dyn GpuSource) -> Result<Recording, ProbeError> {
    let reports = gpus.gpus();
    let recorder = RecordingTree { tree, read: RefCell::default(), used: RefCell::default() };
    probe(&recorder, &Fixed(&reports))?;
    let mut entries = recorder.read.into_inner();
    remove_unused(&mut entries, &recorder.used.into_inner());
    let mut recording = Recording { entries: anonymize(entries) };
    recording.add_gpus(&reports);
    Ok(recording)
}

/// Reports that were read before.
struct Fixed<'a>(&'a GpuReports);

impl GpuSource for Fixed<'_> {
    fn gpus(&self) -> GpuReports {
        self.0.clone()
    }
}

/// A tree that records what is read from it.
struct RecordingTree<'a> {
    tree: &'a dyn Tree,
    read: RefCell<BTreeMap<String, Entry>>,
    /// The PCI functions whose vendor was read, successfully or not: those that the probe uses.
    used: RefCell<BTreeSet<BusId>>,
}

impl Tree for RecordingTree<'_> {
    fn read(&self, path: &str) -> Option<String> {
        if path.ends_with("/vendor") {
            self.used.borrow_mut().extend(function(path));
        }
        let value = self.tree.read(path)?;
        self.read.borrow_mut().insert(path.to_owned(), Entry::File(value.clone()));
        Some(value)
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.tree.list(path)
    }

    fn link(&self, path: &str) -> Option<String> {
        let target = self.tree.link(path)?;
        self.read.borrow_mut().insert(path.to_owned(), Entry::Link(target.clone()));
        Some(target)
    }
}

/// The PCI function in a path.
pub(crate) fn function(path: &str) -> Option<BusId> {
    pci_address(path.strip_prefix(DEVICES)?.strip_prefix('/')?.split('/').next()?)
}

/// Removes PCI functions that the probe does not use, and interfaces of removed functions.
fn remove_unused(entries: &mut BTreeMap<String, Entry>, used: &BTreeSet<BusId>) {
    entries.retain(|path, entry| match (function(path), entry) {
        (Some(bus), _) => used.contains(&bus),
        (None, Entry::Link(target)) => pci_addresses(target).last().is_some_and(|bus| used.contains(bus)),
        (None, Entry::File(_)) => true,
    });
    let owned: BTreeSet<String> = entries.keys().cloned().collect();
    entries.retain(|path, _| match interface(path) {
        Some((class, name)) => owned.contains(&format!("{class}/{name}")),
        None => true,
    });
}

/// The class folder and the name in `sys/class/net/eth0/speed`.
pub(crate) fn interface(path: &str) -> Option<(&str, &str)> {
    let class = [NET, RDMA, NVME].into_iter().find(|class| path.starts_with(*class))?;
    let name = path[class.len()..].strip_prefix('/')?.split('/').next()?;
    Some((class, name))
}

pub(crate) fn anonymize(entries: BTreeMap<String, Entry>) -> BTreeMap<String, Entry> {
    let mut plain_names: BTreeMap<String, String> = BTreeMap::new();
    for name in entries.keys().filter_map(|path| interface(path)).map(|(_, name)| name) {
        if let Some(stem) = stem_before_address(name) {
            let number = plain_names.len();
            plain_names.entry(name.to_owned()).or_insert_with(|| format!("{stem}-{number}"));
        }
    }
    let plain = |path: &str| -> String {
        let parts = path.split('/').map(|part| plain_names.get(part).map_or(part, String::as_str));
        parts.collect::<Vec<_>>().join("/")
    };
    let entry = |path: &str, entry: Entry| match entry {
        Entry::File(_) if path == HOST_NAME => Entry::File("host0".to_owned()),
        Entry::File(text) if path == CPUINFO => Entry::File(identifying_lines(&text)),
        Entry::File(text) if path.starts_with(kfd::NODES) => Entry::File(kfd::anonymous(&text)),
        Entry::File(text) => Entry::File(text),
        Entry::Link(target) => Entry::Link(plain(&from_host_bridge(&target))),
    };
    entries.into_iter().map(|(path, value)| (plain(&path), entry(&path, value))).collect()
}

/// Removes the part of a path above the PCI host bridge, where a hypervisor may put GUIDs.
fn from_host_bridge(target: &str) -> String {
    let parts: Vec<&str> = target.split('/').collect();
    let devices = parts.iter().position(|part| *part == "devices");
    let bridge = parts.iter().position(|part| part.starts_with("pci") && part.contains(':'));
    match (devices, bridge) {
        (Some(devices), Some(bridge)) if devices < bridge => {
            [&parts[..=devices], &parts[bridge..]].concat().join("/")
        }
        _ => target.to_owned(),
    }
}

/// `enx` of `enx0242ac110002`: names with a MAC address or a GUID end in 12 or 16 hexadecimal digits.
fn stem_before_address(name: &str) -> Option<&str> {
    let (stem, digits) = name.rsplit_once('x')?;
    let is_address = matches!(digits.len(), 12 | 16) && digits.chars().all(|c| c.is_ascii_hexdigit());
    is_address.then(|| &name[..=stem.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_anonymous() {
        let recording: Recording = "# weft recording 1
proc/sys/kernel/hostname = secret
proc/cpuinfo = vendor_id : GenuineIntel\\nSerial : 4711
sys/bus/pci/devices/0001:00:02.0 -> ../../../devices/LNXSYSTM:00/VMBUS:01/c0ffee00-1234/pci0001:00/0001:00:02.0
sys/bus/pci/devices/0001:00:02.0/class = 0x020000
sys/bus/pci/devices/0001:00:02.0/vendor = 0x15b3
sys/bus/pci/devices/0001:00:03.0 -> ../../../devices/pci0001:00/0001:00:03.0
sys/bus/pci/devices/0001:00:03.0/class = 0x0c0300
sys/class/net/enx0242ac110002 -> ../../devices/pci0001:00/0001:00:02.0/net/enx0242ac110002
sys/class/net/enx0242ac110002/address = 02:42:ac:11:00:02
sys/class/net/docker0 -> ../../devices/virtual/net/docker0
nvml/reason = none here
"
        .parse()
        .unwrap();
        let kept = record(&recording, &recording).unwrap().to_string();
        for secret in ["secret", "4711", "c0ffee", "0242ac", "02:42", "docker", "00:03.0"] {
            assert!(!kept.contains(secret), "{secret} in\n{kept}");
        }
        for wanted in ["host0", "enx-0", "0001:00:02.0", "GenuineIntel", "none here"] {
            assert!(kept.contains(wanted), "{wanted} not in\n{kept}");
        }
    }
}
