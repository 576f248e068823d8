//! MSCCL's XML: the reader never panics, and a plan that verifies survives a round trip and verifies again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_plan::{Plan, verify};

/// Larger programs are only read, because verifying them takes too long.
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
    let written = proved.to_msccl().expect("a program that was read can be written");
    let again = Plan::from_msccl(&written).expect("the written program reads");
    let again = verify(again).expect("the written program verifies");
    assert_eq!((&again.collective, &again.aliasing), (&proved.collective, &proved.aliasing));
    assert_eq!(again.agreement, proved.agreement);
    assert_eq!(again.to_msccl().expect("a program that was read can be written"), written);
});
