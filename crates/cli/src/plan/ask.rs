//! What was typed, as what it means: collectives with their roots, tori and messages, and ranges of sizes.

use std::str::FromStr;

use anyhow::anyhow;
use clap::ValueEnum;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::Collective;

use super::Build;
use crate::Failure;

/// The collectives by name. Those that end in `-v` have blocks of different lengths.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    AllGatherV,
    ReduceScatter,
    ReduceScatterV,
    AllToAll,
    AllToAllV,
    Gather,
    Scatter,
    Scan,
    ExclusiveScan,
    Barrier,
    Neighbours,
    SendReceive,
}

impl Kind {
    /// Whether blocks may differ in length.
    pub(super) fn is_uneven(self) -> bool {
        matches!(self, Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV)
    }

    /// The collective of so many ranks.
    pub(super) fn collective(self, ranks: u32, build: &Build) -> Result<Collective, Failure> {
        let root = build.root.unwrap_or(0);
        let collective = match self {
            Kind::AllReduce => Collective::AllReduce,
            Kind::Reduce => Collective::Reduce { root },
            Kind::Broadcast => Collective::Broadcast { root },
            Kind::AllGather | Kind::AllGatherV => Collective::AllGather,
            Kind::ReduceScatter | Kind::ReduceScatterV => Collective::ReduceScatter,
            Kind::AllToAll | Kind::AllToAllV => Collective::AllToAll,
            Kind::Gather => Collective::Gather { root },
            Kind::Scatter => Collective::Scatter { root },
            Kind::Scan => Collective::Scan,
            Kind::ExclusiveScan => Collective::ExclusiveScan,
            Kind::Barrier => Collective::Barrier,
            Kind::Neighbours => {
                Collective::Neighbours { torus: build.torus.as_ref().map_or([1, 1, ranks], |torus| torus.0) }
            }
            Kind::SendReceive => {
                let to_the_next = || (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
                let messages =
                    build.messages.as_ref().map_or_else(to_the_next, |messages| messages.0.clone());
                Collective::SendReceive { messages }
            }
        };
        for (option, is_given, fits) in [
            ("--root", build.root.is_some(), collective.root().is_some()),
            ("--torus", build.torus.is_some(), self == Kind::Neighbours),
            ("--messages", build.messages.is_some(), self == Kind::SendReceive),
            ("--size", build.size.is_some(), self != Kind::Barrier),
            ("--sizes", build.sizes.is_some(), self != Kind::Barrier),
        ] {
            if is_given && !fits {
                return Err(Failure::misuse(anyhow!("{option} means nothing to {}", collective.name())));
            }
        }
        match collective.misfit(ranks) {
            Some(what) => Err(Failure::misuse(anyhow!(what))),
            None => Ok(collective),
        }
    }
}

/// `8..1GiB`, both included.
#[derive(Clone, Copy)]
pub(crate) struct Sizes(pub(crate) u64, pub(crate) u64);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").ok_or("write two sizes with two dots between: 8..1GiB")?;
        let size = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        let (from, to) = (size(from)?, size(to)?);
        if from > to { Err(format!("{from} is more than {to}")) } else { Ok(Self(from.0, to.0)) }
    }
}

/// `2x2x2`; dimensions that are left out have one rank.
#[derive(Clone, Copy)]
pub(super) struct Torus([u32; 3]);

impl FromStr for Torus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
        match sizes.as_deref() {
            Ok([z]) => Ok(Self([1, 1, *z])),
            Ok([y, z]) => Ok(Self([1, *y, *z])),
            Ok([x, y, z]) => Ok(Self([*x, *y, *z])),
            _ => Err("write up to three numbers of ranks: 8, 4x2 or 2x2x2".to_owned()),
        }
    }
}

/// `0:1,1:0`.
#[derive(Clone)]
pub(super) struct Messages(Vec<(u32, u32)>);

impl FromStr for Messages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let message = |text: &str| {
            let (from, to) = text.split_once(':')?;
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        };
        let messages: Option<Vec<_>> = text.split(',').map(message).collect();
        messages.map(Self).ok_or_else(|| "write who sends to whom: 0:1,1:0".to_owned())
    }
}
