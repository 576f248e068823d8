//! Walking a lane: its steps in the order they run, with loops unrolled on the fly.
//!
//! The verifier, the oracle, the simulator and every compiler use this one iterator, so the meaning of a loop is defined
//! once.

use crate::plan::{Lane, Node, Step};

/// A step of a walk.
#[derive(Clone, Debug)]
pub struct Visit<'p> {
    /// The step as written.
    pub step: &'p Step,
    /// The number of the step among the lane's written steps, from 0.
    pub index: u32,
    /// The iteration of each loop around it, outermost first.
    pub iterations: Vec<u32>,
}

impl Lane {
    /// The steps in the order they run.
    pub fn walk(&self) -> Walk<'_> {
        Walk { stack: vec![Frame { nodes: &self.nodes, next: 0, index: 0, iteration: 0, times: 1 }] }
    }

    /// The number of steps of a walk, computed without walking.
    pub fn length(&self) -> u64 {
        length(&self.nodes)
    }

    /// The steps as written, each once.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        let mut stack: Vec<_> = self.nodes.iter().rev().collect();
        std::iter::from_fn(move || {
            loop {
                match stack.pop()? {
                    Node::Step(step) => return Some(step),
                    Node::Loop(inner) => stack.extend(inner.body.iter().rev()),
                }
            }
        })
    }
}

/// The iterator behind [`Lane::walk`].
#[derive(Clone, Debug)]
pub struct Walk<'p> {
    /// The current loops, innermost last; the lane itself is a loop of one iteration.
    stack: Vec<Frame<'p>>,
}

#[derive(Clone, Debug)]
struct Frame<'p> {
    nodes: &'p [Node],
    /// The position of the next node, and the number of the first written step at or after it.
    next: usize,
    index: u32,
    iteration: u32,
    times: u32,
}

impl<'p> Iterator for Walk<'p> {
    type Item = Visit<'p>;

    fn next(&mut self) -> Option<Visit<'p>> {
        loop {
            let frame = self.stack.last_mut()?;
            let Some(node) = frame.nodes.get(frame.next) else {
                let length = steps_in(frame.nodes);
                frame.iteration += 1;
                if frame.iteration < frame.times {
                    frame.next = 0;
                    frame.index -= length;
                } else {
                    let index = frame.index;
                    self.stack.pop();
                    if let Some(outer) = self.stack.last_mut() {
                        outer.index = index;
                    }
                }
                continue;
            };
            frame.next += 1;
            match node {
                Node::Step(step) => {
                    let index = frame.index;
                    frame.index += 1;
                    let iterations = self.stack.iter().skip(1).map(|frame| frame.iteration).collect();
                    return Some(Visit { step, index, iterations });
                }
                // Skipped: iterating over an empty body would take as long as over a full one.
                Node::Loop(inner) if !runs(node) => frame.index += steps_in(&inner.body),
                Node::Loop(inner) => {
                    let index = frame.index;
                    self.stack.push(Frame {
                        nodes: &inner.body,
                        next: 0,
                        index,
                        iteration: 0,
                        times: inner.times,
                    });
                }
            }
        }
    }
}

/// Whether a node has a step that ever runs.
fn runs(node: &Node) -> bool {
    match node {
        Node::Step(_) => true,
        Node::Loop(inner) => inner.times > 0 && inner.body.iter().any(runs),
    }
}

/// The number of steps that these nodes run.
fn length(nodes: &[Node]) -> u64 {
    let of = |node: &Node| match node {
        Node::Step(_) => 1,
        Node::Loop(inner) => length(&inner.body).saturating_mul(inner.times.into()),
    };
    nodes.iter().map(of).fold(0, u64::saturating_add)
}

/// The number of written steps in these nodes.
fn steps_in(nodes: &[Node]) -> u32 {
    nodes
        .iter()
        .map(|node| match node {
            Node::Step(_) => 1,
            Node::Loop(inner) => steps_in(&inner.body),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Loop, Op};

    fn step(counter: u32) -> Node {
        let signals = vec![counter];
        Node::Step(Step { waits: vec![], inputs: vec![], op: Op::Sync, outputs: vec![], signals })
    }

    fn repeat(times: u32, body: Vec<Node>) -> Node {
        Node::Loop(Loop { times, body })
    }

    #[test]
    fn loops_nest_and_may_be_empty() {
        let nodes = vec![
            step(0),
            repeat(0, vec![step(1)]),
            repeat(2, vec![step(2), repeat(2, vec![step(3)]), repeat(9, vec![])]),
            repeat(u32::MAX, vec![repeat(u32::MAX, vec![repeat(0, vec![])])]),
            step(4),
        ];
        let lane = Lane { channel: 0, nodes };
        let seen: Vec<_> = lane.walk().map(|visit| (visit.index, visit.iterations)).collect();
        let inner = |outer, inner| (3, vec![outer, inner]);
        let expected = [
            (0, vec![]),
            (2, vec![0]),
            inner(0, 0),
            inner(0, 1),
            (2, vec![1]),
            inner(1, 0),
            inner(1, 1),
            (4, vec![]),
        ];
        assert_eq!(seen, expected);
        assert!(lane.walk().all(|visit| visit.step.signals == [visit.index]));
        assert_eq!(lane.length(), lane.walk().count() as u64);
        assert_eq!(lane.steps().count(), 5);
    }
}
