//! Libraries executed: what they choose as plans, on machines as they are and as they might be.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_sim::Constants;
use weftlink_sim::execute::Site;
use weftlink_sim::gpu::Gpu;
use weftlink_sim::setup::{Intra, Library, LibraryAlgorithm, Network, Operation, RACK_GPUS, Setup, Version};
use weftlink_sim::what_if::WhatIf;

fn cluster(nodes: u32) -> Setup {
    let network = if nodes > 1 { Network::InfiniBand } else { Network::None };
    Setup {
        gpu: Gpu::from_name("h100").unwrap(),
        intra: Intra::NvSwitch,
        rack_gpus: RACK_GPUS,
        pcie_generation: 5,
        gpus_per_node: 8,
        nodes,
        network,
        nics_per_node: if nodes > 1 { 8 } else { 0 },
        nic_gbits_per_second: 400.0,
        library: Library::Nccl,
        version: None,
        algorithm: None,
        protocol: None,
        launch: None,
        what_if: WhatIf::default(),
    }
}

fn time_us(setup: &Setup, operation: Operation, bytes: u64) -> (LibraryAlgorithm, f64, f64) {
    let constants = Constants::shipped();
    let done = Site::new(&constants, setup).unwrap().execute(&[(operation, bytes)]).unwrap();
    (done[0].chosen.algorithm, done[0].time.0 as f64 / 1e6, done[0].chosen.estimate.total_us())
}

/// Algorithms that came later run as plans, and take what the closed form says.
#[test]
fn later_algorithms_run_as_plans() {
    let alone = Setup { gpus_per_node: 1, nics_per_node: 1, intra: Intra::None, ..cluster(16) };
    let windows = Setup { what_if: WhatIf { symmetric: true, ..WhatIf::default() }, ..cluster(1) };
    for (setup, algorithm, operation, bytes) in [
        (&alone, LibraryAlgorithm::Pat, Operation::AllGather, 64 << 10),
        (&alone, LibraryAlgorithm::Pat, Operation::ReduceScatter, 64 << 10),
        (&windows, LibraryAlgorithm::Symmetric, Operation::AllReduce, 4 << 10),
        (&windows, LibraryAlgorithm::Symmetric, Operation::AllReduce, 64 << 20),
        (&windows, LibraryAlgorithm::Symmetric, Operation::AllGather, 4 << 10),
        (&windows, LibraryAlgorithm::Symmetric, Operation::AllGather, 64 << 20),
        (&windows, LibraryAlgorithm::Symmetric, Operation::ReduceScatter, 64 << 20),
    ] {
        let (chosen, ran, added) = time_us(setup, operation, bytes);
        assert_eq!(chosen, algorithm, "{operation:?} {bytes}");
        assert!((ran / added - 1.0).abs() < 0.35, "{operation:?} {bytes}: {ran:.1} us, {added:.1} us");
    }
}

/// What a version changed changes what is executed.
#[test]
fn versions_change_what_is_executed() {
    let at = |minor| Setup { version: Some(Version { major: 2, minor }), ..cluster(1) };
    let (before, after) =
        (time_us(&at(16), Operation::AllReduce, 1 << 30), time_us(&at(17), Operation::AllReduce, 1 << 30));
    assert_eq!((before.0, after.0), (LibraryAlgorithm::Ring, LibraryAlgorithm::Nvls));
    assert!((1.2..1.6).contains(&(before.1 / after.1)), "{before:?} {after:?}");
}

/// What is otherwise changes what is executed, by about as much as the closed form says.
#[test]
fn what_ifs_change_what_is_executed() {
    let usual = time_us(&cluster(2), Operation::AllGather, 1 << 28).1;
    let with = |what_if| Setup { what_if, ..cluster(2) };
    let staged = with(WhatIf { no_gpudirect: true, ..WhatIf::default() });
    let stored = with(WhatIf { storage_gbytes_per_second: 25.0, ..WhatIf::default() });
    for (setup, least, most) in
        [(staged, 2.5, 5.0), (stored, 1.2, 1.8), (cluster(2).over_sockets(), 8.0, 25.0)]
    {
        let longer = time_us(&setup, Operation::AllGather, 1 << 28).1 / usual;
        assert!((least..=most).contains(&longer), "{}: {longer}", setup.name());
    }
    let node = time_us(&cluster(1), Operation::AllGather, 1 << 28).1;
    let longer = time_us(&cluster(1).without_peer_access(), Operation::AllGather, 1 << 28).1 / node;
    assert!((8.0..=40.0).contains(&longer), "{longer}");
}
