//! The algorithms, one file each. A file's header gives the steps, the bytes on the wire, when it wins and the paper.

mod chain;
mod exchange;
mod linear;
mod one_shot;
mod pairwise;
mod ring;
mod two_shot;

use std::fmt;
use std::str::FromStr;

use crate::plan::{Plan, Protocol};

pub use chain::{chain_broadcast, chain_reduce};
pub use exchange::exchange;
pub use linear::{linear_gather, linear_scatter};
pub use one_shot::one_shot;
pub use pairwise::pairwise_all_to_all;
pub use ring::{ring, ring_all_gather, ring_reduce_scatter};
pub use two_shot::two_shot;

/// The all-reduce algorithms that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank sends its whole input to every other; payload and flag share cache lines.
    ExchangeLl,
    /// Every rank sends its whole input to every other, through staging memory.
    Exchange,
    /// Every rank reads all inputs where they are and reduces for itself.
    OneShot,
    /// Every rank reduces its share where it is, and writes it to everyone.
    TwoShot,
    /// Chunks travel around a ring twice, once to be reduced and once to be handed out.
    Ring,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::ExchangeLl, Algorithm::Exchange, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Ring];

    /// The name in tables, flags and files.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::ExchangeLl => "exchange-ll",
            Algorithm::Exchange => "exchange",
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
            Algorithm::Ring => "ring",
        }
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Algorithm::ExchangeLl => {
                "everyone sends everything to everyone, payload and flag in one cache line"
            }
            Algorithm::Exchange => "everyone sends everything to everyone, through staging memory",
            Algorithm::OneShot => "everyone reads all inputs in peer memory and reduces for itself",
            Algorithm::TwoShot => "everyone reduces its share in peer memory and writes it to everyone",
            Algorithm::Ring => "chunks travel around a ring, once to be reduced and once to be handed out",
        }
    }

    /// Its plan for so many ranks; `lanes` side by side where the algorithm can use several.
    pub fn plan(self, ranks: u32, lanes: u32) -> Plan {
        match self {
            Algorithm::ExchangeLl => exchange(ranks, Protocol::Ll),
            Algorithm::Exchange => exchange(ranks, Protocol::Simple),
            Algorithm::OneShot => one_shot(ranks),
            Algorithm::TwoShot => two_shot(ranks),
            Algorithm::Ring => ring(ranks, lanes),
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
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|algorithm| algorithm.name()).collect();
            format!("there is no algorithm called {name:?}; there are {}", names.join(", "))
        })
    }
}
