//! Properties of all algorithms at random sizes: results match a second, independent list of promises, programs can be written
//! rank by rank, files preserve a plan, and a proof by classes agrees with a proof rank by rank.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use proptest::sample::{Index, select};
use weftlink_plan::domain::elements::oracle_with;
use weftlink_plan::{Cut, Plan, Reducer, Reduction, Verified, verify, verify_by_classes};
use weftlink_testkit::catalogue::{Case, possible};
use weftlink_testkit::mutations::{mutants_of, turned};
use weftlink_testkit::{plans, promise};

/// The most ranks of a case.
const RANKS_MAX: u32 = 24;
/// Turned mutants per case.
const MUTANTS: usize = 6;

/// A case of any number of ranks, small ones more often.
fn case() -> impl Strategy<Value = Case> {
    let ranks = prop_oneof![3 => 1..=6_u32, 1 => 7..=RANKS_MAX];
    (ranks, any::<Index>()).prop_map(|(ranks, index)| index.get(&possible(ranks)).clone())
}

/// The lengths of blocks in elements, and how they are cut.
#[derive(Clone, Debug)]
struct Sizes {
    count: usize,
    /// By how much blocks are shorter, in rotation, if they may differ.
    shorter: Vec<usize>,
    granule: usize,
    granules: usize,
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (0..200_usize, prop::collection::vec(0..200_usize, 1..5), 1..5_usize, 1..40_usize)
        .prop_map(|(count, shorter, granule, granules)| Sizes { count, shorter, granule, granules })
}

impl Sizes {
    /// The number of elements of a block of a rank's input.
    fn length(&self, plan: &Plan, rank: u32, block: u32) -> usize {
        // If a block is reduced, it has the same length on all ranks.
        let rank = if plan.collective.reduces() { 0 } else { rank };
        let at = (rank * 7 + block) as usize % self.shorter.len();
        if plan.uneven { self.count.saturating_sub(self.shorter[at]) } else { self.count }
    }

    fn cut(&self, plan: &Plan, rank: u32, block: u32) -> Cut {
        let length = self.length(plan, rank, block);
        Cut::new(length, plan.chunks_per_block(), self.granule, self.granule * self.granules)
    }

    fn inputs<T>(&self, plan: &Plan, number: impl Fn(u32, u32, usize) -> T) -> Vec<Vec<T>> {
        let length = |rank, block| self.length(plan, rank as u32, block as u32);
        let number = |rank, block, at| number(rank as u32, block as u32, at);
        promise::inputs(&plan.collective, plan.ranks as usize, length, number)
    }

    fn outputs<T>(&self, plan: &Plan, result: impl Fn(&[(usize, usize)], usize) -> T) -> Vec<Vec<T>> {
        let length = |rank, block| self.length(plan, rank as u32, block as u32);
        promise::outputs(&plan.collective, plan.ranks as usize, length, result)
    }
}

/// A number that identifies its place; positive, negative and sometimes zero.
fn number(rank: u32, block: u32, at: usize) -> i64 {
    let mixed = (i64::from(rank) + 3) * 1_000_003 + (i64::from(block) + 1) * 7919 + at as i64 * 31;
    if mixed % 11 == 0 { 0 } else { mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> (mixed % 40) }
}

fn factor(rank: u32) -> i64 {
    i64::from(rank % 5) - 2
}

fn reducer<'a>(reduction: Reduction, ranks: u32) -> Reducer<'a, i64> {
    match reduction {
        Reduction::PremultipliedSum => Reducer::premultiplied_sum((0..ranks).map(factor).collect()),
        _ => Reducer::named(reduction),
    }
    .unwrap()
}

/// The reduction of the ranks' numbers, implemented independently.
fn reference(reduction: Reduction, numbers: &[i64]) -> i64 {
    let sum = |numbers: &mut dyn Iterator<Item = i64>| numbers.fold(0_i64, i64::wrapping_add);
    let whole = || numbers.iter().copied();
    match reduction {
        Reduction::Sum => sum(&mut whole()),
        Reduction::Average => sum(&mut whole()) / numbers.len() as i64,
        Reduction::PremultipliedSum => {
            sum(&mut (0..).zip(numbers).map(|(rank, value)| value.wrapping_mul(factor(rank))))
        }
        Reduction::Product => whole().fold(1, i64::wrapping_mul),
        Reduction::Minimum => whole().min().unwrap(),
        Reduction::Maximum => whole().max().unwrap(),
        Reduction::LogicalAnd => whole().all(|value| value != 0).into(),
        Reduction::LogicalOr => whole().any(|value| value != 0).into(),
        Reduction::LogicalXor => (whole().filter(|&value| value != 0).count() % 2) as i64,
        Reduction::BitAnd => whole().fold(-1, |a, b| a & b),
        Reduction::BitOr => whole().fold(0, |a, b| a | b),
        Reduction::BitXor => whole().fold(0, |a, b| a ^ b),
        Reduction::UserDefined { .. } => unreachable!("it has no name"),
    }
}

/// Compares the results of a plan with the promises, under every aliasing.
fn check(plan: &Verified, sizes: &Sizes, reduction: Reduction) -> Result<(), TestCaseError> {
    let inputs = sizes.inputs(plan, number);
    let promised = sizes.outputs(plan, |parts, at| {
        let numbers: Vec<_> =
            parts.iter().map(|&(rank, block)| number(rank as u32, block as u32, at)).collect();
        if plan.collective.reduces() { reference(reduction, &numbers) } else { numbers[0] }
    });
    let reducer = reducer(reduction, plan.ranks);
    for &aliasing in &plan.aliasing {
        let (outputs, _) =
            oracle_with(plan, |rank, block| sizes.cut(plan, rank, block), aliasing, &inputs, &reducer);
        prop_assert_eq!(&outputs, &promised, "{} {} {}", plan.name, aliasing, reduction);
    }
    Ok(())
}

/// A string of ranks, as a hash that can be extended on both sides: concatenation does not commute.
type Text = (u64, u64);

fn letter(rank: u32, block: u32, at: usize) -> Text {
    (number(rank, block, at) as u64, 0x0000_0100_0000_01b3)
}

fn concatenated((a, a_shift): Text, (b, b_shift): Text) -> Text {
    (a.wrapping_mul(b_shift).wrapping_add(b), a_shift.wrapping_mul(b_shift))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_are_correct(case in case(), sizes in sizes(), reduction in select(&Reduction::NAMED[..])) {
        let plan = verify(case.plan()).unwrap_or_else(|refusal| panic!("{case}: {refusal}"));
        check(&plan, &sizes, reduction)?;
    }

    #[test]
    fn noncommutative_values_combine_in_order(case in case(), sizes in sizes()) {
        let plan = verify(case.plan()).unwrap_or_else(|refusal| panic!("{case}: {refusal}"));
        let concatenate = Reducer::user_defined(false, concatenated);
        let inputs = sizes.inputs(&plan, letter);
        let promised = sizes.outputs(&plan, |parts, at| {
            let letter = |&(rank, block): &(usize, usize)| letter(rank as u32, block as u32, at);
            parts.iter().map(letter).reduce(concatenated).unwrap()
        });
        let may = plan.allows(concatenate.reduction()).is_ok();
        prop_assert!(!plan.in_rank_order() || may || !plan.groups.is_empty());
        if may {
            let cut = |rank, block| sizes.cut(&plan, rank, block);
            let (outputs, _) = oracle_with(&plan, cut, plan.aliasing[0], &inputs, &concatenate);
            prop_assert_eq!(outputs, promised, "{}", case);
        }
    }

    #[test]
    fn programs_are_written_alone_and_kept_in_files(case in case(), rank in any::<Index>()) {
        let plan = case.plan();
        let rank = rank.index(plan.ranks as usize);
        let recipe = case.recipe();
        prop_assert_eq!(&recipe.program(rank as u32), &plan.programs[rank]);
        let outline = Plan { programs: vec![], ..plan.clone() };
        prop_assert_eq!(recipe.outline(), &outline);
        let read = Plan::from_json(&plan.to_json()).unwrap();
        prop_assert_eq!(&read, &plan);
        let hashes = [plan, read].map(|plan| verify(plan).map(|plan| plan.hash()).unwrap());
        prop_assert_eq!(hashes[0], hashes[1]);
    }

    #[test]
    fn classes_prove_what_ranks_prove(case in case(), picks in prop::collection::vec(any::<Index>(), MUTANTS)) {
        let plan = case.plan();
        if plan.symmetry.is_some() {
            prop_assert_eq!(verify_by_classes(plan.clone()).err(), None, "{}", case);
            // Mutants of many ranks take longer to build than to verify.
            if plan.ranks <= 12 {
                let all = mutants_of(&plan, picks[0].index(plan.ranks as usize) as u32);
                for mutant in picks.iter().map(|pick| pick.get(&all)) {
                    let Some(everywhere) = turned(&plan, &mutant.plan) else { continue };
                    let exact = verify(everywhere.clone()).err();
                    let by_classes = verify_by_classes(everywhere).err();
                    prop_assert_eq!(
                        exact.is_some(), by_classes.is_some(),
                        "{}, {}: {:?} but by classes {:?}", case, mutant.description, exact, by_classes
                    );
                }
            }
        }
    }
}

/// Plans written by hand cover what no algorithm uses yet.
#[test]
fn hand_written_plans_are_correct() {
    let sizes = Sizes { count: 50, shorter: vec![0, 7, 50, 3], granule: 2, granules: 3 };
    for ranks in 1..=5 {
        let plans = if ranks == 1 { vec![plans::scan(1), plans::barrier(1)] } else { plans::all(ranks) };
        for plan in plans {
            let plan = verify(plan).unwrap_or_else(|refusal| panic!("{refusal}"));
            check(&plan, &sizes, Reduction::Average).unwrap();
        }
    }
}
