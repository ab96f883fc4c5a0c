//! Maximum flow on integer capacities (Dinic 1970: shortest augmenting paths, found in phases of a layered graph).
//!
//! The planner asks for thousands of flows on graphs of fewer than a hundred nodes that differ in a few capacities, so
//! the network is built once; each call starts over from the stored capacities and may stop early.

/// A capacity that no cut of real links reaches.
///
/// A flow stops once it carries this much, so that sums of a few of them do not overflow.
pub(crate) const INFINITE: i64 = 1 << 60;

/// No arc.
const NONE: usize = usize::MAX;

/// A directed network; arc `a` is stored at `2a`, its reverse at `2a + 1`.
///
/// The arcs out of a node are a linked list, so that building a network takes a handful of allocations.
#[derive(Clone, Debug)]
pub(crate) struct FlowNetwork {
    head: Vec<usize>,
    capacity: Vec<i64>,
    residual: Vec<i64>,
    /// The first arc out of each node, and the one after each arc.
    first: Vec<usize>,
    after: Vec<usize>,
    level: Vec<u32>,
    /// The arc out of each node that is tried next.
    next: Vec<usize>,
    queue: Vec<usize>,
    source: usize,
}

impl FlowNetwork {
    /// A network without arcs.
    pub(crate) fn new(nodes: usize) -> FlowNetwork {
        FlowNetwork {
            head: Vec::new(),
            capacity: Vec::new(),
            residual: Vec::new(),
            first: vec![NONE; nodes],
            after: Vec::new(),
            level: vec![0; nodes],
            next: vec![NONE; nodes],
            queue: Vec::with_capacity(nodes),
            source: 0,
        }
    }

    /// Adds an arc and returns its number (0, 1, 2, …).
    pub(crate) fn add_arc(&mut self, from: usize, to: usize, capacity: i64) -> usize {
        let id = self.head.len();
        self.head.extend([to, from]);
        self.capacity.extend([capacity, 0]);
        self.after.extend([self.first[from], NONE]);
        self.first[from] = id;
        self.after[id + 1] = self.first[to];
        self.first[to] = id + 1;
        id / 2
    }

    /// Changes the capacity of an arc for the flows to come.
    pub(crate) fn set_capacity(&mut self, arc: usize, capacity: i64) {
        self.capacity[2 * arc] = capacity;
    }

    /// The largest flow from `source` to `sink`, or `limit` when at least that much fits.
    pub(crate) fn max_flow(&mut self, source: usize, sink: usize, limit: i64) -> i64 {
        debug_assert_ne!(source, sink);
        self.residual.clone_from(&self.capacity);
        self.more_flow(source, sink, limit)
    }

    /// Widens an arc without taking back what flows.
    pub(crate) fn widen(&mut self, arc: usize, by: i64) {
        self.capacity[2 * arc] += by;
        self.residual[2 * arc] += by;
    }

    /// What can flow in addition to the last flow, or `limit` when at least that much fits.
    pub(crate) fn more_flow(&mut self, source: usize, sink: usize, limit: i64) -> i64 {
        self.source = source;
        let limit = limit.min(INFINITE);
        let mut flow = 0;
        while flow < limit && self.layer(source, sink) {
            self.next.copy_from_slice(&self.first);
            while flow < limit {
                match self.push(source, sink, limit - flow) {
                    0 => break,
                    pushed => flow += pushed,
                }
            }
        }
        flow
    }

    /// The nodes on the source's side of a minimum cut (the smallest such side), after a flow that hit no limit.
    pub(crate) fn source_side(&mut self) -> Vec<bool> {
        self.layer(self.source, usize::MAX);
        self.level.iter().map(|&level| level > 0).collect()
    }

    /// Breadth-first levels, counted from 1; 0 marks what cannot be reached. Says whether the sink was reached.
    fn layer(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(0);
        self.level[source] = 1;
        self.queue.clear();
        self.queue.push(source);
        let mut done = 0;
        while let Some(&node) = self.queue.get(done) {
            done += 1;
            let mut id = self.first[node];
            while id != NONE {
                let to = self.head[id];
                if self.residual[id] > 0 && self.level[to] == 0 {
                    self.level[to] = self.level[node] + 1;
                    if to == sink {
                        return true;
                    }
                    self.queue.push(to);
                }
                id = self.after[id];
            }
        }
        false
    }

    fn push(&mut self, node: usize, sink: usize, amount: i64) -> i64 {
        if node == sink {
            return amount;
        }
        while self.next[node] != NONE {
            let id = self.next[node];
            let to = self.head[id];
            if self.residual[id] > 0 && self.level[to] == self.level[node] + 1 {
                let pushed = self.push(to, sink, amount.min(self.residual[id]));
                if pushed > 0 {
                    self.residual[id] -= pushed;
                    self.residual[id ^ 1] += pushed;
                    return pushed;
                }
            }
            self.next[node] = self.after[id];
        }
        0
    }

    /// What the last flow sends over an arc.
    pub(crate) fn flow_on(&self, arc: usize) -> i64 {
        self.capacity[2 * arc] - self.residual[2 * arc]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::graph::{DiGraph, NodeIndex};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn agrees_with_petgraph_and_its_cut(nodes in 2usize..9, raw in prop::collection::vec((0usize..9, 0usize..9, 0i64..20), 0..30)) {
            let arcs: Vec<_> = raw.into_iter().map(|(u, v, c)| (u % nodes, v % nodes, c)).filter(|a| a.0 != a.1).collect();
            let mut own = FlowNetwork::new(nodes);
            let mut oracle = DiGraph::<(), u64>::new();
            (0..nodes).for_each(|_| { oracle.add_node(()); });
            for &(u, v, c) in &arcs {
                own.add_arc(u, v, c);
                oracle.add_edge(NodeIndex::new(u), NodeIndex::new(v), c as u64);
            }
            let (expected, _) = petgraph::algo::ford_fulkerson(&oracle, NodeIndex::new(0), NodeIndex::new(nodes - 1));
            let expected = expected as i64;
            prop_assert_eq!(own.max_flow(0, nodes - 1, INFINITE), expected);
            let side = own.source_side();
            prop_assert!(side[0] && !side[nodes - 1]);
            let cut: i64 = arcs.iter().filter(|a| side[a.0] && !side[a.1]).map(|a| a.2).sum();
            prop_assert_eq!(cut, expected);
            // A second run starts over, and a limit stops it early.
            prop_assert_eq!(own.max_flow(0, nodes - 1, expected / 2), expected / 2);
        }
    }

    #[test]
    fn infinite_arcs_tie_nodes() {
        let mut net = FlowNetwork::new(4);
        net.add_arc(0, 1, INFINITE);
        let thin = net.add_arc(1, 2, 7);
        net.add_arc(2, 3, INFINITE);
        assert_eq!(net.max_flow(0, 3, INFINITE), 7);
        assert_eq!(net.source_side(), [true, true, false, false]);
        net.set_capacity(thin, 9);
        assert_eq!(net.max_flow(0, 3, INFINITE), 9);
        assert_eq!(net.flow_on(thin), 9);
    }
}
