//! Several jobs on one fabric, and traces of their steps.

use weftlink_fabric::LinkKind;

use super::*;
use crate::engine::wires::Resource;
use crate::engine::{Conditions, Job, Mode, SimError, Spans, run_jobs, run_traced};
use weftlink_plan::{Layout, Partial};

const START: Picoseconds = Picoseconds(0);

fn ring_of(ranks: u32) -> Partial {
    Algorithm::Ring.recipe(&Collective::AllReduce, &Layout::flat(ranks, 1)).unwrap().partial(ranks)
}

fn job<'a>(plan: &'a Partial, gpus: Option<&'a [u32]>) -> Job<'a> {
    Job { plan, gpus, load: Load { bytes: BYTES, tiles: 1 }, volumes: None, costs: &COSTS, start: START }
}

fn times(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().map(|outcome| outcome.time.0 as f64).collect()
}

#[test]
fn jobs_share_common_links() {
    let fabric = resolve("2x hgx-h100 + 1x ndr").unwrap();
    let paths = Paths::of(&fabric);
    let pair = ring_of(2);
    let (across, beside, inside): (&[u32], &[u32], &[u32]) = (&[0, 8], &[1, 9], &[2, 3]);
    let calm = Conditions::default();
    let alone = times(&run_jobs(&[job(&pair, Some(across))], &paths, &calm).unwrap())[0];
    // With one NIC per host, two jobs between hosts take twice as long; a job inside a host is not affected.
    let both = run_jobs(&[job(&pair, Some(across)), job(&pair, Some(beside))], &paths, &calm).unwrap();
    assert!(
        times(&both).iter().all(|time| (time / alone - 2.0).abs() < 0.02),
        "{:?}, alone {alone}",
        times(&both)
    );
    let apart = run_jobs(&[job(&pair, Some(across)), job(&pair, Some(inside))], &paths, &calm).unwrap();
    assert_eq!(apart[0].time.0 as f64, alone);
    // A job that starts after the other has ended has the links to itself.
    let later = Job { start: Picoseconds(alone as u64), ..job(&pair, Some(beside)) };
    let after = run_jobs(&[job(&pair, Some(across)), later], &paths, &calm).unwrap();
    assert!(times(&after).iter().all(|time| (time / alone - 1.0).abs() < 0.001), "{:?}", times(&after));
    let cables = |resource: &&Resource| matches!(resource.kind, LinkKind::Network { .. });
    let moved = |outcome: &Outcome| {
        outcome.resources.iter().filter(cables).map(|resource| resource.moved).sum::<f64>()
    };
    assert_eq!(moved(&both[0]), moved(&both[1]));
}

#[test]
fn jobs_with_the_same_classes_run_by_classes() {
    let fabric = resolve("4x hgx-h100 + 8x ndr").unwrap();
    let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
    let recipe = Algorithm::Ring.recipe(&Collective::AllReduce, ground.layout()).unwrap();
    let calm = Conditions::default();
    let [whole, classes] = [32, 8].map(|multiple| {
        let plan = recipe.partial(multiple);
        run_jobs(&[job(&plan, None), job(&plan, None)], &paths, &calm).unwrap()
    });
    assert_eq!(classes[0].mode, Mode::Classes);
    for (whole, classes) in whole.iter().zip(&classes) {
        assert!((classes.time.0 as f64 / whole.time.0 as f64 - 1.0).abs() < 0.01);
    }
    let (by_eight, all) = (recipe.partial(8), recipe.partial(32));
    let mixed = run_jobs(&[job(&by_eight, None), job(&all, None)], &paths, &calm);
    assert!(matches!(mixed, Err(SimError::Jobs(_))));
    let moved: Vec<u32> = (0..32).rev().collect();
    assert!(matches!(run_jobs(&[job(&by_eight, Some(&moved))], &paths, &calm), Err(SimError::Jobs(_))));
    assert!(matches!(run_jobs(&[job(&all, Some(&[0, 1]))], &paths, &calm), Err(SimError::Jobs(_))));
    let too_many = ring_of(33);
    assert!(matches!(run_jobs(&[job(&too_many, None)], &paths, &calm), Err(SimError::Jobs(_))));
    assert!(run_jobs(&[], &paths, &calm).unwrap().is_empty());
}

#[test]
fn every_step_is_traced_once_and_in_order() {
    let fabric = resolve("hgx-h100").unwrap();
    let paths = Paths::of(&fabric);
    let plan = ring_of(8);
    let mut spans = Spans::with_capacity(1000);
    let calm = Conditions::default();
    let outcome = run_traced(&[job(&plan, None)], &paths, &calm, Some(&mut spans)).unwrap().remove(0);
    assert_eq!((spans.list.len() as u64, spans.dropped), (outcome.steps, 0));
    assert_eq!(spans.list.iter().map(|span| span.ended).max(), Some(outcome.time));
    for rank in 0..8 {
        let own: Vec<_> = spans.list.iter().filter(|span| span.rank == rank).collect();
        assert!(
            own.windows(2).all(|pair| pair[0].ended <= pair[1].began && pair[0].step + 1 == pair[1].step)
        );
        assert!(own.iter().all(|span| span.bytes == BYTES / 8));
        assert!(own[1..].iter().all(|span| span.received_from == [(rank + 7) % 8]));
        assert!(own[..own.len() - 1].iter().all(|span| span.sent_to == [(rank + 1) % 8]));
    }
    let mut few = Spans::with_capacity(10);
    run_traced(&[job(&plan, None)], &paths, &calm, Some(&mut few)).unwrap();
    assert_eq!((few.list.len() as u64, few.dropped), (10, outcome.steps - 10));
}
