//! The values that the verifier computes with: the expression that made each chunk, a rank's input or a combination of
//! expressions. Equal expressions have equal numbers, so comparing two ranks' results is comparing two integers.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::classes::{Classes, Turn};
use crate::order::Span;
use crate::plan::Buffer;

/// All expressions of a run.
pub(super) struct Expressions {
    classes: Rc<Classes>,
    terms: Vec<Term>,
    numbers: FxHashMap<Term, u32>,
    /// The number of leaves of each term, counted with repetition.
    leaves: Vec<u64>,
    /// The chunk of the inputs that each term combines.
    chunks: Vec<u32>,
}

/// An expression: a numbered term with all its names turned, and the ranks it combines if it does so in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) number: u32,
    pub(super) turn: Turn,
    pub(super) span: Option<Span>,
}

impl PartialEq for Value {
    /// Equal bits. The span follows from the term.
    fn eq(&self, other: &Self) -> bool {
        (self.number, self.turn) == (other.number, other.turn)
    }
}

/// A chunk of a rank's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) call: u32,
    pub(super) rank: u32,
    pub(super) tile: u32,
    pub(super) chunk: u32,
}

/// Terms that are turned into one another have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Term {
    /// A chunk of the input of a representative.
    Input { call: u32, rank: u32, tile: u32, chunk: u32 },
    /// Two terms combined, the second turned. `a + b` and `b + a` are the same bits, so the smaller number is first.
    Pair(u32, u32, Turn),
    /// A term that a switch combined in an unknown order, possibly another one each time.
    Unordered(u32, u32),
}

impl Expressions {
    pub(super) fn new(classes: Rc<Classes>) -> Self {
        Self {
            classes,
            terms: Vec::new(),
            numbers: FxHashMap::default(),
            leaves: Vec::new(),
            chunks: Vec::new(),
        }
    }

    fn number(&mut self, term: Term) -> u32 {
        if let Some(&number) = self.numbers.get(&term) {
            return number;
        }
        let (leaves, chunk) = match term {
            Term::Input { chunk, .. } => (1, chunk),
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
    pub(super) fn leaf(&mut self, Leaf { call, rank, tile, chunk }: Leaf) -> Value {
        let turn = self.classes.turn_of(rank);
        let back = self.classes.inverse(turn);
        let (first, chunk) = (self.classes.rank(rank, back), self.classes.chunk(Buffer::Input, chunk, back));
        let number = self.number(Term::Input { call, rank: first, tile, chunk });
        Value { number, turn, span: Some(Span::of(rank)) }
    }

    /// Two expressions combined; the same for both orders.
    pub(super) fn pair(&mut self, a: Value, b: Value) -> Value {
        let between = |a: Value, b: Value| self.classes.then(b.turn, self.classes.inverse(a.turn));
        let a_first = (a.number, between(a, b)) <= (b.number, between(b, a));
        let (first, second) = if a_first { (a, b) } else { (b, a) };
        let turn = between(first, second);
        let number = self.number(Term::Pair(first.number, second.number, turn));
        Value { number, turn: first.turn, span: None }
    }

    /// An expression that a switch combined in an unknown order, equal to no other.
    pub(super) fn unordered(&mut self, sum: Value) -> Value {
        let number = self.number(Term::Unordered(sum.number, self.terms.len() as u32));
        Value { number, turn: sum.turn, span: None }
    }

    /// An expression with all its names turned.
    pub(super) fn turned(&self, value: Value, turn: Turn) -> Value {
        // A turned expression has no span: a proof by classes claims no order.
        let span = if turn == Turn::NONE { value.span } else { None };
        Value { number: value.number, turn: self.classes.then(value.turn, turn), span }
    }

    /// The chunk of the inputs that an expression combines.
    pub(super) fn chunk(&self, value: Value) -> u32 {
        self.classes.chunk(Buffer::Input, self.chunks[value.number as usize], value.turn)
    }

    /// The number of leaves of an expression, counted with repetition.
    pub(super) fn leaf_count(&self, value: Value) -> u64 {
        self.leaves[value.number as usize]
    }

    /// The leaves of an expression from left to right, at most `limit` of them.
    pub(super) fn leaves_of(&self, value: Value, limit: usize) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        let mut stack = vec![(value.number, value.turn)];
        while let Some((number, turn)) = stack.pop()
            && leaves.len() < limit
        {
            match self.terms[number as usize] {
                Term::Pair(a, b, between) => stack.extend([(b, self.classes.then(between, turn)), (a, turn)]),
                Term::Unordered(of, _) => stack.push((of, turn)),
                Term::Input { call, rank, tile, chunk } => {
                    let chunk = self.classes.chunk(Buffer::Input, chunk, turn);
                    leaves.push(Leaf { call, rank: self.classes.rank(rank, turn), tile, chunk });
                }
            }
        }
        leaves
    }

    /// Whether two expressions are the same but for which side of a sum comes first. Pairs are written so that equal ones
    /// have equal numbers; but a turn that swaps the sides of a pair gives the same expression under another turn.
    pub(super) fn same_bits(&self, mine: Value, theirs: Value) -> bool {
        let (mut mine, mut theirs) = ((mine.number, mine.turn), (theirs.number, theirs.turn));
        // Iterates over the larger sides, so that the recursion is no deeper than the logarithm of the leaves.
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

    /// The two sides of a pair, the one with fewer leaves first.
    fn sides(&self, (number, turn): (u32, Turn)) -> Option<((u32, Turn), (u32, Turn))> {
        let Term::Pair(a, b, between) = self.terms[number as usize] else { return None };
        let (a, b) = ((a, turn), (b, self.classes.then(between, turn)));
        let in_order = self.leaves[a.0 as usize] <= self.leaves[b.0 as usize];
        Some(if in_order { (a, b) } else { (b, a) })
    }

    /// An expression as text: the chunks it combines, `r0[2] + r1[2]`.
    pub(super) fn describe(&self, value: Value) -> String {
        const SHOWN: usize = 12;
        let count = self.leaf_count(value);
        let parts: Vec<_> = self
            .leaves_of(value, SHOWN)
            .iter()
            .map(|Leaf { rank, chunk, .. }| format!("r{rank}[{chunk}]"))
            .collect();
        let more =
            if count > SHOWN as u64 { format!(" + {} more", count - SHOWN as u64) } else { String::new() };
        format!("{}{more}", parts.join(" + "))
    }
}
