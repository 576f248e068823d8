//! The data that a plan moves between ranks, read from its programs without running them.
//!
//! Amounts are chunks of one tile. A loop whose peers do not depend on the iteration is counted in one go, which keeps the
//! rings of a large island cheap.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{Group, Grouped, Input, Lane, Node, Output, Step, Switch, Wait};
use crate::{Affine, Layout, Recipe};

/// The chunks that pairs of ranks exchange in the same step of all lanes.
type Round = BTreeMap<(u32, u32), u64>;

/// The data that a plan moves.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// Chunks from one rank to another; zero if one only waits for the other.
    pub(super) pairs: BTreeMap<(u32, u32), u64>,
    /// The pairs of which one rank accesses the memory of the other.
    peers: BTreeSet<(u32, u32)>,
    /// Chunks that each rank sends to NVSwitches for sums and multicasts, and gets from them.
    pub(super) nvswitch: BTreeMap<u32, (u64, u64)>,
    /// The same for network switches, by rank and another rank of the group.
    pub(super) network: BTreeMap<(u32, u32), (u64, u64)>,
    /// Whether some step accesses another rank's memory.
    pub(super) reaches_in: bool,
    /// Whether every lane sends to one rank only.
    pub(super) one_target: bool,
    /// For each lane of each rank, the pairs of each step and the number of such steps. A step moves its pairs at once, and the lane
    /// takes its steps one after the other.
    pub(super) serial: Vec<BTreeMap<Vec<(u32, u32)>, u64>>,
    /// The pairs that exchange data in the first step of all lanes, in the second and so on, each with its number of chunks; and how
    /// often the step is repeated.
    pub(super) rounds: Vec<(Round, u64)>,
    /// The most lanes of any rank.
    pub(super) lanes: u32,
    /// The most steps in which a lane receives data, or in which it sends data.
    pub(super) steps: u64,
    /// Whether ranks wait for others to enter the call.
    pub(super) enters: bool,
}

impl Usage {
    /// Reads the programs of all ranks.
    pub(super) fn of(recipe: &Recipe<'_>) -> Self {
        let mut usage = Self { one_target: true, ..Self::default() };
        for rank in 0..recipe.outline().ranks {
            let program = recipe.program(rank);
            usage.lanes = usage.lanes.max(program.lanes.len() as u32);
            for lane in &program.lanes {
                usage.add_lane(rank, lane, &recipe.outline().groups);
            }
        }
        usage
    }

    /// Whether a rank accesses the memory of a rank in another island.
    pub(super) fn reaches_across(&self, layout: &Layout) -> bool {
        let places = layout.places();
        self.peers.iter().any(|(from, to)| places[*from as usize].0 != places[*to as usize].0)
    }

    /// The pairs of ranks of which one accesses the memory of the other.
    pub(super) fn peers(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.peers.iter().copied()
    }

    /// Whether ranks only wait for each other and move no data.
    pub(super) fn only_waits(&self) -> bool {
        self.pairs.values().all(|chunks| *chunks == 0) && self.nvswitch.is_empty() && self.network.is_empty()
    }

    fn add_lane(&mut self, rank: u32, lane: &Lane, groups: &[Group]) {
        let mut targets = Vec::new();
        let mut serial: BTreeMap<Vec<(u32, u32)>, u64> = BTreeMap::new();
        let (mut receiving, mut sending, mut round) = (0, 0, 0);
        let mut count = |step: &Step, iterations: &[u32], times: u64| {
            let receives = step.inputs.iter().any(|input| !matches!(input, Input::Local(_)));
            let sends = step.outputs.iter().any(|output| !matches!(output, Output::Local(_)));
            receiving += if receives { times } else { 0 };
            sending += if sends { times } else { 0 };
            self.enters |= step.waits.iter().any(|wait| matches!(wait, Wait::Entered { .. }));
            let at_once = at_once(rank, step, iterations);
            if !at_once.is_empty() {
                if round == self.rounds.len() {
                    self.rounds.push((BTreeMap::new(), 0));
                }
                let (pairs, repeated) = &mut self.rounds[round];
                at_once.iter().for_each(|pair| *pairs.entry(*pair).or_default() += 1);
                *repeated = times.max(*repeated);
                round += 1;
                *serial.entry(at_once).or_default() += times;
            }
            for wait in &step.waits {
                if let Some(other) = awaited(wait).at(iterations).filter(|other| *other != rank) {
                    self.pairs.entry((other, rank)).or_default();
                }
            }
            for input in &step.inputs {
                match input {
                    Input::Peer(peer) => self.add_peer(peer.rank.at(iterations), Some(rank), times),
                    Input::Switch(all) => self.add_group(rank, all, groups, times, true),
                    Input::Local(_) | Input::Received { .. } => {}
                }
            }
            for output in &step.outputs {
                match output {
                    Output::Peer(peer) => self.add_peer(Some(rank), peer.rank.at(iterations), times),
                    Output::Multicast(all) => self.add_group(rank, all, groups, times, false),
                    Output::Sent { to } => {
                        if let Some(to) = to.at(iterations) {
                            *self.pairs.entry((rank, to)).or_default() += times;
                            targets
                                .extend((!targets.contains(&to)).then_some(to).filter(|_| targets.len() < 2));
                        }
                    }
                    Output::Local(_) => {}
                }
            }
        };
        visit(&lane.nodes, &mut Vec::new(), 1, &mut count);
        self.steps = self.steps.max(receiving).max(sending);
        self.one_target &= targets.len() < 2;
        self.serial.extend((!serial.is_empty()).then_some(serial));
    }

    fn add_peer(&mut self, from: Option<u32>, to: Option<u32>, times: u64) {
        self.reaches_in = true;
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            *self.pairs.entry((from, to)).or_default() += times;
            self.peers.insert((from, to));
        }
    }

    /// A sum: every member sends, the rank that takes the step receives. A multicast: the other way around.
    fn add_group(&mut self, rank: u32, all: &Grouped, groups: &[Group], times: u64, is_sum: bool) {
        let Some(group) = groups.get(all.group as usize) else { return };
        match group.switch {
            Switch::Nvswitch => {
                self.reaches_in = true;
                let (out, into) = if is_sum { (times, 0) } else { (0, times) };
                for member in &group.members {
                    let port = self.nvswitch.entry(*member).or_default();
                    *port = (port.0 + out, port.1 + into);
                }
                let port = self.nvswitch.entry(rank).or_default();
                *port = (port.0 + into, port.1 + out);
            }
            // The network adds and copies in transit, so each member sends once and receives once.
            Switch::Network => {
                for member in &group.members {
                    let Some(other) = group.members.iter().find(|other| *other != member) else { return };
                    let port = self.network.entry((*member, *other)).or_default();
                    *port = if is_sum { (port.0 + times, port.1) } else { (port.0, port.1 + times) };
                }
            }
        }
    }
}

/// The most messages that a lane of these ranks sends to other islands, or receives from them, and the rank of that lane. With
/// `flags`, waits count as messages.
pub(super) fn messages_across(
    recipe: &Recipe<'_>,
    ranks: &[u32],
    islands: &[u32],
    flags: bool,
) -> (u64, u32) {
    let island = |rank: u32| islands.get(rank as usize);
    let mut most = (0, ranks.first().copied().unwrap_or(0));
    for &rank in ranks {
        for lane in &recipe.program(rank).lanes {
            let (mut sent, mut received) = (0, 0);
            visit(&lane.nodes, &mut Vec::new(), 1, &mut |step, iterations, times| {
                let is_across = |other: &Affine| {
                    u64::from(other.at(iterations).is_some_and(|other| island(other) != island(rank)))
                };
                let waits = step.waits.iter().filter(|_| flags).map(|wait| is_across(awaited(wait)));
                let inputs = step.inputs.iter().map(|input| match input {
                    Input::Received { from } => is_across(from),
                    _ => 0,
                });
                let outputs = step.outputs.iter().map(|output| match output {
                    Output::Sent { to } => is_across(to),
                    _ => 0,
                });
                received += times * inputs.chain(waits).sum::<u64>();
                sent += times * outputs.sum::<u64>();
            });
            if sent.max(received) > most.0 {
                most = (sent.max(received), rank);
            }
        }
    }
    most
}

/// The pairs of ranks between which a step moves data.
fn at_once(rank: u32, step: &Step, iterations: &[u32]) -> Vec<(u32, u32)> {
    let inputs = step.inputs.iter().filter_map(|input| match input {
        Input::Peer(peer) => Some((peer.rank.at(iterations)?, rank)),
        _ => None,
    });
    let outputs = step.outputs.iter().filter_map(|output| match output {
        Output::Sent { to } => Some((rank, to.at(iterations)?)),
        Output::Peer(peer) => Some((rank, peer.rank.at(iterations)?)),
        _ => None,
    });
    inputs.chain(outputs).filter(|(from, to)| from != to).collect()
}

fn awaited(wait: &Wait) -> &Affine {
    match wait {
        Wait::Entered { rank } | Wait::Reached { rank, .. } => rank,
    }
}

/// Calls `count` with every step, the iterations around it, and the number of times it runs with them.
fn visit(nodes: &[Node], iterations: &mut Vec<u32>, times: u64, count: &mut impl FnMut(&Step, &[u32], u64)) {
    for node in nodes {
        match node {
            Node::Step(step) => count(step, iterations, times),
            Node::Loop(inner) => {
                let depth = iterations.len();
                let all_alike = !inner.body.iter().any(|node| moves_with(node, depth));
                let (rounds, weight) = if all_alike { (1, inner.times.into()) } else { (inner.times, 1) };
                for iteration in 0..rounds.min(inner.times) {
                    iterations.push(iteration);
                    visit(&inner.body, iterations, times * weight, count);
                    iterations.pop();
                }
            }
        }
    }
}

/// Whether a peer depends on the iteration of the loop at a depth.
fn moves_with(node: &Node, depth: usize) -> bool {
    let moves = |rank: &Affine| rank.by.get(depth).is_some_and(|factor| *factor != 0);
    match node {
        Node::Loop(inner) => inner.body.iter().any(|node| moves_with(node, depth)),
        Node::Step(step) => {
            let input = |input: &Input| match input {
                Input::Received { from } => moves(from),
                Input::Peer(peer) => moves(&peer.rank),
                Input::Local(_) | Input::Switch(_) => false,
            };
            let output = |output: &Output| match output {
                Output::Sent { to } => moves(to),
                Output::Peer(peer) => moves(&peer.rank),
                Output::Local(_) | Output::Multicast(_) => false,
            };
            step.waits.iter().any(|wait| moves(awaited(wait)))
                || step.inputs.iter().any(input)
                || step.outputs.iter().any(output)
        }
    }
}
