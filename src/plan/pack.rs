//! Packing spanning out-trees between GPUs: Edmonds' theorem (1973), made constructive (Lovász 1976), with multiplicities.
//!
//! If from all roots together every GPU can receive as many trees as there are, the capacities hold that many
//! arc-disjoint trees. They are grown one batch of equal trees at a time, an arc at a time. The invariant is that for each
//! set of GPUs the capacity into it is at least the number of unfinished trees that have not reached it; one max-flow says
//! how many trees may use an arc without breaking it, and some arc is always usable.

use super::flow::FlowNetwork;

/// Equal trees that are grown together.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) root: usize,
    pub(crate) trees: i64,
    /// (parent, child), each parent reached before.
    pub(crate) edges: Vec<(usize, usize)>,
    /// Hops from the root, where reached.
    depth: Vec<Option<usize>>,
}

impl Batch {
    fn reached(&self, gpu: usize) -> bool {
        self.depth[gpu].is_some()
    }
}

/// Packs `demand[g]` trees rooted at each GPU `g` into `units[from][to]`, which keeps what is left.
///
/// `None` where they do not fit.
pub(crate) fn pack_trees(units: &mut [Vec<i64>], demand: &[i64]) -> Option<Vec<Batch>> {
    let gpus = demand.len();
    let mut waiting: Vec<Batch> = Vec::new();
    for (root, &trees) in demand.iter().enumerate().filter(|(_, trees)| **trees > 0) {
        let mut depth = vec![None; gpus];
        depth[root] = Some(0);
        waiting.push(Batch { root, trees, edges: Vec::new(), depth });
    }
    waiting.reverse();
    let mut done = Vec::new();
    while let Some(mut batch) = waiting.pop() {
        while batch.edges.len() + 1 < gpus {
            let (from, to, trees) = next_arc(units, &waiting, &batch)?;
            if trees < batch.trees {
                let rest = Batch { trees: batch.trees - trees, ..batch.clone() };
                waiting.push(rest);
                batch.trees = trees;
            }
            units[from][to] -= trees;
            batch.edges.push((from, to));
            batch.depth[to] = batch.depth[from].map(|depth| depth + 1);
        }
        done.push(batch);
    }
    Some(done)
}

/// The arc to grow a batch by, and how many of its trees can use it: from the nearest GPU to the root that has one, the
/// one that most trees can use.
fn next_arc(units: &[Vec<i64>], others: &[Batch], batch: &Batch) -> Option<(usize, usize, i64)> {
    let gpus = units.len();
    let mut sources: Vec<(usize, usize)> =
        (0..gpus).filter_map(|gpu| batch.depth[gpu].map(|depth| (depth, gpu))).collect();
    sources.sort_unstable();
    let mut best: Option<(usize, usize, i64)> = None;
    let mut level = 0;
    for (depth, from) in sources {
        if depth > level && best.is_some() {
            break;
        }
        level = depth;
        let mut targets: Vec<usize> =
            (0..gpus).filter(|&to| !batch.reached(to) && units[from][to] > 0).collect();
        if targets.is_empty() {
            continue;
        }
        targets.sort_by_key(|&to| std::cmp::Reverse(units[from][to].min(batch.trees)));
        let (mut net, waiting) = network(units, others, from);
        for to in targets {
            let most = batch.trees.min(units[from][to]);
            if best.is_some_and(|(_, _, trees)| trees >= most) {
                break;
            }
            let usable = most.min(net.max_flow(from, to, waiting + most) - waiting);
            if usable > best.map_or(0, |(_, _, trees)| trees) {
                best = Some((from, to, usable));
            }
            if usable == batch.trees {
                return best;
            }
        }
    }
    best
}

/// What is left, with a way around it from `from` into each waiting batch of trees; and how many trees wait.
fn network(units: &[Vec<i64>], others: &[Batch], from: usize) -> (FlowNetwork, i64) {
    let gpus = units.len();
    let mut net = FlowNetwork::new(gpus + others.len());
    for (a, row) in units.iter().enumerate() {
        for (b, &units) in row.iter().enumerate().filter(|(_, units)| **units > 0) {
            net.add_arc(a, b, units);
        }
    }
    for (index, other) in others.iter().enumerate() {
        net.add_arc(from, gpus + index, other.trees);
        for gpu in (0..gpus).filter(|&gpu| other.reached(gpu)) {
            net.add_arc(gpus + index, gpu, other.trees);
        }
    }
    (net, others.iter().map(|other| other.trees).sum())
}
