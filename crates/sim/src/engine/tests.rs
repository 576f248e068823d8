mod disturbed;
mod jobs;

use weftlink_fabric::{Paths, resolve};
use weftlink_plan::algorithms::Algorithm;
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::{Collective, Recipe};

use super::{Load, Nominal, Outcome, run};

const COSTS: Nominal = Nominal { launch: Picoseconds(5_000_000), hop: Picoseconds(1_000_000) };

fn simulate(spec: &str, algorithm: Algorithm, collective: Collective, exact: bool) -> Outcome {
    let fabric = resolve(spec).unwrap();
    let ground = Placement::of(&fabric);
    let recipe: Recipe<'_> = algorithm.recipe(&collective, ground.layout()).unwrap();
    let multiple = if exact { recipe.outline().ranks } else { ground.layout().per_island().unwrap() };
    let load = Load { bytes: BYTES, tiles: if algorithm == Algorithm::Tree { 4 } else { 1 } };
    run(&recipe.partial(multiple), &Paths::of(&fabric), load, &COSTS).unwrap()
}

const BYTES: u64 = 1 << 30;

#[test]
fn a_ring_takes_the_time_of_its_hops_and_bytes() {
    let outcome = simulate("hgx-h100", Algorithm::Ring, Collective::AllReduce, true);
    // 14 steps of an eighth over 18 links of 25 GB/s, a hop of a microsecond each.
    let expected_us = 5.0 + 14.0 + 14.0 / 8.0 * BYTES as f64 / 450_000.0;
    let time_us = outcome.time.us();
    assert!((time_us / expected_us - 1.0).abs() < 0.01, "{time_us} us, expected {expected_us} us");
    let busiest =
        outcome.resources.iter().map(|resource| resource.moved / resource.capacity).fold(0.0, f64::max);
    assert!(busiest * 1e6 <= time_us, "a link is busy for {busiest} s");
}

#[test]
fn classes_take_as_long_as_whole_runs() {
    for algorithm in [Algorithm::Ring, Algorithm::Hierarchical, Algorithm::Tree] {
        for spec in ["4x hgx-h100 + 8x ndr", "3x hgx-a100 + 4x hdr, leaf-spine"] {
            let [all, classes] =
                [true, false].map(|exact| simulate(spec, algorithm, Collective::AllReduce, exact));
            let ratio = classes.time.0 as f64 / all.time.0 as f64;
            assert!((ratio - 1.0).abs() < 0.01, "{algorithm} on {spec}: {} and {}", classes.time, all.time);
            assert!(classes.steps <= all.steps);
        }
    }
    let [all, classes] = [true, false]
        .map(|exact| simulate("4x hgx-h100 + 8x ndr", Algorithm::Pairwise, Collective::AllToAll, exact));
    let ratio = classes.time.0 as f64 / all.time.0 as f64;
    assert!((ratio - 1.0).abs() < 0.01, "{} and {}", classes.time, all.time);
}
