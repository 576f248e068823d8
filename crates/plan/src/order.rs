//! The order in which a plan combines the ranks of a reduction, and the order that a call needs.
//!
//! A deterministic communicator computes **the canonical expression** with every algorithm: the ranks in their order, one
//! after the other, `((r0 + r1) + r2) + r3`. Floats narrower than f32 are added in f32, and the places where they are
//! rounded are part of the expression:
//!
//! - all-reduce, reduce and reduce-scatter combine all ranks in one step, and round once;
//! - a scan and an exclusive scan round at each rank, because a rank passes on the value that it keeps.
//!
//! Why from left to right and not a tree over the ranks: algorithms that read or exchange whole inputs combine n inputs in
//! one step (one-shot, two-shot, pull, staged, exchange, pairwise, linear), so they are all eligible, at every size and in
//! every kind of memory, and partial results in f32 never leave the registers. A tree would need partial results wider than
//! the elements, in messages and scratch. The cost: rounding errors grow with the ranks and not with their logarithm, and
//! chains, rings and trees of messages are not eligible.
//!
//! Deliberately absent: whether two different expressions might have the same value.

use serde::{Deserialize, Serialize};

use crate::element::DataType;
use crate::reduction::{Kind, Reduction};

/// How far a plan combines the ranks of its reductions in their order, or how far a call needs it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Order {
    /// Any order.
    Any,
    /// The ranks in their order, with brackets anywhere.
    Ranks,
    /// The ranks in their order, one after the other.
    LeftToRight,
    /// The same, and rounded where the canonical expression is.
    Canonical,
}

impl Reduction {
    /// The order that a call needs: for a correct result and, if it is to be deterministic, for bits that do not depend on the
    /// plan. Elements without a type are the caller's own.
    pub fn order(self, data_type: Option<DataType>, deterministic: bool) -> Order {
        let rounds = matches!(data_type.map(DataType::kind), Some(Kind::Float | Kind::Complex));
        match self {
            Reduction::UserDefined { commutes: true } if !deterministic => Order::Any,
            Reduction::UserDefined { commutes: false } if !deterministic => Order::Ranks,
            // All that is known of the caller's function is that it returns an element.
            Reduction::UserDefined { .. } => Order::LeftToRight,
            Reduction::Sum | Reduction::Product | Reduction::Average | Reduction::PremultipliedSum
                if deterministic && rounds =>
            {
                let is_narrow = data_type.is_some_and(DataType::is_widened);
                if is_narrow { Order::Canonical } else { Order::LeftToRight }
            }
            // Sums of integers wrap around, and a minimum does not depend on the order.
            _ => Order::Any,
        }
    }
}

/// The ranks that an expression combines in their order: `start` to `end`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    /// Whether it combines one after the other; all in a single step; each rank in a step of its own.
    left_to_right: bool,
    one_step: bool,
    each_rank: bool,
}

impl Span {
    /// A rank's own input.
    pub(crate) fn of(rank: u32) -> Self {
        Self { start: rank, end: rank + 1, left_to_right: true, one_step: true, each_rank: true }
    }

    /// The span of a step's result; nothing if the step departs from the ranks' order.
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

    /// The order of an expression that should combine ranks 0 to `below`, exclusive.
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
    fn single_step_plans_are_canonical_and_chained_ones_are_not() {
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
        // The last of four ranks gets the sum of the first two, as another rank has it, and the third.
        assert_eq!(order(RecursiveDoubling, &Collective::ExclusiveScan, 4), Order::Canonical);
        assert_eq!(order(RecursiveDoubling, &Collective::ExclusiveScan, 5), Order::Ranks);
        // Of three ranks, the last is added to the rounded sum of the others.
        assert_eq!(order(RecursiveDoubling, &all_reduce, 3), Order::LeftToRight);
    }

    #[test]
    fn spans_distinguish_brackets_and_roundings() {
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
    fn only_order_dependent_reductions_need_an_order() {
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
