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

/// In which order trees are grown. All orders reach the rate; depth and the number of different trees vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Grow all batches together, one arc each in turn, instead of one batch after the other.
    pub(crate) together: bool,
    /// Shuffles what the other rules leave open.
    pub(crate) seed: u64,
}

impl Order {
    /// The first few of an endless list of orders.
    pub(crate) fn some(count: u64) -> impl Iterator<Item = Order> {
        // Growing together mostly gives shallower trees, so only the natural order is tried both ways.
        (0..count).map(|index| Order { together: index > 0, seed: index.saturating_sub(1) })
    }

    /// A rank that looks random, the natural one for seed 0.
    const fn rank(self, index: usize) -> u64 {
        match self.seed {
            0 => index as u64,
            seed => {
                let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * seed + 1);
                (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
            }
        }
    }
}

/// Packs `demand[g]` trees rooted at each GPU `g` into `units[from][to]`.
///
/// `None` where they do not fit.
pub(crate) fn pack_trees(units: &[Vec<i64>], demand: &[i64], order: Order) -> Option<Vec<Batch>> {
    let gpus = demand.len();
    let mut units = units.to_vec();
    let mut waiting: Vec<Batch> = Vec::new();
    for (root, &trees) in demand.iter().enumerate().filter(|(_, trees)| **trees > 0) {
        let mut depth = vec![None; gpus];
        depth[root] = Some(0);
        waiting.push(Batch { root, trees, edges: Vec::new(), depth });
    }
    waiting.sort_by_key(|batch| std::cmp::Reverse(order.rank(batch.root)));
    let mut done = Vec::new();
    while let Some(mut batch) = take_next(&mut waiting, order) {
        while batch.edges.len() + 1 < gpus {
            let (from, to, trees) = next_arc(&units, &waiting, &batch, order)?;
            if trees < batch.trees {
                let rest = Batch { trees: batch.trees - trees, ..batch.clone() };
                waiting.push(rest);
                batch.trees = trees;
            }
            units[from][to] -= trees;
            batch.edges.push((from, to));
            batch.depth[to] = batch.depth[from].map(|depth| depth + 1);
            if order.together {
                break;
            }
        }
        if batch.edges.len() + 1 < gpus { waiting.push(batch) } else { done.push(batch) }
    }
    Some(done)
}

/// The last batch, or the one with the fewest edges.
fn take_next(waiting: &mut Vec<Batch>, order: Order) -> Option<Batch> {
    let last = waiting.len().checked_sub(1)?;
    let fewest = || (0..=last).rev().min_by_key(|&index| waiting[index].edges.len());
    let index = if order.together { fewest().unwrap_or(last) } else { last };
    Some(waiting.remove(index))
}

/// The arc to grow a batch by, and how many of its trees can use it: from the nearest GPU to the root that has one, the
/// one that most trees can use.
fn next_arc(
    units: &[Vec<i64>],
    others: &[Batch],
    batch: &Batch,
    order: Order,
) -> Option<(usize, usize, i64)> {
    let gpus = units.len();
    let mut sources: Vec<(usize, u64, usize)> =
        (0..gpus).filter_map(|gpu| batch.depth[gpu].map(|depth| (depth, order.rank(gpu), gpu))).collect();
    sources.sort_unstable();
    let mut best: Option<(usize, usize, i64)> = None;
    let mut level = 0;
    for (depth, _, from) in sources {
        if depth > level && best.is_some() {
            break;
        }
        level = depth;
        let mut targets: Vec<usize> =
            (0..gpus).filter(|&to| !batch.reached(to) && units[from][to] > 0).collect();
        if targets.is_empty() {
            continue;
        }
        targets.sort_by_key(|&to| {
            (std::cmp::Reverse(units[from][to].min(batch.trees)), order.rank(from * gpus + to))
        });
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
