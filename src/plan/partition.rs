//! The weakest partition of the GPUs, found without enumerating partitions.
//!
//! For groups `V1..Vp` of the GPUs let `cut(Vi)` be the least capacity from `Vi` to the other GPUs, switches placed
//! freely. All_reduce at rate λ needs `Σ cut(Vi) ≥ 2 λ (p - 1)` for every partition: `p - 1` messages an element until
//! the first group has the sum, and `p - 1` more to tell the others. `cut` is submodular, so the partition that minimises
//! `Σ (cut(Vi) - 2λ)` follows from one minimum cut a GPU (Dilworth truncation, greedily).

use super::flow::{FlowNetwork, INFINITE};
use super::graph::Graph;
use super::ratio::Ratio;

/// One group of a partition, with its least cut.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The group's GPUs, ascending.
    pub(crate) gpus: Vec<usize>,
    /// Capacity from the group to the other GPUs.
    pub(crate) cut: i64,
    /// The nodes on the group's side of that cut.
    pub(crate) side: Vec<bool>,
}

/// Minimum cuts between sets of GPUs of one graph whose capacities may change.
pub(crate) struct Cuts {
    net: FlowNetwork,
    gpus: usize,
    nodes: usize,
    /// The arcs from the super source to each GPU, and from each GPU to the super sink.
    from_source: Vec<usize>,
    to_sink: Vec<usize>,
}

impl Cuts {
    /// Cuts of `graph` with its capacities times `scale`.
    pub(crate) fn new(graph: &Graph, scale: i64) -> Cuts {
        let arcs = graph.arcs().iter().map(|arc| (arc.from, arc.to, arc.capacity * scale));
        Cuts::of_arcs(graph.nodes(), graph.gpus(), arcs)
    }

    /// Cuts of a graph given by its arcs `(from, to, capacity)`; its first nodes are GPUs.
    pub(crate) fn of_arcs(
        nodes: usize,
        gpus: usize,
        arcs: impl Iterator<Item = (usize, usize, i64)>,
    ) -> Cuts {
        let mut net = FlowNetwork::new(nodes + 2);
        for (from, to, capacity) in arcs {
            net.add_arc(from, to, capacity);
        }
        let from_source = (0..gpus).map(|gpu| net.add_arc(nodes, gpu, 0)).collect();
        let to_sink = (0..gpus).map(|gpu| net.add_arc(gpu, nodes + 1, 0)).collect();
        Cuts { net, gpus, nodes, from_source, to_sink }
    }

    /// Changes the capacity of a graph arc; not scaled.
    pub(crate) fn set_capacity(&mut self, arc: usize, capacity: i64) {
        self.net.set_capacity(arc, capacity);
    }

    /// Runs a flow after setting what a GPU pays for being on the sink's and on the source's side.
    fn cut(&mut self, cost: impl Fn(usize) -> (i64, i64)) -> (i64, Vec<bool>) {
        for gpu in 0..self.gpus {
            let (if_sink, if_source) = cost(gpu);
            self.net.set_capacity(self.from_source[gpu], if_sink);
            self.net.set_capacity(self.to_sink[gpu], if_source);
        }
        let value = self.net.max_flow(self.nodes, self.nodes + 1, INFINITE);
        let mut side = self.net.source_side();
        side.truncate(self.nodes);
        (value, side)
    }

    /// The least cut from some GPUs to all others, and the nodes on their side of it.
    pub(crate) fn separate(&mut self, inside: impl Fn(usize) -> bool) -> (i64, Vec<bool>) {
        self.cut(|gpu| if inside(gpu) { (INFINITE, 0) } else { (0, INFINITE) })
    }

    /// The group with its least cut.
    pub(crate) fn part(&mut self, gpus: Vec<usize>) -> Part {
        let (cut, side) = self.separate(|gpu| gpus.contains(&gpu));
        Part { gpus, cut, side }
    }

    /// A partition with `Σ cut(Vi) < due * (p - 1)`, or `None` where every partition has at least that.
    pub(crate) fn violated(&mut self, due: i64) -> Option<Vec<Part>> {
        // y[i] is the least of cut(A) - due - y(A without i) over the sets A of GPUs up to i that hold i. The sum of all
        // y is the least Σ (cut(Vi) - due), and the minimisers, merged where they overlap, are the groups.
        let mut y: Vec<i64> = Vec::with_capacity(self.gpus);
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        for last in 0..self.gpus {
            let gain: i64 = y.iter().map(|&price| price.max(0)).sum();
            let (value, side) = self.cut(|gpu| match gpu.cmp(&last) {
                std::cmp::Ordering::Less => (y[gpu].max(0), (-y[gpu]).max(0)),
                std::cmp::Ordering::Equal => (INFINITE, 0),
                std::cmp::Ordering::Greater => (0, INFINITE),
            });
            y.push(value - gain - due);
            let (joined, mut rest): (Vec<_>, Vec<_>) =
                blocks.into_iter().partition(|block| block.iter().any(|&gpu| side[gpu]));
            let mut block = joined.concat();
            block.push(last);
            rest.push(block);
            blocks = rest;
        }
        if y.iter().sum::<i64>() >= -due {
            return None;
        }
        blocks.iter_mut().for_each(|block| block.sort_unstable());
        blocks.sort_unstable();
        Some(blocks.into_iter().map(|block| self.part(block)).collect())
    }
}

/// `Σ cut(Vi) / (2 (p - 1))`.
pub(crate) fn partition_rate(parts: &[Part]) -> Ratio {
    let total: i128 = parts.iter().map(|part| i128::from(part.cut)).sum();
    Ratio::new(total, 2 * (parts.len() as i128 - 1))
}

/// The weakest partition of at least two GPUs: the one with the least [`partition_rate`], exactly.
///
/// Newton's method on the rate, from the partition into single GPUs: each round finds a partition that violates the
/// current rate and takes that partition's own, which is strictly lower.
pub(crate) fn weakest_partition(graph: &Graph) -> Vec<Part> {
    let mut plain = Cuts::new(graph, 1);
    let mut parts: Vec<Part> = (0..graph.gpus()).map(|gpu| plain.part(vec![gpu])).collect();
    loop {
        let total: i64 = parts.iter().map(|part| part.cut).sum();
        let scale = parts.len() as i64 - 1;
        match Cuts::new(graph, scale).violated(total) {
            None => return parts,
            Some(found) => parts = found.into_iter().map(|part| plain.part(part.gpus)).collect(),
        }
    }
}
