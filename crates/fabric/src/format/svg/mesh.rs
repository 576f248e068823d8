//! Direct links between GPUs.
//!
//! Four to eight GPUs in an incomplete mesh, such as a hybrid cube mesh, are arranged in two squares, split where the
//! fewest links are cut, and parallel links are parallel strokes. All other GPUs (bridged pairs, complete or larger
//! meshes) stay in a row under arches.

use std::collections::BTreeMap;

use super::canvas::{Align, Label, Picture, Point, Rect, Tag, Wire};
use super::host::Metrics;
use super::scene::{Edge, Scene};
use crate::id::DeviceId;

/// More arches than this share one label.
const ARCHES_TAGGED: usize = 12;

/// Draws the links above the row of GPUs, at negative heights, moves GPUs of a square up, and sets `picture.h` to the
/// height used. Returns the GPUs above another GPU, with the side (-1 left, 1 right) on which their PCIe line passes it.
pub(super) fn direct_links(
    scene: &Scene,
    gpus: &mut BTreeMap<DeviceId, Rect>,
    metrics: &Metrics,
    picture: &mut Picture,
) -> BTreeMap<DeviceId, f64> {
    let within = |id: &DeviceId| gpus.contains_key(id);
    let edges: Vec<Edge> = gpus
        .keys()
        .flat_map(|&gpu| scene.edges_of(gpu).filter(move |edge| edge.a == gpu))
        .filter(|edge| within(&edge.a) && within(&edge.b))
        .copied()
        .collect();
    let meshed = gpus.keys().all(|&gpu| {
        let peers = edges.iter().filter(|edge| edge.a == gpu || edge.b == gpu);
        peers.count() >= 2
    });
    let complete = edges.len() * 2 >= gpus.len() * (gpus.len().max(1) - 1);
    if edges.is_empty() {
        BTreeMap::new()
    } else if meshed && !complete && (4..=8).contains(&gpus.len()) {
        squares(&edges, gpus, metrics, picture)
    } else {
        arches(&edges, gpus, metrics, picture);
        BTreeMap::new()
    }
}

/// Arches over a row of GPUs, ordered at each GPU to avoid crossings.
pub(super) fn arches(
    edges: &[Edge],
    gpus: &BTreeMap<DeviceId, Rect>,
    metrics: &Metrics,
    picture: &mut Picture,
) {
    let mut row: Vec<DeviceId> = gpus.keys().copied().collect();
    row.sort_by(|a, b| gpus[a].x.total_cmp(&gpus[b].x));
    let position: BTreeMap<DeviceId, i64> = row.iter().zip(0..).map(|(&id, index)| (id, index)).collect();
    let port = |gpu: DeviceId, other: DeviceId| -> Point {
        let own = position[&gpu];
        // Leftward arches first, the nearest leftmost; then rightward ones, the farthest leftmost.
        let rank = |peer: DeviceId| {
            let distance = position[&peer] - own;
            if distance < 0 { (0, -distance) } else { (1, -distance) }
        };
        let mut peers: Vec<DeviceId> = edges
            .iter()
            .filter(|edge| edge.a == gpu || edge.b == gpu)
            .map(|edge| edge.other_end(gpu))
            .collect();
        peers.sort_by_key(|&peer| rank(peer));
        peers.dedup();
        let index = peers.iter().position(|&peer| peer == other).unwrap_or(0);
        gpus[&gpu].port_above(index, peers.len())
    };
    let mut top = 0.0_f64;
    let same = edges.windows(2).all(|pair| pair[0].tag() == pair[1].tag());
    for edge in edges {
        let (a, b) = (port(edge.a, edge.b), port(edge.b, edge.a));
        let span = (position[&edge.a] - position[&edge.b]).unsigned_abs() as f64;
        let height = metrics.row_gap * (0.65 + 0.45 * span);
        top = top.max(height * 0.75);
        picture.wires.push(Wire::arch(a, b, height, edge.tone(), edge.width()));
        if edges.len() <= ARCHES_TAGGED {
            let at = ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0 - height * 0.75);
            picture.tags.push(tag(edge, at, metrics));
        }
    }
    let mut height = top + metrics.font * 1.2;
    if let (true, true, Some(edge)) = (edges.len() > ARCHES_TAGGED, same, edges.first()) {
        let middle = row.iter().map(|id| gpus[id].cx()).sum::<f64>() / row.len() as f64;
        height += metrics.font * 1.2;
        picture.labels.push(Label {
            at: (middle, -top - metrics.font),
            text: format!("each arch: {} of {}", edge.tag(), edge.kind),
            font: metrics.font * 0.9,
            bold: false,
            soft: true,
            align: Align::Middle,
        });
    }
    picture.h = picture.h.max(height);
}

fn squares(
    edges: &[Edge],
    gpus: &mut BTreeMap<DeviceId, Rect>,
    metrics: &Metrics,
    picture: &mut Picture,
) -> BTreeMap<DeviceId, f64> {
    let mut row: Vec<DeviceId> = gpus.keys().copied().collect();
    row.sort_by(|a, b| gpus[a].x.total_cmp(&gpus[b].x));
    let halves = halves(&row, edges);
    let rise = metrics.gpu.1 + metrics.row_gap * 2.0;
    let mut sideways = BTreeMap::new();
    for (column, pair, middle) in columns(&halves, gpus, metrics) {
        for (index, &id) in pair.iter().rev().enumerate() {
            let y = -rise * index as f64;
            gpus.insert(id, Rect::new(middle - metrics.gpu.0 / 2.0, y, metrics.gpu));
            if index > 0 {
                sideways.insert(id, if column == 0 { -1.0 } else { 1.0 });
            }
        }
    }
    for edge in edges {
        let (a, b) = (gpus[&edge.a], gpus[&edge.b]);
        let apart = halves[0].contains(&edge.a) != halves[0].contains(&edge.b);
        let level = a.y == b.y;
        // Straight wires start at the centre, under the box; arches start at the edge.
        let (mut wire, at) = if apart && level {
            let upper = a.y < 0.0;
            let span = columns_between(a, b, gpus);
            let bow = metrics.row_gap * if upper { 0.75 + 0.2 * span } else { -0.55 - 0.2 * span };
            // The PCIe line starts at the middle of the lower edge, so the arch starts beside it.
            let aside = (b.cx() - a.cx()).signum() * a.w * 0.25;
            let ends = if upper {
                ((a.cx(), a.y), (b.cx(), b.y))
            } else {
                ((a.cx() + aside, a.bottom()), (b.cx() - aside, b.bottom()))
            };
            let at = ((ends.0.0 + ends.1.0) / 2.0, ends.0.1 - bow * 0.75);
            (Wire::arch(ends.0, ends.1, bow, edge.tone(), edge.width()), at)
        } else {
            let (from, to) = ((a.cx(), a.cy()), (b.cx(), b.cy()));
            // Away from the crossing of the diagonals, where the tags would overlap.
            let along = if a.x == b.x || level { 0.5 } else { 0.36 };
            let at = (from.0 + (to.0 - from.0) * along, from.1 + (to.1 - from.1) * along);
            (Wire::straight(from, to, edge.tone(), edge.width()), at)
        };
        if (2..=3).contains(&edge.count) {
            wire.strands = edge.count;
            wire.width *= 0.62;
        }
        picture.wires.push(wire);
        picture.tags.push(tag(edge, at, metrics));
    }
    let bows = edges.iter().any(|edge| halves[0].contains(&edge.a) != halves[0].contains(&edge.b));
    picture.h = picture.h.max(rise + if bows { metrics.row_gap * 1.15 } else { 0.0 });
    sideways
}

/// The number of columns between two GPUs: longer arches are higher, so that they do not overlap.
fn columns_between(a: Rect, b: Rect, gpus: &BTreeMap<DeviceId, Rect>) -> f64 {
    let (left, right) = (a.x.min(b.x), a.x.max(b.x));
    let row = gpus.values().filter(|rect| rect.y == a.y);
    row.filter(|rect| left < rect.x && rect.x <= right).count() as f64
}

/// The columns of the squares, each with two neighbours of a half, the first on top: its number in its square, its GPUs,
/// and its centre.
fn columns<'h>(
    halves: &'h [Vec<DeviceId>],
    gpus: &BTreeMap<DeviceId, Rect>,
    metrics: &Metrics,
) -> Vec<(usize, &'h [DeviceId], f64)> {
    let mut columns: Vec<(usize, &[DeviceId], f64)> = Vec::new();
    for half in halves {
        for (column, pair) in half.chunks(2).enumerate() {
            let middle = pair.iter().map(|id| gpus[id].cx()).sum::<f64>() / pair.len() as f64;
            columns.push((column, pair, middle));
        }
    }
    // Where the halves interleave on PCIe, columns would overlap: spread them evenly instead.
    let pitch = metrics.gpu.0 + metrics.gap;
    if columns.windows(2).any(|pair| pair[1].2 - pair[0].2 < pitch) {
        let left = gpus.values().map(|rect| rect.x).fold(f64::MAX, f64::min);
        let right = gpus.values().map(|rect| rect.right()).fold(f64::MIN, f64::max);
        let share = (right - left) / columns.len() as f64;
        for (index, column) in columns.iter_mut().enumerate() {
            column.2 = left + share * (index as f64 + 0.5);
        }
    }
    columns
}

/// The GPUs in two halves (one half for up to four GPUs), in order, with the fewest links between them; ties go to the
/// first split.
fn halves(row: &[DeviceId], edges: &[Edge]) -> Vec<Vec<DeviceId>> {
    if row.len() <= 4 {
        return vec![row.to_vec()];
    }
    let size = row.len().div_ceil(2) as u32;
    let cut = |mask: u32| -> u64 {
        let side = |id: DeviceId| {
            let index = row.iter().position(|&gpu| gpu == id).unwrap_or(0);
            mask >> index & 1
        };
        edges.iter().filter(|edge| side(edge.a) != side(edge.b)).map(|edge| u64::from(edge.count)).sum()
    };
    // Bit 0 is set: the first GPU is in the first half.
    let best = (0..1_u32 << row.len())
        .filter(|mask| mask & 1 == 1 && mask.count_ones() == size)
        .min_by_key(|&mask| cut(mask))
        .unwrap_or(0);
    let pick = |wanted: u32| {
        let chosen = row.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| best >> index & 1 == wanted);
        chosen.map(|(_, &id)| id).collect()
    };
    vec![pick(1), pick(0)]
}

fn tag(edge: &Edge, at: Point, metrics: &Metrics) -> Tag {
    Tag { at, text: edge.tag(), tone: edge.tone(), font: metrics.font * 0.75 }
}
