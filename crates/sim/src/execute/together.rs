//! Calls that disturb one another, or are disturbed: several jobs on one fabric, links that are slow or missing, GPUs that are throttled.

use weftlink_fabric::{HostId, Paths};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::{Layout, Partial};

use super::charged::{Charged, Lines};
use super::{ExecuteError, Execution, SLOTS, Site, charged, layout, picoseconds, recipe};

use crate::engine::{self, Conditions, Job, Load, Spans};
use crate::estimate::Machine;
use crate::library::{Prediction, predict_on};
use crate::setup::{LibraryAlgorithm, Operation, Setup};

/// Tiles of a call at most. What is disturbed is not in its stride, so that all of them are run.
const TILES_MAX: u32 = 256;

/// Ranks that all take their steps where conditions make them unlike one another.
const RANKS_WHOLE_MAX: usize = 512;

/// A job's call: on some GPUs of the fabric, or on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// What its GPUs do.
    pub operation: Operation,
    /// Bytes of the call, as nccl-tests counts them.
    pub bytes: u64,
    /// The numbers of its GPUs in the fabric, in order; as many of each host.
    pub gpus: Vec<u32>,
    /// When it is made.
    pub start: Picoseconds,
}

/// A tenant's call, ready to run.
struct Prepared {
    machine: Machine,
    chosen: Prediction,
    plan: Partial,
    load: Load,
    /// The numbers of its GPUs, unless it has all of them.
    gpus: Option<Vec<u32>>,
}

impl Site<'_> {
    /// A call on all GPUs, which conditions disturb, with its steps as far as there is room for them.
    pub fn execute_under(
        &self,
        operation: Operation,
        bytes: u64,
        conditions: &Conditions,
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        let gpus = (0..self.setup.ranks()).collect();
        let tenant = Tenant { operation, bytes, gpus, start: Picoseconds(0) };
        let done = self.execute_together(&[tenant], conditions, spans)?;
        done.into_iter().next().ok_or_else(|| ExecuteError::Impossible("there is no call".to_owned()))
    }

    /// Calls of several jobs, side by side. Each takes what the library would choose if it were alone.
    pub fn execute_together(
        &self,
        tenants: &[Tenant],
        conditions: &Conditions,
        spans: Option<&mut Spans>,
    ) -> Result<Vec<Execution>, ExecuteError> {
        let ground = Placement::of(&self.fabric);
        let paths = Paths::of(&self.fabric);
        let whole = self.must_be_whole(tenants, conditions);
        let prepared: Vec<Prepared> =
            tenants.iter().map(|tenant| self.prepared(&ground, tenant, whole)).collect::<Result<_, _>>()?;
        let charges: Vec<Charged<'_>> = tenants
            .iter()
            .zip(&prepared)
            .map(|(tenant, ready)| {
                Charged::new(
                    self.constants,
                    &ready.machine,
                    self.lines_of(&ready.machine),
                    &ready.chosen,
                    tenant.operation,
                    tenant.bytes as f64,
                    &ready.plan,
                )
            })
            .collect();
        let jobs: Vec<Job<'_>> = tenants
            .iter()
            .zip(&prepared)
            .zip(&charges)
            .map(|((tenant, ready), charges)| Job {
                plan: &ready.plan,
                gpus: ready.gpus.as_deref(),
                load: ready.load,
                charges,
                start: tenant.start,
            })
            .collect();
        let outcomes = engine::run_watched(&jobs, &paths, conditions, spans)?;
        let done = prepared.iter().zip(outcomes).map(|(ready, outcome)| {
            let device_us = outcome.time.0 as f64 / 1e6;
            let time = picoseconds(ready.chosen.estimate.with_device(device_us));
            Execution {
                chosen: ready.chosen,
                algorithm: ready.chosen.algorithm.name(),
                time,
                outcome: Some(outcome),
            }
        });
        Ok(done.collect())
    }

    /// By classes all of a class are alike; what happens to one of them, or beside one, is found by running all. Where those are many,
    /// classes stand for them: whoever waits for a class waits for its slowest. That is not so where everybody meets everybody.
    fn must_be_whole(&self, tenants: &[Tenant], conditions: &Conditions) -> bool {
        let ranks = self.fabric.gpus().len();
        let on_some = tenants.iter().any(|tenant| tenant.gpus.len() < ranks);
        let all_meet = tenants.iter().any(|tenant| tenant.operation == Operation::AllToAll);
        let is_calm = conditions.are_none();
        tenants.len() > 1
            || on_some
            || !conditions.missing().is_empty()
            || !is_calm && (all_meet || ranks <= RANKS_WHOLE_MAX)
    }

    fn prepared(
        &self,
        ground: &Placement<'_>,
        tenant: &Tenant,
        whole: bool,
    ) -> Result<Prepared, ExecuteError> {
        let all = tenant.gpus.iter().copied().eq(0..self.setup.ranks());
        let setup = self.part_of_setup(&tenant.gpus)?;
        let machine = Machine::new(self.constants, &setup);
        let chosen = predict_on(self.constants, &machine, &setup, tenant.operation, tenant.bytes);
        let mut chosen = chosen.ok_or(ExecuteError::NoWay(setup.library.name(), tenant.operation.name()))?;
        // Of trees one of several that are alike is run, which nobody can share links with: rings take their place.
        if whole && chosen.algorithm == LibraryAlgorithm::Tree && machine.lanes > 1.0 {
            let told = Setup { algorithm: Some(LibraryAlgorithm::Ring), ..setup.clone() };
            let ring = predict_on(self.constants, &machine, &told, tenant.operation, tenant.bytes);
            chosen = ring.ok_or(ExecuteError::NoWay(setup.library.name(), tenant.operation.name()))?;
        }
        let part;
        let of = if all {
            ground.layout()
        } else {
            part = among(ground.layout(), &tenant.gpus);
            &part
        };
        let layout = layout(of, &setup, chosen.algorithm);
        let recipe = recipe(chosen.algorithm, chosen.protocol, tenant.operation, &layout)?
            .with_protocol(chosen.protocol)
            .with_depth_of(SLOTS);
        let per_island = layout.per_island().unwrap_or(layout.ranks());
        let plan = recipe.partial(if whole { layout.ranks() } else { per_island });
        let (lines, bytes) = (self.lines_of(&machine), tenant.bytes as f64);
        let share = bytes / charged::alike(&machine, &lines, chosen.algorithm, tenant.operation);
        let charged = Charged::new(self.constants, &machine, lines, &chosen, tenant.operation, bytes, &plan);
        let tiles = charged.tiles().min(TILES_MAX);
        let load = Load { bytes: (share.round() as u64).max(1), tiles };
        Ok(Prepared { machine, chosen, plan, load, gpus: (!all).then(|| tenant.gpus.clone()) })
    }

    /// What the fabric says of the links of a job's machine.
    fn lines_of(&self, machine: &Machine) -> Lines {
        Lines::of(&self.fabric, &self.machine).of_part((machine.island / self.machine.island).min(1.0))
    }

    /// What a job with some of the GPUs sees.
    fn part_of_setup(&self, gpus: &[u32]) -> Result<Setup, ExecuteError> {
        let impossible = |why: &str| Err(ExecuteError::Impossible(why.to_owned()));
        if gpus.len() < 2 {
            return impossible("a job with one GPU has nobody to talk to; give it two or more");
        }
        let mut hosts: Vec<(Option<HostId>, u32)> = Vec::new();
        for gpu in gpus {
            let Some(id) = self.fabric.gpus().get(*gpu as usize) else {
                return impossible(&format!(
                    "there is no GPU {gpu}: the fabric has {}, counted from 0",
                    self.fabric.gpus().len()
                ));
            };
            let host = self.fabric.device(*id).host;
            match hosts.iter_mut().find(|(known, _)| *known == host) {
                Some((_, count)) => *count += 1,
                None => hosts.push((host, 1)),
            }
        }
        let per_host = hosts[0].1;
        if hosts.iter().any(|(_, count)| *count != per_host) {
            return impossible("a job needs as many GPUs of each of its hosts");
        }
        // NICs come with the GPUs that they are beside.
        let all = self.setup.gpus_per_node.max(1);
        let nics_per_node = (self.setup.nics_per_node * per_host).div_ceil(all);
        Ok(Setup { gpus_per_node: per_host, nodes: hosts.len() as u32, nics_per_node, ..self.setup.clone() })
    }
}

/// The layout of some ranks, numbered anew. Rings were found for all of them; those of some leave each island from another rank.
fn among(all: &Layout, ranks: &[u32]) -> Layout {
    let number = |rank: &u32| ranks.iter().position(|kept| kept == rank).map(|at| at as u32);
    let kept = |order: &Vec<u32>| order.iter().filter_map(number).collect::<Vec<u32>>();
    let islands: Vec<Vec<u32>> = all.islands.iter().map(kept).filter(|island| !island.is_empty()).collect();
    let lanes = islands.iter().map(Vec::len).min().unwrap_or(1);
    // Every second island is passed the other way, so that a ring enters on the rail that it left on.
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
