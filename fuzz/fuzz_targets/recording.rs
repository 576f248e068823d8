//! Recordings of machines: no text panics, and a recording of a recording shows as many devices and GPUs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fuzz::ask;
use weftlink_probe::{Recording, Tree, probe, record};

fuzz_target!(|text: &str| {
    let Ok(machine) = text.parse::<Recording>() else { return };
    let Ok(fabric) = probe(&machine, &machine) else { return };
    ask(&fabric);
    if machine.read("proc/cpuinfo").is_none() {
        // Of a machine without processors a recording may have nothing to keep.
        return;
    }
    let copy = record(&machine, &machine).expect("what was probed can be recorded");
    let copy: Recording = copy.to_string().parse().expect("what was recorded reads");
    let again = probe(&copy, &copy).expect("what was recorded can be probed");
    assert_eq!(again.gpus().len(), fabric.gpus().len());
    assert_eq!(again.devices().len(), fabric.devices().len());
});
