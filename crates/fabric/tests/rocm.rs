//! The output of `rocm-smi --showtopo`: fabrics read from it, and errors.

use std::path::Path;

use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::{DeviceId, DeviceKind};
use weftlink_fabric::format;
use weftlink_fabric::{Fabric, LinkSpec};

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rocm");
    std::fs::read_to_string(folder.join(name)).expect(name)
}

fn read(text: &str, gpu: Option<&str>) -> Result<Fabric, String> {
    let gpu = gpu.map(|id| gpus::by_id(id).expect(id));
    format::read(text.as_bytes(), "node", gpu).map_err(|error| error.to_string())
}

fn between(fabric: &Fabric, one: DeviceId, other: DeviceId) -> Vec<(u32, &LinkSpec)> {
    let links = fabric.links_from(one).iter().filter(|link| link.target == other);
    links.map(|link| (link.count, fabric.spec(link))).collect()
}

fn assert_wired_like(fabric: &Fabric, system: &str) {
    let catalog = systems::by_name(system).expect(system).fabric();
    assert_eq!(fabric.gpus().len(), catalog.gpus().len());
    for (a, x) in fabric.gpus().iter().zip(catalog.gpus()) {
        for (b, y) in fabric.gpus().iter().zip(catalog.gpus()) {
            assert_eq!(between(fabric, *a, *b), between(&catalog, *x, *y), "{a:?} to {b:?}");
        }
    }
}

#[test]
fn eight_mi300x_have_the_links_of_the_catalog() {
    let fabric = read(&text("8x-mi300x.txt"), Some("mi300x")).unwrap();
    assert_wired_like(&fabric, "8x-mi300x");
    let numa = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).count();
    assert_eq!((numa, fabric.notes().len()), (2, 2));
    assert!(fabric.notes()[0].contains("one is assumed"), "{:?}", fabric.notes());
}

#[test]
fn bandwidths_give_the_numbers_of_links() {
    let fabric = read(&text("4x-mi250-with-bandwidth.txt"), Some("mi250")).unwrap();
    assert_wired_like(&fabric, "4x-mi250");
    assert_eq!(fabric.notes().len(), 1, "{:?}", fabric.notes());
}

#[test]
fn heavier_pairs_are_connected_through_other_gpus() {
    let text = "== Weight between two GPUs ==\n GPU0 GPU1 GPU2\nGPU0 0 15 30\nGPU1 15 0 15\nGPU2 30 15 0\n\n\
                == Link Type between two GPUs ==\n GPU0 GPU1 GPU2\nGPU0 0 XGMI XGMI\nGPU1 XGMI 0 XGMI\nGPU2 XGMI XGMI 0\n";
    let fabric = read(text, Some("mi250")).unwrap();
    let [a, b, c] = [0, 1, 2].map(|gpu| fabric.gpus()[gpu]);
    assert_eq!(between(&fabric, a, b), [(1, &links::XGMI3)]);
    assert_eq!(between(&fabric, b, c).len(), 1);
    assert_eq!(between(&fabric, a, c), []);
}

#[test]
fn cards_without_xgmi_need_no_model() {
    let text = "== Link Type between two GPUs ==\nGPU0 GPU1\nGPU0 0 PCIE\nGPU1 PCIE 0\n\
                == Numa Nodes ==\nGPU[0]\t\t: (Topology) Numa Node: -1\nGPU[1]\t\t: (Topology) Numa Node: -1\n";
    let fabric = read(text, None).unwrap();
    assert_eq!(fabric.gpus().len(), 2);
    assert_eq!(between(&fabric, fabric.gpus()[0], fabric.gpus()[1]), []);
}

#[test]
fn errors_name_line_and_remedy() {
    let types = "== Link Type between two GPUs ==\nGPU0 GPU1\n";
    for (text, gpu, expected) in [
        (
            format!("{types}GPU0 0 XGMI\nGPU1 XGMI 0\n"),
            None,
            "line 1: GPUs are connected by xGMI, whose rate follows from the GPU model",
        ),
        (format!("{types}GPU0 0 XGMI\nGPU1 XGMI 0\n"), Some("h100"), "has no xGMI"),
        (
            format!("{types}GPU0 0 XGMI\nGPU1 PCIE 0\n"),
            Some("mi300x"),
            "line 1: GPU0 to GPU1 and GPU1 to GPU0 have different link types",
        ),
        (format!("{types}GPU0 0 XGMI\n"), Some("mi300x"), "the table ends after 1 rows; paste all 2 rows"),
        (format!("{types}GPU0 0\n"), Some("mi300x"), "line 3: GPU0 has 1 of 2 cells"),
        (format!("{types}GPU1 0 XGMI\n"), Some("mi300x"), "line 3: found the row of GPU1, expected GPU0"),
        (
            format!("{types}GPU0 0 NVLINK\n"),
            Some("mi300x"),
            "line 3: GPU0 has a cell `NVLINK`; expected XGMI or PCIE",
        ),
        (
            "== Weight between two GPUs ==\nGPU0\nGPU0 0\n".to_owned(),
            None,
            "the table `Link Type between two GPUs` is missing",
        ),
        (
            "== Weight between two GPUs ==\nnone\n".to_owned(),
            None,
            "line 2: found `none`, expected the names of GPUs",
        ),
    ] {
        let error = read(&text, gpu).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
