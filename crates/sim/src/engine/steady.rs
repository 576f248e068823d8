//! Extrapolates runs with many tiles: once a pipeline is full, every further tile takes the same time.
//!
//! Compares the tiles of a shorter run. If the later ones take as long as the earlier ones, the run is extrapolated; otherwise all tiles are
//! simulated.

use weftlink_fabric::Paths;
use weftlink_plan::cost::Picoseconds;

use super::timeline::Timeline;
use super::wires::Resource;
use super::{Conditions, Job, Load, Outcome, SimError, jobs_fit};

/// Tiles of the shorter runs, multiples of four times the FIFO depths; the second is used where the first reaches no steady state.
const RUNS: [u32; 2] = [64, 256];
/// Minimum ratio of all tiles to those of the shorter run for extrapolation to pay.
const TIMES_MIN: u32 = 3;
/// Relative difference at which tile times count as equal: smaller than the accuracy required of the total.
const SAME: f64 = 2e-4;

/// The extrapolated outcome of a job with many tiles; `None` if it has few, or reaches no steady state.
pub(super) fn run(
    job: &Job<'_>,
    paths: &Paths<'_>,
    conditions: &Conditions,
) -> Result<Option<Outcome>, SimError> {
    for tiles in RUNS.into_iter().filter(|tiles| job.load.tiles / TIMES_MIN >= *tiles) {
        if let Some(outcome) = extrapolate(job, paths, conditions, tiles)? {
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}

fn extrapolate(
    job: &Job<'_>,
    paths: &Paths<'_>,
    conditions: &Conditions,
    tiles: u32,
) -> Result<Option<Outcome>, SimError> {
    let jobs = [Job { load: Load { tiles, ..job.load }, ..*job }];
    jobs_fit(&jobs, paths.fabric().gpus().len(), conditions)?;
    let timeline = Timeline::new(std::slice::from_ref(job), paths, conditions, None, tiles)?;
    let (few, ends) = timeline.run_by_tiles()?;
    // The last quarter has less and less company.
    let quarter = tiles as usize / 4;
    let each = |from: usize, to: usize| (ends[to - 1].0 - ends[from - 1].0) as f64 / (to - from) as f64;
    let (early, late) = (each(quarter, 2 * quarter), each(2 * quarter, 3 * quarter));
    if (early - late).abs() > late * SAME {
        return Ok(None);
    }
    let times = f64::from(job.load.tiles) / f64::from(tiles);
    let time = few.time.0 as f64 + late * f64::from(job.load.tiles - tiles);
    let scaled = |resource: Resource| Resource { moved: resource.moved * times, ..resource };
    Ok(Some(Outcome {
        time: Picoseconds(time.round() as u64),
        resources: few.resources.into_iter().map(scaled).collect(),
        steps: few.steps / u64::from(tiles) * u64::from(job.load.tiles),
        mode: few.mode,
    }))
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::{Fabric, resolve};
    use weftlink_plan::algorithms::Algorithm;
    use weftlink_plan::cost::Placement;
    use weftlink_plan::{Collective, Partial};

    use super::*;
    use crate::engine::{Nominal, run_jobs};

    const COSTS: Nominal = Nominal { launch: Picoseconds(5_000_000), hop: Picoseconds(1_000_000) };

    fn job<'a>(plan: &'a Partial, bytes: u64, tiles: u32) -> Job<'a> {
        Job {
            plan,
            gpus: None,
            load: Load { bytes, tiles },
            volumes: None,
            costs: &COSTS,
            start: Picoseconds(0),
        }
    }

    fn plan(fabric: &Fabric, algorithm: Algorithm, collective: Collective) -> Partial {
        let ground = Placement::of(fabric);
        algorithm.recipe(&collective, ground.layout()).unwrap().partial(8)
    }

    #[test]
    fn extrapolation_matches_a_full_run() {
        for (spec, algorithm, collective) in [
            ("2x hgx-h100 + 8x ndr", Algorithm::Tree, Collective::AllReduce),
            ("3x hgx-a100 + 4x hdr, leaf-spine", Algorithm::Tree, Collective::AllReduce),
            ("2x hgx-h100 + 8x ndr", Algorithm::NvlsTree, Collective::AllReduce),
            ("hgx-h100", Algorithm::Chain, Collective::Broadcast { root: 0 }),
        ] {
            let fabric = resolve(spec).unwrap();
            let paths = Paths::of(&fabric);
            let plan = plan(&fabric, algorithm, collective);
            let job = job(&plan, 1 << 26, 1000);
            let all = run_jobs(&[job], &paths, &Conditions::default()).unwrap().remove(0);
            let Some(few) = run(&job, &paths, &Conditions::default()).unwrap() else {
                panic!("{algorithm} on {spec}: no steady state")
            };
            let ratio = few.time.0 as f64 / all.time.0 as f64;
            assert!(
                (ratio - 1.0).abs() < 0.001,
                "{algorithm} on {spec}: {}, full run {}",
                few.time,
                all.time
            );
            assert_eq!(few.steps, all.steps);
            for (few, all) in few.resources.iter().zip(&all.resources) {
                assert!((few.moved - all.moved).abs() <= 1e-6 * all.moved);
            }
        }
    }
}
