//! # Dissemination
//!
//! A barrier in which every round doubles the number of ranks that a rank knows to have entered.
//!
//! **Steps.** In the round of distance d, which is 1, 2, 4 and so on, every rank increments its counter and waits until
//! the rank d places behind has incremented its own as often. It then knows all that this rank knew. After the last round
//! every rank knows that all have entered.
//!
//! **Bytes on the wire.** None but the counters.
//!
//! **Possible.** Where ranks can read each other's counters.
//!
//! **When it wins.** Many ranks, or a network between them: in each round, every rank polls one other rank, while with
//! one-shot every rank polls all.
//!
//! **Paper.** Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | barrier | `<= log2(g) [m = 1] + max(log2(g) - 1, 0) [m > 1]` | `<= (log2(m) + [g > 1] + [pow2(2g-1) > g+1]) [m > 1]` | `0` | `0` |

use super::rounds::ring_symmetry;
use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Collective, Lane, Plan, Program, Step, Wait};

/// Counts the rounds that a rank has begun.
const BEGUN: u32 = 0;

/// The barrier.
pub fn barrier(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Plan { counters: 1, ..Plan::outline("dissemination", Collective::Barrier, ranks, 1) };
    let outline = Plan { symmetry: Some(ring_symmetry(&outline)), ..outline };
    Recipe::new(outline, move |rank| {
        let rounds = ranks.next_power_of_two().ilog2();
        let wait = |round: u32| Wait::reached((rank + ranks - (1 << round)) % ranks, BEGUN, round + 1);
        // A rank begins the next round when the wait of the last one ends.
        let steps = (0..rounds).map(|round| {
            let news = round.checked_sub(1).map(wait);
            Step::sync().after(news).signal(BEGUN)
        });
        let leave = Step::sync().after(rounds.checked_sub(1).map(wait));
        Program { lanes: vec![Lane { channel: 0, nodes: steps.chain([leave]).map(Into::into).collect() }] }
    })
}
