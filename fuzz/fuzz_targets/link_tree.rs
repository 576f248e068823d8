//! Links of recorded machines: the reader never panics, and comparing a machine with itself gives a rate of 0 or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_probe::Recording;
use weftlink_probe::links::{self, Basis};

fuzz_target!(|text: &str| {
    let Ok(machine) = text.parse::<Recording>() else { return };
    let Ok(links) = links::of_tree(&machine) else { return };
    for rates in links::rates(&links, &links, 1.0) {
        for flow in [rates.sent, rates.received].into_iter().flatten() {
            assert!(flow.basis == Basis::Driver || flow.bytes_per_second == 0.0, "{rates:?}");
        }
    }
});
