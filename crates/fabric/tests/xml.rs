//! NCCL and RCCL topology XML: reading, and round trips. Errors: `xml_refused.rs`.

use std::path::{Path, PathBuf};

use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::{DeviceId, DeviceKind, HostId};
use weftlink_fabric::domains::gpu_domains;
use weftlink_fabric::format::{self, xml};
use weftlink_fabric::link::{LinkKind, Network, Socket};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{Fabric, LinkSpec, cluster};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/topology")
}

fn read(name: &str) -> Fabric {
    let bytes = std::fs::read(testdata().join(name)).expect(name);
    format::read(&bytes, name, None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn all_hosts(fabric: &Fabric) -> Vec<HostId> {
    (0..fabric.hosts().len() as u32).map(HostId).collect()
}

/// Links from one device to another: count and kind.
fn between(fabric: &Fabric, source: DeviceId, target: DeviceId) -> Vec<(u32, &LinkSpec)> {
    let links = fabric.links_from(source).iter();
    links.filter(|link| link.target == target).map(|link| (link.count, fabric.spec(link))).collect()
}

fn count(fabric: &Fabric, wanted: fn(&DeviceKind) -> bool) -> usize {
    fabric.devices_where(wanted).count()
}

fn numa_nodes(fabric: &Fabric) -> Vec<DeviceId> {
    fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).collect()
}

fn switches(fabric: &Fabric) -> Vec<DeviceId> {
    fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).collect()
}

fn assert_reads_back(name: &str, fabric: &Fabric) {
    let text = xml::write(fabric, &all_hosts(fabric));
    let again = xml::read(text.as_bytes(), name).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
    assert!(&again == fabric, "{name}");
    assert!(xml::write(&again, &all_hosts(&again)) == text, "{name}");
}

#[test]
fn every_test_file_reads_back_equal() {
    let mut files = 0;
    for entry in std::fs::read_dir(testdata()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert_reads_back(&name, &read(&name));
        files += 1;
    }
    assert!(files >= 9, "{files}");
}

#[test]
fn every_shared_sample_reads_back_equal() {
    let Some(shared) = std::env::var_os("WEFT_SHARED") else {
        eprintln!("skipped every_shared_sample_reads_back_equal: WEFT_SHARED is not set");
        return;
    };
    let mut files = 0;
    for entry in std::fs::read_dir(Path::new(&shared).join("samples/topology")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let fabric = format::read(&bytes, name, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_reads_back(name, &fabric);
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn every_preset_survives_a_round_trip() {
    for system in systems::all() {
        let fabric = system.fabric();
        let text = xml::write(&fabric, &all_hosts(&fabric));
        let again = xml::read(text.as_bytes(), system.name)
            .unwrap_or_else(|error| panic!("{}: {error}", system.name));
        assert!(xml::write(&again, &all_hosts(&again)) == text, "{}", system.name);
        assert_eq!(again.hosts().len(), fabric.hosts().len(), "{}", system.name);
        assert_eq!(again.gpus().len(), fabric.gpus().len(), "{}", system.name);
        for (a, x) in again.gpus().iter().zip(fabric.gpus()) {
            assert_eq!(
                again.device(*a).kind.gpu_model(),
                fabric.device(*x).kind.gpu_model(),
                "{}",
                system.name
            );
            // A file lists GPUs by NUMA node, an order that only an asymmetric wiring shows. It has no Xe Links.
            let is_compared = !["frontier-node", "aurora-node"].contains(&system.name);
            let others = again.gpus().iter().zip(fabric.gpus()).filter(|_| is_compared);
            for (b, y) in others {
                assert_eq!(between(&again, *a, *b), between(&fabric, *x, *y), "{}", system.name);
            }
        }
    }
}

#[test]
fn an_hgx_is_read_whole() {
    let fabric = read("hgx-h100.xml");
    assert!(fabric.notes().is_empty());
    assert_eq!(fabric.gpus().len(), 8);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::PcieSwitch)), 4);
    let switches = switches(&fabric);
    assert_eq!(switches.len(), 4);
    assert_eq!(fabric.device(switches[0]).kind, DeviceKind::NvSwitch { generation: Some(3) });
    for &gpu in fabric.gpus() {
        assert_eq!(fabric.device(gpu).kind.gpu_model(), gpus::by_id("h100"));
        let counts: Vec<_> = switches.iter().map(|s| between(&fabric, gpu, *s)).collect();
        assert_eq!(counts, [5, 4, 4, 5].map(|n| vec![(n, &links::NVLINK[3])]));
        assert_eq!(between(&fabric, switches[0], gpu), [(5, &links::NVLINK[3])]);
    }
    let nic = fabric.find("mlx5_3").unwrap();
    let DeviceKind::Nic(ports) = &fabric.device(nic).kind else { panic!() };
    assert_eq!(ports[0].network, Some(Network::InfiniBand));
    assert_eq!(ports[0].rate.gb(), 50.0);
    let numa = numa_nodes(&fabric);
    assert_eq!(between(&fabric, numa[0], numa[1]), [(1, &links::socket(Socket::IntelSapphireRapids))]);
    // The link between switch and GPU is given by the GPU's attributes.
    let parent = fabric.find("0000:18:00.0").unwrap();
    assert_eq!(between(&fabric, parent, fabric.gpus()[0]), [(1, &links::pcie(5, 16))]);
}

#[test]
fn a_dgx_1_has_its_cube_mesh() {
    let fabric = read("dgx-1-v100.xml");
    let preset = systems::by_name("dgx-1-v100").unwrap().fabric();
    for (a, x) in fabric.gpus().iter().zip(preset.gpus()) {
        for (b, y) in fabric.gpus().iter().zip(preset.gpus()) {
            assert_eq!(between(&fabric, *a, *b), between(&preset, *x, *y));
        }
    }
}

#[test]
fn amd_gpus_read_and_write_in_their_dialect() {
    let fabric = read("mi300x.xml");
    let gpus = fabric.gpus();
    assert_eq!(between(&fabric, gpus[0], gpus[7]), [(1, &links::XGMI4)]);
    let DeviceKind::Gpu(gpu) = &fabric.device(gpus[0]).kind else { panic!() };
    assert_eq!(gpu.sm, None, "sm counts compute units here");
    let text = xml::write(&fabric, &all_hosts(&fabric));
    assert!(text.starts_with("<system version=\"2\">"));
    assert!(text.contains("<xgmi target=\"0000:26:00.0\" count=\"1\" tclass=\"0x120000\"/>"));
}

#[test]
fn files_without_gpus_have_a_note() {
    let fabric = read("pci-only-vm.xml");
    assert_eq!(fabric.gpus().len(), 8);
    for &gpu in fabric.gpus() {
        let DeviceKind::Gpu(gpu) = &fabric.device(gpu).kind else { panic!() };
        assert!(gpu.ranks.is_empty());
        assert_eq!(gpu.model, gpus::by_id("h100"));
    }
    assert_eq!(count(&fabric, |kind| *kind == DeviceKind::Nic(Vec::new())), 4);
    assert!(fabric.notes()[0].starts_with("8 of 8 GPUs are described as PCI functions only"));

    let fabric = read("bus-ids-only.xml");
    assert_eq!(count(&fabric, |kind| *kind == DeviceKind::PciFunction), 4);
    assert!(fabric.notes()[0].starts_with("The file names no GPU"));
    assert!(fabric.notes()[1].starts_with("4 PCI functions have no link speed"));
    let function = fabric.find("0000:00:16.0").unwrap();
    let above = fabric.spec(&fabric.links_from(function)[0]);
    assert_eq!(above.nominal, None);
    assert_eq!(above.kind, LinkKind::Pcie { generation: 3, width: 16 });
    let text = xml::write(&fabric, &all_hosts(&fabric));
    assert!(text.contains("<pci busid=\"0000:00:16.0\"/>"), "no attribute is added:\n{text}");
}

#[test]
fn coherent_links_lead_to_the_numa_node() {
    let fabric = read("gh200.xml");
    let links_up = between(&fabric, fabric.gpus()[0], numa_nodes(&fabric)[0]);
    let [(10, c2c)] = links_up.iter().filter(|(_, spec)| spec.kind == LinkKind::C2c).collect::<Vec<_>>()[..]
    else {
        panic!("{links_up:?}");
    };
    assert_eq!(c2c.nominal.as_ref().map(|figure| figure.value), Some(Rate::from_mb(44_712)));
    assert_eq!(c2c.effective, None, "the file has the speed of the link, not of transfers");

    let fabric = read("power9.xml");
    let links_down = between(&fabric, numa_nodes(&fabric)[0], fabric.gpus()[1]);
    assert!(links_down.contains(&(3, &links::NVLINK[1])), "{links_down:?}");
}

#[test]
fn several_hosts_share_a_hidden_switch() {
    let fabric = read("nvl72-two-trays.xml");
    assert_eq!(fabric.hosts().len(), 2);
    let switch = switches(&fabric)[0];
    assert_eq!(fabric.device(switch).host, None);
    assert_eq!(fabric.links_from(switch).len(), 8);
    let numa = numa_nodes(&fabric);
    assert_eq!(between(&fabric, numa[1], numa[2]), [], "sockets of two hosts are not joined");
    assert_eq!(xml::nvlink_domain(&fabric, HostId(1)), [HostId(0), HostId(1)]);
    // One host alone can be written too.
    let one = xml::write(&fabric, &[HostId(1)]);
    let one = xml::read(one.as_bytes(), "one").unwrap();
    assert_eq!((one.hosts().len(), one.gpus().len()), (1, 4));
}

#[test]
fn a_rack_preset_gives_each_host_its_hash() {
    let fabric = systems::by_name("gb200-nvl72").unwrap().fabric();
    let text = xml::write(&fabric, &xml::nvlink_domain(&fabric, HostId(3)));
    let again = xml::read(text.as_bytes(), "rack").unwrap();
    assert_eq!((again.hosts().len(), again.gpus().len(), switches(&again).len()), (18, 72, 18));
}

#[test]
fn links_disguised_by_a_sandbox_are_read() {
    let gpu = |bus: &str, target: &str, class: &str| {
        format!(
            "<pci busid='{bus}' class='0x030200'><gpu dev='0' sm='90' rank='0'>\
             <nvlink target='{target}' count='18' tclass='{class}'/></gpu></pci>"
        )
    };
    let file = |a: String, b: String| format!("<system version='1'><cpu numaid='0'>{a}{b}</cpu></system>");
    // Peers with the class of a switch: one switch, whose links are counted once.
    let text = file(gpu("1:0.0", "2:0.0", "0x068000"), gpu("2:0.0", "1:0.0", "0x068000"));
    let fabric = xml::read(text.as_bytes(), "sandbox").unwrap();
    let switches = switches(&fabric);
    assert_eq!(switches.len(), 1);
    assert_eq!(between(&fabric, fabric.gpus()[0], switches[0]), [(18, &links::NVLINK[3])]);
    assert!(fabric.notes()[0].starts_with("NVLinks name GPUs with the class of a switch"));
    // A GPU as its own peer: the real peer is hidden.
    let text = file(gpu("1:0.0", "1:0.0", "0x030200"), gpu("2:0.0", "2:0.0", "0x030200"));
    let fabric = xml::read(text.as_bytes(), "vm").unwrap();
    assert_eq!(between(&fabric, fabric.gpus()[0], fabric.gpus()[1]), []);
    assert!(fabric.notes()[0].starts_with("2 links lead from a GPU to itself"));
}

#[test]
fn rare_elements_and_attributes_are_read() {
    let fabric = read("odds-and-ends.xml");
    assert_eq!(fabric.name(), "odds and ends");
    let numa = fabric.device(DeviceId(0));
    assert_eq!(numa.extra[1], ("colour".into(), "a \"quoted\" word".into()));
    let DeviceKind::Numa(node) = &numa.kind else { panic!() };
    assert_eq!((node.id, node.cpu.family, node.cpu.model), (-1, Some(25), None));
    // Two ranks on one GPU: the links of both are the GPU's.
    let gpu = fabric.gpus()[0];
    let DeviceKind::Gpu(ranks) = &fabric.device(gpu).kind else { panic!() };
    assert_eq!(ranks.ranks.len(), 2);
    let switch = fabric.find("0000:07:00.0").unwrap();
    assert_eq!(between(&fabric, gpu, switch), [(18, &links::NVLINK[3])]);
    // A switch split in two, by one `pcilink` each way.
    let halves = ["0000:01:00.0", "0000:02:00.0"].map(|bus| fabric.find(bus).unwrap());
    assert_eq!(between(&fabric, halves[0], halves[1]).len(), 1);
    assert_eq!(between(&fabric, halves[1], halves[0]).len(), 1);
    assert_eq!(count(&fabric, |kind| *kind == DeviceKind::Storage), 1);
    assert_eq!(count(&fabric, |kind| matches!(kind, DeviceKind::Nic(_))), 2);
    let notes = fabric.notes().join("\n");
    for words in [
        "1 pcilinks lead",
        "1 of 2 GPUs have no rank",
        "<fan> on line 25, <gpu> on line 30, <system> on line 33",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

#[test]
fn islands_may_interleave() {
    let host = |hash: &str, links: &str| {
        format!("<cpu host_hash='{hash}'><pci busid='1:0.0'><gpu rank='0' sm='90'>{links}</gpu></pci></cpu>")
    };
    let switch = "<nvlink target='fffffff:ff:ff.0' count='18' tclass='0x068000'/>";
    let text =
        format!("<system version='1'>{}{}{}</system>", host("1", switch), host("2", ""), host("3", switch));
    let fabric = xml::read(text.as_bytes(), "around").unwrap();
    let classes = weftlink_fabric::Paths::of(&fabric).classes();
    let pairs: Vec<(String, u64)> = classes.iter().map(|class| (class.path.cell(), class.pairs)).collect();
    assert_eq!(pairs, [("NV18".to_owned(), 1), ("DIS".to_owned(), 2)]);
}

#[test]
fn multi_level_switches_are_merged() {
    for (name, gpus) in [("dgx-2", 16), ("dgx-gh200", 256)] {
        let fabric = systems::by_name(name).unwrap().fabric();
        let text = xml::write(&fabric, &all_hosts(&fabric));
        let again = xml::read(text.as_bytes(), name).unwrap();
        let sizes: Vec<usize> = gpu_domains(&again).iter().map(Vec::len).collect();
        assert_eq!((sizes, switches(&again).len()), (vec![gpus], 1), "{name}");
        let links = |fabric: &Fabric| {
            let to_gpu_fabric = fabric.links_from(fabric.gpus()[0]).iter();
            let to_gpu_fabric = to_gpu_fabric.filter(|link| fabric.spec(link).kind.is_gpu_fabric());
            to_gpu_fabric.map(|link| link.count).sum::<u32>()
        };
        assert_eq!(links(&again), links(&fabric), "{name}");
        assert_reads_back(name, &again);
    }
    // Two systems in one file stay separate.
    for (spec, gpus) in [("2x dgx-2", 16), ("2x dgx-gh200", 256)] {
        let pair = cluster::resolve(spec).unwrap();
        let text = xml::write(&pair, &all_hosts(&pair));
        let again = xml::read(text.as_bytes(), spec).unwrap();
        assert_eq!(gpu_domains(&again).iter().map(Vec::len).collect::<Vec<_>>(), [gpus; 2], "{spec}");
    }
}

#[test]
fn switches_of_a_host_are_merged_if_gpus_share_none() {
    let gpu = |bus: u32, links: &str| {
        format!("<pci busid='0000:{bus:02x}:00.0' class='0x030200'><gpu dev='0' sm='70'>{links}</gpu></pci>")
    };
    let link = |bus: u32| format!("<nvlink target='0000:{bus:02x}:00.0' count='3' tclass='0x068000'/>");
    let file =
        |gpus: &[String]| format!("<system version='1'><cpu numaid='0'>{}</cpu></system>", gpus.concat());
    let split = file(&[gpu(1, &(link(0x10) + &link(0x11))), gpu(2, &(link(0x12) + &link(0x13)))]);
    let fabric = xml::read(split.as_bytes(), "split").unwrap();
    let [switch] = switches(&fabric)[..] else { panic!("{:?}", switches(&fabric)) };
    assert!(fabric.gpus().iter().all(|gpu| between(&fabric, *gpu, switch) == [(6, &links::NVLINK[1])]));
    assert!(fabric.notes().iter().any(|note| note.contains("4 NVSwitches are counted as 1")));
    assert_reads_back("split", &fabric);
    // Each pair shares a switch: nothing is merged.
    let whole = file(&[
        gpu(1, &(link(0x10) + &link(0x11))),
        gpu(2, &link(0x11)),
        gpu(3, &(link(0x11) + &link(0x10))),
    ]);
    let fabric = xml::read(whole.as_bytes(), "whole").unwrap();
    assert_eq!(switches(&fabric).len(), 2);
    assert_reads_back("whole", &fabric);
    // A switch needs no address.
    let nameless = "<nvlink count='6' tclass='0x068000'/>";
    let fabric = xml::read(file(&[gpu(1, nameless), gpu(2, nameless)]).as_bytes(), "nameless").unwrap();
    assert_eq!(gpu_domains(&fabric).len(), 1);
    assert_reads_back("nameless", &fabric);
}

#[test]
fn each_dialect_has_its_own_name_for_gpu_links() {
    let file = |version: &str, tag: &str, about: &str| {
        let gpu = |bus: &str, peer: &str| {
            format!(
                "<pci busid='{bus}' class='0x030200'><gpu dev='0' {about}>\
                 <{tag} target='{peer}' count='1' tclass='0x030200'/></gpu></pci>"
            )
        };
        let [a, b] = ["0000:01:00.0", "0000:02:00.0"];
        format!("<system version='{version}'><cpu numaid='0'>{}{}</cpu></system>", gpu(a, b), gpu(b, a))
    };
    for (version, tag, about, domains) in [
        ("1", "nvlink", "sm='90'", 1),
        ("2", "nvlink", "sm='90'", 2),
        ("1", "xgmi", "gcn='942'", 2),
        ("2", "xgmi", "gcn='942'", 1),
        ("1", "nvlink", "gcn='942'", 1),
    ] {
        let fabric = xml::read(file(version, tag, about).as_bytes(), "x").unwrap();
        assert_eq!(gpu_domains(&fabric).len(), domains, "{version} {tag}");
        assert_eq!(fabric.notes().iter().any(|note| note.contains("Ignored, as in NCCL")), domains == 2);
        assert_reads_back(tag, &fabric);
    }
}
