//! Plans in JSON: whatever is read is written back the same; what is proved gives the right sums, runs to its end in the
//! interpreter, and does not go wrong under hostile schedules.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_plan::collective::Promise;
use weftlink_plan::domain::chunks::chunks_of_steps;
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::{Cut, Plan, verify};
use weftlink_testkit::chaos::hunt;

/// Plans with more ranks or text than this are only read: proving them takes the time of thousands of inputs.
const RANKS_MAX: u32 = 4;
const JSON_MAX: usize = 20_000;
const DEPTH_MAX: u32 = 4;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = Plan::from_json(text) else { return };
    let json = plan.to_json();
    assert_eq!(Plan::from_json(&json).expect("what was written can be read"), plan);
    let deep = plan.channels.iter().any(|channel| channel.depth > DEPTH_MAX);
    if plan.ranks > RANKS_MAX || json.len() > JSON_MAX || deep || plan.chunks.input > 64 || plan.work() > 1000
    {
        return;
    }
    let Ok(proved) = verify(plan) else { return };
    let (cut, collective, ranks) =
        (Cut::new(40, proved.chunks_per_block(), 1, 3), &proved.collective, proved.ranks);
    let number = |rank: u32, block: u32, at: usize| u64::from(rank * 4 + block + 1) << 32 | at as u64;
    let input = |rank| {
        (0..collective.gives(rank, ranks)).flat_map(|block| (0..40).map(move |at| number(rank, block, at))).collect()
    };
    let inputs: Vec<Vec<u64>> = (0..ranks).map(input).collect();
    for &aliasing in &proved.aliasing {
        let (outputs, _) = oracle(&proved, cut, aliasing, &inputs, |a, b| a + b);
        for (rank, output) in (0..).zip(&outputs) {
            for (position, &value) in output.iter().enumerate() {
                let promised = match collective.promise(rank, ranks, (position / 40) as u32).expect("it gets that block") {
                    Promise::Copy { rank, block } => number(rank, block, position % 40),
                    Promise::Reduction { block, below } => {
                        (0..below).map(|from| number(from, block, position % 40)).sum()
                    }
                };
                assert_eq!(value, promised);
            }
        }
    }
    assert_eq!(chunks_of_steps(&proved).len(), proved.ranks as usize);
    if let Some(sighting) = hunt(&proved, 1) {
        panic!("{sighting}");
    }
});
