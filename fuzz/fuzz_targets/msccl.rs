//! MSCCL's XML: whatever is read is no panic; what is proved is written, read and proved again, and writing that changes
//! nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_plan::{Plan, verify};

/// Programs with more ranks or work than this are only read: proving them takes the time of thousands of inputs.
const RANKS_MAX: u32 = 4;
const DEPTH_MAX: u32 = 8;
const WORK_MAX: u64 = 500;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = Plan::from_msccl(text) else { return };
    let deep = plan.channels.iter().any(|channel| channel.depth > DEPTH_MAX);
    let large = plan.chunks.input.max(plan.chunks.output).max(plan.chunks.scratch) > 64;
    if plan.ranks > RANKS_MAX || deep || large || plan.work() > WORK_MAX {
        return;
    }
    let Ok(proved) = verify(plan) else { return };
    let written = proved.to_msccl().expect("what was read can be written");
    let again = Plan::from_msccl(&written).expect("what was written can be read");
    let again = verify(again).expect("what was proved is proved again");
    assert_eq!((&again.collective, &again.aliasing), (&proved.collective, &proved.aliasing));
    assert_eq!(again.agreement, proved.agreement);
    assert_eq!(again.to_msccl().expect("what was read can be written"), written);
});
