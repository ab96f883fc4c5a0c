//! Spanning trees with weights, and the proof that a set of them fits a graph.

use super::graph::Graph;
use super::ratio::Ratio;
use crate::{Collective, Error, Result};

/// One edge of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeEdge {
    /// The GPU nearer to the root.
    pub parent: usize,
    /// The GPU farther from it.
    pub child: usize,
    /// The path between them: `parent`, switches, `child`.
    pub hops: Vec<usize>,
}

/// A tree that spans all GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tree {
    /// The GPU that sends to all, or receives from all.
    pub root: usize,
    /// How many [`Forest::unit`]s of rate it carries.
    pub weight: i64,
    /// All edges, nearest to the root first (breadth first).
    pub edges: Vec<TreeEdge>,
}

impl Tree {
    /// The parent of each GPU; `None` for the root.
    pub fn parents(&self, gpus: usize) -> Vec<Option<usize>> {
        let mut parents = vec![None; gpus];
        self.edges.iter().for_each(|edge| parents[edge.child] = Some(edge.parent));
        parents
    }

    /// The number of hops from the root to the farthest GPU.
    pub fn depth(&self) -> usize {
        let gpus = self.edges.len() + 1;
        let mut depth = vec![0; gpus];
        for edge in &self.edges {
            depth[edge.child] = depth[edge.parent] + 1;
        }
        depth.into_iter().max().unwrap_or(0)
    }

    /// Brings the edges into breadth-first order.
    pub(crate) fn sort_edges(&mut self) {
        let mut depth = vec![0; self.edges.len() + 1];
        for edge in &self.edges {
            depth[edge.child] = depth[edge.parent] + 1;
        }
        self.edges.sort_by_key(|edge| (depth[edge.child], edge.parent, edge.child));
    }
}

/// Trees that carry a collective together, each a share of the data.
///
/// - all_gather: the trees of root `r` carry rank `r`'s block away from it, together as much as those of any other root;
/// - broadcast: all trees leave the root;
/// - reduce_scatter, reduce: the same with data flowing from children to parents, adding up on the way;
/// - all_reduce: each tree reduces its share to its root and sends the result back, in one pipelined schedule, so that each
///   edge is used in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest {
    /// What the trees are for.
    pub collective: Collective,
    /// The number of GPUs.
    pub gpus: usize,
    /// The rate of weight 1, in MB/s.
    pub unit: Ratio,
    /// The trees.
    pub trees: Vec<Tree>,
}

impl Forest {
    /// The sum of all weights; a tree's share of the whole buffer is its weight over this.
    pub fn weight(&self) -> i64 {
        self.trees.iter().map(|tree| tree.weight).sum()
    }

    /// Whole buffer over time when all links run at capacity, in MB/s.
    pub fn algbw(&self) -> Ratio {
        self.unit * Ratio::from(self.weight())
    }

    /// The depth of the deepest tree.
    pub fn depth(&self) -> usize {
        self.trees.iter().map(Tree::depth).max().unwrap_or(0)
    }

    /// Checks the forest against the graph: every tree spans all GPUs along real links and is in order, no link carries
    /// more than its capacity, and the roots carry what the collective needs.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] with the first thing that is wrong.
    pub fn verify(&self, graph: &Graph) -> Result<()> {
        let fault = |reason: String| Error::InvalidSchedule {
            schedule: format!("forest for {} on {} GPUs", self.collective.name(), self.gpus),
            reason,
        };
        if self.gpus != graph.gpus() || self.unit <= Ratio::ZERO || self.trees.is_empty() {
            return Err(fault(format!(
                "{} trees of unit {} for {} GPUs",
                self.trees.len(),
                self.unit,
                graph.gpus()
            )));
        }
        let out = matches!(
            self.collective,
            Collective::AllGather | Collective::Broadcast { .. } | Collective::AllReduce
        );
        let back = !matches!(self.collective, Collective::AllGather | Collective::Broadcast { .. });
        let capacity = graph.matrix();
        let mut load = vec![vec![0i64; graph.nodes()]; graph.nodes()];
        let mut by_root = vec![0i64; self.gpus];
        for (index, tree) in self.trees.iter().enumerate() {
            self.check_shape(tree, graph).map_err(|reason| fault(format!("tree {index} {reason}")))?;
            by_root[tree.root] += tree.weight;
            for step in tree.edges.iter().flat_map(|edge| edge.hops.windows(2)) {
                load[step[0]][step[1]] += if out { tree.weight } else { 0 };
                load[step[1]][step[0]] += if back { tree.weight } else { 0 };
            }
        }
        for (from, row) in load.iter().enumerate() {
            for (to, &load) in row.iter().enumerate() {
                if self.unit * Ratio::from(load) > Ratio::from(capacity[from][to]) {
                    return Err(fault(format!(
                        "{load} units of {} MB/s from {} to {}, which carries {} MB/s",
                        self.unit,
                        graph.name(from),
                        graph.name(to),
                        capacity[from][to]
                    )));
                }
            }
        }
        match self.collective.root() {
            Some(root) => match self.trees.iter().find(|tree| tree.root != root) {
                Some(tree) => Err(fault(format!("a tree at {} where the root is {root}", tree.root))),
                None => Ok(()),
            },
            None if self.collective == Collective::AllReduce => Ok(()),
            None => match by_root.iter().position(|&weight| weight != by_root[0]) {
                Some(root) => {
                    Err(fault(format!("root 0 carries {} units, root {root} {}", by_root[0], by_root[root])))
                }
                None => Ok(()),
            },
        }
    }

    fn check_shape(&self, tree: &Tree, graph: &Graph) -> Result<(), String> {
        let mut reached = vec![false; self.gpus];
        match reached.get_mut(tree.root) {
            Some(root) => *root = true,
            None => return Err(format!("has root {}, which is no GPU", tree.root)),
        }
        if tree.weight <= 0 {
            return Err(format!("has weight {}", tree.weight));
        }
        for edge in &tree.edges {
            let TreeEdge { parent, child, hops } = edge;
            if *parent >= self.gpus || *child >= self.gpus || !reached[*parent] || reached[*child] {
                return Err(format!("has edge {parent} to {child} out of order or twice"));
            }
            reached[*child] = true;
            let inner = hops.get(1..hops.len().saturating_sub(1)).unwrap_or(&[]);
            let ends = hops.first() == Some(parent) && hops.last() == Some(child);
            if !ends || inner.iter().any(|&node| !graph.is_switch(node) || node >= graph.nodes()) {
                return Err(format!("goes from {parent} to {child} by {hops:?}"));
            }
        }
        match reached.iter().position(|&reached| !reached) {
            Some(gpu) => Err(format!("does not reach {gpu}")),
            None => Ok(()),
        }
    }
}

/// The rate of weight 1 at which no link is overloaded when all trees are used in both directions; 0 without a load.
pub(crate) fn unit_in_both_directions(graph: &Graph, trees: &[Tree]) -> Ratio {
    let mut load = vec![vec![0i64; graph.nodes()]; graph.nodes()];
    for tree in trees {
        for step in tree.edges.iter().flat_map(|edge| edge.hops.windows(2)) {
            load[step[0]][step[1]] += tree.weight;
            load[step[1]][step[0]] += tree.weight;
        }
    }
    let loaded = graph.arcs().iter().filter(|arc| load[arc.from][arc.to] > 0);
    let units = loaded.map(|arc| Ratio::new(arc.capacity.into(), load[arc.from][arc.to].into()));
    units.min().unwrap_or(Ratio::ZERO)
}
