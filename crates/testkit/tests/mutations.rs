//! The verifier refuses every plan that fails under chaos.
//!
//! The subjects are the whole catalogue of two to four ranks and the hand-written plans. The verifier checks every mutant; those that it
//! accepts run under many schedules, and none may fail. A sample of the refused mutants runs as well: most must fail, or chaos detects too
//! little. `--nocapture` prints the number and kinds of refused mutants that did not fail, which shows whether the verifier is too strict.
//!
//! The test takes a fixed, evenly spread sample of each subject's mutants. `WEFT_MUTANTS=all` takes all of them, which needs many minutes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weftlink_plan::domain::elements::oracle_uneven;
use weftlink_plan::{Algorithm, Cut, Plan, Refusal, Verified, verify, verify_by_classes};
use weftlink_testkit::chaos::{Failure, find_failure};
use weftlink_testkit::mutations::{Mutant, mutants, mutants_of, turned};
use weftlink_testkit::plans::{self, credit, push, split};
use weftlink_testkit::{catalogue, promise};

/// Schedules of each policy and shape under which an accepted mutant must pass.
const SEEDS: u64 = 8;
/// Mutants of all subjects together, and how many of the refused ones run.
const MUTANTS: usize = 30_000;
const REFUSED_RUN: usize = 3_000;
/// Mistakes that are applied to all ranks.
const TURNED: usize = 4_000;
/// The smallest share of refused mutants that must fail, in percent, of all subjects and of each family.
const BAD_PERCENT_MIN: usize = 85;
const BAD_PERCENT_MIN_OF_FAMILY: usize = 50;

/// A plan to be mutated.
struct Subject {
    /// The algorithm and the collective, for statistics.
    family: String,
    name: String,
    plan: Plan,
}

fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for ranks in 2..=4 {
        for case in catalogue::all(ranks) {
            let family = format!("{} {}", case.algorithm, case.collective.name());
            subjects.push(Subject { family, name: case.to_string(), plan: case.plan() });
        }
        for plan in plans::all(ranks) {
            let family = format!("{} {} (by hand)", plan.name, plan.collective.name());
            subjects.push(Subject { name: format!("{family} of {ranks}"), family, plan });
        }
    }
    for subject in &mut subjects {
        // A mutant that breaks its symmetry would be refused for that alone. With two slots per FIFO, a few tiles reuse each of them.
        subject.plan.symmetry = None;
        subject.plan.channels.iter_mut().for_each(|channel| channel.depth = channel.depth.min(2));
    }
    subjects
}

/// The share of each subject in a total.
fn each<T>(total: usize, subjects: &[T]) -> usize {
    total.div_ceil(subjects.len())
}

/// A sample of the items, evenly spread with pseudo-random offsets.
fn some<T>(items: Vec<T>, most: usize) -> Vec<T> {
    if items.len() <= most || std::env::var("WEFT_MUTANTS").is_ok_and(|which| which == "all") {
        return items;
    }
    let (stride, count) = (items.len() / most, items.len());
    let pick = |number: usize| {
        let off = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        number * count / most + off as usize % stride
    };
    let picked: Vec<bool> = (0..most).map(pick).fold(vec![false; count], |mut picked, at| {
        picked[at] = true;
        picked
    });
    items.into_iter().zip(picked).filter_map(|(item, picked)| picked.then_some(item)).collect()
}

/// Looks for a failure of a plan, with switches replaced by messages, since chaos has none.
fn find_failure_lowered(plan: &Plan, seeds: u64) -> Option<Failure> {
    if plan.groups.is_empty() {
        find_failure(plan, seeds)
    } else {
        find_failure(&plan.clone().without_switches(), seeds)
    }
}

#[test]
fn correct_plans_pass_and_are_accepted() {
    in_parallel(&subjects(), |Subject { name, plan, .. }| {
        if let Some(failure) = find_failure_lowered(plan, SEEDS) {
            panic!("{name}: {failure}");
        }
        verify(plan.clone()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let lowered = plan.clone().without_switches();
        verify(lowered).unwrap_or_else(|refusal| panic!("{name}, without switches: {refusal}"));
    });
}

#[test]
fn failing_mutants_are_refused() {
    let subjects = subjects();
    let (most, run_most) = (each(MUTANTS, &subjects), each(REFUSED_RUN, &subjects));
    let counts = in_parallel(&subjects, |subject| (subject.family.clone(), judge(subject, most, run_most)));
    let (mut total, mut families) = (Count::default(), BTreeMap::<_, Count>::new());
    for (family, count) in counts {
        families.entry(family).or_default().merge(&count);
        total.merge(&count);
    }
    for (family, count) in &families {
        println!("{family:32} {count}");
    }
    println!("{:32} {total}", "all");
    for (kind, (times, example)) in &total.strict {
        println!("    refused without a failure: {times} x {kind}, for example {example}");
    }
    assert!(total.missed.is_empty(), "accepted plans fail:\n{}", total.missed.join("\n"));
    assert!(total.bad * 100 >= total.run * BAD_PERCENT_MIN, "chaos detects too few failures: {total}");
    for (family, count) in &families {
        let enough = count.bad * 100 >= count.run * BAD_PERCENT_MIN_OF_FAMILY;
        assert!(enough, "chaos detects too few failures of {family}: {count}");
    }
}

/// Checks up to `most` mutants of a subject with the verifier, and runs up to `run_most` of the refused ones.
fn judge(subject: &Subject, most: usize, run_most: usize) -> Count {
    let mut count = Count::default();
    let mut refused = Vec::new();
    for mutant in some(mutants(&subject.plan), most) {
        count.all += 1;
        let proved = match verify(mutant.plan.clone()) {
            Err(refusal) => {
                refused.push((mutant, refusal));
                continue;
            }
            Ok(proved) => proved,
        };
        count.accepted += 1;
        let seen = find_failure_lowered(&mutant.plan, SEEDS).map(|failure| failure.to_string());
        if let Some(seen) = seen.or_else(|| uneven_blocks(&proved)) {
            count.missed.push(format!("{}: {}: {seen}", subject.name, mutant.description));
        }
    }
    for (Mutant { plan, kind, description }, refusal) in some(refused, run_most) {
        count.run += 1;
        match find_failure_lowered(&plan, 1) {
            Some(_) => count.bad += 1,
            None => count.add_strict(kind, 1, || strict_example(&subject.name, &description, &refusal)),
        }
    }
    count
}

fn strict_example(name: &str, description: &str, refusal: &Refusal) -> String {
    format!("{name}: {description}: {refusal}")
}

/// Runs a plan that is proved for uneven blocks in the oracle, since the blocks of chaos have one length. Returns a description of a wrong
/// result.
fn uneven_blocks(plan: &Verified) -> Option<String> {
    if !plan.uneven {
        return None;
    }
    let length = |rank: usize, block: usize| {
        let rank = if plan.collective.reduces() { 0 } else { rank };
        [5, 0, 3, 8, 1][(rank * 3 + block) % 5]
    };
    let cut = |rank, block| Cut::new(length(rank as usize, block as usize), plan.chunks_per_block(), 1, 2);
    let number = |rank: usize, block: usize, at: usize| 1_u64 << (rank * 12 + block) | (at as u64) << 56;
    let ranks = plan.ranks as usize;
    let inputs = promise::inputs(&plan.collective, ranks, length, number);
    let promised = promise::outputs(&plan.collective, ranks, length, |parts, at| {
        parts.iter().map(|&(rank, block)| number(rank, block, at)).fold(0, u64::wrapping_add)
    });
    let wrong = |&&aliasing: &&weftlink_plan::Aliasing| {
        oracle_uneven(plan, cut, aliasing, &inputs, u64::wrapping_add).0 != promised
    };
    plan.aliasing.iter().find(wrong).map(|aliasing| format!("wrong for uneven blocks, {aliasing}"))
}

/// Accepted mutants get a second mistake.
#[test]
fn accepted_plans_with_two_mistakes_pass() {
    let mut plans = vec![credit(), push(2), split(2), plans::switched(2)];
    plans.extend([plans::barrier(3), plans::exclusive_scan(3), plans::messages(2, &[(0, 1), (1, 0)])]);
    plans.extend([Algorithm::OneShot.plan(2, 1), Algorithm::TwoShot.plan(2, 1)]);
    let is_accepted = |mutant: &Mutant| verify(mutant.plan.clone()).is_ok();
    let once: Vec<_> = plans.iter().flat_map(mutants).filter(is_accepted).collect();
    let accepted = in_parallel(&once, |first| {
        let twice = mutants(&first.plan).into_iter().filter(is_accepted);
        let check = |second: Mutant| {
            let failure = find_failure_lowered(&second.plan, 2);
            let Mutant { plan, description, .. } = second;
            failure.map_or(1, |seen| panic!("{}: {}; {description}: {seen}", plan.name, first.description))
        };
        twice.map(check).sum::<usize>()
    });
    let accepted: usize = accepted.iter().sum();
    println!("{accepted} plans with two mistakes are accepted");
    assert!(accepted > 300, "only {accepted} plans with two mistakes are accepted");
}

/// A mistake that all ranks make keeps a plan symmetric: verification by classes and by ranks must agree.
#[test]
fn classes_and_ranks_give_the_same_verdict() {
    let cases: Vec<_> =
        (2..=6).flat_map(catalogue::all).map(|case| (case.to_string(), case.plan())).collect();
    let symmetric: Vec<_> = cases.into_iter().filter(|(_, plan)| plan.symmetry.is_some()).collect();
    let most = each(TURNED, &symmetric);
    let judged = in_parallel(&symmetric, |(name, plan)| {
        let (mut accepted, mut refused) = (0, 0);
        // By symmetry, mistakes of rank 0 are enough.
        for mutant in some(mutants_of(plan, 0), most) {
            let Some(everywhere) = turned(plan, &mutant.plan) else { continue };
            match (verify(everywhere.clone()), verify_by_classes(everywhere)) {
                (Ok(_), Ok(_)) => accepted += 1,
                (Err(_), Err(_)) => refused += 1,
                (exact, by_classes) => panic!(
                    "{name}, {} on all ranks: {:?} rank by rank, {:?} by classes",
                    mutant.description,
                    exact.err(),
                    by_classes.err()
                ),
            }
        }
        (accepted, refused)
    });
    let (accepted, refused) = judged.iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    println!(
        "mistakes of all ranks in {} symmetric plans: {accepted} accepted, {refused} refused",
        symmetric.len()
    );
    assert!(accepted > 20 && refused > TURNED / 2, "{accepted} accepted, {refused} refused");
}

#[derive(Default)]
struct Count {
    all: usize,
    accepted: usize,
    /// Refused mutants that ran, and those of them that failed.
    run: usize,
    bad: usize,
    /// Refused mutants that did not fail, by kind, with an example.
    strict: BTreeMap<&'static str, (usize, String)>,
    /// Accepted mutants that failed.
    missed: Vec<String>,
}

impl Count {
    fn add_strict(&mut self, kind: &'static str, times: usize, example: impl FnOnce() -> String) {
        self.strict.entry(kind).or_insert_with(|| (0, example())).0 += times;
    }

    fn merge(&mut self, other: &Count) {
        self.all += other.all;
        self.accepted += other.accepted;
        self.run += other.run;
        self.bad += other.bad;
        self.missed.extend_from_slice(&other.missed);
        for (kind, (times, example)) in &other.strict {
            self.add_strict(kind, *times, || example.clone());
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Count { all, accepted, run, bad, missed, .. } = self;
        let wrong = missed.len();
        write!(
            f,
            "{all} mutants, {accepted} accepted, {wrong} of these failed; {bad} of {run} refused ones failed"
        )
    }
}

/// The results of `work` on each item, in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((index, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, items.get(i)?)))
        {
            done.push((index, work(item)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let mut results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.flat_map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}
