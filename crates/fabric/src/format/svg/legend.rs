//! The legend: each kind of link with its colour, and its rate with scope and direction.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{Align, Label, Look, Picture, Wire};
use super::paint::text_width;
use super::palette::{Tone, stroke_width};
use super::scene::Scene;
use super::words;
use crate::device::DeviceKind;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Measure};
use crate::rate::{Device, OneWay, Rate};

/// The number of kinds of link that are listed; further ones are counted.
const KINDS_LISTED: usize = 12;
/// The number of notes that are shown.
const NOTES_SHOWN: usize = 4;
const FONT: f64 = 13.0;
const LINE: f64 = 20.0;

/// Draws the legend and the notes of a drawing in a given width.
pub(super) fn legend(scene: &Scene, drawn: &Picture, width: f64) -> Picture {
    let mut picture = Picture { w: width, ..Picture::default() };
    let (mut x, mut y) = (0.0, LINE);
    for entry in entries(scene, drawn) {
        if x > 0.0 && x + entry.width() > width {
            (x, y) = (0.0, y + 2.2 * LINE);
        }
        let middle = y - FONT * 0.36;
        let sample = Wire::straight((x + 2.0, middle), (x + 30.0, middle), entry.tone, entry.stroke);
        picture.wires.push(sample);
        picture.labels.push(label((x + 42.0, y), &entry.name, true));
        picture.labels.push(label((x + 42.0, y + LINE * 0.85), &entry.rate, false));
        x += entry.width() + 36.0;
    }
    y += 2.4 * LINE;
    for note in notes(scene, drawn) {
        for line in wrapped(&capitalised(&note), width, FONT) {
            picture.labels.push(label((0.0, y), &line, false));
            y += LINE * 0.95;
        }
    }
    picture.h = y - LINE * 0.9;
    picture
}

struct Entry {
    name: String,
    rate: String,
    tone: Tone,
    stroke: f64,
}

impl Entry {
    fn width(&self) -> f64 {
        42.0 + text_width(&self.name, FONT).max(text_width(&self.rate, FONT * 0.93))
    }
}

/// One entry for each kind of link in the drawing, GPU fabrics first; kinds with the same text are merged.
fn entries(scene: &Scene, drawn: &Picture) -> Vec<Entry> {
    let tones: BTreeSet<Tone> = drawn.wires.iter().map(|wire| wire.tone).collect();
    let drives = drawn.blocks.iter().any(|block| matches!(block.look, Look::Drive | Look::Other));
    let shown = |id: DeviceId| drives || !matches!(scene.look(id), Look::Drive | Look::Other);
    let fabric = scene.fabric;
    let mut used = vec![false; fabric.specs().len()];
    for link in fabric.links().iter().filter(|link| shown(link.source) && shown(link.target)) {
        used[link.spec.0 as usize] = true;
    }
    let specs = fabric.specs().iter().zip(used).filter(|(_, used)| *used);
    let mut listed: BTreeMap<(Tone, LinkKind, String), f64> = BTreeMap::new();
    for spec in specs.map(|(spec, _)| spec).filter(|spec| tones.contains(&Tone::of(spec.kind))) {
        let key = (Tone::of(spec.kind), spec.kind, rate_words(scene, spec));
        listed.insert(key, stroke_width(spec.rate(Measure::Nominal, 1)));
    }
    let mut entries: Vec<Entry> = listed
        .into_iter()
        .map(|((tone, kind, rate), stroke)| Entry { name: kind.to_string(), rate, tone, stroke })
        .collect();
    entries.extend(ports(scene));
    if entries.len() > KINDS_LISTED {
        let more = entries.len() - KINDS_LISTED;
        entries.truncate(KINDS_LISTED);
        entries.push(Entry {
            name: format!("and {more} more"),
            rate: "kinds of link".to_owned(),
            tone: Tone::Socket,
            stroke: 0.8,
        });
    }
    entries
}

/// `25 GB/s each way per link, nominal; 450 GB/s each way per GPU`
fn rate_words(scene: &Scene, spec: &LinkSpec) -> String {
    let Some(figure) = spec.nominal.as_ref().or(spec.effective.as_ref()) else {
        return "unknown rate".to_owned();
    };
    let mut text = format!("{}, {}", figure.value, figure.basis);
    if spec.kind.is_gpu_fabric() || spec.kind == LinkKind::C2c {
        let most = scene.fabric.gpus().iter().map(|&gpu| links_of(scene, gpu, spec)).max();
        if let Some(most) = most.filter(|&most| most > 1) {
            let all: Rate<Device, OneWay> = figure.value.per_device(most);
            text += &format!("; {most} links: {all}");
        }
    }
    text
}

fn links_of(scene: &Scene, gpu: DeviceId, spec: &LinkSpec) -> u64 {
    let links = scene.fabric.links_from(gpu).iter();
    links.filter(|link| scene.fabric.spec(link) == spec).map(|link| u64::from(link.count)).sum()
}

/// The ports of NICs without cables in the drawing.
fn ports(scene: &Scene) -> Vec<Entry> {
    let mut listed: BTreeMap<(String, String), f64> = BTreeMap::new();
    for nic in scene.fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))) {
        let cabled = scene.edges_of(nic).any(|edge| matches!(edge.kind, LinkKind::Network { .. }));
        let DeviceKind::Nic(ports) = scene.kind(nic) else {
            continue;
        };
        for port in ports.iter().filter(|port| !cabled && port.rate > Rate::ZERO) {
            let gbit = (port.rate.bytes_per_second() / 125_000_000) as u32;
            let name = match port.network {
                Some(network) => LinkKind::Network { network, gbit }.to_string(),
                None => format!("network port {gbit} Gb/s"),
            };
            let rate = format!("{} each way per port, nominal; not cabled here", port.rate.amount());
            listed.insert((name, rate), stroke_width(port.rate));
        }
    }
    let entry = |((name, rate), stroke)| Entry { name, rate, tone: Tone::Network, stroke };
    listed.into_iter().map(entry).collect()
}

fn notes(scene: &Scene, drawn: &Picture) -> Vec<String> {
    let fabric = scene.fabric;
    let mut notes = Vec::new();
    let hosts = (0..fabric.hosts().len() as u32).map(|host| Some(HostId(host)));
    for host in hosts.chain([None]) {
        let devices = scene.devices(host).iter().copied();
        let gpus: Vec<DeviceId> = devices.filter(|&id| scene.look(id) == Look::Gpu).collect();
        if let Some((word, reason)) = words::no_fabric(scene, &gpus) {
            let note = format!("{word}: {reason}.");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes.extend(fabric.notes().iter().take(NOTES_SHOWN).cloned());
    if let Some(more) = fabric.notes().len().checked_sub(NOTES_SHOWN).filter(|&more| more > 0) {
        notes.push(format!("And {more} more notes."));
    }
    let mut reading = "Line width grows with the logarithm of bandwidth".to_owned();
    if drawn.tags.iter().any(|tag| tag.tone != Tone::Socket) {
        reading += "; \u{d7}n and NVn count parallel links";
    }
    notes.push(reading + ".");
    notes
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Breaks a text at spaces into lines of a width.
pub(super) fn wrapped(text: &str, width: f64, font: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line, font) + text_width(word, font) + font < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn label(at: (f64, f64), text: &str, bold: bool) -> Label {
    Label { at, text: text.to_owned(), font: FONT, bold, soft: !bold, align: Align::Start }
}
