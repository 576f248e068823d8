//! Clusters built from specs.

use weftlink_fabric::device::Tier;
use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, resolve};

fn cluster(spec: &str) -> Fabric {
    resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn switches(fabric: &Fabric, tier: Tier) -> Vec<DeviceId> {
    fabric.devices_where(|kind| *kind == DeviceKind::NetSwitch(tier)).collect()
}

/// The devices that links of a kind lead to, by name, with the number of links.
fn beside(fabric: &Fabric, name: &str, wanted: fn(LinkKind) -> bool) -> Vec<(String, u32)> {
    let id = fabric.find(name).unwrap_or_else(|| panic!("no {name}"));
    fabric
        .links_from(id)
        .iter()
        .filter(|link| wanted(fabric.spec(link).kind))
        .map(|link| (fabric.device_name(link.target), link.count))
        .collect()
}

fn is_network(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Network { .. })
}

fn is_pcie(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Pcie { .. })
}

fn named(pairs: &[(&str, u32)]) -> Vec<(String, u32)> {
    pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn a_pair_of_hgx_has_eight_rails() {
    let fabric = cluster("2x hgx-h100 + 8x ndr");
    assert_eq!(fabric.name(), "2x hgx-h100 + 8x ndr");
    assert_eq!(fabric.gpus().len(), 16);
    assert_eq!(fabric.hosts().iter().map(|host| &*host.name).collect::<Vec<_>>(), ["host0", "host1"]);
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 8);
    assert_eq!(switches(&fabric, Tier::Spine).len(), 1);
    for rail in 0..8 {
        let leaf = format!("leaf{rail}");
        for host in 0..2 {
            let nic = format!("host{host}/nic{rail}");
            assert_eq!(beside(&fabric, &nic, is_network), named(&[(&leaf, 1)]));
        }
        // Two cables down, so two up.
        let up = beside(&fabric, &leaf, is_network);
        assert_eq!(up.last(), Some(&("spine0".to_owned(), 2)));
    }
    let nic = fabric.find("host0/nic0").unwrap();
    let DeviceKind::Nic(ports) = &fabric.device(nic).kind else { panic!("not a NIC") };
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].network, Some(Network::InfiniBand));
    assert_eq!(ports[0].rate.gb(), 50.0);
}

#[test]
fn nics_are_next_to_their_gpus() {
    // Below the GPU's own PCIe switch.
    let fabric = cluster("2x hgx-h100 + 8x ndr");
    for gpu in 0..8 {
        let switch_of = |device: &str| {
            beside(&fabric, device, is_pcie).into_iter().find(|(name, _)| name.contains("/pcie"))
        };
        let (gpu, nic) = (format!("host1/gpu{gpu}"), format!("host1/nic{gpu}"));
        assert!(switch_of(&gpu).is_some());
        assert_eq!(switch_of(&gpu), switch_of(&nic), "{gpu} and {nic}");
    }
    // Four NICs for eight GPUs: one with each switch.
    let fabric = cluster("1x hgx-a100 + 4x hdr");
    for nic in 0..4 {
        let above = beside(&fabric, &format!("nic{nic}"), is_pcie);
        assert_eq!(above, named(&[(&format!("pcie{nic}"), 1)]));
    }
    // No switch: a root port of the GPU's NUMA node.
    let fabric = cluster("2x 2x-rtx4090 + 1x eth25");
    assert_eq!(beside(&fabric, "host1/nic0", is_pcie), named(&[("host1/port2", 1)]));
    assert_eq!(beside(&fabric, "host1/port2", is_pcie), named(&[("host1/numa0", 1), ("host1/nic0", 1)]));
}

#[test]
fn nic_slots_are_as_fast_as_the_port_needs_and_the_host_allows() {
    for (system, nic, network, slot) in [
        ("hgx-h100", "nic0", "eth25", "pcie3x8"),
        ("hgx-h100", "nic0", "edr", "pcie3x16"),
        ("hgx-h100", "nic0", "hdr", "pcie4x16"),
        ("hgx-h100", "nic0", "ndr", "pcie5x16"),
        // The host limits the slot. None with Gen6 is without NICs of its own.
        ("hgx-h100", "nic0", "xdr", "pcie5x16"),
        ("dgx-1-v100", "nic0", "ndr", "pcie3x16"),
    ] {
        let fabric = cluster(&format!("1x {system} + 1x {network}"));
        let nic = fabric.find(nic).unwrap();
        let kinds: Vec<String> =
            (fabric.links_from(nic).iter()).map(|link| fabric.spec(link).kind.id()).collect();
        assert_eq!(kinds, [slot, network], "{system}");
    }
}

#[test]
fn units_are_filled_and_oversubscription_reduces_uplinks() {
    // 32 hosts to a unit of 64-port leaves: 33 hosts make two units.
    let fabric = cluster("33x hgx-h100 + 2x ndr");
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 4);
    let count = |leaf: &str| beside(&fabric, leaf, is_network).last().map(|(_, count)| *count);
    assert_eq!((count("leaf0"), count("leaf1")), (Some(32), Some(32)));
    assert_eq!((count("leaf2"), count("leaf3")), (Some(1), Some(1)));
    // Two to one: 42 of 64 ports down, so one unit; 33 cables down get 17 up.
    let fabric = cluster("33x hgx-h100 + 2x ndr, oversubscribed 2:1");
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 2);
    assert_eq!(beside(&fabric, "leaf1", is_network).last(), Some(&("spine0".to_owned(), 17)));
    // An HDR leaf has 40 ports, so a unit has 20 hosts.
    assert_eq!(switches(&cluster("40x hgx-h100 + 8x hdr"), Tier::Leaf).len(), 16);
}

#[test]
fn leaf_spine_keeps_a_host_together() {
    let fabric = cluster("16x hgx-h100 + 8x hdr, leaf-spine");
    // 20 ports down take two hosts of eight NICs.
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 8);
    for nic in 0..8 {
        let leaf = |host| beside(&fabric, &format!("host{host}/nic{nic}"), is_network);
        assert_eq!(leaf(2), named(&[("leaf1", 1)]));
        assert_eq!(leaf(3), named(&[("leaf1", 1)]));
    }
    assert_eq!(beside(&fabric, "leaf7", is_network).last(), Some(&("spine0".to_owned(), 16)));
    // One leaf needs no spine.
    let fabric = cluster("4x hgx-h100 + 8x ndr, leaf-spine");
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 1);
    assert!(switches(&fabric, Tier::Spine).is_empty());
    let error = resolve("2x hgx-h100 + 8x ndr, leaf-spine, leaf-ports 8").unwrap_err();
    assert!(error.to_string().contains("raise `leaf-ports`"), "{error}");
}

#[test]
fn a_rack_has_many_hosts() {
    let fabric = cluster("2x gb200-nvl72 + 4x ndr");
    assert_eq!(fabric.gpus().len(), 144);
    assert_eq!(fabric.hosts().len(), 36);
    assert_eq!(fabric.hosts()[18].name, "rack1-host0");
    // Four rails, and 36 hosts need two units of them.
    assert_eq!(switches(&fabric, Tier::Leaf).len(), 8);
    assert_eq!(beside(&fabric, "rack1-host17/nic3", is_network), named(&[("leaf7", 1)]));
    let names: std::collections::BTreeSet<String> =
        fabric.device_ids().map(|id| fabric.device_name(id)).collect();
    assert_eq!(names.len(), fabric.devices().len());
}

#[test]
fn clusters_without_a_network_have_a_note() {
    let fabric = cluster("2x hgx-h100");
    assert!(fabric.notes().iter().any(|note| note.contains("+ 8x ndr")), "{:?}", fabric.notes());
    assert!(cluster("1x hgx-h100").notes().is_empty());
    assert_eq!(cluster("1x hgx-h100"), cluster("hgx-h100"));
}

#[test]
fn systems_with_their_own_nics_refuse_others() {
    for system in weftlink_fabric::catalog::systems::all() {
        let has_nics = (system.fabric().devices().iter()).any(|d| matches!(d.kind, DeviceKind::Nic(_)));
        let with_added = resolve(&format!("2x {} + 1x ndr", system.name));
        assert_eq!(with_added.is_err(), has_nics, "{}", system.name);
        if let Err(error) = with_added {
            assert!(error.to_string().contains("has its own NICs"), "{error}");
            let own = cluster(&format!("2x {}", system.name));
            assert!(!switches(&own, Tier::Leaf).is_empty(), "{}", system.name);
        }
    }
}

#[test]
fn clusters_above_the_limit_are_refused() {
    let error = resolve("25000x hgx-h100 + 64x ndr").unwrap_err().to_string();
    assert!(error.contains("devices; the limit is"), "{error}");
}

#[test]
fn unknown_names_get_suggestions() {
    for (text, expected) in [
        ("hgx-h10", "Did you mean `hgx-h100`"),
        ("2xhgx-h100", "`2x hgx-h100`"),
        ("2x-rtx4091", "Did you mean `2x-rtx4090`"),
        ("toaster", "2x hgx-h100 + 8x ndr"),
        ("", "2x hgx-h100 + 8x ndr"),
        ("2x hgx-h10", "Did you mean `hgx-h100`"),
    ] {
        let error = resolve(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// The benchmark `scale` measures how long it takes.
#[test]
fn nine_thousand_gpus_are_built() {
    let fabric = cluster("128x gb200-nvl72 + 4x ndr");
    assert_eq!(fabric.gpus().len(), 9_216);
    assert!(fabric.links().len() > 350_000);
}
