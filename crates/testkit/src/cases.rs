//! The cases that every backend must pass, read from `testdata/cases/`: a collective call as data, with its inputs and
//! expected outputs.
//!
//! A [`Case`] says what all ranks call and how they pass their buffers; everything is counted in elements. [`values`] has
//! the inputs and, by the oracle, the outputs, both as bytes, so that a backend needs no type of its own for each type of
//! element. A call that a plan cannot run is not a case ([`Case::skip`]); a backend skips, by name, what it cannot run.
//!
//! Not covered: user-defined reductions, which are code, not data.

mod file;
pub mod values;

use serde::Deserialize;
use weftlink_plan::collective::Promise;
use weftlink_plan::plan::{Output, Protocol};
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Plan, Reduction};

pub use crate::random::mix;
pub use file::cases_of;

/// One call that all ranks make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The collective, with its root, its messages or its torus.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The lengths of blocks.
    pub counts: Counts,
    /// The type of their elements.
    pub data_type: DataType,
    /// The reduction; nothing if blocks are only moved.
    pub reduction: Option<Reduction>,
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
    /// The kind of memory they are in.
    pub memory: Memory,
    /// The plan.
    pub by: By,
}

/// The lengths of a call's blocks, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counts {
    /// All equal.
    Even(usize),
    /// None longer than this, some of them empty.
    Uneven(usize),
}

/// The kind of memory that a call's buffers are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Private memory of the rank.
    Ordinary,
    /// The same, readable by peers through the kernel.
    Readable,
    /// Memory that all ranks allocated together and have mapped.
    Symmetric,
    /// Symmetric on ranks of even number, ordinary on the others.
    Mixed,
}

/// The plan of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The backend's choice.
    Chosen,
    /// That of an algorithm, on ranks without a known wiring.
    Algorithm {
        /// Which.
        algorithm: Algorithm,
        /// Whether messages are packets.
        packets: bool,
        /// The number of lanes, if it can use several.
        lanes: u32,
    },
}

impl Case {
    /// The plan, not yet verified; nothing if the backend chooses. An error if there is none.
    pub fn plan(&self) -> Option<Result<Plan, String>> {
        let By::Algorithm { algorithm, packets, lanes } = self.by else { return None };
        let protocol = if packets { Protocol::Ll } else { Protocol::Simple };
        let plan = match packets {
            false => algorithm.flat(&self.collective, self.ranks, lanes),
            true => algorithm.flat_with(&self.collective, self.ranks, lanes, protocol),
        };
        Some(plan.map_err(|why| why.to_string()))
    }

    /// Why the case is skipped for this plan, or for any if the backend chooses.
    pub fn skip(&self, plan: Option<&Plan>) -> Option<&'static str> {
        if matches!(self.counts, Counts::Uneven(_)) {
            if !self.collective.may_be_uneven() {
                return Some("the collective has blocks of one length");
            }
            let lengths = |rank| (self.given(rank), self.gotten(rank));
            let fits = (0..self.ranks).map(lengths).all(|(given, gotten)| given == gotten);
            if self.aliasing == Aliasing::InPlace && !self.is_one_sided() && !fits {
                return Some("blocks that differ in length do not lie in one buffer");
            }
        }
        let plan = plan?;
        let sends = |output: &Output| matches!(output, Output::Sent { .. });
        let steps = || plan.programs.iter().flat_map(|program| &program.lanes).flat_map(|lane| lane.steps());
        let By::Algorithm { algorithm, packets, .. } = self.by else { return None };
        if !plan.groups.is_empty() {
            Some("the plan needs a switch that computes")
        } else if packets && algorithm == Algorithm::ExchangeLl {
            Some("the messages of the plan carry their flags already")
        } else if packets && !steps().any(|step| step.outputs.iter().any(sends)) {
            Some("the plan sends no messages that could carry their flags")
        } else if !plan.aliasing.contains(&self.aliasing) && self.collective.root().is_none() {
            Some("the plan does not claim this aliasing")
        } else if matches!(self.counts, Counts::Uneven(_)) && !plan.uneven {
            Some("the plan is not for blocks of different lengths")
        } else {
            match self.memory {
                Memory::Ordinary | Memory::Mixed if plan.needs_windows() => {
                    Some("the plan reaches into peers' buffers, which are not symmetric")
                }
                Memory::Readable if plan.writes_to_peers() => {
                    Some("the plan writes into peers' buffers, which can only be read")
                }
                Memory::Ordinary | Memory::Mixed | Memory::Readable | Memory::Symmetric => None,
            }
        }
    }

    /// The lengths of a rank's input blocks.
    pub fn given(&self, rank: u32) -> Vec<usize> {
        (0..self.collective.gives(rank, self.ranks)).map(|block| self.length(rank, block)).collect()
    }

    /// The lengths of a rank's output blocks.
    pub fn gotten(&self, rank: u32) -> Vec<usize> {
        let length = |block| match self.collective.promise(rank, self.ranks, block) {
            Some(Promise::Copy { rank, block }) => self.length(rank, block),
            Some(Promise::Reduction { block, .. }) => self.length(0, block),
            None => 0,
        };
        (0..self.collective.gets(rank, self.ranks)).map(length).collect()
    }

    /// The length of a block of a rank's input. Where blocks are reduced, all ranks have the same.
    pub fn length(&self, rank: u32, block: u32) -> usize {
        match self.counts {
            Counts::Even(count) => count,
            Counts::Uneven(most) => {
                let rank = if self.collective.reduces() { 0 } else { rank };
                let word = mix((u64::from(rank) << 32 | u64::from(block)) ^ most as u64);
                // One in four is empty, and one has the full length.
                match word % 4 {
                    0 => 0,
                    1 => most,
                    _ => (word >> 8) as usize % (most + 1),
                }
            }
        }
    }

    /// Where a rank's input and output start in its buffer if they are one, and how long that is.
    pub fn in_one_buffer(&self, rank: u32) -> (usize, usize, usize) {
        let (given, gotten) = (self.given(rank), self.gotten(rank));
        let (input, output): (usize, usize) = (given.iter().sum(), gotten.iter().sum());
        let before = |lengths: &[usize]| lengths[..rank as usize].iter().sum();
        match self.collective {
            _ if given.is_empty() || gotten.is_empty() => (0, 0, input.max(output)),
            Collective::AllGather | Collective::Gather { .. } => (before(&gotten), 0, output),
            Collective::ReduceScatter | Collective::Scatter { .. } => (0, before(&given), input),
            _ => (0, 0, input.max(output)),
        }
    }

    /// Whether, in place, the smaller buffer is part of the larger.
    fn is_one_sided(&self) -> bool {
        use Collective::{AllGather, Gather, ReduceScatter, Scatter};
        matches!(self.collective, AllGather | ReduceScatter | Gather { .. } | Scatter { .. })
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { collective, ranks, counts, data_type, reduction, aliasing, memory, by } = self;
        let by = match by {
            By::Chosen => "the chosen plan".to_owned(),
            By::Algorithm { algorithm, packets, lanes } => {
                format!("{algorithm}{} with {lanes} lanes", if *packets { ":ll" } else { "" })
            }
        };
        let reduction = reduction.map_or(String::new(), |reduction| format!("{reduction} "));
        write!(f, "{reduction}{collective} of {counts:?} {data_type}, {ranks} ranks, {aliasing}, ")?;
        write!(f, "{memory:?} memory, by {by}")
    }
}

/// The algorithms for a collective of this many ranks, without switches that compute.
pub fn doing(collective: &Collective, ranks: u32) -> impl Iterator<Item = Algorithm> {
    let plan = move |algorithm: &Algorithm| algorithm.flat(collective, ranks, 1);
    Algorithm::ALL.into_iter().filter(move |it| plan(it).is_ok_and(|plan| plan.groups.is_empty()))
}
