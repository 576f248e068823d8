//! Random fabrics and specs survive a round trip through their text.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::{
    BusId, Cpu, Device, DeviceId, Gpu, GpuRank, HostId, Numa, PciClass, Port, Tier,
};
use weftlink_fabric::figure::{Basis, Figure, Nanoseconds};
use weftlink_fabric::format::document::{read_json, read_toml, write_json, write_toml};
use weftlink_fabric::link::Network;
use weftlink_fabric::rate::{Link, OneWay, Rate};
use weftlink_fabric::{ClusterSpec, DeviceKind, Fabric, FabricBuilder, LinkSpec};

fn text() -> impl Strategy<Value = Box<str>> {
    prop_oneof!["[a-z0-9]{0,8}", any::<String>()].prop_map(Into::into)
}

fn pairs() -> impl Strategy<Value = Vec<(Box<str>, Box<str>)>> {
    vec((text(), text()), 0..3)
}

/// Up to the largest rate that a document holds.
fn rate() -> impl Strategy<Value = Rate<Link, OneWay>> {
    prop_oneof![0..1_000_000_u64, 0..=1_000_000_000_000_000_u64].prop_map(Rate::from_bytes)
}

fn figure<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Figure<T>> {
    let basis = prop_oneof![Just(Basis::Nominal), Just(Basis::Effective), Just(Basis::Measured)];
    (value, basis, any::<String>(), any::<bool>()).prop_map(|(value, basis, source, checked)| Figure {
        value,
        basis,
        source: source.into(),
        checked,
    })
}

fn link_spec() -> impl Strategy<Value = LinkSpec> {
    let catalog = links::all();
    let latency = (0..=i64::MAX as u64).prop_map(Nanoseconds);
    (0..catalog.len(), option::of(figure(rate())), option::of(figure(rate())), option::of(figure(latency)))
        .prop_map(move |(kind, nominal, effective, latency)| LinkSpec {
            kind: catalog[kind].kind,
            nominal,
            effective,
            latency,
        })
}

fn port() -> impl Strategy<Value = Port> {
    let network = prop_oneof![
        Just(Network::InfiniBand),
        Just(Network::Roce),
        Just(Network::Efa),
        Just(Network::Slingshot),
        Just(Network::TcpX),
        Just(Network::TcpXo),
        Just(Network::Ethernet),
    ];
    (option::of(text()), option::of(network), rate(), pairs()).prop_map(|(name, network, rate, extra)| Port {
        name,
        network,
        rate,
        extra,
    })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let rank = (any::<Option<i32>>(), any::<Option<i32>>(), pairs()).prop_map(|(dev, rank, extra)| GpuRank {
        dev,
        rank,
        extra,
    });
    (option::of(0..gpus::GPUS.len()), any::<Option<u32>>(), vec(rank, 0..3))
        .prop_map(|(model, sm, ranks)| Gpu { model: model.map(|index| &gpus::GPUS[index]), sm, ranks })
}

fn numa() -> impl Strategy<Value = Numa> {
    let cpu = (option::of(text()), option::of(text()), any::<Option<u32>>(), any::<Option<u32>>());
    (any::<i32>(), cpu)
        .prop_map(|(id, (arch, vendor, family, model))| Numa { id, cpu: Cpu { arch, vendor, family, model } })
}

fn kind() -> impl Strategy<Value = DeviceKind> {
    prop_oneof![
        numa().prop_map(DeviceKind::Numa),
        gpu().prop_map(DeviceKind::Gpu),
        vec(port(), 0..3).prop_map(DeviceKind::Nic),
        any::<Option<u8>>().prop_map(|generation| DeviceKind::NvSwitch { generation }),
        Just(DeviceKind::RootPort),
        Just(DeviceKind::PcieSwitch),
        Just(DeviceKind::Storage),
        Just(DeviceKind::NetSwitch(Tier::Leaf)),
        Just(DeviceKind::NetSwitch(Tier::Spine)),
        Just(DeviceKind::PciFunction),
    ]
}

fn device(hosts: u32) -> impl Strategy<Value = Device> {
    let host = match hosts {
        0 => Just(None).boxed(),
        _ => option::of((0..hosts).prop_map(HostId)).boxed(),
    };
    let bus = (any::<u32>(), any::<u8>(), any::<u8>(), 0..16_u8);
    (
        host,
        kind(),
        option::of(bus.prop_map(|(domain, bus, device, function)| BusId::new(domain, bus, device, function))),
        option::of(any::<u32>().prop_map(PciClass)),
        option::of(text()),
        pairs(),
    )
        .prop_map(|(host, kind, bus, class, label, extra)| Device {
            host,
            ordinal: 0,
            kind,
            bus,
            class,
            label,
            extra,
        })
}

type Host = (Box<str>, Option<Box<str>>);
/// Two devices and a link type, modulo their number; parallel links; whether links lead back.
type Wire = (usize, usize, usize, u32, bool);

fn build(
    name: &str,
    notes: Vec<String>,
    hosts: Vec<Host>,
    devices: Vec<Device>,
    wires: Vec<Wire>,
    specs: Vec<LinkSpec>,
) -> Fabric {
    let mut builder = FabricBuilder::new(name);
    notes.into_iter().for_each(|note| builder.note(note));
    for (name, system) in hosts {
        builder.host(name, system.as_deref());
    }
    let count = devices.len();
    for device in devices {
        builder.add_device(device);
    }
    let specs: Vec<_> = specs.into_iter().map(|spec| builder.spec(spec)).collect();
    for (a, b, spec, parallel, back) in wires {
        if count < 2 || specs.is_empty() || a % count == b % count {
            continue;
        }
        let [a, b] = [a, b].map(|index| DeviceId((index % count) as u32));
        builder.link(a, b, parallel, specs[spec % specs.len()]);
        if back {
            builder.link(b, a, parallel, specs[spec % specs.len()]);
        }
    }
    builder.finish().unwrap()
}

fn fabric() -> impl Strategy<Value = Fabric> {
    let hosts = vec((text(), option::of(text())), 0..4).prop_map(|mut hosts| {
        let mut names = BTreeSet::from(["".into()]);
        hosts.retain(|(name, _)| names.insert(name.clone()));
        hosts
    });
    hosts.prop_flat_map(|hosts| {
        let devices = vec(device(hosts.len() as u32), 0..12);
        let wire = (any::<usize>(), any::<usize>(), any::<usize>(), 1..100_u32, any::<bool>());
        let more = (vec(wire, 0..24), vec(link_spec(), 0..5), vec(any::<String>(), 0..3));
        (any::<String>(), Just(hosts), devices, more).prop_map(
            |(name, hosts, devices, (wires, specs, notes))| build(&name, notes, hosts, devices, wires, specs),
        )
    })
}

fn spec() -> impl Strategy<Value = String> {
    let names: Vec<&str> = systems::all().map(|system| system.name).collect();
    let networks = ["", "+ 1x eth25", "+ 8x ndr", " +4x hdr", "+3xroce100"];
    let layouts = ["", ", leaf-spine", ",rail-optimised"];
    let tapers = ["", ", oversubscribed 2:1", ", oversubscribed 9:6"];
    let ports = ["", ", leaf-ports 30", ",leaf-ports 1024"];
    (1..4_u32, 0..names.len(), 0..5_usize, 0..3_usize, 0..3_usize, 0..3_usize).prop_map(
        move |(count, name, network, layout, taper, port)| {
            let (layout, taper, port) = (layouts[layout], tapers[taper], ports[port]);
            format!("{count}x  {} {}{layout}{taper}{port}", names[name], networks[network])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_fabric_reads_back(fabric in fabric()) {
        let toml = write_toml(&fabric).unwrap();
        let json = write_json(&fabric).unwrap();
        for again in [read_toml(toml.as_bytes()).unwrap(), read_json(json.as_bytes()).unwrap()] {
            prop_assert!(again == fabric, "{toml}");
            prop_assert_eq!(again.specs(), fabric.specs());
            prop_assert_eq!(again.name(), fabric.name());
            prop_assert_eq!(again.notes(), fabric.notes());
        }
    }

    #[test]
    fn any_spec_and_its_fabric_read_back(text in spec()) {
        // Options without a network, or a network for a system with NICs, are errors and skipped here.
        if let Ok(spec) = text.parse::<ClusterSpec>() {
            let printed = spec.to_string();
            let again: ClusterSpec = printed.parse().unwrap();
            prop_assert_eq!(again.to_string(), printed);
            prop_assert_eq!(&again, &spec);
            if let Ok(fabric) = spec.fabric() && fabric.gpus().len() < 100 {
                prop_assert!(read_toml(write_toml(&fabric).unwrap().as_bytes()).unwrap() == fabric);
            }
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = text.parse::<ClusterSpec>().map_err(|error| error.to_string());
        let _ = weftlink_fabric::resolve(&text).map_err(|error| error.to_string());
        let _ = read_toml(text.as_bytes());
        let _ = read_json(text.as_bytes());
    }
}
