//! The XML of `lstopo`: hosts read from it, and errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use weftlink_fabric::catalog::links;
use weftlink_fabric::device::HostId;
use weftlink_fabric::format::{self, document, hwloc, xml};
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{DeviceKind, Fabric, Paths};

fn text() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hwloc/four-h100.xml");
    std::fs::read_to_string(file).unwrap()
}

fn read(text: &str) -> Fabric {
    format::read(text.as_bytes(), "host.xml", None).unwrap_or_else(|error| panic!("{error}"))
}

fn cell(fabric: &Fabric, a: &str, b: &str) -> String {
    Paths::of(fabric).path(fabric.find(a).unwrap(), fabric.find(b).unwrap()).cell()
}

#[test]
fn a_host_has_its_tree() {
    let fabric = read(&text());
    let count = |wanted: fn(&DeviceKind) -> bool| fabric.devices_where(wanted).count();
    assert_eq!(fabric.hosts()[0].name, "gpunode01");
    assert_eq!(fabric.gpus().len(), 4);
    assert_eq!(count(|kind| matches!(kind, DeviceKind::Numa(_))), 2);
    assert_eq!(count(|kind| matches!(kind, DeviceKind::PcieSwitch)), 2);
    assert_eq!(count(|kind| matches!(kind, DeviceKind::RootPort)), 3, "none for the display controller");
    assert_eq!(count(|kind| matches!(kind, DeviceKind::Storage)), 1);
    let gpu = fabric.device(fabric.gpus()[0]);
    assert_eq!(gpu.kind.gpu_model().map(|model| model.id), Some("h100"));
    assert_eq!(gpu.label.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(gpu.bus.unwrap().to_string(), "0000:13:00.0");
    let above = fabric.links_from(fabric.gpus()[0]);
    assert_eq!(above.iter().map(|link| fabric.spec(link)).collect::<Vec<_>>(), [&links::pcie(5, 16)]);
    assert_eq!(cell(&fabric, "gpu0", "gpu1"), "PIX");
    assert_eq!(cell(&fabric, "gpu0", "mlx5_0"), "PIX");
    assert_eq!(cell(&fabric, "gpu0", "gpu2"), "SYS");
}

#[test]
fn what_the_format_lacks_is_unknown() {
    let fabric = read(&text());
    assert!(fabric.notes()[0].contains("does not show NVLinks"));
    assert!(fabric.notes().iter().any(|note| note.contains("rates of network ports")));
    let sentence = Summary::of(&Paths::of(&fabric)).sentence();
    assert!(sentence.contains("past the node 2 NICs of unknown speed"), "{sentence}");
}

#[test]
fn a_host_survives_a_round_trip() {
    let fabric = read(&text());
    let toml = document::write_toml(&fabric).unwrap();
    assert!(document::read_toml(toml.as_bytes()).unwrap() == fabric);
    let again = xml::read(xml::write(&fabric, &[HostId(0)]).as_bytes(), "host.xml").unwrap();
    assert_eq!(again.gpus().len(), 4);
}

#[test]
fn mistakes_are_refused_with_their_line() {
    let with = |from: &str, to: &str| {
        assert!(text().contains(from), "{from}");
        hwloc::read(text().replacen(from, to, 1).as_bytes(), "x").unwrap_err().to_string()
    };
    for (from, to, expected) in [
        (
            "version=\"2.0\"",
            "version=\"1.0\"",
            "line 3: hwloc version 1.0; save the file with lstopo of hwloc 2 or 3",
        ),
        ("\"0302 [10de:2330] [10de:16c1] a1\"", "\"GPU\"", "line 21: pci_type is `GPU`"),
        ("\"0000:13:00.0\"", "\"here\"", "line 21: pci_busid is `here`"),
        ("\"63.015385\"", "\"fast\"", "line 18: pci_link_speed is `fast`"),
        ("type=\"Machine\"", "type=\"Cluster\"", "line 7: expected one machine"),
        ("</topology>", "", "line "),
    ] {
        let error = with(from, to);
        assert!(error.starts_with(expected), "{from} -> {to}: {error}");
    }
    let deep = format!("<topology>{}", "<object type=\"Machine\">".repeat(300));
    let error = hwloc::read(deep.as_bytes(), "x").unwrap_err().to_string();
    assert!(error.contains("256 levels deep"), "{error}");
    let error = hwloc::read(b"<topology/>", "x").unwrap_err().to_string();
    assert!(error.contains("has no machine"), "{error}");
}

#[test]
fn a_second_machine_and_entities() {
    let quoted = text().replace("gpunode01", "a&lt;b&#27;");
    assert_eq!(read(&quoted).hosts()[0].name, "a<b?");
    // hwloc 3 writes the class with two more digits and the machine's infos outside of it.
    let newer = text().replace(" a1\"", " a1 00\"").replace("version=\"2.0\"", "version=\"3.0\"");
    assert_eq!(read(&newer).gpus().len(), 4);
}
