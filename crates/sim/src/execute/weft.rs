//! Weft's own choice, with the costs by which it was chosen: the engine runs the plan with the launch, hops and rates of the chosen
//! candidate, so it differs from the chooser's time only by what a run finds out.

use weftlink_fabric::{LinkKind, PathType, Paths};
use weftlink_plan::choose::Chooser;
use weftlink_plan::cost::{Candidate, Carried, Given, Picoseconds, Placement, Prediction as Cost, Terms};
use weftlink_plan::plan::{Protocol, Switch};
use weftlink_plan::{Algorithm, Collective, Layout, Partial, Recipe, Verified};

use super::few_islands::FewIslands;
use super::{ExecuteError, Execution, Runner, SLOTS, simulated};
use crate::engine::wires::Wire;
use crate::engine::{self, Conditions, CostModel, Job, LinkLine, Load, Sent, Spans, Volumes};
use crate::estimate::{Estimate, Over, Through};
use crate::host;
use crate::library::Prediction;
use crate::setup::{LibraryAlgorithm, Operation};

impl Runner<'_> {
    /// Runs the choice of Weft's cost model.
    pub(super) fn by_plan(
        &self,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        (operation, bytes): (Operation, u64),
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        if let Some(plan) = &self.program {
            return self.by_given(plan, ground, paths, (operation, bytes), spans);
        }
        let collective = self.collective(operation)?;
        let chooser = Chooser::new(&collective, self.counts.is_some(), ground).without_sharp(None);
        let (candidate, cost) =
            chooser.cheapest(bytes).ok_or_else(|| ExecuteError::unsupported(&self.setup, operation))?;
        let layout = ground.layout();
        let simulated = self.simulated(paths, layout, operation).unwrap_or(self.setup.ranks());
        let plan = |layout: &Layout, simulated: u32| {
            let collective =
                host::collective(operation, layout.ranks()).unwrap_or_else(|| collective.clone());
            partial(layout, &collective, candidate, simulated)
        };
        let calm = Conditions::default();
        let few = FewIslands::of(paths, layout, candidate.algorithm, collective.root().is_some(), &calm);
        let outcome = match few.filter(|_| spans.is_none() && !self.has_counts()) {
            Some(few) => {
                let costs = WeftCosts::new(ground, &collective, (&candidate.terms, &cost), bytes);
                few.run(
                    |layout| plan(layout, layout.ranks()),
                    paths,
                    Load { bytes: bytes.max(1), tiles: cost.tiles },
                    &costs,
                    &calm,
                )?
            }
            None => {
                let plan = plan(layout, simulated)?;
                let volumes = self.volumes(&plan)?;
                let (plan, priced) = ((&plan, volumes.as_ref()), (&candidate.terms, &cost));
                run_partial(paths, ground, &collective, priced, bytes, plan, spans)?
            }
        };
        let chosen = Prediction {
            algorithm: nearest(candidate),
            protocol: candidate.protocol.unwrap_or(Protocol::Simple),
            estimate: estimate(&candidate.terms, &cost, ground, bytes),
        };
        let time = outcome.time.max(self.least(ground, operation, bytes));
        Ok(Execution {
            chosen,
            algorithm: candidate.algorithm.name(),
            time,
            correction: 1.0,
            outcome: Some(outcome),
        })
    }

    /// Runs a given plan with Weft's costs.
    fn by_given(
        &self,
        plan: &Verified,
        ground: &Placement<'_>,
        paths: &Paths<'_>,
        (operation, bytes): (Operation, u64),
        spans: Option<&mut Spans>,
    ) -> Result<Execution, ExecuteError> {
        let wanted = self.collective(operation)?;
        let refuse = |why: String| ExecuteError::Plan { name: plan.name.clone(), why };
        if plan.collective != wanted {
            return Err(refuse(format!("computes {}, not {wanted}", plan.collective)));
        }
        let given = Given::new(plan, ground).map_err(|why| refuse(why.0))?;
        let cost = given.predict(ground, bytes);
        let few = simulated(paths, ground.layout(), operation).unwrap_or(self.setup.ranks());
        let partial = Recipe::of(plan).partial(few);
        let priced = (&given.terms, &cost);
        let outcome = run_partial(paths, ground, &plan.collective, priced, bytes, (&partial, None), spans)?;
        let chosen = Prediction {
            algorithm: LibraryAlgorithm::Ring,
            protocol: given.terms.protocol.unwrap_or(Protocol::Simple),
            estimate: estimate(&given.terms, &cost, ground, bytes),
        };
        let time = outcome.time.max(self.least(ground, operation, bytes));
        Ok(Execution { chosen, algorithm: "plan", time, correction: 1.0, outcome: Some(outcome) })
    }
}

/// Microseconds of calls by the chooser alone; not a number for one that Weft does not have.
pub(crate) fn closed_forms_of_weft(ground: &Placement<'_>, calls: &[(Operation, u64)]) -> Vec<f64> {
    let mut operations: Vec<Operation> = Vec::new();
    for (operation, _) in calls {
        if !operations.contains(operation) {
            operations.push(*operation);
        }
    }
    let mut times = vec![f64::NAN; calls.len()];
    for operation in operations {
        let Some(collective) = host::collective(operation, ground.layout().ranks()) else { continue };
        let chooser = Chooser::new(&collective, false, ground).without_sharp(None);
        for ((_, bytes), time) in calls.iter().zip(&mut times).filter(|((of, _), _)| *of == operation) {
            *time = chooser.cheapest(*bytes).map_or(f64::NAN, |(_, cost)| cost.time().us());
        }
    }
    times
}

/// The closed form of a candidate or plan.
fn estimate(terms: &Terms, cost: &Cost, ground: &Placement<'_>, bytes: u64) -> Estimate {
    let mut through = Through::default();
    if terms.switch == Some(Switch::Nvswitch) {
        through.bytes[0] = Over::Switches;
    }
    Estimate::of(&terms.form(ground, cost.work, bytes), cost, through)
}

/// A candidate's plan, of which `few` ranks represent the others.
fn partial(
    layout: &Layout,
    collective: &Collective,
    candidate: &Candidate,
    few: u32,
) -> Result<Partial, ExecuteError> {
    let recipe = candidate.algorithm.recipe(collective, layout)?.with_depth_of(SLOTS);
    let recipe = match candidate.protocol {
        Some(protocol) => recipe.with_protocol(protocol),
        None => recipe,
    };
    Ok(recipe.partial(few))
}

/// Runs a plan with the costs of a candidate or of the plan itself.
fn run_partial(
    paths: &Paths<'_>,
    ground: &Placement<'_>,
    collective: &Collective,
    priced: (&Terms, &Cost),
    bytes: u64,
    plan: (&Partial, Option<&Volumes>),
    spans: Option<&mut Spans>,
) -> Result<engine::Outcome, ExecuteError> {
    let costs = WeftCosts::new(ground, collective, priced, bytes);
    traced(plan, paths, Load { bytes: bytes.max(1), tiles: priced.1.tiles }, &costs, spans)
}

/// Runs a plan, and records its steps if there is somewhere to put them.
pub(super) fn traced(
    (plan, volumes): (&Partial, Option<&Volumes>),
    paths: &Paths<'_>,
    load: Load,
    costs: &dyn CostModel,
    spans: Option<&mut Spans>,
) -> Result<engine::Outcome, ExecuteError> {
    let job = Job { plan, gpus: None, load, volumes, costs, start: Picoseconds(0) };
    if spans.is_none() {
        return Ok(engine::run_job(job, paths, &Conditions::default())?);
    }
    let outcomes = engine::run_traced(&[job], paths, &Conditions::default(), spans)?;
    outcomes
        .into_iter()
        .next()
        .ok_or_else(|| ExecuteError::Impossible("the simulator ran no call".to_owned()))
}

/// The library algorithm that resembles a candidate's, for the parts of a result that name one.
fn nearest(candidate: &Candidate) -> LibraryAlgorithm {
    match (candidate.algorithm, candidate.switch) {
        (Algorithm::NvlsTree, _) => LibraryAlgorithm::NvlsTree,
        (_, Some(Switch::Nvswitch)) => LibraryAlgorithm::Nvls,
        (Algorithm::Tree, _) => LibraryAlgorithm::Tree,
        _ if candidate.protocol.is_none() => LibraryAlgorithm::Symmetric,
        _ => LibraryAlgorithm::Ring,
    }
}

/// The costs of a candidate.
struct WeftCosts<'a> {
    candidate: &'a Terms,
    cost: &'a Cost,
    carried: &'a Carried,
    one_way: bool,
    /// By how much less than with calls of the size up to which steps grow, the fill of a step grows.
    growth: f64,
}

impl<'a> WeftCosts<'a> {
    fn new(
        ground: &'a Placement<'_>,
        collective: &Collective,
        (candidate, cost): (&'a Terms, &'a Cost),
        bytes: u64,
    ) -> Self {
        let one_way = collective.root().is_some();
        Self { candidate, cost, carried: ground.carried(), one_way, growth: ground.step_growth(bytes) }
    }

    /// Bytes of all lanes of a rank that send in parallel.
    fn of_rank(&self, bytes: f64) -> u64 {
        (bytes * f64::from(self.candidate.lanes.max(1))) as u64
    }
}

impl CostModel for WeftCosts<'_> {
    fn launch(&self) -> Picoseconds {
        // A lane posts its messages into the network one after the other. All ranks enter the call now, which others see a hop later.
        let seen = if self.candidate.enters { self.candidate.hop_inside.least } else { Picoseconds(0) };
        self.cost.launch + self.cost.messages + seen
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds {
        let hop =
            if wire.path == PathType::Net { &self.candidate.hop_across } else { &self.candidate.hop_inside };
        let hop = hop.of(self.of_rank(sent.bytes));
        if self.cost.tiles > 1 || protocol.is_none() && self.candidate.switch.is_none() {
            return hop;
        }
        let part = self.candidate.fill as f64 / 1e6;
        // A reduction by switches is two hops around one transfer.
        let latency = if self.candidate.switch.is_some() { 2 * hop.0 } else { hop.0 };
        let fill = part * (latency as f64 * sent.time.0 as f64 * self.growth).sqrt();
        hop + Picoseconds(fill.round() as u64)
    }

    fn lane(&self, _wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        f64::INFINITY
    }

    fn on_the_wire(&self, _wire: &Wire, _protocol: Option<Protocol>, bytes: f64) -> f64 {
        bytes
    }

    fn capacity(&self, link: LinkLine) -> f64 {
        let line = link.bytes_per_second as u64;
        let rate = self.carried.rate(link.kind, link.is_between_switches, self.one_way, line);
        let part = match link.kind {
            LinkKind::Network { .. } => self.candidate.parts.1,
            LinkKind::Socket(_) => return rate as f64,
            // On the way to a NIC, links inside a host carry what the network's protocol sends.
            _ if self.candidate.inside_bytes_per_second.is_none() => self.candidate.parts.1,
            _ => self.candidate.parts.0,
        };
        rate as f64 * part as f64 / 1e6
    }

    fn multicast(&self) -> f64 {
        self.candidate.switch_part as f64 / 1e6
    }

    fn copy(&self) -> f64 {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use weftlink_fabric::catalog::systems;
    use weftlink_fabric::{Fabric, resolve};

    const CLUSTERS: [&str; 4] = [
        "2x hgx-h100 + 8x ndr",
        "4x hgx-a100 + 8x hdr",
        "4x dgx-1-v100 + 4x edr",
        "4x 4x-rtx4090 + 1x eth100",
    ];
    const OPERATIONS: [Operation; 4] =
        [Operation::AllReduce, Operation::AllGather, Operation::Broadcast, Operation::AllToAll];

    /// Every collective on a node: the plan that is chosen takes as long in the run as in the closed form.
    #[test]
    fn the_run_of_every_collective_agrees_with_the_closed_form() {
        let fabric = resolve("hgx-h100").unwrap();
        let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
        let mut off = Vec::new();
        for &operation in Operation::ALL {
            let Some(collective) = host::collective(operation, 8) else { continue };
            let chooser = Chooser::new(&collective, false, &ground).without_sharp(None);
            for bytes in [1 << 20, 1 << 30] {
                let Some((candidate, cost)) = chooser.cheapest(bytes) else { continue };
                let plan = partial(ground.layout(), &collective, candidate, 8).unwrap();
                let (plan, priced) = ((&plan, None), (&candidate.terms, &cost));
                let ran = run_partial(&paths, &ground, &collective, priced, bytes, plan, None).unwrap();
                let ratio = cost.time().0 as f64 / ran.time.0 as f64;
                if (ratio - 1.0).abs() > allowed(bytes) {
                    off.push(format!("{operation:?} of {bytes} by {}: {ratio:.2}", candidate.algorithm));
                }
            }
        }
        assert!(off.is_empty(), "{off:#?}");
    }

    /// The largest difference of the chooser's time from the simulated one.
    fn allowed(bytes: u64) -> f64 {
        if bytes < 1 << 20 { 0.2 } else { 0.1 }
    }

    /// The chooser's time and the simulated time of every algorithm and protocol on a preset. They differ by more only for a few, of which
    /// the chooser sees the load of links but not when they meet: accesses to peers across meshes, hierarchies, NVLSTree.
    #[test]
    fn the_run_refines_the_closed_form() {
        let small = |fabric: &Fabric| (2..=16).contains(&fabric.gpus().len());
        let presets = systems::all().map(|system| resolve(system.name).unwrap()).filter(small);
        let (mut all, mut off, mut chosen, mut chosen_off) = (0, 0, 0, Vec::new());
        for fabric in presets.chain(CLUSTERS.map(|spec| resolve(spec).unwrap())) {
            let (ground, paths) = (Placement::of(&fabric), Paths::of(&fabric));
            for operation in OPERATIONS {
                let collective = host::collective(operation, fabric.gpus().len() as u32).unwrap();
                let chooser = Chooser::new(&collective, false, &ground).without_sharp(None);
                for bytes in [8_u64, 64 << 10, 1 << 20, 64 << 20, 1 << 30] {
                    let (best, _) = chooser.cheapest(bytes).unwrap();
                    for (candidate, cost) in chooser.costs(bytes) {
                        let few = simulated(&paths, ground.layout(), operation).unwrap();
                        let plan = partial(ground.layout(), &collective, candidate, few).unwrap();
                        let (plan, priced) = ((&plan, None), (&candidate.terms, &cost));
                        let ran =
                            run_partial(&paths, &ground, &collective, priced, bytes, plan, None).unwrap();
                        let ratio = cost.time().0 as f64 / ran.time.0 as f64;
                        let is_off = (ratio - 1.0).abs() > allowed(bytes);
                        (all, off) = (all + 1, off + u32::from(is_off));
                        if is_off {
                            eprintln!(
                                "OFF|{}|{operation:?}|{}|{:?}|{bytes}|{ratio:.2}",
                                fabric.name(),
                                candidate.algorithm,
                                candidate.protocol
                            );
                        }
                        if std::ptr::eq(candidate, best) {
                            chosen += 1;
                            let what = || {
                                format!(
                                    "{} {operation:?} {bytes} {}: {ratio:.2}",
                                    fabric.name(),
                                    candidate.algorithm
                                )
                            };
                            chosen_off.extend(is_off.then(what));
                        }
                    }
                }
            }
        }
        // Most of them are in meshes (Aurora, MI250, V100, P100) and networks of nodes; in the catalog's other nodes there are few.
        assert!(all > 10_000 && f64::from(off) / f64::from(all) < 0.035, "{off} of {all}");
        assert!((chosen_off.len() as f64) < 0.03 * f64::from(chosen), "of {chosen}: {chosen_off:#?}");
    }
}
