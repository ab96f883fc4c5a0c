//! Removing switches: edge splitting (Lovász, Mader; for directed graphs Frank and Jackson).
//!
//! A switch `w` is replaced piece by piece: some units of `u → w` and `w → t` become units of `u → t`. A piece is legal
//! when every GPU can still receive all trees, that is when the flow from all roots together to each GPU stays at the
//! number of trees. As long as a switch receives as much as it sends there is always a legal piece, so in the end only
//! GPUs are left, and each unit between them remembers the path it takes.
//!
//! Which pieces are chosen does not change the rate but decides how deep the trees get, so capacity is spread evenly:
//! a star of GPUs becomes the full mesh.

use super::flow::FlowNetwork;
use super::routes::Routes;

/// Rounds over all pieces of a switch after which it is given up; a handful suffices.
const MOST_ROUNDS: usize = 1000;

/// Splits off all switches (the nodes from `demand.len()` on). `demand[g]` is the number of trees rooted at GPU `g`.
///
/// Gives `false` where no legal piece is left although a switch has capacity, as with unbalanced switches.
pub(crate) fn remove_switches(routes: &mut Routes, demand: &[i64]) -> bool {
    let gpus = demand.len();
    // Switches with few neighbours first: leaves of a PCIe tree before its host bridges.
    let mut switches: Vec<usize> = (gpus..routes.nodes()).collect();
    let degree = |node: usize| (0..routes.nodes()).filter(|&to| routes.units(node, to) > 0).count();
    switches.sort_by_key(|&node| degree(node));
    switches.into_iter().all(|switch| remove(routes, demand, switch))
}

fn remove(routes: &mut Routes, demand: &[i64], switch: usize) -> bool {
    let nodes = routes.nodes();
    let inputs: Vec<usize> = (0..nodes).filter(|&node| routes.units(node, switch) > 0).collect();
    let outputs: Vec<usize> = (0..nodes).filter(|&node| routes.units(switch, node) > 0).collect();
    let mut trial = Trial::new(routes, demand, switch, &inputs, &outputs);
    // All at once where that is legal: the usual case, and one round of flows instead of one a piece.
    let even = even_shares(routes, switch, &inputs, &outputs);
    for &(from, to, units) in &even {
        trial.shift(from, to, units);
    }
    if trial.shortfall() == 0 {
        even.into_iter().for_each(|(from, to, units)| routes.splice(from, switch, to, units));
        return discard_rest(routes, switch, &inputs);
    }
    even.into_iter().for_each(|(from, to, units)| trial.shift(from, to, -units));

    let fair: Vec<i64> = inputs
        .iter()
        .map(|&from| {
            let others = outputs.iter().filter(|&&to| to != from).count().max(1) as i64;
            (routes.units(from, switch) + others - 1) / others
        })
        .collect();
    let mut round = 0;
    let mut rounds = 0;
    while inputs.iter().any(|&from| routes.units(from, switch) > 0) {
        let mut moved = false;
        for (&from, &fair) in inputs.iter().zip(&fair) {
            for &to in &outputs {
                if (from == to) != (round >= 6) {
                    continue;
                }
                let cap = if round < 2 { fair } else { i64::MAX };
                let wanted = routes.units(from, switch).min(routes.units(switch, to)).min(cap);
                if wanted == 0 {
                    continue;
                }
                trial.shift(from, to, wanted);
                // Moving m units lowers by m the cuts that it lowers at all, so what is missing is what was too much.
                let legal = (wanted - trial.shortfall()).max(0);
                trial.shift(from, to, legal - wanted);
                if legal > 0 {
                    routes.splice(from, switch, to, legal);
                    moved = true;
                }
            }
        }
        rounds += 1;
        round = match (moved, round) {
            (false, 6..) => return false,
            _ if rounds > MOST_ROUNDS => return false,
            (false, 2..6) => 6,
            (true, 6..) => 2,
            _ => round + 1,
        };
    }
    true
}

/// Gives back what can only go straight back; says whether nothing else is left.
fn discard_rest(routes: &mut Routes, switch: usize, inputs: &[usize]) -> bool {
    for &from in inputs {
        let units = routes.units(from, switch).min(routes.units(switch, from));
        routes.splice(from, switch, from, units);
    }
    inputs.iter().all(|&from| routes.units(from, switch) == 0)
}

/// As much as possible from every input to every output but itself, with the largest share as small as possible.
fn even_shares(
    routes: &Routes,
    switch: usize,
    inputs: &[usize],
    outputs: &[usize],
) -> Vec<(usize, usize, i64)> {
    let nodes = routes.nodes();
    let (source, sink) = (2 * nodes, 2 * nodes + 1);
    let mut net = FlowNetwork::new(2 * nodes + 2);
    for &from in inputs {
        net.add_arc(source, from, routes.units(from, switch));
    }
    for &to in outputs {
        net.add_arc(nodes + to, sink, routes.units(switch, to));
    }
    let largest = inputs.iter().map(|&from| routes.units(from, switch)).max().unwrap_or(0);
    let pairs: Vec<(usize, usize, usize)> = inputs
        .iter()
        .flat_map(|&from| outputs.iter().filter(move |&&to| to != from).map(move |&to| (from, to)))
        .map(|(from, to)| (from, to, net.add_arc(from, nodes + to, largest)))
        .collect();
    let all = net.max_flow(source, sink, i64::MAX);
    let (mut low, mut high) = (0, largest);
    while low < high {
        let middle = low + (high - low) / 2;
        pairs.iter().for_each(|&(_, _, arc)| net.set_capacity(arc, middle));
        if net.max_flow(source, sink, all) == all { high = middle } else { low = middle + 1 }
    }
    pairs.iter().for_each(|&(_, _, arc)| net.set_capacity(arc, high));
    net.max_flow(source, sink, all);
    pairs
        .into_iter()
        .map(|(from, to, arc)| (from, to, net.flow_on(arc)))
        .filter(|share| share.2 > 0)
        .collect()
}

/// The graph in which pieces of one switch are tried.
struct Trial {
    net: FlowNetwork,
    arcs: Vec<Option<(usize, i64)>>,
    nodes: usize,
    gpus: usize,
    trees: i64,
    switch: usize,
}

impl Trial {
    fn new(routes: &Routes, demand: &[i64], switch: usize, inputs: &[usize], outputs: &[usize]) -> Trial {
        let nodes = routes.nodes();
        let mut net = FlowNetwork::new(nodes + 1);
        for (gpu, &trees) in demand.iter().enumerate() {
            net.add_arc(nodes, gpu, trees);
        }
        let mut arcs = vec![None; nodes * nodes];
        for from in 0..nodes {
            for to in 0..nodes {
                let units = routes.units(from, to);
                if units > 0 || from != to && inputs.contains(&from) && outputs.contains(&to) {
                    arcs[from * nodes + to] = Some((net.add_arc(from, to, units), units));
                }
            }
        }
        Trial { net, arcs, nodes, gpus: demand.len(), trees: demand.iter().sum(), switch }
    }

    /// Moves units of from-switch-to to from-to.
    fn shift(&mut self, from: usize, to: usize, units: i64) {
        for (a, b, change) in [(from, self.switch, -units), (self.switch, to, -units), (from, to, units)] {
            if let Some((arc, capacity)) = &mut self.arcs[a * self.nodes + b] {
                *capacity += change;
                self.net.set_capacity(*arc, *capacity);
            }
        }
    }

    /// How many trees do not reach some GPU any more.
    fn shortfall(&mut self) -> i64 {
        let least = (0..self.gpus).map(|gpu| self.net.max_flow(self.nodes, gpu, self.trees)).min();
        self.trees - least.unwrap_or(self.trees)
    }
}
