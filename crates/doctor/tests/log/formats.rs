//! What is read of the lines of each version.

use weftlink_doctor::log::{self, Stage, summary};

use crate::{
    CALLS, HEALTHY, INFINIBAND, MISSING_NVLINKS, NO_GPUDIRECT, PLUGIN, RCCL, SHARED_MEMORY, SOCKETS,
    fabric_of, rings,
};

/// Version, ranks, hosts, network and first ring of each log.
#[test]
fn every_version_is_read() {
    let cases = [
        (SOCKETS, "NCCL 2.8.3+cuda11.0", 2, 2, "Socket", "0 -Socket-> 1 -Socket-> 0"),
        (SHARED_MEMORY, "NCCL 2.12.12+cuda11.6", 2, 1, "Socket", "0 -SHM-> 1 -SHM-> 0"),
        (INFINIBAND, "NCCL 2.16.5+cuda12.0", 4, 2, "IB", "0 -P2P-> 1 -IB-> 2 -P2P-> 3 -IB-> 0"),
        (MISSING_NVLINKS, "NCCL 2.18.3+cuda12.2", 4, 1, "IB", "0 -NVL-> 1 -NVL-> 2 -NVL-> 3 -NVL-> 0"),
        (NO_GPUDIRECT, "NCCL 2.21.5+cuda12.4", 2, 2, "IB", "0 -IB-> 1 -IB-> 0"),
        (CALLS, "NCCL 2.23.4+cuda12.6", 2, 1, "Socket", "0 -P2P-> 1 -P2P-> 0"),
        (HEALTHY, "NCCL 2.28.9+cuda13.0", 2, 1, "IB", "0 -P2P-> 1 -P2P-> 0"),
        (PLUGIN, "NCCL 2.30.4+cuda13.1", 2, 2, "AWS Libfabric", "0 -AWS Libfabric-> 1 -AWS Libfabric-> 0"),
        (RCCL, "RCCL 2.21.5-HEAD:4b1c0de+", 2, 1, "Socket", "0 -P2P-> 1 -P2P-> 0"),
    ];
    for (text, version, ranks, hosts, network, ring) in cases {
        let log = log::read(text);
        let words = summary(&log, None);
        assert_eq!(words.versions, [version], "{version}");
        assert_eq!(words.hosts.len(), hosts, "{version}: {:?}", words.hosts);
        assert_eq!(words.networks, [network], "{version}");
        assert_eq!(words.communicators.len(), 1, "{version}: {:?}", words.communicators);
        let group = &words.communicators[0];
        assert_eq!(
            (group.size, group.count, group.seen, group.complete),
            (ranks, 1, ranks as usize, ranks as usize),
            "{version}"
        );
        assert_eq!(rings(&log, None), [ring], "{version}");
        assert_eq!(words.warnings, 0);
        let printed = words.to_string();
        assert!(printed.starts_with(&format!("library      {version}\n")), "{printed}");
        assert!(!words.wires.trees.is_empty() && printed.contains("trees        0 <- 1"), "{printed}");
    }
}

#[test]
fn a_rank_is_described() {
    let log = log::read(NO_GPUDIRECT);
    let rank = &log.ranks[1];
    assert_eq!(
        (rank.rank, rank.of, rank.device, rank.nvml, rank.nodes),
        (Some(1), Some(2), Some(0), Some(3), Some(2))
    );
    assert_eq!((rank.bus.as_deref(), rank.id.as_deref()), (Some("9b000"), Some("0x77aa01bc22d0e9f1")));
    assert_eq!((rank.stage, rank.thread), (Stage::Complete, 340));
    let process = &log.processes[rank.process];
    assert_eq!((process.host.as_str(), process.pid, process.cuda_driver), ("w1", 300, Some(12_040)));
    let bootstrap = process
        .bootstrap
        .as_ref()
        .map(|(interface, _)| (interface.name.as_str(), interface.address.as_str()));
    assert_eq!(bootstrap, Some(("eth0", "10.244.1.11")));
    assert_eq!(process.nics, ["mlx5_2:1/RoCE"]);
    assert_eq!(log.settings.len(), 1);
    assert_eq!(
        (log.settings[0].name.as_str(), log.settings[0].value.as_str()),
        ("NCCL_SOCKET_IFNAME", "eth0")
    );
    assert_eq!(log.settings[0].processes, [0, 1]);
}

#[test]
fn the_topology_is_read() {
    let log = log::read(MISSING_NVLINKS);
    let [topology] = &log.topologies[..] else { panic!("{:?}", log.topologies) };
    let rates: Vec<(f64, f64)> =
        topology.gpus.iter().map(|gpu| (gpu.nvlink_gb_per_s, gpu.pcie_gb_per_s)).collect();
    assert_eq!(rates, [(240.0, 24.0), (240.0, 24.0), (240.0, 24.0), (80.0, 24.0)]);
    let ranks: Vec<Option<u32>> = topology.gpus.iter().map(|gpu| gpu.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(topology.ports, [("NET/0".to_owned(), 25.0)]);
    assert_eq!(topology.paths.len(), 12);
    assert!(topology.paths.iter().all(|path| path.kind == "NVL"));
    // Newer versions print the host's number before the address.
    let newer = log::read(&MISSING_NVLINKS.replace("GPU/", "GPU/0-").replace("CPU/", "CPU/0-"));
    assert_eq!(newer.topologies[0].gpus.len(), 4);
    assert_eq!(newer.topologies[0].gpus[3].nvlink_gb_per_s, 80.0);
}

#[test]
fn a_fabric_names_the_links_of_peers() {
    let log = log::read(HEALTHY);
    assert_eq!(rings(&log, Some(&fabric_of("hgx-h100"))), ["0 -NVL-> 1 -NVL-> 0"]);
    let words = summary(&log, Some(&fabric_of("hgx-h100")));
    assert_eq!(words.links.get("NVL"), Some(&2), "{:?}", words.links);
    assert_eq!(words.matrix, [["", "NVL"], ["NVL", ""]]);
    assert_eq!((words.channels, words.multicast), (Some((4, 4)), Some(true)));
}

#[test]
fn algorithms_are_named() {
    let words = |text: &str| summary(&log::read(text), None).algorithms;
    assert_eq!(words(HEALTHY), ["AllReduce: Ring LL at 32 KiB, Ring Simple at 32 MiB"]);
    assert_eq!(
        words(CALLS),
        ["AllReduce: Ring LL from 8 B to 64 KiB, Ring LL128 at 1 MiB, NVLS Simple at 256 MiB"]
    );
}

#[test]
fn launchers_put_words_in_front_of_lines() {
    let plain = log::read(SOCKETS);
    for front in [
        "[1,0]<stdout>:",
        "[default3]:",
        "0: ",
        "(Worker pid=12) ",
        "worker-1  | ",
        "2026-01-01T00:00:00Z ",
        "\u{1b}[36m(pid=3)\u{1b}[0m ",
    ] {
        let text: String = SOCKETS.lines().map(|line| format!("{front}{line}\n")).collect();
        let log = log::read(&text);
        assert_eq!((log.hosts(), log.communicators.len()), (plain.hosts(), 1), "{front}");
        assert_eq!(rings(&log, None), rings(&plain, None), "{front}");
    }
    // Lines that two processes tore apart.
    let lines: Vec<&str> = SOCKETS.lines().collect();
    let torn: String = lines.chunks(2).map(|pair| pair.join(" ") + "\n").collect();
    assert_eq!(rings(&log::read(&torn), None), rings(&plain, None));
}

#[test]
fn a_process_has_several_communicators() {
    let second = HEALTHY.replace("0x71c0", "0x82d0").replace("0x2b6d0e4f81a39c55", "0x00000000000000aa");
    let log = log::read(&format!("{HEALTHY}{second}"));
    assert_eq!(log.communicators.len(), 2);
    assert!(log.communicators.iter().all(|communicator| communicator.ranks.len() == 2));
    // Without ids, the first of each rank belong together.
    let old = format!("{SOCKETS}{}", SOCKETS.replace("0x7f", "0x6f"));
    let log = log::read(&old);
    assert_eq!(log.communicators.len(), 2, "{:?}", log.communicators);
    // A split has no id of its own, but what it was split from.
    let split = HEALTHY
        .replace("commId 0x2b6d0e4f81a39c55 - Init", "parent 0x5500 splitCount 1 color 3 key 0 - Init");
    assert_eq!(log::read(&split).communicators[0].id.as_deref(), Some("split 1 color 3"));
}

#[test]
fn long_rings_are_shortened() {
    let order: Vec<String> = (0..16).map(|rank| rank.to_string()).collect();
    let mut text = format!("a:1:1 [0] NCCL INFO Channel 00/01 : {}\n", order.join(" "));
    for rank in 0..16 {
        let (host, next) = (if rank < 8 { "a" } else { "b" }, (rank + 1) % 16);
        let via = if rank % 8 == 7 { "[send] via NET/IB/0/GDRDMA" } else { "via P2P/CUMEM" };
        text += &format!("{host}:1:{rank} [0] NCCL INFO Channel 00/0 : {rank}[0] -> {next}[0] {via}\n");
        text += &format!(
            "{host}:1:{rank} [0] NCCL INFO comm 0x{rank:x}f rank {rank} nranks 16 cudaDev 0 busId 1 - Init COMPLETE\n"
        );
    }
    let text = text.replace("a:1:1 [0]", "a:1:0 [0]");
    let drawn = rings(&log::read(&text), None);
    assert_eq!(
        drawn,
        [
            "0 -P2P-> 1 -P2P-> 2 -P2P-> 3 -P2P-> 4 -P2P-> 5 -P2P-> 6 -P2P-> 7 -IB-> 8 -P2P-> 9 -P2P-> 10 -P2P-> 11 -P2P-> 12 -P2P-> 13 -P2P-> 14 -P2P-> 15 -IB-> 0"
        ]
    );
    let sockets = text
        .replace("via P2P/CUMEM", "via SHM/direct/direct")
        .replace("[send] via NET/IB/0/GDRDMA", "via SHM/direct/direct");
    assert_eq!(rings(&log::read(&sockets), None), ["0 -SHM-> 1 -SHM-> 2 -SHM-> ... -SHM-> 0"]);
}
