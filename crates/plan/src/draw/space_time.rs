//! A plan as a space-time diagram: arrows between lines.
//!
//! Every rank is a line, and so is every switch that computes. A column is a hop: a step is in the column of the longest path
//! of hops to it, so arrows lead from column to column. Data that a rank reads in peer memory left its owner one column
//! earlier, and data that it writes there arrives one column later. A switch is halfway between two columns; a network switch
//! that adds and multicasts in one step sends the sum down directly. A wait has an arrow only if no data comes the same way at
//! the same time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::collective::Collective;
use crate::interpret::{Access, Domain, Event, Machine, Shape};
use crate::plan::{Grouped, Input, Output, Remote, Step, Switch, Wait};
use crate::refusal::{Cell, Spot};
use crate::traffic::handed_down;
use crate::walk::Walk;
use crate::well_formed::WellFormed;

/// A line of the picture, ordered from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    Rank { island: u32, rank: u32 },
    Nvswitch { island: u32 },
    Network,
}

/// The kind of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Wait,
    Inside,
    Across,
}

/// One end of an arrow: a line, and half columns from the left.
pub(super) type End = (Line, u32);

/// The picture's contents.
pub(super) struct SpaceTime {
    /// The lines, from top to bottom.
    pub(super) lines: BTreeSet<Line>,
    /// The arrows, and the chunks they carry.
    pub(super) arrows: BTreeMap<(End, End), (Kind, BTreeSet<Piece>)>,
    /// Half columns.
    pub(super) width: u32,
}

/// A chunk as labels show it: its owner and its number. Sums have no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) owner: Option<u32>,
    pub(super) chunk: u32,
}

impl SpaceTime {
    /// One tile of a plan, given the island of each rank; nothing if it deadlocks.
    pub(super) fn of(plan: WellFormed<'_>, islands: &[u32]) -> Option<Self> {
        let mut lanes = Vec::new();
        for (rank, program) in (0..).zip(&plan.plan().programs) {
            lanes.extend(program.lanes.iter().map(|lane| (rank, lane)));
        }
        let columns = lanes.iter().map(|&(rank, _)| (rank, 0)).collect();
        let mut walks: BTreeMap<(u32, u32), Walk<'_>> = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for (position, &(rank, lane)) in lanes.iter().enumerate() {
            let number = walks.range((rank, 0)..=(rank, u32::MAX)).count() as u32;
            walks.insert((rank, number), lane.walk());
            numbers.insert((rank, number), position);
        }
        let mut tracing = Tracing {
            plan,
            islands,
            picture: Self::empty(),
            sends: BTreeMap::new(),
            signals: BTreeMap::new(),
        };
        let rank = |(rank, &island): (u32, &u32)| Line::Rank { island, rank };
        tracing.picture.lines.extend((0..).zip(islands).map(rank));
        let shape = Shape { calls: 1, tiles: 1, aliasing: *plan.aliasing.first()? };
        let keeps_owner = !plan.collective.reduces();
        let mut machine = Machine::new(plan, shape, Columns { lanes: columns, keeps_owner });
        machine
            .run(|domain, Event { rank, lane, .. }, result| {
                let visit = walks.get_mut(&(rank, lane)).and_then(Iterator::next);
                let step = visit.and_then(|visit| visit.step.at(&visit.iterations));
                let column = domain.lanes[numbers[&(rank, lane)]].1;
                let channel = plan.plan().programs[rank as usize].lanes[lane as usize].channel;
                step.iter().for_each(|step| tracing.step(rank, channel, column, step, result));
                true
            })
            .ok()?;
        let through = machine.blocked().is_empty();
        let mut picture = tracing.picture;
        picture.width = picture.arrows.keys().map(|(_, (_, at))| *at).max().unwrap_or(0);
        through.then_some(picture)
    }

    fn empty() -> Self {
        Self { lines: BTreeSet::new(), arrows: BTreeMap::new(), width: 0 }
    }
}

/// The label of a chunk in a picture of a collective: its owner, its number, or both, as needed to distinguish chunks.
pub(super) fn label(
    collective: &Collective,
    ranks: u32,
    chunks_of_input: u32,
    piece: Piece,
) -> Option<String> {
    let givers = (0..ranks).filter(|&rank| collective.gives(rank, ranks) > 0).count();
    match piece.owner.filter(|_| givers > 1) {
        Some(owner) if chunks_of_input > 1 => Some(format!("{owner}.{}", piece.chunk)),
        Some(owner) => Some(owner.to_string()),
        None => (chunks_of_input > 1).then(|| piece.chunk.to_string()),
    }
}

/// Follows the steps in the order of the run.
struct Tracing<'p> {
    plan: WellFormed<'p>,
    islands: &'p [u32],
    picture: SpaceTime,
    /// Messages in flight by source, target and channel.
    sends: BTreeMap<(u32, u32, u32), VecDeque<Message>>,
    /// The columns in which each rank signalled each of its counters.
    signals: BTreeMap<(u32, u32), Vec<u32>>,
}

/// A message: the column it comes from, and its content.
struct Message {
    column: u32,
    piece: Option<Piece>,
}

impl Tracing<'_> {
    fn step(&mut self, rank: u32, channel: u32, column: u32, step: &Step<u32>, result: Option<Piece>) {
        let before = column.saturating_sub(1);
        for input in &step.inputs {
            match *input {
                Input::Received { from } => {
                    let sent = self.sends.get_mut(&(from, rank, channel)).and_then(VecDeque::pop_front);
                    if let Some(Message { column: at, piece }) = sent {
                        self.arrow((self.line(from), 2 * at), (self.line(rank), 2 * column), piece);
                    }
                }
                Input::Peer(Remote { rank: owner, .. }) => {
                    self.arrow((self.line(owner), 2 * before), (self.line(rank), 2 * column), result);
                }
                Input::Switch(Grouped { group, .. }) => {
                    let middle = (self.switch(group), 2 * before + 1);
                    for &member in &self.plan.plan().groups[group as usize].members {
                        self.arrow((self.line(member), 2 * before), middle, result);
                    }
                    self.arrow(middle, (self.line(rank), 2 * column), result);
                }
                Input::Local(_) => {}
            }
        }
        for output in &step.outputs {
            match *output {
                Output::Sent { to } => {
                    self.sends
                        .entry((rank, to, channel))
                        .or_default()
                        .push_back(Message { column, piece: result });
                }
                Output::Peer(Remote { rank: owner, .. }) => {
                    self.arrow((self.line(rank), 2 * column), (self.line(owner), 2 * column + 2), result);
                }
                Output::Multicast(Grouped { group, .. }) if handed_down(self.plan, step, group) => {
                    let middle = (self.switch(group), 2 * before + 1);
                    for &member in &self.plan.plan().groups[group as usize].members {
                        let at = if member == rank { column } else { column + 1 };
                        self.arrow(middle, (self.line(member), 2 * at), result);
                    }
                }
                Output::Multicast(Grouped { group, .. }) => {
                    let middle = (self.switch(group), 2 * column + 1);
                    self.arrow((self.line(rank), 2 * column), middle, result);
                    for &member in &self.plan.plan().groups[group as usize].members {
                        self.arrow(middle, (self.line(member), 2 * column + 2), result);
                    }
                }
                Output::Local(_) => {}
            }
        }
        for wait in &step.waits {
            let (of, at) = match *wait {
                Wait::Entered { rank } => (rank, 0),
                Wait::Reached { rank, counter, count } => {
                    let signalled = self.signals.get(&(rank, counter));
                    (rank, signalled.and_then(|all| all.get(count as usize - 1)).copied().unwrap_or(0))
                }
            };
            if of != rank {
                self.arrow((self.line(of), 2 * at), (self.line(rank), 2 * column), None);
            }
        }
        for &counter in &step.signals {
            self.signals.entry((rank, counter)).or_default().push(column);
        }
    }

    /// Adds an arrow, or a chunk to an existing one. An arrow without chunks is a wait.
    fn arrow(&mut self, from: End, to: End, piece: Option<Piece>) {
        let kind = match (piece, from.0.island(), to.0.island()) {
            (None, _, _) => Kind::Wait,
            (_, Some(one), Some(two)) if one == two => Kind::Inside,
            _ => Kind::Across,
        };
        self.picture.lines.extend([from.0, to.0]);
        let (known, pieces) = self.picture.arrows.entry((from, to)).or_insert((kind, BTreeSet::new()));
        *known = kind.max(*known);
        pieces.extend(piece);
    }

    fn line(&self, rank: u32) -> Line {
        Line::Rank { island: self.islands[rank as usize], rank }
    }

    fn switch(&self, group: u32) -> Line {
        let group = &self.plan.plan().groups[group as usize];
        match (group.switch, group.members.first()) {
            (Switch::Nvswitch, Some(&member)) => Line::Nvswitch { island: self.islands[member as usize] },
            _ => Line::Network,
        }
    }
}

impl Line {
    /// The island it belongs to; the network belongs to none.
    pub(super) fn island(self) -> Option<u32> {
        match self {
            Line::Rank { island, .. } | Line::Nvswitch { island } => Some(island),
            Line::Network => None,
        }
    }
}

/// A domain whose stamps are columns.
struct Columns {
    /// The rank of each lane, and its current column.
    lanes: Vec<(u32, u32)>,
    keeps_owner: bool,
}

impl Domain for Columns {
    type Value = Piece;
    type Stamp = (u32, u32);

    fn initial(&mut self, _call: u32, cell: Cell) -> Piece {
        Piece { owner: self.keeps_owner.then_some(cell.rank), chunk: cell.chunk }
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[Piece]) -> Piece {
        inputs[0]
    }

    fn stamp(&mut self, lane: usize) -> (u32, u32) {
        self.lanes[lane]
    }

    fn join(&mut self, lane: usize, &(from, column): &(u32, u32)) {
        let (rank, here) = &mut self.lanes[lane];
        *here = (*here).max(column + u32::from(from != *rank));
    }

    fn credit(&mut self, _lane: usize, _stamp: &(u32, u32)) {}
    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&Piece>) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &Piece) {}
}
