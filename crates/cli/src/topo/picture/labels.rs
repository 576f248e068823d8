//! What is written beside the picture of a host.

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::rate::{Device, OneWay, Rate};
use weftlink_fabric::{DeviceId, HostId, Link, LinkKind, Measure};

use super::host::HostPicture;
use super::slots::{Node, gathered, label};

impl HostPicture<'_> {
    pub(super) fn node_label(&self, node: &Node) -> String {
        let name = label(self.fabric, node.id);
        let loose = gathered(self.fabric, &node.loose);
        if loose.is_empty() { name } else { format!("{name}: {}", loose.join(" ")) }
    }

    pub(super) fn switch_band(&self) -> String {
        match self.switches.len() {
            1 => "1 NVSwitch".to_owned(),
            count => format!("{count} NVSwitches"),
        }
    }

    /// How many hosts the switches serve, where it is more than this one.
    pub(super) fn sharing(&self) -> String {
        let targets = self.switches.iter().flat_map(|id| self.fabric.links_from(*id)).map(|link| link.target);
        let mut hosts: Vec<HostId> = targets.filter_map(|id| self.fabric.device(id).host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > 1 { format!("shared by {} hosts", hosts.len()) } else { String::new() }
    }

    pub(super) fn gpu_link_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let links =
            self.fabric.links_from(*gpu).iter().filter(|link| self.fabric.spec(link).kind.is_gpu_fabric());
        let (mut count, mut kind, mut bytes) = (0, None, 0);
        for link in links {
            count += link.count;
            kind = Some(self.fabric.spec(link).kind);
            bytes += self.fabric.rate(link, Measure::Nominal).bytes_per_second();
        }
        let rate: Rate<Device, OneWay> = Rate::from_bytes(bytes);
        kind.map_or_else(String::new, |kind| match bytes {
            0 => format!("{count} x {kind} per GPU"),
            _ => format!("{count} x {kind}: {rate}"),
        })
    }

    pub(super) fn model_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let device = self.fabric.device(*gpu);
        let name = device
            .kind
            .gpu_model()
            .map(|model: &GpuModel| format!("{}, {}", model.name, model.memory_rate.value.amount()));
        name.or_else(|| device.label.as_deref().map(str::to_owned))
            .unwrap_or_else(|| "GPU of unknown model".to_owned())
    }

    pub(super) fn slot_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let of_kind = |wanted: fn(LinkKind) -> bool| {
            self.fabric.links_from(*gpu).iter().find(|link| wanted(self.fabric.spec(link).kind))
        };
        let text = |link: &Link| {
            let spec = self.fabric.spec(link);
            match spec.nominal.as_ref() {
                Some(_) => {
                    format!("{}: {} each way", spec.kind, self.fabric.rate(link, Measure::Nominal).amount())
                }
                None => spec.kind.to_string(),
            }
        };
        let slots =
            [of_kind(|kind| matches!(kind, LinkKind::Pcie { .. })), of_kind(|kind| kind == LinkKind::C2c)];
        slots.into_iter().flatten().map(text).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn socket_label(&self) -> Option<String> {
        let links = self.fabric.links_from(self.nodes.first()?.id);
        let spec = links
            .iter()
            .map(|link| self.fabric.spec(link))
            .find(|spec| matches!(spec.kind, LinkKind::Socket(_)))?;
        let rate = spec
            .best()
            .map_or_else(String::new, |figure| format!(": {} each way effective", figure.value.amount()));
        Some(format!("{}{rate}", spec.kind))
    }

    pub(super) fn link_rate(&self, kind: LinkKind, count: u32) -> String {
        let spec = self.fabric.specs().iter().find(|spec| spec.kind == kind);
        let rate = spec.map_or(Rate::ZERO, |spec| spec.rate(Measure::Nominal, count));
        if rate == Rate::ZERO { "unknown speed".to_owned() } else { rate.amount().to_string() }
    }
}
