//! All combinations of algorithms, collectives and kinds of layouts.
//!
//! Nothing is listed by hand. An algorithm that is added to [`Algorithm::ALL`] is proved, run, mutated and compared by
//! every test that takes its cases from here; a new collective does not compile until this module knows its variants.

use std::collections::HashSet;

use weftlink_plan::layout::Tree;
use weftlink_plan::{Algorithm, Collective, Layout, Plan, Recipe};

/// An algorithm for a collective on a layout.
#[derive(Clone, Debug)]
pub struct Case {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its collective.
    pub collective: Collective,
    /// Its ranks.
    pub layout: Layout,
    /// A short description of the layout.
    pub on: String,
}

/// All cases of this many ranks with different plans.
pub fn all(ranks: u32) -> Vec<Case> {
    let mut seen = HashSet::new();
    possible(ranks).into_iter().filter(|case| seen.insert(case.plan())).collect()
}

/// All cases of this many ranks. Algorithms that ignore the layout have the same plan on several.
pub fn possible(ranks: u32) -> Vec<Case> {
    let mut found = Vec::new();
    for (on, layout) in layouts(ranks) {
        for collective in collectives(ranks) {
            for algorithm in Algorithm::ALL {
                if algorithm.recipe(&collective, &layout).is_ok() {
                    let (collective, layout, on) = (collective.clone(), layout.clone(), on.clone());
                    found.push(Case { algorithm, collective, layout, on });
                }
            }
        }
    }
    found
}

impl Case {
    /// The plan's recipe.
    ///
    /// # Panics
    /// If the algorithm does not support the case, which cases of this module exclude.
    pub fn recipe(&self) -> Recipe<'_> {
        self.algorithm.recipe(&self.collective, &self.layout).unwrap_or_else(|why| panic!("{self}: {why}"))
    }

    /// The plan, not yet verified.
    pub fn plan(&self) -> Plan {
        self.recipe().plan()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} on {}", self.algorithm, self.collective, self.on)
    }
}

/// Every collective of this many ranks: the first, a middle and the last rank as root, tori of every shape, lists of messages of
/// every kind.
pub fn collectives(ranks: u32) -> Vec<Collective> {
    let others = [Collective::SendReceive { messages: vec![] }, Collective::Neighbours { torus: [1, 1, 1] }];
    Collective::KINDS.into_iter().chain(others).flat_map(|kind| variants(&kind, ranks)).collect()
}

fn variants(kind: &Collective, ranks: u32) -> Vec<Collective> {
    let mut roots = vec![0, ranks / 2, ranks - 1];
    roots.dedup();
    let rooted = |with: fn(u32) -> Collective| roots.iter().map(|&root| with(root)).collect();
    match kind {
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Scan
        | Collective::ExclusiveScan
        | Collective::Barrier => vec![kind.clone()],
        Collective::Reduce { .. } => rooted(|root| Collective::Reduce { root }),
        Collective::Broadcast { .. } => rooted(|root| Collective::Broadcast { root }),
        Collective::Gather { .. } => rooted(|root| Collective::Gather { root }),
        Collective::Scatter { .. } => rooted(|root| Collective::Scatter { root }),
        Collective::SendReceive { .. } => {
            message_lists(ranks).into_iter().map(|messages| Collective::SendReceive { messages }).collect()
        }
        Collective::Neighbours { .. } => {
            tori(ranks).into_iter().map(|torus| Collective::Neighbours { torus }).collect()
        }
    }
}

/// Lists of messages: none, around a ring, all to one, both ways between two and twice the same way.
fn message_lists(ranks: u32) -> Vec<Vec<(u32, u32)>> {
    let last = ranks - 1;
    let mut lists = vec![
        vec![],
        (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect(),
        (1..ranks).map(|rank| (rank, 0)).collect(),
        vec![(0, last), (last, 0), (0, last)],
        vec![(last, last), (0, last)],
    ];
    lists.sort();
    lists.dedup();
    lists
}

/// The shapes of a torus of this many ranks.
fn tori(ranks: u32) -> Vec<[u32; 3]> {
    let divisors = |of: u32| (1..=of).filter(move |size| of.is_multiple_of(*size));
    divisors(ranks).flat_map(|x| divisors(ranks / x).map(move |y| [x, y, ranks / x / y])).collect()
}

/// Layouts of this many ranks, with their names: flat with up to three rings, equal islands of every size, unequal
/// islands, rings in an order of their own, spanning trees, and islands whose switches cannot compute.
pub fn layouts(ranks: u32) -> Vec<(String, Layout)> {
    let flat = |rings| (format!("{ranks} ranks, {rings} rings"), Layout::flat(ranks, rings));
    let mut layouts = vec![flat(1), flat(2), flat(3)];
    for islands in (2..=ranks).filter(|islands| ranks.is_multiple_of(*islands)) {
        let each = ranks / islands;
        layouts.push((format!("{islands} x {each} ranks"), Layout::grid(islands, each, 1)));
        layouts.push((format!("{islands} x {each} ranks, 2 rings"), Layout::grid(islands, each, 2)));
    }
    if ranks > 2 {
        let ragged = Layout {
            islands: vec![vec![0], (1..ranks).collect()],
            rings: vec![stride_order(ranks)],
            network_reduces: Ok(()),
            ..Layout::flat(ranks, 1)
        };
        layouts.push((format!("1 + {} ranks", ranks - 1), ragged));
        let none = || Err("there is no such switch".to_owned());
        let (multicast, network_reduces) = (none(), none());
        let plain = Layout { switched: false, multicast, network_reduces, ..Layout::flat(ranks, 1) };
        layouts.push((format!("{ranks} ranks without switches"), plain));
    }
    let heap = (0..ranks).map(|rank| rank.checked_sub(1).map(|child| child / 2)).collect();
    let row = (0..ranks).map(|rank| Some(rank + 1).filter(|&next| next < ranks)).collect();
    let trees = vec![Tree { parents: heap }, Tree { parents: row }];
    layouts.push((format!("{ranks} ranks, 2 trees"), Layout { trees, ..Layout::flat(ranks, 1) }));
    layouts
}

/// All ranks, the even ones first: a ring order that no shift maps to itself.
fn stride_order(ranks: u32) -> Vec<u32> {
    (0..ranks).step_by(2).chain((1..ranks).step_by(2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_all_ranks_and_every_algorithm_has_cases() {
        for ranks in 1..=8 {
            for (on, layout) in layouts(ranks) {
                assert_eq!(layout.ranks(), ranks, "{on}");
                for ring in &layout.rings {
                    let distinct: HashSet<_> = ring.iter().collect();
                    assert_eq!(distinct.len() as u32, ranks, "{on}");
                }
            }
        }
        let cases = all(4);
        for algorithm in Algorithm::ALL {
            assert!(
                cases.iter().any(|case| case.algorithm == algorithm),
                "{algorithm} has no case on 4 ranks"
            );
        }
        assert!(cases.len() < possible(4).len());
    }
}
