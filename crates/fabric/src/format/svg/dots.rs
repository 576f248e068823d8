//! The lowest level of detail: a host is a tile of dots, one for each GPU, NVSwitch and NIC.

use std::collections::BTreeMap;

use super::canvas::{Align, Block, Label, Look, Panel, Picture, Rect, Wire};
use super::group::{Slot, Unit};
use super::paint::text_width;
use super::palette::Tone;
use super::rack::{ONE_ROW, ellipsis, host_slots};
use super::scene::{Scene, times};
use crate::id::{DeviceId, HostId};

const DOT: f64 = 13.0;

/// Hosts as tiles of dots around a band of dots, and a caption with their number.
pub(super) fn dots(scene: &Scene, unit: &Unit) -> Picture {
    let tiles: Vec<Picture> = host_slots(scene, unit)
        .iter()
        .map(|slot| match *slot {
            Slot::One(index) => tile(scene, unit.hosts[index]),
            left_out => ellipsis(left_out, 11.0),
        })
        .collect();
    let two_rows = tiles.len() > ONE_ROW;
    let columns = if two_rows { tiles.len().div_ceil(2) } else { tiles.len() };
    let pitch = tiles.iter().map(|tile| tile.w).fold(0.0, f64::max) + 5.0;
    let tall = tiles.iter().map(|tile| tile.h).fold(0.0, f64::max);
    let caption = device_counts(scene, unit);
    let row = pitch * columns as f64 - 5.0;
    let width = row.max(text_width(&caption, 11.0));
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
        let x = (width - row) / 2.0 + column as f64 * pitch;
        let y = if top { 0.0 } else { lower };
        if chips > 0 {
            let middle = x + tile.w / 2.0;
            let ends = if top { (tall, band_top) } else { (band_top + band, lower) };
            let wire = Wire::straight((middle, ends.0), (middle, ends.1), Tone::NvLink, 4.0);
            picture.wires.push(wire);
        }
        // All GPUs face the band.
        let tile = if top && chips > 0 { tile.flipped() } else { tile };
        picture.extend(tile.shifted(x, y));
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
        text: caption,
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

fn device_counts(scene: &Scene, unit: &Unit) -> String {
    let mut counts: BTreeMap<Look, usize> = BTreeMap::new();
    for &id in unit.hosts.iter().flat_map(|&host| scene.devices(host)).chain(&unit.chips) {
        *counts.entry(scene.look(id)).or_default() += 1;
    }
    let mut parts = Vec::new();
    if unit.hosts.len() > 1 {
        parts.push(format!("host {}", times(unit.hosts.len())));
    }
    for (look, word) in [(Look::Gpu, "GPU"), (Look::NvSwitch, "NVSwitch"), (Look::Nic, "NIC")] {
        parts.extend(counts.get(&look).map(|&count| format!("{word} {}", times(count))));
    }
    parts.join(" \u{b7} ")
}

fn dot(id: DeviceId, look: Look, rect: Rect) -> Block {
    Block { rect, look, title: String::new(), detail: String::new(), font: 0.0, members: vec![id] }
}

fn frame(rect: Rect, tone: Option<Tone>) -> Panel {
    Panel { rect, tone, title: String::new(), detail: String::new(), foot: false, font: 0.0 }
}
