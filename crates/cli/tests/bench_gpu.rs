//! `weft bench --gpu` where no GPU is visible: one error with advice. Where there is one, the device is hidden from the driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{scratch, shell};

#[test]
fn without_a_gpu_the_error_says_what_to_do() {
    let folder = scratch("bench-gpu");
    for command in [
        "weft bench all-reduce --gpu -n 4 --sizes 8..1GiB",
        "weft bench all-gather --gpu --json -G 0",
        "weft bench broadcast --gpu --csv - --device 0 --algorithm two-shot",
    ] {
        let done = shell(&folder, &format!("CUDA_VISIBLE_DEVICES= {command}"));
        assert_eq!(done.code, Some(1), "{command}\n{}{}", done.output, done.errors);
        assert_eq!(done.output, "", "{command}");
        assert_eq!(done.errors.lines().count(), 1, "{}", done.errors);
        assert!(done.errors.starts_with("weft: "), "{}", done.errors);
        let advice = ["Install the NVIDIA driver", "check `nvidia-smi`"];
        assert!(advice.iter().any(|advice| done.errors.contains(advice)), "{}", done.errors);
        assert!(!done.errors.contains("panicked"), "{}", done.errors);
    }
}
