//! Writes a fabric as a document, with one entry per line so that documents can be diffed.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::LINK_COUNT_MAX;
use super::assemble::bytes_per_second;
use super::devices::{self, LocalName};
use super::schema::{DeviceEntry, HostEntry, LatencyEntry, LinkEntry, LinkTypeEntry, RateEntry, VERSION};
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::figure::LinkRate;
use crate::format::excerpt;
use crate::id::DeviceId;
use crate::link::{Link, LinkKind, LinkSpec};
use crate::rate::Rate;

/// A fabric cannot be written as a document. Fabrics of the catalog and of cluster specs always can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A document identifies hosts and devices by name, so names must be unique.
    #[error("two hosts or two devices are called `{0}`: rename one before writing")]
    DuplicateName(String),
    /// A document identifies hosts by name.
    #[error("a host has no name: name it before writing")]
    UnnamedHost,
    /// A number that a document cannot represent.
    #[error("{0} is out of range for a document")]
    OutOfRange(String),
}

/// Writes a fabric as a TOML document.
pub fn write_toml(fabric: &Fabric) -> Result<String, WriteError> {
    let mut out = format!("weft = {VERSION}\nname = {}\n", Toml::value(&fabric.name())?);
    if let Some(access) = fabric.peer_access().setting() {
        out.push_str(&format!("peer_access = {access}\n"));
    }
    for (name, lines) in lists::<Toml>(fabric)? {
        if !lines.is_empty() {
            out.push_str(&format!("\n{name} = [\n  {},\n]\n", lines.join(",\n  ")));
        }
    }
    Ok(out)
}

/// Writes a fabric as a JSON document.
pub fn write_json(fabric: &Fabric) -> Result<String, WriteError> {
    let mut out = format!("{{\n\"weft\": {VERSION},\n\"name\": {}", Json::value(&fabric.name())?);
    if let Some(access) = fabric.peer_access().setting() {
        out.push_str(&format!(",\n\"peer_access\": {access}"));
    }
    for (name, lines) in lists::<Json>(fabric)? {
        if !lines.is_empty() {
            out.push_str(&format!(",\n\"{name}\": [\n  {}\n]", lines.join(",\n  ")));
        }
    }
    out.push_str("\n}\n");
    Ok(out)
}

/// The syntax of a value on one line.
trait Syntax {
    fn value(value: &impl Serialize) -> Result<String, WriteError>;
}

struct Toml;
struct Json;

impl Syntax for Toml {
    fn value(value: &impl Serialize) -> Result<String, WriteError> {
        let mut line = String::new();
        // TOML cannot represent integers above 2^63.
        match value.serialize(toml::ser::ValueSerializer::new(&mut line)) {
            Ok(_) => Ok(line),
            Err(error) => Err(WriteError::OutOfRange(format!("a figure ({error})"))),
        }
    }
}

impl Syntax for Json {
    fn value(value: &impl Serialize) -> Result<String, WriteError> {
        serde_json::to_string(value).map_err(|error| WriteError::OutOfRange(format!("a figure ({error})")))
    }
}

/// The lists of the document, with one line per entry.
fn lists<S: Syntax>(fabric: &Fabric) -> Result<[(&'static str, Vec<String>); 5], WriteError> {
    check_names(fabric)?;
    let hosts = fabric.hosts().iter().map(|host| HostEntry {
        name: host.name.clone(),
        system: host.system.clone(),
        like: None,
    });
    let types = type_ids(fabric);
    let type_entries = fabric.specs().iter().zip(&types);
    let links = (fabric.links().iter())
        .filter(|link| !(link.source > link.target && has_reverse(fabric, link)))
        .map(|link| link_entry(fabric, link, &types[link.spec.0 as usize]));
    Ok([
        ("notes", fabric.notes().iter().map(S::value).collect::<Result<_, _>>()?),
        ("host", hosts.map(|entry| S::value(&entry)).collect::<Result<_, _>>()?),
        (
            "device",
            (fabric.device_ids()).map(|id| S::value(&device_entry(fabric, id)?)).collect::<Result<_, _>>()?,
        ),
        (
            "link_type",
            type_entries.map(|(spec, id)| S::value(&type_entry(spec, id)?)).collect::<Result<_, _>>()?,
        ),
        ("link", links.map(|entry| S::value(&entry?)).collect::<Result<_, _>>()?),
    ])
}

fn check_names(fabric: &Fabric) -> Result<(), WriteError> {
    let mut hosts = FxHashSet::default();
    if fabric.hosts().iter().any(|host| host.name.is_empty()) {
        return Err(WriteError::UnnamedHost);
    }
    if let Some(host) = fabric.hosts().iter().find(|host| !hosts.insert(&host.name)) {
        return Err(WriteError::DuplicateName(excerpt(&host.name)));
    }
    let mut devices = FxHashSet::default();
    match (fabric.devices().iter()).find(|device| !devices.insert((device.host, LocalName::of(device)))) {
        Some(device) => Err(WriteError::DuplicateName(LocalName::of(device).to_string())),
        None => Ok(()),
    }
}

/// The name of a device in a document: always with its host, and with nothing before the `/` for a device of no host
/// that would otherwise be assigned to the only host.
fn name(fabric: &Fabric, id: DeviceId) -> String {
    let device = fabric.device(id);
    let local = LocalName::of(device);
    match device.host {
        Some(host) => format!("{}/{local}", fabric.hosts()[host.index()].name),
        None if local.is_network_switch() => local.to_string(),
        None if local.is_switch() && fabric.hosts().len() != 1 => local.to_string(),
        None => format!("/{local}"),
    }
}

fn device_entry(fabric: &Fabric, id: DeviceId) -> Result<DeviceEntry, WriteError> {
    let device = fabric.device(id);
    if let DeviceKind::Nic(ports) = &device.kind {
        ports.iter().try_for_each(|port| check_rate(port.rate))?;
    }
    Ok(devices::entry(device, name(fabric, id)))
}

/// An id for each link type: its kind, with a number where several types have the same kind.
fn type_ids(fabric: &Fabric) -> Vec<String> {
    let mut seen: FxHashMap<LinkKind, u32> = FxHashMap::default();
    let number = |spec: &LinkSpec| {
        let nth = seen.entry(spec.kind).or_default();
        *nth += 1;
        match *nth {
            1 => spec.kind.id(),
            nth => format!("{}-{nth}", spec.kind.id()),
        }
    };
    fabric.specs().iter().map(number).collect()
}

fn type_entry(spec: &LinkSpec, id: &str) -> Result<LinkTypeEntry, WriteError> {
    // Not every generation and width has an id.
    if spec.kind.id().parse() != Ok(spec.kind) {
        return Err(WriteError::OutOfRange(format!("the link kind {}", spec.kind)));
    }
    Ok(LinkTypeEntry {
        id: id.to_owned(),
        kind: (spec.kind.id() != id).then_some(spec.kind),
        nominal: spec.nominal.as_ref().map(rate_entry).transpose()?,
        effective: spec.effective.as_ref().map(rate_entry).transpose()?,
        latency: spec.latency.clone().map(|latency| LatencyEntry {
            ns: latency.value.0,
            basis: latency.basis,
            source: latency.source,
            checked: latency.checked,
        }),
    })
}

fn rate_entry(figure: &LinkRate) -> Result<RateEntry, WriteError> {
    check_rate(figure.value)?;
    Ok(RateEntry {
        gb_per_s_each_way: figure.value.gb(),
        basis: figure.basis,
        source: figure.source.clone(),
        checked: figure.checked,
    })
}

fn check_rate<S, D>(rate: Rate<S, D>) -> Result<(), WriteError> {
    match bytes_per_second(rate.gb()) {
        Ok(bytes) if bytes == rate.bytes_per_second() => Ok(()),
        _ => Err(WriteError::OutOfRange(format!("a rate of {}", rate.amount()))),
    }
}

fn link_entry(fabric: &Fabric, link: &Link, id: &str) -> Result<LinkEntry, WriteError> {
    if !(1..=LINK_COUNT_MAX).contains(&link.count) {
        return Err(WriteError::OutOfRange(format!("a count of {} parallel links", link.count)));
    }
    Ok(LinkEntry {
        between: (name(fabric, link.source), name(fabric, link.target)),
        link_type: id.to_owned(),
        count: link.count,
        oneway: !has_reverse(fabric, link),
    })
}

/// True where equal links lead back.
fn has_reverse(fabric: &Fabric, link: &Link) -> bool {
    let back = fabric.links_from(link.target);
    back.binary_search_by_key(&(link.source, link.spec), |other| (other.target, other.spec))
        .is_ok_and(|index| back[index].count == link.count)
}
