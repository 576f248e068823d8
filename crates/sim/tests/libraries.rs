//! Libraries' choices executed as plans, on usual and changed machines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{error, quantile};
use weftlink_sim::execute::Runner;
use weftlink_sim::gpu::Gpu;
use weftlink_sim::host::{self, Hosts, runs};
use weftlink_sim::setup::{Intra, Library, LibraryAlgorithm, Network, Operation, RACK_GPUS, Setup, Version};
use weftlink_sim::what_if::WhatIf;

fn cluster(nodes: u32) -> Setup {
    let network = if nodes > 1 { Network::InfiniBand } else { Network::None };
    Setup {
        gpu: Gpu::from_name("h100").unwrap(),
        intra: Intra::NvSwitch,
        rack_gpus: RACK_GPUS,
        links_share: 1.0,
        pcie_generation: 5,
        slot_share: 1.0,
        missing_gpus: 0,
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
    let done = Runner::new(&constants, setup).unwrap().execute(&[(operation, bytes)]).unwrap();
    (done[0].chosen.algorithm, done[0].time.us(), done[0].chosen.estimate.total_us())
}

/// PAT and symmetric kernels run as plans, and take about the time of the closed form.
#[test]
fn newer_algorithms_run_as_plans() {
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

/// A version without NVLS executes a ring.
#[test]
fn versions_change_the_executed_algorithm() {
    let at = |minor| Setup { version: Some(Version { major: 2, minor }), ..cluster(1) };
    let (before, after) =
        (time_us(&at(16), Operation::AllReduce, 1 << 30), time_us(&at(17), Operation::AllReduce, 1 << 30));
    assert_eq!((before.0, after.0), (LibraryAlgorithm::Ring, LibraryAlgorithm::Nvls));
    assert!((1.2..1.6).contains(&(before.1 / after.1)), "{before:?} {after:?}");
}

/// What-ifs slow execution by about as much as in the closed form.
#[test]
fn what_ifs_change_the_executed_time() {
    let usual = time_us(&cluster(2), Operation::AllGather, 1 << 28).1;
    let with = |what_if| Setup { what_if, ..cluster(2) };
    let staged = with(WhatIf { no_gpudirect: true, ..WhatIf::default() });
    let stored = with(WhatIf { storage_gbytes_per_second: 25.0, ..WhatIf::default() });
    for (setup, least, most) in
        [(staged, 2.0, 4.0), (stored, 1.2, 1.8), (cluster(2).over_sockets(), 8.0, 25.0)]
    {
        let longer = time_us(&setup, Operation::AllGather, 1 << 28).1 / usual;
        assert!((least..=most).contains(&longer), "{}: {longer}", setup.name());
    }
    let node = time_us(&cluster(1), Operation::AllGather, 1 << 28).1;
    let longer = time_us(&cluster(1).without_peer_access(), Operation::AllGather, 1 << 28).1 / node;
    assert!((8.0..=40.0).contains(&longer), "{longer}");
}

/// Benchmark runs with a core per rank, and the number of cores of each machine.
const RUNS: [(&str, u32); 5] = [
    (include_str!("../../../bench/runs/2026-11-15-peers-all-reduce-16-core-vm/raw.csv"), 16),
    (include_str!("../../../bench/runs/2026-11-15-peers-all-reduce-2-core-vm/raw.csv"), 2),
    (include_str!("../../../bench/runs/2026-11-15-peers-collectives-16-core-vm/raw.csv"), 16),
    (include_str!("../../../bench/runs/2026-11-15-peers-collectives-2-core-vm/raw.csv"), 2),
    (include_str!("../../../bench/runs/2026-11-15-peers-long-messages-2-core-vm/raw.csv"), 2),
];

/// Limits in percent for the median error of calls left out of the fit: to 4 KiB, to 64 KiB, above.
const BARS: [(&str, [f64; 3]); 4] = [
    ("weft symmetric", [18.0, 22.0, 38.0]),
    ("weft ordinary", [18.0, 22.0, 22.0]),
    ("open-mpi", [25.0, 20.0, 32.0]),
    ("gloo", [12.0, 18.0, 28.0]),
];

/// Weft, Open MPI and Gloo between cores against measurements; every second call was left out of the fit and counts here.
///
/// This is optimistic: the cost model was designed with all calls in view, and both machines are in both halves. Fitted on the larger machine
/// alone (`examples/hosts.rs`, `fit machines`), the median errors on the other are 27, 8 and 30 % (Weft, symmetric), 26, 16 and 27 % (ordinary),
/// 31, 16 and 37 % (Open MPI), 32, 7 and 12 % (Gloo).
#[test]
fn calls_between_cores_match_measurements() {
    let constants = Constants::shipped();
    let rows = RUNS.iter().flat_map(|(text, cores)| runs::read(text, *cores));
    let mut errors: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    for row in rows.skip(1).step_by(2) {
        let call = host::execute(&constants, &row.hosts, row.operation, row.bytes).unwrap();
        let band = usize::from(row.bytes > 4096) + usize::from(row.bytes > 65536);
        errors.entry((row.program, band)).or_default().push(error(call.time.us(), row.time_us));
    }
    for (program, bars) in BARS {
        for (band, bar) in bars.into_iter().enumerate() {
            let median = quantile(errors[&(program.to_owned(), band)].clone(), 0.5) * 1e2;
            assert!(median <= bar, "{program}, band {band}: {median:.1} %");
        }
    }
}

#[test]
fn ranks_that_share_cores_are_refused() {
    let constants = Constants::shipped();
    let oversubscribed = Hosts::one(Library::OpenMpi, 2, 4);
    let message =
        host::execute(&constants, &oversubscribed, Operation::AllReduce, 8).unwrap_err().to_string();
    assert!(message.starts_with("4 ranks on 2 cores of a host are not predicted"), "{message}");
    let alone = Hosts::one(Library::Gloo, 2, 1);
    assert!(host::execute(&constants, &alone, Operation::AllReduce, 8).is_err());
    let nccl = Hosts::one(Library::Nccl, 2, 2);
    assert!(host::execute(&constants, &nccl, Operation::AllReduce, 8).is_err());
    let apart = Hosts { hosts: 2, ..Hosts::one(Library::Weft, 2, 2) };
    assert!(host::execute(&constants, &apart, Operation::AllReduce, 8).is_err());
}

/// Calls between hosts take longer than between cores.
#[test]
fn the_network_makes_calls_longer() {
    let constants = Constants::shipped();
    for library in [Library::Gloo, Library::OpenMpi, Library::Weft] {
        let near = Hosts::one(library, 16, 8);
        let far = Hosts {
            hosts: 2,
            ranks_per_host: 4,
            network: Network::Tcp,
            nics_per_host: 1,
            nic_gbits_per_second: 25.0,
            ..near.clone()
        };
        for bytes in [64, 64 << 10, 8 << 20] {
            let time = |hosts| host::execute(&constants, hosts, Operation::AllReduce, bytes).unwrap().time.0;
            assert!(time(&far) as f64 > 0.9 * time(&near) as f64, "{library:?} {bytes}");
        }
    }
}

/// On GPUs, CPU libraries take longest because they copy through the host, and Weft's plans are close to NCCL.
#[test]
fn other_libraries_run_on_gpus() {
    let by = |library, bytes| time_us(&Setup { library, ..cluster(1) }, Operation::AllReduce, bytes).1;
    for bytes in [1 << 10, 1 << 20, 1 << 26] {
        let nccl = by(Library::Nccl, bytes);
        let weft = by(Library::Weft, bytes);
        assert!((0.3..3.0).contains(&(weft / nccl)), "{bytes}: weft {weft:.1} us, nccl {nccl:.1} us");
        let (gloo, mpi) = (by(Library::Gloo, bytes), by(Library::OpenMpi, bytes));
        assert!(gloo > 2.0 * mpi, "{bytes}: gloo {gloo:.1} us, openmpi {mpi:.1} us");
        assert!(bytes < 1 << 20 || mpi > 2.0 * nccl, "{bytes}: openmpi {mpi:.1} us, nccl {nccl:.1} us");
    }
    for library in [Library::Gloo, Library::OpenMpi, Library::Weft] {
        for &operation in Operation::ALL.iter().filter(|operation| operation.is_measured()) {
            let near = time_us(&Setup { library, ..cluster(1) }, operation, 1 << 20).1;
            let far = time_us(&Setup { library, ..cluster(2) }, operation, 1 << 20).1;
            assert!(near > 1.0 && far > 1.0, "{library:?} {operation:?}");
        }
    }
}

/// Intel GPUs with oneCCL: there are no measurements, but the prediction stays within the links' rates.
#[test]
fn one_ccl_is_predicted_without_evidence() {
    let max = Setup {
        gpu: Gpu::from_name("max1550").unwrap(),
        intra: Intra::Xgmi,
        gpus_per_node: 6,
        library: Library::OneCcl,
        ..cluster(1)
    };
    let bytes = 1_u64 << 28;
    let (algorithm, us, _) = time_us(&max, Operation::AllReduce, bytes);
    assert_eq!(algorithm, LibraryAlgorithm::Ring);
    let busbw = bytes as f64 / us / 1e3 * 2.0 * 5.0 / 6.0;
    assert!(busbw > 20.0 && busbw < max.gpu.port_line_gbytes_per_second(), "{busbw}");
    assert!(Library::OneCcl.evidence().starts_with("no evidence"));
    assert!(Library::Rccl.evidence().starts_with("thin evidence"));
}

/// MSCCL programs run with NCCL's costs.
#[test]
fn msccl_programs_run() {
    let constants = Constants::shipped();
    let setup = Setup { library: Library::Msccl, gpus_per_node: 3, ..cluster(1) };
    let ring = include_str!("../../../testdata/msccl/ring-3.xml");
    let runner = Runner::new(&constants, &setup).unwrap().with_program(ring).unwrap();
    let times: Vec<f64> = [1 << 10, 1 << 20, 1 << 28]
        .into_iter()
        .map(|bytes| runner.execute(&[(Operation::AllReduce, bytes)]).unwrap()[0].time.us())
        .collect();
    // The lower bound: a launch and two hops, and twice a rank's bytes over its port.
    assert!(times[0] > 5.0 && times[0] < 100.0, "{times:?}");
    assert!(times[0] < times[1] && times[1] < times[2], "{times:?}");
    let port_us = 2.0 * (1_u64 << 28) as f64 * 2.0 / 3.0 / 450e3;
    assert!(times[2] > port_us && times[2] < 20.0 * port_us, "{times:?}");
    let message = runner.execute(&[(Operation::AllGather, 1 << 20)]).unwrap_err().to_string();
    assert_eq!(message, "MSCCL program: implements all-reduce, not all-gather");
    let bare = Runner::new(&constants, &setup).unwrap();
    assert!(bare.execute(&[(Operation::AllReduce, 8)]).unwrap_err().to_string().contains("none given"));
    let wrong = Setup { gpus_per_node: 4, ..setup.clone() };
    let message = Runner::new(&constants, &wrong).unwrap().with_program(ring).err().unwrap().to_string();
    assert!(message.contains("written for 3 GPUs; the fabric has 4"), "{message}");
    assert!(Runner::new(&constants, &setup).unwrap().with_program("<algo").is_err());
}

/// A Weft plan has the links to itself: no identical plans share them.
#[test]
fn whole_plans_get_whole_links() {
    let weft = Setup { library: Library::Weft, ..cluster(2) };
    let (_, us, _) = time_us(&weft, Operation::Broadcast, 1 << 30);
    let nccl_us = time_us(&cluster(2), Operation::Broadcast, 1 << 30).1;
    assert!((0.8..5.0).contains(&(us / nccl_us)), "{us} us, with NCCL {nccl_us} us");
}

/// Intervals are for fabrics built from setups; on the catalog's fabrics, with their own switches, NICs and rails, the same calls take
/// about as long. Absent are `p5` and `p6-b300`, whose switches have slower links to the CPU than to their GPUs and NICs, which columns do
/// not say; and all-to-all where GPUs reach NICs across a host bridge, since routes do not spread them over the NICs.
#[test]
fn catalog_fabrics_match_fabrics_built_from_setups() {
    let constants = Constants::shipped();
    let mut wrong = Vec::new();
    for spec in [
        "hgx-h100",
        "hgx-a100",
        "dgx-1-v100",
        "dgx-2",
        "8x-mi300x",
        "4x-gh200",
        "8x-rtx4090",
        "4x p5en",
        "2x nd-a100-v4",
        "4x a3-mega",
        "4x p4d",
        "4x hgx-h100 + 8x ndr",
        "2x hgx-h100 + 4x ndr",
        "3x dgx-1-v100 + 4x edr",
    ] {
        let fabric = weftlink_fabric::resolve(spec).unwrap();
        let setup = Setup::of(&fabric).unwrap();
        for operation in
            [Operation::AllReduce, Operation::AllGather, Operation::Broadcast, Operation::AllToAll]
        {
            if operation == Operation::AllToAll && spec == "2x hgx-h100 + 4x ndr" {
                continue;
            }
            let calls = [(operation, 256 << 20)];
            let [described, built] = [
                Runner::on(&constants, setup.clone(), fabric.clone()).execute(&calls),
                Runner::new(&constants, &setup).unwrap().execute(&calls),
            ]
            .map(|done| done.unwrap()[0].time.0 as f64);
            // A search finds the rings of a cube mesh, and its result depends on the paths to the NICs.
            let least = if setup.intra == Intra::CubeMesh { 0.7 } else { 0.85 };
            if !(least..1.15).contains(&(described / built)) {
                wrong.push(format!("{spec} {}: {:.2} times as long", operation.name(), described / built));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
