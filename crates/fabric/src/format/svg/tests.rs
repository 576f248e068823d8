//! Tests that parse the SVG text and check the drawing.

use std::collections::BTreeMap;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::canvas::Rect;
use super::svg;
use crate::catalog::{gpus, links, systems};
use crate::device::{DeviceKind, Gpu, Numa, Tier};
use crate::fabric::{Fabric, FabricBuilder};
use crate::id::HostId;
use crate::link::Network;

/// The contents of an SVG file: boxes by class, texts, lines and the page.
#[derive(Default)]
struct Drawn {
    boxes: BTreeMap<String, Vec<Rect>>,
    words: Vec<String>,
    /// Widths of strokes, by colour.
    lines: BTreeMap<String, Vec<f64>>,
    page: (f64, f64),
}

impl Drawn {
    fn boxes_of(&self, class: &str) -> Vec<Rect> {
        self.boxes.get(class).cloned().unwrap_or_default()
    }

    fn says(&self, text: &str) -> bool {
        self.words.iter().any(|words| words.contains(text))
    }

    /// The number of devices in blocks with this title: one for `NIC 3`, four for `NIC x4`.
    fn named(&self, word: &str) -> usize {
        let rest = |words: &String| words.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned);
        let count = |rest: String| match rest.strip_prefix('\u{d7}') {
            Some(times) => times.parse().unwrap_or(0),
            None => usize::from(rest.parse::<u32>().is_ok()),
        };
        self.words.iter().filter_map(rest).map(count).sum()
    }
}

fn attribute(tag: &BytesStart, name: &str) -> Option<String> {
    let found = tag.attributes().map(|attribute| attribute.expect("well-formed attributes"));
    let mut found = found.filter(|attribute| attribute.key.as_ref() == name);
    found.next().map(|attribute| attribute.value.into_owned())
}

fn number(tag: &BytesStart, name: &str) -> f64 {
    attribute(tag, name).unwrap().parse().unwrap()
}

fn read(text: &str) -> Drawn {
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut drawn = Drawn::default();
    let (mut depth, mut class) = (0, String::new());
    loop {
        let event = reader.read_event().unwrap_or_else(|error| panic!("{error} in {text}"));
        if let Event::Start(tag) | Event::Empty(tag) = &event {
            match tag.name().as_ref() {
                "svg" => {
                    let page = attribute(tag, "viewBox").unwrap();
                    let sides: Vec<f64> = page.split(' ').map(|side| side.parse().unwrap()).collect();
                    drawn.page = (sides[2], sides[3]);
                }
                "g" => class = attribute(tag, "class").unwrap_or_default(),
                "rect" if !class.is_empty() => {
                    let size = (number(tag, "width"), number(tag, "height"));
                    let rect = Rect::new(number(tag, "x"), number(tag, "y"), size);
                    drawn.boxes.entry(class.clone()).or_default().push(rect);
                }
                "path" => {
                    let stroke = attribute(tag, "stroke").unwrap();
                    drawn.lines.entry(stroke).or_default().push(number(tag, "stroke-width"));
                }
                _ => {}
            }
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(tag) => {
                depth -= 1;
                if tag.name().as_ref() == "g" {
                    class.clear();
                }
            }
            Event::Text(words) => drawn.words.push(words.to_string()),
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "every element is closed");
    drawn
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    let apart = 0.05;
    a.x + apart < b.right() && b.x + apart < a.right() && a.y + apart < b.bottom() && b.y + apart < a.bottom()
}

/// Checks the properties of every drawing.
fn check(name: &str, fabric: &Fabric) -> Drawn {
    let text = svg(fabric);
    assert_eq!(text, svg(&fabric.clone()), "{name} is drawn the same twice");
    let drawn = read(&text);
    let all: Vec<(&String, &Rect)> =
        drawn.boxes.iter().flat_map(|(class, rects)| rects.iter().map(move |rect| (class, rect))).collect();
    for (index, (class, rect)) in all.iter().enumerate() {
        assert!(
            rect.x >= 0.0 && rect.y >= 0.0 && rect.right() <= drawn.page.0 && rect.bottom() <= drawn.page.1,
            "{name}: a {class} at {rect:?} is off the page {:?}",
            drawn.page
        );
        for (other, place) in &all[..index] {
            assert!(!overlap(rect, place), "{name}: {class} {rect:?} lies on {other} {place:?}");
        }
    }
    drawn
}

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

fn count(fabric: &Fabric, wanted: fn(&DeviceKind) -> bool) -> usize {
    fabric.devices_where(wanted).count()
}

/// A rail-optimised cluster with one NIC per leaf in each host, and one spine.
fn cluster(part: &Fabric, copies: usize, rails: usize) -> Fabric {
    let mut builder = FabricBuilder::new(format!("{copies} x {}", part.name()));
    let network = builder.spec(links::network(Network::InfiniBand, 400));
    let slot = builder.spec(links::pcie(5, 16));
    let leaves: Vec<_> = (0..rails).map(|_| builder.add(None, DeviceKind::NetSwitch(Tier::Leaf))).collect();
    let spine = builder.add(None, DeviceKind::NetSwitch(Tier::Spine));
    for copy in 0..copies {
        let first = builder.append(part, |index, _| format!("rack{copy}-host{index}"));
        for host in 0..part.hosts().len() {
            let numa = part.device_ids().find(|&id| {
                let device = part.device(id);
                device.host == Some(HostId(host as u32)) && matches!(device.kind, DeviceKind::Numa(_))
            });
            let numa = crate::device::DeviceId(numa.unwrap().0 + first.0);
            let owner = builder.device(numa).host;
            for &leaf in &leaves {
                let nic = builder.add(owner, DeviceKind::Nic(Vec::new()));
                builder.connect(numa, nic, 1, slot);
                builder.connect(nic, leaf, 1, network);
            }
        }
    }
    for &leaf in &leaves {
        builder.connect(leaf, spine, copies as u32, network);
    }
    builder.finish().unwrap()
}

#[test]
fn every_system_shows_every_gpu_nic_and_nvswitch() {
    for system in systems::all() {
        let fabric = system.fabric();
        let drawn = check(system.name, &fabric);
        if drawn.says("alike") {
            continue;
        }
        assert_eq!(drawn.boxes_of("gpu").len(), fabric.gpus().len(), "GPUs of {}", system.name);
        let chips = count(&fabric, |kind| matches!(kind, DeviceKind::NvSwitch { .. }));
        assert_eq!(drawn.boxes_of("nvswitch").len(), chips, "NVSwitches of {}", system.name);
        let nics = count(&fabric, |kind| matches!(kind, DeviceKind::Nic(_)));
        // A NIC without a caption is a dot.
        let shown = drawn.named("NIC").max(drawn.boxes_of("nic").len());
        assert_eq!(shown, nics, "NICs of {}", system.name);
    }
}

#[test]
fn every_rate_says_each_way_per_what() {
    for system in systems::all() {
        let drawn = check(system.name, &system.fabric());
        let rates: Vec<&String> = drawn.words.iter().filter(|words| words.contains("B/s")).collect();
        assert!(!rates.is_empty(), "{} has a legend", system.name);
        for rate in rates {
            assert!(rate.contains("each way per"), "{}: {rate}", system.name);
        }
    }
}

#[test]
fn an_hgx_is_drawn_in_rows() {
    let drawn = check("hgx-h100", &system("hgx-h100"));
    let middle = |class: &str| {
        let rects = drawn.boxes_of(class);
        assert!(rects.windows(2).all(|pair| pair[0].y == pair[1].y), "{class}s are a row");
        rects[0].cy()
    };
    let rows = ["nvswitch", "gpu", "pcie", "cpu"].map(middle);
    assert!(rows.is_sorted_by(|above, below| above < below), "{rows:?}");
    assert_eq!(drawn.words.iter().filter(|words| *words == "\u{d7}18").count(), 8);
    assert!(drawn.says("25 GB/s each way per link, nominal; 18 links: 450 GB/s each way per GPU"));
}

#[test]
fn a_cube_mesh_is_two_squares_with_single_and_double_links() {
    let drawn = check("dgx-1-v100", &system("dgx-1-v100"));
    let mut columns: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for gpu in drawn.boxes_of("gpu") {
        columns.entry(gpu.x as i64).or_default().push(gpu.y as i64);
    }
    assert_eq!(columns.len(), 4, "four columns of two: {columns:?}");
    assert!(columns.values().all(|rows| rows.len() == 2));
    for tag in ["NV1", "NV2"] {
        assert_eq!(drawn.words.iter().filter(|words| *words == tag).count(), 8, "{tag}");
    }
    // Sixteen bundles and the legend; the gaps of the eight double ones are strokes of the panel's colour.
    assert_eq!(drawn.lines["#76b900"].len(), 17);
    assert_eq!(drawn.lines["#f8f9fb"].len(), 8);
}

#[test]
fn interleaved_quads_do_not_overlap() {
    let mut builder = FabricBuilder::new("interleaved");
    let host = builder.host("host", None);
    let link = builder.spec(links::NVLINK[1].clone());
    let gpus = [(); 8].map(|()| builder.add(Some(host), DeviceKind::Gpu(Gpu::default())));
    let quads = [[0, 3, 4, 7], [1, 2, 5, 6]];
    for quad in quads {
        for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            builder.connect(gpus[quad[a]], gpus[quad[b]], 1, link);
        }
    }
    for (a, b) in quads[0].into_iter().zip(quads[1]) {
        builder.connect(gpus[a], gpus[b], 1, link);
    }
    let drawn = check("interleaved", &builder.finish().unwrap());
    let rows: std::collections::BTreeSet<i64> =
        drawn.boxes_of("gpu").iter().map(|gpu| gpu.y as i64).collect();
    assert_eq!(rows.len(), 2, "two squares");
}

#[test]
fn missing_nvlink_is_explained() {
    let drawn = check("2x-rtx4090", &system("2x-rtx4090"));
    assert!(drawn.words.iter().any(|words| words == "no NVLink"));
    let gpus::GpuLinks::Absent(reason) = gpus::by_id("rtx4090").unwrap().links else {
        panic!("the RTX 4090 has no NVLink");
    };
    let all = drawn.words.join(" ");
    assert!(all.contains(reason), "{all}");
    assert!(!drawn.lines.contains_key("#76b900"), "no green line");
    let bridged = check("2x-rtx3090-bridge", &system("2x-rtx3090-bridge"));
    assert!(!bridged.says("no NVLink") && bridged.says("NV4"));
}

#[test]
fn a_rack_has_one_trunk_per_gpu() {
    let drawn = check("gb200-nvl72", &system("gb200-nvl72"));
    assert_eq!(drawn.boxes_of("gpu").len(), 72);
    assert_eq!(drawn.boxes_of("nvswitch").len(), 18);
    assert_eq!(drawn.lines["#76b900"].len(), 72 + 1, "one trunk for each GPU, and the legend");
    assert_eq!(drawn.words.iter().filter(|words| *words == "4 \u{d7} 18 links").count(), 18);
}

#[test]
fn a_pair_of_hosts_shows_its_rails() {
    let drawn = check("pair", &cluster(&system("hgx-h100"), 2, 8));
    assert_eq!(drawn.boxes_of("gpu").len(), 16);
    assert_eq!(drawn.boxes_of("netswitch").len(), 9);
    assert_eq!(drawn.named("NIC"), 16);
    assert!(!drawn.says("alike"));
}

#[test]
fn equal_hosts_are_collapsed() {
    let drawn = check("16 hosts", &cluster(&system("hgx-h100"), 16, 8));
    assert!(drawn.words.iter().any(|words| words == "\u{d7} 16"), "{:?}", drawn.words);
    assert_eq!(drawn.boxes_of("gpu").len(), 3 * 8);
    let racks = cluster(&system("gb200-nvl72"), 128, 4);
    let drawn = check("128 racks", &racks);
    assert!(drawn.words.iter().any(|words| words == "\u{d7} 128"));
    assert_eq!(drawn.boxes_of("gpu").len(), 3 * 72);
    assert!(svg(&racks).len() < 200_000);
    // A host that differs is drawn next to the others.
    let mut builder = FabricBuilder::new("mixed");
    for copy in 0..5 {
        builder.append(&system("2x-rtx4090"), |_, _| format!("small{copy}"));
    }
    builder.append(&system("4x-rtx4090"), |_, _| "large".to_owned());
    let drawn = check("mixed", &builder.finish().unwrap());
    assert_eq!(drawn.boxes_of("gpu").len(), 3 * 2 + 4);
    assert!(drawn.words.iter().any(|words| words == "\u{d7} 5"));
}

#[test]
fn faster_links_have_wider_lines() {
    let drawn = check("hgx-h100", &system("hgx-h100"));
    let widest = |colour: &str| drawn.lines[colour].iter().copied().fold(0.0, f64::max);
    assert!(widest("#76b900") > widest("#3b82d6"));
    assert!(widest("#3b82d6") > widest("#8b95a1"));
}

#[test]
fn unusual_names_and_fabrics_are_drawn() {
    check("empty", &FabricBuilder::new("").finish().unwrap());
    let mut builder = FabricBuilder::new("<a href=\"x\">&\u{1}\u{ffff}]]>");
    builder.note("1 < 2 & 3 > 2");
    let host = builder.host("h<&>", Some("\"'"));
    builder.add(Some(host), DeviceKind::Gpu(Gpu::default()));
    builder.add(Some(host), DeviceKind::NvSwitch { generation: None });
    builder.add(None, DeviceKind::Gpu(Gpu::default()));
    builder.add(None, DeviceKind::NvSwitch { generation: None });
    builder.add(None, DeviceKind::Nic(Vec::new()));
    check("odd", &builder.finish().unwrap());
}

/// Random devices with random links: every drawing is well formed, and no two blocks overlap.
#[test]
fn random_wiring_is_drawn() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for round in 0..300 {
        let mut builder = FabricBuilder::new(format!("round {round}"));
        let hosts: Vec<_> = (0..below(9)).map(|index| builder.host(format!("h{index}"), None)).collect();
        let specs = [
            links::NVLINK[3].clone(),
            links::pcie(5, 16),
            links::C2C.clone(),
            links::XGMI4.clone(),
            links::network(Network::Roce, 400),
            links::NVLINK_UNKNOWN.clone(),
        ];
        let specs = specs.map(|spec| builder.spec(spec));
        let devices: Vec<_> = (0..1 + below(60))
            .map(|_| {
                let host = hosts.get(below(hosts.len() + 2)).copied();
                let kind = match below(11) {
                    0 => DeviceKind::Numa(Numa::default()),
                    1 => DeviceKind::RootPort,
                    2 | 3 => DeviceKind::PcieSwitch,
                    4 => DeviceKind::NvSwitch { generation: Some(3) },
                    5 => DeviceKind::Nic(Vec::new()),
                    6 => DeviceKind::Storage,
                    7 => DeviceKind::NetSwitch(if below(2) == 0 { Tier::Leaf } else { Tier::Spine }),
                    8 => DeviceKind::PciFunction,
                    _ => DeviceKind::Gpu(Gpu::default()),
                };
                builder.add(host, kind)
            })
            .collect();
        for _ in 0..below(160) {
            let (a, b) = (devices[below(devices.len())], devices[below(devices.len())]);
            if a != b {
                builder.link(a, b, below(20) as u32, specs[below(specs.len())]);
            }
        }
        check(&format!("round {round}"), &builder.finish().unwrap());
    }
}

#[test]
fn unnumbered_numa_nodes_get_their_ordinal() {
    let text = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n";
    let drawn = read(&svg(&crate::format::smi::read(text.as_bytes(), "x", None).unwrap()));
    assert_eq!((drawn.named("CPU"), drawn.says("CPU -1")), (2, false));
}

#[test]
fn many_cpus_with_many_devices_are_drawn() {
    let mut file = "<system version='1'>".to_owned();
    for cpu in 0..128 {
        file += &format!("<cpu numaid='{cpu}'>");
        for pci in 0..50 {
            file += &format!("<pci busid='{cpu:04x}:{pci:02x}:00.0' class='0x060400'/>");
        }
        file += "</cpu>";
    }
    file += "</system>";
    let fabric = crate::format::xml::read(file.as_bytes(), "x").unwrap();
    assert!(svg(&fabric).len() > 1_000);
}
