//! Rank classes: a symmetric plan is proved for one rank of each class.
//!
//! A plan may declare a [`Symmetry`]: ranks and chunks are written as numbers of several digits, and *turning* a digit of
//! the ranks (adding a number to it, modulo its size), together with the digits of the chunks that turn with it, maps the
//! plan to itself. [`Classes::check`] checks that for every rank and step. Ranks that are turned into one another are a
//! class; its representative is the rank whose turning digits are all zero.
//!
//! Why that is enough: the meaning of a plan does not depend on the schedule, so all ranks of a class may act at the same
//! time, each taking the steps of its representative with all names turned. The [interpreter](crate::interpret) runs the
//! representatives alone: a message from rank p is the message that its representative sent, turned to p. A turn that
//! moves anything moves every rank, so each FIFO, counter and cell has exactly one counterpart at a representative.

use rustc_hash::FxHashMap;

use crate::Affine;
use crate::collective::Promise;
use crate::plan::{Buffer, Group, Input, Node, Output, Plan, Role, Step};
use crate::refusal::Spot;
use crate::symmetry::{Digit, RankDigit, Symmetry};
use crate::walk::Visit;

/// A turn: the number added to each digit of the ranks, written as a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turn(u32);

impl Turn {
    /// The identity.
    pub const NONE: Turn = Turn(0);
}

/// The classes of a plan's ranks.
#[derive(Clone, Debug)]
pub struct Classes {
    /// Nothing if every rank is a class of its own.
    symmetry: Option<Symmetry>,
    representatives: Vec<u32>,
    /// The position of each rank's representative, and the turn from it to the rank.
    positions: Vec<u32>,
    turns: Vec<Turn>,
    /// The place value of each digit of the ranks.
    places: Vec<u32>,
}

impl Classes {
    /// Classes of one rank each.
    pub fn trivial(ranks: u32) -> Self {
        let itself: Vec<u32> = (0..ranks).collect();
        let turns = vec![Turn::NONE; ranks as usize];
        Self { symmetry: None, representatives: itself.clone(), positions: itself, turns, places: vec![] }
    }

    /// The classes that a plan declares; the error says which step breaks the symmetry.
    pub fn check(plan: &Plan) -> Result<Self, (Option<Spot>, String)> {
        let Some(symmetry) = &plan.symmetry else { return Ok(Self::trivial(plan.ranks)) };
        sizes(plan, symmetry).map_err(|what| (None, what))?;
        let classes = Self::of(plan.ranks, symmetry);
        classes.promise_turns(plan).map_err(|what| (None, what))?;
        for turn in classes.generators() {
            let groups = classes.turned_groups(plan, turn);
            for rank in 0..plan.ranks {
                classes.same(plan, rank, turn, &groups)?;
            }
        }
        Ok(classes)
    }

    pub(crate) fn of(ranks: u32, symmetry: &Symmetry) -> Self {
        let mut places = vec![1; symmetry.ranks.len()];
        for digit in (1..places.len()).rev() {
            places[digit - 1] = places[digit] * symmetry.ranks[digit].size;
        }
        let turned = |rank: u32| {
            let digits = symmetry.ranks.iter().zip(&places);
            let turning = digits.filter(|(digit, _)| digit.turns);
            Turn(turning.map(|(digit, place)| rank / place % digit.size * place).sum())
        };
        let turns: Vec<Turn> = (0..ranks).map(turned).collect();
        let representatives: Vec<u32> =
            (0..ranks).filter(|rank| turns[*rank as usize] == Turn::NONE).collect();
        // Undoing a rank's turn sets its turning digits to zero.
        let position = |rank: u32| representatives.binary_search(&(rank - turns[rank as usize].0));
        let positions = (0..ranks).map(|rank| position(rank).unwrap_or_default() as u32).collect();
        Self { symmetry: Some(symmetry.clone()), representatives, positions, turns, places }
    }

    /// One rank of each class.
    pub fn representatives(&self) -> &[u32] {
        &self.representatives
    }

    /// The position of a rank's representative.
    pub fn position(&self, rank: u32) -> usize {
        self.positions[rank as usize] as usize
    }

    /// Whether every rank is a class of its own.
    pub fn are_trivial(&self) -> bool {
        self.symmetry.is_none()
    }

    /// The turn from a rank's representative to the rank.
    pub fn turn_of(&self, rank: u32) -> Turn {
        self.turns[rank as usize]
    }

    /// A rank, turned.
    pub fn rank(&self, rank: u32, turn: Turn) -> u32 {
        let Some(symmetry) = self.symmetry.as_ref().filter(|_| turn != Turn::NONE) else { return rank };
        let digits = symmetry.ranks.iter().zip(&self.places);
        digits.map(|(digit, place)| (rank / place + turn.0 / place) % digit.size * place).sum()
    }

    /// A chunk of a buffer, turned.
    pub fn chunk(&self, buffer: Buffer, chunk: u32, turn: Turn) -> u32 {
        let Some(symmetry) = self.symmetry.as_ref().filter(|_| turn != Turn::NONE) else { return chunk };
        let (mut turned, mut place) = (0, 1);
        for digit in symmetry.of(buffer).iter().rev() {
            let by = self.turned_by(digit, turn);
            turned += (chunk / place + by) % digit.size * place;
            place = place.saturating_mul(digit.size);
        }
        turned
    }

    /// How far a turn moves a digit of a chunk.
    fn turned_by(&self, digit: &Digit, turn: Turn) -> u32 {
        digit.with.map_or(0, |with| turn.0 / self.places[with as usize] % digit.size)
    }

    /// The composition of two turns.
    pub fn then(&self, first: Turn, second: Turn) -> Turn {
        Turn(self.rank(first.0, second))
    }

    /// The turn that undoes a turn.
    pub fn inverse(&self, turn: Turn) -> Turn {
        let Some(symmetry) = self.symmetry.as_ref().filter(|_| turn != Turn::NONE) else { return turn };
        let digits = symmetry.ranks.iter().zip(&self.places);
        Turn(
            digits
                .map(|(digit, place)| (digit.size - turn.0 / place % digit.size) % digit.size * place)
                .sum(),
        )
    }

    /// A turn by one of each turning digit; all turns are compositions of these.
    fn generators(&self) -> Vec<Turn> {
        let digits = self.symmetry.iter().flat_map(|symmetry| &symmetry.ranks).zip(&self.places);
        digits.filter(|(digit, _)| digit.turns && digit.size > 1).map(|(_, place)| Turn(*place)).collect()
    }

    /// The generators that fix every chunk of a buffer.
    pub fn generators_fixing(&self, buffer: Buffer) -> Vec<Turn> {
        let Some(symmetry) = &self.symmetry else { return Vec::new() };
        let moves = |turn: Turn| symmetry.of(buffer).iter().any(|digit| self.turned_by(digit, turn) > 0);
        self.generators().into_iter().filter(|turn| !moves(*turn)).collect()
    }

    /// Checks that the promise to a turned rank is the promise to the rank, turned. Otherwise a promise kept by one rank
    /// would say nothing about the others.
    fn promise_turns(&self, plan: &Plan) -> Result<(), String> {
        let per_block = plan.chunks_per_block();
        let promised = |rank: u32, chunk: u32| {
            let promise = plan.collective.promise(rank, plan.ranks, chunk / per_block)?;
            Some(match promise {
                Promise::Copy { rank, block } => (Some(rank), block * per_block + chunk % per_block),
                Promise::Reduction { block, .. } => (None, block * per_block + chunk % per_block),
            })
        };
        for turn in self.generators() {
            for rank in 0..plan.ranks {
                for chunk in 0..plan.chunks.output {
                    let here = promised(rank, chunk).map(|(from, at)| {
                        (from.map(|from| self.rank(from, turn)), self.chunk(Buffer::Input, at, turn))
                    });
                    let there = promised(self.rank(rank, turn), self.chunk(Buffer::Output, chunk, turn));
                    if here != there {
                        return Err(
                            "the collective does not have the symmetry that the plan declares".to_owned()
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Of the chunks that are turned into one another, the one whose turning digits are zero, and the turn from `chunk` to it.
    pub fn first_chunk(&self, buffer: Buffer, chunk: u32) -> (u32, Turn) {
        let Some(symmetry) = &self.symmetry else { return (chunk, Turn::NONE) };
        let (mut turn, mut place) = (Turn::NONE, 1);
        let mut turned = vec![false; symmetry.ranks.len()];
        for digit in symmetry.of(buffer).iter().rev() {
            // If a digit of the ranks turns several of the chunk's, the first decides.
            if let Some(with) = digit.with
                && !std::mem::replace(&mut turned[with as usize], true)
            {
                let back = (digit.size - chunk / place % digit.size) % digit.size;
                turn = self.then(turn, Turn(back * self.places[with as usize]));
            }
            place = place.saturating_mul(digit.size);
        }
        (self.chunk(buffer, chunk, turn), turn)
    }

    /// Compares the program of a turned rank with the rank's program, turned.
    fn same(
        &self,
        plan: &Plan,
        rank: u32,
        turn: Turn,
        groups: &Groups,
    ) -> Result<(), (Option<Spot>, String)> {
        let other = self.rank(rank, turn);
        let (mine, theirs) = (&plan.programs[rank as usize].lanes, &plan.programs[other as usize].lanes);
        let differs = |lane: usize, step: u32, iterations: Vec<u32>| {
            let what =
                format!("it differs from the step of rank {rank} that the declared symmetry turns into it");
            Err((Some(Spot { rank: other, lane: lane as u32, step, iterations }), what))
        };
        if mine.len() != theirs.len() {
            return differs(0, 0, vec![]);
        }
        for (number, (a, b)) in mine.iter().zip(theirs).enumerate() {
            if a.channel != b.channel {
                return differs(number, 0, vec![]);
            }
            if self.same_as_written(&a.nodes, &b.nodes, turn, groups) {
                continue;
            }
            let mut turned = b.walk();
            for Visit { step, iterations, .. } in a.walk() {
                let Some(there) = turned.next() else { return differs(number, 0, vec![]) };
                let here = step.at(&iterations).and_then(|step| self.step(&step, turn, groups));
                if here != there.step.at(&there.iterations) {
                    return differs(number, there.index, there.iterations);
                }
            }
            if let Some(more) = turned.next() {
                return differs(number, more.index, more.iterations);
            }
        }
        Ok(())
    }

    /// Whether two lanes are the same, one of them turned, without unrolling their loops. False means unknown.
    fn same_as_written(&self, mine: &[Node], theirs: &[Node], turn: Turn, groups: &Groups) -> bool {
        let same = |pair: (&Node, &Node)| match pair {
            (Node::Loop(a), Node::Loop(b)) => {
                a.times == b.times && self.same_as_written(&a.body, &b.body, turn, groups)
            }
            (Node::Step(a), Node::Step(b)) => {
                let turned = a.map(|index, role| self.formula(index, role, turn));
                let turned = turned.and_then(|step| turn_groups(step, groups));
                turned.is_some() && turned == b.map(|index, _| Some(index.wrapped()))
            }
            _ => false,
        };
        mine.len() == theirs.len() && mine.iter().zip(theirs).all(same)
    }

    /// A step with all its names turned; nothing if a group is turned into none of the plan's.
    fn step(&self, step: &Step<u32>, turn: Turn, groups: &Groups) -> Option<Step<u32>> {
        let turned = step.map(|&index, role| {
            Some(match role {
                Role::Rank => self.rank(index, turn),
                Role::Chunk(buffer) => self.chunk(buffer, index, turn),
                Role::Count => index,
            })
        });
        turn_groups(turned?, groups)
    }

    /// For each group of a plan, the group that it is turned into.
    fn turned_groups(&self, plan: &Plan, turn: Turn) -> Groups {
        let mut numbers = FxHashMap::default();
        for (number, group) in (0..).zip(&plan.groups) {
            numbers.entry((group.switch, group.members.clone())).or_insert(number);
        }
        let turned = |group: &Group| {
            let mut members: Vec<_> = group.members.iter().map(|&rank| self.rank(rank, turn)).collect();
            members.sort_unstable();
            numbers.get(&(group.switch, members)).copied()
        };
        plan.groups.iter().map(turned).collect()
    }

    /// An index, turned, where that is a formula again: a constant; an index that the turn fixes; or one that runs around all
    /// numbers, which the turn shifts by a multiple of a digit's place value.
    fn formula(&self, index: &Affine, role: Role, turn: Turn) -> Option<Affine> {
        let symmetry = self.symmetry.as_ref()?;
        let fixed = index.by.iter().all(|by| *by == 0);
        // Steps that never run may name ranks and chunks that do not exist.
        let there = |count: u32| index.at(&[]).filter(|number| *number < count);
        let (first_digit_by, total, alone) = match role {
            Role::Count => return Some(index.wrapped()),
            Role::Rank if fixed => return Some(self.rank(there(self.turns.len() as u32)?, turn).into()),
            Role::Chunk(buffer) if fixed => {
                let count = symmetry.of(buffer).iter().map(|digit| digit.size).product();
                return Some(self.chunk(buffer, there(count)?, turn).into());
            }
            Role::Rank => {
                let total: u32 = symmetry.ranks.iter().map(|digit| digit.size).product();
                (turn.0, total, false)
            }
            Role::Chunk(buffer) => {
                let digits = symmetry.of(buffer);
                let total: u32 = digits.iter().map(|digit| digit.size).product();
                let by = |digit: &Digit| self.turned_by(digit, turn);
                let first = digits.first()?;
                let others = digits[1..].iter().all(|digit| by(digit) == 0);
                if !others {
                    return None;
                }
                (by(first) * (total / first.size), total, by(first) == 0)
            }
        };
        if alone {
            return Some(index.wrapped());
        }
        // Only the first digit is turned, so turning is an addition.
        let is_first = match role {
            Role::Rank => turn.0.is_multiple_of(total / symmetry.ranks.first()?.size),
            _ => true,
        };
        let step = index.by.iter().fold(i64::from(total), |step, by| gcd(step, *by));
        let stays_below = index.offset >= 0 && index.offset < gcd(step, index.base);
        let goes_around = index.modulo == Some(total) && stays_below && is_first;
        let moved = Affine { base: index.base.checked_add(first_digit_by.into())?, ..index.clone() };
        let stays = gcd(step, moved.base) > index.offset;
        (goes_around && stays).then(|| moved.wrapped())
    }
}

/// For each group of a plan, the number of the group it is turned into, if there is one.
type Groups = Vec<Option<u32>>;

fn turn_groups<I>(mut step: Step<I>, groups: &Groups) -> Option<Step<I>> {
    let turned = |number: u32| *groups.get(number as usize)?;
    for input in &mut step.inputs {
        if let Input::Switch(all) = input {
            all.group = turned(all.group)?;
        }
    }
    for output in &mut step.outputs {
        if let Output::Multicast(all) = output {
            all.group = turned(all.group)?;
        }
    }
    Some(step)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.saturating_abs() } else { gcd(b, a.checked_rem(b).unwrap_or(0)) }
}

impl Symmetry {
    /// The subgroup of turns by multiples of a number of ranks, if it is not trivial: lower digits stay fixed, and a digit that
    /// the number divides is split in two, of which the upper turns.
    pub(crate) fn coarser(&self, multiple: u32) -> Option<Self> {
        let mut ranks = Vec::new();
        // For each old digit: the number of the new digit that turns, and the size of the part that stays fixed.
        let mut turned = Vec::new();
        let mut place: u32 = self.ranks.iter().map(|digit| digit.size).product();
        for digit in &self.ranks {
            place /= digit.size;
            // The number of values of this digit that make a multiple.
            let stays = match (place.is_multiple_of(multiple), multiple.is_multiple_of(place)) {
                (true, _) => 1,
                (false, true) => multiple / place,
                (false, false) => digit.size,
            };
            let splits = digit.turns && stays < digit.size && digit.size.is_multiple_of(stays);
            turned.push(splits.then_some((ranks.len() as u32, stays)));
            match splits {
                true => {
                    ranks.push(RankDigit { size: digit.size / stays, turns: true });
                    ranks.extend((stays > 1).then_some(RankDigit { size: stays, turns: false }));
                }
                false => ranks.push(RankDigit { size: digit.size, turns: false }),
            }
        }
        let chunks = |digits: &[Digit]| {
            let split = |digit: &Digit| match digit.with.and_then(|with| turned[with as usize]) {
                Some((with, stays)) => {
                    let upper = Digit { size: digit.size / stays, with: Some(with) };
                    let lower = (stays > 1).then_some(Digit { size: stays, with: None });
                    std::iter::once(upper).chain(lower).collect::<Vec<_>>()
                }
                None => vec![Digit { size: digit.size, with: None }],
            };
            digits.iter().flat_map(split).collect()
        };
        let [input, output, scratch] =
            [&self.input, &self.output, &self.scratch].map(|digits| chunks(digits));
        ranks.iter().any(|digit| digit.turns).then_some(Self { ranks, input, output, scratch })
    }

    fn of(&self, buffer: Buffer) -> &[Digit] {
        match buffer {
            Buffer::Input => &self.input,
            Buffer::Output => &self.output,
            Buffer::Scratch => &self.scratch,
        }
    }
}

/// Checks that the digits of a symmetry cover its ranks and chunks, and that every turning digit has a partner.
fn sizes(plan: &Plan, symmetry: &Symmetry) -> Result<(), String> {
    let product = |sizes: Vec<u32>| {
        sizes
            .into_iter()
            .try_fold(1_u32, |product, size| product.checked_mul(size).filter(|product| *product > 0))
    };
    if product(symmetry.ranks.iter().map(|digit| digit.size).collect()) != Some(plan.ranks) {
        return Err("the sizes of its symmetry's digits do not multiply to its ranks".to_owned());
    }
    if !plan.collective.is_symmetric() {
        return Err(format!("a {} is not the same for all ranks, so it has no symmetry", plan.collective));
    }
    for (buffer, chunks) in [
        (Buffer::Input, plan.chunks.input),
        (Buffer::Output, plan.chunks.output),
        (Buffer::Scratch, plan.chunks.scratch),
    ] {
        let list = symmetry.of(buffer);
        let whole = chunks == 0 && list.is_empty()
            || product(list.iter().map(|digit| digit.size).collect()) == Some(chunks);
        if !whole {
            return Err(format!(
                "the sizes of its symmetry's digits do not multiply to its chunks of {buffer}"
            ));
        }
        for digit in list {
            let Some(with) = digit.with else { continue };
            let fits = symmetry.ranks.get(with as usize).is_some_and(|of| of.turns && of.size == digit.size);
            if !fits {
                return Err(format!(
                    "a digit of its chunks of {buffer} turns with no turning digit of the ranks of the same size"
                ));
            }
        }
    }
    Ok(())
}
