//! Collectives by name, as people type them.

use std::fmt;
use std::str::FromStr;

use weftlink_fabric::nearest::{did_you_mean, fold};

#[cfg(doc)]
use crate::Collective;

/// A collective without its ranks, root, torus and messages. The kinds that end in `-v` have blocks of different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Collective::AllReduce`].
    AllReduce,
    /// [`Collective::Reduce`].
    Reduce,
    /// [`Collective::Broadcast`].
    Broadcast,
    /// [`Collective::AllGather`].
    AllGather,
    /// [`Collective::AllGather`] with blocks of different lengths.
    AllGatherV,
    /// [`Collective::ReduceScatter`].
    ReduceScatter,
    /// [`Collective::ReduceScatter`] with blocks of different lengths.
    ReduceScatterV,
    /// [`Collective::AllToAll`].
    AllToAll,
    /// [`Collective::AllToAll`] with blocks of different lengths.
    AllToAllV,
    /// [`Collective::Gather`].
    Gather,
    /// [`Collective::Scatter`].
    Scatter,
    /// [`Collective::Scan`].
    Scan,
    /// [`Collective::ExclusiveScan`].
    ExclusiveScan,
    /// [`Collective::Barrier`].
    Barrier,
    /// [`Collective::Neighbours`].
    Neighbours,
    /// [`Collective::SendReceive`].
    SendReceive,
}

/// Other spellings, [folded](fold): those of NCCL, nccl-tests, MPI and PyTorch that differ in more than case and separators.
const ALIASES: [(&str, Kind); 10] = [
    ("bcast", Kind::Broadcast),
    ("allgatherintotensor", Kind::AllGather),
    ("reducescattertensor", Kind::ReduceScatter),
    ("alltoallsingle", Kind::AllToAll),
    ("sendrecv", Kind::SendReceive),
    ("exscan", Kind::ExclusiveScan),
    ("neighbors", Kind::Neighbours),
    ("neighbour", Kind::Neighbours),
    ("neighbor", Kind::Neighbours),
    ("reducescatterblock", Kind::ReduceScatter),
];

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 16] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::AllGatherV,
        Kind::ReduceScatter,
        Kind::ReduceScatterV,
        Kind::AllToAll,
        Kind::AllToAllV,
        Kind::Gather,
        Kind::Scatter,
        Kind::Scan,
        Kind::ExclusiveScan,
        Kind::Barrier,
        Kind::Neighbours,
        Kind::SendReceive,
    ];

    /// Its name, as in `weft plan all-reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all-reduce",
            Kind::Reduce => "reduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all-gather",
            Kind::AllGatherV => "all-gather-v",
            Kind::ReduceScatter => "reduce-scatter",
            Kind::ReduceScatterV => "reduce-scatter-v",
            Kind::AllToAll => "all-to-all",
            Kind::AllToAllV => "all-to-all-v",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::Scan => "scan",
            Kind::ExclusiveScan => "exclusive-scan",
            Kind::Barrier => "barrier",
            Kind::Neighbours => "neighbours",
            Kind::SendReceive => "send-receive",
        }
    }

    /// The kind of that name: `all-reduce`, `all_reduce`, `AllReduce`, `allreduce`, `ncclAllReduce`, `MPI_Allreduce` and
    /// `all_reduce_perf` are the same.
    pub fn from_name(name: &str) -> Option<Self> {
        let typed = fold(name);
        let typed = typed.strip_prefix("nccl").or_else(|| typed.strip_prefix("mpi")).unwrap_or(&typed);
        let typed = typed.strip_suffix("perf").unwrap_or(typed);
        let by_name = Self::ALL.into_iter().find(|kind| fold(kind.name()) == typed);
        by_name.or_else(|| ALIASES.into_iter().find(|(alias, _)| *alias == typed).map(|(_, kind)| kind))
    }

    /// Whether blocks may differ in length.
    pub fn is_uneven(self) -> bool {
        matches!(self, Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::from_name(name).ok_or_else(|| UnknownKind { name: name.to_owned() })
    }
}

/// No collective has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown collective `{name}`.{} Known collectives: {}.", self.hint(), names())]
pub struct UnknownKind {
    /// The name.
    pub name: String,
}

impl UnknownKind {
    fn hint(&self) -> String {
        did_you_mean(&self.name, Kind::ALL.into_iter().map(Kind::name))
    }
}

fn names() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_means_the_same() {
        for kind in Kind::ALL {
            let name = kind.name();
            for spelling in
                [name.to_owned(), name.replace('-', "_"), name.replace('-', ""), name.to_uppercase()]
            {
                assert_eq!(spelling.parse(), Ok(kind), "{spelling}");
            }
        }
        for (spelling, kind) in [
            ("AllReduce", Kind::AllReduce),
            ("ncclAllReduce", Kind::AllReduce),
            ("MPI_Allreduce", Kind::AllReduce),
            ("all_reduce_perf", Kind::AllReduce),
            ("bcast", Kind::Broadcast),
            ("MPI_Alltoallv", Kind::AllToAllV),
            ("all_gather_into_tensor", Kind::AllGather),
            ("sendrecv", Kind::SendReceive),
        ] {
            assert_eq!(spelling.parse(), Ok(kind), "{spelling}");
        }
    }

    #[test]
    fn an_unknown_name_gets_a_suggestion() {
        let message = "al-reduce".parse::<Kind>().unwrap_err().to_string();
        assert!(
            message.starts_with("unknown collective `al-reduce`. Did you mean `all-reduce`"),
            "{message}"
        );
    }
}
