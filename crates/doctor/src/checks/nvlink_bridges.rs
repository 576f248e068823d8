//! NVLink bridges between cards: missing, with fewer links than the model has, or impossible as the cards are placed.
//!
//! The wiring does not tell the distance of slots. What it tells is the socket: cards of different sockets sit in slots that a bridge of
//! two to four slots rarely spans, and NVIDIA's guides ask for cards of one socket.

use weftlink_fabric::catalog::gpus::GpuLinks;
use weftlink_fabric::{DeviceId, LinkSpec, PathType, Paths};

use super::gpus::{Gpu, gpus, without_driver};
use super::nvlinks::{active, peers};
use crate::check::{Check, Machine};
use crate::cost;
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "nvlink-bridge",
    finds: "Cards with connectors for NVLink bridges, without a bridge or with fewer links than the model has",
    reads: "NVML (`nvidia-smi nvlink -s`), the wiring",
    run: bridges,
}];

/// Cards of one model.
struct Cards<'g, 'm> {
    gpus: Vec<&'g Gpu<'m>>,
    link: &'static LinkSpec,
    links: u32,
    slots: u32,
}

fn bridges(machine: &Machine<'_>) -> Vec<Outcome> {
    let all = gpus(machine);
    if all.is_empty() {
        let has_bridges = |gpu: &DeviceId| {
            let model = machine.fabric.device(*gpu).kind.gpu_model();
            matches!(model.map(|model| &model.links), Some(GpuLinks::Bridge { .. }))
        };
        if machine.fabric.gpus().iter().filter(|gpu| has_bridges(gpu)).count() < 2 {
            return Vec::new();
        }
        return without_driver(machine, "the bridges");
    }
    let mut groups: Vec<Cards<'_, '_>> = Vec::new();
    for gpu in all.iter().filter(|gpu| gpu.is_bridgeable()) {
        let Some(GpuLinks::Bridge { link, links, slots }) = gpu.model.map(|model| &model.links) else {
            continue;
        };
        match groups.iter_mut().find(|group| group.gpus[0].model == gpu.model) {
            Some(group) => group.gpus.push(gpu),
            None => groups.push(Cards { gpus: vec![gpu], link, links: *links, slots: *slots }),
        }
    }
    groups.iter().filter(|cards| cards.gpus.len() > 1).flat_map(|cards| examine(machine, cards)).collect()
}

fn examine(machine: &Machine<'_>, cards: &Cards<'_, '_>) -> Vec<Outcome> {
    let (bare, bridged): (Vec<&Gpu<'_>>, Vec<&Gpu<'_>>) = cards.gpus.iter().partition(|gpu| active(gpu) == 0);
    let mut outcomes = Vec::new();
    for gpu in &bridged {
        // A bridge of four cards connects each to three others.
        let links = active(gpu);
        if links >= cards.links {
            outcomes.push(Outcome::Fine(format!("{}: a bridge with all {links} links is fitted", gpu.name)));
        } else {
            outcomes.push(Outcome::Found(narrow(machine, cards, gpu, links)));
        }
    }
    if bare.len() > 1 {
        outcomes.push(Outcome::Found(without_bridge(machine, cards, &bare, bridged.is_empty())));
    } else if let ([single], false) = (&bare[..], bridged.is_empty()) {
        let what = format!("{}: no bridge is fitted, and no second card is left for one", single.name);
        let note =
            Finding::new("nvlink-bridge", Severity::Note, what).shown_by(source(single), "no active link");
        outcomes.push(Outcome::Found(
            note.fixed_by("Give jobs of two GPUs a bridged pair: list it in CUDA_VISIBLE_DEVICES."),
        ));
    }
    outcomes
}

fn source(gpu: &Gpu<'_>) -> String {
    format!("NVML, {} ({})", gpu.name, gpu.bus)
}

/// One of several bridges is missing, or one is not for this model.
fn narrow(machine: &Machine<'_>, cards: &Cards<'_, '_>, gpu: &Gpu<'_>, links: u32) -> Finding {
    let peers = peers(gpu);
    let peer = cards.gpus.iter().find(|other| peers.contains_key(&other.bus)).and_then(|other| other.device);
    let cost = gpu.device.zip(peer).and_then(|(one, other)| {
        let usual =
            cost::with_more_links(machine.fabric, &[(one, other, cards.links - links, cards.link.clone())])?;
        cost::of_copy(machine.fabric, &usual, one, other)
    });
    let what = format!(
        "{}: the bridge has {links} links; the model has {} at {}",
        gpu.name,
        cards.links,
        connectors(cards.slots)
    );
    Finding::new("nvlink-bridge", Severity::Warning, what)
        .shown_by(
            source(gpu),
            format!("{links} of {} links are active", gpu.links().len().max(cards.links as usize)),
        )
        .costing(cost)
        .fixed_by(format!(
            "Fit a bridge at each of the {} of both cards, of the generation of the cards.",
            connectors(cards.slots)
        ))
        .fixed_by(format!(
            "Reseat the bridges with the power off, then `nvidia-smi nvlink -s -i {}`.",
            gpu.bus
        ))
}

fn connectors(slots: u32) -> String {
    if slots == 1 { "1 connector".to_owned() } else { format!("{slots} connectors") }
}

fn without_bridge(
    machine: &Machine<'_>,
    cards: &Cards<'_, '_>,
    bare: &[&Gpu<'_>],
    none_is_bridged: bool,
) -> Finding {
    let names: Vec<&str> = bare.iter().map(|gpu| gpu.name.as_str()).collect();
    let near = pairs_of_a_socket(machine, bare);
    // A machine without any bridge may be meant to have none.
    let severity = if none_is_bridged { Severity::Note } else { Severity::Warning };
    let what =
        format!("{} have connectors for an NVLink bridge, but none is fitted", super::gpus::join(&names));
    let mut finding = Finding::new("nvlink-bridge", severity, what);
    for gpu in bare {
        finding = finding.shown_by(source(gpu), "no active link");
    }
    let Some(pair) = near.first().copied().or_else(|| Some((bare[0].device?, bare[1].device?))) else {
        return finding;
    };
    let usual = cost::with_more_links(machine.fabric, &[(pair.0, pair.1, cards.links, cards.link.clone())]);
    let cost = usual.and_then(|usual| cost::of_copy(machine.fabric, &usual, pair.0, pair.1));
    let finding = finding.costing(cost);
    let (one, other) = (machine.fabric.device_name(pair.0), machine.fabric.device_name(pair.1));
    if near.is_empty() {
        return finding
            .shown_by("the wiring", format!("{one} and {other} are on different sockets"))
            .fixed_by("Move the cards into slots of one socket, as far apart as the bridge is wide (2 slots for data-centre cards, 2, 3 or 4 for others).")
            .fixed_by(format!("Then fit {} at each of the {}.", "a bridge", connectors(cards.slots)));
    }
    finding
        .fixed_by(format!("Fit a bridge for this model between {one} and {other}, one at each of the {}.", connectors(cards.slots)))
        .fixed_by("Measure the distance of their slots first: bridges are made for 2, 3 or 4 slots, those of data-centre cards for 2.")
}

/// Pairs of cards whose path does not leave the socket, each card at most once, in the order of addresses.
fn pairs_of_a_socket(machine: &Machine<'_>, bare: &[&Gpu<'_>]) -> Vec<(DeviceId, DeviceId)> {
    let paths = Paths::of(machine.fabric);
    let mut left: Vec<DeviceId> = bare.iter().filter_map(|gpu| gpu.device).take(64).collect();
    let mut pairs = Vec::new();
    while let Some((one, rest)) = left.split_first().map(|(one, rest)| (*one, rest.to_vec())) {
        let near = rest.iter().position(|other| paths.path(one, *other).kind < PathType::Sys);
        left = rest;
        if let Some(at) = near {
            pairs.push((one, left.remove(at)));
        }
    }
    pairs
}
