use proptest::prelude::*;
use weftlink_fabric::catalog::{links, systems};
use weftlink_fabric::device::{Device, DeviceKind};
use weftlink_fabric::figure::Figure;
use weftlink_fabric::link::{LinkKind, LinkSpec};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, Fabric, FabricBuilder, Link, resolve};
use weftlink_probe::{Recording, probe};

use super::*;

fn preset(name: &str) -> Fabric {
    resolve(name).unwrap()
}

/// The findings by id, each with what it says and shows.
fn found(report: &Report, id: &str) -> Vec<String> {
    let text = |finding: &Finding| {
        let shown: Vec<&str> = finding.evidence.iter().map(|line| line.text.as_str()).collect();
        format!("{} | {}", finding.what, shown.join(" | "))
    };
    report.findings.iter().filter(|finding| finding.id == id).map(text).collect()
}

/// A copy of a fabric without some devices.
fn without_devices(fabric: &Fabric, gone: impl Fn(DeviceId, &Device) -> bool) -> Fabric {
    let mut builder = FabricBuilder::new(fabric.name());
    for host in fabric.hosts() {
        builder.host(host.name.clone(), host.system.as_deref());
    }
    let mut ids = vec![None; fabric.devices().len()];
    for id in fabric.device_ids().filter(|id| !gone(*id, fabric.device(*id))) {
        ids[id.0 as usize] = Some(builder.add_device(fabric.device(id).clone()));
    }
    for link in fabric.links() {
        if let (Some(source), Some(target)) = (ids[link.source.0 as usize], ids[link.target.0 as usize]) {
            let spec = builder.spec(fabric.spec(link).clone());
            builder.link(source, target, link.count, spec);
        }
    }
    builder.finish().unwrap()
}

/// A copy of a fabric in which a change applies to the links between two devices, in both directions.
fn changed(
    fabric: &Fabric,
    ends: (DeviceId, DeviceId),
    change: impl Fn(&Link, &LinkSpec) -> Option<(u32, LinkSpec)>,
) -> Fabric {
    fabric.with_links(|link, spec| {
        let is_it = (link.source, link.target) == ends || (link.target, link.source) == ends;
        if is_it { change(link, spec) } else { Some((link.count, spec.clone())) }
    })
}

fn id(fabric: &Fabric, name: &str) -> DeviceId {
    fabric.find(name).unwrap()
}

/// The first link that leaves a device upwards.
fn slot(fabric: &Fabric, device: DeviceId) -> (DeviceId, DeviceId) {
    let is_pcie = |link: &&Link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. });
    (device, fabric.links_from(device).iter().find(is_pcie).unwrap().target)
}

#[test]
fn each_preset_is_as_expected_of_itself() {
    for system in systems::all() {
        let fabric = system.fabric();
        let report = differences(&fabric, &fabric);
        assert!(report.findings.is_empty(), "{}: {:?}", system.name, report.findings);
        assert!(report.uninspected.is_empty(), "{}: {:?}", system.name, report.uninspected);
        assert!(!report.fine.is_empty(), "{}", system.name);
    }
}

#[test]
fn any_two_machines_compare() {
    let all: Vec<Fabric> = systems::all().map(|system| system.fabric()).collect();
    for (at, found) in all.iter().enumerate() {
        for step in [1, 7, 19] {
            let expected = &all[(at + step) % all.len()];
            for finding in differences(found, expected).findings {
                let pair = format!("{} against {}: {finding:?}", found.name(), expected.name());
                assert!(!finding.evidence.is_empty() && !finding.fixes.is_empty(), "{pair}");
                assert!(!finding.what.contains("  "), "{pair}");
            }
        }
    }
}

/// The links whose loss must be noticed: those of GPUs, NICs, switches and sockets, but not of bridges with drives alone.
fn links_that_count(fabric: &Fabric) -> Vec<Link> {
    let views = (0..fabric.hosts().len()).map(|at| View::of_host(fabric, at));
    let ways = views.flat_map(|view| view.gpus.into_iter().chain(view.nics)).flat_map(|part| part.uplink);
    let carries: std::collections::BTreeSet<DeviceId> =
        ways.flat_map(|link| [link.source, link.target]).collect();
    let counts = |id: DeviceId| match fabric.device(id).kind {
        DeviceKind::Storage | DeviceKind::PciFunction => false,
        DeviceKind::RootPort | DeviceKind::PcieSwitch => carries.contains(&id),
        _ => true,
    };
    fabric.links().iter().filter(|link| counts(link.source) && counts(link.target)).copied().collect()
}

/// Half the rate, as a link of an older generation or of half the lanes has.
fn slower(spec: &LinkSpec) -> LinkSpec {
    if let LinkKind::Pcie { generation, width } = spec.kind {
        return if width > 1 { links::pcie(generation, width / 2) } else { links::pcie(generation - 1, 1) };
    }
    let half = |figure: &weftlink_fabric::figure::LinkRate| Figure {
        value: Rate::from_bytes(figure.value.bytes_per_second() / 2),
        ..figure.clone()
    };
    LinkSpec {
        nominal: spec.nominal.as_ref().map(half),
        effective: spec.effective.as_ref().map(half),
        ..spec.clone()
    }
}

/// The names of the devices at the ends of a link, and of those whose way to a CPU it is.
fn names(fabric: &Fabric, (one, other): (DeviceId, DeviceId)) -> Vec<String> {
    let mut ids = vec![one, other];
    for view in (0..fabric.hosts().len()).map(|at| View::of_host(fabric, at)) {
        for part in view.gpus.into_iter().chain(view.nics) {
            let passes = |link: &Link| [(one, other), (other, one)].contains(&(link.source, link.target));
            if part.uplink.iter().any(passes) {
                ids.push(part.id);
            }
        }
    }
    ids.into_iter().map(|id| fabric.device_name(id)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn each_lost_or_slow_link_is_found_and_named(system in 0_usize..1000, link in any::<prop::sample::Index>(), how in 0..3) {
        let all: Vec<_> = systems::all().collect();
        let expected = all[system % all.len()].fabric();
        let links = links_that_count(&expected);
        prop_assume!(!links.is_empty());
        let link = links[link.index(links.len())];
        let ends = (link.source, link.target);
        let has = match how {
            0 => expected.without(&[ends]),
            1 => changed(&expected, ends, |link, spec| (link.count > 1).then(|| (link.count - 1, spec.clone()))),
            _ => changed(&expected, ends, |link, spec| Some((link.count, slower(spec)))),
        };
        let report = differences(&has, &expected);
        let text: Vec<String> = report.findings.iter().map(|finding| format!("{finding:?}")).collect();
        let named = names(&expected, ends);
        prop_assert!(
            text.iter().any(|text| named.iter().any(|name| text.contains(name.as_str()))),
            "{} without or with slow {:?} ({how}): {text:?}", expected.name(), named
        );
        prop_assert!(report.findings.iter().all(|finding| !finding.evidence.is_empty() && !finding.fixes.is_empty()));
    }

    #[test]
    fn each_missing_gpu_or_nic_is_found(system in 0_usize..1000, at in any::<prop::sample::Index>()) {
        let all: Vec<_> = systems::all().collect();
        let expected = all[system % all.len()].fabric();
        let ids: Vec<DeviceId> =
            expected.devices_where(|kind| matches!(kind, DeviceKind::Gpu(_) | DeviceKind::Nic(_))).collect();
        let gone = ids[at.index(ids.len())];
        let has = without_devices(&expected, |id, _| id == gone);
        let report = differences(&has, &expected);
        let is_gpu = matches!(expected.device(gone).kind, DeviceKind::Gpu(_));
        let id = if is_gpu { GPUS } else { NICS };
        let critical = report.findings.iter().filter(|finding| finding.severity == Severity::Critical);
        prop_assert_eq!(critical.filter(|finding| finding.id == id).count(), 1, "{}: {:?}", expected.name(), report.findings);
    }
}

#[test]
fn a_missing_gpu_is_named_by_its_place() {
    let expected = preset("hgx-h100");
    let gone = expected.gpus()[6];
    let report = differences(&without_devices(&expected, |id, _| id == gone), &expected);
    let [what] = &found(&report, GPUS)[..] else { panic!("{:?}", report.findings) };
    assert!(what.starts_with("7 GPUs instead of 8"), "{what}");
    assert!(what.contains("below NUMA node 1"), "{what}");
    assert!(found(&report, NVLINK).is_empty(), "the others have all their links: {:?}", report.findings);
}

#[test]
fn additional_devices_are_no_finding() {
    let (expected, has) = (preset("hgx-h100"), preset("dgx-h100"));
    let report = differences(&has, &expected);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    // But the NICs of a DGX are missing on the bare board.
    let report = differences(&expected, &has);
    let [nics] = &found(&report, NICS)[..] else { panic!("{:?}", report.findings) };
    assert!(nics.contains("0 instead of 8 NICs"), "{nics}");
    let more = differences(&preset("hgx-h100"), &preset("hgx-h100-4"));
    assert!(found(&more, GPUS)[0].contains("8 GPUs instead of 4"));
}

#[test]
fn another_model_is_one_finding() {
    let report = differences(&preset("hgx-h100"), &preset("hgx-h200"));
    let [model] = &found(&report, MODEL)[..] else { panic!("{:?}", report.findings) };
    assert!(model.contains("gpu0, gpu1") && model.contains("H100") && model.contains("H200"), "{model}");
}

#[test]
fn a_model_that_is_unknown_is_not_compared() {
    let expected = preset("hgx-h100");
    let mut builder = FabricBuilder::new("unknown");
    builder.append(&expected, |_, host| host.name.clone());
    for gpu in expected.gpus() {
        builder.device_mut(*gpu).kind = DeviceKind::Gpu(Default::default());
    }
    let report = differences(&builder.finish().unwrap(), &expected);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.uninspected.iter().any(|one| one.id == MODEL), "{:?}", report.uninspected);
}

#[test]
fn pcie_links_that_are_unknown_are_not_compared() {
    let expected = preset("2x-rtx4090");
    let hidden = |link: &Link, spec: &LinkSpec| match spec.kind {
        LinkKind::Pcie { .. } => {
            let kind = LinkKind::Pcie { generation: 0, width: 0 };
            Some((link.count, LinkSpec { kind, nominal: None, effective: None, latency: None }))
        }
        _ => Some((link.count, spec.clone())),
    };
    let report = differences(&expected.with_links(hidden), &expected);
    assert!(found(&report, PCIE).is_empty(), "{:?}", report.findings);
    assert!(report.uninspected.iter().any(|one| one.id == PCIE));
}

#[test]
fn a_narrow_slot_names_both_ends_and_costs_bandwidth() {
    let expected = preset("2x-rtx4090");
    let gpu = expected.gpus()[1];
    let ends = slot(&expected, gpu);
    let has = changed(&expected, ends, |link, _| Some((link.count, links::pcie(4, 4))));
    let report = expect(&has, &expected);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!(finding.id, PCIE);
    assert!(
        finding.what.contains("from gpu1 to") && finding.what.contains("PCIe 4.0 x4 instead of PCIe 4.0"),
        "{}",
        finding.what
    );
    let cost = finding.cost.as_ref().expect("a cost");
    assert!(cost.now_gb_per_s < cost.usual_gb_per_s / 2.0, "{cost:?}");
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn a_slow_uplink_of_a_switch_is_one_finding() {
    let expected = preset("hgx-a100");
    let switch = slot(&expected, expected.gpus()[0]).1;
    let above = expected
        .links_from(switch)
        .iter()
        .find(|link| matches!(expected.device(link.target).kind, DeviceKind::RootPort | DeviceKind::Numa(_)));
    let ends = (switch, above.unwrap().target);
    let has = changed(&expected, ends, |link, _| Some((link.count, links::pcie(3, 16))));
    let report = differences(&has, &expected);
    let [pcie] = &found(&report, PCIE)[..] else { panic!("{:?}", report.findings) };
    assert!(pcie.contains("the way of gpu0, gpu1 to the CPU"), "{pcie}");
}

#[test]
fn nvlinks_name_the_neighbour() {
    let expected = preset("dgx-1-v100");
    let ends = (id(&expected, "gpu0"), id(&expected, "gpu4"));
    let report = differences(&expected.without(&[ends]), &expected);
    let links = found(&report, NVLINK);
    assert_eq!(links.len(), 2, "{links:?}");
    assert!(links[0].starts_with("gpu0 has ") && links[0].contains("to gpu4"), "{links:?}");
}

#[test]
fn a_slow_nic_is_not_another_nic() {
    let expected = preset("dgx-h100");
    let nics: Vec<DeviceId> = expected.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).collect();
    let with_rate = |gbit: u64| {
        let mut builder = FabricBuilder::new("slow");
        builder.append(&expected, |_, host| host.name.clone());
        if let DeviceKind::Nic(ports) = &mut builder.device_mut(nics[3]).kind {
            ports[0].rate = Rate::from_gbit(gbit);
        }
        builder.finish().unwrap()
    };
    let slow = found(&differences(&with_rate(200), &expected), NICS);
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert!(slow[0].starts_with("nic3 runs at 200 Gb/s instead of 400 Gb/s"), "{slow:?}");
    let report = differences(&with_rate(0), &expected);
    assert!(found(&report, NICS).is_empty(), "{:?}", report.findings);
    assert_eq!(report.uninspected[0].what, "the rate of nic3");
    assert!(found(&differences(&with_rate(800), &expected), NICS).is_empty());
}

#[test]
fn hidden_nvswitches_are_a_note() {
    let expected = preset("hgx-h100");
    let switches: Vec<DeviceId> =
        expected.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).collect();
    // A virtual machine shows one switch with all links.
    let mut builder = FabricBuilder::new("vm");
    let bare = without_devices(&expected, |id, _| switches[1..].contains(&id));
    builder.append(&bare, |_, host| host.name.clone());
    let bare_switch = bare.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).next().unwrap();
    let link = expected.links_from(switches[0])[0];
    let spec = builder.spec(expected.spec(&link).clone());
    for gpu in bare.gpus() {
        builder.connect(*gpu, bare_switch, 13, spec);
    }
    let report = differences(&builder.finish().unwrap(), &expected);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((finding.id, finding.severity), (SWITCHES, Severity::Note));
    // With fewer links, the switches are missing.
    let report = differences(&bare, &expected);
    let switches = report.findings.iter().find(|finding| finding.id == SWITCHES).unwrap();
    assert_eq!(switches.severity, Severity::Critical);
}

#[test]
fn other_numa_nodes_are_a_note() {
    let expected = preset("hgx-a100");
    let report = differences(&preset("hgx-h100"), &expected);
    let [numa] = &found(&report, NUMA)[..] else { panic!("{:?}", report.findings) };
    assert!(numa.contains("2 NUMA nodes instead of 8"), "{numa}");
}

#[test]
fn a_device_on_another_node_is_found() {
    let expected = preset("dgx-h100");
    let ports = slot(&expected, slot(&expected, expected.gpus()[0]).1);
    let nodes: Vec<DeviceId> = expected.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).collect();
    let port = ports.1;
    let moved = expected.with_links(|link, spec| {
        let is_it = (link.source == port && link.target == nodes[0])
            || (link.target == port && link.source == nodes[0]);
        (!is_it).then(|| (link.count, spec.clone()))
    });
    let mut builder = FabricBuilder::new("moved");
    builder.append(&moved, |_, host| host.name.clone());
    let spec = builder.spec(links::pcie(5, 16));
    builder.connect(port, nodes[1], 1, spec);
    let report = differences(&builder.finish().unwrap(), &expected);
    let [numa] = &found(&report, NUMA)[..] else { panic!("{:?}", report.findings) };
    assert!(numa.starts_with("gpu0, nic0 on another NUMA node"), "{numa}");
}

#[test]
fn without_a_driver_nvlinks_are_unknown() {
    let path = format!("{}/../../testdata/machines/hgx-h100.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let undriven: Vec<&str> = text.lines().filter(|line| !line.starts_with("nvml/")).collect();
    let recording: Recording = format!("{}\nnvml/reason = no driver\n", undriven.join("\n")).parse().unwrap();
    let report = differences(&probe(&recording, &recording).unwrap(), &preset("hgx-h100"));
    assert!(found(&report, NVLINK).is_empty(), "{:?}", report.findings);
    assert!(report.uninspected.iter().any(|one| one.id == NVLINK), "{:?}", report.uninspected);
}

#[test]
fn a_virtual_machine_does_not_show_its_pcie_links() {
    let path = format!("{}/../../testdata/machines/h200-vm.txt", env!("CARGO_MANIFEST_DIR"));
    let recording: Recording = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let report = differences(&probe(&recording, &recording).unwrap(), &preset("hgx-h200"));
    assert!(report.uninspected.iter().any(|one| one.id == PCIE), "{report:#?}");
    assert!(found(&report, GPUS)[0].contains("1 GPU instead of 8"), "{report:#?}");
}

#[test]
fn one_host_of_a_cluster_is_compared_with_a_host() {
    let expected = preset("2x dgx-h100");
    let report = expect(&preset("dgx-h100"), &expected);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.uninspected.len(), 1);
    assert_eq!(report.exit_code(), 3);
}

#[test]
fn a_probed_machine_compares_with_its_preset() {
    for (recording, name) in [("hgx-h100", "hgx-h100"), ("dgx-1-v100", "dgx-1-v100")] {
        let path = format!("{}/../../testdata/machines/{recording}.txt", env!("CARGO_MANIFEST_DIR"));
        let recording: Recording = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let fabric = probe(&recording, &recording).unwrap();
        let report = differences(&fabric, &preset(name));
        let wrong: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Note).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    }
}
