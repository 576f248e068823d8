//! The reductions by name, with the rules that do not depend on the element type. A [`Reducer`](crate::Reducer) applies one to elements
//! of a type.
//!
//! **What the bits are**, so that executors can be held to the oracle:
//!
//! - Sums and products of integers wrap around. An average of integers is the wrapped sum divided, rounded towards zero.
//! - Minimum and maximum of floats are those of IEEE 754-2019: -0 is less than +0, and if either operand is not a number the
//!   result is `NAN`, always the same one. So they do not depend on the order. Sums do, in the last bit and in which NaN
//!   they give; all ranks still hold the same bits, because a verified plan combines in one order everywhere.
//! - Floats narrower than f32 (f16, bf16, fp8) are combined in f32 within a step: each input is widened, and the result is
//!   narrowed once, to nearest and ties to even. Between steps a partial result has its own type. Overflow gives an
//!   infinity, or NaN in f8e4m3, which has none. An average is divided in f32, and narrowed again.
//! - A step with one input copies it, bit by bit.
//! - A sum or product that is not a number is some NaN; neither its sign nor its payload is promised. With that exception,
//!   all bits are.
//! - A complex product is `(ac - bd) + (ad + bc)i`, each operation rounded. An average divides both parts.
//! - Logical operations take everything but zero for true and give 1 or 0, on a single rank too.
//!
//! Deliberately absent: an order of complex numbers, truths of floats, and speed: these are the oracle's operations, and
//! executors have their own.

use std::fmt;
use std::str::FromStr;

use weftlink_fabric::nearest::{did_you_mean, fold};

/// What elements are combined with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// All added up.
    Sum,
    /// All multiplied.
    Product,
    /// The least.
    Minimum,
    /// The greatest.
    Maximum,
    /// The sum divided by the number of ranks.
    Average,
    /// The sum, each rank's input multiplied by a factor of its own first.
    PremultipliedSum,
    /// Whether all are true.
    LogicalAnd,
    /// Whether any is true.
    LogicalOr,
    /// Whether an odd number of them is true.
    LogicalXor,
    /// The bits that all have.
    BitAnd,
    /// The bits that any has.
    BitOr,
    /// The bits that an odd number of them has.
    BitXor,
    /// A function of the caller's, which must be associative.
    UserDefined {
        /// Whether the ranks' order is of no account to it.
        commutes: bool,
    },
}

/// The kinds of element that reductions tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Whole numbers, with or without a sign.
    Integer,
    /// Floating point numbers.
    Float,
    /// True or false.
    Bool,
    /// Pairs of floating point numbers, which have no order.
    Complex,
}

impl Reduction {
    /// Those that have a name to be called by: all but the caller's own.
    pub const NAMED: [Reduction; 12] = [
        Reduction::Sum,
        Reduction::Product,
        Reduction::Minimum,
        Reduction::Maximum,
        Reduction::Average,
        Reduction::PremultipliedSum,
        Reduction::LogicalAnd,
        Reduction::LogicalOr,
        Reduction::LogicalXor,
        Reduction::BitAnd,
        Reduction::BitOr,
        Reduction::BitXor,
    ];

    /// The name in tables, flags and files.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Product => "prod",
            Reduction::Minimum => "min",
            Reduction::Maximum => "max",
            Reduction::Average => "avg",
            Reduction::PremultipliedSum => "premul-sum",
            Reduction::LogicalAnd => "logical-and",
            Reduction::LogicalOr => "logical-or",
            Reduction::LogicalXor => "logical-xor",
            Reduction::BitAnd => "bit-and",
            Reduction::BitOr => "bit-or",
            Reduction::BitXor => "bit-xor",
            Reduction::UserDefined { .. } => "user-defined",
        }
    }

    /// Whether it means something for elements of a kind. Of its own types only the caller knows what they mean.
    pub fn is_for(self, kind: Kind) -> bool {
        match self {
            Reduction::Sum | Reduction::Product | Reduction::Average | Reduction::PremultipliedSum => {
                kind != Kind::Bool
            }
            Reduction::Minimum | Reduction::Maximum => kind != Kind::Complex,
            Reduction::UserDefined { .. } => true,
            Reduction::LogicalAnd
            | Reduction::LogicalOr
            | Reduction::LogicalXor
            | Reduction::BitAnd
            | Reduction::BitOr
            | Reduction::BitXor => matches!(kind, Kind::Integer | Kind::Bool),
        }
    }

    /// Whether the order of the ranks is of no account, but for rounding.
    pub fn commutes(self) -> bool {
        !matches!(self, Reduction::UserDefined { commutes: false })
    }

    /// Whether it does something to an element before the first combination, so that inputs cannot be combined as they lie
    /// in memory.
    pub fn changes_inputs(self) -> bool {
        matches!(
            self,
            Reduction::PremultipliedSum
                | Reduction::LogicalAnd
                | Reduction::LogicalOr
                | Reduction::LogicalXor
        )
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let typed = fold(name);
        let prefixes = ["nccl", "mpi", "reduceop"];
        let bare = prefixes.iter().find_map(|prefix| typed.strip_prefix(prefix)).unwrap_or(&typed);
        // PyTorch's and MPI's names that are not ours.
        let bare = match bare {
            "product" => "prod",
            "minimum" => "min",
            "maximum" => "max",
            "average" | "mean" => "avg",
            bare => bare,
        };
        let is_named = |reduction: &Reduction| fold(reduction.name()) == bare;
        Self::NAMED.into_iter().find(is_named).ok_or_else(|| {
            let names: Vec<_> = Self::NAMED.iter().map(|reduction| reduction.name()).collect();
            let hint = did_you_mean(name, names.iter().copied());
            format!("unknown operation `{name}`.{hint} Known operations: {}.", names.join(", "))
        })
    }
}
