//! Topology XML: no input panics, and whatever reads is written so that it reads back equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::HostId;
use weftlink_fabric::format::xml;
use weftlink_fuzz::ask;

fuzz_target!(|bytes: &[u8]| {
    let Ok(fabric) = xml::read(bytes, "fuzz") else { return };
    ask(&fabric);
    let hosts: Vec<HostId> = (0..fabric.hosts().len() as u32).map(HostId).collect();
    let text = xml::write(&fabric, &hosts);
    let again = xml::read(text.as_bytes(), "fuzz").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(again == fabric, "read differently:\n{text}");
    assert!(xml::write(&again, &hosts) == text, "written differently:\n{text}");
    for &host in &hosts {
        let island = xml::island(&fabric, host);
        assert!(island.contains(&host));
        let text = xml::write(&fabric, &island);
        if let Err(error) = xml::read(text.as_bytes(), "island") {
            panic!("{error}\n{text}");
        }
    }
});
