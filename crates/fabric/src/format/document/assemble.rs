//! Builds a fabric from a document's entries: looks up names, checks counts, merges entries.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::devices::{self, LocalName};
use super::schema::{Document, HostEntry, LatencyEntry, LinkEntry, LinkTypeEntry, RateEntry};
use super::{BASE_GPUS_MAX, DEVICES_MAX, LINK_COUNT_MAX};
use crate::catalog::{links, systems};
use crate::cluster::resolve;
use crate::device::Device;
use crate::fabric::{Fabric, FabricBuilder, FabricError};
use crate::figure::{Figure, LinkRate, Nanoseconds};
use crate::format::excerpt;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, SpecId};
use crate::nearest::did_you_mean;
use crate::peer_access::PeerAccess;
use crate::rate::Rate;
use crate::spec::ClusterSpec;

/// A mistake in a document.
#[derive(Debug)]
pub(super) enum DocumentError {
    /// In an entry of one of its lists; top-level keys count as lists too.
    Entry { list: &'static str, index: usize, reason: String },
    /// In the fabric as a whole.
    Fabric(FabricError),
}

/// A fabric under construction. Links are kept here until all overrides are applied.
pub(super) struct Assembly {
    pub(super) builder: FabricBuilder,
    pub(super) specs: Vec<LinkSpec>,
    pub(super) links: BTreeMap<(DeviceId, DeviceId, SpecId), u32>,
    hosts: FxHashMap<String, HostId>,
    devices: FxHashMap<(Option<HostId>, LocalName), DeviceId>,
    types: FxHashMap<String, SpecId>,
}

/// Builds the fabric of a document.
pub(super) fn assemble(document: Document) -> Result<Fabric, DocumentError> {
    let base = document.base.as_deref().map(base_fabric).transpose();
    let base = base.map_err(|reason| at("base", 0, reason))?;
    let name = document.name.as_deref().or(base.as_ref().map(Fabric::name));
    let mut assembly = Assembly {
        builder: FabricBuilder::new(name.unwrap_or("document")),
        specs: Vec::new(),
        links: BTreeMap::new(),
        hosts: FxHashMap::default(),
        devices: FxHashMap::default(),
        types: FxHashMap::default(),
    };
    if let Some(base) = &base {
        let rename = |_: usize, name: &str| name.to_owned();
        assembly.copy(base, rename).map_err(|reason| at("base", 0, reason))?;
        base.notes().iter().for_each(|note| assembly.builder.note(note));
    }
    document.notes.into_iter().for_each(|note| assembly.builder.note(note));
    let access = document.peer_access.or(base.as_ref().and_then(|base| base.peer_access().setting()));
    assembly.builder.peer_access(PeerAccess::from_setting(access));
    each("host", document.host, |entry| assembly.add_host(entry))?;
    each("device", document.device, |entry| {
        let (host, local) = assembly.place(&entry.name)?;
        let device = devices::device(entry, host, local)?;
        assembly.add_device(device, local)
    })?;
    each("link_type", document.link_type, |entry| assembly.add_type(entry))?;
    each("link", document.link, |entry| assembly.add_link(&entry))?;
    each("override", document.overrides, |entry| assembly.apply(&entry))?;
    for ((source, target, spec), count) in assembly.links {
        assembly.builder.link(source, target, count, spec);
    }
    assembly.builder.finish().map_err(DocumentError::Fabric)
}

fn each<T>(
    list: &'static str,
    entries: Vec<T>,
    mut add: impl FnMut(T) -> Result<(), String>,
) -> Result<(), DocumentError> {
    for (index, entry) in entries.into_iter().enumerate() {
        add(entry).map_err(|reason| at(list, index, reason))?;
    }
    Ok(())
}

fn at(list: &'static str, index: usize, reason: String) -> DocumentError {
    DocumentError::Entry { list, index, reason }
}

fn base_fabric(text: &str) -> Result<Fabric, String> {
    // A short spec can describe 200,000 GPUs; the limit for a document is lower.
    if let Ok(spec) = text.parse::<ClusterSpec>()
        && spec.gpus() > BASE_GPUS_MAX
    {
        return Err(format!("`base` has {} GPUs; the limit for a document is {BASE_GPUS_MAX}", spec.gpus()));
    }
    resolve(text).map_err(|error| format!("`base`: {error}"))
}

impl Assembly {
    /// Appends a copy of a fabric, with its hosts renamed by `rename`.
    fn copy(&mut self, part: &Fabric, rename: impl Fn(usize, &str) -> String) -> Result<(), String> {
        let first_host = self.builder.host_count() as u32;
        let first_device = self.builder.device_count() as u32;
        for (index, host) in part.hosts().iter().enumerate() {
            self.new_host(rename(index, &host.name), host.system.as_deref())?;
        }
        for device in part.devices() {
            let local = LocalName::of(device);
            let host = device.host.map(|host| HostId(host.0 + first_host));
            self.add_device(Device { host, ..device.clone() }, local)?;
        }
        let specs: Vec<SpecId> = part.specs().iter().map(|spec| self.spec(spec.clone())).collect();
        for link in part.links() {
            let shifted = |id: DeviceId| DeviceId(id.0 + first_device);
            let spec = specs[link.spec.0 as usize];
            self.link(shifted(link.source), shifted(link.target), spec, link.count)?;
        }
        Ok(())
    }

    fn new_host(&mut self, name: String, system: Option<&str>) -> Result<HostId, String> {
        if name.is_empty() {
            return Err("a host needs a name".to_owned());
        }
        if self.hosts.contains_key(&name) {
            return Err(format!("duplicate host `{}`: rename one of the two", excerpt(&name)));
        }
        let id = self.builder.host(name.clone(), system);
        self.hosts.insert(name, id);
        Ok(id)
    }

    fn add_host(&mut self, entry: HostEntry) -> Result<(), String> {
        let Some(like) = entry.like else {
            return self.new_host(entry.name, entry.system.as_deref()).map(drop);
        };
        if entry.system.is_some() {
            return Err("`like` also sets the system: remove `system`".to_owned());
        }
        let system = systems::by_name(&like).ok_or_else(|| {
            let hint = did_you_mean(&like, systems::all().map(|system| system.name));
            format!("no system is called `{}`.{hint}", excerpt(&like))
        })?;
        let part = system.fabric();
        if part.hosts().len() != 1 || part.devices().iter().any(|device| device.host.is_none()) {
            return Err(format!(
                "`like` copies one host and {like} has several: use `base = \"{like}\"` instead"
            ));
        }
        self.copy(&part, |_, _| entry.name.clone())
    }

    /// Adds a device under an unused name.
    fn add_device(&mut self, device: Device, local: LocalName) -> Result<(), String> {
        let key = (device.host, local);
        if self.devices.len() == DEVICES_MAX {
            return Err(format!("too many devices: the limit for a document is {DEVICES_MAX}"));
        }
        if self.devices.contains_key(&key) {
            return Err(format!(
                "duplicate device `{local}` on the same host: give one of the two another number"
            ));
        }
        let id = self.builder.add_device(device);
        // The builder numbers devices in order; in a document the number is part of the name.
        self.builder.device_mut(id).ordinal = local.ordinal;
        self.devices.insert(key, id);
        Ok(())
    }

    /// Splits a name into its host, which must exist, and the rest.
    fn place(&self, name: &str) -> Result<(Option<HostId>, LocalName), String> {
        let (host, local) = match name.rsplit_once('/') {
            Some((host, local)) => (Some(host), local),
            None => (None, name),
        };
        let local = local.parse::<LocalName>()?;
        let host = match host {
            Some("") => None,
            Some(host) => Some(*self.hosts.get(host).ok_or_else(|| self.no_host(host))?),
            None if local.is_network_switch() => None,
            None if self.hosts.len() == 1 => Some(HostId(0)),
            None if local.is_switch() => None,
            None => {
                return Err(format!("`{local}` needs the name of its host in front, as in `host0/{local}`"));
            }
        };
        Ok((host, local))
    }

    fn no_host(&self, name: &str) -> String {
        let mut all: Vec<&str> = self.hosts.keys().map(String::as_str).collect();
        all.sort_unstable();
        format!("no host is called `{}`.{}", excerpt(name), did_you_mean(name, all.into_iter()))
    }

    /// The device with a name.
    fn device(&self, name: &str) -> Result<DeviceId, String> {
        let (host, local) = self.place(name)?;
        // In a document of one host, a switch without a host in its name may belong to no host.
        let host_left_out = !name.contains('/');
        let shared = || self.devices.get(&(None, local)).filter(|_| host_left_out);
        let device = self.devices.get(&(host, local)).or_else(shared);
        device.copied().ok_or_else(|| {
            let same_kind =
                |(of, other): &&(Option<HostId>, LocalName)| *of == host && other.stem == local.stem;
            let owner = if host.is_some() { "its host" } else { "the document" };
            let count = self.devices.keys().filter(same_kind).count();
            format!("no device is called `{}`; {owner} has {count} of kind `{}`", excerpt(name), local.stem)
        })
    }

    pub(super) fn devices_between(&self, (a, b): &(String, String)) -> Result<(DeviceId, DeviceId), String> {
        let (source, target) = (self.device(a)?, self.device(b)?);
        if source == target {
            return Err(format!("`{}` is linked to itself; a link needs two different devices", excerpt(a)));
        }
        Ok((source, target))
    }

    /// Registers a link type.
    pub(super) fn spec(&mut self, spec: LinkSpec) -> SpecId {
        let id = self.builder.spec(spec.clone());
        if id.0 as usize == self.specs.len() {
            self.specs.push(spec);
        }
        id
    }

    fn add_type(&mut self, entry: LinkTypeEntry) -> Result<(), String> {
        let kind = match entry.kind {
            Some(kind) => kind,
            None => (entry.id.parse::<LinkKind>())
                .map_err(|error| format!("`kind` is missing and the id is not a link kind: {error}"))?,
        };
        if self.types.contains_key(&entry.id) {
            return Err(format!("duplicate link type `{}`: rename one of the two", excerpt(&entry.id)));
        }
        let spec = LinkSpec {
            kind,
            nominal: entry.nominal.map(rate_figure).transpose()?,
            effective: entry.effective.map(rate_figure).transpose()?,
            latency: entry.latency.map(|LatencyEntry { ns, basis, source, checked }| Figure {
                value: Nanoseconds(ns),
                basis,
                source,
                checked,
            }),
        };
        let id = self.spec(spec);
        self.types.insert(entry.id, id);
        Ok(())
    }

    /// A link type of the document or of the catalog.
    fn link_type(&mut self, id: &str) -> Result<SpecId, String> {
        match self.types.get(id) {
            Some(spec) => Ok(*spec),
            None => {
                let spec = match links::variant(id) {
                    Some(spec) => spec.clone(),
                    None => links::spec_of(self.kind_of(id)?),
                };
                Ok(self.spec(spec))
            }
        }
    }

    /// The kind of link that a type's id refers to.
    pub(super) fn kind_of(&self, id: &str) -> Result<LinkKind, String> {
        if let Some(spec) = self.types.get(id) {
            return Ok(self.specs[spec.0 as usize].kind);
        }
        if let Some(spec) = links::variant(id) {
            return Ok(spec.kind);
        }
        id.parse().map_err(|_| {
            let ids: Vec<String> = links::all().iter().map(links::id_of).collect();
            let mut all: Vec<&str> = ids.iter().chain(self.types.keys()).map(String::as_str).collect();
            all.sort_unstable();
            all.dedup();
            format!(
                "no link type is called `{}`.{} Declare it in `[[link_type]]`, or use one that `weft topo --list links` prints",
                excerpt(id),
                did_you_mean(id, all.into_iter())
            )
        })
    }

    fn add_link(&mut self, entry: &LinkEntry) -> Result<(), String> {
        let (source, target) = self.devices_between(&entry.between)?;
        let spec = self.link_type(&entry.link_type)?;
        self.link(source, target, spec, entry.count)?;
        if !entry.oneway {
            self.link(target, source, spec, entry.count)?;
        }
        Ok(())
    }

    /// Adds links in one direction to the existing ones of the same type.
    pub(super) fn link(
        &mut self,
        source: DeviceId,
        target: DeviceId,
        spec: SpecId,
        count: u32,
    ) -> Result<(), String> {
        let total = self.links.entry((source, target, spec)).or_default();
        *total = total.saturating_add(count);
        if count == 0 || *total > LINK_COUNT_MAX {
            return Err(format!("the number of parallel links must be 1 to {LINK_COUNT_MAX}"));
        }
        Ok(())
    }
}

fn rate_figure(entry: RateEntry) -> Result<LinkRate, String> {
    Ok(Figure {
        value: Rate::from_bytes(bytes_per_second(entry.gb_per_s_each_way)?),
        basis: entry.basis,
        source: entry.source,
        checked: entry.checked,
    })
}

/// Converts GB/s of a document to the whole bytes per second of a [`Rate`].
pub(super) fn bytes_per_second(gb: f64) -> Result<u64, String> {
    const GB_MAX: f64 = 1e6;
    if (0.0..=GB_MAX).contains(&gb) {
        Ok((gb * 1e9).round() as u64)
    } else {
        Err(format!("{gb} GB/s is out of range: the rate of a link is 0 to {GB_MAX} GB/s"))
    }
}
