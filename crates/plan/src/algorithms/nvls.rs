//! # NVLS
//!
//! The switch of an island adds and copies: a load through it returns the sum over all ranks, and a store goes to all of them.
//!
//! **Steps.** *All-reduce:* once all have entered the call, rank r loads the sum of chunk r of every input through the switch and
//! stores it to chunk r of every output, in one step. *All-gather:* every rank stores its block to all. *Reduce-scatter:*
//! every rank loads the sum of its block. *Broadcast:* the root stores to all. *Reduce:* the root loads the sum. No rank leaves
//! before all accesses to its buffers are done. A rank that is alone on its island copies.
//!
//! **Bytes on the wire.** One buffer up to the switch and one down from it per rank, for any number of ranks: half of what any
//! algorithm without the switch sends for an all-reduce.
//!
//! **Possible.** On one island whose switch multicasts and reduces, in symmetric buffers, which the switch can address
//! together. The order in which the switch adds is unknown, so each sum is loaded once and stored to all.
//!
//! **When it wins.** Medium and large buffers inside an NVLink island of the Hopper generation or later.
//!
//! **Paper.** Klenk, Jiang, Thorson and Dennison, "An in-network architecture for accelerating shared-memory
//! multiprocessor collectives", 2020.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2[n > 1]` | `0` | `[n > 1] S (n+1)/n` | `0` |
//! | all-gather | `2[n > 1]` | `0` | `[n > 1] S` | `0` |
//! | reduce-scatter | `2[n > 1]` | `0` | `[n > 1] S` | `0` |
//! | broadcast | `2[n > 1]` | `0` | `[n > 1] S` | `0` |
//! | reduce | `2[n > 1]` | `0` | `[n > 1] S` | `0` |

use crate::Recipe;
use crate::algorithms::Impossible;
use crate::layout::Layout;
use crate::plan::{
    Buffer, Collective, Digit, Group, Grouped, Input, Lane, Output, Place, Plan, Program, RankDigit, Step,
    Switch, Symmetry, Wait,
};

/// Signalled once a rank has taken its step.
const DONE: u32 = 0;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let share = |me: &Me| Some(Step::copy(me.sum(me.rank)).to(me.everywhere(me.rank)));
    recipe(Collective::AllReduce, layout, layout.ranks(), share)
}

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let own = |me: &Me| Some(Step::copy(Input::Local(Place::input(0))).to(me.everywhere(me.rank)));
    recipe(Collective::AllGather, layout, 1, own)
}

/// The reduce-scatter.
pub fn reduce_scatter(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let block = |me: &Me| Some(Step::copy(me.sum(me.rank)).to(Output::Local(Place::output(0))));
    recipe(Collective::ReduceScatter, layout, 1, block)
}

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Result<Recipe<'_>, Impossible> {
    let at_root = move |me: &Me| {
        (me.rank == root).then(|| Step::copy(Input::Local(Place::input(0))).to(me.everywhere(0)))
    };
    recipe(Collective::Broadcast { root }, layout, 1, at_root)
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Result<Recipe<'_>, Impossible> {
    let at_root =
        move |me: &Me| (me.rank == root).then(|| Step::copy(me.sum(0)).to(Output::Local(Place::output(0))));
    recipe(Collective::Reduce { root }, layout, 1, at_root)
}

/// A rank of the island, whose switch is the only group.
struct Me {
    rank: u32,
    ranks: u32,
}

impl Me {
    /// The sum of a chunk of all inputs.
    fn sum(&self, chunk: u32) -> Input {
        match self.ranks {
            1 => Input::Local(Place::input(chunk)),
            _ => Input::Switch(Grouped { group: 0, buffer: Buffer::Input, chunk: chunk.into() }),
        }
    }

    /// A chunk of all outputs.
    fn everywhere(&self, chunk: u32) -> Output {
        match self.ranks {
            1 => Output::Local(Place::output(chunk)),
            _ => Output::Multicast(Grouped { group: 0, buffer: Buffer::Output, chunk: chunk.into() }),
        }
    }

    /// The other ranks, upwards from this one.
    fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |by| (rank + by) % ranks)
    }
}

/// The plan in which the ranks with a step take it once all have entered, and all wait for them.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    chunks: u32,
    step: impl Fn(&Me) -> Option<Step> + Send + Sync + 'a,
) -> Result<Recipe<'a>, Impossible> {
    let ranks = layout.ranks();
    if layout.islands.len() > 1 {
        let islands = layout.islands.len();
        return Err(Impossible(format!("nvls works inside one island, but there are {islands}")));
    }
    if let Err(why) = &layout.multicast {
        return Err(Impossible(format!("nvls needs a switch that multicasts and reduces: {why}")));
    }
    let all = Group { switch: Switch::Nvswitch, members: (0..ranks).collect() };
    let outline = Plan {
        groups: if ranks > 1 { vec![all] } else { vec![] },
        counters: 1,
        uneven: collective.may_be_uneven(),
        symmetry: collective.is_symmetric().then(|| symmetry(&collective, ranks)),
        ..Plan::outline("nvls", collective, ranks, chunks)
    };
    Ok(Recipe::new(outline, move |rank| {
        let me = Me { rank, ranks };
        let acts = |rank: &u32| step(&Me { rank: *rank, ranks }).is_some();
        let act = step(&me).map(|step| step.after(me.peers().map(Wait::entered)).signal(DONE));
        let done = me.peers().filter(acts).map(|peer| Wait::reached(peer, DONE, 1));
        let nodes = act.into_iter().chain([Step::sync().after(done)]).map(Into::into).collect();
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    }))
}

/// The symmetry of all ranks around the ring.
fn symmetry(collective: &Collective, ranks: u32) -> Symmetry {
    let (turning, one) = (vec![Digit { size: ranks, with: Some(0) }], vec![Digit { size: 1, with: None }]);
    let (input, output) = match collective {
        Collective::AllGather => (one, turning),
        Collective::ReduceScatter => (turning, one),
        _ => (turning.clone(), turning),
    };
    Symmetry { ranks: vec![RankDigit { size: ranks, turns: true }], input, output, scratch: vec![] }
}
