//! Disturbed runs: by classes they give the same result as whole.

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind};

use weftlink_plan::Layout;

use super::*;
use crate::engine::{Conditions, Disturbance, Mode, SimError, run_with};

const FABRICS: [&str; 2] = ["4x hgx-h100 + 8x ndr", "4x hgx-a100 + 4x hdr, leaf-spine"];

/// The link from the n-th NIC to its switch.
fn nic_link(fabric: &Fabric, number: usize) -> (DeviceId, DeviceId) {
    let nic = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_)));
    let cable = |id: DeviceId| {
        let links = fabric.links_from(id).iter();
        links
            .filter(|link| matches!(fabric.spec(link).kind, LinkKind::Network { .. }))
            .map(|link| link.target)
            .next()
    };
    nic.filter_map(|id| Some((id, cable(id)?))).nth(number).unwrap()
}

/// The links of a GPU to its switches.
fn port(fabric: &Fabric, gpu: u32) -> Vec<(DeviceId, DeviceId)> {
    let id = fabric.gpus()[gpu as usize];
    let links = fabric.links_from(id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
    links.map(|link| (id, link.target)).collect()
}

fn slow(links: &[(DeviceId, DeviceId)], fraction: f64) -> Conditions {
    let slow = |link: &(DeviceId, DeviceId)| Disturbance::Slow { link: *link, fraction };
    Conditions { disturbances: links.iter().map(slow).collect() }
}

fn delayed(rank: u32, step: u64, by_us: u64) -> Conditions {
    Conditions::only(Disturbance::Delayed { job: 0, rank, lane: 0, step, by: Picoseconds(by_us * 1_000_000) })
}

fn disturbances(fabric: &Fabric) -> Vec<(&'static str, Conditions)> {
    let flapping = Disturbance::Flapping {
        link: nic_link(fabric, 9),
        period: Picoseconds(1_000_000_000),
        down: Picoseconds(250_000_000),
    };
    vec![
        ("a slow NIC", slow(&[nic_link(fabric, 9)], 0.5)),
        ("a slow port", slow(&port(fabric, 13), 0.2)),
        ("a slow link inside", slow(&port(fabric, 13)[..1], 0.5)),
        ("a throttled GPU", Conditions::only(Disturbance::Throttled { gpu: 21, fraction: 0.4 })),
        ("an early delay", delayed(10, 1, 2_000)),
        ("a late delay", delayed(26, 9, 2_000)),
        ("a long early delay", delayed(10, 1, 5_000)),
        ("a long late delay", delayed(26, 9, 5_000)),
        ("a flapping NIC", Conditions::only(flapping)),
    ]
}

fn partly(recipe: &Recipe<'_>, multiple: u32, paths: &Paths<'_>, conditions: &Conditions) -> Outcome {
    run_with(&recipe.partial(multiple), paths, load(recipe), &COSTS, conditions).unwrap()
}

fn load(recipe: &Recipe<'_>) -> Load {
    Load { bytes: BYTES, tiles: if recipe.outline().name == "tree" { 16 } else { 1 } }
}

/// Rings and hierarchies wait for their slowest rank everywhere, so running them by classes is accurate under any disturbance.
#[test]
fn disturbed_classes_match_whole_runs() {
    let mut wrong = Vec::new();
    for spec in FABRICS {
        let fabric = resolve(spec).unwrap();
        let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
        for algorithm in [Algorithm::Ring, Algorithm::Hierarchical] {
            let recipe = algorithm.recipe(&Collective::AllReduce, ground.layout()).unwrap();
            for (what, conditions) in disturbances(&fabric) {
                let [whole, classes] = [32, 8].map(|multiple| partly(&recipe, multiple, &paths, &conditions));
                assert_eq!((whole.mode, classes.mode), (Mode::Whole, Mode::Classes));
                // A rank delayed by more than a network step finds links free that its class would share.
                let within = if what.contains("delay") { 0.05 } else { 0.01 };
                if (classes.time.0 as f64 / whole.time.0 as f64 - 1.0).abs() > within {
                    wrong
                        .push(format!("{algorithm}, {spec}, {what}: {}, whole {}", classes.time, whole.time));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Where ranks have many peers, classes cannot model a late rank; run whole, such plans never gain from a disturbance.
#[test]
fn disturbances_do_not_speed_up_whole_runs() {
    for spec in FABRICS {
        let fabric = resolve(spec).unwrap();
        let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
        for (algorithm, collective) in
            [(Algorithm::Tree, Collective::AllReduce), (Algorithm::Pairwise, Collective::AllToAll)]
        {
            let recipe = algorithm.recipe(&collective, ground.layout()).unwrap();
            let calm = partly(&recipe, 32, &paths, &Conditions::default());
            for (what, conditions) in disturbances(&fabric) {
                let done = partly(&recipe, 32, &paths, &conditions);
                assert_eq!(done.mode, Mode::Whole);
                assert!(
                    done.time >= calm.time || what.contains("slow link inside"),
                    "{algorithm}, {spec}, {what}"
                );
            }
        }
    }
}

fn ring(spec: &str, conditions: impl Fn(&Fabric) -> Conditions) -> f64 {
    let fabric = resolve(spec).unwrap();
    let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
    let recipe = Algorithm::Ring.recipe(&Collective::AllReduce, ground.layout()).unwrap();
    let ranks = recipe.outline().ranks;
    let done = run_with(&recipe.partial(ranks), &paths, load(&recipe), &COSTS, &conditions(&fabric)).unwrap();
    done.time.us()
}

#[test]
fn rings_wait_for_the_latest_step_and_the_slowest_link() {
    let spec = "4x hgx-h100 + 8x ndr";
    let calm = ring(spec, |_| Conditions::default());
    let node = ring("hgx-h100", |_| Conditions::default());
    let fabric = resolve("hgx-h100").unwrap();
    let one_lane = Layout::flat(8, 1);
    let recipe = Algorithm::Ring.recipe(&Collective::AllReduce, &one_lane).unwrap();
    let [on_time, late] = [Conditions::default(), delayed(3, 2, 700)]
        .map(|conditions| partly(&recipe, 8, &Paths::of(&fabric), &conditions).time.0);
    assert_eq!(late, on_time + 700_000_000);
    let half = ring(spec, |fabric| slow(&[nic_link(fabric, 9)], 0.5));
    // Less than 2, because the ring's NVLinks keep their rate.
    assert!((1.8..2.0).contains(&(half / calm)), "{half} us, {calm} us without");
    let flapping = ring(spec, |fabric| {
        let (period, down) = (Picoseconds(100_000_000), Picoseconds(25_000_000));
        Conditions::only(Disturbance::Flapping { link: nic_link(fabric, 9), period, down })
    });
    // A link that is down a quarter of the time makes the ring a third longer.
    assert!((flapping / calm - 4.0 / 3.0).abs() < 0.05, "{flapping} us, {calm} us without");
    let throttled = ring("hgx-h100", |_| Conditions::only(Disturbance::Throttled { gpu: 5, fraction: 0.25 }));
    assert!((throttled / node - 4.0).abs() < 0.1, "{throttled} us, {node} us without");
}

#[test]
fn routes_avoid_a_missing_link() {
    let spec = "2x hgx-h100 + 8x ndr";
    let calm = ring(spec, |_| Conditions::default());
    let missing = ring(spec, |fabric| slow(&[nic_link(fabric, 3)], 0.0));
    assert!(missing > 1.5 * calm, "another NIC carries it: {missing} us, {calm} us without");
    let fabric = resolve("hgx-h100").unwrap();
    let paths = Paths::of(&fabric);
    let ground = Placement::of(&fabric);
    let recipe = Algorithm::Ring.recipe(&Collective::AllReduce, ground.layout()).unwrap();
    let whole = recipe.partial(8);
    let cut_off = run_with(&whole, &paths, load(&recipe), &COSTS, &slow(&port(&fabric, 3), 0.0));
    // Without NVLink the GPU uses PCIe.
    let by_nvlink = run_with(&whole, &paths, load(&recipe), &COSTS, &Conditions::default()).unwrap();
    assert!(cut_off.unwrap().time > by_nvlink.time);
}

#[test]
fn unreachable_ranks_and_invalid_conditions_are_refused() {
    let fabric = resolve("2x hgx-h100 + 1x ndr").unwrap();
    let paths = Paths::of(&fabric);
    let ground = Placement::of(&fabric);
    let recipe = Algorithm::Ring.recipe(&Collective::AllReduce, ground.layout()).unwrap();
    let whole = |conditions: &Conditions| {
        run_with(&recipe.partial(16), &paths, load(&recipe), &COSTS, conditions).unwrap_err()
    };
    let cable = nic_link(&fabric, 0);
    assert!(matches!(whole(&slow(&[cable], 0.0)), SimError::Unreachable(_)));
    let by_classes = run_with(&recipe.partial(8), &paths, load(&recipe), &COSTS, &slow(&[cable], 0.0));
    assert!(matches!(by_classes, Err(SimError::Conditions(_))));
    let second = Picoseconds(1_000_000_000_000);
    for conditions in [
        slow(&[cable], 1.5),
        slow(&[cable], f64::NAN),
        slow(&[(cable.0, cable.0)], 0.5),
        slow(&[(DeviceId(u32::MAX), cable.0)], 0.5),
        delayed(16, 0, 1),
        delayed(0, 1 << 40, 1),
        Conditions::only(Disturbance::Throttled { gpu: 16, fraction: 0.5 }),
        Conditions::only(Disturbance::Throttled { gpu: 0, fraction: 0.0 }),
        Conditions::only(Disturbance::Flapping { link: cable, period: second, down: second }),
        Conditions::only(Disturbance::Flapping { link: cable, period: Picoseconds(9), down: Picoseconds(1) }),
    ] {
        assert!(matches!(whole(&conditions), SimError::Conditions(_)), "{conditions:?}");
    }
}
