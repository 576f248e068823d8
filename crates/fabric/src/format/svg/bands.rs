//! NVSwitches: a band of chips with one trunk per GPU instead of a line per chip.
//!
//! Switches with links to the same GPUs share a band. The tag of a trunk counts the GPU's links to the whole band; each
//! chip shows its share of them.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{Block, Look, Panel, Picture, Rect, Tag, Wire};
use super::host::{Metrics, block};
use super::palette::{Tone, stroke_width};
use super::scene::{Scene, times};
use crate::id::DeviceId;
use crate::rate::{OneWay, Pair, Rate};

/// Links of one tone added up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bundle {
    pub(super) count: usize,
    pub(super) rate: Rate<Pair, OneWay>,
    pub(super) tone: Tone,
}

impl Bundle {
    /// The links between any of `from` and any of `to`, if there are any.
    pub(super) fn between(scene: &Scene, from: &[DeviceId], to: &BTreeSet<DeviceId>) -> Option<Self> {
        let mut bundle: Option<Self> = None;
        for &id in from {
            for edge in scene.edges_of(id).filter(|edge| to.contains(&edge.other_end(id))) {
                let sum = bundle.get_or_insert(Self { count: 0, rate: Rate::ZERO, tone: edge.tone() });
                sum.count += edge.count as usize;
                sum.rate = sum.rate.plus(edge.rate);
            }
        }
        bundle
    }

    pub(super) fn width(&self) -> f64 {
        stroke_width(self.rate)
    }

    pub(super) fn tag(&self, at: (f64, f64), font: f64) -> Tag {
        Tag { at, text: times(self.count), tone: self.tone, font }
    }
}

struct Band {
    chips: Vec<DeviceId>,
    gpus: Vec<DeviceId>,
    rect: Rect,
}

/// Draws a host's NVSwitches above its GPUs, at negative heights, and enlarges `picture` to fit.
pub(super) fn above(
    scene: &Scene,
    chips: &[DeviceId],
    gpus: &BTreeMap<DeviceId, Rect>,
    metrics: &Metrics,
    picture: &mut Picture,
) {
    let mut by_gpus: BTreeMap<Vec<DeviceId>, Vec<DeviceId>> = BTreeMap::new();
    for &chip in chips {
        let joined = scene.edges_of(chip).map(|edge| edge.other_end(chip));
        let joined: BTreeSet<DeviceId> = joined.filter(|id| gpus.contains_key(id)).collect();
        by_gpus.entry(joined.into_iter().collect()).or_default().push(chip);
    }
    // Switches without links to GPUs come last, so that they are above the others.
    let upper = by_gpus.remove(&Vec::new());
    let mut bands: Vec<Band> = Vec::new();
    let everything = match extent(gpus.values()) {
        (left, right) if left < right => (left, right),
        _ => (0.0, metrics.chip.0 * chips.len().min(8) as f64 * 1.2),
    };
    for (joined, chips) in by_gpus.into_iter().chain(upper.map(|chips| (Vec::new(), chips))) {
        let (left, right) =
            if joined.is_empty() { everything } else { extent(joined.iter().map(|id| &gpus[id])) };
        let right = right.max(left + metrics.chip.0 + 2.0 * metrics.gap);
        let size = (right - left, band_height(chips.len(), right - left, metrics));
        let base = bands
            .iter()
            .filter(|band| band.rect.x < right && left < band.rect.right())
            .map(|band| band.rect.y)
            .fold(-picture.h, f64::min);
        let rect = Rect::new(left, base - metrics.row_gap - size.1, size);
        let row: Vec<DeviceId> = joined.clone();
        draw_band(scene, &chips, &row, rect, metrics, picture);
        bands.push(Band { chips, gpus: joined, rect });
    }
    for (index, band) in bands.iter().enumerate() {
        let chips: BTreeSet<DeviceId> = band.chips.iter().copied().collect();
        for gpu in &band.gpus {
            if let Some(trunk) = Bundle::between(scene, &[*gpu], &chips) {
                let (from, to) = ((gpus[gpu].cx(), gpus[gpu].y), band.rect.bottom());
                picture.wires.push(Wire::straight(from, (from.0, to), trunk.tone, trunk.width()));
                let at = (from.0, (from.1 + to) / 2.0);
                picture.tags.push(trunk.tag(at, metrics.font * 0.85));
            }
        }
        for other in &bands[..index] {
            if let Some(trunk) = Bundle::between(scene, &other.chips, &chips) {
                join_bands(other.rect, band.rect, &trunk, metrics, picture);
            }
        }
    }
    picture.h = bands.iter().map(|band| -band.rect.y).fold(picture.h, f64::max);
    picture.w = bands.iter().map(|band| band.rect.right()).fold(picture.w, f64::max);
    if picture.tags.iter().any(|tag| tag.at.1 < -picture.h) {
        picture.h += metrics.row_gap;
    }
}

fn join_bands(a: Rect, b: Rect, trunk: &Bundle, metrics: &Metrics, picture: &mut Picture) {
    let (tone, width) = (trunk.tone, trunk.width());
    let font = metrics.font * 0.85;
    if b.bottom() <= a.y {
        let x = a.cx().clamp(b.x + 20.0, b.right() - 20.0);
        picture.wires.push(Wire::s_curve((a.cx(), a.y), (x, b.bottom()), tone, width));
        picture.tags.push(trunk.tag(((a.cx() + x) / 2.0, (a.y + b.bottom()) / 2.0), font));
    } else {
        let bow = metrics.row_gap * 0.9;
        picture.wires.push(Wire::arch((a.cx(), a.y), (b.cx(), b.y), bow, tone, width));
        let at = ((a.cx() + b.cx()) / 2.0, (a.y + b.y) / 2.0 - bow * 0.75);
        picture.tags.push(trunk.tag(at, font));
    }
}

/// The number of chips side by side in a band of a width.
fn chips_per_row(count: usize, width: f64, metrics: &Metrics) -> usize {
    let fit = ((width - metrics.gap) / (metrics.chip.0 + metrics.gap)).floor() as usize;
    let rows = count.div_ceil(fit.max(1)).max(1);
    count.div_ceil(rows).max(1)
}

/// The height of a band of `count` chips.
pub(super) fn band_height(count: usize, width: f64, metrics: &Metrics) -> f64 {
    let rows = count.div_ceil(chips_per_row(count, width, metrics)) as f64;
    rows * (metrics.chip.1 + metrics.gap) + metrics.gap
}

/// Draws a band of chips with links to `gpus`.
pub(super) fn draw_band(
    scene: &Scene,
    chips: &[DeviceId],
    gpus: &[DeviceId],
    rect: Rect,
    metrics: &Metrics,
    picture: &mut Picture,
) {
    picture.panels.push(Panel {
        rect,
        tone: Some(Tone::NvLink),
        title: String::new(),
        detail: String::new(),
        foot: false,
        font: metrics.font,
    });
    let columns = chips_per_row(chips.len(), rect.w, metrics);
    let pitch = (rect.w - metrics.gap) / columns as f64;
    let width = (pitch - metrics.gap).min(metrics.chip.0 * 1.7);
    for (index, &chip) in chips.iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let middle = rect.x + metrics.gap / 2.0 + pitch * (column as f64 + 0.5);
        let y = rect.y + metrics.gap + row as f64 * (metrics.chip.1 + metrics.gap);
        let place = Rect::new(middle - width / 2.0, y, (width, metrics.chip.1));
        let detail = share_of_chip(scene, chip, gpus);
        let base = block(scene, &[chip], place, metrics.font * 0.9);
        picture.blocks.push(Block { detail, look: Look::NvSwitch, ..base });
    }
}

/// `x5 per GPU`, if every GPU has the same number of links to the chip.
fn share_of_chip(scene: &Scene, chip: DeviceId, gpus: &[DeviceId]) -> String {
    let mut counts: Vec<u32> =
        gpus.iter().map(|&gpu| scene.between(chip, gpu).map(|edge| edge.count).sum()).collect();
    counts.sort_unstable();
    match (counts.first(), counts.last()) {
        (Some(least), Some(most)) if least == most && *least > 0 => {
            format!("{} per GPU", times(*least as usize))
        }
        _ => String::new(),
    }
}

fn extent<'r>(rects: impl Iterator<Item = &'r Rect>) -> (f64, f64) {
    rects.fold((f64::MAX, f64::MIN), |(left, right), rect| (left.min(rect.x), right.max(rect.right())))
}
