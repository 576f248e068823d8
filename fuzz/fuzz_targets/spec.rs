//! Cluster specs: no text panics, and whatever reads prints in one way that reads back equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::ClusterSpec;

fuzz_target!(|text: &str| {
    match text.parse::<ClusterSpec>() {
        Ok(spec) => {
            let printed = spec.to_string();
            let again: ClusterSpec = printed.parse().expect("what was printed reads");
            assert_eq!(again, spec);
            assert_eq!(again.to_string(), printed);
            // Larger clusters are built from the same parts, and slowly.
            if spec.count() <= 4 {
                let _ = spec.fabric();
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
