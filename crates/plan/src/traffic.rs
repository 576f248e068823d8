//! Traffic: the data that a plan moves, counted on its steps, without knowledge of the algorithm.
//!
//! The rank that takes the step sends messages and writes to peers; the owner of the memory sends what a peer reads. For a
//! sum by a switch every member sends and the rank that takes the step receives; for a multicast that rank sends once and
//! every member receives, itself included. A network switch that adds and multicasts in one step sends the sum down
//! directly, so the rank that takes the step sends and receives no more than the others.
//!
//! All chunks have the same length here: shares of the size that nccl-tests shows, which is the larger of a rank's two
//! buffers.

mod links;

use std::collections::BTreeMap;

use crate::plan::{Grouped, Input, Output, Remote, Step, Switch};
use crate::ratio::Ratio;
use crate::well_formed::WellFormed;

/// The data that a plan moves in one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Chunks by source and target rank.
    pairs: BTreeMap<(u32, u32), u64>,
    /// Chunks between a rank and a switch that computes.
    switched: BTreeMap<(Switch, u32), Flow>,
    /// One chunk, as a share of the call's size.
    chunk: Ratio,
}

/// Chunks that a rank or an island sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    sent: u64,
    received: u64,
}

impl Traffic {
    /// Counts the traffic of a plan.
    pub fn of(plan: WellFormed<'_>) -> Self {
        let (input, output) = plan.collective.blocks(plan.ranks);
        let chunks = i128::from(input.max(output)) * i128::from(plan.chunks_per_block());
        let chunk = Ratio::new(1, chunks).unwrap_or(Ratio::ZERO);
        let mut traffic = Self { pairs: BTreeMap::new(), switched: BTreeMap::new(), chunk };
        for (rank, program) in (0..).zip(&plan.plan().programs) {
            for visit in program.lanes.iter().flat_map(|lane| lane.walk()) {
                let Some(step) = visit.step.at(&visit.iterations) else {
                    unreachable!("a well-formed plan has such steps only")
                };
                traffic.step(plan, rank, &step);
            }
        }
        traffic
    }

    /// The traffic from rank to rank, as shares of the call's size, without that to and from switches that compute.
    pub fn pairs(&self) -> impl Iterator<Item = ((u32, u32), Ratio)> {
        self.pairs.iter().map(|(&pair, &chunks)| (pair, self.share(chunks)))
    }

    /// The traffic from and to each rank through switches that compute, as shares of the call's size.
    pub fn switched(&self) -> impl Iterator<Item = ((Switch, u32), [Ratio; 2])> {
        let shares = |flow: &Flow| [flow.sent, flow.received].map(|chunks| self.share(chunks));
        self.switched.iter().map(move |(&of, flow)| (of, shares(flow)))
    }

    /// The most that any rank sends, or receives, inside its island, as a share of the call's size. `islands` holds the island
    /// of each rank.
    pub fn most_inside(&self, islands: &[u32]) -> Ratio {
        let mut ranks = BTreeMap::<u32, Flow>::new();
        for (&(from, to), &chunks) in &self.pairs {
            if islands[from as usize] == islands[to as usize] {
                ranks.entry(from).or_default().sent += chunks;
                ranks.entry(to).or_default().received += chunks;
            }
        }
        for (&(switch, rank), flow) in &self.switched {
            if switch == Switch::Nvswitch {
                ranks.entry(rank).or_default().add(*flow);
            }
        }
        self.most(ranks)
    }

    /// The most that any island sends, or receives, as a share of the call's size.
    pub fn most_across(&self, islands: &[u32]) -> Ratio {
        let mut totals = BTreeMap::<u32, Flow>::new();
        for (&(from, to), &chunks) in &self.pairs {
            let (from, to) = (islands[from as usize], islands[to as usize]);
            if from != to {
                totals.entry(from).or_default().sent += chunks;
                totals.entry(to).or_default().received += chunks;
            }
        }
        for (&(switch, rank), flow) in &self.switched {
            if switch == Switch::Network {
                totals.entry(islands[rank as usize]).or_default().add(*flow);
            }
        }
        self.most(totals)
    }

    fn step(&mut self, plan: WellFormed<'_>, rank: u32, step: &Step<u32>) {
        let group = |number: u32| &plan.plan().groups[number as usize];
        let handed_down = |number: u32| handed_down(plan, step, number);
        for input in &step.inputs {
            match *input {
                Input::Peer(Remote { rank: owner, .. }) => self.pair(owner, rank),
                Input::Switch(Grouped { group: number, .. }) => {
                    let switch = group(number).switch;
                    group(number).members.iter().for_each(|&member| self.flow(switch, member).sent += 1);
                    self.flow(switch, rank).received += u64::from(!handed_down(number));
                }
                Input::Local(_) | Input::Received { .. } => {}
            }
        }
        for output in &step.outputs {
            match *output {
                Output::Sent { to } => self.pair(rank, to),
                Output::Peer(Remote { rank: owner, .. }) => self.pair(rank, owner),
                Output::Multicast(Grouped { group: number, .. }) => {
                    let switch = group(number).switch;
                    self.flow(switch, rank).sent += u64::from(!handed_down(number));
                    group(number).members.iter().for_each(|&member| self.flow(switch, member).received += 1);
                }
                Output::Local(_) => {}
            }
        }
    }

    /// Counts a chunk from rank to rank, unless both are the same.
    fn pair(&mut self, from: u32, to: u32) {
        if from != to {
            *self.pairs.entry((from, to)).or_default() += 1;
        }
    }

    fn flow(&mut self, switch: Switch, rank: u32) -> &mut Flow {
        self.switched.entry((switch, rank)).or_default()
    }

    fn most<K>(&self, flows: BTreeMap<K, Flow>) -> Ratio {
        self.share(flows.into_values().map(|flow| flow.sent.max(flow.received)).max().unwrap_or(0))
    }

    fn share(&self, chunks: u64) -> Ratio {
        // A chunk is one over a count, so the product fits.
        self.chunk.times(chunks.into()).unwrap_or(Ratio::ZERO)
    }
}

impl Flow {
    fn add(&mut self, other: Flow) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

/// Whether a step lets a network switch add the chunks of a group and send the sum to all members.
pub(crate) fn handed_down(plan: WellFormed<'_>, step: &Step<u32>, group: u32) -> bool {
    let sums = |input: &Input<u32>| matches!(input, Input::Switch(all) if all.group == group);
    let multicasts = |output: &Output<u32>| matches!(output, Output::Multicast(all) if all.group == group);
    plan.plan().groups[group as usize].switch == Switch::Network
        && step.inputs.iter().any(sums)
        && step.outputs.iter().any(multicasts)
}
