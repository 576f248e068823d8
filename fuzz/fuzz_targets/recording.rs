//! Recordings of machines: the reader never panics, and a recording of a recording has the same number of devices.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fuzz::exercise;
use weftlink_probe::{Recording, Tree, probe, record};

fuzz_target!(|text: &str| {
    let Ok(machine) = text.parse::<Recording>() else { return };
    let Ok(fabric) = probe(&machine, &machine) else { return };
    exercise(&fabric);
    if machine.read("proc/cpuinfo").is_none() {
        // The recording of a machine without processors may be empty.
        return;
    }
    let copy = record(&machine, &machine).expect("a machine that was probed can be recorded");
    let copy: Recording = copy.to_string().parse().expect("the written recording reads");
    let again = probe(&copy, &copy).expect("the recording can be probed");
    assert_eq!(again.gpus().len(), fabric.gpus().len());
    assert_eq!(again.devices().len(), fabric.devices().len());
});
