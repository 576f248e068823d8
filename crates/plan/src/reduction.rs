//! The reductions: what a call combines elements with, and how that is done.
//!
//! A [`Reduction`] is a name, with the rules that do not depend on the type: what it is for, whether the order of ranks
//! matters, which plans may carry it. A [`Reducer`] is a reduction made ready for elements of one type, in three parts:
//!
//! - **before**: what becomes of an element of a rank's input when it is first read (a pre-multiplied sum multiplies it by
//!   the rank's factor, a logical operation turns it into 1 or 0);
//! - **combine**: what the inputs of one step make, from left to right as they stand in the plan;
//! - **after**: what becomes of a result in the end (an average is divided by how many ranks were combined: all of them, or
//!   as many as a scan has got to).
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

use crate::Verified;
pub use crate::element::{DataType, Element};
use crate::plan::{Buffer, Input, Step};

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

    /// Whether a plan may carry it, and if not, why: a reduction that does not commute needs the ranks' order, and a switch
    /// combines what lies in memory, with operations of its own.
    pub fn allowed(self, plan: &Verified) -> Result<(), String> {
        let is_switch = |input: &&Input| matches!(input, Input::Switch(_));
        let lanes = plan.programs.iter().flat_map(|program| &program.lanes);
        let steps: Vec<&Step> = lanes.flat_map(|lane| lane.steps()).collect();
        let mut by_switch = steps.iter().flat_map(|step| &step.inputs).filter(is_switch);
        let of_inputs = |input: &Input| matches!(input, Input::Switch(all) if all.buffer == Buffer::Input);
        if !plan.collective.reduces() {
            return Ok(());
        }
        if !self.commutes() && !plan.in_rank_order() {
            return Err(format!(
                "a {self} reduction that does not commute needs a plan that combines ranks in their order, which {} is \
                 not known to do",
                plan.name
            ));
        }
        if matches!(self, Reduction::UserDefined { .. }) && by_switch.clone().next().is_some() {
            return Err(format!("in {} a switch combines, which knows no {self} reduction", plan.name));
        }
        if self.changes_inputs() && by_switch.any(of_inputs) {
            return Err(format!(
                "in {} a switch combines inputs as they lie in memory, but a {self} changes them first",
                plan.name
            ));
        }
        Ok(())
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

/// What the first element of a step and all others make.
type Combine<'a, T> = Box<dyn Fn(T, &mut dyn Iterator<Item = T>) -> T + Send + Sync + 'a>;

/// A reduction of elements of one type.
pub struct Reducer<'a, T> {
    reduction: Reduction,
    /// Given the rank whose input it is.
    before: Option<Box<dyn Fn(u32, T) -> T + Send + Sync + 'a>>,
    combine: Combine<'a, T>,
    /// Given how many ranks were combined.
    after: Option<fn(T, u32) -> T>,
}

impl<'a, T: Element + 'a> Reducer<'a, T> {
    /// A reduction that needs nothing but its name, or why there is none for this type.
    pub fn named(reduction: Reduction) -> Result<Self, String> {
        if reduction == Reduction::PremultipliedSum {
            return Err(format!("a {reduction} needs a factor of each rank"));
        }
        let truth = |_, value: T| value.truth();
        let mut reducer = Self::plain(reduction)?;
        reducer.before = reduction.changes_inputs().then(|| Box::new(truth) as _);
        reducer.after = (reduction == Reduction::Average).then_some(T::divided);
        Ok(reducer)
    }

    /// The sum of all ranks' inputs, rank r's multiplied by factor r, or why there is none for this type.
    ///
    /// # Panics
    /// When it is used, if there are fewer factors than ranks.
    pub fn premultiplied_sum(factors: Vec<T>) -> Result<Self, String> {
        let mut sum = Self::plain(Reduction::PremultipliedSum)?;
        let product = Self::plain(Reduction::Product)?;
        sum.before = Some(Box::new(move |rank, value| product.combine(value, [factors[rank as usize]])));
        Ok(sum)
    }

    fn plain(reduction: Reduction) -> Result<Self, String> {
        let two = T::combining(reduction);
        let two = two.ok_or_else(|| format!("there is no {reduction} of {}", T::TYPE))?;
        let combine = move |first: T, others: &mut dyn Iterator<Item = T>| match others.next() {
            Some(second) => {
                T::narrow(others.fold(two(first.widen(), second.widen()), |sum, next| two(sum, next.widen())))
            }
            None => first,
        };
        Ok(Self { reduction, before: None, combine: Box::new(combine), after: None })
    }
}

impl<'a, T> Reducer<'a, T> {
    /// The caller's own reduction, of any type. It must be associative: plans put brackets where they like.
    pub fn user_defined(commutes: bool, combine: impl Fn(T, T) -> T + Send + Sync + 'a) -> Self {
        let reduction = Reduction::UserDefined { commutes };
        let fold = move |first, others: &mut dyn Iterator<Item = T>| others.fold(first, &combine);
        Self { reduction, before: None, combine: Box::new(fold), after: None }
    }

    /// Which reduction it is.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// An element of a rank's input as it takes part.
    pub fn before(&self, rank: u32, value: T) -> T {
        match &self.before {
            Some(before) => before(rank, value),
            None => value,
        }
    }

    /// All inputs of a step combined, from left to right.
    pub fn combine(&self, first: T, others: impl IntoIterator<Item = T>) -> T {
        (self.combine)(first, &mut others.into_iter())
    }

    /// A result of so many ranks as the caller gets it.
    pub fn after(&self, value: T, combined: u32) -> T {
        match self.after {
            Some(after) => after(value, combined),
            None => value,
        }
    }
}

impl<T> fmt::Debug for Reducer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer({})", self.reduction)
    }
}
