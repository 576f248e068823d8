//! Contributions and clocks: what the verifier computes with.
//!
//! A value is the expression that made it: a rank's input chunk, or a combination of expressions. Equal expressions
//! have equal numbers, so comparing two ranks' results is comparing two integers. A stamp is a vector clock; two
//! accesses of the same memory race unless one's clock has seen the other. Because plans synchronise only through
//! single-writer FIFOs and counters, the clocks of one run are those of every run.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::classes::{Classes, Turn};
use crate::collective::Promise;
use crate::interpret::{Access, Domain, Shape, cell_position};
use crate::order::{Order, Span};
use crate::plan::{Agreement, Buffer, Collective};
use crate::refusal::{Cell, Fault, Spot, Toucher};
use crate::well_formed::WellFormed;

/// The verifier's domain. It keeps the first fault it sees.
pub(super) struct Contributions<'p> {
    plan: WellFormed<'p>,
    shape: Shape,
    /// Chunks of a block.
    per_block: u32,
    classes: Classes,
    terms: Vec<Term>,
    numbers: FxHashMap<Term, u32>,
    /// How many leaves each term has, counted with repetition.
    leaves: Vec<u64>,
    /// Which chunk of the inputs each term is about.
    chunks: Vec<u32>,
    /// What each lane of a representative knows of every lane of every rank.
    clocks: Vec<Vec<u32>>,
    /// The first of each rank's lanes among those of all ranks, and one past the last.
    firsts: Vec<u32>,
    /// For each lane of a representative, its place among the lanes of all ranks.
    places: Vec<u32>,
    shadows: Vec<Shadow>,
    /// What each rank knew of itself when it entered its calls, for barriers.
    entries: Vec<Vec<u32>>,
    /// The expression of the first rank that returned, by call, tile and what was promised.
    agreed: FxHashMap<(u32, u32, Promised), (u32, Value)>,
    /// What has been seen to keep which promise of which call and tile: all ranks that hold the same value are promised
    /// the same.
    kept: FxHashSet<(u32, u32, u32, Promised)>,
    /// For each turn that was met, where each lane's clock comes from.
    turned_clocks: FxHashMap<Turn, Rc<[u32]>>,
    /// How far every reduction so far combined the ranks in their order.
    pub(super) order: Order,
    pub(super) fault: Option<(Option<Spot>, Fault)>,
}

/// What a chunk of output must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Promised {
    /// One rank's chunk.
    Copy { rank: u32, chunk: u32 },
    /// This chunk of so many ranks, from the first.
    Reduction { below: u32, chunk: u32 },
}

/// An expression: a numbered term with all its names turned, and the ranks it combines if it does so in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    number: u32,
    turn: Turn,
    span: Option<Span>,
}

impl PartialEq for Value {
    /// The same bits, whatever the order was called.
    fn eq(&self, other: &Self) -> bool {
        (self.number, self.turn) == (other.number, other.turn)
    }
}

/// Terms that are turned into one another have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Term {
    /// A chunk of the input of a representative.
    Fresh { call: u32, rank: u32, tile: u32, chunk: u32 },
    /// Two terms combined, the second turned: `a + b` and `b + a` are the same bits, so the smaller number is first.
    Pair(u32, u32, Turn),
    /// A term that a switch combined in an order of its own; each time may be another.
    Unordered(u32, u32),
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
    /// The lane, among those of all ranks.
    place: u32,
    clock: u32,
    by: Toucher,
}

impl<'p> Contributions<'p> {
    pub(super) fn new(plan: WellFormed<'p>, shape: Shape, classes: Classes) -> Self {
        let mut firsts = vec![0];
        for program in &plan.programs {
            firsts.push(firsts[firsts.len() - 1] + program.lanes.len() as u32);
        }
        let places: Vec<u32> = classes
            .representatives()
            .iter()
            .flat_map(|&rank| firsts[rank as usize]..firsts[rank as usize + 1])
            .collect();
        // Clocks start at 1, so that a lane that was never met is seen to be unknown.
        let lanes = firsts[plan.ranks as usize];
        let clock = |place: &u32| (0..lanes).map(|other| u32::from(*place == other)).collect();
        let clocks = places.iter().map(clock).collect();
        Self {
            plan,
            shape,
            per_block: plan.chunks_per_block(),
            entries: vec![Vec::new(); classes.representatives().len()],
            classes,
            terms: Vec::new(),
            numbers: FxHashMap::default(),
            leaves: Vec::new(),
            chunks: Vec::new(),
            clocks,
            firsts,
            places,
            shadows: Vec::new(),
            agreed: FxHashMap::default(),
            kept: FxHashSet::default(),
            turned_clocks: FxHashMap::default(),
            order: Order::Canonical,
            fault: None,
        }
    }

    fn number(&mut self, term: Term) -> u32 {
        if let Some(&number) = self.numbers.get(&term) {
            return number;
        }
        let (leaves, chunk) = match term {
            Term::Fresh { chunk, .. } => (1, chunk),
            Term::Pair(a, b, _) => {
                let leaves = self.leaves[a as usize].saturating_add(self.leaves[b as usize]);
                (leaves, self.chunks[a as usize])
            }
            Term::Unordered(of, _) => (self.leaves[of as usize], self.chunks[of as usize]),
        };
        let number = self.terms.len() as u32;
        self.terms.push(term);
        self.leaves.push(leaves);
        self.chunks.push(chunk);
        self.numbers.insert(term, number);
        number
    }

    /// A chunk of a rank's input.
    fn leaf(&mut self, call: u32, rank: u32, tile: u32, chunk: u32) -> Value {
        let turn = self.classes.turn_of(rank);
        let back = self.classes.back(turn);
        let (first, chunk) = (self.classes.rank(rank, back), self.classes.chunk(Buffer::Input, chunk, back));
        let number = self.number(Term::Fresh { call, rank: first, tile, chunk });
        Value { number, turn, span: Some(Span::of(rank)) }
    }

    /// Two expressions combined, written so that it does not matter which came first.
    fn pair(&mut self, a: Value, b: Value) -> Value {
        let between = |a: Value, b: Value| self.classes.then(b.turn, self.classes.back(a.turn));
        let a_first = (a.number, between(a, b)) <= (b.number, between(b, a));
        let (first, second) = if a_first { (a, b) } else { (b, a) };
        let turn = between(first, second);
        let number = self.number(Term::Pair(first.number, second.number, turn));
        Value { number, turn: first.turn, span: None }
    }

    /// Which chunk of the inputs an expression is about.
    fn chunk(&self, value: Value) -> u32 {
        self.classes.chunk(Buffer::Input, self.chunks[value.number as usize], value.turn)
    }

    /// The leaves of an expression from left to right, at most `limit` of them: call, rank, tile, chunk.
    fn leaves_of(&self, value: Value, limit: usize) -> Vec<(u32, u32, u32, u32)> {
        let mut found = Vec::new();
        let mut stack = vec![(value.number, value.turn)];
        while let Some((number, turn)) = stack.pop()
            && found.len() < limit
        {
            match self.terms[number as usize] {
                Term::Pair(a, b, between) => stack.extend([(b, self.classes.then(between, turn)), (a, turn)]),
                Term::Unordered(of, _) => stack.push((of, turn)),
                Term::Fresh { call, rank, tile, chunk } => {
                    let chunk = self.classes.chunk(Buffer::Input, chunk, turn);
                    found.push((call, self.classes.rank(rank, turn), tile, chunk));
                }
            }
        }
        found
    }

    /// What a chunk of output must hold.
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

    /// Whether an expression is what was promised: one rank's chunk, or each rank's exactly once.
    fn keeps(&mut self, promised: Promised, value: Value, call: u32, tile: u32) -> bool {
        // A turned value keeps a promise if the value keeps it turned back.
        let back = self.classes.back(value.turn);
        let value = self.turned(&value, back);
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
            Promised::Copy { rank, chunk } => return self.leaf(call, rank, tile, chunk) == value,
            Promised::Reduction { below, chunk } => (below, chunk),
        };
        if self.leaves[value.number as usize] != u64::from(below) {
            return false;
        }
        let mut seen = vec![false; below as usize];
        let mut fits = |(its_call, rank, its_tile, chunk): (u32, u32, u32, u32)| {
            let first_time = seen.get_mut(rank as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            first_time && (its_call, its_tile, chunk) == (call, tile, promised)
        };
        self.leaves_of(value, below as usize).into_iter().all(&mut fits)
    }

    /// Whether all ranks that are turned from this one hold the same bits too, and those that were looked at before.
    fn agrees(
        &mut self,
        call: u32,
        cell: Cell,
        promised: Promised,
        value: Value,
    ) -> Result<(), (u32, Value)> {
        let Promised::Reduction { below, chunk } = promised else { return Ok(()) };
        for keeping in self.classes.generators_that_keep(Buffer::Input) {
            let turned = self.turned(&value, keeping);
            if !self.same_bits(turned, value) {
                return Err((self.classes.rank(cell.rank, keeping), turned));
            }
        }
        // Turned so that of all chunks that are turned into one another the same is looked at.
        let (first, turn) = self.classes.first_chunk(Buffer::Input, chunk);
        let value = self.turned(&value, turn);
        let key = (call, cell.tile, Promised::Reduction { below, chunk: first });
        let (other, theirs) = *self.agreed.entry(key).or_insert((cell.rank, value));
        if self.same_bits(theirs, value) { Ok(()) } else { Err((other, theirs)) }
    }

    /// Whether two expressions are the same but for which side of a sum comes first. Pairs are written so that equal ones
    /// have equal numbers, but where a turn swaps the sides of a pair, it is the turned pair too, under the same number.
    fn same_bits(&self, mine: Value, theirs: Value) -> bool {
        let (mut mine, mut theirs) = ((mine.number, mine.turn), (theirs.number, theirs.turn));
        // Goes down the larger sides, so that it calls itself no deeper than the logarithm of the leaves.
        while mine != theirs {
            let (Some((small, large)), Some((other_small, other_large))) =
                (self.sides(mine), self.sides(theirs))
            else {
                return false;
            };
            let leaves = |(number, _): (u32, Turn)| self.leaves[number as usize];
            if (leaves(small), leaves(large)) != (leaves(other_small), leaves(other_large)) {
                return false;
            }
            let same = |a: (u32, Turn), b: (u32, Turn)| {
                let value = |(number, turn)| Value { number, turn, span: None };
                self.same_bits(value(a), value(b))
            };
            (mine, theirs) = if same(small, other_small) {
                (large, other_large)
            } else if leaves(small) == leaves(large) && same(small, other_large) {
                (large, other_small)
            } else {
                return false;
            };
        }
        true
    }

    /// The two sides of a sum of two, that with fewer leaves first.
    fn sides(&self, (number, turn): (u32, Turn)) -> Option<((u32, Turn), (u32, Turn))> {
        let Term::Pair(a, b, between) = self.terms[number as usize] else { return None };
        let (a, b) = ((a, turn), (b, self.classes.then(between, turn)));
        let in_order = self.leaves[a.0 as usize] <= self.leaves[b.0 as usize];
        Some(if in_order { (a, b) } else { (b, a) })
    }

    /// An expression for people: which ranks' chunks it holds.
    fn describe(&self, value: Value) -> String {
        const SHOWN: usize = 12;
        let write = |&(_, rank, _, chunk): &(u32, u32, u32, u32)| format!("r{rank}[{chunk}]");
        let count = self.leaves[value.number as usize];
        let parts: Vec<_> = self.leaves_of(value, SHOWN).iter().map(write).collect();
        let more =
            if count > SHOWN as u64 { format!(" + {} more", count - SHOWN as u64) } else { String::new() };
        format!("{}{more}", parts.join(" + "))
    }

    /// A lane of some rank, given by its place among all, turned.
    fn turned_place(&self, place: u32, turn: Turn) -> u32 {
        if turn == Turn::NONE {
            return place;
        }
        let rank = self.firsts.partition_point(|&first| first <= place) as u32 - 1;
        self.firsts[self.classes.rank(rank, turn) as usize] + (place - self.firsts[rank as usize])
    }

    fn blame(&mut self, spot: Option<Spot>, fault: Fault) {
        self.fault.get_or_insert((spot, fault));
    }

    /// Whether a lane knows of an access, made by a lane turned from the one it is written down for.
    fn seen(&self, lane: usize, touch: &Touch, turn: Turn) -> bool {
        self.clocks[lane][self.turned_place(touch.place, turn) as usize] >= touch.clock
    }
}

impl Domain for Contributions<'_> {
    type Value = Value;
    type Stamp = Rc<[u32]>;

    fn fresh(&mut self, call: u32, cell: Cell) -> Value {
        self.leaf(call, cell.rank, cell.tile, cell.chunk)
    }

    fn reduce(&mut self, spot: &Spot, inputs: &[Value]) -> Value {
        if inputs.windows(2).any(|pair| self.chunk(pair[0]) != self.chunk(pair[1])) {
            let parts: Vec<_> = inputs.iter().map(|&value| self.describe(value)).collect();
            let (aliasing, found) = (self.shape.aliasing, parts.join(" with "));
            self.blame(Some(spot.clone()), Fault::Mixed { aliasing, found });
        }
        // From left to right, as executors do: three at once are the first two, then the third.
        let sum = inputs[1..].iter().fold(inputs[0], |sum, &other| self.pair(sum, other));
        Value { span: Span::of_step(inputs.iter().map(|input| input.span)), ..sum }
    }

    fn reduce_unordered(&mut self, spot: &Spot, inputs: &[Value]) -> Value {
        let sum = self.reduce(spot, inputs);
        let number = self.number(Term::Unordered(sum.number, self.terms.len() as u32));
        Value { number, turn: sum.turn, span: None }
    }

    fn returned(&mut self, call: u32, cell: Cell, value: Option<&Value>) {
        let aliasing = self.shape.aliasing;
        let wrong = |found: String, expected: String| Fault::Wrong { aliasing, cell, found, expected };
        if let (Buffer::Input, Some(&value)) = (cell.buffer, value) {
            if self.leaf(call, cell.rank, cell.tile, cell.chunk) != value {
                let fault = wrong(self.describe(value), "left as the caller passed it".to_owned());
                self.blame(None, fault);
            }
            return;
        }
        let Some(promised) = self.promised(cell.rank, cell.chunk) else { return };
        let fault = match value {
            None => Some(wrong("whatever was there".to_owned(), about(promised))),
            Some(&value) if !self.keeps(promised, value, call, cell.tile) => {
                Some(wrong(self.describe(value), about(promised)))
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
                    found: self.describe(value),
                    other,
                    theirs: self.describe(theirs),
                })
            }
        };
        if let Some(fault) = fault {
            self.blame(None, fault);
        }
    }

    fn entered(&mut self, rank: u32, lane: usize) {
        let clock = self.clocks[lane][self.places[lane] as usize];
        self.entries[self.classes.position(rank)].push(clock);
    }

    fn left(&mut self, call: u32, rank: u32, lane: usize) {
        if self.plan.collective != Collective::Barrier {
            return;
        }
        let knows = |other: &u32| {
            // A rank that has not entered yet has no entry to be known.
            let entry = self.entries[self.classes.position(*other)].get(call as usize);
            entry.is_some_and(|&clock| self.clocks[lane][self.firsts[*other as usize] as usize] >= clock)
        };
        if let Some(other) = (0..self.plan.ranks).find(|other| !knows(other)) {
            self.blame(None, Fault::Unmet { rank, other });
        }
    }

    fn turned(&mut self, value: &Value, turn: Turn) -> Value {
        // Which ranks a turned expression combines in which order is not kept: by classes, no order is claimed.
        let span = if turn == Turn::NONE { value.span } else { None };
        Value { number: value.number, turn: self.classes.then(value.turn, turn), span }
    }

    fn turned_stamp(&mut self, stamp: &Rc<[u32]>, turn: Turn) -> Rc<[u32]> {
        let from = self.turned_clocks.entry(turn).or_insert_with(|| {
            let back = self.classes.back(turn);
            let ranks = (0..self.plan.ranks).map(|rank| self.classes.rank(rank, back) as usize);
            ranks.flat_map(|from| self.firsts[from]..self.firsts[from + 1]).collect()
        });
        from.iter().map(|&place| stamp[place as usize]).collect()
    }

    fn stamp(&mut self, lane: usize) -> Rc<[u32]> {
        let stamp = self.clocks[lane].as_slice().into();
        self.clocks[lane][self.places[lane] as usize] += 1;
        stamp
    }

    fn meet(&mut self, lane: usize, stamp: &Rc<[u32]>) {
        for (mine, theirs) in self.clocks[lane].iter_mut().zip(stamp.iter()) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn stored(&mut self, spot: &Spot, cell: Cell, value: &Value) {
        if cell.buffer == Buffer::Scratch {
            return;
        }
        let chunk = self.chunk(*value);
        let fits = if self.plan.uneven {
            // Every block has its own length, so only what belongs there fits.
            let per_block = self.per_block;
            let of_output = match (cell.buffer, self.shape.aliasing) {
                (Buffer::Input, _) => Some(Promised::Reduction { below: 0, chunk: cell.chunk }),
                _ => self.promised(cell.rank, cell.chunk),
            };
            match of_output {
                Some(Promised::Copy { rank, chunk: wanted }) => {
                    let whose = self.leaves_of(*value, 1).first().map(|leaf| leaf.1);
                    wanted == chunk && whose == Some(rank)
                }
                Some(Promised::Reduction { chunk: wanted, .. }) => wanted == chunk,
                None => chunk % per_block == cell.chunk % per_block,
            }
        } else {
            // Chunks of the same index have the same length, whatever block they belong to.
            let index = |chunk: u32| chunk % self.per_block;
            index(chunk) == index(cell.chunk)
        };
        if !fits {
            let (aliasing, found) = (self.shape.aliasing, self.describe(*value));
            self.blame(Some(spot.clone()), Fault::Misplaced { aliasing, cell, found });
        }
    }

    fn touch(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access) {
        let position = cell_position(self.plan, self.shape, &self.classes, cell);
        if self.shadows.len() <= position {
            self.shadows.resize(position + 1, Shadow::default());
        }
        let turn = self.classes.turn_of(cell.rank);
        let shadow = &self.shadows[position];
        let unseen = |touch: &&Touch| !self.seen(lane, touch, turn);
        let write = shadow.write.iter().find(unseen).map(|touch| (touch, "writing"));
        let read = || shadow.reads.iter().find(unseen).map(|touch| (touch, "reading"));
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
        // Written down as seen by the rank that stands for the memory's owner.
        let place = self.turned_place(self.places[lane], self.classes.back(turn));
        let touch = Touch { place, clock: self.clocks[lane][self.places[lane] as usize], by };
        let shadow = &mut self.shadows[position];
        match access {
            Access::Write => *shadow = Shadow { write: Some(touch), reads: Vec::new() },
            Access::Read => {
                // A lane's later read stands for its earlier ones.
                shadow.reads.retain(|read| read.place != place);
                shadow.reads.push(touch);
            }
        }
    }
}

/// A promise for people.
fn about(promised: Promised) -> String {
    match promised {
        Promised::Copy { rank, chunk } => format!("r{rank}[{chunk}]"),
        Promised::Reduction { below: 1, chunk } => format!("r0[{chunk}]"),
        Promised::Reduction { below, chunk } => format!("r0[{chunk}] to r{}[{chunk}], each once", below - 1),
    }
}
