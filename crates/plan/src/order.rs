//! In which order a plan combines the ranks of a reduction, and which order a call needs.
//!
//! **The canonical expression** is what a deterministic communicator computes, whatever the algorithm: the ranks in their
//! order, one after the other, `((r0 + r1) + r2) + r3`. Floats narrower than f32 are added in f32, and where they are rounded
//! is a part of the expression:
//!
//! - all-reduce, reduce and reduce-scatter combine all ranks in one step, and round once;
//! - a scan and an exclusive scan round at each rank, because what a rank hands on is what it keeps.
//!
//! Why from left to right and not a tree over the ranks: one step of n inputs is what the algorithms that read or exchange
//! whole inputs do (one-shot, two-shot, pull, staged, exchange, pairwise, linear), so these are all eligible, at every size and in every kind
//! of memory, and partial results in f32 never leave the registers. A tree would need partial results that are wider than the
//! elements, in messages and scratch. What it costs: rounding errors grow with the ranks and not with their logarithm, and
//! chains, rings and trees of messages are out.
//!
//! Deliberately absent: whether two different expressions might have the same value.

use serde::{Deserialize, Serialize};

use crate::element::DataType;
use crate::reduction::{Kind, Reduction};

/// How far a plan goes in combining the ranks of its reductions in their order; and how far a call needs it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Order {
    /// An order of its own.
    Any,
    /// The ranks in their order, with brackets anywhere.
    Ranks,
    /// The ranks in their order, one after the other.
    LeftToRight,
    /// The same, and rounded where the canonical expression is.
    Canonical,
}

impl Reduction {
    /// The order a call needs: so that its result is right, and if it is to be deterministic, so that its bits do not depend on
    /// the plan. Elements without a type are the caller's own.
    pub fn order(self, data_type: Option<DataType>, deterministic: bool) -> Order {
        let rounds = matches!(data_type.map(DataType::kind), Some(Kind::Float | Kind::Complex));
        match self {
            Reduction::UserDefined { commutes: true } if !deterministic => Order::Any,
            Reduction::UserDefined { commutes: false } if !deterministic => Order::Ranks,
            // Of the caller's function nothing is known, but that its results are elements.
            Reduction::UserDefined { .. } => Order::LeftToRight,
            Reduction::Sum | Reduction::Product | Reduction::Average | Reduction::PremultipliedSum
                if deterministic && rounds =>
            {
                let is_narrow = data_type.is_some_and(DataType::is_widened);
                if is_narrow { Order::Canonical } else { Order::LeftToRight }
            }
            // Sums of integers wrap around, and the least is the least in any order.
            _ => Order::Any,
        }
    }
}

/// The ranks that an expression combines in their order: from the first to one before the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    /// Whether it does so one after the other; in a single step; in a step of its own for each.
    left_to_right: bool,
    one_step: bool,
    each_rank: bool,
}

impl Span {
    /// A rank's own input.
    pub(crate) fn of(rank: u32) -> Self {
        Self { start: rank, end: rank + 1, left_to_right: true, one_step: true, each_rank: true }
    }

    /// What a step makes of its inputs; nothing if it leaves the ranks' order.
    pub(crate) fn of_step(inputs: impl IntoIterator<Item = Option<Span>>) -> Option<Span> {
        let mut inputs = inputs.into_iter();
        let first = inputs.next()??;
        let (mut whole, mut count) = (first, 1);
        for next in inputs {
            let next = next.filter(|next| next.start == whole.end)?;
            count += 1;
            whole = Span {
                start: first.start,
                end: next.end,
                left_to_right: whole.left_to_right && next.is_input(),
                one_step: whole.one_step && first.is_input() && next.is_input(),
                each_rank: first.each_rank && next.is_input() && count == 2,
            };
        }
        Some(whole)
    }

    /// The order of an expression that should combine so many ranks, from the first.
    pub(crate) fn order(span: Option<Span>, below: u32, is_scan: bool) -> Order {
        match span.filter(|span| (span.start, span.end) == (0, below)) {
            None => Order::Any,
            Some(span) if !span.left_to_right => Order::Ranks,
            Some(span) if if is_scan { span.each_rank } else { span.one_step } => Order::Canonical,
            Some(_) => Order::LeftToRight,
        }
    }

    fn is_input(&self) -> bool {
        self.end - self.start == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Collective, verify};

    fn order(algorithm: Algorithm, collective: &Collective, ranks: u32) -> Order {
        verify(algorithm.flat(collective, ranks, 1).unwrap()).unwrap().order()
    }

    #[test]
    fn plans_that_combine_all_at_once_are_canonical_and_those_that_hand_on_are_not() {
        use Algorithm::{
            Chain, Exchange, ExchangeLl, HalvingDoubling, Linear, OneShot, Pairwise, Pat, Pull,
            RecursiveDoubling, Ring, Staged, Tree, TwoShot,
        };
        let (all_reduce, reduce) = (Collective::AllReduce, Collective::Reduce { root: 2 });
        for ranks in [4, 5, 8] {
            for algorithm in [ExchangeLl, Exchange, OneShot, TwoShot, Pull, Staged] {
                assert_eq!(order(algorithm, &all_reduce, ranks), Order::Canonical, "{algorithm}");
            }
            for algorithm in [Linear, OneShot, TwoShot, Pull, Staged] {
                assert_eq!(order(algorithm, &reduce, ranks), Order::Canonical, "{algorithm}");
            }
            for algorithm in [ExchangeLl, Exchange, OneShot, Staged, Pairwise] {
                let found = order(algorithm, &Collective::ReduceScatter, ranks);
                assert_eq!(found, Order::Canonical, "{algorithm}");
            }
            for algorithm in [Ring, Tree, HalvingDoubling, RecursiveDoubling] {
                assert!(order(algorithm, &all_reduce, ranks) < Order::LeftToRight, "{algorithm}");
            }
            for algorithm in [Ring, Pat, HalvingDoubling] {
                assert!(
                    order(algorithm, &Collective::ReduceScatter, ranks) < Order::LeftToRight,
                    "{algorithm}"
                );
            }
            assert!(order(Chain, &reduce, ranks) < Order::LeftToRight);
            for scan in [Collective::Scan, Collective::ExclusiveScan] {
                assert_eq!(order(Chain, &scan, ranks), Order::Canonical);
            }
            assert_eq!(order(RecursiveDoubling, &Collective::Scan, ranks), Order::Ranks);
        }
        // What the last of four ranks gets is the sum of two, as another has it, and the third.
        assert_eq!(order(RecursiveDoubling, &Collective::ExclusiveScan, 4), Order::Canonical);
        assert_eq!(order(RecursiveDoubling, &Collective::ExclusiveScan, 5), Order::Ranks);
        // Of three ranks the last is added to the sum of the others, which was rounded.
        assert_eq!(order(RecursiveDoubling, &all_reduce, 3), Order::LeftToRight);
    }

    #[test]
    fn steps_tell_brackets_and_roundings_apart() {
        let of = |ranks: &[u32]| Span::of_step(ranks.iter().map(|&rank| Some(Span::of(rank))));
        let then = |left: Option<Span>, right: Option<Span>| Span::of_step([left, right]);
        for (span, others, scans) in [
            (of(&[0, 1, 2]), Order::Canonical, Order::LeftToRight),
            (then(of(&[0, 1]), of(&[2])), Order::LeftToRight, Order::Canonical),
            (then(of(&[0]), of(&[1, 2])), Order::Ranks, Order::Ranks),
            (then(of(&[2]), of(&[0, 1])), Order::Any, Order::Any),
            (of(&[0, 2, 1]), Order::Any, Order::Any),
            (of(&[0, 1]), Order::Any, Order::Any),
            (Span::of_step([of(&[0, 1, 2])]), Order::Canonical, Order::LeftToRight),
            (None, Order::Any, Order::Any),
        ] {
            assert_eq!(Span::order(span, 3, false), others, "{span:?}");
            assert_eq!(Span::order(span, 3, true), scans, "{span:?}");
        }
        let four = then(of(&[0, 1, 2]), of(&[3]));
        assert_eq!(Span::order(four, 4, true), Order::LeftToRight, "the first three were rounded once");
    }

    #[test]
    fn only_what_depends_on_the_order_needs_one() {
        let needs = |reduction: Reduction, data_type| reduction.order(data_type, true);
        assert_eq!(needs(Reduction::Sum, Some(DataType::F32)), Order::LeftToRight);
        assert_eq!(needs(Reduction::Product, Some(DataType::Complex128)), Order::LeftToRight);
        assert_eq!(needs(Reduction::Average, Some(DataType::Bf16)), Order::Canonical);
        assert_eq!(needs(Reduction::PremultipliedSum, Some(DataType::F8E5m2)), Order::Canonical);
        assert_eq!(needs(Reduction::Maximum, Some(DataType::F16)), Order::Any);
        assert_eq!(needs(Reduction::Average, Some(DataType::I32)), Order::Any);
        assert_eq!(needs(Reduction::UserDefined { commutes: true }, None), Order::LeftToRight);
        assert_eq!(Reduction::UserDefined { commutes: false }.order(None, false), Order::Ranks);
        assert_eq!(Reduction::Sum.order(Some(DataType::F32), false), Order::Any);
    }
}
