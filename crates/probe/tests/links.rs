//! Links of recorded machines: state, rates, traffic, errors, far ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_probe::Recording;
use weftlink_probe::links::{self, Counter, Files, Kind, Link, LinkId, Links, State, WithFiles};

/// A server with two H100s, one of them in a narrow slot, an NDR port, a RoCE card without a cable, and a drive.
const SERVER: &str = "# weft recording 1
proc/cpuinfo = vendor_id : GenuineIntel
nvml/0/bus = 0000:18:00.0
nvml/0/name = NVIDIA H100 80GB HBM3
nvml/0/sm = 90
nvml/0/nvlink/0 = up nvlink4 0000:2a:00.0 10de:2330
nvml/0/nvlink/1 = up nvlink4 0000:05:00.0 10de:22a3
nvml/0/nvlink/2 = down
nvml/0/links/0/speed_mb_per_s = 26562
nvml/0/links/0/tx_kib = 1000
nvml/0/links/0/rx_kib = 2000
nvml/0/links/0/replay_errors = 3
nvml/0/links/0/can_p2p = 1
nvml/0/links/0/can_sli = 0
nvml/0/links/0/remote_link = 7
nvml/0/links/0/effective_ber = 15e-255
nvml/0/nvlink_errors/1 = replay=0 recovery=0 crc_flit=9 crc_data=0
nvml/0/nvlink_speed/1 = 26562
nvml/0/pcie_replays = 12
nvml/0/pcie_tx_kb_per_s = 5
nvml/0/pcie_rx_kb_per_s = 6
nvml/0/temperature_c = 41
nvml/0/fabric_state = not supported
nvml/1/bus = 0000:2a:00.0
nvml/1/sm = 90
sys/bus/pci/devices/0000:16:01.0 -> ../../../devices/pci0000:16/0000:16:01.0
sys/bus/pci/devices/0000:16:01.0/class = 0x060400
sys/bus/pci/devices/0000:16:01.0/max_link_speed = 16.0 GT/s PCIe
sys/bus/pci/devices/0000:16:01.0/max_link_width = 16
sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:16/0000:16:01.0/0000:18:00.0
sys/bus/pci/devices/0000:18:00.0/class = 0x030200
sys/bus/pci/devices/0000:18:00.0/vendor = 0x10de
sys/bus/pci/devices/0000:18:00.0/device = 0x2330
sys/bus/pci/devices/0000:18:00.0/current_link_speed = 16.0 GT/s PCIe
sys/bus/pci/devices/0000:18:00.0/current_link_width = 8
sys/bus/pci/devices/0000:18:00.0/max_link_speed = 32.0 GT/s PCIe
sys/bus/pci/devices/0000:18:00.0/max_link_width = 16
sys/bus/pci/devices/0000:18:00.0/aer_dev_correctable = RxErr 4\\nBadTLP 0\\nTOTAL_ERR_COR 4
sys/bus/pci/devices/0000:18:00.0/aer_dev_fatal = Undefined 0\\nTOTAL_ERR_FATAL 0
sys/bus/pci/devices/0000:2a:00.0 -> ../../../devices/pci0000:26/0000:2a:00.0
sys/bus/pci/devices/0000:2a:00.0/class = 0x030200
sys/bus/pci/devices/0000:2a:00.0/vendor = 0x10de
sys/bus/pci/devices/0000:2a:00.0/device = 0x2330
sys/bus/pci/devices/0000:05:00.0 -> ../../../devices/pci0000:00/0000:05:00.0
sys/bus/pci/devices/0000:05:00.0/class = 0x068000
sys/bus/pci/devices/0000:05:00.0/vendor = 0x10de
sys/bus/pci/devices/0000:40:00.0 -> ../../../devices/pci0000:40/0000:40:00.0
sys/bus/pci/devices/0000:40:00.0/class = 0x020700
sys/bus/pci/devices/0000:40:00.0/vendor = 0x15b3
sys/bus/pci/devices/0000:50:00.0 -> ../../../devices/pci0000:50/0000:50:00.0
sys/bus/pci/devices/0000:50:00.0/class = 0x020000
sys/bus/pci/devices/0000:50:00.0/vendor = 0x15b3
sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:40/0000:40:00.0/infiniband/mlx5_0
sys/class/infiniband/mlx5_0/ports/1/state = 4: ACTIVE
sys/class/infiniband/mlx5_0/ports/1/phys_state = 5: LinkUp
sys/class/infiniband/mlx5_0/ports/1/rate = 400 Gb/sec (4X NDR)
sys/class/infiniband/mlx5_0/ports/1/link_layer = InfiniBand
sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data = 250
sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data = 8589934592
sys/class/infiniband/mlx5_0/ports/1/counters/unicast_xmit_packets = 7
sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error = 2
sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait = 900
sys/class/infiniband/mlx5_0/ports/1/counters/link_downed = 0
sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence = 1
sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan = 10
sys/class/infiniband/mlx5_1 -> ../../devices/pci0000:50/0000:50:00.0/infiniband/mlx5_1
sys/class/infiniband/mlx5_1/ports/1/state = 1: DOWN
sys/class/infiniband/mlx5_1/ports/1/rate = 10 Gb/sec (4X SDR)
sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data = 4294967295
sys/class/net/ens5 -> ../../devices/pci0000:50/0000:50:00.0/net/ens5
sys/class/net/ens5/operstate = down
sys/class/net/ens5/speed = -1
sys/class/net/ens5/carrier_changes = 4
sys/class/net/ens5/statistics/tx_bytes = 1500
sys/class/net/ens5/statistics/rx_bytes = 3000
sys/class/net/ens5/statistics/rx_crc_errors = 5
sys/class/net/docker0 -> ../../devices/virtual/net/docker0
sys/class/net/docker0/speed = 10000
";

fn read(text: &str) -> Links {
    let recording: Recording = text.parse().unwrap();
    links::of_tree(&recording).unwrap()
}

fn link<'l>(links: &'l Links, kind: Kind, device: &str, number: Option<u32>) -> &'l Link {
    let id = LinkId { kind, device: device.to_owned(), number };
    links.link(&id).unwrap_or_else(|| panic!("no {id} in {:?}", links.links))
}

#[test]
fn nvlinks_have_far_ends_traffic_errors_and_capabilities() {
    let links = read(SERVER);
    let first = link(&links, Kind::NvLink, "gpu0", Some(0));
    assert_eq!((first.state, first.generation), (State::Up, Some(4)));
    assert_eq!((first.nominal, first.trained), (Some(25_000_000_000), Some(26_562_000_000)));
    assert_eq!((first.sent, first.received), (Some(Counter::of(1000, 1024)), Some(Counter::of(2000, 1024))));
    assert_eq!((first.error("replay_errors"), first.has_errors()), (Some(3), true));
    assert_eq!(first.capabilities, [("p2p".to_owned(), true), ("sli".to_owned(), false)]);
    assert_eq!(first.values, [("effective_ber".to_owned(), "15e-255".to_owned())]);
    let remote = first.remote.as_ref().unwrap();
    assert_eq!(
        (remote.device.as_deref(), remote.link, remote.kind.as_deref()),
        (Some("gpu1"), Some(7), Some("gpu"))
    );
    // The values of an inspection have other paths.
    let second = link(&links, Kind::NvLink, "gpu0", Some(1));
    assert_eq!((second.error("crc_flit_errors"), second.trained), (Some(9), Some(26_562_000_000)));
    assert_eq!(second.remote.as_ref().unwrap().device.as_deref(), Some("nvswitch0"));
    assert_eq!(link(&links, Kind::NvLink, "gpu0", Some(2)).state, State::Down);
    // gpu1 has a model with NVLinks and reports none.
    assert!(links.notes.iter().any(|note| note.starts_with("gpu1 has NVLinks")), "{:?}", links.notes);
}

#[test]
fn slots_have_what_both_ends_support_and_aer_counters() {
    let links = read(SERVER);
    let slot = link(&links, Kind::Pcie, "gpu0", None);
    // The port above is of generation 4.
    assert_eq!(
        (slot.generation, slot.width, slot.generation_max, slot.width_max),
        (Some(4), Some(8), Some(4), Some(16))
    );
    assert_eq!(slot.trained.map(|rate| rate * 2), slot.nominal);
    assert_eq!(slot.remote.as_ref().unwrap().bus.as_deref(), Some("0000:16:01.0"));
    assert_eq!(slot.error("aer_correctable"), Some(4));
    assert_eq!(slot.error("aer_correctable_RxErr"), Some(4));
    assert_eq!((slot.error("aer_correctable_BadTLP"), slot.error("aer_fatal")), (None, Some(0)));
    assert_eq!((slot.error("pcie_replays"), slot.measured), (Some(12), Some((5000, 6000))));
    let names: Vec<&str> = links.of_kind(Kind::Pcie).map(|link| link.id.device.as_str()).collect();
    assert_eq!(names, ["gpu0", "gpu1", "mlx5_0", "mlx5_1"]);
    assert_eq!(link(&links, Kind::Pcie, "gpu1", None).state, State::Unknown);
}

#[test]
fn ports_and_interfaces_have_their_counters() {
    let links = read(SERVER);
    let ndr = link(&links, Kind::InfiniBand, "mlx5_0", Some(1));
    assert_eq!((ndr.state, ndr.width, ndr.trained), (State::Up, Some(4), Some(50_000_000_000)));
    assert_eq!((ndr.sent, ndr.received), (Some(Counter::of(250, 4)), Some(Counter::of(8_589_934_592, 4))));
    assert_eq!(ndr.received.unwrap().bytes(), 34_359_738_368);
    assert_eq!(
        (ndr.error("symbol_error"), ndr.error("out_of_sequence"), ndr.error("lifespan")),
        (Some(2), Some(1), None)
    );
    assert!(ndr.errors.iter().any(|error| error.name == "port_xmit_wait" && error.is_normal()));
    let down = link(&links, Kind::InfiniBand, "mlx5_1", Some(1));
    assert_eq!((down.state, down.trained), (State::Down, None));
    assert!(down.sent.unwrap().is_at_limit());
    let ethernet = link(&links, Kind::Ethernet, "ens5", None);
    assert_eq!(
        (ethernet.state, ethernet.trained, ethernet.error("rx_crc_errors")),
        (State::Down, None, Some(5))
    );
    assert_eq!(ethernet.received, Some(Counter::of(3000, 1)));
    assert_eq!(links.of_kind(Kind::Ethernet).count(), 1);
}

#[test]
fn what_else_the_driver_says_is_kept() {
    let links = read(SERVER);
    assert_eq!(links.gpus.len(), 2);
    assert_eq!(links.gpus[0].field("temperature_c"), Some("41"));
    assert_eq!(links.gpus[0].field("product_name"), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(links.gpus[0].field("fabric_state"), None);
}

#[test]
fn rates_follow_from_two_trees() {
    let recording: Recording = SERVER.parse().unwrap();
    let before = links::of_tree(&recording).unwrap();
    let mut files = Files::default();
    files.add("nvml/0/links/0/tx_kib", 1000 + 12_207_031);
    files.add("nvml/0/links/0/replay_errors", 5);
    files.add("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", 250 + 6_250_000_000_u64);
    let after = links::of_tree(&WithFiles { tree: &recording, files: &files }).unwrap();
    let rates = links::rates(&before, &after, 1.0);
    let of = |kind, device: &str| {
        rates.iter().find(|rates| rates.id.kind == kind && rates.id.device == device).unwrap()
    };
    let nvlink = of(Kind::NvLink, "gpu0");
    // Of the nominal 25 GB/s, not of the line rate.
    assert!((nvlink.sent.unwrap().share.unwrap() - 0.5).abs() < 1e-6, "{nvlink:?}");
    assert_eq!(nvlink.new_errors, [("replay_errors".to_owned(), 2)]);
    assert_eq!(nvlink.received.unwrap().bytes_per_second, 0.0);
    let port = of(Kind::InfiniBand, "mlx5_0");
    assert!((port.sent.unwrap().share.unwrap() - 0.5).abs() < 1e-6, "{port:?}");
}

/// Lines that are removed, doubled or have other values: links or an error, and rates that are not negative.
#[test]
fn broken_machines_never_panic() {
    let junk = [
        "-1",
        "",
        "garbage",
        "99999999999999999999",
        "4294967295",
        "up nvlink9 0000:2a:00.0 10de:2330",
        "1 2 3",
    ];
    let mut state = 1_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let whole = read(SERVER);
    let mut compared = 0;
    for _ in 0..300 {
        let mut lines: Vec<String> = SERVER.lines().map(str::to_owned).collect();
        for _ in 0..=next(12) {
            let at = 2 + next(lines.len() - 2);
            match (next(3), lines[at].split_once(" = ")) {
                (0, _) => drop(lines.remove(at)),
                (1, Some((path, _))) => lines[at] = format!("{path} = {}", junk[next(junk.len())]),
                _ => lines[at] = lines[at].replace("0000:1", "0000:3"),
            }
        }
        let Ok(recording) = lines.join("\n").parse::<Recording>() else { continue };
        let Ok(links) = links::of_tree(&recording) else { continue };
        for rates in links::rates(&whole, &links, 1.0) {
            for flow in [rates.sent, rates.received].into_iter().flatten() {
                assert!(flow.bytes_per_second >= 0.0, "{rates:?}");
            }
        }
        compared += 1;
    }
    assert!(compared > 200, "only {compared} variants were readable");
}

#[test]
fn this_machine_has_links_or_notes_without_failing() {
    let links = links::this_machine().unwrap();
    for link in &links.links {
        assert!(!link.id.device.is_empty(), "{link:?}");
    }
}
