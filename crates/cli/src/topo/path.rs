//! `weft topo --path A B`: the way between two devices, link by link.

use std::io::{self, Write};

use anyhow::anyhow;
use serde_json::{Value, json};
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::figure::{LinkRate, Nanoseconds};
use weftlink_fabric::paths::Route;
use weftlink_fabric::rate::{OneWay, Pair, Rate};
use weftlink_fabric::{DeviceId, Fabric, LinkSpec, PathType, Paths};

use crate::Failure;
use crate::screen::{prose, say};

pub(super) fn find(paths: &Paths<'_>, from: &str, to: &str) -> Result<Route, Failure> {
    let device = |name: &str| {
        let fabric = paths.fabric();
        fabric.find(name).ok_or_else(|| {
            let some: Vec<String> = fabric.gpus().iter().take(2).map(|id| fabric.device_name(*id)).collect();
            let like = if some.is_empty() { "numa0".to_owned() } else { some.join(", ") };
            Failure::misuse(anyhow!(
                "{} has no device `{name}`.{} Names look like {like}, or are PCI addresses; --tree prints them.",
                fabric.name(),
                fabric.suggest_device(name)
            ))
        })
    };
    Ok(paths.route(device(from)?, device(to)?))
}

pub(super) fn print(
    out: &mut impl Write,
    paths: &Paths<'_>,
    route: &Route,
    bytes: Option<Bytes>,
) -> io::Result<()> {
    let fabric = paths.fabric();
    let path = &route.path;
    let hops = if path.hops == 1 { "hop" } else { "hops" };
    say!(out, "{}: {}, {} {hops}", path.cell(), path.kind.meaning(), path.hops)?;
    if matches!(path.kind, PathType::Loc | PathType::Dis) {
        return Ok(());
    }
    writeln!(out, "  {}", station(fabric, &route.stations[0]))?;
    for pair in route.stations.windows(2) {
        for link in hop(fabric, &pair[0], &pair[1]) {
            // What continues a line stands right of the bar, too.
            let lines = prose(&format!("      {link}"));
            lines
                .lines()
                .try_for_each(|line| writeln!(out, "    │ {}", line.trim_start_matches("      ")))?;
        }
        writeln!(out, "  {}", station(fabric, &pair[1]))?;
    }
    let effective = amount(path.width.effective);
    match nominal_is_known(fabric, route) {
        _ if path.width.effective == Rate::ZERO => writeln!(out, "bandwidth unknown")?,
        true => writeln!(out, "{} nominal, {effective} effective, each way", amount(path.width.nominal))?,
        false => say!(out, "{effective} effective, each way; the nominal rate of some links is unknown")?,
    }
    if let Some(latency) = paths.latency(route) {
        writeln!(out, "{latency} latency of the links alone, without software")?;
    }
    if let Some(bytes) = bytes {
        let time = |rate| duration(bytes, rate).map_or_else(|| "unknown".to_owned(), |time| time.to_string());
        say!(
            out,
            "{bytes} takes at least {} nominal, {} effective",
            time(path.width.nominal),
            time(path.width.effective)
        )?;
    }
    Ok(())
}

pub(super) fn json(paths: &Paths<'_>, route: &Route, bytes: Option<Bytes>) -> Value {
    let fabric = paths.fabric();
    let names =
        |station: &Vec<DeviceId>| station.iter().map(|id| fabric.device_name(*id)).collect::<Vec<_>>();
    let mut value = super::json::path(&route.path);
    value["from"] = json!(route.stations.first().map(names).and_then(|mut names| names.pop()));
    value["to"] = json!(route.stations.last().map(names).and_then(|mut names| names.pop()));
    value["stations"] = json!(route.stations.iter().map(names).collect::<Vec<_>>());
    value["latency_ns"] = json!(paths.latency(route).map(|latency| latency.0));
    if let Some(bytes) = bytes {
        let seconds = |rate| duration(bytes, rate).map(|time| time.0 as f64 / 1e9);
        value["bytes"] = json!(bytes.0);
        value["nominal_seconds"] = json!(seconds(route.path.width.nominal));
        value["effective_seconds"] = json!(seconds(route.path.width.effective));
    }
    value
}

/// Whether every link of a route has a nominal rate.
fn nominal_is_known(fabric: &Fabric, route: &Route) -> bool {
    route
        .stations
        .windows(2)
        .all(|pair| fastest(fabric, &pair[0], &pair[1]).is_some_and(|spec| spec.nominal.is_some()))
}

/// The kind of link between two stations; where PCIe and a faster link join the same two, the path takes the faster.
fn fastest<'a>(fabric: &'a Fabric, from: &[DeviceId], to: &[DeviceId]) -> Option<&'a LinkSpec> {
    let links = from.iter().flat_map(|id| fabric.links_from(*id)).filter(|link| to.contains(&link.target));
    links.map(|link| fabric.spec(link)).max_by_key(|spec| spec.best().map(|figure| figure.value))
}

/// Bytes over bandwidth, a lower bound.
fn duration(bytes: Bytes, rate: Rate<Pair, OneWay>) -> Option<Nanoseconds> {
    let rate = rate.bytes_per_second();
    let nanoseconds = || (u128::from(bytes.0) * 1_000_000_000).div_ceil(u128::from(rate));
    (rate > 0).then(|| Nanoseconds(nanoseconds().min(u128::from(u64::MAX)) as u64))
}

fn amount(rate: Rate<Pair, OneWay>) -> String {
    if rate == Rate::ZERO { "unknown".to_owned() } else { rate.amount().to_string() }
}

fn station(fabric: &Fabric, devices: &[DeviceId]) -> String {
    match devices {
        [one] => fabric.device_name(*one),
        [first, .., last] => {
            format!("{} to {}, side by side", fabric.device_name(*first), fabric.device_name(*last))
        }
        [] => String::new(),
    }
}

/// The links between two stations, those that are alike in one line.
fn hop(fabric: &Fabric, from: &[DeviceId], to: &[DeviceId]) -> Vec<String> {
    let Some(taken) = fastest(fabric, from, to).map(|spec| spec.kind) else { return vec!["?".to_owned()] };
    let links = from.iter().flat_map(|id| fabric.links_from(*id)).filter(|link| to.contains(&link.target));
    // Links of one kind may differ where some were measured.
    let mut groups: Vec<(&LinkSpec, u32)> = Vec::new();
    for link in links.filter(|link| fabric.spec(link).kind == taken) {
        let spec = fabric.spec(link);
        match groups.iter_mut().find(|(other, _)| *other == spec) {
            Some((_, count)) => *count = count.saturating_add(link.count),
            None => groups.push((spec, link.count)),
        }
    }
    let text = |(spec, count): &(&LinkSpec, u32)| {
        let figure = |figure: &LinkRate| {
            format!(
                "{} {} ({})",
                figure.value.per_pair((*count).into()).amount(),
                figure.basis,
                figure.provenance()
            )
        };
        let figures: Vec<String> =
            [&spec.nominal, &spec.effective].into_iter().flatten().map(figure).collect();
        let figures = if figures.is_empty() { "unknown speed".to_owned() } else { figures.join(", ") };
        let count = if *count == 1 { String::new() } else { format!("{count} x ") };
        format!("{count}{}: {figures}", spec.kind)
    };
    groups.iter().map(text).collect()
}
