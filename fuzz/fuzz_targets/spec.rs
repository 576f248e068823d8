//! Cluster specs: the parser never panics, and a spec that was parsed survives a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::ClusterSpec;

fuzz_target!(|text: &str| {
    match text.parse::<ClusterSpec>() {
        Ok(spec) => {
            let printed = spec.to_string();
            let again: ClusterSpec = printed.parse().expect("the printed spec parses");
            assert_eq!(again, spec);
            assert_eq!(again.to_string(), printed);
            // Larger clusters have the same parts and take too long.
            if spec.count() <= 4 {
                let _ = spec.fabric();
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
