//! Libraries that do not choose by cost: MSCCL's programs, with the link and lane costs of NCCL; and CPU libraries, which stage buffers
//! in host memory.

use weftlink_fabric::Paths;
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Collective, Layout, Plan, Recipe, Verified, verify};

use super::costs::{LibraryCosts, Ports};
use super::weft::traced;
use super::{ExecuteError, Execution, Runner, simulated};
use crate::constants::Name;
use crate::engine::{Load, Spans};
use crate::estimate::{Estimate, View, estimate, slot_line};
use crate::host::{self, Hosts};
use crate::library::Prediction;
use crate::setup::{Library, LibraryAlgorithm, Operation};

/// Size of a tile of a chunk, and maximum number of tiles.
const TILE_BYTES: f64 = 1024.0 * 1024.0;
const TILES_MAX: f64 = 64.0;

impl Runner<'_> {
    /// Uses an MSCCL program in place of a library's choice, after verifying it.
    pub fn with_program(self, text: &str) -> Result<Self, ExecuteError> {
        let wrong = |why: String| ExecuteError::Program(why);
        let plan = Plan::from_msccl(text).map_err(|error| wrong(error.to_string()))?;
        let verified = verify(plan).map_err(|refusal| wrong(refusal.to_string()))?;
        if verified.ranks != self.setup.ranks() {
            let (program, there) = (verified.ranks, self.setup.ranks());
            return Err(wrong(format!(
                "written for {program} GPUs; the fabric has {there}: name a fabric with {program}"
            )));
        }
        Ok(Self { program: Some(verified), ..self })
    }

    /// Runs a plan in place of a library's choice: with MSCCL the way its interpreter runs programs, otherwise as Weft does.
    pub fn with_plan(self, plan: Verified) -> Self {
        Self { program: Some(plan), ..self }
    }

    /// Executes a call of a library that does not choose by NCCL's costs; `None` for the others.
    pub(super) fn by_other_library(
        &self,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        operation: Operation,
        bytes: u64,
        spans: Option<&mut Spans>,
    ) -> Result<Option<Execution>, ExecuteError> {
        // Copy engines execute copies, whatever the library.
        if operation.is_copy() {
            return Ok(None);
        }
        match self.setup.library {
            Library::Nccl | Library::Rccl | Library::OneCcl => Ok(None),
            Library::Msccl => self.by_program(ground.layout(), paths, (operation, bytes), spans).map(Some),
            Library::Weft => self.by_plan(ground, paths, (operation, bytes), spans).map(Some),
            Library::Gloo | Library::OpenMpi => self.by_host(operation, bytes).map(Some),
        }
    }

    /// Runs the MSCCL program, if it implements the call.
    fn by_program(
        &self,
        ground: &Layout,
        paths: &Paths<'_>,
        (operation, bytes): (Operation, u64),
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        let plan = self.program.as_ref().ok_or_else(|| {
            ExecuteError::Program("none given; name its file, as in msccl:ring.xml".to_owned())
        })?;
        let wanted = self.collective(operation)?;
        if plan.collective.name() != wanted.name() {
            let (does, wanted) = (plan.collective.name(), wanted.name());
            return Err(ExecuteError::Program(format!("implements {does}, not {wanted}")));
        }
        let protocol = plan.channels.first().map_or(Protocol::Simple, |channel| channel.protocol);
        let recipe = Recipe::of(plan);
        let priced = ("program", LibraryAlgorithm::Ring, protocol);
        self.run(ground, paths, &recipe, priced, (operation, bytes), spans)
    }

    /// Runs a plan with the link, lane and hop costs of one of NCCL's algorithms.
    fn run(
        &self,
        ground: &Layout,
        paths: &Paths<'_>,
        recipe: &Recipe<'_>,
        (name, priced_as, protocol): (&'static str, LibraryAlgorithm, Protocol),
        (operation, bytes): (Operation, u64),
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        // The launch costs the same for every call.
        let started = estimate(
            self.constants,
            &self.machine,
            View::Actual,
            Operation::AllReduce,
            bytes as f64,
            LibraryAlgorithm::Ring,
            protocol,
        );
        let started = started.unwrap_or_default();
        let launched = Estimate { hops_us: 0.0, wire_us: 0.0, fill_us: 0.0, ..started };
        let chosen = Prediction { algorithm: priced_as, protocol, estimate: launched };
        let few = simulated(paths, ground, operation).unwrap_or(self.setup.ranks());
        let plan = recipe.partial(few);
        let costs = LibraryCosts::new(
            self.constants,
            &self.machine,
            Ports::of(&self.fabric, &self.machine),
            &chosen,
            (operation, bytes as f64),
            plan.well_formed().channels.len(),
        )
        .alone();
        let chunks = recipe.outline().chunks;
        let chunk = bytes as f64 / f64::from(chunks.input.max(chunks.output).max(1));
        let tiles = (chunk / TILE_BYTES).ceil().clamp(1.0, TILES_MAX) as u32;
        let outcome = traced((&plan, None), paths, Load { bytes: bytes.max(1), tiles }, &costs, spans)?;
        let device_us = outcome.time.us();
        let time = Picoseconds::from_us(launched.with_device(device_us));
        let wire_us = (device_us - launched.launch_us).max(0.0);
        let chosen = Prediction { estimate: Estimate { wire_us, ..launched }, ..chosen };
        Ok(Execution { chosen, algorithm: name, time, correction: 1.0, outcome: Some(outcome) })
    }

    /// Copies buffers to the host, runs the call between cores with a rank for each GPU, and copies them back.
    fn by_host(&self, operation: Operation, bytes: u64) -> Result<Execution, ExecuteError> {
        let setup = &self.setup;
        let hosts = Hosts {
            hosts: setup.nodes,
            network: setup.network,
            nics_per_host: setup.nics_per_node,
            nic_gbits_per_second: setup.nic_gbits_per_second,
            ..Hosts::one(setup.library, setup.gpus_per_node, setup.gpus_per_node)
        };
        let call = host::execute(self.constants, &hosts, operation, bytes)?;
        let ranks = f64::from(setup.ranks());
        let (inputs, outputs) = match operation {
            Operation::AllGather => (1.0 / ranks, 1.0),
            Operation::ReduceScatter => (1.0, 1.0 / ranks),
            _ => (1.0, 1.0),
        };
        let slot = slot_line(setup) * self.constants[Name::PcieHost];
        let estimate = Estimate {
            // A copy to the host and a copy back.
            launch_us: 2.0 * self.constants[Name::LaunchUs],
            hops_us: call.time.us(),
            wire_us: bytes as f64 * (inputs + outputs) / slot / 1e3,
            ..Estimate::default()
        };
        let chosen = Prediction { algorithm: LibraryAlgorithm::Direct, protocol: call.protocol, estimate };
        let time = Picoseconds::from_us(estimate.total_us());
        Ok(Execution { chosen, algorithm: call.algorithm.name(), time, correction: 1.0, outcome: None })
    }

    /// The collective of an operation: that of the plan, if one is given.
    pub(super) fn collective(&self, operation: Operation) -> Result<Collective, ExecuteError> {
        let given = self.program.as_ref().map(|plan| &plan.collective);
        if let Some(collective) = given.filter(|collective| operation_of(collective) == operation) {
            return Ok(collective.clone());
        }
        host::collective(operation, self.setup.ranks())
            .ok_or_else(|| ExecuteError::unsupported(&self.setup, operation))
    }
}

/// The operation that a collective is.
pub(crate) fn operation_of(collective: &Collective) -> Operation {
    match collective {
        Collective::AllReduce => Operation::AllReduce,
        Collective::Reduce { .. } => Operation::Reduce,
        Collective::Broadcast { .. } => Operation::Broadcast,
        Collective::AllGather => Operation::AllGather,
        Collective::ReduceScatter => Operation::ReduceScatter,
        Collective::AllToAll => Operation::AllToAll,
        Collective::Gather { .. } => Operation::Gather,
        Collective::Scatter { .. } => Operation::Scatter,
        Collective::Scan => Operation::Scan,
        Collective::ExclusiveScan => Operation::ExclusiveScan,
        Collective::SendReceive { .. } => Operation::SendReceive,
        Collective::Neighbours { .. } => Operation::Neighbours,
        Collective::Barrier => Operation::Barrier,
    }
}
