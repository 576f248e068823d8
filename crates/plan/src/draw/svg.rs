//! A plan as an SVG: ranks as horizontal lines, grouped by island, and hops as arrows between them.
//!
//! Both foreground and background follow the viewer's colour scheme, so the picture is readable on any page. Text is in the
//! viewer's sans-serif font.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::space_time::{Kind, Line, Piece, SpaceTime, label};
use crate::well_formed::WellFormed;

/// Pixels left of the first column, above the first line, and around the picture.
const LEFT: u32 = 74;
const TOP: u32 = 78;
const MARGIN: u32 = 18;
/// Pixels between lines, and further between islands.
const LINE: u32 = 27;
const ISLAND: u32 = 16;
/// The maximum width of all columns, and the limits of each.
const COLUMNS: u32 = 720;
const COLUMN_MIN: u32 = 44;
const COLUMN_MAX: u32 = 150;
/// The minimum width, so that the heading fits.
const WIDTH_MIN: u32 = 460;

/// Colours are written out for both schemes: some viewers do not support variables.
const STYLE: &str = "\
text{font:10px sans-serif;fill:#5b6673}.t{font-size:14px;font-weight:600;fill:#1d2733}.l{text-anchor:end}.c{text-anchor:middle}\
.b{fill:#fff}.r{stroke:#d5dae0}.a{fill:none;stroke-width:1.4}.w .a{stroke:#98a2ad;stroke-width:.8;stroke-dasharray:3 3}.w .h{fill:#98a2ad}\
.i .a{stroke:#3d7a00}.i .h,.i text{fill:#3d7a00}.o .a{stroke:#c2560a}.o .h,.o text{fill:#c2560a}\
.i text,.o text{font-size:9px;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}\
@media(prefers-color-scheme:dark){text{fill:#a3adb8}.t{fill:#e8ecf0}.b{fill:#12171d}.r{stroke:#36404b}\
.w .a{stroke:#66717d}.w .h{fill:#66717d}.i .a{stroke:#8fd12e}.i .h,.i text{fill:#8fd12e}\
.o .a{stroke:#ff9d4d}.o .h,.o text{fill:#ff9d4d}.i text,.o text{stroke:#12171d}}";

/// One tile of a plan as a picture, given the island of each rank; nothing if the plan deadlocks.
///
/// # Panics
/// If a rank has no island.
pub fn svg(plan: WellFormed<'_>, islands: &[u32]) -> Option<String> {
    assert_eq!(islands.len(), plan.ranks as usize, "every rank has an island");
    let picture = SpaceTime::of(plan, islands)?;
    let mut svg = Svg { text: String::new(), rows: BTreeMap::new(), column: 0, labels: Vec::new() };
    svg.draw(plan, &picture);
    Some(svg.text)
}

struct Svg {
    text: String,
    /// The height of each line.
    rows: BTreeMap<Line, u32>,
    /// The width of a column.
    column: u32,
    /// The middles and widths of the labels so far.
    labels: Vec<(f64, f64, f64)>,
}

impl Svg {
    fn draw(&mut self, plan: WellFormed<'_>, picture: &SpaceTime) {
        let columns = picture.width.div_ceil(2).max(1);
        self.column = (COLUMNS / columns).clamp(COLUMN_MIN, COLUMN_MAX);
        let mut y = TOP;
        let mut island = None;
        for line in in_order(&picture.lines) {
            if island.is_some_and(|island| island != line.island()) {
                y += ISLAND;
            }
            island = Some(line.island());
            self.rows.insert(line, y);
            y += LINE;
        }
        let right = LEFT + columns * self.column;
        let (width, height) = ((right + MARGIN).max(WIDTH_MIN), y - LINE + MARGIN);
        let _ = write!(
            self.text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\">\n<style>{STYLE}</style>\n<rect class=\"b\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
        );
        self.heading(plan, picture);
        self.ruling(columns, right, height);
        for (kind, class) in [(Kind::Wait, "w"), (Kind::Inside, "i"), (Kind::Across, "o")] {
            self.arrows(plan, picture, kind, class);
        }
        self.text.push_str("</svg>\n");
    }

    fn heading(&mut self, plan: WellFormed<'_>, picture: &SpaceTime) {
        let islands: BTreeSet<_> = picture.lines.iter().filter_map(|line| line.island()).collect();
        let ranks = match (plan.ranks, islands.len()) {
            (1, _) => "1 rank".to_owned(),
            (ranks, 1) => format!("{ranks} ranks"),
            (ranks, islands) => format!("{ranks} ranks on {islands} islands"),
        };
        let (name, collective) = (escaped(&plan.name), &plan.collective);
        let _ = writeln!(
            self.text,
            "<text class=\"t\" x=\"{MARGIN}\" y=\"24\">{name}: {collective}, {ranks}</text>"
        );
        let shown: BTreeSet<Kind> = picture.arrows.values().map(|(kind, _)| *kind).collect();
        let mut x = MARGIN;
        for kind in shown {
            let (class, words) = match kind {
                Kind::Wait => ("w", "wait"),
                Kind::Inside => ("i", "inside an island"),
                Kind::Across => ("o", "between islands"),
            };
            let (end, at) = (x + 22, x + 28);
            let _ = writeln!(
                self.text,
                "<g class=\"{class}\"><path class=\"a\" d=\"M{x} 40H{end}\"/></g><text x=\"{at}\" y=\"43\">{words}</text>"
            );
            x = at + 14 + 6 * words.len() as u32;
        }
    }

    /// Lines for ranks and switches, and ticks for columns.
    fn ruling(&mut self, columns: u32, right: u32, height: u32) {
        let mut path = String::new();
        let mut names = String::new();
        for (line, y) in &self.rows {
            let _ = write!(path, "M{LEFT} {y}H{right}");
            let name = match line {
                Line::Rank { rank, .. } => format!("rank {rank}"),
                Line::Nvswitch { .. } => "NVSwitch".to_owned(),
                Line::Network => "network".to_owned(),
            };
            let (x, y) = (LEFT - 8, y + 3);
            let _ = writeln!(names, "<text class=\"l\" x=\"{x}\" y=\"{y}\">{name}</text>");
        }
        let (top, bottom) = (TOP - 8, height - MARGIN + 8);
        for column in 0..=columns {
            let x = LEFT + column * self.column;
            let _ = write!(path, "M{x} {top}V{bottom}");
            let y = top - 3;
            let _ = writeln!(names, "<text class=\"c\" x=\"{x}\" y=\"{y}\">{column}</text>");
        }
        let _ = write!(self.text, "<path class=\"r\" d=\"{path}\"/>\n{names}");
    }

    /// All arrows of a kind: their shafts as one path, their heads as another, then their labels.
    fn arrows(&mut self, plan: WellFormed<'_>, picture: &SpaceTime, kind: Kind, class: &str) {
        let of_kind = picture.arrows.iter().filter(|(_, (of, _))| *of == kind);
        let (mut shafts, mut heads, mut labels) = (String::new(), String::new(), String::new());
        for (((from, start), (to, end)), (_, pieces)) in of_kind {
            let at = |line: &Line, half: u32| {
                (f64::from(LEFT + half * self.column / 2), f64::from(self.rows[line]))
            };
            let ((x, y), (to_x, to_y)) = (at(from, *start), at(to, *end));
            let (dx, dy) = (to_x - x, to_y - y);
            let length = (dx * dx + dy * dy).sqrt().max(1.0);
            let (ux, uy) = (dx / length, dy / length);
            let (back_x, back_y) = (to_x - 7.0 * ux, to_y - 7.0 * uy);
            let _ = write!(shafts, "M{x:.0} {y:.0}L{back_x:.0} {back_y:.0}");
            let (left_x, left_y, right_x, right_y) =
                (back_x - 2.6 * uy, back_y + 2.6 * ux, back_x + 2.6 * uy, back_y - 2.6 * ux);
            let _ = write!(heads, "M{to_x:.0} {to_y:.0}L{left_x:.1} {left_y:.1}L{right_x:.1} {right_y:.1}z");
            if let Some(label) = labelled(plan, pieces)
                && let Some((x, y)) = self.label_place((x, y), (dx, dy), &label)
            {
                let y = y + 3.0;
                let _ = writeln!(labels, "<text x=\"{x:.0}\" y=\"{y:.0}\">{label}</text>");
            }
        }
        if !shafts.is_empty() {
            let _ = writeln!(
                self.text,
                "<g class=\"{class}\"><path class=\"a\" d=\"{shafts}\"/><path class=\"h\" d=\"{heads}\"/>\n{labels}</g>"
            );
        }
    }
}

impl Svg {
    /// Reserves a place on an arrow where a label overlaps no other. An arrow without such a place stays unlabelled.
    fn label_place(&mut self, (x, y): (f64, f64), (dx, dy): (f64, f64), label: &str) -> Option<(f64, f64)> {
        let width = 5.5 * label.len() as f64 + 3.0;
        let places = [0.62, 0.38, 0.5, 0.74, 0.28, 0.84].map(|along| (x + along * dx, y + along * dy));
        let is_free = |&(x, y): &(f64, f64)| {
            let covers = |&(at_x, at_y, wide): &(f64, f64, f64)| {
                (x - at_x).abs() < (width + wide) / 2.0 && (y - at_y).abs() < 10.0
            };
            !self.labels.iter().any(covers)
        };
        let (x, y) = places.into_iter().find(is_free)?;
        self.labels.push((x, y, width));
        Some((x, y))
    }
}

/// Ranks island by island, each island's switch after them, the network last.
fn in_order(lines: &BTreeSet<Line>) -> Vec<Line> {
    let mut sorted: Vec<Line> = lines.iter().copied().collect();
    sorted.sort_by_key(|line| (line.island().unwrap_or(u32::MAX), *line));
    sorted
}

/// The label of an arrow: its chunks, consecutive ones as a range.
fn labelled(plan: WellFormed<'_>, pieces: &BTreeSet<Piece>) -> Option<String> {
    let chunks = plan.chunks.input.max(1);
    let name = |piece: &Piece| label(&plan.collective, plan.ranks, chunks, *piece);
    let numbers: Option<Vec<u32>> = pieces.iter().map(|piece| name(piece)?.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
        let first = name(pieces.first()?)?;
        let more = pieces.len() - 1;
        return Some(if more == 0 { first } else { format!("{first} +{more}") });
    };
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    let more = if ranges.len() > 4 { ",..." } else { "" };
    Some(ranges.iter().take(4).map(range).collect::<Vec<_>>().join(",") + more)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
