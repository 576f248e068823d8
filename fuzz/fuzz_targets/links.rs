//! The output of other vendors' tools: no reader panics, messages are on one line, and what was read has rates and can be compared.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_probe::links::{self, Links, text};

fuzz_target!(|input: &str| {
    let readers = [text::nvlink::read, text::query::read, text::rocm::read, text::amd::read, text::xpu::read];
    for reader in readers {
        match reader(input) {
            Ok(links) => exercise(&links),
            Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
        }
    }
    if let Ok((tool, links)) = links::read(input) {
        assert!(!tool.name().is_empty());
        exercise(&links);
    }
});

/// Compares the links with themselves and with nothing.
fn exercise(links: &Links) {
    let none = Links::default();
    let same = links::rates(links, links, 1.0);
    assert_eq!(same.len(), links.links.len());
    for rates in same.iter().chain(&links::rates(&none, links, 1.0)).chain(&links::rates(links, &none, 1.0)) {
        for flow in [rates.sent, rates.received].into_iter().flatten() {
            assert!(flow.bytes_per_second >= 0.0 && flow.bytes_per_second.is_finite());
        }
    }
}
