//! Small mistakes in a plan: each mutant differs from the plan in one detail.
//!
//! Some mutants are correct plans (a wait is passed twice, two numbers are added in the other order). [`chaos`](crate::chaos) tells which
//! are not.

mod index;
mod step;
mod turned;

use std::collections::HashSet;

use weftlink_plan::plan::{Agreement, Aliasing, Node, Step};
use weftlink_plan::{Collective, Plan};

pub use turned::turned;

/// A plan with one mistake.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The plan.
    pub plan: Plan,
    /// The kind of mistake, for statistics.
    pub kind: &'static str,
    /// The place and the mistake, for example `rank 1 lane 0 node [2]: dropped wait 0`. A node in a loop has one index per level.
    pub description: String,
}

/// All mutants of a plan, each once.
pub fn mutants(plan: &Plan) -> Vec<Mutant> {
    let mut found = Found { mutants: Vec::new(), seen: HashSet::from([plan.clone()]) };
    whole(plan, &mut found);
    (0..plan.programs.len()).for_each(|rank| program(plan, rank, &mut found));
    found.mutants
}

/// The mutants of a plan in which one rank makes a mistake.
pub fn mutants_of(plan: &Plan, rank: u32) -> Vec<Mutant> {
    let mut found = Found { mutants: Vec::new(), seen: HashSet::from([plan.clone()]) };
    program(plan, rank as usize, &mut found);
    found.mutants
}

/// Mistakes of one rank.
fn program(plan: &Plan, rank: usize, found: &mut Found) {
    for (lane, written) in plan.programs[rank].lanes.iter().enumerate() {
        let site = Site { plan, rank, lane };
        site.lane(found);
        let mut paths = Vec::new();
        collect_paths(&written.nodes, &mut Vec::new(), &mut paths);
        for path in &paths {
            site.node(path, &paths, found);
        }
    }
}

struct Found {
    mutants: Vec<Mutant>,
    seen: HashSet<Plan>,
}

impl Found {
    fn add(&mut self, plan: Plan, kind: &'static str, description: String) {
        if self.seen.insert(plan.clone()) {
            self.mutants.push(Mutant { plan, kind, description });
        }
    }
}

/// Mistakes outside lanes.
fn whole(plan: &Plan, found: &mut Found) {
    let mut change = |kind: &'static str, description: String, change: &dyn Fn(&mut Plan)| {
        let mut mutant = plan.clone();
        change(&mut mutant);
        found.add(mutant, kind, description);
    };
    for (channel, written) in plan.channels.iter().enumerate() {
        let depths = [written.depth.saturating_sub(1), written.depth + 1];
        for depth in depths {
            let set = |plan: &mut Plan| plan.channels[channel].depth = depth;
            change("depth", format!("channel {channel}: depth {depth}"), &set);
        }
    }
    for aliasing in Aliasing::BOTH.into_iter().filter(|aliasing| !plan.aliasing.contains(aliasing)) {
        change("aliasing", format!("claims {aliasing} too"), &|plan| plan.aliasing.push(aliasing));
    }
    if plan.collective.may_be_uneven() && !plan.uneven {
        change("uneven", "claims uneven blocks too".into(), &|plan| plan.uneven = true);
    }
    for agreement in [Agreement::SameBits, Agreement::UpToRounding] {
        let what = format!("promises {agreement:?}");
        change("agreement", what, &|plan| plan.agreement = agreement);
    }
    change("root", "the next root".into(), &|plan| {
        let ranks = plan.ranks;
        if let Collective::Reduce { root }
        | Collective::Broadcast { root }
        | Collective::Gather { root }
        | Collective::Scatter { root } = &mut plan.collective
        {
            *root = (*root + 1) % ranks;
        }
    });
    for (group, written) in plan.groups.iter().enumerate() {
        for (position, rank) in written.members.iter().enumerate() {
            change("group member", format!("group {group} without rank {rank}"), &|plan| {
                plan.groups[group].members.remove(position);
            });
        }
    }
    change("counters", "one counter less".into(), &|plan| plan.counters = plan.counters.saturating_sub(1));
    let less = |chunks: &mut u32| *chunks = chunks.saturating_sub(1);
    change("chunks", "one chunk of input less".into(), &|plan| less(&mut plan.chunks.input));
    change("chunks", "one chunk of output less".into(), &|plan| less(&mut plan.chunks.output));
    change("chunks", "one chunk of scratch less".into(), &|plan| less(&mut plan.chunks.scratch));
    change("chunks", "one chunk of input and output less".into(), &|plan| {
        less(&mut plan.chunks.input);
        less(&mut plan.chunks.output);
    });
    change("chunks", "one chunk of input and output more".into(), &|plan| {
        plan.chunks.input += 1;
        plan.chunks.output += 1;
    });
}

/// The lane in which a mistake is made.
#[derive(Clone, Copy)]
struct Site<'p> {
    plan: &'p Plan,
    rank: usize,
    lane: usize,
}

/// The path to a node: its position in the lane, then in each nested loop.
type Path = Vec<usize>;

impl Site<'_> {
    fn change(&self, found: &mut Found, kind: &'static str, what: &str, change: impl FnOnce(&mut Vec<Node>)) {
        let mut plan = self.plan.clone();
        change(&mut plan.programs[self.rank].lanes[self.lane].nodes);
        found.add(plan, kind, format!("rank {} lane {} {what}", self.rank, self.lane));
    }

    /// Mistakes that concern the whole lane.
    fn lane(&self, found: &mut Found) {
        let (rank, lane) = (self.rank, self.lane);
        let at = |what: &str| format!("rank {rank} lane {lane}: {what}");
        let mut plan = self.plan.clone();
        plan.programs[rank].lanes.remove(lane);
        found.add(plan, "lane deleted", at("deleted"));
        let mut plan = self.plan.clone();
        let copy = plan.programs[rank].lanes[lane].clone();
        plan.programs[rank].lanes.push(copy);
        found.add(plan, "lane duplicated", at("duplicated"));
        for channel in 0..=self.plan.channels.len() as u32 {
            let mut plan = self.plan.clone();
            plan.programs[rank].lanes[lane].channel = channel;
            found.add(plan, "lane channel", at(&format!("channel {channel}")));
        }
    }

    /// Mistakes at one node.
    fn node(&self, path: &Path, paths: &[Path], found: &mut Found) {
        let Some((&position, way)) = path.split_last() else { return };
        let nodes = &self.plan.programs[self.rank].lanes[self.lane].nodes;
        let Some(list) = list_at(nodes, way) else { return };
        let what = |what: &str| format!("node {path:?}: {what}");
        // The path exists in the copy as well.
        let mut in_list = |kind, done: &str, change: &dyn Fn(&mut Vec<Node>)| {
            self.change(found, kind, &what(done), |nodes| {
                if let Some(list) = list_at_mut(nodes, way) {
                    change(list);
                }
            });
        };
        in_list("node deleted", "deleted", &|list| drop(list.remove(position)));
        in_list("node duplicated", "duplicated", &|list| list.insert(position, list[position].clone()));
        if position + 1 < list.len() {
            in_list("nodes swapped", "swapped with the next", &|list| list.swap(position, position + 1));
        }
        match &list[position] {
            Node::Loop(repeated) => {
                for times in [repeated.times.saturating_sub(1), repeated.times + 1] {
                    self.change(found, "loop times", &what(&format!("{times} times")), |nodes| {
                        if let Some(Node::Loop(repeated)) = node_at_mut(nodes, path) {
                            repeated.times = times;
                        }
                    });
                }
            }
            Node::Step(step) => {
                for variation in step::variations(step, way.len(), self) {
                    self.change(found, variation.kind, &what(&variation.what), |nodes| {
                        if let Some(Node::Step(place)) = node_at_mut(nodes, path) {
                            *place = variation.step;
                        }
                    });
                }
                self.moves(step, path, paths, found);
            }
        }
    }

    /// Waits that move to the next step, and signals that move to the previous step.
    fn moves(&self, step: &Step, path: &Path, paths: &[Path], found: &mut Found) {
        let nodes = &self.plan.programs[self.rank].lanes[self.lane].nodes;
        let is_step = |path: &&Path| matches!(node_at(nodes, path), Some(Node::Step(_)));
        let steps: Vec<_> = paths.iter().filter(is_step).collect();
        let Some(place) = steps.iter().position(|other| *other == path) else { return };
        if let Some(next) = steps.get(place + 1) {
            for wait in 0..step.waits.len() {
                let what = format!("node {path:?}: wait {wait} moved to the next step");
                self.change(found, "wait moved", &what, |nodes| {
                    let moved = step_at_mut(nodes, path).map(|step| step.waits.remove(wait));
                    if let (Some(step), Some(moved)) = (step_at_mut(nodes, next), moved) {
                        step.waits.push(moved);
                    }
                });
            }
        }
        if let Some(previous) = place.checked_sub(1).and_then(|place| steps.get(place)) {
            for signal in 0..step.signals.len() {
                let what = format!("node {path:?}: signal {signal} moved to the step before");
                self.change(found, "signal moved", &what, |nodes| {
                    let moved = step_at_mut(nodes, path).map(|step| step.signals.remove(signal));
                    if let (Some(step), Some(moved)) = (step_at_mut(nodes, previous), moved) {
                        step.signals.push(moved);
                    }
                });
            }
        }
    }
}

/// The paths to all nodes, in program order.
fn collect_paths(nodes: &[Node], way: &mut Path, paths: &mut Vec<Path>) {
    for (position, node) in nodes.iter().enumerate() {
        way.push(position);
        paths.push(way.clone());
        if let Node::Loop(repeated) = node {
            collect_paths(&repeated.body, way, paths);
        }
        way.pop();
    }
}

fn list_at<'n>(nodes: &'n [Node], way: &[usize]) -> Option<&'n [Node]> {
    way.iter().try_fold(nodes, |list, &position| match list.get(position) {
        Some(Node::Loop(repeated)) => Some(repeated.body.as_slice()),
        _ => None,
    })
}

fn list_at_mut<'n>(nodes: &'n mut Vec<Node>, way: &[usize]) -> Option<&'n mut Vec<Node>> {
    way.iter().try_fold(nodes, |list, &position| match list.get_mut(position) {
        Some(Node::Loop(repeated)) => Some(&mut repeated.body),
        _ => None,
    })
}

fn node_at<'n>(nodes: &'n [Node], path: &[usize]) -> Option<&'n Node> {
    let (&position, way) = path.split_last()?;
    list_at(nodes, way)?.get(position)
}

fn node_at_mut<'n>(nodes: &'n mut Vec<Node>, path: &[usize]) -> Option<&'n mut Node> {
    let (&position, way) = path.split_last()?;
    list_at_mut(nodes, way)?.get_mut(position)
}

fn step_at_mut<'n>(nodes: &'n mut Vec<Node>, path: &[usize]) -> Option<&'n mut Step> {
    match node_at_mut(nodes, path)? {
        Node::Step(step) => Some(step),
        Node::Loop(_) => None,
    }
}
