//! Broken trees: an error, or a partial fabric with notes, but never a panic or a hang.

mod common;

use std::fs;

use common::{count, text, unpack, wires};
use weftlink_probe::{Folder, Nvml, ProbeError, Recording, Tree, probe, record};

#[test]
fn trees_without_a_machine_are_errors() {
    let nowhere = unpack("nowhere", "# weft recording 1\n");
    assert_eq!(probe(&Folder::new(&nowhere), &Nvml).unwrap_err(), ProbeError::NoMachine);
    fs::remove_dir_all(nowhere).unwrap();

    struct TooLarge;
    impl Tree for TooLarge {
        fn read(&self, _: &str) -> Option<String> {
            Some("0x020000".to_owned())
        }
        fn list(&self, _: &str) -> Vec<String> {
            (0..100_000).map(|number| format!("node{number}")).collect()
        }
        fn link(&self, _: &str) -> Option<String> {
            None
        }
    }
    let none: Recording = "# weft recording 1".parse().unwrap();
    assert!(matches!(probe(&TooLarge, &none), Err(ProbeError::TooMany { .. })));
}

#[test]
fn loops_and_dangling_links_do_not_hang() {
    let looped = "# weft recording 1
proc/cpuinfo = vendor_id : GenuineIntel
sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:02:00.0/0000:01:00.0
sys/bus/pci/devices/0000:01:00.0/class = 0x060400
sys/bus/pci/devices/0000:02:00.0 -> ../../../devices/pci0000:00/0000:01:00.0/0000:02:00.0
sys/bus/pci/devices/0000:02:00.0/class = 0x060400
sys/bus/pci/devices/0000:03:00.0 -> ../../../devices/pci0000:00/0000:02:00.0/0000:01:00.0/0000:03:00.0
sys/bus/pci/devices/0000:03:00.0/class = 0x020000
";
    let recording: Recording = looped.parse().unwrap();
    assert_eq!(count(&probe(&recording, &recording).unwrap(), "nic"), 1);

    let root = unpack("dangling", looped);
    let devices = root.join("sys/bus/pci/devices");
    for (name, target) in
        [("0000:09:00.0", "nowhere"), ("0000:0a:00.0", "0000:0a:00.0"), ("0000:0b:00.0", ".")]
    {
        std::os::unix::fs::symlink(target, devices.join(name)).unwrap();
    }
    let fabric = probe(&Folder::new(&root), &recording).unwrap();
    assert_eq!(count(&fabric, "nic"), 1);
    assert_eq!(
        fabric.notes().iter().filter(|note| note.contains("left out")).count(),
        3,
        "{:?}",
        fabric.notes()
    );
    fs::remove_dir_all(root).unwrap();
}

/// Every broken variant of a machine probes or is refused; a recording of one that probes gives the same fabric.
#[test]
fn broken_machines_never_panic() {
    let texts = ["hgx-h100.txt", "dgx-1-v100.txt"].map(text);
    let junk = [
        "-1",
        "",
        "0x068000",
        "garbage",
        "99999999999999999999",
        "0000:00:00.0",
        "up nvlink9 0000:19:00.0 10de:2330",
        "0x060400",
    ];
    let mut state = 1_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut probed = 0;
    for round in 0..60 {
        let mut lines: Vec<String> = texts[round % 2].lines().map(str::to_owned).collect();
        for _ in 0..=next(40) {
            let at = 3 + next(lines.len() - 3);
            match next(4) {
                0 => drop(lines.remove(at)),
                1 => lines[at] = lines[at].replace("0000:1", "0000:e"),
                2 => lines[at] = lines[at].replace("0000:0", "0000:d"),
                _ => {
                    if let Some((path, _)) = lines[at].split_once(" = ") {
                        lines[at] = format!("{path} = {}", junk[next(junk.len())]);
                    }
                }
            }
        }
        let Ok(recording) = lines.join("\n").parse::<Recording>() else {
            continue;
        };
        let Ok(fabric) = probe(&recording, &recording) else {
            continue;
        };
        let again = record(&recording, &recording).unwrap();
        let again = probe(&again, &again).unwrap();
        assert!(again.devices() == fabric.devices(), "round {round}");
        assert!(wires(&again) == wires(&fabric), "round {round}");
        probed += 1;
    }
    assert!(probed > 40, "only {probed} variants were readable");
}
