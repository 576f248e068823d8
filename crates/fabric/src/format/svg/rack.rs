//! A unit: one host, or the hosts of a rack with the switches between them.
//!
//! More than a few hosts are in two rows, the upper one upside down, so that all GPUs face the band of switches in the
//! middle. If that is too wide, GPUs are drawn as dots.

use std::collections::{BTreeMap, BTreeSet};

use super::bands::{self, Bundle};
use super::canvas::{Align, Label, Look, Picture, Rect, Wire};
use super::group::{Slot, Unit, shown_hosts};
use super::host::{Metrics, framed, host};
use super::scene::{Edge, Scene};
use super::words::thousands;
use super::{dots, mesh};
use crate::id::{DeviceId, HostId};

/// The level of detail.
#[derive(Debug, Clone, Copy)]
pub(super) enum Detail {
    /// Blocks with text.
    Blocks(&'static Metrics),
    /// Dots.
    Dots,
}

/// Up to this many hosts are in one row.
pub(super) const ONE_ROW: usize = 6;
/// In a unit of more hosts than this, equal hosts are left out.
const HOSTS_DRAWN: usize = 36;

/// Draws a unit in its frame.
pub(super) fn unit(scene: &Scene, unit: &Unit, detail: Detail, drives: bool) -> Picture {
    let (name, system) = titles(scene, unit);
    let titles = (name.as_str(), system.as_str());
    match (detail, &unit.hosts[..]) {
        (Detail::Blocks(metrics), [only]) if unit.chips.is_empty() => {
            framed(host(scene, *only, metrics, drives), titles, false, metrics.font.max(11.0))
        }
        (Detail::Blocks(metrics), _) => framed(rack(scene, unit, metrics, drives), titles, false, 13.0),
        (Detail::Dots, _) => framed(dots::dots(scene, unit), titles, false, 11.0),
    }
}

/// The hosts of a unit that are drawn.
pub(super) fn host_slots(scene: &Scene, unit: &Unit) -> Vec<Slot> {
    if unit.hosts.len() > HOSTS_DRAWN {
        shown_hosts(scene, unit)
    } else {
        (0..unit.hosts.len()).map(Slot::One).collect()
    }
}

fn titles(scene: &Scene, unit: &Unit) -> (String, String) {
    let host = |host: &Option<HostId>| host.map(|host| &scene.fabric.hosts()[host.index()]);
    let (first, last) = (unit.hosts.first().and_then(host), unit.hosts.last().and_then(host));
    let name = match (first, last) {
        (Some(first), Some(last)) if unit.hosts.len() > 1 => format!("{} \u{2026} {}", first.name, last.name),
        (Some(first), _) => first.name.clone(),
        (None, _) => String::new(),
    };
    let system = first.and_then(|host| host.system.clone()).unwrap_or_default();
    (name, system)
}

fn rack(scene: &Scene, unit: &Unit, metrics: &Metrics, drives: bool) -> Picture {
    let slots = host_slots(scene, unit);
    let columns =
        if slots.len() <= ONE_ROW || unit.chips.is_empty() { slots.len() } else { slots.len().div_ceil(2) };
    let split = slots.len() - columns;
    let cell = |slot: &Slot, upside_down: bool| match *slot {
        Slot::One(index) => {
            let inner = host(scene, unit.hosts[index], metrics, drives);
            let inner = if upside_down { inner.flipped() } else { inner };
            let name = unit.hosts[index].map(|host| scene.fabric.hosts()[host.index()].name.as_str());
            framed(inner, (name.unwrap_or_default(), ""), !upside_down, metrics.font)
        }
        left_out => ellipsis(left_out, metrics.font),
    };
    let upper: Vec<Picture> = slots[..split].iter().map(|slot| cell(slot, true)).collect();
    let lower: Vec<Picture> = slots[split..].iter().map(|slot| cell(slot, false)).collect();
    let row_width = |row: &[Picture]| -> f64 { row.iter().map(|cell| cell.w + metrics.gap * 1.5).sum() };
    let width = (row_width(&upper).max(row_width(&lower)) - metrics.gap * 1.5).max(metrics.chip.0 * 2.0);
    let tallest = |row: &[Picture]| row.iter().map(|cell| cell.h).fold(0.0, f64::max);
    let upper_height = tallest(&upper);
    let space = metrics.row_gap * 1.3;
    let band = bands::band_height(unit.chips.len(), width, metrics);
    let band_top = if upper.is_empty() { 0.0 } else { upper_height + space };
    let lower_top = if unit.chips.is_empty() { 0.0 } else { band_top + band + space };
    let mut picture = Picture { w: width, h: lower_top + tallest(&lower), ..Picture::default() };
    let mut x = 0.0;
    for cell in upper {
        let step = cell.w + metrics.gap * 1.5;
        let dy = upper_height - cell.h;
        picture.extend(cell.shifted(x, dy));
        x += step;
    }
    x = 0.0;
    for cell in lower {
        let step = cell.w + metrics.gap * 1.5;
        picture.extend(cell.shifted(x, lower_top));
        x += step;
    }
    let gpus: BTreeMap<DeviceId, Rect> = picture
        .blocks
        .iter()
        .filter(|block| block.look == Look::Gpu)
        .flat_map(|block| block.members.iter().map(|&id| (id, block.rect)))
        .collect();
    if unit.chips.is_empty() {
        return across(scene, &gpus, metrics, picture);
    }
    let rect = Rect::new(0.0, band_top, (width, band));
    let ids: Vec<DeviceId> = gpus.keys().copied().collect();
    bands::draw_band(scene, &unit.chips, &ids, rect, metrics, &mut picture);
    trunks(scene, unit, &gpus, rect, space, metrics, &mut picture);
    picture
}

/// Direct links between GPUs of several hosts, as arches over the hosts.
fn across(scene: &Scene, gpus: &BTreeMap<DeviceId, Rect>, metrics: &Metrics, picture: Picture) -> Picture {
    let host = |id: DeviceId| scene.fabric.device(id).host;
    let edges: Vec<Edge> = gpus
        .keys()
        .flat_map(|&gpu| scene.edges_of(gpu).filter(move |edge| edge.a == gpu))
        .filter(|edge| gpus.contains_key(&edge.b) && host(edge.a) != host(edge.b))
        .copied()
        .collect();
    let (w, h) = (picture.w, picture.h);
    let mut over = Picture::default();
    mesh::arches(&edges, gpus, metrics, &mut over);
    let above = over.h;
    let mut all = picture;
    all.extend(over);
    let mut all = all.shifted(0.0, above);
    (all.w, all.h) = (w, h + above);
    all
}

/// One line from each GPU to the band, one tag for each host.
fn trunks(
    scene: &Scene,
    unit: &Unit,
    gpus: &BTreeMap<DeviceId, Rect>,
    band: Rect,
    space: f64,
    metrics: &Metrics,
    picture: &mut Picture,
) {
    let chips: BTreeSet<DeviceId> = unit.chips.iter().copied().collect();
    let mut by_host: BTreeMap<Option<HostId>, Vec<(Rect, Bundle)>> = BTreeMap::new();
    for (&gpu, &rect) in gpus {
        let Some(trunk) = Bundle::between(scene, &[gpu], &chips) else {
            continue;
        };
        let (from, to) = if rect.y < band.y { (rect.bottom(), band.y) } else { (rect.y, band.bottom()) };
        picture.wires.push(Wire::straight(
            (rect.cx(), from),
            (rect.cx(), to),
            trunk.tone,
            trunk.width() * 0.7,
        ));
        let host = scene.fabric.device(gpu).host;
        by_host.entry(host).or_default().push((rect, trunk));
    }
    for trunks in by_host.values() {
        let middle = trunks.iter().map(|(rect, _)| rect.cx()).sum::<f64>() / trunks.len() as f64;
        let y = if trunks[0].0.y < band.y { band.y - space * 0.5 } else { band.bottom() + space * 0.5 };
        let mut tag = trunks[0].1.tag((middle, y), metrics.font);
        if trunks.len() > 1 && trunks.iter().all(|(_, trunk)| trunk.count == trunks[0].1.count) {
            tag.text = format!("{} \u{d7} {} links", trunks.len(), trunks[0].1.count);
        }
        picture.tags.push(tag);
    }
}

/// Three dots, and the number of units they represent.
pub(super) fn ellipsis(left_out: Slot, font: f64) -> Picture {
    let (count, word) = match left_out {
        Slot::One(_) => (1, "alike"),
        Slot::Alike(total) => (total, "alike"),
        Slot::Others(rest) => (rest, "others"),
    };
    let font = font.max(11.0);
    let w = font * 8.0;
    let label = |y: f64, text: String, font: f64, bold: bool| Label {
        at: (w / 2.0, y),
        text,
        font,
        bold,
        soft: !bold,
        align: Align::Middle,
    };
    Picture {
        w,
        h: font * 6.0,
        labels: vec![
            label(font * 1.8, "\u{2022} \u{2022} \u{2022}".to_owned(), font * 1.6, false),
            label(font * 4.0, format!("\u{d7} {}", thousands(count)), font * 1.7, true),
            label(font * 5.6, word.to_owned(), font, false),
        ],
        ..Picture::default()
    }
}
