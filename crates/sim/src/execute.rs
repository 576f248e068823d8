//! What a library would do, executed: its choice as a plan, run by the [engine] on the setup's fabric.
//!
//! The closed form chooses, as libraries' own tuners do; what is charged for hops, links and lanes is the same. What the closed form
//! adds up, the engine finds by running: which links the data of all ranks passes, who shares them and who waits for whom.

mod charged;
mod messages;
mod others;
mod together;

use weftlink_fabric::{Fabric, FabricError, Paths};
use weftlink_plan::algorithms::{Algorithm, Impossible};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Collective, Layout, Plan, Recipe};

use crate::constants::Constants;
use crate::engine::{self, Load, Outcome, SimError};
use crate::estimate::Machine;
use crate::host::HostError;
use crate::library::{Prediction, predict_on};
use crate::setup::{Intra, LibraryAlgorithm, Operation, Setup};
use charged::{Charged, Lines};
pub use together::Tenant;

/// Messages that may be under way between two ranks: NCCL's `NCCL_STEPS`.
const SLOTS: u32 = 8;

/// Ranks that are run where no two islands are alike.
const RANKS_UNLIKE_MAX: u32 = 256;

/// A library's call cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// There is no such fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The library knows no way.
    #[error("{0} has no way to do this {1} there")]
    NoWay(&'static str, &'static str),
    /// The plan is not possible on the fabric.
    #[error("{0}")]
    Impossible(String),
    /// A program of MSCCL's cannot be run.
    #[error("the program: {0}")]
    Program(String),
    /// Cores cannot do it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It does not run there.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl From<Impossible> for ExecuteError {
    fn from(why: Impossible) -> Self {
        Self::Impossible(why.0)
    }
}

/// A call as it ran.
#[derive(Clone, Debug)]
pub struct Execution {
    /// What the library chose.
    pub chosen: Prediction,
    /// The algorithm as the library calls it.
    pub algorithm: &'static str,
    /// From the call until it is done, as a benchmark that makes many of them sees it.
    pub time: Picoseconds,
    /// What was passed on the way; nothing for copies.
    pub outcome: Option<Outcome>,
}

/// A setup, ready to execute calls.
pub struct Site<'s> {
    constants: &'s Constants,
    setup: &'s Setup,
    machine: Machine,
    fabric: Fabric,
    /// What MSCCL runs.
    program: Option<Plan>,
}

impl<'s> Site<'s> {
    /// Builds the setup's fabric.
    pub fn new(constants: &'s Constants, setup: &'s Setup) -> Result<Self, ExecuteError> {
        Ok(Self::on(constants, setup, setup.fabric()?))
    }

    /// On a fabric, of which the setup was [found](Setup::of).
    pub fn on(constants: &'s Constants, setup: &'s Setup, fabric: Fabric) -> Self {
        Self { constants, setup, machine: Machine::new(constants, setup), fabric, program: None }
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Executes calls of so many bytes, one after the other.
    pub fn execute(&self, calls: &[(Operation, u64)]) -> Result<Vec<Execution>, ExecuteError> {
        self.execute_each(calls).into_iter().collect()
    }

    /// The same, where some of the calls may be impossible.
    pub fn execute_each(&self, calls: &[(Operation, u64)]) -> Vec<Result<Execution, ExecuteError>> {
        let ground = Placement::of(&self.fabric);
        let paths = Paths::of(&self.fabric);
        calls.iter().map(|(operation, bytes)| self.call(&ground, &paths, *operation, *bytes)).collect()
    }

    fn call(
        &self,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        operation: Operation,
        bytes: u64,
    ) -> Result<Execution, ExecuteError> {
        if let Some(done) = self.other(ground, paths, operation, bytes)? {
            return Ok(done);
        }
        let chosen = predict_on(self.constants, &self.machine, self.setup, operation, bytes)
            .ok_or(ExecuteError::NoWay(self.setup.library.name(), operation.name()))?;
        if operation.is_copy() {
            let (algorithm, time) = (chosen.algorithm.name(), picoseconds(chosen.estimate.total_us()));
            return Ok(Execution { chosen, algorithm, time, outcome: None });
        }
        // Told to let switches sum between islands too, a library does so with trees.
        let chosen = match chosen.algorithm {
            LibraryAlgorithm::Nvls if self.machine.islands > 1 && operation == Operation::AllReduce => {
                Prediction { algorithm: LibraryAlgorithm::NvlsTree, ..chosen }
            }
            _ => chosen,
        };
        let layout = layout(ground.layout(), self.setup, chosen.algorithm);
        let recipe = recipe(chosen.algorithm, chosen.protocol, operation, &layout)?
            .with_protocol(chosen.protocol)
            .with_depth_of(SLOTS);
        // Islands that differ have no classes, and all steps of many ranks take too long: the closed form answers.
        if layout.per_island().is_none() && layout.ranks() > RANKS_UNLIKE_MAX {
            let time = picoseconds(chosen.estimate.total_us());
            return Ok(Execution { chosen, algorithm: chosen.algorithm.name(), time, outcome: None });
        }
        let per_island = layout.per_island().unwrap_or(layout.ranks());
        let plan = recipe.partial(per_island);
        let lines = Lines::of(&self.fabric, &self.machine);
        let charged =
            Charged::new(self.constants, &self.machine, lines, &chosen, operation, bytes as f64, &plan);
        let share = bytes as f64 / charged::alike(&self.machine, &lines, chosen.algorithm, operation);
        let load = Load { bytes: (share.round() as u64).max(1), tiles: charged.tiles() };
        let outcome = engine::run(&plan, paths, load, &charged)?;
        let time = picoseconds(chosen.estimate.with_device(outcome.time.0 as f64 / 1e6));
        Ok(Execution { chosen, algorithm: chosen.algorithm.name(), time, outcome: Some(outcome) })
    }
}

/// The layout as a library sees it: chains inside nodes for trees; and rings across meshes, of which one begins at every GPU and no two
/// share a link.
fn layout(found: &Layout, setup: &Setup, algorithm: LibraryAlgorithm) -> Layout {
    let mut layout = found.clone();
    if algorithm == LibraryAlgorithm::Tree {
        layout.switched = false;
        layout.trees.clear();
    }
    let is_mesh = matches!(setup.intra, Intra::NvLinkMesh | Intra::Xgmi);
    if let (true, true, Some(per_island)) = (is_mesh, layout.islands.len() > 1, layout.per_island()) {
        let zigzag = |start: u32| {
            let along = |step: u32| if step % 2 == 1 { step / 2 + 1 } else { per_island - step / 2 };
            (0..per_island).map(move |step| (start + along(step)) % per_island)
        };
        let around = |start: u32| {
            let island =
                |members: &Vec<u32>| zigzag(start).map(|at| members[at as usize]).collect::<Vec<_>>();
            layout.islands.iter().flat_map(island).collect()
        };
        layout.rings = (0..per_island).map(around).collect();
    }
    layout
}

fn recipe(
    algorithm: LibraryAlgorithm,
    protocol: Protocol,
    operation: Operation,
    layout: &Layout,
) -> Result<Recipe<'_>, Impossible> {
    let collective = match operation {
        Operation::AllReduce => Collective::AllReduce,
        Operation::AllGather => Collective::AllGather,
        Operation::ReduceScatter => Collective::ReduceScatter,
        Operation::Broadcast => Collective::Broadcast { root: 0 },
        Operation::Reduce => Collective::Reduce { root: 0 },
        Operation::AllToAll => return messages::all_to_all(layout),
        Operation::SendReceive | Operation::CopyOneWay | Operation::CopyBothWays => {
            return Ok(messages::around(layout));
        }
    };
    let rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
    let parts = matches!(operation, Operation::AllGather | Operation::ReduceScatter);
    let algorithm = match algorithm {
        LibraryAlgorithm::Ring | LibraryAlgorithm::Direct if rooted => Algorithm::Chain,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Direct => Algorithm::Ring,
        // Parts go at a ring's bandwidth.
        LibraryAlgorithm::Nvls if parts => Algorithm::Ring,
        LibraryAlgorithm::Tree => Algorithm::Tree,
        LibraryAlgorithm::Nvls => Algorithm::Nvls,
        LibraryAlgorithm::NvlsTree => Algorithm::NvlsTree,
        // What goes on inside is in the shadow of the NICs: chains differ in what they get of them.
        LibraryAlgorithm::CollnetDirect | LibraryAlgorithm::CollnetChain => Algorithm::CollnetDirect,
        LibraryAlgorithm::Pat => Algorithm::Pat,
        LibraryAlgorithm::Symmetric => match (protocol, operation) {
            (Protocol::Ll, _) => Algorithm::ExchangeLl,
            (_, Operation::AllReduce) if layout.switched => Algorithm::Nvls,
            (_, Operation::ReduceScatter) => Algorithm::OneShot,
            _ => Algorithm::TwoShot,
        },
    };
    algorithm.recipe(&collective, layout)
}

fn picoseconds(us: f64) -> Picoseconds {
    Picoseconds((us * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gpu;
    use crate::setup::Network;

    /// What is executed and what is added up are the same charges: they may differ by what only a run finds out.
    #[test]
    fn runs_agree_with_the_closed_form() {
        let constants = Constants::shipped();
        let node = Setup { gpus_per_node: 8, ..Setup::pair(gpu("h100"), Intra::NvSwitch) };
        let cluster = Setup {
            nodes: 4,
            network: Network::InfiniBand,
            nics_per_node: 8,
            nic_gbits_per_second: 400.0,
            ..node.clone()
        };
        let cube = Setup { gpus_per_node: 8, ..Setup::pair(gpu("v100"), Intra::CubeMesh) };
        let mesh = Setup { gpus_per_node: 4, ..Setup::pair(gpu("a100"), Intra::NvLinkMesh) };
        for (setup, algorithm, operation, within) in [
            (&node, LibraryAlgorithm::Ring, Operation::AllReduce, 0.1),
            (&node, LibraryAlgorithm::Ring, Operation::AllGather, 0.1),
            (&cube, LibraryAlgorithm::Ring, Operation::AllReduce, 0.1),
            (&mesh, LibraryAlgorithm::Ring, Operation::AllReduce, 0.1),
            (&node, LibraryAlgorithm::Nvls, Operation::AllReduce, 0.1),
            (&cluster, LibraryAlgorithm::Ring, Operation::AllReduce, 0.1),
            (&cluster, LibraryAlgorithm::Tree, Operation::AllReduce, 0.1),
        ] {
            let setup = Setup { algorithm: Some(algorithm), ..setup.clone() };
            let site = Site::new(&constants, &setup).unwrap();
            for bytes in [1 << 10, 1 << 20, 1 << 28] {
                let done = &site.execute(&[(operation, bytes)]).unwrap()[0];
                let (ran, added) = (done.time.0 as f64 / 1e6, done.chosen.estimate.total_us());
                let what = format!(
                    "{} {algorithm:?} {operation:?} {bytes}: {ran:.1} us, {added:.1} us",
                    setup.name()
                );
                assert!((ran / added - 1.0).abs() <= within, "{what}");
            }
        }
    }
}
