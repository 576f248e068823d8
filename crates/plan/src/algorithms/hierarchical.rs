//! # Hierarchical
//!
//! Ranks reduce or distribute data inside an island over its fast links, and it crosses between islands on rails: each rank
//! exchanges only with the ranks at its own position in other islands.
//!
//! **Steps.** *All-reduce:* each rank collects the island's sum of its part, a ring of the islands along the rail adds these
//! sums, and the rank distributes the result in the island as it arrives. *All-gather:* blocks go around the rail, and ranks
//! distribute them in the island. *Reduce-scatter:* ranks compute the island's sums for the ranks of the rail one after the
//! other and send them around the rail. *Broadcast:* the root scatters its buffer over its island, each part goes from island
//! to island on its rail, and ranks distribute it in each. *All-to-all:* a block goes first to the rank of its own island that
//! is on the target's rail, then to the target, so that it crosses the network once and does not change rails. Inside, ranks
//! send to each other directly if the island has a switch, else around the ring of the island (all-to-all always sends directly).
//!
//! The three stages of a rank are three lanes that exchange chunks in memory, so that chunks are pipelined; there are as many such
//! triples as the layout has rings.
//!
//! **Bytes on the wire.** Inside, what the same collective of the island alone sends; across, each island sends and
//! receives what the same collective of the islands alone would, shared by its ranks.
//!
//! **Possible.** On two or more islands of equal size: with others, there are no rails.
//!
//! **When it wins.** Large buffers on islands that are much faster inside than across; and, with many islands, small
//! ones too, since a ring of the islands is shorter than a ring of the ranks.
//!
//! **Paper.** Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: Decomposing all-reduce for deep learning on
//! heterogeneous network hierarchy", 2019; for all-to-all NVIDIA's "PXN", 2021.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2[g > 1]` | `2(m-1)` | `2 S (g-1)/g` | `2 S (m-1)/m` |
//! | all-gather | `[g > 1]` | `m-1` | `S (g-1)/g` | `S (m-1)/m` |
//! | reduce-scatter | `[g > 1]` | `m-1` | `S (g-1)/g` | `S (m-1)/m` |
//! | broadcast | `2[g > 1]` | `m-1` | `2 S (g-1)/g` | `S` |
//! | all-to-all | `[g > 1]` | `1` | `S (g-1)/g` | `S g (m-1)/m` |

use std::iter::once;

use crate::algorithms::Impossible;
use crate::algorithms::grid::{Grid, Member, Numbering, Round};
use crate::layout::Layout;
use crate::plan::{
    Aliasing, Channel, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, Protocol, Step,
    Wait,
};
use crate::{Affine, Recipe};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The number of the island's sums that a rank buffers: one is sent while the next is computed.
const STAGED_SUMS: u32 = 2;

/// The counters of a lane triple.
const COUNTERS: u32 = 2;

/// The all-reduce: collect, around the rail, distribute.
pub fn all_reduce(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("hierarchical", layout)?;
    let (islands, lanes) = (grid.islands, grid.lanes());
    let symmetry = grid.symmetry(|island, position| {
        let chunks = vec![position, island, Digit { size: lanes, with: None }];
        (chunks.clone(), chunks, vec![])
    });
    let outline = outline(Collective::AllReduce, &grid, layout.ranks() * lanes);
    Ok(recipe(Plan { symmetry, ..outline }, grid, Numbering::Parts, move |me| {
        let own = |round, position| Place::input(me.chunk(round, 0, position));
        let keep = |round, further| Output::Local(Place::output(me.chunk(round, further, me.position)));
        // The island's sum is in the output until the result replaces it.
        let staged = |round| match me.is_alone() {
            true => (Input::Local(own(round, me.position)), None),
            false => {
                (Input::Local(Place::output(me.chunk(round, 0, me.position))), Some(me.collected(round)))
            }
        };
        let collect =
            me.rounds(0, islands, |round| me.collect(|position| own(round, position), keep(round, 0), None));
        let add = |round| {
            let (sum, wait) = staged(round);
            Step::reduce(vec![Input::received(me.behind(1)), sum]).after(wait)
        };
        let pass = |round| me.kept(Step::copy(Input::received(me.behind(1))).to(keep(round, 0)));
        let (first, wait) = staged(Round::only(0));
        let last = Round::only(islands - 1);
        let next = || Output::sent(me.next());
        let mut rail = vec![Step::copy(first).after(wait).to(next()).into()];
        rail.extend(me.rounds(1, islands - 2, |round| vec![add(round).to(next())]));
        rail.push(me.kept(add(last).to(keep(last, 0)).to(next())).into());
        rail.extend(me.rounds(0, islands - 2, |round| vec![pass(round).to(next())]));
        rail.push(pass(Round::only(islands - 2)).into());
        // The part of the next island is complete first.
        let hand_out = me.rounds(0, islands, |round| {
            me.hand_out(round, |position| Place::output(me.chunk(round, islands - 1, position)))
        });
        me.lanes_of(collect, rail, hand_out)
    }))
}

/// The all-gather: around the rail, distribute.
pub fn all_gather(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("hierarchical", layout)?;
    let (islands, lanes) = (grid.islands, grid.lanes());
    let symmetry = grid.symmetry(|island, position| {
        let lane = Digit { size: lanes, with: None };
        (vec![lane], vec![island, position, lane], vec![])
    });
    let outline = outline(Collective::AllGather, &grid, lanes);
    Ok(recipe(Plan { symmetry, ..outline }, grid, Numbering::Blocks, move |me| {
        let place = |round, position| Place::output(me.chunk(round, 0, position));
        let keep = |round, input| me.kept(Step::copy(input).to(Output::Local(place(round, me.position))));
        let received = || Input::received(me.behind(1));
        let next = || Output::sent(me.next());
        let own = keep(Round::only(0), Input::Local(Place::input(me.lane)));
        let mut rail = vec![own.to(next()).into()];
        rail.extend(me.rounds(1, islands - 2, |round| vec![keep(round, received()).to(next())]));
        rail.push(keep(Round::only(islands - 1), received()).into());
        let hand_out = me.rounds(0, islands, |round| me.hand_out(round, |position| place(round, position)));
        me.lanes_of(vec![], rail, hand_out)
    }))
}

/// The reduce-scatter: collect, around the rail.
pub fn reduce_scatter(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("hierarchical", layout)?;
    let (islands, lanes) = (grid.islands, grid.lanes());
    let slots = if grid.per_island > 1 { STAGED_SUMS.min(islands) } else { 0 };
    let symmetry = grid.symmetry(|island, position| {
        let lane = Digit { size: lanes, with: None };
        let scratch = if slots == 0 { vec![] } else { vec![Digit { size: slots, with: None }, lane] };
        (vec![island, position, lane], vec![lane], scratch)
    });
    let mut outline = outline(Collective::ReduceScatter, &grid, lanes);
    outline.chunks.scratch = slots * lanes;
    Ok(recipe(Plan { symmetry, ..outline }, grid, Numbering::Blocks, move |me| {
        let own = |round, position| Place::input(me.chunk(round, 1, position));
        let slot = |round: Round| Place::scratch(round.slot(slots, me.lane, me.lanes));
        let make =
            |round, free| me.collect(|position| own(round, position), Output::Local(slot(round)), free);
        // A slot is free once its sum has been sent; all are free at the end of the tile.
        let sent = |count: Affine| Wait::Reached { rank: me.rank.into(), counter: me.kept_counter(), count };
        let mut collect = me.rounds(0, slots, |round| make(round, None));
        if !me.is_alone() {
            let reuse = |round: Round| make(round, Some(sent(round.plus(1 - i64::from(slots)))));
            collect.extend(me.rounds(slots, islands - slots, reuse));
            collect.push(Step::sync().after([sent(islands.into())]).into());
        }
        let staged = |round| match me.is_alone() {
            true => (Input::Local(own(round, me.position)), None),
            false => (Input::Local(slot(round)), Some(me.collected(round))),
        };
        let add = |round| {
            let (sum, wait) = staged(round);
            me.kept(Step::reduce(vec![Input::received(me.behind(1)), sum]).after(wait))
        };
        let next = || Output::sent(me.next());
        let (first, wait) = staged(Round::only(0));
        let mut rail = vec![me.kept(Step::copy(first).after(wait).to(next())).into()];
        rail.extend(me.rounds(1, islands - 2, |round| vec![add(round).to(next())]));
        rail.push(add(Round::only(islands - 1)).to(Output::Local(Place::output(me.lane))).into());
        me.lanes_of(collect, rail, vec![])
    }))
}

/// The broadcast: scatter, along the rail, distribute.
pub fn broadcast(layout: &Layout, root: u32) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("hierarchical", layout)?;
    let parts = grid.per_island * grid.lanes();
    let outline = outline(Collective::Broadcast { root }, &grid, parts);
    Ok(recipe(outline, grid, Numbering::Parts, move |me| {
        let source = me.grid().member(root, me.lane, Numbering::Parts);
        let part = |position: u32| position * me.lanes + me.lane;
        let places = me.places_after(source.island);
        let mut rail = if places == 0 { me.deal_out(&source, part) } else { vec![] };
        let input = match places {
            0 if me.rank == root => Input::Local(Place::input(part(me.position))),
            0 => Input::received(me.dealer(&source)),
            _ => Input::received(me.behind(1)),
        };
        let keep = me.kept(Step::copy(input).to(Output::Local(Place::output(part(me.position)))));
        let is_last = places + 1 == me.grid().islands;
        rail.push(if is_last { keep } else { keep.to(Output::sent(me.next())) }.into());
        let hand_out = me.hand_out(Round::only(0), |position| Place::output(part(position)));
        me.lanes_of(vec![], rail, hand_out.into_iter().map(Node::Step).collect())
    }))
}

/// The all-to-all: to the rank on the target's rail, along the rail. Out of place only: a block would be overwritten
/// before it is sent.
pub fn all_to_all(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("hierarchical", layout)?;
    let (islands, lanes) = (grid.islands, grid.lanes());
    let symmetry = grid.symmetry(|island, position| {
        let blocks = vec![island, position, Digit { size: lanes, with: None }];
        (blocks.clone(), blocks, vec![])
    });
    let outline = outline(Collective::AllToAll, &grid, lanes);
    let outline = Plan { aliasing: vec![Aliasing::OutOfPlace], symmetry, ..outline };
    Ok(recipe(outline, grid, Numbering::Blocks, move |me| {
        // In round d, blocks go to the island d places ahead and come from the island d places behind.
        let theirs = |round, position| Input::Local(Place::input(me.chunk_ahead(round, position)));
        let here = Round::only(0);
        let keep = |round, position| Output::Local(Place::output(me.chunk(round, 0, position)));
        let hand_over = me.rounds(0, islands, |round| {
            me.peers().map(|to| Step::copy(theirs(round, to)).to(Output::sent(me.peer(to)))).collect()
        });
        let all = || once(me.position).chain(me.peers());
        let from = |round, position| match position == me.position {
            true => theirs(round, me.position),
            false => Input::received(me.peer(position)),
        };
        let mut forward: Vec<Node> =
            all().map(|position| Step::copy(from(here, position)).to(keep(here, position)).into()).collect();
        forward.extend(me.rounds(1, islands - 1, |round| {
            let target = || Output::Sent { to: me.elsewhere(round, true, me.position) };
            all().map(|position| Step::copy(from(round, position)).to(target())).collect()
        }));
        let arrive = me.rounds(1, islands - 1, |round| {
            let source = || Input::Received { from: me.elsewhere(round, false, me.position) };
            all_of(me.position, me.grid().per_island)
                .map(|position| Step::copy(source()).to(keep(round, position)))
                .collect()
        });
        let lane = |nodes| Lane { channel: COUNTERS * me.lane, nodes };
        [hand_over, forward, arrive].into_iter().filter(|nodes| !nodes.is_empty()).map(lane).collect()
    }))
}

/// All positions of an island, upwards from one.
fn all_of(position: u32, per_island: u32) -> impl Iterator<Item = u32> {
    (0..per_island).map(move |by| (position + by) % per_island)
}

/// The outline of all these plans: two channels per lane triple, one to collect and for the rails, one to distribute.
fn outline(collective: Collective, grid: &Grid<'_>, chunks: u32) -> Plan {
    let lanes = grid.lanes();
    let ranks = grid.islands * grid.per_island;
    let reads_counters = !matches!(collective, Collective::AllToAll);
    Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; 2 * lanes as usize],
        counters: if reads_counters { COUNTERS * lanes } else { 0 },
        uneven: collective.may_be_uneven(),
        ..Plan::outline("hierarchical", collective, ranks, chunks)
    }
}

fn recipe<'a>(
    outline: Plan,
    grid: Grid<'a>,
    numbering: Numbering,
    lanes: impl Fn(Member<'_>) -> Vec<Lane> + Send + Sync + 'a,
) -> Recipe<'a> {
    Recipe::new(outline, move |rank| {
        let members = (0..grid.lanes()).map(|lane| grid.member(rank, lane, numbering));
        Program { lanes: members.flat_map(&lanes).collect() }
    })
}

/// The steps of a member inside its island.
impl Member<'_> {
    /// Whether it is alone in its island.
    fn is_alone(&self) -> bool {
        self.grid().per_island == 1
    }

    fn collected_counter(&self) -> u32 {
        self.lane * COUNTERS
    }

    fn kept_counter(&self) -> u32 {
        self.lane * COUNTERS + 1
    }

    /// Until the island's sum of a round is complete.
    fn collected(&self, round: Round) -> Wait {
        Wait::Reached { rank: self.rank.into(), counter: self.collected_counter(), count: round.plus(1) }
    }

    /// A step of the rail's lane, which signals the other lanes of the triple.
    fn kept(&self, step: Step) -> Step {
        if self.is_alone() { step } else { step.signal(self.kept_counter()) }
    }

    /// Stores the sum of the island's chunks for this rank in `keep`, after the wait `free`, and sends the others their chunks:
    /// `own` is this rank's chunk for a position.
    fn collect(&self, own: impl Fn(u32) -> Place, keep: Output, free: Option<Wait>) -> Vec<Step> {
        let own = |position| Input::Local(own(position));
        let received = |position| Input::received(self.peer(position));
        let whole = |inputs| Step::reduce(inputs).after(free).to(keep).signal(self.collected_counter());
        let size = self.grid().per_island;
        if size == 1 {
            return vec![];
        }
        if self.grid().switched() {
            let give = self.peers().map(|to| Step::copy(own(to)).to(Output::sent(self.peer(to))));
            let all = once(own(self.position)).chain(self.peers().map(received)).collect();
            return give.chain(once(whole(all))).collect();
        }
        let next = || Output::sent(self.peer(self.inside(size - 1)));
        let add = |position| vec![received(self.inside(1)), own(position)];
        let start = Step::copy(own(self.inside(1))).to(next());
        let pass = (2..size).map(|places| Step::reduce(add(self.inside(places))).to(next()));
        once(start).chain(pass).chain(once(whole(add(self.position)))).collect()
    }

    /// Sends the chunk that this rank has kept in a round to all ranks of its island, and receives theirs.
    fn hand_out(&self, round: Round, place: impl Fn(u32) -> Place) -> Vec<Step> {
        let size = self.grid().per_island;
        if size == 1 {
            return vec![];
        }
        let kept =
            Wait::Reached { rank: self.rank.into(), counter: self.kept_counter(), count: round.plus(1) };
        let own = Step::copy(Input::Local(place(self.position))).after([kept]);
        let keep = |from: u32, position| {
            Step::copy(Input::received(self.peer(from))).to(Output::Local(place(position)))
        };
        if self.grid().switched() {
            let give = own.to_all(self.peers().map(|to| Output::sent(self.peer(to))));
            return once(give).chain(self.peers().map(|from| keep(from, from))).collect();
        }
        let next = || Output::sent(self.peer(self.inside(size - 1)));
        let pass = (1..size - 1).map(|places| keep(self.inside(1), self.inside(places)).to(next()));
        let last = keep(self.inside(1), self.inside(size - 1));
        once(own.to(next())).chain(pass).chain(once(last)).collect()
    }

    /// The rank from which this one receives its part of the root's buffer.
    fn dealer(&self, root: &Member<'_>) -> u32 {
        if self.grid().switched() { root.rank } else { self.peer(self.inside(1)) }
    }

    /// The root sends each rank of its island a part; around the ring of the island, the farthest first.
    fn deal_out(&self, root: &Member<'_>, part: impl Fn(u32) -> u32) -> Vec<Node> {
        let size = self.grid().per_island;
        let own = |position| Input::Local(Place::input(part(position)));
        let is_root = self.rank == root.rank;
        if self.grid().switched() {
            let give = |to| Step::copy(own(to)).to(Output::sent(self.peer(to))).into();
            return if is_root { self.peers().map(give).collect() } else { vec![] };
        }
        let next = || Output::sent(self.peer(self.inside(size - 1)));
        let places = (0..size).find(|&places| self.inside(places) == root.position).unwrap_or_default();
        let input = |beyond: u32| match is_root {
            true => own(root.inside(size - beyond)),
            false => Input::received(self.peer(self.inside(1))),
        };
        (places + 1..size).rev().map(|beyond| Step::copy(input(beyond)).to(next()).into()).collect()
    }

    /// The block for a position in the island that is the round's number of places ahead.
    fn chunk_ahead(&self, round: Round, position: u32) -> Affine {
        let rank = self.elsewhere(round, true, position);
        let lanes = i64::from(self.lanes);
        Affine {
            offset: rank.offset * lanes + i64::from(self.lane),
            base: rank.base * lanes,
            by: rank.by.iter().map(|by| by * lanes).collect(),
            modulo: rank.modulo.map(|modulo| modulo * self.lanes),
        }
    }

    /// The lanes of a triple that have steps.
    fn lanes_of(&self, collect: Vec<Node>, rail: Vec<Node>, hand_out: Vec<Node>) -> Vec<Lane> {
        let is_used =
            |lane: &Lane| lane.nodes.iter().any(|node| !matches!(node, Node::Loop(l) if l.body.is_empty()));
        let lane = |by: u32, nodes| Lane { channel: 2 * self.lane + by, nodes };
        [lane(0, collect), lane(0, rail), lane(1, hand_out)].into_iter().filter(is_used).collect()
    }
}
