//! Concurrent and disturbed calls: several jobs on one fabric, slow or missing links, throttled GPUs.

use weftlink_fabric::{HostId, Paths};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::{Layout, Partial};

use super::costs::{LibraryCosts, Ports};
use super::{ExecuteError, Execution, RANKS_WHOLE_MAX, Runner, costs, layout, recipe, simulated};

use crate::engine::{self, Conditions, Job, Load, Spans};
use crate::estimate::Machine;
use crate::library::{Prediction, predict_on};
use crate::setup::{LibraryAlgorithm, Operation, Setup};

/// Maximum number of tiles of a call where all tiles are simulated, since pipelines that share links or change have no steady state.
pub(super) const TILES_MAX: u32 = 256;

/// A job's call on some or all GPUs of the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The operation.
    pub operation: Operation,
    /// Size of the call, as nccl-tests counts it.
    pub bytes: u64,
    /// Its GPUs by number in the fabric, in order.
    pub gpus: Vec<u32>,
    /// Time of the call.
    pub start: Picoseconds,
}

/// A tenant's call, ready to run.
struct Prepared {
    machine: Machine,
    chosen: Prediction,
    plan: Partial,
    load: Load,
    /// Its GPUs, unless it has all of them.
    gpus: Option<Vec<u32>>,
}

impl Runner<'_> {
    /// Executes a call on all GPUs under conditions, and records its steps in `spans`. Calls of Weft and MSCCL run without conditions only.
    pub fn execute_with_conditions(
        &self,
        operation: Operation,
        bytes: u64,
        conditions: &Conditions,
        mut spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        let (placement, paths) = (Placement::with(&self.fabric, self.constants), Paths::of(&self.fabric));
        if conditions.is_empty()
            && let Some(done) = self.execute_traced(operation, bytes, spans.as_deref_mut())?
        {
            return Ok(self.corrected(done, &placement, (operation, bytes), conditions));
        }
        let chosen = self.choice(operation, bytes)?;
        let done = self.alone(&placement, &paths, chosen, (operation, bytes), conditions, spans)?;
        Ok(self.corrected(done, &placement, (operation, bytes), conditions))
    }

    /// Executes the calls of several jobs concurrently. Each uses the algorithm that the library would choose if the job were alone, but
    /// rings instead of trees.
    pub fn execute_concurrently(
        &self,
        tenants: &[Tenant],
        conditions: &Conditions,
        spans: Option<&mut Spans>,
    ) -> Result<Vec<Execution>, ExecuteError> {
        self.share_links(tenants, conditions, spans, self.is_whole(tenants, conditions))
    }

    /// The same calls, each as if it were alone.
    pub fn execute_apart(
        &self,
        tenants: &[Tenant],
        conditions: &Conditions,
    ) -> Result<Vec<Execution>, ExecuteError> {
        let whole = self.is_whole(tenants, conditions);
        let alone = |tenant: &Tenant| self.share_links(std::slice::from_ref(tenant), conditions, None, whole);
        let done = tenants.iter().map(alone).collect::<Result<Vec<_>, _>>()?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Whether every rank must be simulated: jobs on some GPUs make the ranks of a class differ, as disturbances do.
    fn is_whole(&self, tenants: &[Tenant], conditions: &Conditions) -> bool {
        let is_on_all = |tenant: &Tenant| tenant.gpus.iter().copied().eq(0..self.setup.ranks());
        let needs_all = |tenant: &Tenant| self.needs_all_ranks(tenant.operation, conditions);
        tenants.len() > 1 || tenants.iter().any(|tenant| !is_on_all(tenant) || needs_all(tenant))
    }

    fn share_links(
        &self,
        tenants: &[Tenant],
        conditions: &Conditions,
        spans: Option<&mut Spans>,
        whole: bool,
    ) -> Result<Vec<Execution>, ExecuteError> {
        let placement = Placement::with(&self.fabric, self.constants);
        let paths = Paths::of(&self.fabric);
        let prepared: Vec<Prepared> = tenants
            .iter()
            .map(|tenant| self.prepare(&placement, &paths, tenant, whole))
            .collect::<Result<_, _>>()?;
        let costs: Vec<LibraryCosts<'_>> = tenants
            .iter()
            .zip(&prepared)
            .map(|(tenant, ready)| {
                LibraryCosts::new(
                    self.constants,
                    &ready.machine,
                    self.ports_of(&ready.machine),
                    &ready.chosen,
                    (tenant.operation, tenant.bytes as f64),
                    ready.plan.well_formed().channels.len(),
                )
            })
            .collect();
        let jobs: Vec<Job<'_>> = tenants
            .iter()
            .zip(&prepared)
            .zip(&costs)
            .map(|((tenant, ready), costs)| Job {
                plan: &ready.plan,
                gpus: ready.gpus.as_deref(),
                load: ready.load,
                volumes: None,
                costs,
                start: tenant.start,
            })
            .collect();
        let outcomes = engine::run_traced(&jobs, &paths, conditions, spans)?;
        let done = prepared.iter().zip(outcomes).map(|(ready, outcome)| {
            let device_us = outcome.time.us();
            let time = Picoseconds::from_us(ready.chosen.estimate.with_device(device_us));
            Execution {
                chosen: ready.chosen,
                algorithm: ready.chosen.algorithm.name(),
                time,
                correction: 1.0,
                outcome: Some(outcome),
            }
        });
        Ok(done.collect())
    }

    /// Whether every rank must be simulated: a class assumes that its ranks are identical, which disturbances violate. With many ranks,
    /// classes still approximate a disturbed call, since waiting for a class means waiting for its slowest rank; that does not hold for an
    /// all-to-all.
    pub(super) fn needs_all_ranks(&self, operation: Operation, conditions: &Conditions) -> bool {
        let is_large = self.setup.ranks() > RANKS_WHOLE_MAX;
        !conditions.missing_links().is_empty()
            || !conditions.is_empty() && (operation == Operation::AllToAll || !is_large)
    }

    fn prepare(
        &self,
        placement: &Placement<'_>,
        paths: &Paths<'_>,
        tenant: &Tenant,
        whole: bool,
    ) -> Result<Prepared, ExecuteError> {
        let all = tenant.gpus.iter().copied().eq(0..self.setup.ranks());
        let setup = self.setup_of(&tenant.gpus)?;
        let machine = Machine::new(self.constants, &setup);
        let chosen = predict_on(self.constants, &machine, &setup, tenant.operation, tenant.bytes);
        let mut chosen = chosen.ok_or_else(|| ExecuteError::unsupported(&setup, tenant.operation))?;
        // Only one of several identical trees is simulated, which cannot share links with other jobs: use rings instead.
        if whole && chosen.algorithm == LibraryAlgorithm::Tree && machine.lanes > 1.0 {
            let forced = Setup { algorithm: Some(LibraryAlgorithm::Ring), ..setup.clone() };
            let ring = predict_on(self.constants, &machine, &forced, tenant.operation, tenant.bytes);
            chosen = ring.ok_or_else(|| ExecuteError::unsupported(&setup, tenant.operation))?;
        }
        let part;
        let of = if all {
            placement.layout()
        } else {
            part = sub_layout(placement.layout(), &tenant.gpus);
            &part
        };
        let layout = layout(of, &setup, chosen.algorithm);
        let few = simulated(paths, &layout, tenant.operation).filter(|_| !whole);
        let plan = recipe(&chosen, tenant.operation, &layout)?.partial(few.unwrap_or(layout.ranks()));
        let (ports, bytes) = (self.ports_of(&machine), tenant.bytes as f64);
        let share = bytes / costs::identical_plans(&machine, &ports, chosen.algorithm, tenant.operation);
        let costs = LibraryCosts::new(
            self.constants,
            &machine,
            ports,
            &chosen,
            (tenant.operation, bytes),
            plan.well_formed().channels.len(),
        );
        let tiles = costs.tiles().min(TILES_MAX);
        let load = Load { bytes: (share.round() as u64).max(1), tiles };
        Ok(Prepared { machine, chosen, plan, load, gpus: (!all).then(|| tenant.gpus.clone()) })
    }

    /// Line rates of the links of a job's machine.
    fn ports_of(&self, machine: &Machine) -> Ports {
        Ports::of(&self.fabric, &self.machine).for_share((machine.island / self.machine.island).min(1.0))
    }

    /// The setup of a job on some of the GPUs.
    pub fn setup_of(&self, gpus: &[u32]) -> Result<Setup, ExecuteError> {
        let impossible = |why: &str| Err(ExecuteError::Impossible(why.to_owned()));
        let mut hosts: Vec<(Option<HostId>, u32)> = Vec::new();
        for gpu in gpus {
            let Some(id) = self.fabric.gpus().get(*gpu as usize) else {
                return impossible(&format!(
                    "no GPU {gpu}: the fabric has {}, counted from 0",
                    self.fabric.gpus().len()
                ));
            };
            let host = self.fabric.device(*id).host;
            match hosts.iter_mut().find(|(known, _)| *known == host) {
                Some((_, count)) => *count += 1,
                None => hosts.push((host, 1)),
            }
        }
        if gpus.len() < 2 {
            return impossible("a job needs two or more GPUs");
        }
        let nodes = hosts.len() as u32;
        let per_host = hosts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let missing_gpus = u64::from(per_host) * u64::from(nodes) - gpus.len() as u64;
        // A job gets the NICs beside its GPUs.
        let all = self.setup.gpus_per_node.max(1);
        let nics_per_node = (self.setup.nics_per_node * per_host).div_ceil(all);
        Ok(Setup { gpus_per_node: per_host, nodes, missing_gpus, nics_per_node, ..self.setup.clone() })
    }
}

/// The layout of some ranks, renumbered. The rings of the whole fabric do not fit, so the job gets new ones, each leaving an island from a
/// different rank.
fn sub_layout(all: &Layout, ranks: &[u32]) -> Layout {
    let number = |rank: &u32| ranks.iter().position(|kept| kept == rank).map(|at| at as u32);
    let kept = |order: &Vec<u32>| order.iter().filter_map(number).collect::<Vec<u32>>();
    let islands: Vec<Vec<u32>> = all.islands.iter().map(kept).filter(|island| !island.is_empty()).collect();
    let lanes = islands.iter().map(Vec::len).min().unwrap_or(1);
    // Every second island is traversed in reverse, so that a ring enters on the rail that it left on.
    let turned = |lane: usize| {
        let island = |(number, island): (usize, &Vec<u32>)| {
            let at = lane % island.len();
            let mut order: Vec<u32> = island[at..].iter().chain(&island[..at]).copied().collect();
            if number % 2 == 1 {
                order.reverse();
            }
            order
        };
        islands.iter().enumerate().flat_map(island).collect::<Vec<u32>>()
    };
    let rings = match islands.len() {
        1 => all.rings.iter().map(kept).collect(),
        _ => (0..lanes).map(turned).collect(),
    };
    Layout { islands: islands.clone(), rings, trees: Vec::new(), ..all.clone() }
}
