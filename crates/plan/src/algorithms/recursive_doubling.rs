//! # Recursive doubling
//!
//! Ranks exchange their data with a rank at distance 1, then 2, 4 and so on: every round doubles what a rank has.
//!
//! **Steps.** *All-reduce:* in every round two ranks exchange their partial sums and both combine them, the lower rank's
//! first, so that all end with the same bits, in the order of the ranks. With more ranks than a power of two, each odd rank
//! of the first ones sends its input to the even rank before it and receives the result in the end. *All-gather:* in every
//! round two ranks exchange all blocks they have, each straight into its place. *Scan:* in the round of distance d, every
//! rank sends its partial reduction to the rank d places ahead. A rank that has received everything sends its result to all
//! ranks that still need it in one step. *Exclusive scan:* the same, but every rank keeps the received sum separate and adds
//! its own input only to the sums it sends.
//!
//! **Bytes on the wire.** All-reduce and scans: the buffer in every round. All-gather: n-1 blocks, the least possible,
//! but half of them over the largest distance.
//!
//! **Possible.** The all-gather only on a power of two ranks: otherwise it would need one round more than
//! [Bruck's](super::bruck). The others everywhere.
//!
//! **When it wins.** Small buffers, where only latency counts.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
//! the scans: Hillis and Steele, "Data parallel algorithms", 1986.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `<= log2(g) + [n > pow2(n)] (1 + [g > pow2(g)] [m > 1])` | `<= log2(m) + ([g = 1] [m > pow2(m)] + log2(g) [g > pow2(g)]) [m > 1]` | `<= S (log2(g) + [g > pow2(g)] [m > 1])` | `<= S g (log2(pow2(m)) + [g = 1] [m > pow2(m)] + 2 [g > pow2(g)]) [m > 1]` |
//! | all-gather | `log2(g)` | `log2(m)` | `S (g-1)/n` | `S g (n-g)/n` |
//! | scan, exclusive-scan | `<= log2(g)` | `<= log2(m) + [pow2(2g-1) > g+1] [m > 1]` | `S log2(g)` | `S (pow2(2g-1) - 1 + g (log2(n) - log2(g)) - max(0, g + pow2(max(n-1, 1)) - n)) [m > 1]` |

use super::Impossible;
use super::rounds::{Folded, Role, Rounds, cube, cube_symmetry};
use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let folded = Folded::new(layout.ranks());
    recipe(Collective::AllReduce, layout, 0, move |rank| {
        let (corner, guest) = match folded.role(rank) {
            Role::Corner(corner) => (corner, None),
            Role::Host { corner, guest } => (corner, Some(guest)),
            Role::Guest { host } => return vec![give(host), Step::copy(Input::received(host)).to(keep())],
        };
        let mut sum = match guest {
            Some(guest) => Step::reduce(vec![own(), Input::received(guest)]).to(keep()),
            None => Step::copy(own()),
        };
        let mut steps = Vec::new();
        let mut so_far = if guest.is_some() { kept() } else { own() };
        for dimension in folded.dimensions() {
            let partner = folded.rank(corner ^ dimension);
            steps.push(sum.to(Output::sent(partner)));
            let theirs = Input::received(partner);
            let ordered = if corner & dimension == 0 { vec![so_far, theirs] } else { vec![theirs, so_far] };
            sum = Step::reduce(ordered).to(keep());
            so_far = kept();
        }
        let alone = layout.ranks() == 1;
        steps.push(if alone { sum.to(keep()) } else { sum.to_all(guest.map(Output::sent)) });
        steps
    })
}

/// The all-gather, on a power of two ranks.
pub fn all_gather(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let ranks = layout.ranks();
    if !ranks.is_power_of_two() {
        let what = "an all-gather with recursive-doubling needs a power of two ranks";
        return Err(Impossible(format!("{what}, and {ranks} is not one; bruck takes any number")));
    }
    let outline = Rounds::outline("recursive-doubling", Collective::AllGather, ranks, 1);
    let outline = Plan { symmetry: Some(cube_symmetry(&outline)), uneven: true, ..outline };
    Ok(Recipe::new(outline, move |rank| {
        let mut rounds = Rounds::new(rank);
        rounds.send([Step::copy(own()).to(Output::Local(Place::output(rank))).into()]);
        for dimension in Folded::new(ranks).dimensions() {
            let partner = rank ^ dimension;
            rounds.send([cube(rank, dimension - 1, |block| {
                Step::copy(Input::Local(Place::output(block))).to(Output::sent(partner))
            })]);
            rounds.receive([cube(partner, dimension - 1, |block| {
                Step::copy(Input::received(partner)).to(Output::Local(Place::output(block)))
            })]);
        }
        rounds.program()
    }))
}

/// The scan.
pub fn scan(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    recipe(Collective::Scan, layout, 0, move |rank| {
        let mut steps = Vec::new();
        let (mut sum, mut so_far) = (Step::copy(own()), own());
        for distance in distances(rank) {
            let targets = Some(rank + distance).filter(|&target| target < ranks).map(Output::sent);
            // Only in the first round is there no kept sum and no rank to send to.
            if distance > 1 || targets.is_some() {
                steps.push(sum.to_all(targets));
            }
            sum = Step::reduce(vec![Input::received(rank - distance), so_far]).to(keep());
            so_far = kept();
        }
        let sum = if rank == 0 { sum.to(keep()) } else { sum };
        steps.push(sum.to_all(lacking(rank, ranks).map(Output::sent)));
        steps
    })
}

/// The exclusive scan.
pub fn exclusive_scan(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let before = || Place::scratch(0);
    recipe(Collective::ExclusiveScan, layout, 1, move |rank| {
        let mut steps = Vec::new();
        for distance in distances(rank) {
            let next = Some(rank + distance).filter(|&target| target < ranks);
            let inclusive = if distance == 1 { vec![own()] } else { vec![Input::Local(before()), own()] };
            steps.extend(next.map(|target| Step::reduce(inclusive).to(Output::sent(target))));
            let theirs = Input::received(rank - distance);
            let parts = if distance == 1 { vec![theirs] } else { vec![theirs, Input::Local(before())] };
            steps.push(Step::reduce(parts).to(Output::Local(before())));
        }
        let mut targets = lacking(rank, ranks).map(Output::sent).peekable();
        if targets.peek().is_some() {
            let inclusive = if rank == 0 { vec![own()] } else { vec![Input::Local(before()), own()] };
            steps.push(Step::reduce(inclusive).to_all(targets));
        }
        if rank > 0 {
            // Last, since in place it overwrites the rank's own input.
            steps.push(Step::copy(Input::Local(before())).to(keep()));
        }
        steps
    })
}

fn own() -> Input {
    Input::Local(Place::input(0))
}

fn keep() -> Output {
    Output::Local(Place::output(0))
}

fn kept() -> Input {
    Input::Local(Place::output(0))
}

fn give(to: u32) -> Step {
    Step::copy(own()).to(Output::sent(to))
}

/// The distances from which a rank receives in a scan: 1, 2, 4 and so on, as far as there are ranks before it.
fn distances(rank: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|round| 1 << round).take_while(move |&distance| distance <= rank)
}

/// The ranks to which a rank sends once it has received everything.
fn lacking(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    let distances = (0..u32::BITS).map(|round| 1_u32 << round).skip_while(move |&distance| distance <= rank);
    distances.take_while(move |&distance| distance < ranks - rank).map(move |distance| rank + distance)
}

/// A plan of whole buffers, in one lane.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    scratch: u32,
    steps: impl Fn(u32) -> Vec<Step> + Send + Sync + 'a,
) -> Recipe<'a> {
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    let mut outline = Plan { channels, ..Plan::outline("recursive-doubling", collective, layout.ranks(), 1) };
    outline.chunks.scratch = scratch;
    Recipe::new(outline, move |rank| {
        let nodes = steps(rank).into_iter().map(Into::into).collect();
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}
