//! One host: GPUs in a row, their links above, the PCIe tree below with CPUs as its roots.

use std::collections::BTreeMap;

use super::canvas::{Block, Look, Panel, Picture, Rect, Tag};
use super::paint::text_width;
use super::palette::Tone;
use super::scene::Scene;
use super::tree::Tree;
use super::{bands, mesh, words};
use crate::id::{DeviceId, HostId};

/// The sizes of one level of detail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metrics {
    pub(super) gpu: (f64, f64),
    pub(super) small: (f64, f64),
    pub(super) switch: (f64, f64),
    pub(super) cpu: (f64, f64),
    pub(super) chip: (f64, f64),
    pub(super) gap: f64,
    pub(super) row_gap: f64,
    pub(super) font: f64,
    /// NICs and drives are beside their switch, not below it.
    pub(super) beside: bool,
    /// More equal NICs than this below one switch are drawn as one block.
    pub(super) nics_shown: usize,
}

/// Draws the devices of a host, without a frame. `drives` is false for several hosts, to save space.
pub(super) fn host(scene: &Scene, host: Option<HostId>, metrics: &Metrics, drives: bool) -> Picture {
    let devices: Vec<DeviceId> = scene
        .devices(host)
        .iter()
        .copied()
        .filter(|&id| drives || !matches!(scene.look(id), Look::Drive | Look::Other))
        .filter(|&id| scene.look(id) != Look::NetSwitch)
        .collect();
    let mut tree = Tree::new(scene, &devices, metrics);
    tree.place();
    let mut picture = Picture::default();
    let mut gpus = std::mem::take(&mut tree.gpus);
    let sideways = mesh::direct_links(scene, &mut gpus, metrics, &mut picture);
    let chips: Vec<DeviceId> =
        devices.iter().copied().filter(|&id| scene.look(id) == Look::NvSwitch).collect();
    bands::above(scene, &chips, &gpus, metrics, &mut picture);
    let ids: Vec<DeviceId> = gpus.keys().copied().collect();
    if let Some((word, _)) = words::no_fabric(scene, &ids) {
        no_fabric_tag(&gpus, word, metrics, &mut picture);
    }
    tree.wire_up(&gpus, &sideways, &mut picture);
    for (&id, &rect) in &gpus {
        picture.blocks.push(block(scene, &[id], rect, metrics.font));
    }
    let above = picture.h;
    let height = above + tree.height;
    let width = tree.width.max(picture.w);
    picture = picture.shifted(0.0, above);
    (picture.w, picture.h) = (width, height);
    picture
}

/// Puts a frame around a drawing, with a title and a detail at the top or at the bottom.
pub(super) fn framed(inner: Picture, (title, detail): (&str, &str), foot: bool, font: f64) -> Picture {
    let pad = (font * 1.9 - 12.0).clamp(6.0, 16.0);
    let room = if title.is_empty() { pad } else { font * 2.2 };
    let (above, below) = if foot { (pad, room) } else { (room, pad) };
    let least = text_width(&format!("{title}   {detail}"), font).min(420.0);
    let w = (inner.w + 2.0 * pad).max(least);
    let h = inner.h + above + below;
    let dx = (w - inner.w) / 2.0;
    let mut picture = Picture { w, h, ..Picture::default() };
    picture.panels.push(Panel {
        rect: Rect::new(0.0, 0.0, (w, h)),
        tone: None,
        title: title.to_owned(),
        detail: detail.to_owned(),
        foot,
        font,
    });
    picture.extend(inner.shifted(dx, above));
    picture
}

/// Font size below which a block has no second line.
const DETAIL_FONT_MIN: f64 = 10.0;

/// A block for one device, or for several equal ones.
pub(super) fn block(scene: &Scene, members: &[DeviceId], rect: Rect, font: f64) -> Block {
    let (title, mut detail) = words::plural_caption(scene, members);
    if font < DETAIL_FONT_MIN {
        detail.clear();
    }
    Block {
        rect,
        look: members.first().map_or(Look::Other, |&id| scene.look(id)),
        title,
        detail,
        font,
        members: members.to_vec(),
    }
}

fn no_fabric_tag(gpus: &BTreeMap<DeviceId, Rect>, text: String, metrics: &Metrics, picture: &mut Picture) {
    let left = gpus.values().map(|rect| rect.cx()).fold(f64::MAX, f64::min);
    let right = gpus.values().map(|rect| rect.cx()).fold(f64::MIN, f64::max);
    let font = metrics.font * 0.9;
    picture.tags.push(Tag { at: ((left + right) / 2.0, -font * 1.6), text, tone: Tone::Socket, font });
    picture.h = picture.h.max(font * 3.0);
}
