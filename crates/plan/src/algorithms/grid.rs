//! Ranks by island and position, for algorithms on several islands. Not an algorithm itself.
//!
//! The ranks at position p of all islands are *rail* p. A [`Member`] is one rank as one of its lanes sees it: its neighbours
//! on the rail, its peers in the island, and its chunks in each [`Round`] of the rail's ring. Rounds are a loop if the ring
//! passes the islands in the order of their numbers, and are written out if not.

use crate::Affine;
use crate::algorithms::Impossible;
use crate::layout::Layout;
use crate::plan::{Digit, Node, RankDigit, Step, Symmetry};

/// Equal islands, at least two, and the rings through them.
pub(super) struct Grid<'a> {
    layout: &'a Layout,
    pub(super) islands: u32,
    pub(super) per_island: u32,
    places: Vec<(u32, u32)>,
    ways: Vec<Way>,
    in_order: bool,
}

/// The order of a ring: around the islands, and around the positions of each.
struct Way {
    islands: Circle,
    /// The orders of positions, each once, and which of them each island has.
    positions: Vec<Circle>,
    positions_of: Vec<u32>,
}

/// A cyclic order, and the place of each number in it.
struct Circle {
    order: Vec<u32>,
    place: Vec<u32>,
    /// The stride from each number to the next: +1 or -1 modulo their count; nothing if it is not the same for all.
    stride: Option<i64>,
}

/// How the chunks of a buffer are numbered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// A part for each position, of which each island has a chunk per lane.
    Parts,
    /// A block for each rank, of which each lane has a chunk.
    Blocks,
}

/// One or more rounds of a rail's ring.
#[derive(Clone, Copy)]
pub(super) struct Round {
    first: u32,
    looped: bool,
}

/// One rank, as one of its lanes sees it.
#[derive(Clone, Copy)]
pub(super) struct Member<'g> {
    grid: &'g Grid<'g>,
    numbering: Numbering,
    pub(super) lane: u32,
    pub(super) lanes: u32,
    pub(super) rank: u32,
    pub(super) island: u32,
    pub(super) position: u32,
}

impl<'a> Grid<'a> {
    /// The islands of a layout, or why `algorithm` cannot work with them.
    pub(super) fn new(algorithm: &str, layout: &'a Layout) -> Result<Self, Impossible> {
        let islands = layout.islands.len() as u32;
        if islands < 2 {
            return Err(Impossible(format!("{algorithm} needs at least 2 islands, but there is one")));
        }
        let Some(per_island) = layout.per_island() else {
            let sizes = layout.islands.iter().map(Vec::len);
            let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
            return Err(Impossible(format!(
                "{algorithm} needs islands of as many ranks each, so that those at the same position make up a rail; \
                 these have {least} to {most}"
            )));
        };
        let places = layout.places();
        let in_order = (0..).zip(&places).all(|(rank, &(island, at))| rank == island * per_island + at);
        let ways = layout.rings.iter().map(|ring| Way::of(ring, &places, islands, per_island)).collect();
        Ok(Self { layout, islands, per_island, places, ways, in_order })
    }

    /// The number of rings, each with its own lanes.
    pub(super) fn lanes(&self) -> u32 {
        self.ways.len() as u32
    }

    /// Whether any two ranks of an island reach each other at full speed.
    pub(super) fn switched(&self) -> bool {
        self.layout.switched
    }

    /// Whether rank `i·g + p` is at position p of island i.
    pub(super) fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// The rank at a position of an island.
    pub(super) fn rank(&self, island: u32, position: u32) -> u32 {
        self.layout.islands[island as usize][position as usize]
    }

    /// A rank, as one of its lanes sees it.
    pub(super) fn member(&self, rank: u32, lane: u32, numbering: Numbering) -> Member<'_> {
        let (island, position) = self.places[rank as usize];
        Member { grid: self, numbering, lane, lanes: self.lanes(), rank, island, position }
    }

    /// The positions of an island in the order of a lane's ring, as a chain.
    pub(super) fn chain(&self, island: u32, lane: u32) -> &[u32] {
        &self.ways[lane as usize].inside(island).order
    }

    /// The symmetry of islands and of positions, for programs written with [`Member`] alone. `digits` makes the digits of chunks
    /// from a digit of islands and a digit of positions.
    pub(super) fn symmetry(
        &self,
        digits: impl Fn(Digit, Digit) -> (Vec<Digit>, Vec<Digit>, Vec<Digit>),
    ) -> Option<Symmetry> {
        let islands_turn = self.ways.iter().all(|way| way.islands.stride.is_some() && way.is_same_inside());
        let strides = |way: &Way| way.positions.iter().all(|circle| circle.stride.is_some());
        let positions_turn = self.switched() || self.ways.iter().all(strides);
        if !self.in_order || !(islands_turn || positions_turn) {
            return None;
        }
        let digit = |size, number, turns: bool| Digit { size, with: turns.then_some(number) };
        let (islands, positions) =
            (digit(self.islands, 0, islands_turn), digit(self.per_island, 1, positions_turn));
        let (input, output, scratch) = digits(islands, positions);
        let turning = |size, turns| RankDigit { size, turns };
        let ranks = vec![turning(self.islands, islands_turn), turning(self.per_island, positions_turn)];
        Some(Symmetry { ranks, input, output, scratch })
    }
}

impl Way {
    fn of(ring: &[u32], places: &[(u32, u32)], islands: u32, per_island: u32) -> Self {
        let mut order = Vec::with_capacity(islands as usize);
        let mut met = vec![0; islands as usize];
        let mut orders = vec![0; ring.len()];
        for &rank in ring {
            let (island, position) = places[rank as usize];
            let met = &mut met[island as usize];
            if *met == 0 {
                order.push(island);
            }
            orders[(island * per_island + *met) as usize] = position;
            *met += 1;
        }
        let mut positions: Vec<Circle> = Vec::new();
        let mut positions_of = Vec::with_capacity(islands as usize);
        for inside in orders.chunks(per_island as usize) {
            let known = positions.iter().position(|circle| circle.order == inside);
            positions_of.push(known.unwrap_or(positions.len()) as u32);
            if known.is_none() {
                positions.push(Circle::new(inside.to_vec(), per_island));
            }
        }
        Self { islands: Circle::new(order, islands), positions, positions_of }
    }

    /// The positions of an island in its order.
    fn inside(&self, island: u32) -> &Circle {
        &self.positions[self.positions_of[island as usize] as usize]
    }

    fn is_same_inside(&self) -> bool {
        self.positions.len() == 1
    }
}

impl Circle {
    fn new(order: Vec<u32>, size: u32) -> Self {
        let mut place = vec![0; size as usize];
        (0..).zip(&order).for_each(|(at, &number)| place[number as usize] = at);
        let leads = |stride: u32| {
            order.iter().zip(order.iter().cycle().skip(1)).all(|(a, b)| (a + stride) % size == *b)
        };
        let stride = if leads(1) { Some(1) } else { leads(size - 1).then_some(-1) };
        Self { order, place, stride }
    }

    /// The number `places` behind `number`.
    fn behind(&self, number: u32, places: u32) -> u32 {
        let size = self.order.len() as u32;
        self.order[((self.place[number as usize] + size - places % size) % size) as usize]
    }
}

impl<'g> Member<'g> {
    fn way(&self) -> &'g Way {
        &self.grid.ways[self.lane as usize]
    }

    /// The grid it is in.
    pub(super) fn grid(&self) -> &'g Grid<'g> {
        self.grid
    }

    /// The other positions of its island, from its own upwards.
    pub(super) fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let (position, size) = (self.position, self.grid.per_island);
        (1..size).map(move |by| (position + by) % size)
    }

    /// The rank at a position of its island.
    pub(super) fn peer(&self, position: u32) -> u32 {
        self.grid.rank(self.island, position)
    }

    /// The position `places` behind its own in the ring of its island.
    pub(super) fn inside(&self, places: u32) -> u32 {
        self.way().inside(self.island).behind(self.position, places)
    }

    /// The island `places` behind its own.
    pub(super) fn island_behind(&self, places: u32) -> u32 {
        self.way().islands.behind(self.island, places)
    }

    /// Its rank's counterpart in the island `places` behind.
    pub(super) fn behind(&self, places: u32) -> u32 {
        self.grid.rank(self.island_behind(places), self.position)
    }

    /// Its rank's counterpart in the next island.
    pub(super) fn next(&self) -> u32 {
        self.behind(self.grid.islands - 1)
    }

    /// The number of places from another island to its own.
    pub(super) fn places_after(&self, island: u32) -> u32 {
        let circle = &self.way().islands;
        let size = self.grid.islands;
        (circle.place[self.island as usize] + size - circle.place[island as usize]) % size
    }

    /// Rounds `first` to `first + count`, with the steps that `body` writes.
    pub(super) fn rounds(&self, first: u32, count: u32, body: impl Fn(Round) -> Vec<Step>) -> Vec<Node> {
        let ranks_in_order = self.numbering == Numbering::Parts || self.grid.in_order;
        if count > 1 && self.way().islands.stride.is_some() && ranks_in_order {
            return vec![Node::repeat(count, body(Round { first, looped: true }))];
        }
        (first..first + count)
            .flat_map(|first| body(Round { first, looped: false }))
            .map(Node::Step)
            .collect()
    }

    /// The lane's chunk of a position, in the island that is as many places behind as the round says, and `further`.
    pub(super) fn chunk(&self, round: Round, further: u32, position: u32) -> Affine {
        let Grid { islands, per_island, .. } = *self.grid;
        let island = self.island_behind(round.first + further);
        if !round.looped {
            return match self.numbering {
                Numbering::Parts => (position * islands + island) * self.lanes + self.lane,
                Numbering::Blocks => self.grid.rank(island, position) * self.lanes + self.lane,
            }
            .into();
        }
        let (stride, offset) = match self.numbering {
            Numbering::Parts => (self.lanes, position * islands * self.lanes),
            Numbering::Blocks => (per_island * self.lanes, position * self.lanes),
        };
        let by = -self.way().islands.stride.unwrap_or_default() * i64::from(stride);
        Affine::ring(i64::from(island) * i64::from(stride), by, islands * stride).plus(offset + self.lane)
    }

    /// The rank at a position of the island that is as many places behind, or ahead, as the round says.
    pub(super) fn elsewhere(&self, round: Round, ahead: bool, position: u32) -> Affine {
        let Grid { islands, per_island, .. } = *self.grid;
        let places = if ahead { islands - round.first % islands } else { round.first };
        let island = self.island_behind(places);
        if !round.looped {
            return self.grid.rank(island, position).into();
        }
        let stride = self.way().islands.stride.unwrap_or_default() * i64::from(per_island);
        let by = if ahead { stride } else { -stride };
        Affine::ring(i64::from(island * per_island), by, islands * per_island).plus(position)
    }
}

impl Round {
    /// A single round.
    pub(super) fn only(round: u32) -> Self {
        Self { first: round, looped: false }
    }

    /// The number of the round, plus `more`.
    pub(super) fn plus(self, more: i64) -> Affine {
        let by = if self.looped { vec![1] } else { vec![] };
        Affine { offset: 0, base: i64::from(self.first) + more, by, modulo: None }
    }

    /// The slot of the round, for one of `lanes`; rounds use `slots` in rotation.
    pub(super) fn slot(self, slots: u32, lane: u32, lanes: u32) -> Affine {
        let first = self.first % slots * lanes;
        if !self.looped {
            return (first + lane).into();
        }
        Affine::ring(first.into(), lanes.into(), slots * lanes).plus(lane)
    }
}
