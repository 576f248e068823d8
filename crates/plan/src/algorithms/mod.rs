//! The algorithms, one file each. A file's header gives the steps, the bytes on the wire, when it wins and the paper.
//!
//! An algorithm writes a [recipe](crate::Recipe) for a collective and a [layout](crate::Layout) of ranks on their wiring, or
//! says why it cannot.

pub mod bruck;
pub mod chain;
pub mod collnet_chain;
pub mod collnet_direct;
pub mod dissemination;
pub mod exchange;
mod grid;
pub mod halving_doubling;
pub mod header;
pub mod hierarchical;
pub mod linear;
pub mod nvls;
pub mod nvls_tree;
pub mod one_shot;
pub mod pairwise;
pub mod pat;
pub mod pull;
pub mod recursive_doubling;
pub mod ring;
mod rounds;
pub mod staged;
pub mod tree;
pub mod two_shot;

use std::fmt;
use std::str::FromStr;

use weftlink_fabric::nearest::{did_you_mean, fold};

use crate::collective::Collective;
use crate::layout::Layout;
use crate::plan::{Plan, Protocol};
use crate::recipe::Recipe;

/// The algorithms that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank sends its data to all ranks that need it; payload and flag share cache lines.
    ExchangeLl,
    /// Every rank sends its data to all ranks that need it, through slots.
    Exchange,
    /// Every rank reads all inputs in peer memory and reduces them itself.
    OneShot,
    /// Every rank reduces its share in peer memory and writes the result to all ranks.
    TwoShot,
    /// Every rank reduces its share in peer memory and reads the others' results.
    Pull,
    /// Every rank copies its part into staging memory, from which the others read it.
    Staged,
    /// Chunks travel around a ring twice, once to be reduced and once to be distributed.
    Ring,
    /// Ranks form a chain, and each forwards to the next.
    Chain,
    /// The root exchanges data with one rank after the other.
    Linear,
    /// Every two ranks exchange their data for each other.
    Pairwise,
    /// Two binary trees carry half of the data each, up to reduce it and down to distribute it.
    Tree,
    /// First inside each island, then between the islands along rails, then inside again.
    Hierarchical,
    /// Ranks exchange all their data with a rank at twice the distance in every round.
    RecursiveDoubling,
    /// Ranks exchange half of the remaining data in every round, then twice the gathered data.
    HalvingDoubling,
    /// Blocks for the same direction around the ring travel together, over distances that double.
    Bruck,
    /// A tree for every rank's block, all at once, the farthest ranks first.
    Pat,
    /// Ranks learn which others have entered, over distances that double.
    Dissemination,
    /// The switch of the island adds and distributes.
    Nvls,
    /// Switches add and distribute inside islands, trees between them.
    NvlsTree,
    /// Each rank reduces its part inside its island, and the network adds the parts of all islands.
    CollnetDirect,
    /// A chain through each island, and the network adds the sums of the chains' heads.
    CollnetChain,
}

/// Why an algorithm has no plan for a collective on some wiring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Impossible(pub String);

/// The name and a one-line description of each algorithm, in the order of the enum.
const ABOUT: &[(Algorithm, &str, &str)] = &[
    (
        Algorithm::ExchangeLl,
        "exchange-ll",
        "every rank sends its data to all ranks, payload and flag in one cache line",
    ),
    (Algorithm::Exchange, "exchange", "every rank sends its data to all ranks, through slots"),
    (Algorithm::OneShot, "one-shot", "every rank reads all inputs in peer memory and reduces them itself"),
    (
        Algorithm::TwoShot,
        "two-shot",
        "every rank reduces its share in peer memory and writes it to all ranks",
    ),
    (Algorithm::Pull, "pull", "every rank reduces its share in peer memory and reads the others' results"),
    (Algorithm::Staged, "staged", "every rank copies its part into staging memory, where the others read it"),
    (Algorithm::Ring, "ring", "chunks travel around a ring, once to be reduced and once to be distributed"),
    (Algorithm::Chain, "chain", "ranks form a chain, and each forwards to the next, tile after tile"),
    (Algorithm::Linear, "linear", "the root exchanges data with one rank after the other"),
    (Algorithm::Pairwise, "pairwise", "every two ranks exchange their data for each other"),
    (
        Algorithm::Tree,
        "tree",
        "two binary trees carry half of the data each, up to reduce it and down to distribute it",
    ),
    (
        Algorithm::Hierarchical,
        "hierarchical",
        "inside each island, between the islands along rails, inside again",
    ),
    (
        Algorithm::RecursiveDoubling,
        "recursive-doubling",
        "every rank exchanges all its data with a rank at twice the distance in every round",
    ),
    (
        Algorithm::HalvingDoubling,
        "halving-doubling",
        "every rank exchanges half of the remaining data per round, then twice the gathered data",
    ),
    (
        Algorithm::Bruck,
        "bruck",
        "blocks for the same direction on the ring travel together, over distances that double",
    ),
    (Algorithm::Pat, "pat", "a tree for every rank's block, all at once, the farthest ranks first"),
    (
        Algorithm::Dissemination,
        "dissemination",
        "ranks learn which others have entered, over distances that double",
    ),
    (Algorithm::Nvls, "nvls", "the switch of the island adds and distributes"),
    (Algorithm::NvlsTree, "nvls-tree", "switches add and distribute inside islands, trees between them"),
    (
        Algorithm::CollnetDirect,
        "collnet-direct",
        "each rank reduces its part inside its island, the network adds those of all islands",
    ),
    (
        Algorithm::CollnetChain,
        "collnet-chain",
        "a chain through each island, the network adds the sums of the chains' heads",
    ),
];

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; ABOUT.len()] = {
        let mut all = [Algorithm::Ring; ABOUT.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = ABOUT[at].0;
            assert!(all[at] as usize == at, "the table is in the order of the enum");
            at += 1;
        }
        all
    };

    /// The name in tables, flags and files.
    pub fn name(self) -> &'static str {
        ABOUT[self as usize].1
    }

    /// A one-line description.
    pub fn about(self) -> &'static str {
        ABOUT[self as usize].2
    }

    /// The algorithms for a collective on unknown wiring, without switches that compute.
    pub fn doing(collective: &Collective) -> impl Iterator<Item = Algorithm> {
        let plan = |algorithm: &Algorithm| algorithm.flat(collective, 2, 1);
        Self::ALL
            .into_iter()
            .filter(move |algorithm| plan(algorithm).is_ok_and(|plan| plan.groups.is_empty()))
    }

    /// Its recipe for a collective on a layout; the error says why there is none.
    pub fn recipe<'a>(self, collective: &Collective, layout: &'a Layout) -> Result<Recipe<'a>, Impossible> {
        if let Some(what) = collective.misfit(layout.ranks()) {
            return Err(Impossible(what));
        }
        match (self, collective) {
            (Algorithm::ExchangeLl, Collective::AllReduce) => Ok(exchange::all_reduce(layout, Protocol::Ll)),
            (Algorithm::Exchange, Collective::AllReduce) => {
                Ok(exchange::all_reduce(layout, Protocol::Simple))
            }
            (Algorithm::ExchangeLl, Collective::AllGather) => Ok(exchange::all_gather(layout, Protocol::Ll)),
            (Algorithm::Exchange, Collective::AllGather) => {
                Ok(exchange::all_gather(layout, Protocol::Simple))
            }
            (Algorithm::ExchangeLl, Collective::ReduceScatter) => {
                Ok(exchange::reduce_scatter(layout, Protocol::Ll))
            }
            (Algorithm::Exchange, Collective::ReduceScatter) => {
                Ok(exchange::reduce_scatter(layout, Protocol::Simple))
            }
            (Algorithm::OneShot, Collective::AllReduce) => Ok(one_shot::all_reduce(layout)),
            (Algorithm::OneShot, &Collective::Reduce { root }) => Ok(one_shot::reduce(layout, root)),
            (Algorithm::OneShot, &Collective::Broadcast { root }) => Ok(one_shot::broadcast(layout, root)),
            (Algorithm::OneShot, Collective::AllGather) => Ok(one_shot::all_gather(layout)),
            (Algorithm::OneShot, Collective::ReduceScatter) => Ok(one_shot::reduce_scatter(layout)),
            (Algorithm::OneShot, Collective::AllToAll) => Ok(one_shot::all_to_all(layout)),
            (Algorithm::OneShot, &Collective::Gather { root }) => Ok(one_shot::gather(layout, root)),
            (Algorithm::OneShot, &Collective::Scatter { root }) => Ok(one_shot::scatter(layout, root)),
            (Algorithm::OneShot, Collective::Barrier) => Ok(one_shot::barrier(layout)),
            (Algorithm::TwoShot, Collective::AllReduce) => Ok(two_shot::all_reduce(layout)),
            (Algorithm::TwoShot, &Collective::Reduce { root }) => Ok(two_shot::reduce(layout, root)),
            (Algorithm::TwoShot, &Collective::Broadcast { root }) => Ok(two_shot::broadcast(layout, root)),
            (Algorithm::TwoShot, Collective::AllGather) => Ok(two_shot::all_gather(layout)),
            (Algorithm::TwoShot, Collective::AllToAll) => Ok(two_shot::all_to_all(layout)),
            (Algorithm::Pull, Collective::AllReduce) => Ok(pull::all_reduce(layout)),
            (Algorithm::Pull, &Collective::Reduce { root }) => Ok(pull::reduce(layout, root)),
            (Algorithm::Staged, Collective::AllReduce) => Ok(staged::all_reduce(layout)),
            (Algorithm::Staged, &Collective::Reduce { root }) => Ok(staged::reduce(layout, root)),
            (Algorithm::Staged, &Collective::Broadcast { root }) => Ok(staged::broadcast(layout, root)),
            (Algorithm::Staged, Collective::AllGather) => Ok(staged::all_gather(layout)),
            (Algorithm::Staged, Collective::ReduceScatter) => Ok(staged::reduce_scatter(layout)),
            (Algorithm::Staged, Collective::AllToAll) => Ok(staged::all_to_all(layout)),
            (Algorithm::Staged, &Collective::Gather { root }) => Ok(staged::gather(layout, root)),
            (Algorithm::Staged, &Collective::Scatter { root }) => Ok(staged::scatter(layout, root)),
            (Algorithm::Ring, Collective::AllReduce) => Ok(ring::all_reduce(layout)),
            (Algorithm::Ring, Collective::AllGather) => Ok(ring::all_gather(layout)),
            (Algorithm::Ring, Collective::ReduceScatter) => Ok(ring::reduce_scatter(layout)),
            (Algorithm::Chain, &Collective::Broadcast { root }) => Ok(chain::broadcast(layout, root)),
            (Algorithm::Chain, &Collective::Reduce { root }) => Ok(chain::reduce(layout, root)),
            (Algorithm::Linear, &Collective::Gather { root }) => Ok(linear::gather(layout, root)),
            (Algorithm::Linear, &Collective::Scatter { root }) => Ok(linear::scatter(layout, root)),
            (Algorithm::Pairwise, Collective::AllToAll) => Ok(pairwise::all_to_all(layout)),
            (Algorithm::Tree, Collective::AllReduce) => Ok(tree::all_reduce(layout)),
            (Algorithm::Tree, &Collective::Broadcast { root }) => Ok(tree::broadcast(layout, root)),
            (Algorithm::Tree, &Collective::Reduce { root }) => Ok(tree::reduce(layout, root)),
            (Algorithm::Hierarchical, Collective::AllReduce) => hierarchical::all_reduce(layout),
            (Algorithm::Hierarchical, Collective::AllGather) => hierarchical::all_gather(layout),
            (Algorithm::Hierarchical, Collective::ReduceScatter) => hierarchical::reduce_scatter(layout),
            (Algorithm::Hierarchical, &Collective::Broadcast { root }) => {
                hierarchical::broadcast(layout, root)
            }
            (Algorithm::Hierarchical, Collective::AllToAll) => hierarchical::all_to_all(layout),
            (Algorithm::RecursiveDoubling, Collective::AllReduce) => {
                Ok(recursive_doubling::all_reduce(layout))
            }
            (Algorithm::RecursiveDoubling, Collective::AllGather) => recursive_doubling::all_gather(layout),
            (Algorithm::RecursiveDoubling, Collective::Scan) => Ok(recursive_doubling::scan(layout)),
            (Algorithm::RecursiveDoubling, Collective::ExclusiveScan) => {
                Ok(recursive_doubling::exclusive_scan(layout))
            }
            (Algorithm::HalvingDoubling, Collective::AllReduce) => Ok(halving_doubling::all_reduce(layout)),
            (Algorithm::HalvingDoubling, Collective::AllGather) => Ok(halving_doubling::all_gather(layout)),
            (Algorithm::HalvingDoubling, Collective::ReduceScatter) => {
                Ok(halving_doubling::reduce_scatter(layout))
            }
            (Algorithm::Bruck, Collective::AllGather) => Ok(bruck::all_gather(layout)),
            (Algorithm::Bruck, Collective::AllToAll) => Ok(bruck::all_to_all(layout)),
            (Algorithm::Pat, Collective::AllGather) => Ok(pat::all_gather(layout)),
            (Algorithm::Pat, Collective::ReduceScatter) => Ok(pat::reduce_scatter(layout)),
            (Algorithm::Dissemination, Collective::Barrier) => Ok(dissemination::barrier(layout)),
            (Algorithm::Chain, Collective::Scan) => Ok(chain::scan(layout)),
            (Algorithm::Chain, Collective::ExclusiveScan) => Ok(chain::exclusive_scan(layout)),
            (Algorithm::Linear, &Collective::Broadcast { root }) => Ok(linear::broadcast(layout, root)),
            (Algorithm::Linear, &Collective::Reduce { root }) => Ok(linear::reduce(layout, root)),
            (Algorithm::Linear, Collective::SendReceive { messages }) => {
                Ok(linear::send_receive(layout, messages))
            }
            (Algorithm::OneShot, Collective::SendReceive { messages }) => {
                Ok(one_shot::send_receive(layout, messages))
            }
            (Algorithm::Linear, &Collective::Neighbours { torus }) => Ok(linear::neighbours(layout, torus)),
            (Algorithm::Pairwise, Collective::ReduceScatter) => Ok(pairwise::reduce_scatter(layout)),
            (Algorithm::Nvls, Collective::AllReduce) => nvls::all_reduce(layout),
            (Algorithm::Nvls, Collective::AllGather) => nvls::all_gather(layout),
            (Algorithm::Nvls, Collective::ReduceScatter) => nvls::reduce_scatter(layout),
            (Algorithm::Nvls, &Collective::Broadcast { root }) => nvls::broadcast(layout, root),
            (Algorithm::Nvls, &Collective::Reduce { root }) => nvls::reduce(layout, root),
            (Algorithm::NvlsTree, Collective::AllReduce) => nvls_tree::all_reduce(layout),
            (Algorithm::CollnetDirect, Collective::AllReduce) => collnet_direct::all_reduce(layout),
            (Algorithm::CollnetChain, Collective::AllReduce) => collnet_chain::all_reduce(layout),
            _ => Err(Impossible(format!("{self} does not implement {}", collective.name()))),
        }
    }

    /// Its plan for a collective on unknown wiring, with `rings` side by side if it uses any.
    pub fn flat(self, collective: &Collective, ranks: u32, rings: u32) -> Result<Plan, Impossible> {
        Ok(self.recipe(collective, &Layout::flat(ranks, rings))?.plan())
    }

    /// The same plan with another protocol for its messages. With LL and LL128, FIFOs are as deep as in exchange-ll, so that a sender
    /// seldom has to poll for credits.
    pub fn flat_with(
        self,
        collective: &Collective,
        ranks: u32,
        rings: u32,
        protocol: Protocol,
    ) -> Result<Plan, Impossible> {
        let layout = Layout::flat(ranks, rings);
        let recipe = self.recipe(collective, &layout)?.with_protocol(protocol);
        Ok(match protocol {
            Protocol::Simple => recipe.plan(),
            Protocol::Ll | Protocol::Ll128 => recipe.with_depth_of(exchange::packets(ranks)).plan(),
        })
    }

    /// Its plan for an all-reduce on unknown wiring.
    ///
    /// # Panics
    /// If it has none, or there are no ranks or rings.
    pub fn plan(self, ranks: u32, rings: u32) -> Plan {
        match self.flat(&Collective::AllReduce, ranks, rings) {
            Ok(plan) => plan,
            Err(why) => panic!("{why}"),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let typed = fold(name);
        Self::ALL.into_iter().find(|algorithm| fold(algorithm.name()) == typed).ok_or_else(|| {
            let names = Self::ALL.map(Algorithm::name);
            let hint = did_you_mean(name, names.into_iter());
            format!("unknown algorithm `{name}`.{hint} Known algorithms: {}.", names.join(", "))
        })
    }
}
