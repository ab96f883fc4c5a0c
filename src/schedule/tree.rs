//! Tree: double binary trees.
//!
//! In a binary tree the inner ranks work and the leaves, half of all ranks, mostly wait. Two trees on the same ranks,
//! so arranged that the leaves of one are the inner ranks of the other, share the message and keep everybody busy
//! (P. Sanders, J. Speck, J. L. Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*,
//! Parallel Computing 2009). The depth grows with the logarithm of the number of ranks, which is what makes trees fast
//! for messages of middle size on many ranks.
//!
//! Even channels use the first tree of their order, odd channels the second. The root, the first of the order unless
//! the collective names one, stands outside both and has one child in each.

use super::forest::add_tree;
use super::{Algorithm, Builder, Request, Schedule, Share};
use crate::types::Collective;

/// The tree algorithm; see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct Tree;

impl Algorithm for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn supports(&self, collective: Collective) -> bool {
        !matches!(collective, Collective::AllGather | Collective::ReduceScatter)
    }

    fn build(&self, request: &Request) -> Schedule {
        let mut s = Builder::new(self.name(), request);
        let channels = request.orders.len();
        for (channel, order) in request.orders.iter().enumerate() {
            let chunk = s.chunk(0, Share::part(channel as u32, channels as u32));
            let root = request.collective.root().unwrap_or(order[0]);
            add_tree(&mut s, channel, chunk, &parents(order, root, channel % 2 == 1));
        }
        s.finish()
    }
}

/// The parent of each rank in the first or the second tree of an order.
pub fn parents(order: &[usize], root: usize, second: bool) -> Vec<Option<usize>> {
    let n = order.len();
    let start = order.iter().position(|&r| r == root).unwrap_or(0);
    let others: Vec<usize> = (1..n).map(|i| order[(start + i) % n]).collect();
    // Positions 1 to n-1 hold the others. Odd positions are leaves, so the second tree changes everybody's parity: by
    // reading the positions backwards if there is an even number of them, else by moving everybody one further.
    // (Then one rank, which moves from the last position to the first, is a leaf in both.)
    let at = |position: usize| match (position, second, n % 2) {
        (0, _, _) => root,
        (p, false, _) => others[p - 1],
        (p, true, 1) => others[n - 1 - p],
        (p, true, _) => others[(p + n - 3) % (n - 1)],
    };
    let mut parent = vec![None; n];
    for position in 1..n {
        parent[at(position)] = Some(at(parent_position(position, n)));
    }
    parent
}

/// The balanced tree in which a position's children lie half of its lowest set bit to its left and right; 0 is the
/// root. A parent that would lie beyond the end is replaced by the nearest one before.
fn parent_position(position: usize, n: usize) -> usize {
    let bit = position & position.wrapping_neg();
    let left_of_parent = (position ^ bit) | (bit << 1);
    if left_of_parent < n { left_of_parent } else { position ^ bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(parent: &[Option<usize>], rank: usize) -> usize {
        parent.iter().filter(|&&p| p == Some(rank)).count()
    }

    #[test]
    fn the_trees_are_binary_and_complement_each_other() {
        for n in 2..=64 {
            let order: Vec<usize> = (0..n).map(|i| (i + 3) % n).collect();
            for root in [0, n / 2, n - 1] {
                let trees = [parents(&order, root, false), parents(&order, root, true)];
                let mut leaves_in_both = 0;
                for rank in (0..n).filter(|&r| r != root) {
                    let counts = [children(&trees[0], rank), children(&trees[1], rank)];
                    assert!(counts[0] <= 2 && counts[1] <= 2, "{n} ranks, rank {rank}: {counts:?}");
                    leaves_in_both += usize::from(counts == [0, 0]);
                    // Nobody has two children in both trees: together there is work for one tree, and one child.
                    assert!(counts[0] + counts[1] <= 3, "{n} ranks, rank {rank}: {counts:?}");
                }
                assert!(leaves_in_both <= 2, "{n} ranks: {leaves_in_both} are leaves in both trees");
                for tree in &trees {
                    assert_eq!(tree[root], None);
                    assert_eq!(children(tree, root), 1);
                    let depth = |mut r: usize| {
                        let mut steps = 0;
                        while let Some(p) = tree[r] {
                            (r, steps) = (p, steps + 1);
                        }
                        steps
                    };
                    let deepest = (0..n).map(depth).max().unwrap();
                    assert!(deepest as u32 <= n.ilog2() + 1, "{n} ranks: depth {deepest}");
                }
            }
        }
    }
}
