//! What a drawing is made of before it becomes text: panels, wires, blocks, tags and labels with coordinates, that
//! can be moved, mirrored and put together. Nothing here knows about fabrics.

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

    /// The `index`th of `count` places for a wire on its upper edge.
    pub(super) fn port_above(self, index: usize, count: usize) -> Point {
        (self.x + self.share(index, count), self.y)
    }

    /// The `index`th of `count` places for a wire on its lower edge.
    pub(super) fn port_below(self, index: usize, count: usize) -> Point {
        (self.x + self.share(index, count), self.bottom())
    }

    fn share(self, index: usize, count: usize) -> f64 {
        self.w * (index + 1) as f64 / (count + 1) as f64
    }
}

/// What a block stands for, which decides how it is filled.
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

/// A box that stands for one device, or for several alike.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) rect: Rect,
    pub(super) look: Look,
    pub(super) title: String,
    pub(super) detail: String,
    /// Size of its title; zero for a block too small for words.
    pub(super) font: f64,
    pub(super) members: Vec<DeviceId>,
}

/// One step of a wire's way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Line(Point),
    Curve(Point, Point, Point),
}

/// A line that stands for some parallel links.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    pub(super) from: Point,
    pub(super) steps: Vec<Step>,
    pub(super) tone: Tone,
    pub(super) width: f64,
    /// How many strokes run side by side.
    pub(super) strands: u32,
}

impl Wire {
    pub(super) fn new(from: Point, steps: Vec<Step>, tone: Tone, width: f64) -> Self {
        Self { from, steps, tone, width, strands: 1 }
    }

    pub(super) fn straight(from: Point, to: Point, tone: Tone, width: f64) -> Self {
        Self::new(from, vec![Step::Line(to)], tone, width)
    }

    /// Leaves and arrives upright: the way down a tree.
    pub(super) fn sway(from: Point, to: Point, tone: Tone, width: f64) -> Self {
        Self::new(from, vec![sway(from, to)], tone, width)
    }

    /// A bow whose top lies about three quarters of `height` above its ends; below them where negative.
    pub(super) fn arch(from: Point, to: Point, height: f64, tone: Tone, width: f64) -> Self {
        let curve = Step::Curve((from.0, from.1 - height), (to.0, to.1 - height), to);
        Self::new(from, vec![curve], tone, width)
    }
}

/// The curve of [`Wire::sway`], for a wire that has other steps before it.
pub(super) fn sway(from: Point, to: Point) -> Step {
    let middle = (from.1 + to.1) / 2.0;
    Step::Curve((from.0, middle), (to.0, middle), to)
}

/// A short word on a wire, such as `x18`.
#[derive(Debug, Clone)]
pub(super) struct Tag {
    pub(super) at: Point,
    pub(super) text: String,
    pub(super) tone: Tone,
    pub(super) font: f64,
}

/// A rounded frame around other things.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) rect: Rect,
    /// Tinted like a technology, or neutral.
    pub(super) tone: Option<Tone>,
    pub(super) title: String,
    pub(super) detail: String,
    /// The title stands at the lower edge, where wires arrive from above.
    pub(super) foot: bool,
    pub(super) font: f64,
}

/// Where a label's point lies in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Start,
    Middle,
}

/// Words of their own.
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

/// A drawing of a size, from `(0, 0)` to the right and down.
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
    /// Moves everything.
    pub(super) fn shifted(mut self, dx: f64, dy: f64) -> Self {
        self.each_point(|(x, y)| (x + dx, y + dy));
        for rect in self.rects() {
            (rect.x, rect.y) = (rect.x + dx, rect.y + dy);
        }
        self
    }

    /// Turns it upside down; words stay upright.
    pub(super) fn flipped(mut self) -> Self {
        let h = self.h;
        self.each_point(|(x, y)| (x, h - y));
        for rect in self.rects() {
            rect.y = h - rect.bottom();
        }
        self
    }

    /// Takes another drawing's contents in, where they are.
    pub(super) fn absorb(&mut self, other: Self) {
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
