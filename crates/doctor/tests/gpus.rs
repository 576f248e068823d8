//! The checks of GPUs, NVLinks and their driver: each fires, stays quiet on a healthy machine, and says what it lacks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{changed, findings, fires, quiet, run, text, unknown};
use proptest::prelude::*;
use weftlink_doctor::{Outcome, Severity, checks, examine_machine};
use weftlink_probe::{Recording, inspect, probe};

const HGX: &str = "hgx-h100.txt";
const CARDS: &str = "two-a100-pcie.txt";
/// A machine whose driver reports nothing.
const UNDRIVEN: &[&str] =
    &["-nvml", "nvml/reason = cannot load libnvidia-ml.so.1: no NVIDIA driver is installed"];
/// All checks of these files.
const IDS: [&str; 25] = [
    "gpus-missing",
    "driver-too-old",
    "gpu-models-mixed",
    "cuda-visible-devices",
    "nvlink-inactive",
    "nvlink-not-detected",
    "nvlink-slow",
    "nvlink-absent",
    "nvlink-bridge",
    "nvlink-errors",
    "fabric-state",
    "fabric-manager",
    "xid",
    "sxid",
    "gpu-ecc",
    "row-remapping",
    "bar1-small",
    "gpu-slowdown",
    "power-cap",
    "application-clocks",
    "gpu-heat",
    "persistence-mode",
    "gpu-modes",
    "peer-access",
    "cpu-affinity",
];

#[test]
fn healthy_machines_have_no_finding_and_nothing_unknown() {
    for base in [HGX, CARDS] {
        for id in IDS {
            quiet(id, base, &[]);
        }
        let recording: Recording = text(base).parse().unwrap();
        let report = examine_machine(&recording, &recording).unwrap();
        let ours: Vec<_> = report.findings.iter().filter(|finding| IDS.contains(&finding.id)).collect();
        assert!(ours.is_empty(), "{ours:#?}");
    }
}

/// Machines recorded by the probe alone: much is unknown, and nothing is wrong.
#[test]
fn what_a_recording_lacks_is_unknown() {
    for name in ["hgx-h100.txt", "dgx-1-v100.txt", "h200-vm.txt"] {
        let recording: Recording = text(&format!("../machines/{name}")).parse().unwrap();
        for id in IDS {
            let outcomes = run(id, &recording);
            assert!(
                !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Found(_))),
                "{name}: {outcomes:#?}"
            );
        }
    }
}

/// What an inspection reads of a copy of a machine, and what it records, reports the same as the machine's recording.
#[test]
fn a_recorded_inspection_reports_the_same() {
    let changes =
        ["nvml/3/nvlink/17 = down", "nvml/*/persistence_mode = off", "nvml/1/fabric_state = not started"];
    let original = changed(&text(HGX), &changes);
    let root = std::env::temp_dir().join(format!("weft-doctor-copy-{}", std::process::id()));
    for line in original.to_string().lines().filter(|line| !line.starts_with('#')) {
        let (path, value, is_link) = match (line.split_once(" = "), line.split_once(" -> ")) {
            (Some((path, value)), _) => (path, value, false),
            (None, Some((path, target))) => (path, target, true),
            _ => (line.trim_end_matches(" ="), "", false),
        };
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        if is_link {
            let target = file.parent().unwrap().join(value);
            std::fs::create_dir_all(&target).unwrap();
            std::os::unix::fs::symlink(value, file).unwrap();
        } else {
            std::fs::write(file, value.replace("\\n", "\n")).unwrap();
        }
    }
    let inspection = inspect(&root);
    let (live, plain) =
        (examine_machine(&inspection, &inspection).unwrap(), examine_machine(&original, &original).unwrap());
    let recording: Recording = inspection.recording().to_string().parse().unwrap();
    let recorded = examine_machine(&recording, &recording).unwrap();
    std::fs::remove_dir_all(root).unwrap();
    assert!(live.findings.len() >= 3, "{live:#?}");
    assert_eq!(live, plain);
    assert_eq!(live, recorded);
}

#[test]
fn machines_without_gpus_get_no_outcome() {
    let bare: Recording =
        "# weft recording 1\nproc/cpuinfo = vendor_id : GenuineIntel\nnvml/reason = no driver"
            .parse()
            .unwrap();
    for id in IDS {
        assert_eq!(run(id, &bare), [], "{id}");
    }
}

#[test]
fn without_a_driver_all_is_unknown_but_the_driver_itself() {
    for id in IDS.iter().filter(|id| !matches!(**id, "gpus-missing" | "xid" | "sxid" | "fabric-manager")) {
        let outcomes = run(id, &changed(&text(HGX), UNDRIVEN));
        assert!(
            outcomes.iter().all(|outcome| matches!(outcome, Outcome::Unknown { .. })),
            "{id}: {outcomes:#?}"
        );
    }
    for id in [
        "gpu-ecc",
        "gpu-models-mixed",
        "cuda-visible-devices",
        "nvlink-inactive",
        "nvlink-not-detected",
        "peer-access",
    ] {
        unknown(id, HGX, UNDRIVEN, "NVIDIA driver");
    }
}

#[test]
fn missing_gpus() {
    let id = "gpus-missing";
    fires(id, HGX, &["-nvml/3"], Severity::Critical, &["7 of 8", "gpu3 is missing", "dmesg"]);
    fires(
        id,
        HGX,
        UNDRIVEN,
        Severity::Critical,
        &["0 of 8", "gpu0 to gpu7 are missing", "no NVIDIA driver", "modprobe"],
    );
    let gone = ["-sys/bus/pci/devices/0000:19:00.0", "-nvml/0"];
    fires(id, HGX, &gone, Severity::Critical, &["7 GPUs", "has 8", "Power-cycle"]);
    fires(
        id,
        HGX,
        &["-nvml/3", "proc/self/environ = NVIDIA_VISIBLE_DEVICES=0,1,2,4,5,6,7"],
        Severity::Note,
        &["7 of 8", "was given"],
    );
    let bus = "sys/bus/pci/devices/0000:3a:00.0/driver -> ../../../../bus/pci/drivers";
    fires(
        id,
        HGX,
        &["-nvml/3", &format!("{bus}/nouveau")],
        Severity::Critical,
        &["bound to the driver nouveau", "blacklist"],
    );
    // A guest has this one.
    quiet(id, HGX, &["-nvml/3", &format!("{bus}/vfio-pci")]);
    quiet(id, CARDS, &[]);
}

#[test]
fn old_and_new_drivers() {
    let id = "driver-too-old";
    let found = fires(
        id,
        HGX,
        &["nvml/driver_version = 515.105.01"],
        Severity::Critical,
        &["515.105.01", "520", "CUDA 11.8"],
    );
    assert!(found.what.contains("H100"), "{}", found.what);
    quiet(id, CARDS, &["nvml/driver_version = 590.10"]);
    let volta = [
        "sys/bus/pci/devices/0000:41:00.0/device = 0x1db6",
        "nvml/0/sm = 70",
        "nvml/driver_version = 590.10",
    ];
    fires(id, CARDS, &volta, Severity::Critical, &["no longer supports", "580"]);
    unknown(id, HGX, &["-nvml/driver_version"], "/proc/driver/nvidia/version");
    unknown(id, HGX, &["nvml/driver_version = what"], "version");
}

#[test]
fn mixed_models() {
    let id = "gpu-models-mixed";
    let found = fires(
        id,
        CARDS,
        &["sys/bus/pci/devices/0000:42:00.0/device = 0x2331"],
        Severity::Warning,
        &["H100", "A100", "CUDA_VISIBLE_DEVICES"],
    );
    assert_eq!(found.evidence.len(), 2);
    quiet(id, CARDS, &["nvml/1/memory_bytes = 85899345000"]);
}

#[test]
fn visible_devices() {
    let id = "cuda-visible-devices";
    let set = |value: &str| format!("proc/self/environ = A=1\\0CUDA_VISIBLE_DEVICES={value}\\0B=2");
    for (value, severity, words) in [
        ("", Severity::Warning, "hides all 8"),
        ("-1", Severity::Warning, "hides all 8"),
        ("0,1,8,2", Severity::Warning, "`8`"),
        ("0,1,1", Severity::Warning, "twice"),
        ("3,2", Severity::Note, "2 of 8"),
        ("GPU-00000000-0000-0000-0000-000000000000", Severity::Note, "1 of 8"),
    ] {
        fires(id, HGX, &[&set(value)], severity, &[words, "unset"]);
    }
    quiet(id, HGX, &[&set("0,1,2,3,4,5,6,7")]);
    unknown(id, HGX, &["-proc/self/environ"], "environment");
}

#[test]
fn inactive_links() {
    let id = "nvlink-inactive";
    let two = ["nvml/3/nvlink/16 = down", "nvml/3/nvlink/17 = down"];
    let found = fires(
        id,
        HGX,
        &two,
        Severity::Warning,
        &["gpu3: 16 of 18", "inactive: 16-17", "nvidia-smi nvlink -s -i 0000:3a:00.0"],
    );
    let cost = found.cost.unwrap();
    assert!(cost.now_gb_per_s < cost.usual_gb_per_s, "{cost:?}");
    let none = fires(id, HGX, &["nvml/3/nvlink/* = down"], Severity::Critical, &["0 of 18"]);
    assert!(none.cost.unwrap().now_gb_per_s < cost.now_gb_per_s);
    quiet(id, CARDS, &["nvml/0/nvlink/* = down"]);
}

/// Four A100 modules on a board without NVSwitches, four links between each pair; `down` links between the first two are down.
fn board(down: u32) -> Recording {
    let mut text = "# weft recording 1\nproc/cpuinfo = vendor_id : AuthenticAMD\n".to_owned();
    for gpu in 0..4 {
        let path = format!("sys/bus/pci/devices/0000:0{}:00.0", gpu + 1);
        text += &format!(
            "{path} -> ../../../devices/pci0000:00/0000:0{}:00.0\n{path}/class = 0x030200\n",
            gpu + 1
        );
        text += &format!(
            "{path}/vendor = 0x10de\n{path}/device = 0x20b2\nnvml/{gpu}/bus = 0000:0{}:00.0\n",
            gpu + 1
        );
        let peers = (0..4).filter(|peer| *peer != gpu).flat_map(|peer| (0..4).map(move |link| (peer, link)));
        for (index, (peer, link)) in peers.enumerate() {
            let state = match gpu + peer == 1 && link < down {
                true => "down".to_owned(),
                false => format!("up nvlink3 0000:0{}:00.0 10de:20b2", peer + 1),
            };
            text += &format!("nvml/{gpu}/nvlink/{index} = {state}\n");
        }
    }
    text.parse().unwrap()
}

#[test]
fn inactive_links_of_a_mesh() {
    let id = "nvlink-inactive";
    assert!(run(id, &board(0)).iter().all(|outcome| matches!(outcome, Outcome::Fine(_))));
    let outcomes = run(id, &board(2));
    let found: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| if let Outcome::Found(finding) = outcome { Some(finding) } else { None })
        .collect();
    assert_eq!(found.len(), 1, "{outcomes:#?}");
    assert_eq!(
        (found[0].severity, found[0].what.as_str()),
        (Severity::Warning, "gpu0 and gpu1: 10 of 12 NVLinks are active")
    );
    assert!(found[0].cost.is_some(), "{found:#?}");
}

#[test]
fn undetected_links() {
    let id = "nvlink-not-detected";
    fires(id, HGX, &["-nvml/*/nvlink/"], Severity::Critical, &["gpu0 to gpu7: the model has 18 links"]);
    let found = fires(
        id,
        HGX,
        &["-nvml/2/nvlink/"],
        Severity::Critical,
        &["gpu2", "18 links", "NVreg_NvLinkDisable"],
    );
    assert!(found.cost.is_some());
    // One GPU alone has no peer.
    let alone: Vec<String> = (1..8).map(|gpu| format!("-nvml/{gpu}")).collect();
    let mut alone: Vec<&str> = alone.iter().map(String::as_str).collect();
    alone.push("-nvml/0/nvlink/");
    assert_eq!(findings(id, HGX, &alone), []);
}

#[test]
fn slow_links() {
    let id = "nvlink-slow";
    fires(
        id,
        HGX,
        &["nvml/5/nvlink/4 = up nvlink3 0000:04:00.0 10de:22a3"],
        Severity::Warning,
        &["gpu5", "NVLink 3: link 4"],
    );
    fires(id, HGX, &["nvml/5/nvlink_speed/2 = 12500"], Severity::Warning, &["12.5 GB/s: link 2"]);
    quiet(id, HGX, &["nvml/5/nvlink_speed/2 = 26562"]);
    let silent = ["nvml/*/nvlink/* = up", "-nvml/*/nvlink_speed_mbps"];
    unknown(id, HGX, &silent, "versions or speeds");
}

#[test]
fn cards_without_nvlink() {
    let id = "nvlink-absent";
    let l40s = [
        "sys/bus/pci/devices/0000:41:00.0/device = 0x26b9",
        "sys/bus/pci/devices/0000:42:00.0/device = 0x26b9",
    ];
    fires(id, CARDS, &l40s, Severity::Note, &["no NVLink connector", "gpu0 and gpu1"]);
    quiet(id, CARDS, &l40s[..1]);
    // The model tells it without a driver; a model that is not in the catalog does not.
    fires(id, CARDS, &[&l40s[..], UNDRIVEN].concat(), Severity::Note, &["gpu0 and gpu1"]);
    let unlisted = l40s.map(|line| line.replace("0x26b9", "0xfff0"));
    let unlisted: Vec<&str> = unlisted.iter().map(String::as_str).chain(UNDRIVEN.iter().copied()).collect();
    unknown(id, CARDS, &unlisted, "catalog");
}

#[test]
fn bridges() {
    let id = "nvlink-bridge";
    let down = ["nvml/0/nvlink/* = down", "nvml/1/nvlink/* = down"];
    let missing = fires(
        id,
        CARDS,
        &down,
        Severity::Note,
        &["gpu0 and gpu1 have connectors", "Fit a bridge", "3 connectors"],
    );
    assert!(missing.cost.unwrap().sentence.starts_with("copy of 1 GiB from gpu0 to gpu1"));
    let far = [
        down[0],
        down[1],
        "sys/bus/pci/devices/0000:40:03.1/numa_node = 1",
        "sys/bus/pci/devices/0000:42:00.0/numa_node = 1",
    ];
    fires(id, CARDS, &far, Severity::Note, &["different sockets", "Move the cards"]);
    let mut half: Vec<String> = Vec::new();
    for link in 8..12 {
        half.extend((0..2).map(|gpu| format!("nvml/{gpu}/nvlink/{link} = down")));
    }
    let half: Vec<&str> = half.iter().map(String::as_str).collect();
    let found = findings(id, CARDS, &half);
    assert_eq!(found.len(), 2);
    assert!(
        found[0].what.contains("8 links; the model has 12") && found[0].severity == Severity::Warning,
        "{found:#?}"
    );
    assert!(found[0].cost.is_some(), "{found:#?}");
    unknown(id, CARDS, &["-nvml/", "nvml/reason = none"], "NVIDIA driver");
}

#[test]
fn link_errors() {
    let id = "nvlink-errors";
    let few = fires(
        id,
        HGX,
        &["nvml/6/nvlink_errors/3 = replay=4 recovery=0 crc_flit=12"],
        Severity::Note,
        &["gpu6: NVLink 3", "replays: 4", "CRC errors of flits: 12"],
    );
    assert_eq!(few.evidence.len(), 1);
    fires(
        id,
        HGX,
        &["nvml/6/nvlink_errors/3 = replay=0 recovery=1"],
        Severity::Warning,
        &["recoveries: 1", "nvlink -e"],
    );
    fires(id, HGX, &["nvml/6/nvlink_errors/3 = crc_flit=4000"], Severity::Warning, &["4000"]);
    unknown(id, HGX, &["-nvml/*/nvlink_errors"], "error counters");
}

#[test]
fn fabric_states() {
    let id = "fabric-state";
    fires(
        id,
        HGX,
        &["nvml/1/fabric_state = not started"],
        Severity::Critical,
        &["gpu1 has not started", "nvidia-fabricmanager"],
    );
    fires(id, HGX, &["nvml/1/fabric_state = in progress"], Severity::Warning, &["still joining"]);
    fires(
        id,
        HGX,
        &["nvml/1/fabric_status = insufficient resources"],
        Severity::Critical,
        &["failed to join", "insufficient resources"],
    );
    quiet(id, HGX, &["nvml/*/fabric_state = not supported"]);
    unknown(
        id,
        HGX,
        &["-nvml/*/fabric_state", "nvml/0/fabric_state.reason = nvidia-smi is not installed"],
        "nvidia-smi is not installed",
    );
}

#[test]
fn fabric_managers() {
    let id = "fabric-manager";
    let run = "run/systemctl is-active nvidia-fabricmanager";
    let (failed, off) = (format!("{run} = failed"), format!("-{run}"));
    fires(
        id,
        HGX,
        &[&failed, "nvml/*/fabric_state = not supported"],
        Severity::Critical,
        &["is failed", "systemctl enable --now"],
    );
    quiet(id, HGX, &[&failed]);
    unknown(id, HGX, &[&off, "-nvml/*/fabric_state"], "systemctl is-active");
    quiet(id, CARDS, &[]);
}

#[test]
fn xids() {
    let id = "xid";
    let log = |lines: &str| format!("log/kernel = [1.0] NVRM: loading\\n{lines}\\n[9.0] eth0: up");
    let bus_error = log("[2.0] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.");
    fires(
        id,
        HGX,
        &[&bus_error],
        Severity::Critical,
        &["fallen off the bus (Xid 79)", "the GPU at 0000:3b:00.0"],
    );
    let twice = log("[2.0] NVRM: Xid (PCI:0000:19:00): 74, a\\n[3.0] NVRM: Xid (PCI:0000:19:00): 74, b");
    fires(
        id,
        HGX,
        &[&twice],
        Severity::Critical,
        &["gpu0 had an error of an NVLink (Xid 74, 2 times)", "[3.0]", "nvlink -e"],
    );
    fires(id, HGX, &[&log("NVRM: Xid (PCI:0000:19:00): 31, pid=1")], Severity::Note, &["compute-sanitizer"]);
    fires(
        id,
        HGX,
        &[&log("NVRM: Xid (PCI:0000:19:00): 999, pid=1")],
        Severity::Warning,
        &["does not know", "nvidia-bug-report"],
    );
    unknown(id, HGX, &["-log", "log/kernel.reason = cannot open /dev/kmsg: it needs root"], "needs root");
}

#[test]
fn sxids() {
    let id = "sxid";
    let line = |rest: &str| format!("log/kernel = [2.0] nvidia-nvswitch1: SXid (PCI:0000:05:00.0): {rest}");
    fires(
        id,
        HGX,
        &[&line("20034, Fatal, Link 30 LTSSM Fault Up")],
        Severity::Critical,
        &["0000:05:00.0", "fatal error (SXid 20034)"],
    );
    fires(id, HGX, &[&line("22013, Non-fatal, Link 44 Minion")], Severity::Note, &["not fatal"]);
    unknown(id, HGX, &["-log"], "dmesg");
}

#[test]
fn memory() {
    let ecc = "gpu-ecc";
    fires(
        ecc,
        HGX,
        &["nvml/4/ecc_volatile_uncorrected = 2"],
        Severity::Critical,
        &["gpu4 has 2", "--gpu-reset -i 0000:"],
    );
    fires(ecc, HGX, &["nvml/4/ecc_aggregate_uncorrected = 7"], Severity::Note, &["7 uncorrected"]);
    quiet(ecc, HGX, &["nvml/*/ecc_mode = off", "nvml/4/ecc_volatile_uncorrected = 2"]);
    unknown(
        ecc,
        HGX,
        &["-nvml/4/ecc_volatile_uncorrected", "nvml/4/ecc_volatile_uncorrected.reason = no permission"],
        "no permission",
    );
    let rows = "row-remapping";
    fires(rows, HGX, &["nvml/4/remapped_rows_failed = 1"], Severity::Critical, &["gpu4", "replaced"]);
    fires(rows, HGX, &["nvml/4/remapped_rows_pending = 1"], Severity::Warning, &["next reset"]);
    fires(rows, CARDS, &["nvml/1/retired_pages_pending = 1"], Severity::Warning, &["retired_pages_pending"]);
    unknown(rows, HGX, &["-nvml/*/remapped_rows", "-nvml/*/retired"], "remapped_rows_failed");
    let bar1 = "bar1-small";
    fires(
        bar1,
        CARDS,
        &["nvml/*/bar1_bytes = 268435456", "nvml/*/nvlink/* = down"],
        Severity::Warning,
        &["gpu0 and gpu1: BAR1 is 256 MiB", "Resizable BAR"],
    );
    fires(bar1, CARDS, &["nvml/0/bar1_bytes = 268435456"], Severity::Note, &["gpu0: BAR1"]);
    unknown(bar1, CARDS, &["-nvml/*/bar1_bytes"], "bar1_bytes");
}

#[test]
fn clocks_and_power() {
    let slow = "gpu-slowdown";
    for (bits, severity, words) in [
        ("0x40", Severity::Critical, "too hot"),
        ("0x88", Severity::Critical, "power brake"),
        ("0x20", Severity::Warning, "is hot"),
        ("0x8", Severity::Warning, "hardware slowdown"),
    ] {
        fires(slow, HGX, &[&format!("nvml/7/clocks_event_reasons = {bits}")], severity, &["gpu7", words]);
    }
    // Idle, a power cap at the default limit, an idle GPU that changes its clocks.
    for bits in ["0x1", "0x4", "0x9", "0x0"] {
        quiet(slow, HGX, &[&format!("nvml/7/clocks_event_reasons = {bits}")]);
    }
    fires(slow, CARDS, &["nvml/0/clocks_event_reasons = 0x20"], Severity::Warning, &["wider bridges"]);
    unknown(slow, HGX, &["-nvml/*/clocks_event_reasons"], "clocks_event_reasons");
    unknown(slow, HGX, &["nvml/0/clocks_event_reasons = many"], "readable");

    let cap = "power-cap";
    fires(
        cap,
        HGX,
        &["nvml/*/power_limit_mw = 500000"],
        Severity::Note,
        &["gpu0 to gpu7: the power limit is 500 W instead of 700 W", "nvidia-smi -pl 700"],
    );
    fires(
        cap,
        HGX,
        &["nvml/2/power_limit_mw = 500000", "nvml/2/clocks_event_reasons = 0x4"],
        Severity::Warning,
        &["gpu2", "lowers the clocks now"],
    );
    unknown(cap, HGX, &["-nvml/*/power_limit_default_mw"], "power_limit_default_mw");

    let clocks = "application-clocks";
    fires(
        clocks,
        HGX,
        &["nvml/2/clock_graphics_application_mhz = 1200"],
        Severity::Warning,
        &["gpu2", "nvidia-smi -ac 2619,1980"],
    );
    fires(
        clocks,
        CARDS,
        &["nvml/*/clock_graphics_application_mhz = 1065"],
        Severity::Note,
        &["gpu0 and gpu1", "default 1065"],
    );
    quiet(clocks, HGX, &["nvml/*/clock_graphics_application_mhz = not supported"]);
    unknown(clocks, HGX, &["-nvml/*/clock_graphics_max_mhz"], "clock_graphics_max_mhz");
}

#[test]
fn heat() {
    let id = "gpu-heat";
    fires(id, HGX, &["nvml/1/temperature_margin_c = 2"], Severity::Warning, &["2 °C below", "fans"]);
    fires(id, HGX, &["nvml/1/temperature_margin_c = -1"], Severity::Warning, &["1 °C above"]);
    fires(
        id,
        CARDS,
        &["nvml/1/temperature_c = 88"],
        Severity::Warning,
        &["4 °C below", "The cards are bridged"],
    );
    unknown(id, CARDS, &["-nvml/*/temperature_slowdown_c"], "slowdown temperature");
}

#[test]
fn modes() {
    let persistence = "persistence-mode";
    let found = fires(
        persistence,
        HGX,
        &["nvml/*/persistence_mode = off"],
        Severity::Warning,
        &["gpu0 to gpu7", "nvidia-persistenced"],
    );
    assert_eq!(found.evidence.len(), 8);
    unknown(persistence, HGX, &["-nvml/*/persistence_mode"], "persistence_mode");
    let modes = "gpu-modes";
    fires(
        modes,
        HGX,
        &["nvml/*/mig_mode = on"],
        Severity::Warning,
        &["gpu0 to gpu7: MIG is on", "-i 0000:19:00.0,0000:"],
    );
    fires(
        modes,
        HGX,
        &["nvml/0/compute_mode = prohibited"],
        Severity::Critical,
        &["no program can use it", "-c DEFAULT"],
    );
    fires(
        modes,
        HGX,
        &["nvml/0/compute_mode = exclusive-process"],
        Severity::Note,
        &["two ranks cannot share"],
    );
    unknown(modes, HGX, &["-nvml/*/compute_mode"], "compute_mode");
}

#[test]
fn peers_and_cores() {
    let id = "peer-access";
    let all = fires(
        id,
        CARDS,
        &["nvml/*/p2p/* = read=chipset-not-supported write=ok", "nvml/*/nvlink/* = down"],
        Severity::Warning,
        &["1 of 1 pairs", "topo -m"],
    );
    assert!(all.cost.is_some(), "{all:#?}");
    let one = fires(
        id,
        HGX,
        &["nvml/0/p2p/1 = read=disabled-by-setting"],
        Severity::Warning,
        &["1 of 28", "NVreg", "gpu0 and gpu1"],
    );
    assert!(one.cost.is_none());
    let geforce = [
        "nvml/*/p2p/* = read=not-supported",
        "sys/bus/pci/devices/0000:41:00.0/device = 0x2684",
        "sys/bus/pci/devices/0000:42:00.0/device = 0x2684",
    ];
    fires(id, CARDS, &geforce, Severity::Note, &["host memory"]);
    unknown(id, CARDS, &["-nvml/*/p2p"], "topo -p2p");

    let cores = "cpu-affinity";
    let far = "proc/self/status = Cpus_allowed_list:\t0-7";
    let found = findings(cores, HGX, &[far]);
    assert_eq!(found.len(), 4, "the GPUs of the second socket");
    assert!(
        found[0].what.contains("gpu4 is near cores 56-111") && found[0].fixes[0].contains("numactl"),
        "{found:#?}"
    );
    let listed = "sys/bus/pci/devices/0000:19:00.0/local_cpulist = 0-55";
    quiet(cores, HGX, &["-nvml/0/cpu_affinity", listed]);
    unknown(cores, HGX, &["-nvml/*/cpu_affinity"], "topo -m");
    unknown(cores, HGX, &["-proc/self/status"], "/proc/self/status");
}

/// Values that a broken driver or a mistaken hand may write.
const JUNK: [&str; 14] = [
    "",
    "not supported",
    "-1",
    "0",
    "18446744073709551615",
    "99999999999999999999999",
    "NaN",
    "up nvlink9 0000:19:00.0 10de:2330",
    "down",
    "read= write",
    "replay=x=1 recovery",
    "0x",
    "é\\0\\n ü",
    "NVRM: Xid (PCI:0000:19:00): 4294967296\\nSXid (): 1, Fatal\\nNVRM: Xid (",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_check_panics_on_any_recording(
        base in prop::sample::select(vec![HGX, CARDS]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..=JUNK.len(), "[ -~]{0,12}"), 0..60),
    ) {
        let mut lines: Vec<String> = text(base).lines().map(str::to_owned).collect();
        for (at, junk, random) in &edits {
            // The first lines are the header and comments.
            let at = 3 + at.index(lines.len() - 3);
            match JUNK.get(*junk) {
                None if random.len() < 4 => drop(lines.remove(at)),
                junk => if let Some((path, _)) = lines[at].split_once(" = ") {
                    lines[at] = format!("{path} = {}", junk.copied().unwrap_or(random));
                },
            }
        }
        if let Ok(recording) = lines.join("\n").parse::<Recording>() && probe(&recording, &recording).is_ok() {
            let report = examine_machine(&recording, &recording).unwrap();
            prop_assert!(report.exit_code() <= 3);
            for finding in &report.findings {
                prop_assert!(checks::all().any(|check| check.id == finding.id));
                prop_assert!(!finding.what.contains('\n') && !finding.fixes.is_empty(), "{:?}", finding);
            }
        }
    }
}
