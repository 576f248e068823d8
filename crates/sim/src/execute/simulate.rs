//! The simulation of a library's choice: on all islands or few, and of plans side by side the slowest.

use weftlink_fabric::Paths;
use weftlink_plan::Layout;
use weftlink_plan::algorithms::Algorithm;
use weftlink_plan::cost::Picoseconds;

use super::concurrent::TILES_MAX;
use super::costs::{LibraryCosts, Ports};
use super::few_islands::FewIslands;
use super::side_by_side::{along_rings, side_by_side};
use super::{ExecuteError, Runner, costs, is_regular, like, recipe};
use crate::engine::wires::Resource;
use crate::engine::{self, Conditions, Job, Load, Outcome, Spans};
use crate::library::Prediction;
use crate::setup::{Intra, Operation};

/// A call to simulate.
#[derive(Clone, Copy)]
pub(super) struct Simulated<'c> {
    pub(super) paths: &'c Paths<'c>,
    /// What the library chose for it.
    pub(super) chosen: &'c Prediction,
    pub(super) operation: Operation,
    pub(super) bytes: u64,
    pub(super) conditions: &'c Conditions,
}

impl Runner<'_> {
    /// Runs the plan of a choice on few islands that stand for all, or on all; `None` if there are too many ranks. Its steps on all islands
    /// are recorded in `spans`.
    pub(super) fn simulate(
        &self,
        call: Simulated<'_>,
        layout: &Layout,
        spans: Option<&mut Spans>,
    ) -> Result<Option<Outcome>, ExecuteError> {
        match (self.slowest(call, layout)?, spans) {
            (None, None) => Ok(None),
            (None, spans) => self.simulate_all(call, layout, spans),
            (Some((outcome, _)), None) => Ok(Some(outcome)),
            (Some((outcome, layout)), spans) => {
                self.simulate_all(call, &layout, spans)?;
                Ok(Some(outcome))
            }
        }
    }

    /// Of plans side by side, the slowest. Where all islands are alike, each has the same share of the links, and undisturbed all take as
    /// long as the first, which is simulated; then the slowest is the one whose time a disturbance multiplies by most.
    fn slowest(
        &self,
        call: Simulated<'_>,
        layout: &Layout,
    ) -> Result<Option<(Outcome, Layout)>, ExecuteError> {
        let undisturbed = call.conditions.undisturbed();
        let is_disturbed = *call.conditions != undisturbed;
        let are_alike = is_regular(call.paths, layout);
        let algorithm = like(call.chosen, call.operation, layout);
        // All trees and chains inside one island with a switch use the links of all GPUs.
        let is_switched = layout.islands.len() == 1 && self.setup.intra == Intra::NvSwitch;
        let plans = match is_switched || are_alike && !is_disturbed {
            true => vec![layout.clone()],
            false => side_by_side(layout, algorithm),
        };
        let chains = match self.setup.intra {
            Intra::NvSwitch | Intra::Nvl72 => Vec::new(),
            _ if is_disturbed && algorithm == Algorithm::Tree => along_rings(layout),
            _ => Vec::new(),
        };
        if chains.is_empty() && (plans.len() == 1 || !are_alike) {
            return self.slowest_of(call, &plans);
        }
        let calm = Simulated { conditions: &undisturbed, ..call };
        let usual = self.slowest_of(calm, if are_alike { &plans[..1] } else { &plans })?;
        let mut slowest: Option<(Outcome, Layout)> = None;
        // Chains in one island that follow its rings replace the one that follows the numbers of its ranks.
        let replaced = if layout.islands.len() == 1 && !chains.is_empty() { plans.len() } else { 0 };
        for (number, layout) in plans.iter().chain(&chains).enumerate().skip(replaced) {
            let Some(mut outcome) = self.simulate_one(call, layout)? else { return Ok(None) };
            let takes_as_long = match number {
                0 => false,
                _ => are_alike || number >= plans.len(),
            };
            if let Some((usual, _)) = usual.as_ref().filter(|_| takes_as_long) {
                let Some(alone) = self.simulate_one(calm, layout)? else { return Ok(None) };
                outcome = scaled(outcome, usual.time.0 as f64 / alone.time.0.max(1) as f64);
            }
            if slowest.as_ref().is_none_or(|(slowest, _)| slowest.time < outcome.time) {
                slowest = Some((outcome, layout.clone()));
            }
        }
        Ok(slowest)
    }

    /// The plan that takes longest, each simulated by itself.
    fn slowest_of(
        &self,
        call: Simulated<'_>,
        plans: &[Layout],
    ) -> Result<Option<(Outcome, Layout)>, ExecuteError> {
        let mut slowest: Option<(Outcome, &Layout)> = None;
        for layout in plans {
            let Some(outcome) = self.simulate_one(call, layout)? else { return Ok(None) };
            if slowest.as_ref().is_none_or(|(slowest, _)| slowest.time < outcome.time) {
                slowest = Some((outcome, layout));
            }
        }
        Ok(slowest.map(|(outcome, layout)| (outcome, layout.clone())))
    }

    /// Runs one plan on few islands, or on all; `None` if there are too many ranks.
    fn simulate_one(&self, call: Simulated<'_>, layout: &Layout) -> Result<Option<Outcome>, ExecuteError> {
        match self.simulate_few(call, layout)? {
            Some(outcome) => Ok(Some(outcome)),
            None => self.simulate_all(call, layout, None),
        }
    }

    /// Runs the plan of a choice on few islands; `None` if they cannot stand for all.
    fn simulate_few(&self, call: Simulated<'_>, layout: &Layout) -> Result<Option<Outcome>, ExecuteError> {
        let Simulated { paths, chosen, operation, conditions, .. } = call;
        let has_root = matches!(operation, Operation::Broadcast | Operation::Reduce);
        let few = FewIslands::of(paths, layout, like(chosen, operation, layout), has_root, conditions);
        let Some(few) = few.filter(|_| !self.has_counts()) else { return Ok(None) };
        let (costs, load) = self.priced(call, layout)?;
        let plan = |layout: &Layout| Ok(recipe(chosen, operation, layout)?.partial(layout.ranks()));
        few.run(plan, paths, load, &costs, conditions).map(Some)
    }

    /// Runs the plan of a choice on all islands, by classes if they are alike; `None` if there are too many ranks. Steps that are recorded
    /// are of few tiles.
    fn simulate_all(
        &self,
        call: Simulated<'_>,
        layout: &Layout,
        spans: Option<&mut Spans>,
    ) -> Result<Option<Outcome>, ExecuteError> {
        let Simulated { paths, chosen, operation, conditions, .. } = call;
        let simulated = match self.simulated(paths, layout, operation) {
            Some(simulated) if !self.needs_all_ranks(operation, conditions) => simulated,
            None if conditions.is_empty() && spans.is_none() => return Ok(None),
            _ => layout.ranks(),
        };
        let plan = recipe(chosen, operation, layout)?.partial(simulated);
        let (costs, load) = self.priced(call, layout)?;
        let all_tiles = conditions.are_constant() && spans.is_none();
        let tiles = if all_tiles { load.tiles } else { load.tiles.min(TILES_MAX) };
        let (load, volumes) = (Load { tiles, ..load }, self.volumes(&plan)?);
        let (volumes, start) = (volumes.as_ref(), Picoseconds(0));
        let job = Job { plan: &plan, gpus: None, load, volumes, costs: &costs, start };
        match spans {
            None => Ok(Some(engine::run_job(job, paths, conditions)?)),
            spans => Ok(engine::run_traced(&[job], paths, conditions, spans)?.into_iter().next()),
        }
    }

    /// The costs of a choice, and its share of the bytes.
    fn priced<'a>(
        &'a self,
        call: Simulated<'a>,
        layout: &Layout,
    ) -> Result<(LibraryCosts<'a>, Load), ExecuteError> {
        let Simulated { chosen, operation, bytes, .. } = call;
        let ports = Ports::of(&self.fabric, &self.machine);
        let channels = recipe(chosen, operation, layout)?.outline().channels.len();
        let call = (operation, bytes as f64);
        let costs = LibraryCosts::new(self.constants, &self.machine, ports, chosen, call, channels);
        let share = bytes as f64 / costs::identical_plans(&self.machine, &ports, chosen.algorithm, operation);
        let load = Load { bytes: (share.round() as u64).max(1), tiles: costs.tiles() };
        Ok((costs, load))
    }
}

/// The outcome of a run that takes `times` as long, on links as much slower.
fn scaled(outcome: Outcome, times: f64) -> Outcome {
    let slower = |resource: &Resource| Resource { capacity: resource.capacity / times, ..resource.clone() };
    Outcome {
        time: Picoseconds((outcome.time.0 as f64 * times).round() as u64),
        resources: outcome.resources.iter().map(slower).collect(),
        ..outcome
    }
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::Link;
    use weftlink_plan::cost::Placement;

    use super::*;
    use crate::constants::Constants;
    use crate::engine::Disturbance;
    use crate::execute::layout;
    use crate::library::predict_on;
    use crate::setup::{LibraryAlgorithm, Setup};

    /// More islands only make trees higher, rings longer and messages more.
    #[test]
    fn few_islands_stand_for_all() {
        let (constants, calm) = (Constants::shipped(), Conditions::default());
        let mut compared = 0;
        for (spec, algorithm) in [
            ("32x hgx-h100 + 8x ndr", Some(LibraryAlgorithm::NvlsTree)),
            ("25x hgx-h100 + 8x ndr, leaf-spine", Some(LibraryAlgorithm::Tree)),
            ("33x p4d", None),
            ("18x dgx-1-v100 + 4x edr", None),
        ] {
            let fabric = weftlink_fabric::resolve(spec).unwrap();
            let setup = Setup { algorithm, ..Setup::of(&fabric).unwrap() };
            let runner = Runner::on(&constants, setup, fabric.clone());
            let (ground, paths) = (Placement::with(&fabric, &constants), Paths::of(&fabric));
            use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
            for operation in [AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce] {
                for bytes in [4 << 10, 4 << 20, 256 << 20] {
                    let chosen = predict_on(&constants, &runner.machine, &runner.setup, operation, bytes);
                    let Some(chosen) = chosen else { continue };
                    let layout = layout(ground.layout(), &runner.setup, chosen.algorithm);
                    let call =
                        Simulated { paths: &paths, chosen: &chosen, operation, bytes, conditions: &calm };
                    let few = runner.simulate(call, &layout, None).unwrap().unwrap();
                    let all = runner.simulate_all(call, &layout, None).unwrap().unwrap();
                    let ratio = few.time.0 as f64 / all.time.0 as f64;
                    let what = format!("{spec} {operation:?} {:?} {bytes}: {ratio}", chosen.algorithm);
                    assert!((ratio - 1.0).abs() < 0.03, "{what}");
                    compared += u32::from(ratio != 1.0);
                }
            }
        }
        assert!(compared > 20, "only {compared} differ at all");
    }

    /// A disturbed island is among the few.
    #[test]
    fn few_islands_stand_for_all_that_are_disturbed() {
        let constants = Constants::shipped();
        let fabric = weftlink_fabric::resolve("17x hgx-h100 + 8x ndr").unwrap();
        let setup = Setup::of(&fabric).unwrap();
        let runner = Runner::on(&constants, setup, fabric.clone());
        let (ground, paths) = (Placement::with(&fabric, &constants), Paths::of(&fabric));
        let find = |name| fabric.find(name).unwrap();
        let link = (find("host5/nic3"), find("leaf3"));
        for disturbance in [
            Disturbance::Slow { link, fraction: 0.25 },
            Disturbance::Slow { link, fraction: 0.0 },
            Disturbance::Throttled { gpu: 91, fraction: 0.3 },
        ] {
            let conditions = Conditions::only(disturbance);
            for (operation, bytes) in [
                (Operation::AllReduce, 1 << 20),
                (Operation::AllReduce, 128 << 20),
                (Operation::AllGather, 64 << 20),
                (Operation::AllToAll, 64 << 20),
                (Operation::Broadcast, 16 << 20),
            ] {
                let chosen = runner.choice(operation, bytes).unwrap();
                let layout = layout(ground.layout(), &runner.setup, chosen.algorithm);
                let call =
                    Simulated { paths: &paths, chosen: &chosen, operation, bytes, conditions: &conditions };
                let few = runner.simulate(call, &layout, None).unwrap().unwrap();
                let calm = Conditions::default();
                let all = |layout: &Layout, conditions: &Conditions| {
                    let call = Simulated { conditions, ..call };
                    runner.simulate_all(call, layout, None).unwrap().unwrap().time.0 as f64
                };
                let each = side_by_side(&layout, like(&chosen, operation, &layout));
                let times = each.iter().map(|layout| all(layout, &conditions) / all(layout, &calm));
                let ratio = few.time.0 as f64 / (all(&layout, &calm) * times.fold(0.0, f64::max));
                let what = format!("{disturbance:?} {operation:?} {bytes} {:?}: {ratio}", chosen.algorithm);
                assert!((ratio - 1.0).abs() < 0.02, "{what}");
            }
        }
    }

    /// However many islands are disturbed, and wherever, those are among the few.
    #[test]
    fn every_disturbance_counts() {
        let constants = Constants::shipped();
        let on = |spec: &str| {
            let fabric = weftlink_fabric::resolve(spec).unwrap();
            let setup = Setup { algorithm: Some(LibraryAlgorithm::Ring), ..Setup::of(&fabric).unwrap() };
            Runner::on(&constants, setup, fabric)
        };
        let times = |runner: &Runner<'_>, disturbances: &[Disturbance]| {
            let conditions = Conditions { disturbances: disturbances.to_vec() };
            let time = |conditions: &Conditions| {
                let done =
                    runner.execute_with_conditions(Operation::AllReduce, 1 << 30, conditions, None).unwrap();
                done.time.0 as f64
            };
            time(&conditions) / time(&conditions.undisturbed())
        };
        // A host with two islands.
        let bridges = on("40x 4x-a100-pcie-bridge + 2x hdr");
        for gpu in 40..44 {
            let times = times(&bridges, &[Disturbance::Throttled { gpu, fraction: 0.1 }]);
            assert!(times > 2.0, "GPU {gpu}: {times}");
        }
        let cluster = on("40x hgx-h100 + 8x ndr");
        let slow = |host: u32, fraction: f64| {
            let find = |name: &str| cluster.fabric().find(name).unwrap();
            Disturbance::Slow { link: (find(&format!("host{host}/nic0")), find("leaf0")), fraction }
        };
        let mut many: Vec<Disturbance> = (1..6).map(|host| slow(host, 0.99)).collect();
        many.push(slow(30, 0.1));
        let one = times(&cluster, &[slow(30, 0.1)]);
        assert!(one > 1.2, "{one}");
        for _ in 0..2 {
            let all = times(&cluster, &many);
            assert!((all / one - 1.0).abs() < 0.05, "{all} instead of {one}");
            many.reverse();
        }
    }

    /// Of trees and chains through different NICs, one is simulated, but the slowest counts.
    #[test]
    fn every_nic_counts() {
        let constants = Constants::shipped();
        let fabric = weftlink_fabric::resolve("3x hgx-h100 + 8x ndr").unwrap();
        let find = |name: String| fabric.find(&name).unwrap();
        for (operation, algorithm) in [
            (Operation::AllReduce, LibraryAlgorithm::Tree),
            (Operation::AllReduce, LibraryAlgorithm::Ring),
            (Operation::Broadcast, LibraryAlgorithm::Ring),
        ] {
            let setup = Setup { algorithm: Some(algorithm), ..Setup::of(&fabric).unwrap() };
            let runner = Runner::on(&constants, setup, fabric.clone());
            for nic in 0..8 {
                let link = (find(format!("host1/nic{nic}")), find(format!("leaf{nic}")));
                let slow = Conditions::only(Disturbance::Slow { link, fraction: 0.1 });
                let time = |conditions| {
                    let done = runner.execute_with_conditions(operation, 64 << 20, conditions, None);
                    done.unwrap().time.0 as f64
                };
                let times = time(&slow) / time(&slow.undisturbed());
                assert!(times > 1.5, "{operation:?} by {algorithm:?} over nic{nic}: {times}");
            }
        }
    }

    /// Of chains inside islands, one is simulated, but a slow link between two GPUs counts in all that follow a ring.
    #[test]
    fn every_link_between_gpus_counts() {
        let constants = Constants::shipped();
        for (spec, least) in [
            ("dgx-1-v100", 3.0),
            ("dgx-1-p100", 3.0),
            ("4x-gh200", 3.0),
            ("2x dgx-1-v100 + 4x edr", 1.5),
            ("2x 4x-gh200 + 4x ndr", 1.5),
        ] {
            let fabric = weftlink_fabric::resolve(spec).unwrap();
            let setup = Setup { algorithm: Some(LibraryAlgorithm::Tree), ..Setup::of(&fabric).unwrap() };
            let runner = Runner::on(&constants, setup, fabric.clone());
            let first = fabric.device(fabric.gpus()[0]).host;
            let is_first = |link: &&Link| fabric.device(link.source).host == first;
            let links = fabric.links().iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
            for link in links.filter(is_first).filter(|link| link.source < link.target) {
                let link = (link.source, link.target);
                let slow = Conditions::only(Disturbance::Slow { link, fraction: 0.02 });
                let time = |conditions| {
                    let done =
                        runner.execute_with_conditions(Operation::AllReduce, 64 << 20, conditions, None);
                    done.unwrap().time.0 as f64
                };
                let times = time(&slow) / time(&slow.undisturbed());
                let (one, other) = (fabric.device_name(link.0), fabric.device_name(link.1));
                assert!(times > least, "{spec}, {one} to {other}: {times}");
            }
        }
    }

    /// Of plans side by side, the same one counts with and without a disturbance that has no effect.
    #[test]
    fn a_disturbance_without_effect_changes_nothing() {
        let constants = Constants::shipped();
        for spec in [
            "dgx-1-v100",
            "frontier-node",
            "2x 4x-gh200 + 4x ndr",
            "2x nd-mi300x-v5",
            "2x dgx-1-v100 + 4x edr",
        ] {
            let fabric = weftlink_fabric::resolve(spec).unwrap();
            let link = fabric.links().iter().find(|link| fabric.spec(link).kind.is_gpu_fabric()).unwrap();
            let link = (link.source, link.target);
            for (operation, algorithm) in [
                (Operation::AllReduce, LibraryAlgorithm::Tree),
                (Operation::Broadcast, LibraryAlgorithm::Ring),
            ] {
                let setup = Setup { algorithm: Some(algorithm), ..Setup::of(&fabric).unwrap() };
                let runner = Runner::on(&constants, setup, fabric.clone());
                for (bytes, fraction) in [(64 << 10, 0.9999), (16 << 20, 1.0)] {
                    let time = |conditions: &Conditions| {
                        let done = runner.execute_with_conditions(operation, bytes, conditions, None);
                        done.unwrap().time.0 as f64
                    };
                    let without_effect = Conditions::only(Disturbance::Slow { link, fraction });
                    let ratio = time(&without_effect) / time(&Conditions::default());
                    let what = format!("{spec}: {operation:?} of {bytes} B: {ratio}");
                    assert!((ratio - 1.0).abs() < 0.003, "{what}");
                }
            }
        }
    }
}
