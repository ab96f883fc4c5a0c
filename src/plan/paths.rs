//! Paths between GPUs that pass switches only.

use super::graph::Graph;

/// Nodes on the way, both ends included.
pub(crate) type Path = Vec<usize>;

/// The cheapest path from one GPU to each other GPU, with its cost; `None` where there is none without a GPU in between.
///
/// `cost` is per arc and must not be negative. Dijkstra's algorithm on a matrix of arcs: graphs have a few dozen nodes.
pub(crate) fn cheapest(graph: &Graph, from: usize, cost: &[f64]) -> Vec<Option<(f64, Path)>> {
    let nodes = graph.nodes();
    let mut best = vec![f64::INFINITY; nodes];
    let mut before = vec![usize::MAX; nodes];
    let mut done = vec![false; nodes];
    best[from] = 0.0;
    loop {
        let open = (0..nodes).filter(|&node| !done[node] && best[node].is_finite());
        let Some(node) = open.min_by(|&a, &b| best[a].total_cmp(&best[b])) else { break };
        done[node] = true;
        if node != from && !graph.is_switch(node) {
            continue;
        }
        for (arc, cost) in graph.arcs().iter().zip(cost).filter(|(arc, _)| arc.from == node) {
            if best[node] + cost < best[arc.to] {
                best[arc.to] = best[node] + cost;
                before[arc.to] = node;
            }
        }
    }
    (0..graph.gpus())
        .map(|to| {
            if !best[to].is_finite() || to == from {
                return None;
            }
            let mut path = vec![to];
            let mut node = to;
            while node != from {
                node = before[node];
                path.push(node);
            }
            path.reverse();
            Some((best[to], path))
        })
        .collect()
}

/// The path to take between any two GPUs when nothing else uses the links: `[from][to]`, wide links and few hops first.
pub(crate) fn direct(graph: &Graph) -> Vec<Vec<Option<Path>>> {
    let cost: Vec<f64> = graph.arcs().iter().map(|arc| 1.0 / arc.capacity as f64).collect();
    (0..graph.gpus())
        .map(|from| {
            cheapest(graph, from, &cost).into_iter().map(|found| found.map(|(_, path)| path)).collect()
        })
        .collect()
}
