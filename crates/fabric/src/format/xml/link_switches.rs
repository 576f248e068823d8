//! The switches that GPU links lead to: which device of the file they are, and which of them are merged.

use super::attributes::class;
use super::elements::{Element, Tag};
use super::gpu_links::{CPU_BRIDGE, LinkReader, count};
use super::read::bus_id;
use super::switches::{Attachment, SwitchKey, merged};
use super::{HIDDEN_DOMAIN, HIDDEN_SWITCH};
use crate::device::{BusId, Device, DeviceKind, PciClass};
use crate::format::ReadError;
use crate::id::DeviceId;

impl LinkReader<'_, '_, '_> {
    /// The bus id of the switch that a link leads to, and whether the link names a GPU instead. NCCL identifies a switch
    /// by its class alone, so the target may be missing.
    pub(super) fn switch_bus(
        &self,
        element: &Element<'_>,
        source: DeviceId,
    ) -> Result<(BusId, bool), ReadError> {
        if element.text("target").is_none() {
            return Ok((HIDDEN_SWITCH, false));
        }
        let target = bus_id(element, "target")?;
        let names_gpu = self.is_gpu(source, target);
        Ok((if names_gpu { HIDDEN_SWITCH } else { target }, names_gpu))
    }

    /// Finds the switches that have to be merged, before any link is read.
    pub(super) fn find_split_switches(&mut self) {
        let document = self.tree.document;
        let mut attachments = Vec::new();
        for (at, element) in document.elements.iter().enumerate() {
            let (Tag::NvLink | Tag::Xgmi, Some(gpu)) = (element.tag, self.tree.devices[at]) else {
                continue;
            };
            let to_switch = match element.text("tclass").map(class) {
                Some(Some(class)) => !class.is_gpu() && class != CPU_BRIDGE,
                Some(None) => true,
                None => false,
            };
            // Mistakes are reported when the element is read.
            let (Ok(Some(_)), Ok((bus, _)), true, Some(host)) = (
                count(element),
                self.switch_bus(element, gpu),
                to_switch,
                self.tree.builder.device(gpu).host,
            ) else {
                continue;
            };
            attachments.push(Attachment { gpu, host, switch: self.switch_key(gpu, bus) });
        }
        self.merged_into = merged(&attachments);
    }

    fn switch_key(&self, near: DeviceId, bus: BusId) -> SwitchKey {
        let host = self.tree.builder.device(near).host;
        // In a file of several hosts, a hidden switch belongs to the rack.
        let shared = bus.domain() >= u64::from(HIDDEN_DOMAIN)
            && self.tree.builder.host_count() > 1
            && self.switch_in_file((host, bus)).is_none();
        (if shared { None } else { host }, bus)
    }

    fn switch_in_file(&self, (host, bus): SwitchKey) -> Option<DeviceId> {
        let device = *self.tree.by_bus.get(&(host?, bus))?;
        matches!(self.tree.builder.device(device).kind, DeviceKind::NvSwitch { .. }).then_some(device)
    }

    /// The switch at a bus id: a PCI function of the file, or a device that only links name.
    pub(super) fn switch(&mut self, near: DeviceId, bus: BusId, nvlink: Option<u8>) -> DeviceId {
        let key = self.switch_key(near, bus);
        let key = *self.merged_into.get(&key).unwrap_or(&key);
        let switch = match self.switch_in_file(key) {
            Some(switch) => switch,
            None => *self.switches.entry(key).or_insert_with(|| {
                let (owner, bus) = key;
                self.tree.builder.add_device(Device {
                    host: owner,
                    ordinal: 0,
                    kind: DeviceKind::NvSwitch { generation: None },
                    bus: Some(bus),
                    class: Some(PciClass::NVSWITCH),
                    label: None,
                    extra: Vec::new(),
                })
            }),
        };
        if let DeviceKind::NvSwitch { generation } = &mut self.tree.builder.device_mut(switch).kind {
            // The first NVSwitch came with NVLink 2.
            *generation = generation.or(nvlink.filter(|g| *g >= 2).map(|g| g - 1));
        }
        switch
    }
}
