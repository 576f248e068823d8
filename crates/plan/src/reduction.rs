//! The reductions by name, with the rules that do not depend on the element type. A [`Reducer`](crate::Reducer) applies one to elements
//! of a type.
//!
//! **Results are defined bit by bit**, so that executors can be compared with the oracle:
//!
//! - Sums and products of integers wrap around. An average of integers is the wrapped sum divided, rounded towards zero.
//! - **Every NaN that a step, a factor or an average produces is the type's canonical one**: positive, quiet, without payload
//!   ([`Element::canonical`](crate::element::Element::canonical)). Processors and compilers differ in the NaNs of sums and products.
//! - Minimum and maximum of floats are those of IEEE 754-2019: -0 is less than +0, and if either operand is NaN the result is
//!   NaN. So they do not depend on the order. Sums do, in the last bit; all ranks still hold the same bits, because a verified
//!   plan combines in one order everywhere. The sign of a zero sum is that of IEEE 754: +0, unless all summands are -0.
//! - Floats narrower than f32 (f16, bf16, fp8) are combined in f32 within a step: each input is widened, and the result is
//!   narrowed once, to nearest and ties to even. Between steps a partial result has its own type. Overflow gives an
//!   infinity, or NaN in f8e4m3, which has none. An average is divided in f32, and narrowed again.
//! - A step with one input copies it, bit by bit, NaNs too.
//! - A complex product is `(ac - bd) + (ad + bc)i`, each operation rounded. An average divides both parts.
//! - Logical operations take everything but zero for true and give 1 or 0, on a single rank too.
//!
//! Deliberately absent: an order of complex numbers, logical operations on floats, and speed: these are the oracle's
//! operations, and executors have their own.

use std::fmt;
use std::str::FromStr;

use weftlink_fabric::nearest::{did_you_mean, fold};

/// An operation that combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// The minimum.
    Minimum,
    /// The maximum.
    Maximum,
    /// The sum divided by the number of ranks.
    Average,
    /// The sum of the ranks' inputs, each multiplied by a factor of its rank.
    PremultipliedSum,
    /// Whether all are true.
    LogicalAnd,
    /// Whether any is true.
    LogicalOr,
    /// Whether an odd number of them is true.
    LogicalXor,
    /// Bitwise and.
    BitAnd,
    /// Bitwise or.
    BitOr,
    /// Bitwise exclusive or.
    BitXor,
    /// The caller's function, which must be associative.
    UserDefined {
        /// Whether it is commutative too, so that any order of the ranks will do.
        commutes: bool,
    },
}

/// The kinds of element that reductions distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Integers, signed or unsigned.
    Integer,
    /// Floating point numbers.
    Float,
    /// True or false.
    Bool,
    /// Complex numbers, which have no order.
    Complex,
}

impl Reduction {
    /// All that have a name: all but the caller's own.
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

    /// Whether it is defined for elements of a kind. A user-defined reduction is assumed to fit its type.
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

    /// Whether the result does not depend on the order of the ranks, except for rounding.
    pub fn commutes(self) -> bool {
        !matches!(self, Reduction::UserDefined { commutes: false })
    }

    /// Whether it changes elements before the first combination, so that inputs cannot be combined as they are in memory.
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
