//! GPU data that the driver reports and sysfs does not contain: names, memory, NVLinks and their targets.

use weftlink_fabric::device::BusId;

use crate::recording::{Entry, Recording};
use crate::tree::{Tree, pci_address};

/// A source of GPU data, such as a driver.
pub trait GpuSource {
    /// Reports all GPUs. Failures are not fatal: without a driver, the PCI tree still describes the machine.
    fn gpus(&self) -> GpuReports;
}

/// The result of a [`GpuSource`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuReports {
    /// One for each GPU of the driver, in its order.
    pub gpus: Vec<GpuReport>,
    /// Why GPUs are missing.
    pub reason: Option<String>,
}

/// One GPU, as reported by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuReport {
    /// Its PCI address.
    pub bus: BusId,
    /// The driver's name for it.
    pub name: Option<String>,
    /// Compute capability times ten: 90 for Hopper.
    pub sm: Option<u32>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Links to a Grace CPU; None if the driver does not report them.
    pub c2c_links: Option<u32>,
    /// Its NVLinks, active and inactive.
    pub nvlinks: Vec<NvLinkReport>,
}

/// One NVLink of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvLinkReport {
    /// Its number on the GPU.
    pub index: u32,
    /// None if the link is down.
    pub up: Option<NvLinkUp>,
}

/// An active NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvLinkUp {
    /// 1 (Pascal) to 5 (Blackwell).
    pub generation: Option<u8>,
    /// Its far end.
    pub remote: Remote,
}

/// The far end of an NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// Not reported by the driver.
    Unknown,
    /// A device that is invisible to this operating system, such as an NVSwitch of the hypervisor.
    Hidden,
    /// A PCI function.
    Function {
        /// Its PCI address.
        bus: BusId,
        /// Its PCI vendor and device id.
        id: (u16, u16),
    },
}

/// A recording contains the reports it was made with.
impl GpuSource for Recording {
    fn gpus(&self) -> GpuReports {
        GpuReports {
            gpus: gpu_numbers(self).into_iter().filter_map(|number| read_gpu(self, number)).collect(),
            reason: self.read("nvml/reason"),
        }
    }
}

/// The driver's numbers of the GPUs whose values are in a tree.
pub(crate) fn gpu_numbers(tree: &dyn Tree) -> Vec<u32> {
    let mut numbers: Vec<u32> = tree.list("nvml").iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

impl Recording {
    /// Adds the reports of a driver, so that [`GpuSource::gpus`] returns the same.
    pub(crate) fn add_gpus(&mut self, reports: &GpuReports) {
        if let Some(reason) = &reports.reason {
            self.add("nvml/reason".to_owned(), reason.clone());
        }
        for (number, gpu) in reports.gpus.iter().enumerate() {
            let path = |file: &str| format!("nvml/{number}/{file}");
            self.add(path("bus"), gpu.bus.to_string());
            for (file, value) in [
                ("name", gpu.name.clone()),
                ("sm", gpu.sm.map(|sm| sm.to_string())),
                ("memory_bytes", gpu.memory_bytes.map(|bytes| bytes.to_string())),
                ("c2c_links", gpu.c2c_links.map(|links| links.to_string())),
            ] {
                if let Some(value) = value {
                    self.add(path(file), value);
                }
            }
            for link in &gpu.nvlinks {
                self.add(path(&format!("nvlink/{}", link.index)), write_link(link.up));
            }
        }
    }

    pub(crate) fn add(&mut self, path: String, value: String) {
        self.entries.insert(path, Entry::File(value));
    }
}

/// The report on one GPU, from the driver's values in a tree.
pub(crate) fn read_gpu(tree: &dyn Tree, number: u32) -> Option<GpuReport> {
    let read = |file: &str| tree.read(&format!("nvml/{number}/{file}"));
    let mut indices: Vec<u32> =
        tree.list(&format!("nvml/{number}/nvlink")).iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    Some(GpuReport {
        bus: pci_address(&read("bus")?)?,
        name: read("name"),
        sm: read("sm").and_then(|text| text.parse().ok()),
        memory_bytes: read("memory_bytes").and_then(|text| text.parse().ok()),
        c2c_links: read("c2c_links").and_then(|text| text.parse().ok()),
        nvlinks: indices
            .into_iter()
            .filter_map(|index| {
                let up = read_link(&read(&format!("nvlink/{index}"))?)?;
                Some(NvLinkReport { index, up })
            })
            .collect(),
    })
}

/// `down`, or `up nvlink4 0000:05:00.0 10de:22a3`, or `up nvlink4 hidden`; unknown parts are omitted.
fn write_link(up: Option<NvLinkUp>) -> String {
    let Some(up) = up else {
        return "down".to_owned();
    };
    let mut text = "up".to_owned();
    if let Some(generation) = up.generation {
        text += &format!(" nvlink{generation}");
    }
    match up.remote {
        Remote::Unknown => {}
        Remote::Hidden => text += " hidden",
        Remote::Function { bus, id } => text += &format!(" {bus} {:04x}:{:04x}", id.0, id.1),
    }
    text
}

/// The reverse of [`write_link`]; None if the text is malformed.
fn read_link(text: &str) -> Option<Option<NvLinkUp>> {
    let mut words = text.split_whitespace();
    match words.next()? {
        "down" => return Some(None),
        "up" => {}
        _ => return None,
    }
    let mut up = NvLinkUp { generation: None, remote: Remote::Unknown };
    let mut far_end = None;
    for word in words {
        if let Some(generation) = word.strip_prefix("nvlink") {
            up.generation = Some(generation.parse().ok()?);
        } else if word == "hidden" {
            up.remote = Remote::Hidden;
        } else if let Some(bus) = pci_address(word) {
            far_end = Some(bus);
        } else {
            let (vendor, device) = word.split_once(':')?;
            up.remote = Remote::Function {
                bus: far_end?,
                id: (u16::from_str_radix(vendor, 16).ok()?, u16::from_str_radix(device, 16).ok()?),
            };
        }
    }
    Some(Some(up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_round_trip() {
        let bus = BusId::new(0, 5, 0, 0);
        let mut links = vec![None];
        for remote in [Remote::Unknown, Remote::Hidden, Remote::Function { bus, id: (0x10de, 0x22a3) }] {
            for generation in [None, Some(4)] {
                links.push(Some(NvLinkUp { generation, remote }));
            }
        }
        for link in links {
            assert_eq!(read_link(&write_link(link)), Some(link), "{}", write_link(link));
        }
        for text in ["", "sideways", "up nvlinkX", "up 10de:22a3", "up 0000:05:00.0 x:y"] {
            assert_eq!(read_link(text), None, "{text}");
        }
    }
}
