//! Double binary trees (Sanders, Speck and Träff 2009): two trees in which each rank forwards in at most one.
//!
//! Each tree carries half of the data. A rank that is inner in one tree is a leaf in the other, so its link carries the
//! whole buffer about once each way, while the depth is only logarithmic.

use super::graph::Graph;
use super::paths;
use super::tree::{Forest, Tree, TreeEdge, unit_in_both_directions};
use crate::{Collective, Error, Result};

/// The parent of each position (from 0) in the binary tree on `count` positions whose leaves are the even ones.
fn parents(count: usize) -> Vec<Option<usize>> {
    let mut parents = vec![None; count];
    // Counted from 1, the root of a range is its position with most factors of two; odd ones come last, as leaves.
    let mut ranges = vec![(1, count, None)];
    while let Some((low, high, parent)) = ranges.pop() {
        let Some(root) = (low..=high).max_by_key(|position: &usize| position.trailing_zeros()) else {
            continue;
        };
        parents[root - 1] = parent;
        ranges.push((low, root - 1, Some(root - 1)));
        ranges.push((root + 1, high, Some(root - 1)));
    }
    parents
}

/// The two trees for all_reduce, on the GPUs in the given order (neighbours in it should be near each other), on
/// the shortest paths. The rate is what the most loaded link leaves.
///
/// # Errors
/// [`Error::InvalidValue`] where `order` is not an order of all GPUs, of which there must be two; [`Error::NoPlan`] where two
/// GPUs that the trees join have no path without another GPU.
pub fn double_binary_trees(graph: &Graph, order: &[usize]) -> Result<Forest> {
    let count = graph.gpus();
    let mut seen = order.to_vec();
    seen.sort_unstable();
    if count < 2 || !seen.into_iter().eq(0..count) {
        let expected = format!("each rank below {count} once, and at least two");
        return Err(Error::invalid_value("order of ranks", format!("{order:?}"), expected));
    }
    let graph_both = graph.symmetric_part();
    let paths = paths::direct(&graph_both);
    let shape = parents(count);
    // An even number of ranks is mirrored, an odd one shifted by one: both swap inner positions and leaves.
    let second =
        |position: usize| if count.is_multiple_of(2) { count - 1 - position } else { (position + 1) % count };
    let orders: [Vec<usize>; 2] =
        [order.to_vec(), (0..count).map(|position| order[second(position)]).collect()];
    let mut trees = Vec::new();
    for order in orders {
        let mut tree = Tree { root: 0, weight: 1, edges: Vec::new() };
        let mut queue: Vec<usize> = (0..count).filter(|&position| shape[position].is_none()).collect();
        tree.root = queue.first().map_or(0, |&position| order[position]);
        while let Some(position) = queue.pop() {
            for below in (0..count).filter(|&below| shape[below] == Some(position)) {
                let (parent, child) = (order[position], order[below]);
                let hops = paths[parent][child].clone().ok_or_else(|| Error::NoPlan {
                    request: format!("double binary trees on {count} GPUs"),
                    reason: format!(
                        "{} reaches {} only through another GPU",
                        graph.name(parent),
                        graph.name(child)
                    ),
                })?;
                tree.edges.push(TreeEdge { parent, child, hops });
                queue.push(below);
            }
        }
        tree.sort_edges();
        trees.push(tree);
    }
    let unit = unit_in_both_directions(&graph_both, &trees);
    Ok(Forest { collective: Collective::AllReduce, gpus: count, unit, trees })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Ratio, presets};

    #[test]
    fn every_rank_is_inner_in_at_most_one_tree() {
        for count in 2..20 {
            let graph = presets::star(count, 100);
            let order: Vec<usize> = (0..count).rev().collect();
            let forest = double_binary_trees(&graph, &order).unwrap();
            forest.verify(&graph).unwrap();
            let inner = |tree: &Tree, rank: usize| tree.edges.iter().any(|edge| edge.parent == rank);
            let both = |rank: &usize| forest.trees.iter().all(|tree| inner(tree, *rank));
            assert_eq!((0..count).find(both), None, "{count}");
            assert!(forest.depth() <= count.ilog2() as usize + 1, "{count}: depth {}", forest.depth());
        }
    }

    #[test]
    fn a_switch_gives_nearly_half_of_its_port_to_each_direction() {
        let graph = presets::star(8, 100);
        let forest = double_binary_trees(&graph, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        // A rank with a parent and two children in one tree and a parent in the other carries four units.
        assert_eq!(forest.algbw(), Ratio::from(50_000));
    }

    #[test]
    fn orders_and_graphs_that_do_not_fit_are_refused() {
        let graph = presets::nv3_pendant();
        assert!(matches!(double_binary_trees(&graph, &[0, 1, 2]), Err(Error::InvalidValue { .. })));
        assert!(matches!(double_binary_trees(&graph, &[0, 1, 3, 2]), Err(Error::NoPlan { .. })));
        assert!(double_binary_trees(&presets::star(1, 10), &[0]).is_err());
    }
}
