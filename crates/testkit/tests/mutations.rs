//! Whatever goes wrong under chaos must have been refused.
//!
//! Chaos cannot see everything, so a mutant that it finds nothing wrong with may be refused all the same; how many
//! are, and of which kind, is printed (`--nocapture`), to judge whether the verifier is too strict.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weftlink_plan::{Algorithm, Collective, Plan, Refusal, verify};
use weftlink_testkit::chaos::{Sighting, hunt};
use weftlink_testkit::mutations::{Mutant, mutants};
use weftlink_testkit::plans::{credit, push, split};

/// An algorithm's plan on ranks that know nothing of their wiring.
fn flat(algorithm: Algorithm, collective: Collective, ranks: u32, rings: u32) -> Plan {
    algorithm.flat(&collective, ranks, rings).expect("it does that")
}

/// A plan to be mutated.
struct Subject {
    name: &'static str,
    plan: Plan,
    /// How many schedules of each temperament and shape a mutant must survive.
    seeds: u64,
    /// How many mutants are bad at least; fewer would mean that chaos has gone blind.
    bad_min: usize,
}

fn subjects() -> Vec<Subject> {
    // Without its symmetry: a mutant that breaks it would be refused for that alone.
    let subject = |name, plan: Plan, seeds, bad_min| Subject {
        name,
        plan: Plan { symmetry: None, ..plan },
        seeds,
        bad_min,
    };
    vec![
        subject("ring of 2", Algorithm::Ring.plan(2, 1), 6, 140),
        subject("Ring 3x1", Algorithm::Ring.plan(3, 1), 6, 420),
        subject("Ring 4x2", Algorithm::Ring.plan(4, 2), 3, 1300),
        subject("exchange(2, Ll)", shallow(Algorithm::ExchangeLl.plan(2, 1)), 16, 85),
        subject("exchange(3, Simple)", shallow(Algorithm::Exchange.plan(3, 1)), 16, 190),
        subject("OneShot 2x1", Algorithm::OneShot.plan(2, 1), 16, 90),
        subject("OneShot 3x1", Algorithm::OneShot.plan(3, 1), 16, 230),
        subject("TwoShot 2x1", Algorithm::TwoShot.plan(2, 1), 16, 115),
        subject("TwoShot 3x1", Algorithm::TwoShot.plan(3, 1), 16, 310),
        subject("push(3)", push(3), 16, 380),
        subject("split(3)", split(3), 16, 235),
        subject("credit()", credit(), 16, 150),
        subject("Ring AllGather", flat(Algorithm::Ring, Collective::AllGather, 3, 1), 6, 238),
        subject("Ring AllGather", flat(Algorithm::Ring, Collective::AllGather, 2, 2), 6, 190),
        subject("Ring ReduceScatter", flat(Algorithm::Ring, Collective::ReduceScatter, 3, 1), 6, 190),
        subject("Chain Broadcast", flat(Algorithm::Chain, Collective::Broadcast { root: 1 }, 3, 1), 8, 75),
        subject("Chain Reduce", flat(Algorithm::Chain, Collective::Reduce { root: 1 }, 3, 1), 8, 78),
        subject("Linear Gather", flat(Algorithm::Linear, Collective::Gather { root: 2 }, 3, 1), 8, 98),
        subject("Linear Scatter", flat(Algorithm::Linear, Collective::Scatter { root: 0 }, 3, 1), 8, 98),
        subject("Pairwise AllToAll", flat(Algorithm::Pairwise, Collective::AllToAll, 3, 1), 6, 190),
    ]
}

/// The plan with FIFOs of two slots, so that a few tiles use each of them again.
fn shallow(mut plan: Plan) -> Plan {
    plan.channels.iter_mut().for_each(|channel| channel.depth = 2);
    plan
}

#[test]
fn good_plans_go_right_and_are_accepted() {
    for Subject { name, plan, seeds, .. } in subjects() {
        if let Some(sighting) = hunt(&plan, 2 * seeds) {
            panic!("{name}: {sighting}");
        }
        if let Err(refusal) = verify(plan) {
            panic!("{name}: {refusal}");
        }
    }
}

#[test]
fn whatever_goes_wrong_was_refused() {
    let subjects = subjects();
    let cases: Vec<_> = subjects
        .iter()
        .flat_map(|subject| mutants(&subject.plan).into_iter().map(move |m| (subject, m)))
        .collect();
    let verdicts = in_parallel(&cases, |(subject, mutant)| Verdict {
        refusal: verify(mutant.plan.clone()).err(),
        sighting: hunt(&mutant.plan, subject.seeds),
    });

    let mut total = Count::default();
    for subject in &subjects {
        let mut count = Count::default();
        let mut strict: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((other, mutant), verdict) in cases.iter().zip(&verdicts) {
            if other.name == subject.name {
                count.add(subject.name, mutant, verdict);
                if let (Some(refusal), None) = (&verdict.refusal, &verdict.sighting) {
                    strict.entry(mutant.kind).or_default().push((mutant, refusal));
                }
            }
        }
        println!("{:20} {count}", subject.name);
        for (kind, refused) in strict {
            let (mutant, refusal) = refused[0];
            println!("    {} x {kind}, as in {}: {refusal}", refused.len(), mutant.description);
        }
        assert!(count.bad >= subject.bad_min, "{}: only {} are seen to be bad", subject.name, count.bad);
        total.merge(count);
    }
    println!("{:20} {total}", "all");
    assert_eq!(
        total.caught,
        total.bad,
        "the verifier accepted plans that go wrong:\n{}",
        total.missed.join("\n")
    );
}

/// What is accepted although it has a mistake is a good start for a second one.
#[test]
fn whatever_is_accepted_with_two_mistakes_goes_right() {
    let plans = [credit(), push(2), split(2), Algorithm::OneShot.plan(2, 1), Algorithm::TwoShot.plan(2, 1)];
    let is_accepted = |mutant: &Mutant| verify(mutant.plan.clone()).is_ok();
    let once: Vec<_> = plans.iter().flat_map(mutants).filter(is_accepted).collect();
    let accepted = in_parallel(&once, |first| {
        let twice = mutants(&first.plan).into_iter().filter(is_accepted);
        let check = |second: Mutant| {
            let sighting = hunt(&second.plan, 2);
            let Mutant { plan, description, .. } = second;
            sighting.map_or(1, |seen| panic!("{}: {}; {description}: {seen}", plan.name, first.description))
        };
        twice.map(check).sum::<usize>()
    });
    let accepted: usize = accepted.iter().sum();
    println!("{accepted} plans with two mistakes are accepted");
    assert!(accepted > 300, "only {accepted} plans with two mistakes are accepted");
}

/// What the verifier said of a mutant, and what chaos saw.
struct Verdict {
    refusal: Option<Refusal>,
    sighting: Option<Sighting>,
}

#[derive(Default)]
struct Count {
    all: usize,
    bad: usize,
    /// Those of the bad ones that were refused.
    caught: usize,
    /// Refused although nothing was seen.
    strict: usize,
    missed: Vec<String>,
}

impl Count {
    fn add(&mut self, name: &str, mutant: &Mutant, verdict: &Verdict) {
        self.all += 1;
        match (&verdict.sighting, &verdict.refusal) {
            (Some(_), Some(_)) => (self.bad, self.caught) = (self.bad + 1, self.caught + 1),
            (Some(sighting), None) => {
                self.bad += 1;
                self.missed.push(format!("{name}: {}: {sighting}", mutant.description));
            }
            (None, Some(_)) => self.strict += 1,
            (None, None) => {}
        }
    }

    fn merge(&mut self, other: Count) {
        self.all += other.all;
        self.bad += other.bad;
        self.caught += other.caught;
        self.strict += other.strict;
        self.missed.extend(other.missed);
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Count { all, bad, caught, strict, .. } = self;
        write!(f, "caught/bad/total {caught}/{bad}/{all}, refused though nothing was seen {strict}")
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
