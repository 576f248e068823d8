//! The output of `nvidia-smi topo -m`: the reader never panics, and a fabric that was read survives a round trip through XML
//! with all its GPUs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::format::{self, Format, smi, xml};
use weftlink_fabric::{DeviceKind, HostId};
use weftlink_fuzz::exercise;

/// The XML reader's limit of NUMA nodes per host.
const NUMA_NODES_MAX: usize = 128;

fuzz_target!(|bytes: &[u8]| {
    let Ok(fabric) = smi::read(bytes, "fuzz", None) else { return };
    exercise(&fabric);
    if bytes.len() < 65_536
        && !bytes.trim_ascii_start().starts_with(b"<")
        && !bytes.trim_ascii_start().starts_with(b"{")
    {
        assert_eq!(format::detect(bytes), Some(Format::Smi));
    }
    if fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).count() > NUMA_NODES_MAX {
        return;
    }
    let text = xml::write(&fabric, &[HostId(0)]);
    let again = xml::read(text.as_bytes(), "fuzz").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.gpus().len(), fabric.gpus().len());
    assert!(xml::write(&again, &[HostId(0)]) == text, "the second XML differs from:\n{text}");
});
