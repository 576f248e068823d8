//! The shipped constants against the published rows, and what predictions may not depend on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{by_table, summary};
use weftlink_sim::gpu::Gpu;
use weftlink_sim::library::predict;
use weftlink_sim::published::{Row, Use, read};
use weftlink_sim::setup::{Intra, Library, Network, Operation, Setup};
use weftlink_sim::what_if::WhatIf;

const PUBLISHED: &str = include_str!("../../../testdata/measurements/published.csv");

fn scored(text: &str) -> Vec<Row> {
    let rows = read(text).unwrap();
    rows.into_iter().filter(|(_, purpose)| *purpose == Use::Score).map(|(row, _)| row).collect()
}

fn predicted(rows: &[Row]) -> Vec<f64> {
    let constants = Constants::shipped();
    rows.iter()
        .map(|row| predict(&constants, &row.setup, row.operation, row.bytes).unwrap().estimate.total_us())
        .collect()
}

/// Bars in percent by band: the median over tables, and the 90th percentile. The last is not where it should be yet: three
/// times the median's bar would be 15, and a dozen tables that no constant explains are in the way.
const BARS: [(f64, f64); 4] = [(20.0, 60.0), (20.0, 60.0), (12.0, 36.0), (5.0, 20.0)];

#[test]
fn errors_are_below_the_bars() {
    let rows = scored(PUBLISHED);
    let errors = by_table(&rows, &predicted(&rows));
    for (band, (median, ninetieth)) in BARS.into_iter().enumerate() {
        let found = summary(&errors, band, None);
        assert!(found.median * 1e2 <= median && found.ninetieth * 1e2 <= ninetieth, "band {band}: {found:?}");
    }
}

#[test]
fn names_sources_and_the_order_of_columns_do_not_matter() {
    let machine = [
        ("collective", "all_reduce"),
        ("size_bytes", "1048576"),
        ("time_us", "100"),
        ("gpu_id", "h100"),
        ("intra", "nvswitch"),
        ("pcie_gen", "5"),
        ("gpus_per_node", "8"),
        ("nodes", "4"),
        ("net", "slingshot"),
        ("nics_per_node", "4"),
        ("nic_gbps", "200"),
        ("library", "nccl"),
        ("library_version", "2.22.3"),
    ];
    let mut backwards = machine;
    backwards.reverse();
    let answer = |columns: &[(&str, &str)], texts: [(&str, &str); 4]| {
        let (names, values): (Vec<_>, Vec<_>) = texts.iter().chain(columns).copied().unzip();
        let rows = scored(&format!("{}\n{}\n", names.join(","), values.join(",")));
        predicted(&rows)[0].to_bits()
    };
    assert_eq!(
        answer(
            &machine,
            [("id", "p5-2n-ar"), ("system", "AWS p5.48xlarge x2"), ("source", "x"), ("notes", "TCP")]
        ),
        answer(&backwards, [("notes", ""), ("source", ""), ("system", "Alps"), ("id", "alps-gh200")]),
    );
}

/// Whatever the columns may say, there is an answer.
#[test]
fn every_kind_of_machine_has_an_answer() {
    let constants = Constants::shipped();
    for gpu in Gpu::all() {
        for &intra in Intra::ALL {
            for &network in Network::ALL {
                for &operation in Operation::ALL {
                    let none = network == Network::None;
                    let setup = Setup {
                        gpu,
                        intra,
                        rack_gpus: 72,
                        pcie_generation: 5,
                        gpus_per_node: if intra == Intra::None { 1 } else { 4 },
                        nodes: if none { 1 } else { 4 },
                        network,
                        nics_per_node: u32::from(!none),
                        nic_gbits_per_second: if none { 0.0 } else { 200.0 },
                        library: if intra == Intra::Xgmi { Library::Rccl } else { Library::Nccl },
                        version: None,
                        algorithm: None,
                        protocol: None,
                        launch: None,
                        what_if: WhatIf::default(),
                    };
                    let links = !matches!(intra, Intra::None | Intra::PciePeers | Intra::PcieHost);
                    if (links && gpu.port_line_gbytes_per_second() == 0.0) || setup.ranks() == 1 {
                        continue;
                    }
                    for power in 3..36 {
                        let time =
                            predict(&constants, &setup, operation, 1 << power).unwrap().estimate.total_us();
                        assert!(time.is_finite() && time > 1.0, "{setup:?} {operation:?} 2^{power}: {time}");
                    }
                }
            }
        }
    }
}
