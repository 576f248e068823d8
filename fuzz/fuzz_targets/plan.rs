//! Plans in JSON: whatever is read is written back the same; what is proved gives the right sums, runs to its end in the
//! interpreter, and does not go wrong under hostile schedules.

#![no_main]

use libfuzzer_sys::fuzz_target;
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
    let cut = Cut::new(40, proved.chunks.input, 1, 3);
    let inputs: Vec<Vec<u64>> = (0..u64::from(proved.ranks)).map(|rank| vec![1 << (8 * rank); 40]).collect();
    for &aliasing in &proved.aliasing {
        let (outputs, _) = oracle(&proved, cut, aliasing, &inputs, |a, b| a + b);
        let sum: u64 = (0..proved.ranks).map(|rank| 1 << (8 * rank)).sum();
        assert!(outputs.iter().flatten().all(|&value| value == sum));
    }
    assert_eq!(chunks_of_steps(&proved).len(), proved.ranks as usize);
    if let Some(sighting) = hunt(&proved, 1) {
        panic!("{sighting}");
    }
});
