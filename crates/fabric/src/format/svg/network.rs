//! The whole scene: units side by side, NVSwitches between units above them, network switches below.

use std::collections::{BTreeMap, BTreeSet};

use super::bands::Bundle;
use super::canvas::{Block, Look, Picture, Point, Rect, Step, Wire, s_curve};
use super::group::{Groups, Slot, Unit};
use super::host::block;
use super::rack::{Detail, ellipsis, unit};
use super::scene::Scene;
use super::words::thousands;
use crate::id::{DeviceId, HostId};

/// Switches in a row; of more, the first two and the last are drawn.
const SWITCHES_SHOWN: usize = 16;
/// Lines from NICs to switches; beyond that, or if switches are left out, each unit has one line to each switch.
const LINES_SHOWN: usize = 64;
const UNIT_GAP: f64 = 28.0;
/// Between rows of the network.
const TIER_GAP: f64 = 92.0;
const SWITCH_HEIGHT: f64 = 38.0;

/// A unit and its position.
struct PlacedUnit<'g> {
    unit: &'g Unit,
    rect: Rect,
}

/// Draws everything but title and legend.
pub(super) fn arrange(scene: &Scene, groups: &Groups, detail: Detail) -> Picture {
    let slots = groups.shown(scene);
    let drives = groups.units.len() == 1 && groups.units[0].hosts.len() == 1;
    let cells: Vec<(Option<usize>, Picture)> = slots
        .iter()
        .map(|slot| match *slot {
            Slot::One(index) => (Some(index), unit(scene, &groups.units[index], detail, drives)),
            left_out => (None, ellipsis(left_out, 13.0)),
        })
        .collect();
    let natural: f64 = cells.iter().map(|(_, cell)| cell.w + UNIT_GAP).sum::<f64>() - UNIT_GAP;
    let tiers = [&groups.upper_chips, &groups.leaves, &groups.spines];
    let width = tiers.iter().map(|tier| tier_width(tier)).fold(natural, f64::max);
    let tall = cells.iter().map(|(_, cell)| cell.h).fold(0.0, f64::max);
    let mut picture = Picture { w: width, ..Picture::default() };
    let mut y = 0.0;
    let upper = tier(scene, &groups.upper_chips, width, y);
    if !upper.is_empty() {
        y += SWITCH_HEIGHT + TIER_GAP;
    }
    let mut placed: Vec<PlacedUnit> = Vec::new();
    let mut x = (width - natural) / 2.0;
    for (index, cell) in cells {
        let step = cell.w + UNIT_GAP;
        let rect = match index {
            // An ellipsis is centred vertically, a unit is at the top.
            None => Rect::new(x, y + (tall - cell.h) / 2.0, (cell.w, cell.h)),
            Some(_) => Rect::new(x, y, (cell.w, cell.h)),
        };
        placed.extend(index.map(|index| PlacedUnit { unit: &groups.units[index], rect }));
        picture.extend(cell.shifted(rect.x, rect.y));
        x += step;
    }
    y += tall;
    if !upper.is_empty() {
        join_units(scene, &placed, &upper, true, &mut picture);
        picture.blocks.extend(upper);
    }
    let back_to_back = join_nics(scene, &placed, y, &mut picture);
    y += back_to_back;
    let mut above: Vec<Block> = Vec::new();
    for switches in [&groups.leaves, &groups.spines] {
        let row = tier(scene, switches, width, y + TIER_GAP);
        if row.is_empty() {
            continue;
        }
        join_tiers(scene, &above, &row, &mut picture);
        join_units(scene, &placed, &row, false, &mut picture);
        y += TIER_GAP + SWITCH_HEIGHT;
        picture.blocks.extend(row.iter().cloned());
        above = row;
    }
    picture.h = y;
    picture
}

fn tier_width(switches: &[DeviceId]) -> f64 {
    switches.len().min(SWITCHES_SHOWN) as f64 * 70.0
}

/// A row of switches across a width, with one block for those left out.
fn tier(scene: &Scene, switches: &[DeviceId], width: f64, y: f64) -> Vec<Block> {
    let groups: Vec<&[DeviceId]> = match switches {
        [first, second, .., last] if switches.len() > SWITCHES_SHOWN => vec![
            std::slice::from_ref(first),
            std::slice::from_ref(second),
            &switches[2..switches.len() - 1],
            std::slice::from_ref(last),
        ],
        _ => switches.chunks(1).collect(),
    };
    let pitch = width / groups.len().max(1) as f64;
    let widest = if groups.len() == 1 { (width * 0.5).max(320.0) } else { 150.0 };
    let size = ((pitch - 14.0).min(widest), SWITCH_HEIGHT);
    let place = |(index, members): (usize, &&[DeviceId])| {
        let middle = pitch * (index as f64 + 0.5);
        let mut block = block(scene, members, Rect::new(middle - size.0 / 2.0, y, size), 12.0);
        if members.len() > 1 {
            block.title = format!("\u{2022}\u{2022}\u{2022}  \u{d7} {} more", thousands(members.len()));
        }
        block
    };
    groups.iter().enumerate().map(place).collect()
}

/// Lines between units and a row of switches: from each NIC if they are few, otherwise from each unit.
fn join_units(scene: &Scene, placed: &[PlacedUnit], row: &[Block], upward: bool, picture: &mut Picture) {
    let sets: Vec<BTreeSet<DeviceId>> =
        row.iter().map(|block| block.members.iter().copied().collect()).collect();
    let mut from_nics: Vec<(Rect, usize, usize, Bundle)> = Vec::new();
    for (number, place) in placed.iter().enumerate() {
        for block in picture.blocks.iter().filter(|block| inside(block.rect, place.rect)) {
            for (index, set) in sets.iter().enumerate() {
                let bundle = Bundle::between(scene, &block.members, set);
                from_nics.extend(bundle.map(|bundle| (block.rect, number, index, bundle)));
            }
        }
    }
    let solitary = placed.iter().all(|place| place.unit.hosts.len() == 1);
    let dots = picture.blocks.iter().any(|block| block.font == 0.0);
    let whole = row.iter().all(|block| block.members.len() == 1);
    let lines = if solitary && whole && !dots && !upward && from_nics.len() <= LINES_SHOWN {
        from_nics
    } else {
        let mut lines = Vec::new();
        for (number, place) in placed.iter().enumerate() {
            let members = everything(scene, place.unit);
            for (index, set) in sets.iter().enumerate() {
                let bundle = Bundle::between(scene, &members, set);
                lines.extend(bundle.map(|bundle| (place.rect, number, index, bundle)));
            }
        }
        lines
    };
    let tagged = lines.iter().any(|(_, _, _, bundle)| bundle.count > 1);
    let mut arrivals: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut departures: BTreeMap<(i64, usize), Vec<usize>> = BTreeMap::new();
    for (line, (rect, number, index, _)) in lines.iter().enumerate() {
        arrivals.entry(*index).or_default().push(line);
        departures.entry((rect.x as i64, *number)).or_default().push(line);
    }
    for (line, (rect, number, index, bundle)) in lines.iter().enumerate() {
        let place = placed[*number].rect;
        let rank = |all: &[usize]| (all.iter().position(|&other| other == line).unwrap_or(0), all.len());
        let (i, n) = rank(&arrivals[index]);
        let (j, m) = rank(&departures[&(rect.x as i64, *number)]);
        let target = row[*index].rect;
        let (start, edge, end) = if upward {
            let start = rect.port_above(j, m);
            (start, (start.0, place.y), target.port_below(i, n))
        } else {
            let start = rect.port_below(j, m);
            (start, (start.0, place.bottom()), target.port_above(i, n))
        };
        let steps = vec![Step::Line(edge), s_curve(edge, end)];
        picture.wires.push(Wire::new(start, steps, bundle.tone, bundle.width()));
        if tagged {
            picture.tags.push(bundle.tag(toward(edge, end, 0.16), 10.0));
        }
    }
}

/// Lines between two rows of switches.
fn join_tiers(scene: &Scene, upper: &[Block], lower: &[Block], picture: &mut Picture) {
    for (index, below) in lower.iter().enumerate() {
        let set: BTreeSet<DeviceId> = below.members.iter().copied().collect();
        let lines: Vec<(&Block, Bundle)> = upper
            .iter()
            .filter_map(|above| Some((above, Bundle::between(scene, &above.members, &set)?)))
            .collect();
        for (order, (above, bundle)) in lines.iter().enumerate() {
            let from = above.rect.port_below(index, lower.len());
            let to = below.rect.port_above(order, lines.len());
            picture.wires.push(Wire::s_curve(from, to, bundle.tone, bundle.width()));
            if bundle.count > 1 {
                picture.tags.push(bundle.tag(toward(from, to, 0.18), 10.0));
            }
        }
    }
}

/// Cables between NICs without a switch: an arch below the units. Returns its height.
fn join_nics(scene: &Scene, placed: &[PlacedUnit], bottom: f64, picture: &mut Picture) -> f64 {
    let mut rects: BTreeMap<DeviceId, (Rect, usize)> = BTreeMap::new();
    for block in picture.blocks.iter().filter(|block| block.look == Look::Nic) {
        if let Some(number) = placed.iter().position(|place| inside(block.rect, place.rect)) {
            rects.extend(block.members.iter().map(|&id| (id, (block.rect, number))));
        }
    }
    let mut height = 0.0;
    for (&id, &(rect, number)) in &rects {
        for edge in scene.edges_of(id).filter(|edge| edge.a == id) {
            let Some(&(other, far)) = rects.get(&edge.b) else {
                continue;
            };
            if number == far {
                continue;
            }
            let (a, b): (Point, Point) = ((rect.cx(), bottom), (other.cx(), bottom));
            let steps = vec![
                Step::Line(a),
                Step::Curve((a.0, a.1 + 60.0), (b.0, b.1 + 60.0), b),
                Step::Line((other.cx(), other.bottom())),
            ];
            let from = (rect.cx(), rect.bottom());
            picture.wires.push(Wire::new(from, steps, edge.tone(), edge.width()));
            height = 60.0;
        }
    }
    height
}

fn everything(scene: &Scene, unit: &Unit) -> Vec<DeviceId> {
    let of_host = |host: &Option<HostId>| scene.devices(*host).to_vec();
    let mut all: Vec<DeviceId> = unit.hosts.iter().flat_map(of_host).collect();
    all.extend(&unit.chips);
    all.sort();
    all.dedup();
    // The devices of no host may include the switches that the lines lead to.
    all.retain(|&id| scene.look(id) != Look::NetSwitch);
    all
}

fn inside(inner: Rect, outer: Rect) -> bool {
    inner.x >= outer.x
        && inner.right() <= outer.right()
        && inner.y >= outer.y
        && inner.bottom() <= outer.bottom()
}

/// A point on the curve of [`s_curve`].
fn toward(from: Point, to: Point, t: f64) -> Point {
    let ease = t * t * (3.0 - 2.0 * t);
    let fall = 1.5 * t * (1.0 - t) + t * t * t;
    (from.0 + (to.0 - from.0) * ease, from.1 + (to.1 - from.1) * fall)
}
