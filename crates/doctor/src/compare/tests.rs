use weftlink_probe::{Recording, probe};

use super::*;
use crate::check::Machine;

/// A recorded machine with more files, and its inventory.
fn inventory(host: &str, more: &str, report: &Report) -> Inventory {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/machines/hgx-h100.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let text =
        text.replace("proc/sys/kernel/hostname = host0", &format!("proc/sys/kernel/hostname = {host}"));
    let recording: Recording = format!("{text}\n{more}").parse().unwrap();
    let fabric = probe(&recording, &recording).unwrap();
    Inventory::of(&Machine { tree: &recording, fabric: &fabric }, report)
}

fn host(name: &str, values: &[(&str, &str)]) -> Inventory {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Inventory { host: name.to_owned(), rank: None, values }
}

/// The findings: what, and the lines that show it.
fn found(report: &Report) -> Vec<String> {
    let text = |finding: &Finding| {
        let shown: Vec<String> =
            finding.evidence.iter().map(|line| format!("{}: {}", line.source, line.text)).collect();
        format!("{} | {}", finding.what, shown.join(" | "))
    };
    report.findings.iter().map(text).collect()
}

#[test]
fn an_inventory_has_what_must_be_the_same() {
    let mut report = Report::new("x");
    report.add(
        "nvlink-inactive",
        vec![Outcome::Found(Finding::new("nvlink-inactive", Severity::Warning, "x"))],
    );
    report.add("note", vec![Outcome::Found(Finding::new("note", Severity::Note, "x"))]);
    let more = "nvml/driver_version = 570.86.15\nnvml/cuda_version = 12.8\nproc/sys/kernel/osrelease = 6.8.0-60\n\
        nvml/0/vbios = 96.00.74\nnvml/1/vbios = 96.00.89\nsoftware/done = 2 libraries\nsoftware/0/name = libnccl.so\n\
        software/0/version = 2.27.5\nsoftware/0/path = /opt/a\nsoftware/1/name = libnccl.so\nsoftware/1/version = 2.21.5\n\
        proc/self/environ = RANK=3\0NCCL_DEBUG=INFO\0NCCL_DEBUG_FILE=/tmp/node-a.log\0HOME=/root\0WEFT_SECRET=abc\0NCCL_HOSTID=7\0WEFT_LOCAL_RANK=1\0CUDA_API_KEY=x";
    let inventory = inventory("node-a", more, &report);
    let value = |name: &str| inventory.values.get(name).map(String::as_str);
    assert_eq!((inventory.host.as_str(), inventory.rank), ("node-a", Some(3)));
    for (name, expected) in [
        ("driver", "570.86.15"),
        ("CUDA of the driver", "12.8"),
        ("kernel", "6.8.0-60"),
        ("Weft", env!("CARGO_PKG_VERSION")),
        ("library libnccl.so", "2.21.5, 2.27.5"),
        ("GPUs", "8"),
        ("environment NCCL_DEBUG", "INFO"),
        ("environment NCCL_DEBUG_FILE", "/tmp/%h.log"),
        ("finding nvlink-inactive", "yes"),
    ] {
        assert_eq!(value(name), Some(expected), "{name}");
    }
    assert!(value("GPU vBIOS").unwrap().starts_with("96.00.74, 96.00.89, unknown"));
    assert!(value("GPU model").unwrap().contains("H100"));
    assert!(value("GPU PCIe link").unwrap().starts_with("PCIe 5.0"));
    assert!(inventory.values.keys().any(|name| name.starts_with("interface ")));
    for name in ["WEFT_SECRET", "NCCL_HOSTID", "WEFT_LOCAL_RANK", "CUDA_API_KEY", "HOME"] {
        assert_eq!(value(&format!("environment {name}")), None, "{name}");
    }
    assert_eq!(value("finding note"), None);
    let json = serde_json::to_string(&inventory).unwrap();
    assert_eq!(serde_json::from_str::<Inventory>(&json).unwrap(), inventory);
}

#[test]
fn hosts_that_are_alike_are_fine() {
    let nothing = Report::default();
    let hosts: Vec<Inventory> = ["a", "b", "c"].map(|name| inventory(name, "", &nothing)).to_vec();
    let report = compare(&hosts);
    assert!(report.findings.is_empty(), "{:?}", found(&report));
    assert_eq!((report.fine.len(), report.exit_code()), (1, 0));
}

#[test]
fn the_odd_host_is_named_with_all_its_differences() {
    let usual = [("driver", "570"), ("library libnccl.so", "2.27.5"), ("kernel", "6.8")];
    let odd = [
        ("driver", "550"),
        ("library libnccl.so", "2.21.5"),
        ("environment NCCL_P2P_DISABLE", "1"),
        ("kernel", "6.8"),
    ];
    let report = compare(&[host("a", &usual), host("b", &odd), host("c", &usual)]);
    let [what] = &found(&report)[..] else { panic!("{:?}", found(&report)) };
    assert!(
        what.starts_with(
            "b differs from the other 2 in driver, environment NCCL_P2P_DISABLE and 1 other value"
        ),
        "{what}"
    );
    assert!(what.contains("driver: b: 550; the others: 570"), "{what}");
    assert!(what.contains("environment NCCL_P2P_DISABLE: b: 1; the others: absent"), "{what}");
    assert_eq!(report.findings[0].fixes.len(), 3);
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn a_missing_value_is_a_difference() {
    let report = compare(&[
        host("a", &[("interface mlx5_3", "400 Gb/s")]),
        host("b", &[]),
        host("c", &[("interface mlx5_3", "400 Gb/s")]),
    ]);
    let [what] = &found(&report)[..] else { panic!("{:?}", found(&report)) };
    assert!(what.contains("b: absent; the others: 400 Gb/s"), "{what}");
}

#[test]
fn a_tie_lists_both_groups() {
    let (one, other) = ([("driver", "570")], [("driver", "550")]);
    let report = compare(&[host("a", &one), host("b", &other), host("c", &one), host("d", &other)]);
    let [what] = &found(&report)[..] else { panic!("{:?}", found(&report)) };
    assert!(what.contains("no value is that of most"), "{what}");
    assert!(what.contains("a, c: 570") && what.contains("b, d: 550"), "{what}");
}

#[test]
fn two_odd_groups_are_two_findings() {
    let usual = [("driver", "570"), ("GPU vBIOS", "1")];
    let hosts = [
        host("a", &usual),
        host("b", &[("driver", "550"), ("GPU vBIOS", "1")]),
        host("c", &usual),
        host("d", &[("driver", "570"), ("GPU vBIOS", "2")]),
        host("e", &usual),
    ];
    let report = compare(&hosts);
    let what = found(&report);
    assert_eq!(what.len(), 2);
    assert!(what[0].starts_with("b differs") && what[1].starts_with("d differs"), "{what:?}");
}

#[test]
fn another_kernel_is_a_note() {
    let report = compare(&[
        host("a", &[("kernel", "1")]),
        host("b", &[("kernel", "1")]),
        host("c", &[("kernel", "2")]),
    ]);
    assert_eq!((report.findings.len(), report.exit_code()), (1, 0));
}

#[test]
fn ranks_of_one_host_may_see_other_devices() {
    let rank = |rank: u32, devices: &str, algorithm: &str| Inventory {
        rank: Some(rank),
        ..host("a", &[("environment CUDA_VISIBLE_DEVICES", devices), ("environment NCCL_ALGO", algorithm)])
    };
    let report = compare(&[rank(0, "0", "Ring"), rank(1, "1", "Ring"), rank(2, "2", "Ring")]);
    assert!(report.findings.is_empty(), "{:?}", found(&report));
    let report = compare(&[rank(0, "0", "Ring"), rank(1, "1", "Tree"), rank(2, "2", "Ring")]);
    assert!(found(&report)[0].starts_with("rank 1 of a differs"), "{:?}", found(&report));
    // Between hosts, other devices are a difference.
    let one = |name: &str, devices: &str| host(name, &[("environment CUDA_VISIBLE_DEVICES", devices)]);
    let report = compare(&[one("a", "0"), one("b", "0"), one("c", "1")]);
    assert_eq!(report.findings.len(), 1);
}

#[test]
fn one_inventory_compares_with_nothing() {
    for inventories in [&[][..], &[host("a", &[("driver", "570")])]] {
        let report = compare(inventories);
        assert_eq!((report.findings.len(), report.uninspected.len(), report.exit_code()), (0, 1, 3));
    }
}
