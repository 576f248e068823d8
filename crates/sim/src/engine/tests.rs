use std::time::Instant;

use weftlink_fabric::{LinkKind, Paths, resolve};
use weftlink_plan::algorithms::Algorithm;
use weftlink_plan::cost::{Ground, Picoseconds};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Collective, Recipe};

use super::wires::Wire;
use super::{Charges, Load, Outcome, Sent, run};

/// One nanosecond a hop, links as fast as the fabric says.
struct Plain;

impl Charges for Plain {
    fn launch(&self) -> Picoseconds {
        Picoseconds(5_000_000)
    }
    fn hop(&self, _wire: &Wire, _protocol: Option<Protocol>, _sent: Sent) -> Picoseconds {
        Picoseconds(1_000_000)
    }
    fn message(&self, _wire: &Wire, _protocol: Protocol) -> Picoseconds {
        Picoseconds(0)
    }
    fn lane(&self, _wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        f64::INFINITY
    }
    fn on_the_wire(&self, _wire: &Wire, _protocol: Option<Protocol>, bytes: f64) -> f64 {
        bytes
    }
    fn capacity(&self, _kind: LinkKind, bytes_per_second: f64) -> f64 {
        bytes_per_second
    }
    fn multicast(&self, _kind: LinkKind) -> f64 {
        1.0
    }
    fn copy(&self) -> f64 {
        1e12
    }
}

fn simulate(spec: &str, algorithm: Algorithm, collective: Collective, load: Load, exact: bool) -> Outcome {
    let fabric = resolve(spec).unwrap();
    let start = Instant::now();
    let ground = Ground::of(&fabric);
    let recipe: Recipe<'_> = algorithm.recipe(&collective, ground.layout()).unwrap();
    let per = ground.layout().per_island().unwrap();
    let multiple = if exact { recipe.outline().ranks } else { per };
    let partial = recipe.partial(multiple);
    let paths = Paths::of(&fabric);
    let prepared = start.elapsed();
    let outcome = run(&partial, &paths, load, &Plain).unwrap();
    eprintln!(
        "{spec} {algorithm:?} exact {exact}: {} {} steps, {} ranks, rings {}, prepared {prepared:?} all {:?}",
        outcome.time,
        outcome.steps,
        partial.classes().representatives().len(),
        ground.layout().rings.len(),
        start.elapsed()
    );
    outcome
}

#[test]
fn shows() {
    let load = Load { bytes: 1 << 30, tiles: 1 };
    simulate("hgx-h100", Algorithm::Ring, Collective::AllReduce, load, true);
    for spec in ["4x hgx-h100 + 8x ndr", "16x hgx-h100 + 8x ndr"] {
        for algorithm in [Algorithm::Ring, Algorithm::Hierarchical, Algorithm::Tree] {
            simulate(spec, algorithm, Collective::AllReduce, load, true);
            simulate(spec, algorithm, Collective::AllReduce, load, false);
        }
    }
}
