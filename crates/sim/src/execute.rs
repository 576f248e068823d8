//! Executes a library's choice: the [engine](crate::engine) runs it as a plan on the setup's fabric.
//!
//! The closed form makes the choice, as libraries' own tuners do, with the same costs for hops, links and lanes. The engine then finds by
//! simulation what the closed form only sums up: which links the data of all ranks crosses, how they are shared and where ranks wait.

mod concurrent;
mod costs;
mod few_islands;
mod messages;
mod other_libraries;
mod side_by_side;
mod simulate;
mod weft;

use weftlink_fabric::{Fabric, FabricError, LinkKind, Paths};
use weftlink_plan::algorithms::{Algorithm, Impossible};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Collective, Layout, Partial, Recipe, Verified};

use crate::constants::Constants;
use crate::corrections::{self, Corrections};
use crate::engine::{Conditions, Outcome, SimError, Spans, Volumes};
use crate::estimate::Machine;
use crate::host::HostError;
use crate::library::{Prediction, predict_on};
use crate::setup::{Intra, Library, LibraryAlgorithm, Operation, Setup};
pub use concurrent::Tenant;
pub(crate) use other_libraries::operation_of;
use simulate::Simulated;
pub(crate) use weft::closed_forms_of_weft;

/// Messages in flight between two ranks: NCCL's `NCCL_STEPS`.
const SLOTS: u32 = 8;

/// Largest number of ranks that are all simulated, of which each exchanges data with few others, or with all.
const RANKS_WHOLE_MAX: u32 = 512;
const RANKS_WHOLE_ALL_TO_ALL_MAX: u32 = 128;

/// Why a library's call cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The fabric cannot be built.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The library has no algorithm for the call.
    #[error("{library} cannot run {} on this fabric{}", .operation.name().replace('_', "-"), with(*.algorithm, *.protocol))]
    Unsupported {
        /// The library.
        library: &'static str,
        /// The operation.
        operation: Operation,
        /// The algorithm that its settings force.
        algorithm: Option<LibraryAlgorithm>,
        /// The protocol that its settings force.
        protocol: Option<Protocol>,
    },
    /// The plan is impossible on the fabric.
    #[error("{0}")]
    Impossible(String),
    /// An MSCCL program cannot be run.
    #[error("MSCCL program: {0}")]
    Program(String),
    /// A plan cannot be run.
    #[error("plan {name:?}: {why}")]
    Plan {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// The call cannot be executed between cores.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The simulation failed.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl ExecuteError {
    /// Whether the arguments are wrong; otherwise the simulation failed.
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::Unsupported { .. }
                | Self::Impossible(_)
                | Self::Program(_)
                | Self::Plan { .. }
                | Self::Host(_)
                | Self::Sim(SimError::Conditions(_) | SimError::Jobs(_))
        )
    }

    fn unsupported(setup: &Setup, operation: Operation) -> Self {
        let (algorithm, protocol) = (setup.algorithm, setup.protocol);
        Self::Unsupported { library: setup.library.name(), operation, algorithm, protocol }
    }
}

/// The settings that rule all algorithms out, and what the algorithm is for.
fn with(algorithm: Option<LibraryAlgorithm>, protocol: Option<Protocol>) -> String {
    use LibraryAlgorithm as A;
    let needs = match algorithm {
        Some(A::Tree) => "; Tree is for all-reduce",
        Some(A::Nvls | A::NvlsTree) => "; it needs NVSwitches that reduce (NVLink SHARP, since Hopper)",
        Some(A::CollnetDirect | A::CollnetChain) => "; it is for all-reduce between hosts",
        Some(A::Pat) => "; PAT is for all-gather and reduce-scatter with one GPU per host",
        Some(A::Symmetric) => {
            "; it is for all-reduce, all-gather and reduce-scatter inside one NVLink domain"
        }
        _ => "; choose another library, algorithm or protocol",
    };
    let algorithm = algorithm.map_or_else(String::new, |algorithm| format!(" with {}", algorithm.name()));
    let protocol = protocol.map_or_else(String::new, |protocol| format!(" over {protocol}"));
    format!("{algorithm}{protocol}{needs}")
}

impl From<Impossible> for ExecuteError {
    fn from(why: Impossible) -> Self {
        Self::Impossible(why.0)
    }
}

/// A simulated call.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The library's choice.
    pub chosen: Prediction,
    /// The library's name for the algorithm.
    pub algorithm: &'static str,
    /// Time per call, as measured by a benchmark that makes many calls.
    pub time: Picoseconds,
    /// By how much the [correction](crate::corrections) of a calibration multiplied the time; 1 without one.
    pub correction: f64,
    /// The simulation's outcome; `None` for calls that are not simulated, such as copies.
    pub outcome: Option<Outcome>,
}

/// Executes calls on a setup.
pub struct Runner<'s> {
    constants: &'s Constants,
    setup: Setup,
    machine: Machine,
    fabric: Fabric,
    /// What a calibration says about collectives that were measured.
    corrections: Option<&'s Corrections>,
    /// The lengths of blocks, relative to each other, if they may differ.
    counts: Option<Vec<u64>>,
    /// The program that MSCCL runs, or the plan that Weft runs in place of its own choice.
    program: Option<Verified>,
}

impl<'s> Runner<'s> {
    /// Builds the fabric of a row of measurements.
    pub fn new(constants: &'s Constants, row: &Setup) -> Result<Self, ExecuteError> {
        let fabric = row.fabric()?;
        let seen = Setup::of(&fabric).map_err(|error| ExecuteError::Impossible(error.to_string()))?;
        Ok(Self::on(constants, seen.with_settings_of(row), fabric))
    }

    /// Uses a fabric and the setup [derived](Setup::of) from it.
    pub fn on(constants: &'s Constants, setup: Setup, fabric: Fabric) -> Self {
        let machine = Machine::new(constants, &setup);
        Self { constants, setup, machine, fabric, corrections: None, counts: None, program: None }
    }

    /// Corrects the times of collectives that were measured.
    pub fn corrected_by(self, corrections: &'s Corrections) -> Self {
        Self { corrections: Some(corrections), ..self }
    }

    /// The call, with the time that a calibration corrects it to: by as much as it corrects the call when nothing is disturbed.
    fn corrected(
        &self,
        done: Execution,
        ground: &Placement<'_>,
        call: (Operation, u64),
        conditions: &Conditions,
    ) -> Execution {
        let Some(corrections) = self.corrections.filter(|known| !known.is_empty() && self.program.is_none())
        else {
            return done;
        };
        let factor = corrections.factor(&self.setup, call.0, call.1);
        let factor = factor.unwrap_or_else(|| self.undone(corrections, call));
        let undisturbed_us = match conditions.is_empty() {
            true => done.time.us(),
            false => done.chosen.estimate.total_us().min(done.time.us()),
        };
        let wanted = done.time.us() + (factor - 1.0) * undisturbed_us;
        let time = Picoseconds::from_us(wanted).max(self.least(ground, call.0, call.1).min(done.time));
        Execution { time, correction: time.us() / done.time.us(), ..done }
    }

    /// By how much to multiply the time of a call that no calibration measured.
    fn undone(&self, corrections: &Corrections, call: (Operation, u64)) -> f64 {
        let form = |constants: &Constants, machine: &Machine| {
            let found = predict_on(constants, machine, &self.setup, call.0, call.1);
            found.map(|found| found.estimate.total_us())
        };
        let before = Machine::new(&corrections.base, &self.setup);
        match (form(&corrections.base, &before), form(self.constants, &self.machine)) {
            (Some(before), Some(now)) => corrections::undone(now / before, call.1),
            _ => 1.0,
        }
    }

    /// Cuts buffers into blocks of these lengths, relative to each other: that of each rank in an all-gather or a reduce-scatter, that for
    /// each rank in an all-to-all. Of the plans of Weft, only those for any lengths are chosen.
    pub fn with_counts(self, counts: Vec<u64>) -> Self {
        Self { counts: Some(counts), ..self }
    }

    /// The data of each step of a plan for all ranks, if blocks have different lengths.
    fn volumes(&self, plan: &Partial) -> Result<Option<Volumes>, ExecuteError> {
        let Some(counts) = self.counts.as_ref().filter(|_| self.has_counts()) else { return Ok(None) };
        let mean = counts.iter().map(|count| *count as f64).sum::<f64>() / counts.len().max(1) as f64;
        let is_gather = matches!(plan.well_formed().collective, Collective::AllGather);
        let volumes = Volumes::new(plan, |rank, block| {
            let at = if is_gather { rank } else { block };
            counts.get(at as usize).map_or(0.0, |count| *count as f64 / mean)
        });
        let volumes = volumes.ok_or_else(|| {
            let (ranks, most) = (self.setup.ranks(), RANKS_WHOLE_MAX);
            let why =
                format!("blocks of different lengths are simulated on up to {most} GPUs, not on {ranks}");
            ExecuteError::Impossible(why)
        })?;
        Ok(Some(volumes))
    }

    /// Whether blocks have different lengths.
    fn has_counts(&self) -> bool {
        self.counts.as_ref().is_some_and(|counts| counts.iter().any(|count| *count != counts[0]))
    }

    /// How many ranks to simulate: all of them if their blocks differ.
    fn simulated(&self, paths: &Paths<'_>, layout: &Layout, operation: Operation) -> Option<u32> {
        match layout.ranks() {
            ranks if self.has_counts() && ranks <= RANKS_WHOLE_MAX => Some(ranks),
            _ => simulated(paths, layout, operation),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Executes calls, given as operation and bytes, one after the other.
    pub fn execute(&self, calls: &[(Operation, u64)]) -> Result<Vec<Execution>, ExecuteError> {
        self.execute_each(calls).into_iter().collect()
    }

    /// The same, with a result for each call.
    pub fn execute_each(&self, calls: &[(Operation, u64)]) -> Vec<Result<Execution, ExecuteError>> {
        let ground = Placement::with(&self.fabric, self.constants);
        let paths = Paths::of(&self.fabric);
        let call = |(operation, bytes): &(Operation, u64)| {
            let done = self.call(&ground, &paths, *operation, *bytes)?;
            Ok(self.corrected(done, &ground, (*operation, *bytes), &Conditions::default()))
        };
        calls.iter().map(call).collect()
    }

    /// Executes a call of Weft or of MSCCL, and records its steps in `spans`; `None` for the other libraries.
    fn execute_traced(
        &self,
        operation: Operation,
        bytes: u64,
        spans: Option<&mut Spans>,
    ) -> Result<Option<Execution>, ExecuteError> {
        let (ground, paths) = (Placement::with(&self.fabric, self.constants), Paths::of(&self.fabric));
        match self.setup.library {
            Library::Weft | Library::Msccl => self.by_other_library(&ground, &paths, operation, bytes, spans),
            _ => Ok(None),
        }
    }

    fn call(
        &self,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        operation: Operation,
        bytes: u64,
    ) -> Result<Execution, ExecuteError> {
        if let Some(done) = self.by_other_library(ground, paths, operation, bytes, None)? {
            return Ok(done);
        }
        let chosen = self.choice(operation, bytes)?;
        if operation.is_copy() {
            let (algorithm, time) =
                (chosen.algorithm.name(), Picoseconds::from_us(chosen.estimate.total_us()));
            return Ok(Execution { chosen, algorithm, time, correction: 1.0, outcome: None });
        }
        self.alone(ground, paths, chosen, (operation, bytes), &Conditions::default(), None)
    }

    /// Executes a call on all GPUs under conditions, and records its steps in `spans`.
    fn alone(
        &self,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        chosen: Prediction,
        call: (Operation, u64),
        conditions: &Conditions,
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        let layout = layout(ground.layout(), &self.setup, chosen.algorithm);
        let simulated = Simulated { paths, chosen: &chosen, operation: call.0, bytes: call.1, conditions };
        let outcome = self.simulate(simulated, &layout, spans)?;
        let estimate = &chosen.estimate;
        let us = outcome.as_ref().map_or(estimate.total_us(), |run| estimate.with_device(run.time.us()));
        let time = Picoseconds::from_us(us).max(self.least(ground, call.0, call.1));
        Ok(Execution { chosen, algorithm: chosen.algorithm.name(), time, correction: 1.0, outcome })
    }

    /// What the library would choose.
    fn choice(&self, operation: Operation, bytes: u64) -> Result<Prediction, ExecuteError> {
        let chosen = predict_on(self.constants, &self.machine, &self.setup, operation, bytes)
            .ok_or_else(|| ExecuteError::unsupported(&self.setup, operation))?;
        // Forced to use NVLS between islands, a library uses NVLSTree.
        Ok(match chosen.algorithm {
            LibraryAlgorithm::Nvls if self.machine.islands > 1 && operation == Operation::AllReduce => {
                Prediction { algorithm: LibraryAlgorithm::NvlsTree, ..chosen }
            }
            _ => chosen,
        })
    }

    /// The time that no algorithm can beat. Where one of several identical plans is simulated, on links faster than those of the others,
    /// the simulation could.
    fn least(&self, ground: &Placement<'_>, operation: Operation, bytes: u64) -> Picoseconds {
        let bound = self.collective(operation).ok().and_then(|collective| ground.bounds().bound(&collective));
        bound.map_or(Picoseconds(0), |bound| {
            Picoseconds::from_us(bytes as f64 / bound.bytes_per_second as f64 * 1e6)
        })
    }
}

/// How many ranks to simulate: those of one island, which represent the others, if all islands are alike; otherwise all ranks, or, of too
/// many, those of one island again, as if all were as slow as the slowest. `None` if there are too many and islands differ in size: the
/// closed form remains.
fn simulated(paths: &Paths<'_>, layout: &Layout, operation: Operation) -> Option<u32> {
    let most = match operation {
        Operation::AllToAll => RANKS_WHOLE_ALL_TO_ALL_MAX,
        _ => RANKS_WHOLE_MAX,
    };
    match layout.per_island() {
        Some(per_island) if is_regular(paths, layout) || layout.ranks() > most => Some(per_island),
        _ if layout.ranks() <= most => Some(layout.ranks()),
        _ => None,
    }
}

/// Whether all islands are alike, and so are the cables between them.
fn is_regular(paths: &Paths<'_>, layout: &Layout) -> bool {
    let fabric = paths.fabric();
    let place = |rank: u32| paths.islands().place(fabric.gpus()[rank as usize]);
    let firsts = layout.islands.iter().map(|island| place(island[0]));
    let islands: Option<Vec<u32>> = firsts.map(|place| place.map(|place| place.island)).collect();
    let Some(mut islands) = islands else { return false };
    islands.sort_unstable();
    let shape = |island: u32| paths.islands().all()[island as usize].shape;
    let alike = islands.windows(2).all(|pair| pair[0] != pair[1] && shape(pair[0]) == shape(pair[1]));
    let mut cables = fabric.links().iter().filter_map(|link| match fabric.spec(link).kind {
        LinkKind::Network { .. } => Some(link.spec),
        _ => None,
    });
    let first = cables.next();
    alike && cables.all(|spec| Some(spec) == first)
}

/// The layout that a library uses: chains inside nodes for trees; for rings across meshes, one ring starting at every GPU such that no two
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

/// The plan of a library's choice.
fn recipe<'l>(
    chosen: &Prediction,
    operation: Operation,
    layout: &'l Layout,
) -> Result<Recipe<'l>, Impossible> {
    let recipe = outline(chosen, operation, layout)?;
    Ok(recipe.with_protocol(chosen.protocol).with_depth_of(SLOTS))
}

fn outline<'l>(
    chosen: &Prediction,
    operation: Operation,
    layout: &'l Layout,
) -> Result<Recipe<'l>, Impossible> {
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
        Operation::Gather | Operation::Scatter => return Ok(messages::at_root(layout, operation)),
        Operation::Scan | Operation::ExclusiveScan | Operation::Neighbours | Operation::Barrier => {
            return Err(Impossible(format!("no library for GPUs but Weft has {}", operation.name())));
        }
    };
    like(chosen, operation, layout).recipe(&collective, layout)
}

/// The algorithm of ours that moves data as a library's does.
fn like(chosen: &Prediction, operation: Operation, layout: &Layout) -> Algorithm {
    let rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
    let parts = matches!(operation, Operation::AllGather | Operation::ReduceScatter);
    match chosen.algorithm {
        _ if operation == Operation::AllToAll => Algorithm::Pairwise,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Direct if rooted => Algorithm::Chain,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Direct => Algorithm::Ring,
        // All-gather and reduce-scatter run at a ring's bandwidth.
        LibraryAlgorithm::Nvls if parts => Algorithm::Ring,
        LibraryAlgorithm::Tree => Algorithm::Tree,
        LibraryAlgorithm::Nvls => Algorithm::Nvls,
        LibraryAlgorithm::NvlsTree => Algorithm::NvlsTree,
        // The NICs hide the traffic inside a node; the two variants differ only in their share of the NICs.
        LibraryAlgorithm::CollnetDirect | LibraryAlgorithm::CollnetChain => Algorithm::CollnetDirect,
        LibraryAlgorithm::Pat => Algorithm::Pat,
        LibraryAlgorithm::Symmetric => match (chosen.protocol, operation) {
            (Protocol::Ll, _) => Algorithm::ExchangeLl,
            (_, Operation::AllReduce) if layout.switched => Algorithm::Nvls,
            (_, Operation::ReduceScatter) => Algorithm::OneShot,
            _ => Algorithm::TwoShot,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gpu;
    use crate::setup::Network;

    /// Both use the same costs; they may differ by effects that only a simulation finds.
    #[test]
    fn simulation_agrees_with_the_closed_form() {
        let constants = Constants::shipped();
        let node =
            Setup { gpus_per_node: 8, pcie_generation: 5, ..Setup::pair(gpu("h100"), Intra::NvSwitch) };
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
            let runner = Runner::new(&constants, &setup).unwrap();
            for bytes in [1 << 10, 1 << 20, 1 << 28] {
                let done = &runner.execute(&[(operation, bytes)]).unwrap()[0];
                let (ran, added) = (done.time.us(), done.chosen.estimate.total_us());
                let what = format!(
                    "{} {algorithm:?} {operation:?} {bytes}: {ran:.1} us, {added:.1} us",
                    setup.name()
                );
                assert!((ran / added - 1.0).abs() <= within, "{what}");
            }
        }
    }

    #[test]
    fn a_corrected_time_stays_above_the_bound() {
        let setup = Setup { gpus_per_node: 8, ..Setup::pair(gpu("h100"), crate::setup::Intra::NvSwitch) };
        let constants = Constants::shipped();
        let call = (Operation::AllReduce, 1 << 30);
        let time = |factor: Option<f64>| {
            let runner = Runner::new(&constants, &setup).unwrap();
            let seen = runner.setup.clone();
            let corrections =
                Corrections::of(&constants, factor.into_iter().map(|factor| (&seen, call.0, call.1, factor)));
            let done = runner.corrected_by(&corrections).execute(&[call]).unwrap().remove(0);
            (done.time.us(), done.correction)
        };
        let (shipped, none) = time(None);
        assert_eq!(none, 1.0);
        let (longer, by) = time(Some(1.2));
        assert!((longer / shipped / by - 1.0).abs() < 1e-6 && (1.1..1.2).contains(&by), "{longer} {by}");
        // One GiB at 480 GB/s.
        let (least, _) = time(Some(0.1));
        assert!((2200.0..shipped).contains(&least), "{least}");
    }
}
