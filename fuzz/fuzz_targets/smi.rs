//! The text of `nvidia-smi topo -m`: no input panics, and what was read is written as XML and reads back with as many GPUs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::format::{self, Format, smi, xml};
use weftlink_fabric::{DeviceKind, HostId};
use weftlink_fuzz::ask;

/// NUMA nodes that the XML reader takes for one host.
const MAX_NUMA_NODES: usize = 128;

fuzz_target!(|bytes: &[u8]| {
    let Ok(fabric) = smi::read(bytes, "fuzz", None) else { return };
    ask(&fabric);
    if bytes.len() < 65_536
        && !bytes.trim_ascii_start().starts_with(b"<")
        && !bytes.trim_ascii_start().starts_with(b"{")
    {
        assert_eq!(format::detect(bytes), Some(Format::Smi));
    }
    if fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).count() > MAX_NUMA_NODES {
        return;
    }
    let text = xml::write(&fabric, &[HostId(0)]);
    let again = xml::read(text.as_bytes(), "fuzz").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.gpus().len(), fabric.gpus().len());
    assert!(xml::write(&again, &[HostId(0)]) == text, "written differently:\n{text}");
});
