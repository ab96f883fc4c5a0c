//! Few trees with small whole weights, out of a forest of many.
//!
//! Blocks are whole, so a tree can only have its exact part of a link if its weight is a small whole number of lanes. Here
//! the weights of a forest are rounded to a small sum, trees whose weight becomes 0 fall away, and what that costs is known
//! at once: the rate at which the rounded weights fit the links. (Blink, Wang et al. 2020, thins its trees for the same reason.)

use super::graph::Graph;
use super::tree::Forest;
use crate::Collective;

/// Sums nearer to the best rate than this are as good as any.
const NEAR: f64 = 0.995;

/// Weights for the trees, 0 for those that fall away, with at most `most` in all for each root (or in all, where every
/// tree carries a part of one message).
pub(crate) fn weights(graph: &Graph, forest: &Forest, most: usize) -> Vec<u32> {
    let sums: Vec<Vec<u32>> = (1..=most.max(1) as i64).map(|sum| rounded(forest, sum)).collect();
    let rates: Vec<f64> = sums.iter().map(|weights| rate(graph, forest, weights)).collect();
    let best = rates.iter().copied().fold(0.0, f64::max);
    let first = rates.iter().position(|&rate| rate >= NEAR * best).unwrap_or(0);
    sums.into_iter().nth(first).unwrap_or_default()
}

/// Weights in proportion to the forest's, with the sum `sum` for each root: the largest remainders are rounded up.
fn rounded(forest: &Forest, sum: i64) -> Vec<u32> {
    let sharded = forest.collective.blocks(2) > 1;
    let mut weights = vec![0u32; forest.trees.len()];
    let roots = if sharded { forest.gpus } else { 1 };
    for root in 0..roots {
        let group: Vec<usize> =
            (0..forest.trees.len()).filter(|&t| !sharded || forest.trees[t].root == root).collect();
        let total: i64 = group.iter().map(|&t| forest.trees[t].weight).sum();
        let mut left = sum;
        let mut remainders: Vec<(i128, usize)> = Vec::new();
        for &t in &group {
            let exact = i128::from(forest.trees[t].weight) * i128::from(sum);
            let whole = exact / i128::from(total.max(1));
            weights[t] = whole as u32;
            left -= whole as i64;
            remainders.push((exact % i128::from(total.max(1)), t));
        }
        remainders.sort_by_key(|&(rest, t)| (std::cmp::Reverse(rest), t));
        remainders.iter().take(left.max(0) as usize).for_each(|&(_, t)| weights[t] += 1);
    }
    weights
}

/// The rate of all trees together when each carries its weight and no link more than its capacity, in MB/s.
pub(crate) fn rate(graph: &Graph, forest: &Forest, weights: &[u32]) -> f64 {
    let out = matches!(
        forest.collective,
        Collective::AllGather | Collective::Broadcast { .. } | Collective::AllReduce
    );
    let back = !matches!(forest.collective, Collective::AllGather | Collective::Broadcast { .. });
    let mut load = vec![vec![0u32; graph.nodes()]; graph.nodes()];
    for (tree, &weight) in forest.trees.iter().zip(weights) {
        for step in tree.edges.iter().flat_map(|edge| edge.hops.windows(2)) {
            load[step[0]][step[1]] += if out { weight } else { 0 };
            load[step[1]][step[0]] += if back { weight } else { 0 };
        }
    }
    let loaded = graph.arcs().iter().filter(|arc| load[arc.from][arc.to] > 0);
    let unit = loaded
        .map(|arc| arc.capacity as f64 / f64::from(load[arc.from][arc.to]))
        .fold(f64::INFINITY, f64::min);
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    if unit.is_finite() { unit * total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{forest, presets};

    #[test]
    fn small_sums_lose_little_and_keep_roots_alike() {
        for graph in [presets::dgx1v(), presets::dgx1v_with_pcie(12, 10), presets::pix_article(24)] {
            for collective in
                [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 1 }]
            {
                let forest = forest::best(&graph, collective).unwrap();
                let weights = weights(&graph, &forest, 24);
                let got = rate(&graph, &forest, &weights);
                assert!(got > 0.95 * forest.algbw().to_f64(), "{got} of {} for {collective}", forest.algbw());
                if collective == Collective::AllGather {
                    let of = |root: usize| -> u32 {
                        forest
                            .trees
                            .iter()
                            .zip(&weights)
                            .filter(|(t, _)| t.root == root)
                            .map(|(_, &w)| w)
                            .sum()
                    };
                    assert!((1..graph.gpus()).all(|root| of(root) == of(0)));
                }
            }
        }
    }
}
