//! Topology XML: the reader never panics, and a fabric that was read survives a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::HostId;
use weftlink_fabric::format::xml;
use weftlink_fuzz::exercise;

fuzz_target!(|bytes: &[u8]| {
    let Ok(fabric) = xml::read(bytes, "fuzz") else { return };
    exercise(&fabric);
    let hosts: Vec<HostId> = (0..fabric.hosts().len() as u32).map(HostId).collect();
    let text = xml::write(&fabric, &hosts);
    let again = xml::read(text.as_bytes(), "fuzz").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(again == fabric, "the second fabric differs for:\n{text}");
    assert!(xml::write(&again, &hosts) == text, "the second XML differs from:\n{text}");
    for &host in &hosts {
        let domain = xml::nvlink_domain(&fabric, host);
        assert!(domain.contains(&host));
        let text = xml::write(&fabric, &domain);
        if let Err(error) = xml::read(text.as_bytes(), "domain") {
            panic!("{error}\n{text}");
        }
    }
});
