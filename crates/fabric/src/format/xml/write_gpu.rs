//! The `<gpu>` elements of a PCI function and the links in them.

use super::HIDDEN_SWITCH;
use super::gpu_links::{CPU_BRIDGE, order};
use super::hosts::Dialect;
use super::write::{Writer, find};
use crate::catalog::gpus::Vendor;
use crate::device::{DeviceKind, Gpu, GpuRank, PciClass};
use crate::id::DeviceId;
use crate::link::{Link, LinkKind};

impl Writer<'_> {
    pub(super) fn gpu(&mut self, id: DeviceId, gpu: &Gpu) {
        let mut links: Vec<Link> = self.fabric.links_from(id).to_vec();
        links.retain(|link| self.is_written(link));
        for link in &mut links {
            link.target = self.tree.link_target(link.target);
        }
        links.sort_by_key(|link| (self.tree.position(link.target), order(self.fabric.spec(link))));
        // Only links to merged switches can be duplicates.
        links.dedup_by(|next, kept| {
            let same = (next.target, next.spec) == (kept.target, kept.spec);
            kept.count = if same { kept.count.saturating_add(next.count) } else { kept.count };
            same
        });
        let default_rank = GpuRank {
            dev: Some(self.fabric.device(id).ordinal as i32),
            rank: self.tree.rank(id),
            extra: default_extra(gpu),
        };
        // A GPU that a file described by its PCI function alone is written the same way.
        let bare = self.fabric.device(id).bus.is_some() && gpu.sm.is_none() && links.is_empty();
        let ranks = match gpu.ranks.as_slice() {
            [] if bare => return,
            [] => std::slice::from_ref(&default_rank),
            ranks => ranks,
        };
        for rank in ranks {
            self.rank(gpu, rank, &links);
        }
    }

    fn rank(&mut self, gpu: &Gpu, rank: &GpuRank, links: &[Link]) {
        let mut attributes = Vec::new();
        attributes.extend(rank.dev.map(|dev| ("dev", dev.to_string())));
        let has_sm = ["sm", "gcn"].iter().any(|name| find(&rank.extra, name).is_some());
        if let (Some(sm), false) = (gpu.sm, has_sm) {
            attributes.push(("sm", sm.to_string()));
        }
        attributes.extend(rank.rank.map(|rank| ("rank", rank.to_string())));
        for (name, value) in &rank.extra {
            attributes.push((name, value.to_string()));
        }
        if links.is_empty() {
            self.markup.empty("gpu", &attributes);
            return;
        }
        self.markup.open("gpu", &attributes);
        for link in links {
            self.gpu_link(link);
        }
        self.markup.close("gpu");
    }

    /// True for the links that are written inside a `<gpu>`.
    fn is_written(&self, link: &Link) -> bool {
        let target = self.fabric.device(link.target);
        let fits = match (self.fabric.spec(link).kind, &target.kind) {
            (LinkKind::C2c, DeviceKind::Numa(_)) => true,
            (
                LinkKind::NvLink { .. } | LinkKind::Xgmi { .. },
                DeviceKind::Numa(_) | DeviceKind::NvSwitch { .. },
            ) => true,
            // The format identifies a GPU by bus id, so only on the same host.
            (LinkKind::NvLink { .. } | LinkKind::Xgmi { .. }, DeviceKind::Gpu(_)) => {
                target.host == self.fabric.device(link.source).host
            }
            _ => false,
        };
        let has_name = match self.fabric.spec(link).kind {
            LinkKind::NvLink { .. } => self.dialect == Dialect::Nccl,
            LinkKind::Xgmi { .. } => self.dialect == Dialect::Rccl,
            _ => true,
        };
        fits && has_name && link.count > 0
    }

    fn gpu_link(&mut self, link: &Link) {
        let target = self.fabric.device(link.target);
        let count = link.count.to_string();
        let spec = self.fabric.spec(link);
        if spec.kind == LinkKind::C2c {
            let rate = spec.best().map_or(0, |figure| figure.value.bytes_per_second());
            let megabytes = (rate / 1_000_000).to_string();
            self.markup.empty("c2c", &[("bw", &megabytes), ("count", &count)]);
            return;
        }
        let (bus, class) = match &target.kind {
            DeviceKind::Numa(_) => (HIDDEN_SWITCH, CPU_BRIDGE),
            DeviceKind::NvSwitch { .. } => (self.tree.bus(link.target), PciClass::NVSWITCH),
            _ => (
                self.tree.bus(link.target),
                target.class.filter(|class| class.is_gpu()).unwrap_or(PciClass::GPU),
            ),
        };
        let tag = match spec.kind {
            LinkKind::Xgmi { .. } => "xgmi",
            _ => "nvlink",
        };
        self.markup
            .empty(tag, &[("target", &bus.to_string()), ("count", &count), ("tclass", &class.to_string())]);
    }
}

/// The attributes that NCCL and RCCL need for a GPU that does not come from a file.
fn default_extra(gpu: &Gpu) -> Vec<(Box<str>, Box<str>)> {
    let amd = gpu.model.filter(|model| model.vendor == Vendor::Amd && model.architecture > 0);
    let mut extra: Vec<(Box<str>, Box<str>)> = Vec::new();
    if let Some(model) = amd {
        let (gcn, compute_units) = match model.architecture {
            910 => ("gfx90a".to_owned(), if model.id == "mi250x" { 110 } else { 104 }),
            908 => ("gfx908".to_owned(), 120),
            950 => ("gfx950".to_owned(), 256),
            other => (format!("gfx{other}"), 304),
        };
        // In RCCL's files, `sm` is the number of compute units; the numbers are from AMD's data sheets.
        extra.push(("sm".into(), compute_units.to_string().into()));
        extra.push(("gcn".into(), gcn.into()));
        // HIP's architecture flags, the same in every RCCL file for these GPUs.
        extra.push(("arch".into(), "38911".into()));
    }
    extra.push(("gdr".into(), "1".into()));
    extra
}
