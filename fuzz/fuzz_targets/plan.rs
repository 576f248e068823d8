//! Plans in JSON: a plan that was read survives a round trip. A plan that verifies produces the results of its collective
//! (with blocks of different lengths if it supports them), runs to completion in the interpreter, and is correct under
//! adversarial schedules. Verification by classes and rank by rank agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_plan::domain::chunks::origins_of_steps;
use weftlink_plan::domain::elements::oracle_uneven;
use weftlink_plan::{Cut, Plan, verify, verify_by_classes};
use weftlink_testkit::chaos::find_failure;
use weftlink_testkit::promise;

/// Larger plans are only read, because verifying them takes too long.
const RANKS_MAX: u32 = 4;
const JSON_MAX: usize = 20_000;
const DEPTH_MAX: u32 = 4;
const CHUNKS_MAX: u32 = 64;
const WORK_MAX: u64 = 1000;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = Plan::from_json(text) else { return };
    let json = plan.to_json();
    assert_eq!(Plan::from_json(&json).expect("the written plan reads"), plan);
    let deep = plan.channels.iter().any(|channel| channel.depth > DEPTH_MAX);
    let wide = plan.chunks.input.max(plan.chunks.output) > CHUNKS_MAX;
    if plan.ranks > RANKS_MAX || json.len() > JSON_MAX || deep || wide || plan.work() > WORK_MAX {
        return;
    }
    let exact = verify(plan.clone());
    let by_classes = verify_by_classes(plan);
    assert_eq!(exact.is_ok(), by_classes.is_ok(), "{:?} and by classes {:?}", exact.err(), by_classes.err());
    let Ok(proved) = exact else { return };
    let (collective, ranks) = (&proved.collective, proved.ranks as usize);
    // In a reduction, a block has the same length on all ranks.
    let length = |rank: usize, block: usize| {
        let rank = if collective.reduces() { 0 } else { rank };
        if proved.uneven { 40 - (rank * 13 + block * 7) % 41 } else { 40 }
    };
    let number = |rank: usize, block: usize, at: usize| ((rank * 64 + block + 1) as u64) << 32 | at as u64;
    let inputs = promise::inputs(collective, ranks, length, number);
    let promised = promise::outputs(collective, ranks, length, |parts, at| {
        parts.iter().map(|&(rank, block)| number(rank, block, at)).sum::<u64>()
    });
    let per_block = proved.chunks_per_block();
    let cut = |rank, block| Cut::new(length(rank as usize, block as usize), per_block, 1, 3);
    for &aliasing in &proved.aliasing {
        let (outputs, _) = oracle_uneven(&proved, cut, aliasing, &inputs, |a, b| a + b);
        assert_eq!(outputs, promised);
    }
    assert_eq!(origins_of_steps(&proved).len(), ranks);
    if let Some(failure) = find_failure(&proved.into_plan().without_switches(), 1) {
        panic!("{failure}");
    }
});
