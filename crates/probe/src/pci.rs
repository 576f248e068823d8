//! The PCI functions of the fabric: GPUs, NVSwitches, NICs, NVMe drives, and the bridges above them.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_fabric::device::{BusId, PciClass};

use crate::ProbeError;
use crate::models::by_pci_id;
use crate::tree::{Tree, hexadecimal, names, pci_address, pci_addresses};

pub(crate) const DEVICES: &str = "sys/bus/pci/devices";
/// Bridges above a function. PCI has 256 buses per domain, and servers nest six bridges.
const DEPTH_MAX: usize = 64;

pub(crate) const NVIDIA: u16 = Vendor::Nvidia.pci_id();
pub(crate) const AMD_GPUS: u16 = Vendor::Amd.pci_id();
const AMD: u16 = 0x1022;
const INTEL: u16 = Vendor::Intel.pci_id();
const RED_HAT: u16 = 0x1b36;

/// The role of a function in the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Bridge,
    Gpu,
    NvSwitch,
    Nic,
    Nvme,
}

/// Speed and width of a PCIe link; None if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lanes {
    pub(crate) generation: Option<u8>,
    pub(crate) width: Option<u8>,
}

/// A PCI function of the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) bus: BusId,
    /// The address without the function number; functions of one slot share it.
    pub(crate) slot: String,
    /// The functions above it, outermost first.
    pub(crate) above: Vec<BusId>,
    pub(crate) role: Role,
    pub(crate) class: PciClass,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) numa_node: i32,
    pub(crate) now: Lanes,
    pub(crate) max: Lanes,
}

impl Function {
    /// True for a port of a hypervisor, whose link speed is meaningless.
    pub(crate) fn is_virtual_port(&self) -> bool {
        self.vendor == RED_HAT
    }
}

/// The functions of the fabric, by address.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    pub(crate) by_bus: BTreeMap<BusId, Function>,
    /// Notes on functions that were left out.
    pub(crate) notes: Vec<String>,
}

impl Functions {
    /// Reads the functions. Until a function is known to matter, only its class and place are read, because recordings
    /// keep whatever is read.
    pub(crate) fn read(tree: &dyn Tree) -> Result<Self, ProbeError> {
        let mut functions = Self::default();
        let mut places = BTreeMap::new();
        for name in names(tree, DEVICES, "PCI functions")? {
            let Some(bus) = pci_address(&name) else { continue };
            if let Some(place) = functions.place(tree, &name, bus) {
                places.insert(bus, place);
            }
        }
        for (bus, place) in &places {
            if let Some(role) = role(tree, place) {
                functions.by_bus.insert(*bus, detail(tree, *bus, place, role));
            }
        }
        let mut bridges = BTreeSet::new();
        for function in functions.by_bus.values() {
            // The PCIe link of an NVSwitch is for management and carries no GPU data, so its bridges are left out.
            if function.role == Role::NvSwitch {
                continue;
            }
            for above in &function.above {
                match places.get(above) {
                    Some(place) if place.class.is_bridge() => {
                        bridges.insert(*above);
                    }
                    Some(_) => {}
                    None => functions
                        .notes
                        .push(format!("{} is below {above}, which the kernel does not list", function.bus)),
                }
            }
        }
        for bus in bridges {
            functions.by_bus.insert(bus, detail(tree, bus, &places[&bus], Role::Bridge));
        }
        Ok(functions)
    }

    fn place(&mut self, tree: &dyn Tree, name: &str, bus: BusId) -> Option<Place> {
        let class = tree.read(&format!("{DEVICES}/{name}/class")).as_deref().and_then(hexadecimal);
        let Some(class) = class.filter(|class| *class <= 0xff_ffff) else {
            self.notes.push(format!("{bus} has no readable PCI class and is left out"));
            return None;
        };
        let mut above = pci_addresses(&tree.link(&format!("{DEVICES}/{name}")).unwrap_or_default());
        if above.last() == Some(&bus) {
            above.pop();
        }
        if above.len() > DEPTH_MAX || above.contains(&bus) {
            self.notes.push(format!("{bus} has an invalid place in the PCI tree and is left out"));
            return None;
        }
        Some(Place { name: name.to_owned(), class: PciClass(class), above })
    }
}

/// The place and class of a function, which are read first.
struct Place {
    name: String,
    class: PciClass,
    above: Vec<BusId>,
}

impl Place {
    fn slot(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_str(), |(slot, _)| slot)
    }
}

fn id(tree: &dyn Tree, name: &str, file: &str) -> u16 {
    let text = tree.read(&format!("{DEVICES}/{name}/{file}"));
    text.as_deref().and_then(hexadecimal).and_then(|id| u16::try_from(id).ok()).unwrap_or(0)
}

fn role(tree: &dyn Tree, place: &Place) -> Option<Role> {
    let role = match (place.class.base(), place.class.0 >> 8) {
        // Wi-Fi.
        (_, 0x0280) => return None,
        (0x02, _) => Role::Nic,
        (_, 0x0108) => Role::Nvme,
        (_, 0x0680) => Role::NvSwitch,
        _ if place.class.is_gpu() => Role::Gpu,
        _ => return None,
    };
    // Virtual functions are left out; their physical function is listed too.
    if tree.link(&format!("{DEVICES}/{}/physfn", place.name)).is_some() {
        return None;
    }
    let counts = match role {
        Role::NvSwitch => id(tree, &place.name, "vendor") == NVIDIA,
        Role::Gpu => is_compute_gpu(tree, place),
        _ => true,
    };
    counts.then_some(role)
}

/// True for a compute GPU, as opposed to the display chip of a management controller or hypervisor and to graphics inside
/// a CPU. Intel's integrated graphics are on the root bus; AMD's share their slot with functions of the CPU.
fn is_compute_gpu(tree: &dyn Tree, place: &Place) -> bool {
    let has_display = place.class.0 >> 8 == 0x0300;
    match id(tree, &place.name, "vendor") {
        NVIDIA => true,
        // A card passed through to a virtual machine is on the root bus too; its id identifies it.
        INTEL => !place.above.is_empty() || by_pci_id(INTEL, id(tree, &place.name, "device")).is_some(),
        AMD_GPUS => {
            let beside = |function: u8| id(tree, &format!("{}.{function}", place.slot()), "vendor");
            !(has_display && (1..8).any(|function| beside(function) == AMD))
        }
        _ => false,
    }
}

fn detail(tree: &dyn Tree, bus: BusId, place: &Place, role: Role) -> Function {
    let read = |file: &str| tree.read(&format!("{DEVICES}/{}/{file}", place.name));
    let lanes = |which: &str| Lanes {
        generation: read(&format!("{which}_link_speed")).as_deref().and_then(generation),
        width: read(&format!("{which}_link_width")).as_deref().and_then(width),
    };
    Function {
        bus,
        slot: place.slot().to_owned(),
        above: place.above.clone(),
        role,
        class: place.class,
        vendor: id(tree, &place.name, "vendor"),
        device: id(tree, &place.name, "device"),
        numa_node: read("numa_node").and_then(|text| text.parse().ok()).unwrap_or(-1),
        now: lanes("current"),
        max: lanes("max"),
    }
}

/// `32.0 GT/s PCIe` is generation 5; `Unknown` is none.
fn generation(speed: &str) -> Option<u8> {
    match speed.split_whitespace().next()? {
        "2.5" => Some(1),
        "5" | "5.0" => Some(2),
        "8" | "8.0" => Some(3),
        "16" | "16.0" => Some(4),
        "32" | "32.0" => Some(5),
        "64" | "64.0" => Some(6),
        _ => None,
    }
}

/// A valid width; the kernel and hypervisors report 0, 63 or 255 for an unknown link.
fn width(text: &str) -> Option<u8> {
    text.parse().ok().filter(|width| matches!(width, 1 | 2 | 4 | 8 | 12 | 16 | 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recording;

    /// A recording of functions given as `(address, bridges above, class, vendor)`.
    fn functions(rows: &[(&str, &str, &str, &str)]) -> Functions {
        let mut text = "# weft recording 1\n".to_owned();
        for (address, above, class, vendor) in rows {
            let path = format!("{DEVICES}/{address}");
            text += &format!("{path} -> ../../../devices/pci0000:00{above}/{address}\n");
            text += &format!("{path}/class = {class}\n{path}/vendor = {vendor}\n");
        }
        Functions::read(&text.parse::<Recording>().unwrap()).unwrap()
    }

    #[test]
    fn only_compute_gpus_are_included() {
        let found = functions(&[
            ("0000:00:02.0", "", "0x030000", "0x8086"), // inside an Intel CPU
            ("0000:00:0b.0", "", "0x120000", "0x8086"), // its NPU
            ("0000:00:12.0", "", "0x038000", "0x8086"), // graphics without a screen
            ("0000:00:14.3", "", "0x028000", "0x8086"), // Wi-Fi
            ("0000:00:03.0", "", "0x030200", "0x10de"), // passed through to a VM
            ("0000:00:04.0", "", "0x030000", "0x1234"), // QEMU's display
            ("0000:00:08.1", "", "0x060400", "0x1022"),
            ("0000:0a:00.0", "/0000:00:08.1", "0x030000", "0x1002"), // inside an AMD CPU
            ("0000:0a:00.2", "/0000:00:08.1", "0x108000", "0x1022"),
            ("0000:00:01.0", "", "0x060400", "0x8086"),
            ("0000:0b:00.0", "/0000:00:01.0", "0x120000", "0x1002"), // MI300X
            ("0000:00:1c.0", "", "0x060400", "0x8086"),
            ("0000:0c:00.0", "/0000:00:1c.0", "0x030000", "0x1a03"), // ASPEED
        ]);
        let gpus: Vec<String> =
            found.by_bus.values().filter(|f| f.role == Role::Gpu).map(|f| f.bus.to_string()).collect();
        assert_eq!(gpus, ["0000:00:03.0", "0000:0b:00.0"]);
        // Of the bridges, the one above the MI300X.
        assert_eq!(found.by_bus.len(), 3);
    }

    #[test]
    fn invalid_functions_are_left_out_with_a_note() {
        let found = functions(&[
            ("0000:00:02.0", "/0000:00:02.0", "0x020000", "0x8086"),
            ("0000:00:03.0", "", "garbage", "0x8086"),
            ("0000:00:04.0", "", "0xffffffff", "0x8086"),
            ("0000:00:05.0", &"/0000:01:00.0".repeat(99), "0x020000", "0x8086"),
            ("0000:00:06.0", "/0000:77:00.0", "0x020000", "junk"),
        ]);
        assert_eq!(found.by_bus.len(), 1);
        assert_eq!(found.notes.len(), 5, "{:?}", found.notes);
    }

    #[test]
    fn invalid_speeds_and_widths_are_unknown() {
        assert_eq!(
            ["2.5 GT/s PCIe", "5 GT/s", "32.0 GT/s PCIe", "Unknown", ""].map(generation),
            [Some(1), Some(2), Some(5), None, None]
        );
        assert_eq!(["16", "0", "63", "255", "-1", "x"].map(width), [Some(16), None, None, None, None, None]);
    }
}
