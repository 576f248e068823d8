//! The verifier's domain: every chunk is an [expression](super::expressions) over the ranks' inputs, every stamp a vector
//! [clock](super::clocks). Checks each result against what the collective promises.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::clocks::Clocks;
use super::expressions::{Expressions, Leaf, Value};
use crate::classes::{Classes, Turn};
use crate::collective::Promise;
use crate::interpret::{Access, Domain, Shape};
use crate::order::{Order, Span};
use crate::plan::{Agreement, Buffer, Collective};
use crate::refusal::{Cell, Fault, Spot};
use crate::well_formed::WellFormed;

/// The verifier's domain. It keeps the first fault it finds.
pub(super) struct Contributions<'p> {
    plan: WellFormed<'p>,
    shape: Shape,
    /// Chunks of a block.
    per_block: u32,
    classes: Rc<Classes>,
    expressions: Expressions,
    clocks: Clocks<'p>,
    /// The clock of each representative when it entered each call, for barriers.
    entries: Vec<Vec<u32>>,
    /// The expression of the first rank that returned, by call, tile and promise.
    agreed: FxHashMap<(u32, u32, Promised), (u32, Value)>,
    /// Promises of a call and tile that a term is known to keep. All ranks with the same value have the same promise.
    kept: FxHashSet<(u32, u32, u32, Promised)>,
    /// How far every reduction so far combined the ranks in their order.
    pub(super) order: Order,
    pub(super) fault: Option<(Option<Spot>, Fault)>,
}

/// The promised content of a chunk of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Promised {
    /// One rank's chunk.
    Copy { rank: u32, chunk: u32 },
    /// The reduction of this chunk of ranks 0 to `below`, exclusive.
    Reduction { below: u32, chunk: u32 },
}

impl<'p> Contributions<'p> {
    pub(super) fn new(plan: WellFormed<'p>, shape: Shape, classes: Classes) -> Self {
        let classes = Rc::new(classes);
        Self {
            plan,
            shape,
            per_block: plan.chunks_per_block(),
            expressions: Expressions::new(Rc::clone(&classes)),
            clocks: Clocks::new(plan, shape, Rc::clone(&classes)),
            entries: vec![Vec::new(); classes.representatives().len()],
            classes,
            agreed: FxHashMap::default(),
            kept: FxHashSet::default(),
            order: Order::Canonical,
            fault: None,
        }
    }

    /// The promised content of a chunk of output.
    fn promised(&self, rank: u32, chunk: u32) -> Option<Promised> {
        let per_block = self.per_block;
        let (block, index) = (chunk / per_block, chunk % per_block);
        Some(match self.plan.collective.promise(rank, self.plan.ranks, block)? {
            Promise::Copy { rank, block } => Promised::Copy { rank, chunk: block * per_block + index },
            Promise::Reduction { block, below } => {
                Promised::Reduction { below, chunk: block * per_block + index }
            }
        })
    }

    /// Whether an expression keeps a promise: one rank's chunk, or each rank's exactly once.
    fn keeps(&mut self, promised: Promised, value: Value, call: u32, tile: u32) -> bool {
        // A turned value keeps a promise if the value keeps it turned back.
        let back = self.classes.inverse(value.turn);
        let value = self.expressions.turned(value, back);
        let promised = match promised {
            Promised::Copy { rank, chunk } => Promised::Copy {
                rank: self.classes.rank(rank, back),
                chunk: self.classes.chunk(Buffer::Input, chunk, back),
            },
            Promised::Reduction { below, chunk } => {
                Promised::Reduction { below, chunk: self.classes.chunk(Buffer::Input, chunk, back) }
            }
        };
        let key = (call, tile, value.number, promised);
        let keeps = self.kept.contains(&key) || self.holds(promised, value, call, tile);
        if keeps {
            self.kept.insert(key);
        }
        keeps
    }

    fn holds(&mut self, promised: Promised, value: Value, call: u32, tile: u32) -> bool {
        let (below, promised) = match promised {
            Promised::Copy { rank, chunk } => {
                return self.expressions.leaf(Leaf { call, rank, tile, chunk }) == value;
            }
            Promised::Reduction { below, chunk } => (below, chunk),
        };
        if self.expressions.leaf_count(value) != u64::from(below) {
            return false;
        }
        let mut seen = vec![false; below as usize];
        let mut fits = |leaf: Leaf| {
            let first_time =
                seen.get_mut(leaf.rank as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            first_time && (leaf.call, leaf.tile, leaf.chunk) == (call, tile, promised)
        };
        self.expressions.leaves_of(value, below as usize).into_iter().all(&mut fits)
    }

    /// Whether a rank's result has the same bits as that of every rank turned from it, and of every rank checked before. The
    /// error is a rank whose result differs.
    fn agrees(
        &mut self,
        call: u32,
        cell: Cell,
        promised: Promised,
        value: Value,
    ) -> Result<(), (u32, Value)> {
        let Promised::Reduction { below, chunk } = promised else { return Ok(()) };
        for fixing in self.classes.generators_fixing(Buffer::Input) {
            let turned = self.expressions.turned(value, fixing);
            if !self.expressions.same_bits(turned, value) {
                return Err((self.classes.rank(cell.rank, fixing), turned));
            }
        }
        // Of all chunks that are turned into one another, compare the first.
        let (first, turn) = self.classes.first_chunk(Buffer::Input, chunk);
        let value = self.expressions.turned(value, turn);
        let key = (call, cell.tile, Promised::Reduction { below, chunk: first });
        let (other, theirs) = *self.agreed.entry(key).or_insert((cell.rank, value));
        if self.expressions.same_bits(theirs, value) { Ok(()) } else { Err((other, theirs)) }
    }

    /// Whether a chunk may be stored in a cell, so that it has the length of what belongs there.
    fn fits(&self, cell: Cell, value: Value) -> bool {
        let chunk = self.expressions.chunk(value);
        let same_index = chunk % self.per_block == cell.chunk % self.per_block;
        // Chunks of the same index have the same length in all blocks.
        if !self.plan.uneven {
            return same_index;
        }
        // Every block has its own length, so only what belongs there fits.
        if cell.buffer == Buffer::Input {
            return chunk == cell.chunk;
        }
        match self.promised(cell.rank, cell.chunk) {
            Some(Promised::Copy { rank, chunk: wanted }) => {
                let owner = self.expressions.leaves_of(value, 1).first().map(|leaf| leaf.rank);
                wanted == chunk && owner == Some(rank)
            }
            Some(Promised::Reduction { chunk: wanted, .. }) => wanted == chunk,
            None => same_index,
        }
    }

    fn blame(&mut self, spot: Option<Spot>, fault: Fault) {
        self.fault.get_or_insert((spot, fault));
    }
}

impl Domain for Contributions<'_> {
    type Value = Value;
    type Stamp = Rc<[u32]>;

    fn initial(&mut self, call: u32, cell: Cell) -> Value {
        self.expressions.leaf(Leaf { call, rank: cell.rank, tile: cell.tile, chunk: cell.chunk })
    }

    fn reduce(&mut self, spot: &Spot, inputs: &[Value]) -> Value {
        let chunk = |value: Value| self.expressions.chunk(value);
        if inputs.windows(2).any(|pair| chunk(pair[0]) != chunk(pair[1])) {
            let parts: Vec<_> = inputs.iter().map(|&value| self.expressions.describe(value)).collect();
            let (aliasing, found) = (self.shape.aliasing, parts.join(" with "));
            self.blame(Some(spot.clone()), Fault::Mixed { aliasing, found });
        }
        // From left to right, as executors do.
        let sum = inputs[1..].iter().fold(inputs[0], |sum, &other| self.expressions.pair(sum, other));
        Value { span: Span::of_step(inputs.iter().map(|input| input.span)), ..sum }
    }

    fn reduce_unordered(&mut self, spot: &Spot, inputs: &[Value]) -> Value {
        let sum = self.reduce(spot, inputs);
        self.expressions.unordered(sum)
    }

    fn returned(&mut self, call: u32, cell: Cell, value: Option<&Value>) {
        let aliasing = self.shape.aliasing;
        let wrong = |found: String, expected: String| Fault::Wrong { aliasing, cell, found, expected };
        if let (Buffer::Input, Some(&value)) = (cell.buffer, value) {
            if self.initial(call, cell) != value {
                let found = self.expressions.describe(value);
                self.blame(None, wrong(found, "left as the caller passed it".to_owned()));
            }
            return;
        }
        let Some(promised) = self.promised(cell.rank, cell.chunk) else { return };
        let fault = match value {
            None => Some(wrong("unwritten memory".to_owned(), describe(promised))),
            Some(&value) if !self.keeps(promised, value, call, cell.tile) => {
                Some(wrong(self.expressions.describe(value), describe(promised)))
            }
            Some(&value) => {
                if let Promised::Reduction { below, .. } = promised {
                    let is_scan =
                        matches!(self.plan.collective, Collective::Scan | Collective::ExclusiveScan);
                    self.order = self.order.min(Span::order(value.span, below, is_scan));
                }
                let must_agree = self.plan.agreement == Agreement::SameBits;
                let agrees = self.agrees(call, cell, promised, value);
                agrees.err().filter(|_| must_agree).map(|(other, theirs)| Fault::Order {
                    cell,
                    found: self.expressions.describe(value),
                    other,
                    theirs: self.expressions.describe(theirs),
                })
            }
        };
        if let Some(fault) = fault {
            self.blame(None, fault);
        }
    }

    fn entered(&mut self, rank: u32, lane: usize) {
        self.entries[self.classes.position(rank)].push(self.clocks.now(lane));
    }

    fn left(&mut self, call: u32, rank: u32, lane: usize) {
        if self.plan.collective != Collective::Barrier {
            return;
        }
        let knows = |other: &u32| {
            // A rank that has not entered yet has no entry to know of.
            let entry = self.entries[self.classes.position(*other)].get(call as usize);
            entry.is_some_and(|&clock| self.clocks.known_of_rank(lane, *other) >= clock)
        };
        if let Some(other) = (0..self.plan.ranks).find(|other| !knows(other)) {
            self.blame(None, Fault::Unmet { rank, other });
        }
    }

    fn turned(&mut self, value: &Value, turn: Turn) -> Value {
        self.expressions.turned(*value, turn)
    }

    fn turned_stamp(&mut self, stamp: &Rc<[u32]>, turn: Turn) -> Rc<[u32]> {
        self.clocks.turned_stamp(stamp, turn)
    }

    fn stamp(&mut self, lane: usize) -> Rc<[u32]> {
        self.clocks.stamp(lane)
    }

    fn join(&mut self, lane: usize, stamp: &Rc<[u32]>) {
        self.clocks.join(lane, stamp);
    }

    fn access(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access) {
        if let Some((spot, race)) = self.clocks.access(lane, spot, cell, access) {
            self.blame(spot, race);
        }
    }

    fn stored(&mut self, spot: &Spot, cell: Cell, value: &Value) {
        if cell.buffer != Buffer::Scratch && !self.fits(cell, *value) {
            let (aliasing, found) = (self.shape.aliasing, self.expressions.describe(*value));
            self.blame(Some(spot.clone()), Fault::Misplaced { aliasing, cell, found });
        }
    }
}

/// A promise as text.
fn describe(promised: Promised) -> String {
    match promised {
        Promised::Copy { rank, chunk } => format!("r{rank}[{chunk}]"),
        Promised::Reduction { below: 1, chunk } => format!("r0[{chunk}]"),
        Promised::Reduction { below, chunk } => format!("r0[{chunk}] to r{}[{chunk}], each once", below - 1),
    }
}
