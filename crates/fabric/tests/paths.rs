//! Paths on the catalog's systems.

use weftlink_fabric::bisection::bisection;
use weftlink_fabric::catalog::systems;
use weftlink_fabric::{Fabric, Measure, PathType, Paths};

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

fn cells(name: &str) -> Vec<Vec<String>> {
    let fabric = system(name);
    let matrix = Paths::of(&fabric).matrix(fabric.gpus());
    matrix.iter().map(|row| row.iter().map(|path| path.cell()).collect()).collect()
}

#[test]
fn every_pair_of_an_hgx_has_all_links() {
    for (a, row) in cells("hgx-h100").iter().enumerate() {
        for (b, cell) in row.iter().enumerate() {
            assert_eq!(cell, if a == b { "X" } else { "NV18" });
        }
    }
    let fabric = system("hgx-h100");
    let paths = Paths::of(&fabric);
    let path = paths.path(fabric.gpus()[0], fabric.gpus()[7]);
    assert_eq!((path.kind, path.hops), (PathType::Nvl, 2));
    assert_eq!((path.width.nominal.gb(), path.width.effective.gb()), (450.0, 370.8));
    let route = paths.route(fabric.gpus()[0], fabric.gpus()[7]);
    assert_eq!(route.stations.iter().map(Vec::len).collect::<Vec<_>>(), [1, 4, 1]);
    assert_eq!(bisection(&paths, Measure::Nominal).unwrap().upper.both_ways().gb(), 3600.0);
}

#[test]
fn the_cube_mesh_has_single_and_double_links_and_relays() {
    let expected = [
        "X NV1 NV1 NV2 NV2 NVB NVB NVB",
        "NV1 X NV2 NV1 NVB NV2 NVB NVB",
        "NV1 NV2 X NV2 NVB NVB NV1 NVB",
        "NV2 NV1 NV2 X NVB NVB NVB NV1",
    ];
    let cells = cells("dgx-1-v100");
    for (row, expected) in cells.iter().zip(expected) {
        assert_eq!(row.join(" "), expected);
    }
}

#[test]
fn consumer_cards_meet_at_the_cpu() {
    assert_eq!(cells("2x-rtx4090"), [["X", "PHB"], ["PHB", "X"]]);
}

#[test]
fn a_rack_is_one_domain() {
    let fabric = system("gb200-nvl72");
    let paths = Paths::of(&fabric);
    let classes = paths.classes();
    assert_eq!(classes.len(), 1);
    assert_eq!((classes[0].path.cell(), classes[0].pairs), ("NV18".to_owned(), 72 * 71 / 2));
    let bisection = bisection(&paths, Measure::Nominal).unwrap();
    assert!(bisection.is_exact());
    assert_eq!(bisection.upper.gb(), 36.0 * 900.0);
}

#[test]
fn bisection_of_the_cube_mesh_is_exact() {
    let fabric = system("dgx-1-v100");
    let bisection = bisection(&Paths::of(&fabric), Measure::Nominal).unwrap();
    assert!(bisection.is_exact());
    // Six links of 25 GB/s cross between the quads.
    assert_eq!(bisection.upper.gb(), 150.0);
}
