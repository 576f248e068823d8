//! Helpers for tests of whole machines.

#![allow(dead_code, reason = "each test file uses some of them")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use weftlink_fabric::link::LinkKind;
use weftlink_fabric::{DeviceId, Fabric, Link};
use weftlink_probe::{Recording, probe};

/// The text of a recorded machine.
pub(crate) fn text(machine: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/machines").join(machine);
    fs::read_to_string(path).unwrap()
}

/// A recorded machine, probed.
pub(crate) fn machine(name: &str) -> (Recording, Fabric) {
    let recording: Recording = text(name).parse().unwrap();
    let fabric = probe(&recording, &recording).unwrap();
    (recording, fabric)
}

/// Devices whose name starts with a stem.
pub(crate) fn count(fabric: &Fabric, stem: &str) -> usize {
    fabric.devices_where(|kind| kind.stem() == stem).count()
}

/// The links, without the ids of their specs.
pub(crate) fn wires(fabric: &Fabric) -> Vec<(DeviceId, DeviceId, u32, LinkKind)> {
    let wire = |link: &Link| (link.source, link.target, link.count, fabric.spec(link).kind);
    fabric.links().iter().map(wire).collect()
}

/// Unpacks a recording into a folder, links first so that files are written through them.
pub(crate) fn unpack(name: &str, text: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("weft-probe-{name}-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    for (path, target) in lines().filter_map(|line| line.split_once(" -> ")) {
        let path = root.join(path);
        let parent = path.parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        fs::create_dir_all(parent.join(target)).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }
    for (path, value) in lines().filter_map(|line| line.split_once(" = ")) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value.replace("\\n", "\n") + "\n").unwrap();
    }
    root
}
