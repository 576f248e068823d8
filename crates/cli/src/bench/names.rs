//! What collectives, types and operations are called on the command line: as nccl-tests calls them, or as Weft does.

use serde::{Deserialize, Serialize};
use weftlink_comm::{DataType, Operation, Reduction};
use weftlink_fabric::nearest::{did_you_mean, fold};
use weftlink_kernels::Kernels;
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::{Collective, Kind};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Scan,
    ExclusiveScan,
    /// Each rank sends to the next.
    SendReceive,
    /// Each rank and those beside it on a ring.
    Neighbours,
    Barrier,
    /// Every two ranks by themselves: latency and bandwidth.
    P2p,
}

/// Collectives that are measured, by the name that people type.
const MEASURED: [(Kind, What); 13] = [
    (Kind::AllReduce, What::AllReduce),
    (Kind::Reduce, What::Reduce),
    (Kind::Broadcast, What::Broadcast),
    (Kind::AllGather, What::AllGather),
    (Kind::ReduceScatter, What::ReduceScatter),
    (Kind::AllToAll, What::AllToAll),
    (Kind::Gather, What::Gather),
    (Kind::Scatter, What::Scatter),
    (Kind::Scan, What::Scan),
    (Kind::ExclusiveScan, What::ExclusiveScan),
    (Kind::SendReceive, What::SendReceive),
    (Kind::Neighbours, What::Neighbours),
    (Kind::Barrier, What::Barrier),
];
const P2P: &str = "p2p";

impl std::str::FromStr for What {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if fold(name) == P2P {
            return Ok(What::P2p);
        }
        let kind = Kind::from_name(name);
        let found = MEASURED.into_iter().find(|(known, _)| Some(*known) == kind);
        found.map(|(_, what)| what).ok_or_else(|| {
            let names = What::names();
            let hint = did_you_mean(name, names.iter().copied());
            let known = names.join(", ");
            match kind {
                Some(kind) => format!("weft bench does not measure {kind}. It measures {known}."),
                None => format!("unknown collective `{name}`.{hint} Known collectives: {known}."),
            }
        })
    }
}

impl What {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        MEASURED.iter().find(|(_, what)| *what == self).map_or(P2P, |(kind, _)| kind.name())
    }

    /// All names.
    pub(super) fn names() -> Vec<&'static str> {
        MEASURED.iter().map(|(kind, _)| kind.name()).chain([P2P]).collect()
    }

    /// The collective of so many ranks; nothing for pairs.
    pub(super) fn collective(self, ranks: u32, root: u32) -> Option<Collective> {
        Some(match self {
            What::AllReduce => Collective::AllReduce,
            What::Reduce => Collective::Reduce { root },
            What::Broadcast => Collective::Broadcast { root },
            What::AllGather => Collective::AllGather,
            What::ReduceScatter => Collective::ReduceScatter,
            What::AllToAll => Collective::AllToAll,
            What::Gather => Collective::Gather { root },
            What::Scatter => Collective::Scatter { root },
            What::Scan => Collective::Scan,
            What::ExclusiveScan => Collective::ExclusiveScan,
            What::SendReceive => Collective::SendReceive {
                messages: (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect(),
            },
            What::Neighbours => Collective::Neighbours { torus: [1, 1, ranks] },
            What::Barrier => Collective::Barrier,
            What::P2p => return None,
        })
    }
}

/// A type of element, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Type(pub(super) DataType);

/// nccl-tests' names, for those types that it has; the last two are rccl-tests' for types that have a name already.
const NCCL_TYPES: [(&str, DataType); 14] = [
    ("int8", DataType::I8),
    ("uint8", DataType::U8),
    ("int32", DataType::I32),
    ("uint32", DataType::U32),
    ("int64", DataType::I64),
    ("uint64", DataType::U64),
    ("half", DataType::F16),
    ("float", DataType::F32),
    ("double", DataType::F64),
    ("bfloat16", DataType::Bf16),
    ("f8e4m3", DataType::F8E4m3),
    ("f8e5m2", DataType::F8E5m2),
    ("fp8_e4m3", DataType::F8E4m3),
    ("fp8_e5m2", DataType::F8E5m2),
];

impl Type {
    /// As nccl-tests calls it, if it does.
    pub(super) fn name(self) -> &'static str {
        let known = NCCL_TYPES.iter().find(|(_, data_type)| *data_type == self.0);
        known.map_or(self.0.name(), |(name, _)| name)
    }

    pub(super) fn bytes(self) -> usize {
        self.0.bytes()
    }
}

impl TryFrom<String> for Type {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Type> for String {
    fn from(data_type: Type) -> String {
        data_type.name().to_owned()
    }
}

impl std::str::FromStr for Type {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = NCCL_TYPES.iter().find(|(known, _)| *known == name).map(|(_, data_type)| *data_type);
        known.or_else(|| DataType::from_name(name)).map(Type).ok_or_else(|| {
            let names: Vec<_> = DataType::ALL.into_iter().map(|known| Type(known).name()).collect();
            let others = NCCL_TYPES.iter().map(|(known, _)| *known).filter(|known| !names.contains(known));
            let hint = did_you_mean(name, names.iter().copied().chain(others));
            format!("unknown type `{name}`.{hint} Known types: {}, all.", names.join(", "))
        })
    }
}

/// A reduction, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Op(pub(super) Reduction);

/// Other words for reductions, for suggestions.
const SYNONYMS: [(&str, &str); 9] = [
    ("add", "sum"),
    ("plus", "sum"),
    ("product", "prod"),
    ("mul", "prod"),
    ("multiply", "prod"),
    ("mean", "avg"),
    ("average", "avg"),
    ("minimum", "min"),
    ("maximum", "max"),
];

/// What nccl-tests calls a pre-multiplied sum.
const MULSUM: &str = "mulsum";

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            Reduction::PremultipliedSum => MULSUM,
            reduction => reduction.name(),
        }
    }

    /// What a rank passes to combine elements of a type. The factors of a pre-multiplied sum are 1 and 2 in turn, as in
    /// nccl-tests. Nothing if there is no such operation.
    pub(super) fn operation(self, of: Type, rank: usize) -> Option<Operation<'static>> {
        Kernels::detect().reduction(of.0, self.0)?;
        if self.0 != Reduction::PremultipliedSum {
            return Some(self.0.into());
        }
        let factor = factor(rank);
        Some(match of.0 {
            DataType::I8 => Operation::premultiplied_sum(factor as i8),
            DataType::U8 => Operation::premultiplied_sum(factor as u8),
            DataType::I16 => Operation::premultiplied_sum(factor as i16),
            DataType::U16 => Operation::premultiplied_sum(factor as u16),
            DataType::I32 => Operation::premultiplied_sum(factor as i32),
            DataType::U32 => Operation::premultiplied_sum(factor as u32),
            DataType::I64 => Operation::premultiplied_sum(factor),
            DataType::U64 => Operation::premultiplied_sum(factor as u64),
            DataType::F32 => Operation::premultiplied_sum(factor as f32),
            DataType::F64 => Operation::premultiplied_sum(factor as f64),
            DataType::F16 => Operation::premultiplied_sum(f16::from_f32(factor as f32)),
            DataType::Bf16 => Operation::premultiplied_sum(bf16::from_f32(factor as f32)),
            DataType::F8E4m3 => Operation::premultiplied_sum(F8E4m3::from_f32(factor as f32)),
            DataType::F8E5m2 => Operation::premultiplied_sum(F8E5m2::from_f32(factor as f32)),
            DataType::Complex64 => Operation::premultiplied_sum(Complex::new(factor as f32, 0.0)),
            DataType::Complex128 => Operation::premultiplied_sum(Complex::new(factor as f64, 0.0)),
            DataType::Bool => return None,
        })
    }
}

/// What a rank multiplies its input by before it is added.
pub(super) fn factor(rank: usize) -> i64 {
    1 + (rank % 2) as i64
}

impl TryFrom<String> for Op {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Op> for String {
    fn from(op: Op) -> String {
        op.name().to_owned()
    }
}

impl std::str::FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if [MULSUM, "premulsum"].contains(&fold(name).as_str()) {
            return Ok(Op(Reduction::PremultipliedSum));
        }
        name.parse().map(Op).map_err(|_| {
            let names: Vec<_> = Reduction::NAMED.into_iter().map(|known| Op(known).name()).collect();
            let meant =
                SYNONYMS.iter().find(|(other, _)| *other == fold(name)).map_or(name, |(_, known)| known);
            let hint = did_you_mean(meant, names.iter().copied());
            format!("unknown operation `{name}`.{hint} Known operations: {}, all.", names.join(", "))
        })
    }
}

/// One of several, or all of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice<T> {
    All,
    One(T),
}

impl<T: std::str::FromStr<Err = String>> std::str::FromStr for Choice<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Choice::All) } else { text.parse().map(Choice::One) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for data_type in DataType::ALL {
            assert_eq!(Type(data_type).name().parse(), Ok(Type(data_type)));
            assert_eq!(data_type.name().parse(), Ok(Type(data_type)));
        }
        for reduction in Reduction::NAMED {
            assert_eq!(Op(reduction).name().parse(), Ok(Op(reduction)));
        }
        assert!("flaot".parse::<Type>().unwrap_err().contains("float, double"));
        assert!("add".parse::<Op>().unwrap_err().contains("mulsum"));
    }
}
