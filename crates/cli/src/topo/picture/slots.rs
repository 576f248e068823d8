//! What hangs below each NUMA node: PCIe switches with their GPUs, GPUs on root ports, and what is loose.

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind};

pub(super) struct Node {
    pub(super) id: DeviceId,
    pub(super) stacks: Vec<Stack>,
    /// NICs, drives and others that hang on the node without a switch.
    pub(super) loose: Vec<DeviceId>,
}

/// A PCIe switch with what is below it, or a GPU on a root port of its own.
pub(super) struct Stack {
    pub(super) switch: Option<DeviceId>,
    pub(super) gpus: Vec<DeviceId>,
    pub(super) others: Vec<DeviceId>,
}

impl Node {
    pub(super) fn of(fabric: &Fabric, id: DeviceId, seen: &mut [bool]) -> Self {
        let mut node = Self { id, stacks: Vec::new(), loose: Vec::new() };
        seen[id.index()] = true;
        for child in children(fabric, id, seen) {
            match fabric.device(child).kind {
                DeviceKind::RootPort => {
                    for below in children(fabric, child, seen) {
                        node.take(fabric, below, seen);
                    }
                }
                _ => node.take(fabric, child, seen),
            }
        }
        node
    }

    fn take(&mut self, fabric: &Fabric, id: DeviceId, seen: &mut [bool]) {
        match fabric.device(id).kind {
            DeviceKind::Gpu(_) => {
                self.stacks.push(Stack { switch: None, gpus: vec![id], others: Vec::new() })
            }
            DeviceKind::PcieSwitch => {
                let mut stack = Stack { switch: Some(id), gpus: Vec::new(), others: Vec::new() };
                stack.fill(fabric, id, seen);
                match stack.gpus.is_empty() {
                    true => self.loose.extend(stack.others),
                    false => self.stacks.push(stack),
                }
            }
            _ => self.loose.push(id),
        }
    }
}

impl Stack {
    fn fill(&mut self, fabric: &Fabric, switch: DeviceId, seen: &mut [bool]) {
        let mut pending = vec![switch];
        while let Some(at) = pending.pop() {
            for child in children(fabric, at, seen) {
                match fabric.device(child).kind {
                    DeviceKind::Gpu(_) => self.gpus.push(child),
                    DeviceKind::PcieSwitch => pending.push(child),
                    _ => self.others.push(child),
                }
            }
        }
        self.gpus.sort_unstable();
        self.others.sort_unstable();
    }

    /// What is written in its box: the switch, then what else is below it.
    pub(super) fn lines(&self, fabric: &Fabric) -> Vec<String> {
        self.switch
            .map(|switch| label(fabric, switch))
            .into_iter()
            .chain(gathered(fabric, &self.others))
            .collect()
    }
}

/// The names of devices, those of a kind in one: `nic0-3`.
pub(super) fn gathered(fabric: &Fabric, devices: &[DeviceId]) -> Vec<String> {
    let mut ranges: Vec<(&'static str, u32, u32)> = Vec::new();
    for id in devices {
        let (stem, ordinal) = (fabric.device(*id).kind.stem(), fabric.device(*id).ordinal);
        match ranges.iter_mut().find(|(other, _, last)| *other == stem && last + 1 == ordinal) {
            Some((_, _, last)) => *last = ordinal,
            None => ranges.push((stem, ordinal, ordinal)),
        }
    }
    ranges.sort_unstable();
    let name = |(stem, first, last): (&str, u32, u32)| match first == last {
        true => format!("{stem}{first}"),
        false => format!("{stem}{first}-{last}"),
    };
    ranges.into_iter().map(name).collect()
}

/// What hangs below a device on PCIe and was not drawn yet.
fn children(fabric: &Fabric, id: DeviceId, seen: &mut [bool]) -> Vec<DeviceId> {
    let links = fabric.links_from(id).iter();
    let below = links.filter(|link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. } | LinkKind::C2c));
    let mut found = Vec::new();
    for target in below.map(|link| link.target) {
        let is_numa = matches!(fabric.device(target).kind, DeviceKind::Numa(_));
        if !is_numa && !std::mem::replace(&mut seen[target.index()], true) {
            found.push(target);
        }
    }
    found
}

/// A device's name within its host.
pub(super) fn label(fabric: &Fabric, id: DeviceId) -> String {
    let device = fabric.device(id);
    format!("{}{}", device.kind.stem(), device.ordinal)
}
