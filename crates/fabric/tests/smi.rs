//! The output of `nvidia-smi topo -m`: fabrics read from it, and errors.

use std::path::Path;

use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::{DeviceId, DeviceKind, HostId};
use weftlink_fabric::format::{self, smi, xml};
use weftlink_fabric::paths::Paths;
use weftlink_fabric::{Fabric, LinkSpec};

fn bytes(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/smi");
    std::fs::read(folder.join(name)).expect(name)
}

fn read(name: &str, gpu: Option<&str>) -> Fabric {
    let gpu = gpu.map(|id| gpus::by_id(id).expect(id));
    format::read(&bytes(name), name, gpu).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn between(fabric: &Fabric, source: DeviceId, target: DeviceId) -> Vec<(u32, &LinkSpec)> {
    let links = fabric.links_from(source).iter().filter(|link| link.target == target);
    links.map(|link| (link.count, fabric.spec(link))).collect()
}

fn count(fabric: &Fabric, wanted: fn(&DeviceKind) -> bool) -> usize {
    fabric.devices_where(wanted).count()
}

/// The path types from a device to all GPUs and NICs.
fn cells(fabric: &Fabric, source: &str) -> Vec<String> {
    let paths = Paths::of(fabric);
    let source = fabric.find(source).expect(source);
    let ends = fabric.devices_where(|kind| matches!(kind, DeviceKind::Gpu(_) | DeviceKind::Nic(_)));
    ends.map(|end| paths.path(source, end).cell()).collect()
}

#[test]
fn an_hgx_has_a_switch_and_its_nics() {
    let fabric = read("hgx-h100.txt", None);
    assert_eq!(fabric.gpus().len(), 8);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::Numa(_))), 2);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::PcieSwitch)), 8);
    let switch = fabric.find("nvswitch0").unwrap();
    for &gpu in fabric.gpus() {
        assert_eq!(between(&fabric, gpu, switch), [(18, &links::NVLINK_UNKNOWN)]);
    }
    let expected =
        "SYS SYS SYS SYS NODE PIX NODE NODE SYS SYS SYS SYS NODE X NODE NODE".replace("NODE", "PHB");
    assert_eq!(cells(&fabric, "mlx5_5").join(" "), expected);
    assert_eq!(cells(&fabric, "gpu3")[..8].join(" "), "NV18 NV18 NV18 X NV18 NV18 NV18 NV18");
    assert_eq!(fabric.notes().len(), 3);
    assert!(fabric.notes()[0].contains("shown as one"));
    assert!(fabric.notes()[2].contains("name the GPU model"));
}

#[test]
fn a_known_gpu_brings_its_rates() {
    let fabric = read("hgx-h100.txt", Some("h100"));
    let gpu = fabric.gpus()[0];
    assert_eq!(fabric.device(gpu).kind.gpu_model(), gpus::by_id("h100"));
    let switch = fabric.find("nvswitch0").unwrap();
    assert_eq!(between(&fabric, gpu, switch), [(18, &links::NVLINK[3])]);
    assert_eq!(fabric.device(switch).kind, DeviceKind::NvSwitch { generation: Some(3) });

    let fabric = read("2x-rtx3090-bridge.txt", Some("rtx3090"));
    let [a, b] = [0, 1].map(|index| fabric.gpus()[index]);
    assert_eq!(between(&fabric, a, b), [(4, &links::NVLINK3_GEFORCE)]);

    let rtx4090 = gpus::by_id("rtx4090");
    let error = smi::read(&bytes("2x-rtx3090-bridge.txt"), "x", rtx4090).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: GPU0 has NVLinks, but the GeForce RTX 4090 has none; check the GPU model"
    );
}

#[test]
fn a_dgx_1_has_the_cube_mesh_of_the_preset() {
    let fabric = read("dgx-1-v100.txt", Some("v100"));
    let preset = systems::by_name("dgx-1-v100").unwrap().fabric();
    for (a, x) in fabric.gpus().iter().zip(preset.gpus()) {
        for (b, y) in fabric.gpus().iter().zip(preset.gpus()) {
            assert_eq!(between(&fabric, *a, *b), between(&preset, *x, *y));
        }
    }
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::NvSwitch { .. })), 0);
    assert_eq!(cells(&fabric, "mlx5_1").join(" "), "SYS SYS SYS SYS PIX PIX PHB PHB SYS SYS X PHB");
}

#[test]
fn switches_below_a_switch_are_rebuilt() {
    let fabric = read("4-gpus-on-nested-switches.txt", None);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::PcieSwitch)), 3);
    assert_eq!(cells(&fabric, "gpu0").join(" "), "X PIX PXB PXB");
    // The matrix contains no rates.
    let specs = fabric.links().iter().map(|link| fabric.spec(link));
    assert!(specs.clone().all(|spec| spec.best().is_none()));
    assert!(specs.into_iter().any(|spec| *spec == links::PCIE_UNKNOWN));
}

#[test]
fn numa_nodes_come_from_the_cells_then_from_the_columns() {
    let fabric = read("gb200-tray.txt", None);
    let ids: Vec<i32> = fabric
        .devices()
        .iter()
        .filter_map(|device| match &device.kind {
            DeviceKind::Numa(numa) => Some(numa.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [0, 1]);
    let fabric = read("2x-rtx4090.txt", None);
    assert_eq!(cells(&fabric, "gpu0").join(" "), "X PHB");
    // One node if the columns are empty and NVLinks hide the PCIe distance.
    let fabric = read("2x-rtx3090-bridge.txt", None);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::Numa(_))), 1);
    // The columns put both GPUs on one node, the cells on two.
    let split = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t0-7\t0\n";
    let fabric = smi::read(split.as_bytes(), "split", None).unwrap();
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::Numa(_))), 2);
    assert!(fabric.notes()[0].starts_with("The cells and the NUMA Affinity column disagree"));
}

#[test]
fn a_gpu_keeps_its_name_if_the_numbers_have_a_gap() {
    let fabric = smi::read(b" GPU0 GPU5\nGPU0 X PHB\nGPU5 PHB X\n", "gap", None).unwrap();
    let labels = fabric.gpus().iter().map(|gpu| fabric.device(*gpu).label.as_deref());
    assert_eq!(labels.collect::<Vec<_>>(), [None, Some("GPU5")]);
    assert_eq!(fabric.find("GPU5"), Some(fabric.gpus()[1]));
}

#[test]
fn every_table_survives_a_round_trip_through_xml() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/smi");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let fabric = read(&name, None);
        let text = xml::write(&fabric, &[HostId(0)]);
        let again =
            xml::read(text.as_bytes(), &name).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(again.gpus().len(), fabric.gpus().len(), "{name}");
        assert!(xml::write(&again, &[HostId(0)]) == text, "{name}");
        files += 1;
    }
    assert!(files >= 6, "{files}");
}

#[test]
fn bad_tables_are_refused_with_line_and_reason() {
    for (text, expected) in [
        (
            "",
            "line 1: no line with the column names GPU0, GPU1 and so on; paste the whole output of `nvidia-smi topo -m`",
        ),
        (
            "hello\nGPU0 X NV4\n",
            "line 2: the line with the column names is missing above this row; paste the whole table",
        ),
        (
            " GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n",
            "line 2: `OK` is output of `nvidia-smi topo -p2p`; run `nvidia-smi topo -m` instead",
        ),
        (" GPU0 GPU1\nGPU0 X PHB\n\n", "line 2: the table ends before the row of GPU1; paste all 2 rows"),
        (
            " GPU0 GPU1 GPU2\nGPU0 X PHB PHB\nGPU2 PHB PHB X\n",
            "line 3: found the row of GPU2, expected GPU1: rows must be in the order of the columns",
        ),
        (
            " GPU0 GPU1\nGPU0 X PHB\nGPU1 PHB X\nGPU0 X PHB\n",
            "line 4: second row for GPU0; paste a single table",
        ),
        (" GPU0 GPU1 GPU0\n", "line 1: two columns are called GPU0"),
        (" GPU0 GPU1\nGPU0 X\n", "line 2: the row of GPU0 has 1 cells, but there are 2 columns"),
        (
            " GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n",
            "line 2: GPU0 to GPU1 is `NV0`; expected X, NV#, PIX, PXB, PHB, NODE or SYS",
        ),
        (" GPU0 GPU1\nGPU0 PIX NV1\nGPU1 NV1 X\n", "line 2: GPU0 to itself is PIX; it must be X"),
        (" GPU0 GPU1\nGPU0 X NV1\nGPU1 X X\n", "line 3: GPU1 to GPU0 is X, which is for a device to itself"),
        (
            " GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n",
            "line 3: GPU1 to GPU0 is NV2, but GPU0 to GPU1 on line 2 is NV1; both must be equal",
        ),
        (" GPU0 NIC0\nGPU0 X NV1\nNIC0 NV1 X\n", "line 3: NIC0 to GPU0 has NVLinks, but only GPUs can"),
        (
            " GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PXB\nGPU2 SYS PXB X\n",
            "line 4: GPU2 to GPU0 is SYS, but through other devices they are only PXB apart; correct one of the cells",
        ),
    ] {
        assert_eq!(smi::read(text.as_bytes(), "bad", None).expect_err(expected).to_string(), expected);
    }
    let wide: String = (0..2_000).map(|number| format!(" GPU{number}")).collect();
    let error = smi::read(wide.as_bytes(), "wide", None).unwrap_err();
    assert_eq!(error.to_string(), "line 1: the table has more than 1024 columns, which is the limit");
}

#[test]
fn long_lines_are_refused_and_prose_after_the_table_is_ignored() {
    let table = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t1\nGPU1\tSYS\t X \t8-15\t0";
    let plain = smi::read(table.as_bytes(), "x", None).unwrap();
    let tabs = format!("{table}{}\n", "\t".repeat(1 << 20));
    let error = smi::read(tabs.as_bytes(), "x", None).unwrap_err();
    assert_eq!(error.to_string(), "line 3: the line is longer than 65536 bytes, which is the limit");
    // A shorter tail of tabs and words changes nothing.
    let tail = format!("{table}{}\n", "\t".repeat(1_000) + "a b c d e f g h i j");
    assert_eq!(smi::read(tail.as_bytes(), "x", None).unwrap().devices(), plain.devices());
    let spoken = format!("{table}\n\nGPU0 is the one that fails\nNIC7: mlx5_7\n");
    assert_eq!(smi::read(spoken.as_bytes(), "x", None).unwrap(), plain);
    let twice = format!("{table}\nGPU0\t X \tSYS\n");
    assert_eq!(
        smi::read(twice.as_bytes(), "x", None).unwrap_err().to_string(),
        "line 4: second row for GPU0; paste a single table"
    );
}
