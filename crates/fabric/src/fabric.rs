//! The fabric: dense arrays of hosts, devices and directed links, immutable once built.

use rustc_hash::FxHashMap;

use crate::device::{Device, DeviceKind, Host};
use crate::id::{DeviceId, HostId};
use crate::link::{Link, LinkKind, LinkSpec, Measure, SpecId};
use crate::peer_access::PeerAccess;
use crate::rate::{OneWay, Pair, Rate};

/// A machine or a cluster: its hosts, devices and links.
#[derive(Debug, Clone)]
pub struct Fabric {
    name: String,
    hosts: Vec<Host>,
    devices: Vec<Device>,
    links: Vec<Link>,
    specs: Vec<LinkSpec>,
    /// `links` is sorted by source; the links of device `d` are `links[starts[d]..starts[d + 1]]`.
    starts: Vec<u32>,
    gpus: Vec<DeviceId>,
    peer_access: PeerAccess,
    /// Remarks on the description: what a file left out, what was assumed.
    notes: Vec<String>,
}

/// Two fabrics are equal when they have the same hosts and devices with the same links; names of fabrics do not count.
impl PartialEq for Fabric {
    fn eq(&self, other: &Self) -> bool {
        let wiring = |fabric: &Self| -> Vec<(Link, LinkSpec)> {
            fabric
                .links
                .iter()
                .map(|link| (Link { spec: SpecId(0), ..*link }, fabric.spec(link).clone()))
                .collect()
        };
        self.hosts == other.hosts
            && self.devices == other.devices
            && self.peer_access == other.peer_access
            && wiring(self) == wiring(other)
    }
}

impl Fabric {
    /// The name of the fabric.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Remarks on the description: what a file left out, what was assumed.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// All devices, in the order of their ids.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Ids of all devices.
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// One device.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.index()]
    }

    /// The GPUs. A GPU's position here is its number in matrices, and its rank.
    pub fn gpus(&self) -> &[DeviceId] {
        &self.gpus
    }

    /// The devices whose kind `wanted` accepts.
    pub fn devices_where<'a>(
        &'a self,
        wanted: impl Fn(&DeviceKind) -> bool + 'a,
    ) -> impl Iterator<Item = DeviceId> + 'a {
        self.device_ids().filter(move |&id| wanted(&self.device(id).kind))
    }

    /// All links, sorted by source.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links that leave a device.
    pub fn links_from(&self, id: DeviceId) -> &[Link] {
        &self.links[self.starts[id.index()] as usize..self.starts[id.index() + 1] as usize]
    }

    /// All link specs, including those that no link uses.
    pub fn specs(&self) -> &[LinkSpec] {
        &self.specs
    }

    /// A copy of the fabric in which the links between some pairs of devices have failed, in both directions. Devices
    /// keep their ids.
    pub fn without(&self, pairs: &[(DeviceId, DeviceId)]) -> Self {
        let fails = |link: &Link| {
            let (source, target) = (link.source, link.target);
            pairs.iter().any(|pair| *pair == (source, target) || *pair == (target, source))
        };
        let mut left = self.clone();
        left.links.retain(|link| !fails(link));
        left.starts = starts(left.devices.len(), &left.links);
        left
    }

    /// A copy of the fabric with other links: `change` returns the number of parallel links and their spec, for each link of the
    /// fabric, or nothing for a link to be left out. Devices keep their ids.
    pub fn with_links(&self, mut change: impl FnMut(&Link, &LinkSpec) -> Option<(u32, LinkSpec)>) -> Self {
        let mut changed = self.clone();
        let mut specs: FxHashMap<LinkSpec, SpecId> = FxHashMap::default();
        changed.links.clear();
        changed.specs.clear();
        for link in &self.links {
            let Some((count, spec)) = change(link, self.spec(link)) else { continue };
            let next = SpecId(changed.specs.len() as u32);
            let spec = *specs.entry(spec).or_insert_with_key(|spec| {
                changed.specs.push(spec.clone());
                next
            });
            changed.links.push(Link { count, spec, ..*link });
        }
        changed.links.sort_by_key(|link| (link.source, link.target, link.spec));
        changed.starts = starts(changed.devices.len(), &changed.links);
        changed
    }

    /// Whether GPUs can access each other's memory over PCIe.
    pub fn peer_access(&self) -> PeerAccess {
        self.peer_access
    }

    /// The same fabric with other access between GPUs over PCIe.
    pub fn with_peer_access(mut self, peer_access: PeerAccess) -> Self {
        self.peer_access = peer_access;
        self
    }

    /// The spec of a link.
    pub fn spec(&self, link: &Link) -> &LinkSpec {
        &self.specs[link.spec.0 as usize]
    }

    /// The rate of a link, summed over its parallel wires.
    pub fn rate(&self, link: &Link, measure: Measure) -> Rate<Pair, OneWay> {
        self.spec(link).rate(measure, link.count)
    }

    /// The rate that no transfer over a link exceeds, summed over its parallel wires.
    pub fn limit(&self, link: &Link) -> Rate<Pair, OneWay> {
        self.spec(link).limit(link.count)
    }

    /// `gpu3`, or `host1/gpu3` where there are several hosts. A network switch has the name that a file gives it.
    pub fn device_name(&self, id: DeviceId) -> String {
        let device = self.device(id);
        if let (DeviceKind::NetSwitch(_), Some(label)) = (&device.kind, &device.label)
            && !label.chars().any(char::is_control)
        {
            return label.as_ref().to_owned();
        }
        self.ordinal_name(id)
    }

    /// The name by kind and number, also of a switch with a name of its own.
    fn ordinal_name(&self, id: DeviceId) -> String {
        let device = self.device(id);
        let local = format!("{}{}", device.kind.stem(), device.ordinal);
        match device.host {
            Some(host) if self.hosts.len() > 1 => format!("{}/{local}", self.hosts[host.index()].name),
            _ => local,
        }
    }

    /// Finds a device by name, by PCI address, or (a GPU) by its number across all hosts.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        // With a single host, its name in front is optional.
        let only = self.hosts.first().filter(|_| self.hosts.len() == 1);
        let short =
            only.and_then(|host| name.strip_prefix(host.name.as_str())?.strip_prefix('/')).unwrap_or(name);
        let by_name = |id: &DeviceId| self.device_name(*id).eq_ignore_ascii_case(short);
        let by_label = |id: &DeviceId| {
            let device = self.device(*id);
            let ports = match &device.kind {
                DeviceKind::Nic(ports) => ports.as_slice(),
                _ => &[],
            };
            device.label.as_deref() == Some(name)
                || ports.iter().any(|port| port.name.as_deref() == Some(name))
        };
        let gpu_number = name.to_ascii_lowercase().strip_prefix("gpu").and_then(|n| n.parse::<usize>().ok());
        let bus = name.parse().ok();
        self.device_ids()
            .find(by_name)
            .or_else(|| gpu_number.and_then(|number| self.gpus.get(number).copied()))
            .or_else(|| bus.and_then(|bus| self.device_ids().find(|id| self.device(*id).bus == Some(bus))))
            .or_else(|| self.device_ids().find(by_label))
            .or_else(|| self.device_ids().find(|id| self.ordinal_name(*id).eq_ignore_ascii_case(short)))
    }
}

impl Fabric {
    /// ` Did you mean gpu0?` for a device that [`find`](Self::find) does not find, or an empty string where no name is
    /// near.
    pub fn suggest_device(&self, name: &str) -> String {
        /// Only this many names are compared: a typo is as near to the devices of the first hosts.
        const NAMES_MAX: usize = 4096;
        let gpus = self.gpus();
        let is_gpu = name.strip_prefix("gpu").is_some_and(|number| number.parse::<u32>().is_ok());
        if let (true, [first, .., last]) = (is_gpu, gpus) {
            return format!(" The GPUs are {} to {}.", self.device_name(*first), self.device_name(*last));
        }
        let names: Vec<String> = self.device_ids().take(NAMES_MAX).map(|id| self.device_name(id)).collect();
        crate::nearest::did_you_mean(name, names.iter().map(String::as_str))
    }
}

/// A fabric could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A link from a device to itself.
    #[error("{0} is linked to itself; a link needs two different devices")]
    SelfLink(String),
    /// A PCIe tree deeper than [`DEPTH_MAX`].
    #[error("{0} is more than {DEPTH_MAX} PCIe links away from the nearest CPU, which is the limit")]
    TooDeep(String),
    /// More devices or links than the limit.
    #[error("the fabric would have {found} {what}; the limit is {limit}")]
    TooLarge {
        /// Devices or links.
        what: &'static str,
        /// How many the fabric would have.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

/// Devices a fabric may have: enough for 100,000 GPUs with their hosts and switches.
pub const DEVICES_MAX: usize = 2_000_000;
/// Links a fabric may have.
pub const LINKS_MAX: usize = 16_000_000;

/// PCIe links between a device and the nearest CPU (or, without a CPU, the first device it is connected to).
pub const DEPTH_MAX: u32 = 256;

/// Builds a fabric.
#[derive(Debug, Default)]
pub struct FabricBuilder {
    name: String,
    hosts: Vec<Host>,
    devices: Vec<Device>,
    links: Vec<Link>,
    specs: Vec<LinkSpec>,
    spec_ids: FxHashMap<LinkSpec, SpecId>,
    ordinals: FxHashMap<(Option<HostId>, &'static str), u32>,
    peer_access: PeerAccess,
    notes: Vec<String>,
}

impl FabricBuilder {
    /// An empty fabric.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a remark on the description (see [`Fabric::notes`]).
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Sets the access between GPUs over PCIe.
    pub fn peer_access(&mut self, peer_access: PeerAccess) {
        self.peer_access = peer_access;
    }

    /// Adds a host.
    pub fn host(&mut self, name: impl Into<String>, system: Option<&str>) -> HostId {
        self.hosts.push(Host { name: name.into(), system: system.map(str::to_owned) });
        HostId(self.hosts.len() as u32 - 1)
    }

    /// Adds a device of which only the kind is known.
    pub fn add(&mut self, host: Option<HostId>, kind: DeviceKind) -> DeviceId {
        self.add_device(Device {
            host,
            ordinal: 0,
            kind,
            bus: None,
            class: None,
            label: None,
            extra: Vec::new(),
        })
    }

    /// Adds a device and sets its ordinal.
    pub fn add_device(&mut self, mut device: Device) -> DeviceId {
        let next = self.ordinals.entry((device.host, device.kind.stem())).or_default();
        device.ordinal = *next;
        *next += 1;
        self.devices.push(device);
        DeviceId(self.devices.len() as u32 - 1)
    }

    /// A device added before, for changes.
    pub fn device_mut(&mut self, id: DeviceId) -> &mut Device {
        &mut self.devices[id.index()]
    }

    /// A device added before.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.index()]
    }

    /// The number of devices added so far.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// The number of hosts added so far.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Registers a link spec; equal specs get the same id.
    pub fn spec(&mut self, spec: LinkSpec) -> SpecId {
        if let Some(id) = self.spec_ids.get(&spec) {
            return *id;
        }
        let id = SpecId(self.specs.len() as u32);
        self.specs.push(spec.clone());
        self.spec_ids.insert(spec, id);
        id
    }

    /// Connects two devices by `count` links in each direction.
    pub fn connect(&mut self, a: DeviceId, b: DeviceId, count: u32, spec: SpecId) {
        self.link(a, b, count, spec);
        self.link(b, a, count, spec);
    }

    /// Adds `count` links in one direction.
    pub fn link(&mut self, source: DeviceId, target: DeviceId, count: u32, spec: SpecId) {
        self.links.push(Link { source, target, count, spec });
    }

    /// Appends a copy of a fabric, with each host renamed by `rename`, and returns the id of the copy's first device.
    pub fn append(&mut self, part: &Fabric, rename: impl Fn(usize, &Host) -> String) -> DeviceId {
        let first_device = self.devices.len() as u32;
        let first_host = self.hosts.len() as u32;
        if part.peer_access != PeerAccess::ByModel {
            self.peer_access = part.peer_access;
        }
        for (index, host) in part.hosts.iter().enumerate() {
            self.hosts.push(Host { name: rename(index, host), system: host.system.clone() });
        }
        for device in &part.devices {
            let host = device.host.map(|host| HostId(host.0 + first_host));
            self.add_device(Device { host, ..device.clone() });
        }
        let specs: Vec<SpecId> = part.specs.iter().map(|spec| self.spec(spec.clone())).collect();
        self.links.extend(part.links.iter().map(|link| Link {
            source: DeviceId(link.source.0 + first_device),
            target: DeviceId(link.target.0 + first_device),
            count: link.count,
            spec: specs[link.spec.0 as usize],
        }));
        DeviceId(first_device)
    }

    /// Checks the fabric, sorts its links and returns it.
    pub fn finish(mut self) -> Result<Fabric, FabricError> {
        for (what, found, limit) in
            [("devices", self.devices.len(), DEVICES_MAX), ("links", self.links.len(), LINKS_MAX)]
        {
            if found > limit {
                return Err(FabricError::TooLarge { what, found, limit });
            }
        }
        if let Some(link) = self.links.iter().find(|link| link.source == link.target) {
            let device = &self.devices[link.source.index()];
            return Err(FabricError::SelfLink(format!("{}{}", device.kind.stem(), device.ordinal)));
        }
        self.links.sort_by_key(|link| (link.source, link.target, link.spec));
        self.links.dedup_by(|next, kept| {
            let same = (next.source, next.target, next.spec) == (kept.source, kept.target, kept.spec);
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        let starts = starts(self.devices.len(), &self.links);
        if let Some(deep) = too_deep(&self.devices, &self.links, &self.specs, &starts) {
            return Err(FabricError::TooDeep(deep));
        }
        let gpus = self
            .devices
            .iter()
            .enumerate()
            .filter(|(_, device)| matches!(device.kind, DeviceKind::Gpu(_)))
            .map(|(index, _)| DeviceId(index as u32))
            .collect();
        Ok(Fabric {
            name: self.name,
            hosts: self.hosts,
            devices: self.devices,
            links: self.links,
            specs: self.specs,
            starts,
            gpus,
            peer_access: self.peer_access,
            notes: self.notes,
        })
    }
}

/// The index of each device's first link among links sorted by source.
fn starts(devices: usize, links: &[Link]) -> Vec<u32> {
    let mut starts = vec![0_u32; devices + 1];
    for link in links {
        starts[link.source.index() + 1] += 1;
    }
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    starts
}

/// A device more than [`DEPTH_MAX`] PCIe links below the root of its tree, if there is one.
fn too_deep(devices: &[Device], links: &[Link], specs: &[LinkSpec], starts: &[u32]) -> Option<String> {
    let mut depth = vec![u32::MAX; devices.len()];
    let is_root = |index: &usize| matches!(devices[*index].kind, DeviceKind::Numa(_));
    let mut queue: Vec<usize> = (0..devices.len()).filter(is_root).collect();
    queue.iter().for_each(|root| depth[*root] = 0);
    let mut next = 0;
    for start in 0..=devices.len() {
        while next < queue.len() {
            let at = queue[next];
            next += 1;
            for link in &links[starts[at] as usize..starts[at + 1] as usize] {
                let target = link.target.index();
                let is_pcie = matches!(specs[link.spec.0 as usize].kind, LinkKind::Pcie { .. });
                if is_pcie && depth[target] == u32::MAX {
                    depth[target] = depth[at] + 1;
                    if depth[target] > DEPTH_MAX {
                        return Some(format!("{}{}", devices[target].kind.stem(), devices[target].ordinal));
                    }
                    queue.push(target);
                }
            }
        }
        // Without a CPU, the first device of a tree is its root.
        if start < devices.len() && depth[start] == u32::MAX {
            depth[start] = 0;
            queue.push(start);
        }
    }
    None
}
