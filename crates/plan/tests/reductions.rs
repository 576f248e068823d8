//! Reductions through plans: factors, averages, logical operations, and operations that do not commute.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::domain::elements::oracle_with;
use weftlink_plan::{Algorithm, Collective, Cut, Element, Reducer, Reduction, Verified, verify};

const COUNT: usize = 37;

/// The result of rank 0 (or of the only rank with a result), out of place.
fn result<T: Copy>(plan: &Verified, inputs: &[Vec<T>], reducer: &Reducer<'_, T>) -> Vec<T> {
    let cut = Cut::new(COUNT, plan.chunks_per_block(), 2, 6);
    let (outputs, _) = oracle_with(plan, |_, _| cut, plan.aliasing[0], inputs, reducer);
    outputs.into_iter().find(|output| !output.is_empty()).unwrap()
}

fn inputs<T>(ranks: u32, number: impl Fn(u32, u32) -> T) -> Vec<Vec<T>> {
    (0..ranks).map(|rank| (0..COUNT as u32).map(|at| number(rank, at)).collect()).collect()
}

fn all_reduce(algorithm: Algorithm, ranks: u32) -> Verified {
    verify(algorithm.flat(&Collective::AllReduce, ranks, 1).unwrap()).unwrap()
}

fn named<'a, T: Element>(reduction: Reduction) -> Reducer<'a, T> {
    Reducer::named(reduction).unwrap()
}

#[test]
fn pre_and_post_operations_apply_once() {
    for ranks in [1, 2, 5] {
        for algorithm in Algorithm::doing(&Collective::AllReduce) {
            let plan = all_reduce(algorithm, ranks);
            let numbers = inputs(ranks, |rank, at| i64::from(rank * 100 + at) - 150);
            let sum = |at: usize, factor: fn(u32) -> i64| -> i64 {
                (0..ranks).map(|rank| numbers[rank as usize][at] * factor(rank)).sum()
            };
            let factors = (0..ranks).map(|rank| i64::from(rank) - 2).collect();
            let weighted = Reducer::premultiplied_sum(factors).unwrap();
            assert!(
                result(&plan, &numbers, &weighted)
                    .iter()
                    .enumerate()
                    .all(|(at, &value)| value == sum(at, |rank| i64::from(rank) - 2))
            );
            let average = result(&plan, &numbers, &named(Reduction::Average));
            assert!(
                average.iter().enumerate().all(|(at, &value)| value == sum(at, |_| 1) / i64::from(ranks))
            );
            let all = result(&plan, &numbers, &named(Reduction::LogicalAnd));
            let truth = |at: usize| i64::from(numbers.iter().all(|input| input[at] != 0));
            assert!(all.iter().enumerate().all(|(at, &value)| value == truth(at)), "{algorithm} of {ranks}");
        }
    }
}

#[test]
fn a_scan_averages_over_the_ranks_so_far() {
    let algorithm = Algorithm::doing(&Collective::Scan).next().expect("an algorithm scans");
    let plan = verify(algorithm.flat(&Collective::Scan, 4, 1).unwrap()).unwrap();
    let cut = Cut::new(COUNT, plan.chunks_per_block(), 1, 9);
    let numbers = inputs(4, |rank, at| f64::from(rank * 2 + at));
    let average = named(Reduction::Average);
    let (outputs, _) = oracle_with(&plan, |_, _| cut, plan.aliasing[0], &numbers, &average);
    assert!(outputs.iter().enumerate().all(|(rank, output)| output[1] == 1.0 + rank as f64));
}

#[test]
fn a_maximum_with_nan_is_the_same_for_every_plan() {
    let strange = [f32::from_bits(0x7fc0_0001), -0.0, 0.0, 1.0, f32::from_bits(0xffc0_0007)];
    let numbers = inputs(5, |rank, at| strange[((rank * 3 + at * 7 + rank * at) % 5) as usize]);
    for reduction in [Reduction::Minimum, Reduction::Maximum] {
        let bits = |algorithm| {
            let found = result(&all_reduce(algorithm, 5), &numbers, &named(reduction));
            found.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let mut all = Algorithm::doing(&Collective::AllReduce).map(bits);
        let first = all.next().unwrap();
        assert!(all.all(|other| other == first), "{reduction}");
    }
}

/// A matrix of two rows and two columns.
type Matrix = [u64; 4];

fn product([a, b, c, d]: Matrix, [e, f, g, h]: Matrix) -> Matrix {
    let dot = |a: u64, e: u64, b: u64, g: u64| a.wrapping_mul(e).wrapping_add(b.wrapping_mul(g));
    [dot(a, e, b, g), dot(a, f, b, h), dot(c, e, d, g), dot(c, f, d, h)]
}

#[test]
fn noncommutative_operations_need_rank_order() {
    let multiply = Reducer::user_defined(false, product);
    let any_order = Reduction::UserDefined { commutes: true };
    let mut in_order = 0;
    for ranks in [1, 3, 4, 6] {
        let matrices =
            inputs(ranks, |rank, at| [u64::from(rank) + 2, u64::from(at) + 1, 3, u64::from(rank * at) + 1]);
        for algorithm in Algorithm::doing(&Collective::AllReduce) {
            let plan = all_reduce(algorithm, ranks);
            let expected = |at: usize| matrices.iter().map(|input| input[at]).reduce(product).unwrap();
            let found = result(&plan, &matrices, &multiply);
            let is_product = found.iter().enumerate().all(|(at, &value)| value == expected(at));
            assert!(plan.allows(any_order).is_ok() || !plan.groups.is_empty());
            match plan.allows(multiply.reduction()) {
                Ok(()) => {
                    assert!(is_product, "{algorithm} of {ranks}");
                    in_order += 1;
                }
                Err(why) => assert!(why.contains("does not commute") || !plan.groups.is_empty(), "{why}"),
            }
        }
        let ring = all_reduce(Algorithm::Ring, ranks);
        assert_eq!(ring.allows(multiply.reduction()).is_ok(), ranks == 1);
    }
    assert!(in_order > 8);
}
