//! Few trees with small whole weights, out of a forest of many.
//!
//! Blocks are whole, so a tree can only have its exact part of a link if its weight is a small whole number of lanes. Here
//! the weights of a forest are rounded to a small sum, trees whose weight becomes 0 fall away, and what that costs is known
//! at once: the rate at which the rounded weights fit the links. Where rounding alone costs much, single trees are exchanged
//! for others as long as that relieves the tightest link. (Blink, Wang et al. 2020, thins its trees for the same reason.)

use super::graph::Graph;
use super::tree::{Forest, Tree};
use crate::Collective;

/// Weights that come so near to the rate of all trees are good enough.
const ENOUGH: f64 = 0.985;

/// The most exchanges for one sum of weights.
const EXCHANGES: usize = 40;

/// Sums that are polished by exchanges, as parts of the largest.
const POLISHED: [f64; 5] = [0.25, 0.4, 0.6, 0.8, 1.0];

/// Trees to choose from, and what they load.
pub(crate) struct Pool {
    pub(crate) trees: Vec<Tree>,
    /// The arcs of each tree, each as often as the tree loads it.
    arcs: Vec<Vec<usize>>,
    capacity: Vec<f64>,
    /// The trees of which the weights have one sum: of one root where each root has its own block.
    groups: Vec<Vec<usize>>,
    /// The weights of the forest that is to be approached; 0 for the others.
    exact: Vec<i64>,
    /// The rate of that forest, in MB/s.
    rate: f64,
}

impl Pool {
    /// The trees of a forest, and more that may take their place.
    pub(crate) fn new<'a>(
        graph: &Graph,
        forest: &Forest,
        others: impl IntoIterator<Item = &'a Tree>,
    ) -> Pool {
        let mut trees = forest.trees.clone();
        let mut exact: Vec<i64> = forest.trees.iter().map(|tree| tree.weight).collect();
        for other in others {
            if trees.iter().all(|tree| tree.root != other.root || tree.edges != other.edges) {
                trees.push(other.clone());
                exact.push(0);
            }
        }
        let collective = forest.collective;
        let out = matches!(
            collective,
            Collective::AllGather | Collective::Broadcast { .. } | Collective::AllReduce
        );
        let back = !matches!(collective, Collective::AllGather | Collective::Broadcast { .. });
        let arc =
            |from: usize, to: usize| graph.arcs().iter().position(|arc| arc.from == from && arc.to == to);
        let of_tree = |tree: &Tree| -> Vec<usize> {
            let steps = tree.edges.iter().flat_map(|edge| edge.hops.windows(2));
            steps
                .flat_map(|s| [arc(s[0], s[1]).filter(|_| out), arc(s[1], s[0]).filter(|_| back)])
                .flatten()
                .collect()
        };
        let arcs = trees.iter().map(of_tree).collect();
        let sharded = collective.blocks(2) > 1;
        let roots = if sharded { forest.gpus } else { 1 };
        let of_root = |root: usize| (0..trees.len()).filter(|&t| !sharded || trees[t].root == root).collect();
        Pool {
            arcs,
            capacity: graph.arcs().iter().map(|arc| arc.capacity as f64).collect(),
            groups: (0..roots).map(of_root).collect(),
            rate: forest.algbw().to_f64(),
            trees,
            exact,
        }
    }

    /// A weight for each tree, 0 for those that fall away, with at most `most` in all for each root (or in all, where
    /// every tree carries a part of one message).
    pub(crate) fn weights(&self, most: usize) -> Vec<u32> {
        let most = most.max(1) as i64;
        let mut best: (f64, Vec<u32>) = (0.0, Vec::new());
        let mut try_one = |weights: Vec<u32>| {
            let rate = self.rate_of(&self.loads(&weights), &weights);
            if rate > best.0 * 1.002 {
                best = (rate, weights);
            }
            best.0 >= ENOUGH * self.rate
        };
        if (1..=most).any(|sum| try_one(self.rounded(sum))) {
            return best.1;
        }
        let mut polished: Vec<i64> =
            POLISHED.iter().map(|part| ((most as f64 * part) as i64).max(1)).collect();
        polished.dedup();
        polished.into_iter().any(|sum| try_one(self.exchanged(self.rounded(sum))));
        best.1
    }

    /// Weights in proportion to the forest's, with the sum `sum` for each root: the largest remainders are rounded up.
    fn rounded(&self, sum: i64) -> Vec<u32> {
        let mut weights = vec![0u32; self.trees.len()];
        for group in &self.groups {
            let total = i128::from(group.iter().map(|&t| self.exact[t]).sum::<i64>()).max(1);
            let mut left = sum;
            let mut remainders: Vec<(i128, usize)> = Vec::new();
            for &t in group {
                let exact = i128::from(self.exact[t]) * i128::from(sum);
                weights[t] = (exact / total) as u32;
                left -= (exact / total) as i64;
                remainders.push((exact % total, t));
            }
            remainders.sort_by_key(|&(rest, t)| (std::cmp::Reverse(rest), t));
            remainders.iter().take(left.max(0) as usize).for_each(|&(_, t)| weights[t] += 1);
        }
        weights
    }

    /// How full each arc is, in units of its capacity, when weight 1 is 1 MB/s.
    fn loads(&self, weights: &[u32]) -> Vec<f64> {
        let mut loads = vec![0.0; self.capacity.len()];
        for (arcs, &weight) in self.arcs.iter().zip(weights) {
            arcs.iter().for_each(|&arc| loads[arc] += f64::from(weight) / self.capacity[arc]);
        }
        loads
    }

    fn rate_of(&self, loads: &[f64], weights: &[u32]) -> f64 {
        let fullest = loads.iter().copied().fold(0.0, f64::max);
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        if fullest > 0.0 { total / fullest } else { 0.0 }
    }

    /// Exchanges one unit of a tree on the fullest arc for one of another tree, as long as that makes full arcs emptier.
    fn exchanged(&self, mut weights: Vec<u32>) -> Vec<u32> {
        let mut loads = self.loads(&weights);
        for _ in 0..EXCHANGES {
            let fullest = (0..loads.len()).max_by(|&a, &b| loads[a].total_cmp(&loads[b])).unwrap_or(0);
            let scale = loads[fullest];
            if scale <= 0.0 {
                break;
            }
            // A high power counts hardly anything but the fullest arcs, and still sees two of them where one is relieved.
            let power = |load: f64| ((load / scale).powi(2)).powi(10);
            let mut best: Option<(f64, usize, usize)> = None;
            for group in &self.groups {
                let givers = group.iter().filter(|&&t| weights[t] > 0 && self.arcs[t].contains(&fullest));
                for &giver in givers {
                    for &taker in group.iter().filter(|&&t| !self.arcs[t].contains(&fullest)) {
                        let before = |arc: usize| loads[arc];
                        let gain = self.gain(giver, taker, before, power);
                        if gain > 1e-9 && best.is_none_or(|(most, ..)| gain > most) {
                            best = Some((gain, giver, taker));
                        }
                    }
                }
            }
            let Some((_, giver, taker)) = best else { break };
            self.shift(&mut loads, giver, taker);
            weights[giver] -= 1;
            weights[taker] += 1;
        }
        weights
    }

    fn shift(&self, loads: &mut [f64], giver: usize, taker: usize) {
        self.arcs[giver].iter().for_each(|&arc| loads[arc] -= 1.0 / self.capacity[arc]);
        self.arcs[taker].iter().for_each(|&arc| loads[arc] += 1.0 / self.capacity[arc]);
    }

    /// By how much an exchange lowers the sum of powers of loads.
    fn gain(
        &self,
        giver: usize,
        taker: usize,
        load: impl Fn(usize) -> f64,
        power: impl Fn(f64) -> f64,
    ) -> f64 {
        let mut gain = 0.0;
        let change = |arc: usize| {
            let count = |tree: usize| self.arcs[tree].iter().filter(|&&a| a == arc).count() as f64;
            (count(taker) - count(giver)) / self.capacity[arc]
        };
        let touched =
            self.arcs[giver].iter().chain(self.arcs[taker].iter().filter(|a| !self.arcs[giver].contains(a)));
        let mut seen: Vec<usize> = Vec::new();
        for &arc in touched {
            if !seen.contains(&arc) {
                seen.push(arc);
                gain += power(load(arc)) - power(load(arc) + change(arc));
            }
        }
        gain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{forest, presets};

    #[test]
    fn small_sums_lose_little_and_keep_roots_alike() {
        let graphs = [
            presets::dgx1v(),
            presets::dgx1v_with_pcie(12, 10),
            presets::pix_article(24),
            presets::star(8, 300),
        ];
        for graph in graphs {
            for collective in
                [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 1 }]
            {
                let forest = forest::best(&graph, collective).unwrap();
                let pool = Pool::new(&graph, &forest, []);
                let weights = pool.weights(if collective == Collective::AllGather { 12 } else { 56 });
                let got = pool.rate_of(&pool.loads(&weights), &weights);
                assert!(got > 0.96 * forest.algbw().to_f64(), "{got} of {} for {collective}", forest.algbw());
                let sums: Vec<u32> =
                    pool.groups.iter().map(|g| g.iter().map(|&t| weights[t]).sum()).collect();
                assert!(sums.iter().all(|&sum| sum == sums[0] && sum > 0), "{sums:?}");
            }
        }
    }
}
