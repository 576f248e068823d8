//! Maximum flow by Dinic's algorithm, on small graphs with integer capacities.

/// A graph to push flow through.
#[derive(Debug, Clone, Default)]
pub struct FlowGraph {
    /// Edges in pairs: edge `e` and its reverse `e ^ 1`.
    targets: Vec<u32>,
    residual: Vec<u64>,
    original: Vec<u64>,
    edges_from: Vec<Vec<u32>>,
    level: Vec<u32>,
    next: Vec<u32>,
    path: Vec<usize>,
}

const UNREACHED: u32 = u32::MAX;

impl FlowGraph {
    /// A graph of `nodes` nodes and no edges.
    pub fn new(nodes: usize) -> Self {
        Self {
            edges_from: vec![Vec::new(); nodes],
            level: vec![UNREACHED; nodes],
            next: vec![0; nodes],
            ..Self::default()
        }
    }

    /// Adds a directed edge and returns its number.
    pub fn edge(&mut self, source: usize, target: usize, capacity: u64) -> usize {
        let edge = self.targets.len();
        self.targets.extend([target as u32, source as u32]);
        self.residual.extend([capacity, 0]);
        self.original.extend([capacity, 0]);
        self.edges_from[source].push(edge as u32);
        self.edges_from[target].push(edge as u32 + 1);
        edge
    }

    /// Sets the capacity of an edge for the next flow.
    pub fn set_capacity(&mut self, edge: usize, capacity: u64) {
        self.original[edge] = capacity;
    }

    /// The maximum flow from source to sink, computed from scratch.
    pub fn max_flow(&mut self, source: usize, sink: usize) -> u64 {
        self.residual.copy_from_slice(&self.original);
        let mut total = 0_u64;
        while self.find_levels(source, sink) {
            self.next.fill(0);
            loop {
                let pushed = self.push(source, sink);
                if pushed == 0 {
                    break;
                }
                total = total.saturating_add(pushed);
            }
        }
        total
    }

    /// An edge's capacity.
    pub fn capacity(&self, edge: usize) -> u64 {
        self.original[edge]
    }

    /// The flow over an edge in the last [`Self::max_flow`].
    pub fn flow(&self, edge: usize) -> u64 {
        self.original[edge].saturating_sub(self.residual[edge])
    }

    fn find_levels(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(UNREACHED);
        self.level[source] = 0;
        let mut queue = std::collections::VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.edges_from[node] {
                let target = self.targets[edge as usize] as usize;
                if self.residual[edge as usize] > 0 && self.level[target] == UNREACHED {
                    self.level[target] = self.level[node] + 1;
                    queue.push_back(target);
                }
            }
        }
        self.level[sink] != UNREACHED
    }

    /// Pushes flow along one path of rising levels.
    fn push(&mut self, source: usize, sink: usize) -> u64 {
        self.path.clear();
        let mut node = source;
        while node != sink {
            match self.edges_from[node].get(self.next[node] as usize).map(|&edge| edge as usize) {
                Some(edge) => {
                    let target = self.targets[edge] as usize;
                    if self.residual[edge] > 0 && self.level[target] == self.level[node] + 1 {
                        self.path.push(edge);
                        node = target;
                    } else {
                        self.next[node] += 1;
                    }
                }
                // A dead end: step back and skip this node from now on.
                None => match self.path.pop() {
                    Some(edge) => {
                        node = self.targets[edge ^ 1] as usize;
                        self.next[node] += 1;
                    }
                    None => return 0,
                },
            }
        }
        let pushed = self.path.iter().map(|&edge| self.residual[edge]).min().unwrap_or(0);
        for &edge in &self.path {
            self.residual[edge] -= pushed;
            self.residual[edge ^ 1] = self.residual[edge ^ 1].saturating_add(pushed);
        }
        pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_split_and_meet() {
        let mut graph = FlowGraph::new(4);
        graph.edge(0, 1, 3);
        graph.edge(0, 2, 2);
        graph.edge(1, 2, 5);
        let last = graph.edge(1, 3, 2);
        graph.edge(2, 3, 3);
        assert_eq!(graph.max_flow(0, 3), 5);
        graph.set_capacity(last, 0);
        assert_eq!(graph.max_flow(0, 3), 3);
        assert_eq!(graph.max_flow(3, 0), 0);
    }
}
