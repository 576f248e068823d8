//! Contributions and clocks: what the verifier computes with.
//!
//! A value is the expression that made it: a rank's input chunk, or a combination of expressions. Equal expressions
//! have equal numbers, so comparing two ranks' results is comparing two integers. A stamp is a vector clock; two
//! accesses of the same memory race unless one's clock has seen the other. Because plans synchronise only through
//! single-writer FIFOs and counters, the clocks of one run are those of every run.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::collective::Promise;
use crate::interpret::{Access, Domain, Shape, cell_position};
use crate::plan::Buffer;
use crate::refusal::{Cell, Fault, Spot, Toucher};
use crate::well_formed::WellFormed;

/// The verifier's domain. It keeps the first fault it sees.
pub(crate) struct Contributions<'p> {
    plan: WellFormed<'p>,
    shape: Shape,
    terms: Vec<Term>,
    numbers: FxHashMap<Term, u32>,
    /// How many leaves each term has, counted with repetition.
    leaves: Vec<u64>,
    /// Which chunk of the inputs each term is about.
    chunks: Vec<u32>,
    clocks: Vec<Vec<u32>>,
    shadows: Vec<Shadow>,
    /// The expression of the first rank that returned, by call, tile and what was promised.
    agreed: FxHashMap<(u32, u32, Promised), (u32, u32)>,
    pub(crate) fault: Option<(Option<Spot>, Fault)>,
}

/// Whose chunk of input, if it is one rank's and not a reduction over all; and which.
type Promised = (Option<u32>, u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Term {
    Fresh {
        call: u32,
        rank: u32,
        tile: u32,
        chunk: u32,
    },
    /// Two terms combined, the smaller number first: `a + b` and `b + a` are the same bits.
    Pair(u32, u32),
}

/// Who touched a cell last.
#[derive(Clone, Default)]
struct Shadow {
    write: Option<Touch>,
    /// Reads since that write.
    reads: Vec<Touch>,
}

#[derive(Clone)]
struct Touch {
    lane: usize,
    clock: u32,
    by: Toucher,
}

impl<'p> Contributions<'p> {
    pub(crate) fn new(plan: WellFormed<'p>, shape: Shape) -> Self {
        let lanes = plan.programs.iter().map(|program| program.lanes.len()).sum();
        // Clocks start at 1, so that a lane that was never met is seen to be unknown.
        let clocks =
            (0..lanes).map(|lane| (0..lanes).map(|other| u32::from(lane == other)).collect()).collect();
        Self {
            plan,
            shape,
            terms: Vec::new(),
            numbers: FxHashMap::default(),
            leaves: Vec::new(),
            chunks: Vec::new(),
            clocks,
            shadows: Vec::new(),
            agreed: FxHashMap::default(),
            fault: None,
        }
    }

    fn number(&mut self, term: Term) -> u32 {
        if let Some(&number) = self.numbers.get(&term) {
            return number;
        }
        let (leaves, chunk) = match &term {
            Term::Fresh { chunk, .. } => (1, *chunk),
            Term::Pair(a, b) => {
                let leaves = self.leaves[*a as usize].saturating_add(self.leaves[*b as usize]);
                (leaves, self.chunks[*a as usize])
            }
        };
        let number = self.terms.len() as u32;
        self.terms.push(term.clone());
        self.leaves.push(leaves);
        self.chunks.push(chunk);
        self.numbers.insert(term, number);
        number
    }

    /// The leaves of an expression from left to right, at most `limit` of them.
    fn leaves_of(&self, number: u32, limit: usize) -> Vec<&Term> {
        let mut found = Vec::new();
        let mut stack = vec![number];
        while let Some(number) = stack.pop()
            && found.len() < limit
        {
            match &self.terms[number as usize] {
                Term::Pair(a, b) => stack.extend([b, a]),
                leaf => found.push(leaf),
            }
        }
        found
    }

    /// What a chunk of output must hold: whose chunk, or, of all ranks, which.
    fn promised(&self, cell: Cell) -> Promised {
        let per_block = self.plan.chunks_per_block();
        let (block, index) = (cell.chunk / per_block, cell.chunk % per_block);
        match self.plan.collective.promise(cell.rank, block) {
            Promise::Copy { rank, block } => (Some(rank), block * per_block + index),
            Promise::Reduction { block } => (None, block * per_block + index),
        }
    }

    /// Whether an expression is what a chunk of output must hold: one rank's chunk, or each rank's exactly once.
    fn keeps_promise(&self, number: u32, call: u32, cell: Cell) -> bool {
        let (from, promised) = self.promised(cell);
        if let Some(rank) = from {
            let copy = Term::Fresh { call, rank, tile: cell.tile, chunk: promised };
            return self.terms[number as usize] == copy;
        }
        let ranks = self.plan.ranks as usize;
        if self.leaves[number as usize] != ranks as u64 {
            return false;
        }
        let mut seen = vec![false; ranks];
        let mut fits = |leaf: &Term| match *leaf {
            Term::Fresh { call: its_call, rank, tile, chunk } => {
                (its_call, tile, chunk) == (call, cell.tile, promised)
                    && !std::mem::replace(&mut seen[rank as usize], true)
            }
            Term::Pair(..) => false,
        };
        self.leaves_of(number, ranks).into_iter().all(&mut fits)
    }

    /// An expression for people: which ranks' chunks it holds.
    fn describe(&self, number: u32) -> String {
        const SHOWN: usize = 12;
        let write = |leaf: &&Term| match **leaf {
            Term::Fresh { rank, chunk, .. } => format!("r{rank}[{chunk}]"),
            Term::Pair(..) => String::new(),
        };
        let count = self.leaves[number as usize];
        let parts: Vec<_> = self.leaves_of(number, SHOWN).iter().map(write).collect();
        let more =
            if count > SHOWN as u64 { format!(" + {} more", count - SHOWN as u64) } else { String::new() };
        format!("{}{more}", parts.join(" + "))
    }

    fn blame(&mut self, spot: Option<Spot>, fault: Fault) {
        self.fault.get_or_insert((spot, fault));
    }

    fn seen(&self, lane: usize, touch: &Touch) -> bool {
        self.clocks[lane][touch.lane] >= touch.clock
    }
}

impl Domain for Contributions<'_> {
    type Value = u32;
    type Stamp = Rc<[u32]>;

    fn fresh(&mut self, call: u32, cell: Cell) -> u32 {
        self.number(Term::Fresh { call, rank: cell.rank, tile: cell.tile, chunk: cell.chunk })
    }

    fn reduce(&mut self, spot: &Spot, inputs: &[u32]) -> u32 {
        let chunk = |number: u32| self.chunks[number as usize];
        if inputs.windows(2).any(|pair| chunk(pair[0]) != chunk(pair[1])) {
            let parts: Vec<_> = inputs.iter().map(|&number| self.describe(number)).collect();
            let (aliasing, found) = (self.shape.aliasing, parts.join(" with "));
            self.blame(Some(spot.clone()), Fault::Mixed { aliasing, found });
        }
        // From left to right, as executors do: three at once are the first two, then the third.
        let add = |sum: u32, &other: &u32| self.number(Term::Pair(sum.min(other), sum.max(other)));
        inputs[1..].iter().fold(inputs[0], add)
    }

    fn returned(&mut self, call: u32, cell: Cell, value: Option<&u32>) {
        let aliasing = self.shape.aliasing;
        let wrong = |found: String, expected: String| Fault::Wrong { aliasing, cell, found, expected };
        let fault = match (cell.buffer, value) {
            (Buffer::Input, Some(&number)) => {
                let kept = Term::Fresh { call, rank: cell.rank, tile: cell.tile, chunk: cell.chunk };
                (self.terms[number as usize] != kept)
                    .then(|| wrong(self.describe(number), "left as the caller passed it".to_owned()))
            }
            (_, None) => Some(wrong("whatever was there".to_owned(), self.promise(cell))),
            (_, Some(&number)) if !self.keeps_promise(number, call, cell) => {
                Some(wrong(self.describe(number), self.promise(cell)))
            }
            (_, Some(&number)) => {
                let key = (call, cell.tile, self.promised(cell));
                let (other, theirs) = *self.agreed.entry(key).or_insert((cell.rank, number));
                (theirs != number).then(|| Fault::Order {
                    cell,
                    found: self.describe(number),
                    other,
                    theirs: self.describe(theirs),
                })
            }
        };
        if let Some(fault) = fault {
            self.blame(None, fault);
        }
    }

    fn stamp(&mut self, lane: usize) -> Rc<[u32]> {
        let stamp = self.clocks[lane].as_slice().into();
        self.clocks[lane][lane] += 1;
        stamp
    }

    fn meet(&mut self, lane: usize, stamp: &Rc<[u32]>) {
        for (mine, theirs) in self.clocks[lane].iter_mut().zip(stamp.iter()) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn stored(&mut self, spot: &Spot, cell: Cell, value: &u32) {
        // Chunks of the same index have the same length, whatever block they belong to.
        let index = |chunk: u32| chunk % self.plan.chunks_per_block();
        if cell.buffer != Buffer::Scratch && index(self.chunks[*value as usize]) != index(cell.chunk) {
            let (aliasing, found) = (self.shape.aliasing, self.describe(*value));
            self.blame(Some(spot.clone()), Fault::Misplaced { aliasing, cell, found });
        }
    }

    fn touch(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access) {
        let position = cell_position(self.plan, self.shape, cell);
        if self.shadows.len() <= position {
            self.shadows.resize(position + 1, Shadow::default());
        }
        let shadow = &self.shadows[position];
        let write = shadow.write.iter().find(|touch| !self.seen(lane, touch)).map(|touch| (touch, "writing"));
        let read =
            || shadow.reads.iter().find(|touch| !self.seen(lane, touch)).map(|touch| (touch, "reading"));
        let other = if access == Access::Write { write.or_else(read) } else { write };
        if let Some((touch, theirs)) = other {
            let mine = if access == Access::Write { "written" } else { "read" };
            // Blame the step, and show the caller as the other side, whichever came second in this run.
            let user = Toucher::User(cell.rank);
            let (spot, mine, theirs, other) = match (spot, &touch.by) {
                (None, Toucher::Step(step)) => {
                    let mine = if theirs == "writing" { "written" } else { "read" };
                    let theirs = if access == Access::Write { "writing" } else { "reading" };
                    (Some(step.clone()), mine, theirs, user)
                }
                (spot, by) => (spot.cloned(), mine, theirs, by.clone()),
            };
            let fault = Fault::Race { aliasing: self.shape.aliasing, cell, mine, theirs, other };
            self.blame(spot, fault);
        }
        let by = spot.map_or(Toucher::User(cell.rank), |spot| Toucher::Step(spot.clone()));
        let touch = Touch { lane, clock: self.clocks[lane][lane], by };
        let shadow = &mut self.shadows[position];
        match access {
            Access::Write => *shadow = Shadow { write: Some(touch), reads: Vec::new() },
            Access::Read => {
                // A lane's later read stands for its earlier ones.
                shadow.reads.retain(|read| read.lane != lane);
                shadow.reads.push(touch);
            }
        }
    }
}

impl Contributions<'_> {
    fn promise(&self, cell: Cell) -> String {
        let last = self.plan.ranks - 1;
        match self.promised(cell) {
            (Some(rank), chunk) => format!("r{rank}[{chunk}]"),
            (None, chunk) if last == 0 => format!("r0[{chunk}]"),
            (None, chunk) => format!("r0[{chunk}] to r{last}[{chunk}], each once"),
        }
    }
}
