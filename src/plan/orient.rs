//! Turning an undirected packing of trees into a directed one, for roots of one's choice.
//!
//! Let links have `z` units each, usable in either direction, `L` trees in all, `R(g)` of them rooted at GPU `g`. Every tree
//! enters each GPU but its root once, so GPU `g` must be entered `L - R(g)` times, and each switch as often as it is left.
//! Any way to direct the units with these counts lets every GPU receive all trees, whatever the roots, provided
//! that (1) every partition of the GPUs into `p` groups has `Σ cut ≥ 2 L (p - 1)`, and (2) the GPUs together have exactly
//! `2 L (N - 1)` units at them. For what enters a set `X` is `Σ entered(X) - inside(X)`, and (1), for `X` and all other
//! GPUs alone, together with (2) bounds what is inside of `X`. (Without switches this is Frank's theorem on
//! orientations with trees from a root.) So the roots are free, and the directions are chosen for shallow trees.

use super::bound::gpu_hops;
use super::flow::{FlowNetwork, INFINITE};
use super::graph::Graph;

/// An undirected link with units of capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) ends: [usize; 2],
    pub(crate) units: i64,
}

/// Directs the units of all links; the matrix says how many go `[from][to]`.
///
/// Half of a link each way where its ends are equally far from the roots, else away from the roots; then whatever changes
/// the counts ask for. `None` where the counts cannot be met, as when a switch has an odd number of units.
pub(crate) fn orient(graph: &Graph, links: &[Link], roots: &[i64]) -> Option<Vec<Vec<i64>>> {
    let nodes = graph.nodes();
    let trees: i64 = roots.iter().sum();
    let mut at = vec![0; nodes];
    links.iter().for_each(|link| link.ends.iter().for_each(|&end| at[end] += link.units));
    if (graph.gpus()..nodes).any(|switch| at[switch] % 2 != 0) {
        return None;
    }
    let distance = distances(graph, roots);
    let (source, sink) = (nodes + links.len(), nodes + links.len() + 1);
    let mut net = FlowNetwork::new(nodes + links.len() + 2);
    let mut total = 0;
    let arcs: Vec<[usize; 2]> = links
        .iter()
        .enumerate()
        .map(|(index, link)| {
            total += link.units;
            net.add_arc(source, nodes + index, link.units);
            let share = |this: usize, other: usize| match distance[this].cmp(&distance[other]) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (link.units + 1) / 2,
                std::cmp::Ordering::Greater => link.units,
            };
            let [a, b] = link.ends;
            [net.add_arc(nodes + index, a, share(a, b)), net.add_arc(nodes + index, b, share(b, a))]
        })
        .collect();
    for (node, &units) in at.iter().enumerate() {
        let entered = roots.get(node).map_or(units / 2, |rooted| trees - rooted);
        net.add_arc(node, sink, entered);
    }
    let mut directed = net.max_flow(source, sink, INFINITE);
    if directed < total {
        arcs.iter()
            .zip(links)
            .for_each(|(pair, link)| pair.iter().for_each(|&arc| net.widen(arc, link.units)));
        directed += net.more_flow(source, sink, INFINITE);
    }
    if directed < total {
        return None;
    }
    let mut units = vec![vec![0; nodes]; nodes];
    for (pair, link) in arcs.iter().zip(links) {
        let [a, b] = link.ends;
        units[b][a] += net.flow_on(pair[0]);
        units[a][b] += net.flow_on(pair[1]);
    }
    Some(units)
}

/// How far each node is from all roots together; the same everywhere where every GPU is a root.
fn distances(graph: &Graph, roots: &[i64]) -> Vec<usize> {
    let only: Vec<usize> = (0..roots.len()).filter(|&gpu| roots[gpu] > 0).collect();
    let mut distance = vec![0; graph.nodes()];
    if let [root] = only[..] {
        for (gpu, hops) in gpu_hops(graph, root).into_iter().enumerate() {
            // Twice, so that switches fit in between.
            distance[gpu] = 2 * hops.unwrap_or(0);
        }
        distance[graph.gpus()..].fill(1);
    }
    distance
}
