//! Checks that every target runs on a fabric it has read.

use weftlink_fabric::format::{dot, svg};
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{Fabric, Paths};

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
