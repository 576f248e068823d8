//! A unit of the row: one host, or the hosts of a rack with the switches between them.
//!
//! More than a few hosts stand in two rows, the upper one upside down, so that all GPUs face the band of switches in
//! the middle. Where even that would be too wide, a GPU becomes a dot.

use std::collections::{BTreeMap, BTreeSet};

use super::bands::{self, Bundle};
use super::canvas::{Align, Block, Label, Look, Panel, Picture, Rect, Wire};
use super::group::{Slot, Unit, shown_hosts};
use super::host::{Metrics, framed, host};
use super::mesh;
use super::paint::Tone;
use super::scene::{Edge, Scene, times};
use super::words::thousands;
use crate::device::{DeviceId, HostId};

/// How much of each device is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) enum Detail {
    /// Blocks with words.
    Blocks(&'static Metrics),
    /// Dots.
    Dots,
}

/// Hosts up to this many stand in one row.
const ONE_ROW: usize = 6;
/// Of more hosts than this in one unit, those alike are left out.
const HOSTS_DRAWN: usize = 36;

/// Draws a unit in its frame.
pub(super) fn unit(scene: &Scene, unit: &Unit, detail: Detail, drives: bool) -> Picture {
    let (name, system) = titles(scene, unit);
    match (detail, &unit.hosts[..]) {
        (Detail::Blocks(metrics), [only]) if unit.chips.is_empty() => {
            framed(host(scene, *only, metrics, drives), &name, &system, metrics.font.max(11.0))
        }
        (Detail::Blocks(metrics), _) => framed(rack(scene, unit, metrics, drives), &name, &system, 13.0),
        (Detail::Dots, _) => framed(dots(scene, unit), &name, &system, 11.0),
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
    let slots: Vec<Slot> = if unit.hosts.len() > HOSTS_DRAWN {
        shown_hosts(scene, unit)
    } else {
        (0..unit.hosts.len()).map(Slot::One).collect()
    };
    let columns =
        if slots.len() <= ONE_ROW || unit.chips.is_empty() { slots.len() } else { slots.len().div_ceil(2) };
    let split = slots.len() - columns;
    let cell = |slot: &Slot, upside_down: bool| match *slot {
        Slot::One(index) => {
            let inner = host(scene, unit.hosts[index], metrics, drives);
            let inner = if upside_down { inner.flipped() } else { inner };
            let name = unit.hosts[index].map(|host| scene.fabric.hosts()[host.index()].name.as_str());
            framed(inner, name.unwrap_or_default(), "", metrics.font)
        }
        Slot::More { total, .. } => ellipsis(total, "hosts", metrics.font),
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
        picture.absorb(cell.shifted(x, dy));
        x += step;
    }
    x = 0.0;
    for cell in lower {
        let step = cell.w + metrics.gap * 1.5;
        picture.absorb(cell.shifted(x, lower_top));
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
    all.absorb(over);
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

/// Three dots and how many there are in all.
pub(super) fn ellipsis(total: usize, what: &str, font: f64) -> Picture {
    let words = format!("{what} alike");
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
            label(font * 4.0, format!("\u{d7} {}", thousands(total)), font * 1.7, true),
            label(font * 5.6, words, font, false),
        ],
        ..Picture::default()
    }
}

const DOT: f64 = 13.0;

/// Hosts as tiles of dots around a band of dots, and a line that counts them.
fn dots(scene: &Scene, unit: &Unit) -> Picture {
    let slots: Vec<Slot> = if unit.hosts.len() > HOSTS_DRAWN {
        shown_hosts(scene, unit)
    } else {
        (0..unit.hosts.len()).map(Slot::One).collect()
    };
    let tiles: Vec<Picture> = slots
        .iter()
        .map(|slot| match *slot {
            Slot::One(index) => tile(scene, unit.hosts[index]),
            Slot::More { total, .. } => ellipsis(total, "hosts", 11.0),
        })
        .collect();
    let two_rows = tiles.len() > ONE_ROW;
    let columns = if two_rows { tiles.len().div_ceil(2) } else { tiles.len() };
    let pitch = tiles.iter().map(|tile| tile.w).fold(0.0, f64::max) + 5.0;
    let tall = tiles.iter().map(|tile| tile.h).fold(0.0, f64::max);
    let width = (pitch * columns as f64 - 5.0).max(180.0);
    let chips = unit.chips.len();
    let band_columns = (((width - 8.0) / (DOT + 3.0)) as usize).clamp(1, chips.max(1));
    let band = chips.div_ceil(band_columns) as f64 * (DOT + 3.0) + 5.0;
    let space = if chips == 0 { 5.0 } else { 10.0 };
    let band_top = if two_rows { tall + space } else { 0.0 };
    let lower = band_top + if chips == 0 { 0.0 } else { band + space };
    let mut picture = Picture { w: width, h: lower + tall + 22.0, ..Picture::default() };
    for (index, tile) in tiles.into_iter().enumerate() {
        let top = two_rows && index < columns;
        let column = if two_rows { index % columns } else { index };
        let (x, y) = (column as f64 * pitch, if top { 0.0 } else { lower });
        if chips > 0 {
            let middle = x + tile.w / 2.0;
            let ends = if top { (tall, band_top) } else { (band_top + band, lower) };
            let wire = Wire::straight((middle, ends.0), (middle, ends.1), Tone::NvLink, 4.0);
            picture.wires.push(wire);
        }
        // All GPUs face the band.
        let tile = if top && chips > 0 { tile.flipped() } else { tile };
        picture.absorb(tile.shifted(x, y));
    }
    if chips > 0 {
        let rect = Rect::new(0.0, band_top, (width, band));
        picture.panels.push(frame(rect, Some(Tone::NvLink)));
        let pitch = (width - 8.0) / band_columns as f64;
        for (index, &chip) in unit.chips.iter().enumerate() {
            let x = 4.0 + pitch * ((index % band_columns) as f64 + 0.5) - DOT / 2.0;
            let y = band_top + 4.0 + (index / band_columns) as f64 * (DOT + 3.0);
            picture.blocks.push(dot(chip, Look::NvSwitch, Rect::new(x, y, (DOT, DOT))));
        }
    }
    picture.labels.push(Label {
        at: (width / 2.0, picture.h - 4.0),
        text: census(scene, unit),
        font: 11.0,
        bold: false,
        soft: true,
        align: Align::Middle,
    });
    picture
}

fn tile(scene: &Scene, host: Option<HostId>) -> Picture {
    let of_look = |look: Look| -> Vec<DeviceId> {
        let all = scene.devices(host).iter().copied();
        all.filter(|&id| scene.look(id) == look).collect()
    };
    let gpus = of_look(Look::Gpu);
    let columns = if gpus.len() <= 4 { 2 } else { 4 };
    let mut picture = Picture::default();
    let mut y = 4.0;
    let width = 8.0 + columns as f64 * (DOT + 3.0) - 3.0;
    for (look, size) in [(Look::NvSwitch, 9.0), (Look::Gpu, DOT), (Look::Nic, 7.0)] {
        let devices = if look == Look::Gpu { gpus.clone() } else { of_look(look) };
        if devices.is_empty() {
            continue;
        }
        let fit = ((width - 5.0) / (size + 3.0)) as usize;
        let fit = if look == Look::Gpu { columns } else { fit.max(1) };
        for row in devices.chunks(fit) {
            let start = (width - (row.len() as f64 * (size + 3.0) - 3.0)) / 2.0;
            for (index, &id) in row.iter().enumerate() {
                let x = start + index as f64 * (size + 3.0);
                picture.blocks.push(dot(id, look, Rect::new(x, y, (size, size))));
            }
            y += size + 3.0;
        }
    }
    (picture.w, picture.h) = (width, y + 1.0);
    picture.panels.push(frame(Rect::new(0.0, 0.0, (picture.w, picture.h)), None));
    picture
}

fn census(scene: &Scene, unit: &Unit) -> String {
    let mut counts: BTreeMap<Look, usize> = BTreeMap::new();
    for &id in unit.hosts.iter().flat_map(|&host| scene.devices(host)).chain(&unit.chips) {
        *counts.entry(scene.look(id)).or_default() += 1;
    }
    let mut parts = vec![format!("hosts {}", times(unit.hosts.len()))];
    for (look, word) in [(Look::Gpu, "GPU"), (Look::NvSwitch, "NVSwitch"), (Look::Nic, "NIC")] {
        parts.extend(counts.get(&look).map(|&count| format!("{word} {}", times(count))));
    }
    parts.join(" \u{b7} ")
}

fn dot(id: DeviceId, look: Look, rect: Rect) -> Block {
    Block { rect, look, title: String::new(), detail: String::new(), font: 0.0, members: vec![id] }
}

fn frame(rect: Rect, tone: Option<Tone>) -> Panel {
    Panel { rect, tone, title: String::new(), detail: String::new(), font: 0.0 }
}
