//! The elements of a drawing: panels, wires, blocks, tags and labels with coordinates. They can be moved, flipped and
//! combined, and are independent of fabrics.

use super::palette::Tone;
use crate::id::DeviceId;

/// `(x, y)`; y grows downwards.
pub(super) type Point = (f64, f64);

/// An upright rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Rect {
    pub(super) fn new(x: f64, y: f64, (w, h): (f64, f64)) -> Self {
        Self { x, y, w, h }
    }

    pub(super) fn right(self) -> f64 {
        self.x + self.w
    }

    pub(super) fn bottom(self) -> f64 {
        self.y + self.h
    }

    pub(super) fn cx(self) -> f64 {
        self.x + self.w / 2.0
    }

    pub(super) fn cy(self) -> f64 {
        self.y + self.h / 2.0
    }

    /// The `index`th of `count` wire ends on its upper edge.
    pub(super) fn port_above(self, index: usize, count: usize) -> Point {
        (self.x + self.share(index, count), self.y)
    }

    /// The `index`th of `count` wire ends on its lower edge.
    pub(super) fn port_below(self, index: usize, count: usize) -> Point {
        (self.x + self.share(index, count), self.bottom())
    }

    fn share(self, index: usize, count: usize) -> f64 {
        self.w * (index + 1) as f64 / (count + 1) as f64
    }
}

/// The kind of device a block represents, which decides its colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    Gpu,
    NvSwitch,
    PcieSwitch,
    Cpu,
    Nic,
    Drive,
    NetSwitch,
    Other,
}

/// A box for one device, or for several equal ones.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) rect: Rect,
    pub(super) look: Look,
    pub(super) title: String,
    pub(super) detail: String,
    /// Font size of its title; zero for a block without text.
    pub(super) font: f64,
    pub(super) members: Vec<DeviceId>,
}

/// A segment of a wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Line(Point),
    Curve(Point, Point, Point),
}

/// A line for one or more parallel links.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    pub(super) from: Point,
    pub(super) steps: Vec<Step>,
    pub(super) tone: Tone,
    pub(super) width: f64,
    /// Number of parallel strokes.
    pub(super) strands: u32,
}

impl Wire {
    pub(super) fn new(from: Point, steps: Vec<Step>, tone: Tone, width: f64) -> Self {
        Self { from, steps, tone, width, strands: 1 }
    }

    pub(super) fn straight(from: Point, to: Point, tone: Tone, width: f64) -> Self {
        Self::new(from, vec![Step::Line(to)], tone, width)
    }

    /// An S-curve that is vertical at both ends.
    pub(super) fn s_curve(from: Point, to: Point, tone: Tone, width: f64) -> Self {
        Self::new(from, vec![s_curve(from, to)], tone, width)
    }

    /// An arch whose top is about three quarters of `height` above its ends, or below them if negative.
    pub(super) fn arch(from: Point, to: Point, height: f64, tone: Tone, width: f64) -> Self {
        let curve = Step::Curve((from.0, from.1 - height), (to.0, to.1 - height), to);
        Self::new(from, vec![curve], tone, width)
    }
}

/// The curve of [`Wire::s_curve`], for a wire that has other steps before it.
pub(super) fn s_curve(from: Point, to: Point) -> Step {
    let middle = (from.1 + to.1) / 2.0;
    Step::Curve((from.0, middle), (to.0, middle), to)
}

/// A short text on a wire, such as `x18`.
#[derive(Debug, Clone)]
pub(super) struct Tag {
    pub(super) at: Point,
    pub(super) text: String,
    pub(super) tone: Tone,
    pub(super) font: f64,
}

/// A rounded frame around other elements.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) rect: Rect,
    /// The tint of a technology, or neutral.
    pub(super) tone: Option<Tone>,
    pub(super) title: String,
    pub(super) detail: String,
    /// The title is at the lower edge, because wires arrive from above.
    pub(super) foot: bool,
    pub(super) font: f64,
}

/// The horizontal position of a label's point in its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Start,
    Middle,
}

/// A text outside any block.
#[derive(Debug, Clone)]
pub(super) struct Label {
    /// On the baseline.
    pub(super) at: Point,
    pub(super) text: String,
    pub(super) font: f64,
    pub(super) bold: bool,
    pub(super) soft: bool,
    pub(super) align: Align,
}

/// A drawing with its size; the origin is the upper left corner.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture {
    pub(super) w: f64,
    pub(super) h: f64,
    pub(super) panels: Vec<Panel>,
    pub(super) wires: Vec<Wire>,
    pub(super) blocks: Vec<Block>,
    pub(super) tags: Vec<Tag>,
    pub(super) labels: Vec<Label>,
}

impl Picture {
    /// Moves the drawing.
    pub(super) fn shifted(mut self, dx: f64, dy: f64) -> Self {
        self.each_point(|(x, y)| (x + dx, y + dy));
        for rect in self.rects() {
            (rect.x, rect.y) = (rect.x + dx, rect.y + dy);
        }
        self
    }

    /// Turns the drawing upside down; text stays upright.
    pub(super) fn flipped(mut self) -> Self {
        let h = self.h;
        self.each_point(|(x, y)| (x, h - y));
        for rect in self.rects() {
            rect.y = h - rect.bottom();
        }
        self
    }

    /// Adds the elements of another drawing at their coordinates.
    pub(super) fn extend(&mut self, other: Self) {
        self.panels.extend(other.panels);
        self.wires.extend(other.wires);
        self.blocks.extend(other.blocks);
        self.tags.extend(other.tags);
        self.labels.extend(other.labels);
    }

    fn rects(&mut self) -> impl Iterator<Item = &mut Rect> {
        let panels = self.panels.iter_mut().map(|panel| &mut panel.rect);
        panels.chain(self.blocks.iter_mut().map(|block| &mut block.rect))
    }

    fn each_point(&mut self, change: impl Fn(Point) -> Point) {
        for wire in &mut self.wires {
            wire.from = change(wire.from);
            for step in &mut wire.steps {
                *step = match *step {
                    Step::Line(to) => Step::Line(change(to)),
                    Step::Curve(a, b, to) => Step::Curve(change(a), change(b), change(to)),
                };
            }
        }
        for at in self.tags.iter_mut().map(|tag| &mut tag.at) {
            *at = change(*at);
        }
        for at in self.labels.iter_mut().map(|label| &mut label.at) {
            *at = change(*at);
        }
    }
}
