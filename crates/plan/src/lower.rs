//! Lowering: operations of switches, rewritten for transports without them.
//!
//! Instead of a switch, the rank itself reads the memory of each member, adds in the order of the ranks, and stores to each
//! member. Lowering comes before verification, so that the plan that is proved is the plan that runs.

use crate::plan::{Group, Grouped, Input, Lane, Node, Op, Output, Place, Plan, Remote, Step};

impl Plan {
    /// The same plan without switches: the rank that takes the step computes every sum and stores every multicast. Ranks add in the
    /// order of their numbers, which breaks a symmetry, so the plan declares none.
    pub fn without_switches(mut self) -> Plan {
        let groups = std::mem::take(&mut self.groups);
        if !groups.is_empty() {
            self.symmetry = None;
            for (rank, program) in (0..).zip(&mut self.programs) {
                program.lanes.iter_mut().for_each(|lane: &mut Lane| lower(&mut lane.nodes, &groups, rank));
            }
        }
        self
    }
}

fn lower(nodes: &mut [Node], groups: &[Group], rank: u32) {
    for node in nodes {
        match node {
            Node::Loop(inner) => lower(&mut inner.body, groups, rank),
            Node::Step(step) => lower_step(step, groups, rank),
        }
    }
}

fn lower_step(step: &mut Step, groups: &[Group], rank: u32) {
    let members = |all: &Grouped| groups.get(all.group as usize).map_or(&[][..], |group| &group.members);
    let place = |all: &Grouped| Place { buffer: all.buffer, chunk: all.chunk.clone() };
    let remote = |all: &Grouped, owner: u32| Remote {
        rank: owner.into(),
        buffer: all.buffer,
        chunk: all.chunk.clone(),
    };
    let inputs = std::mem::take(&mut step.inputs);
    for input in inputs {
        match &input {
            Input::Switch(all) => step.inputs.extend(members(all).iter().map(|&owner| match owner == rank {
                true => Input::Local(place(all)),
                false => Input::Peer(remote(all, owner)),
            })),
            _ => step.inputs.push(input),
        }
    }
    let outputs = std::mem::take(&mut step.outputs);
    for output in outputs {
        match &output {
            Output::Multicast(all) => {
                step.outputs.extend(members(all).iter().map(|&owner| match owner == rank {
                    true => Output::Local(place(all)),
                    false => Output::Peer(remote(all, owner)),
                }))
            }
            _ => step.outputs.push(output),
        }
    }
    if step.op == Op::Copy && step.inputs.len() > 1 {
        step.op = Op::Reduce;
    }
}
