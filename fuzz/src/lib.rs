//! Checks that every target runs on a fabric it has read.

use weftlink_fabric::format::network::HostNetwork;
use weftlink_fabric::format::{dot, svg};
use weftlink_fabric::spec::HostSpec;
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{Fabric, Paths, resolve};

/// Larger fabrics are skipped, because their paths take too long.
const DEVICES_MAX: usize = 60;
const GPUS_MAX: usize = 6;

/// Computes everything of a fabric that can be computed, and checks that the results agree.
pub fn exercise(fabric: &Fabric) {
    if fabric.devices().len() > DEVICES_MAX || fabric.gpus().len() > GPUS_MAX {
        return;
    }
    let paths = Paths::of(fabric);
    let summary = Summary::of(&paths);
    assert!(!summary.sentence().is_empty());
    let pairs: u64 = summary.classes.iter().map(|class| class.pairs).sum();
    assert_eq!(pairs, (summary.gpus * summary.gpus.saturating_sub(1) / 2) as u64);
    if let Some(bisection) = summary.bisection {
        assert!(bisection.lower <= bisection.upper);
    }
    for from in fabric.device_ids() {
        for to in fabric.device_ids() {
            let route = paths.route(from, to);
            assert_eq!(route.stations.first(), Some(&vec![from]));
            assert_eq!(route.stations.last(), Some(&vec![to]));
        }
    }
    assert!(svg::svg(fabric).starts_with("<svg"));
    assert!(!dot::dot(fabric).is_empty());
}

/// Builds the fabrics of a network: alone, and with the type of its hosts in `spec`, behind `fuzz +`.
pub fn exercise_network(network: &HostNetwork, spec: &str) {
    let bare = network.bare("fuzz").expect("a network that was read is a fabric");
    exercise(&bare);
    // Larger fabrics have the same parts and take too long.
    if bare.devices().len() > DEVICES_MAX {
        return;
    }
    let host = resolve("2x-rtx4090").expect("a system of the catalog");
    let spec = HostSpec::parse(spec, "fuzz +".len()).expect("a valid spec");
    if let Ok(fabric) = network.with_host("fuzz", &host, &spec) {
        exercise(&fabric);
        let names = fabric.device_ids().map(|id| fabric.device_name(id));
        assert!(names.chain(fabric.notes().to_vec()).all(|name| !name.chars().any(char::is_control)));
    }
}
