//! Packed spanning trees that reach the bound.
//!
//! The method follows ForestColl (Zhao et al. 2024): the bound gives the rate; a unit that divides the rate and all
//! capacities turns rates into numbers of trees; switches are split off; Edmonds' theorem packs the
//! trees between the GPUs that are left. Everything is done on integers, so the rate is reached exactly.
//!
//! ```
//! use ringleader::plan::{bound, forest, presets};
//! use ringleader::Collective;
//! let graph = presets::dgx1v();
//! let forest = forest::best(&graph, Collective::AllGather)?;
//! assert_eq!(forest.algbw(), bound::bound(&graph, Collective::AllGather)?.algbw);
//! forest.verify(&graph)?;
//! # Ok::<(), ringleader::Error>(())
//! ```

use super::all_reduce;
use super::bound::{bound, gather_rate, rooted_rate};
use super::graph::Graph;
use super::pack::{Batch, Order, pack_trees};
use super::ratio::{Ratio, gcd};
use super::routes::Routes;
use super::split::remove_switches;
use super::tree::{Forest, Tree, TreeEdge};
use crate::{Collective, Error, Result};

/// The forest with the best rate.
///
/// All_gather, reduce_scatter, broadcast and reduce reach their bound on any graph whose switches receive as much as they
/// send; all_reduce reaches the partition bound on symmetric graphs. On other graphs only what links have in both
/// directions is used; [`Forest::algbw`] says what came of it.
///
/// # Errors
/// [`Error::NoPlan`] where the graph is not connected, [`Error::InvalidValue`] as [`bound`].
pub fn best(graph: &Graph, collective: Collective) -> Result<Forest> {
    let limit = bound(graph, collective)?;
    if limit.algbw == Ratio::ZERO {
        let reason = format!("the graph falls apart: no link carries data across {:?}", limit.certificate);
        return Err(no_plan(graph, collective, reason));
    }
    attempt(graph, collective, best_once)
}

/// A forest of `trees` equal trees a root (all_gather, reduce_scatter) or in all (the others), as fast as that allows:
/// fewer trees mean fewer and larger pieces, for messages of medium size.
///
/// # Errors
/// As [`best`]; [`Error::InvalidValue`] for no trees or more than 64.
pub fn few(graph: &Graph, collective: Collective, trees: usize) -> Result<Forest> {
    if !(1..=64).contains(&trees) {
        return Err(Error::invalid_value("number of trees", trees.to_string(), "1 to 64"));
    }
    bound(graph, collective)?;
    attempt(graph, collective, |graph, collective| few_once(graph, collective, trees as i64))
}

/// Tries the graph as it is, then without what its links have in one direction only.
fn attempt(
    graph: &Graph,
    collective: Collective,
    plan: impl Fn(&Graph, Collective) -> Option<Forest>,
) -> Result<Forest> {
    let inward = matches!(collective, Collective::ReduceScatter | Collective::Reduce { .. });
    let as_it_is = match inward {
        true => plan(&graph.reversed(), collective),
        false if collective == Collective::AllReduce && !graph.is_symmetric() => None,
        false => plan(graph, collective),
    };
    as_it_is.or_else(|| plan(&graph.symmetric_part(), collective)).ok_or_else(|| {
        no_plan(graph, collective, "no trees reach every GPU over links that work in both directions".into())
    })
}

fn no_plan(graph: &Graph, collective: Collective, reason: String) -> Error {
    Error::NoPlan { request: format!("a forest for {} on {} GPUs", collective.name(), graph.gpus()), reason }
}

/// Plans away from the roots. For collectives that reduce, `graph` is already reversed: the trees keep their shape, and data
/// flows from children to parents.
pub(crate) fn best_once(graph: &Graph, collective: Collective) -> Option<Forest> {
    let rate = match (collective, collective.root()) {
        (Collective::AllReduce, _) => return all_reduce::best(graph),
        (_, Some(root)) => Ratio::from(rooted_rate(graph, root).0),
        (_, None) => gather_rate(graph).0,
    };
    if rate == Ratio::ZERO {
        return None;
    }
    let (unit, units, trees) = in_units(graph, rate);
    // A single root may need finer trees to be shallow: through a switch, one share to each GPU, which tells the others.
    let finer = if collective.root().is_some() { graph.gpus() as i64 - 1 } else { 1 };
    let mut candidates: Vec<Forest> = Vec::new();
    for finer in if finer > 1 { vec![1, finer] } else { vec![1] } {
        let units: Vec<Vec<i64>> =
            units.iter().map(|row| row.iter().map(|units| units * finer).collect()).collect();
        let demand = demand(graph.gpus(), collective, trees * finer);
        let trees = out_trees(&units, &demand, orders(graph))?;
        candidates.push(Forest { collective, gpus: graph.gpus(), unit: unit / Ratio::from(finer), trees });
    }
    candidates.into_iter().min_by_key(|forest| cost(&forest.trees, forest.gpus))
}

/// How many orders of packing are tried: what keeps planning within milliseconds.
pub(crate) fn orders(graph: &Graph) -> u64 {
    match graph.gpus() {
        ..=8 => 6,
        9..=12 => 4,
        13..=24 => 3,
        _ => 1,
    }
}

fn few_once(graph: &Graph, collective: Collective, trees: i64) -> Option<Forest> {
    if collective == Collective::AllReduce {
        return all_reduce::few(graph, trees);
    }
    let demand = demand(graph.gpus(), collective, trees);
    let total: i64 = demand.iter().sum();
    let fits = |unit: Ratio| {
        let units = floor_units(graph, unit);
        let nodes = graph.nodes();
        let mut net = super::flow::FlowNetwork::new(nodes + 1);
        demand.iter().enumerate().for_each(|(gpu, &trees)| {
            net.add_arc(nodes, gpu, trees);
        });
        for arc in graph.arcs() {
            net.add_arc(arc.from, arc.to, units[arc.from][arc.to]);
        }
        (0..graph.gpus()).all(|gpu| net.max_flow(nodes, gpu, total) == total)
    };
    let unit = largest_unit(graph, total, fits)?;
    let trees = out_trees(&floor_units(graph, unit), &demand, orders(graph))?;
    Some(Forest { collective, gpus: graph.gpus(), unit, trees })
}

fn demand(gpus: usize, collective: Collective, trees: i64) -> Vec<i64> {
    (0..gpus).map(|gpu| if collective.root().is_none_or(|root| root == gpu) { trees } else { 0 }).collect()
}

/// The largest unit that divides the rate and every capacity, the capacities and the rate in it.
pub(crate) fn in_units(graph: &Graph, rate: Ratio) -> (Ratio, Vec<Vec<i64>>, i64) {
    let common = graph
        .arcs()
        .iter()
        .fold(rate.num(), |common, arc| gcd(common, i128::from(arc.capacity) * rate.den()));
    let unit = Ratio::new(common, rate.den());
    (unit, floor_units(graph, unit), (rate.num() / common) as i64)
}

/// How many trees of rate `unit` each link carries.
pub(crate) fn floor_units(graph: &Graph, unit: Ratio) -> Vec<Vec<i64>> {
    let count = |capacity: i64| (i128::from(capacity) * unit.den() / unit.num()) as i64;
    graph.matrix().into_iter().map(|row| row.into_iter().map(count).collect()).collect()
}

/// The largest rate a tree for which `trees` trees fit, among capacities over whole numbers: only there the number of
/// trees that a link carries changes. A smaller rate fits whenever a larger one does. One tree may use the
/// link from a GPU to a switch once for each other GPU.
pub(crate) fn largest_unit(graph: &Graph, trees: i64, fits: impl Fn(Ratio) -> bool) -> Option<Ratio> {
    let mut capacities: Vec<i64> = graph.arcs().iter().map(|arc| arc.capacity).collect();
    capacities.sort_unstable();
    capacities.dedup();
    let most = trees * (graph.gpus() as i64 - 1);
    let mut units: Vec<Ratio> = capacities
        .into_iter()
        .flat_map(|capacity| (1..=most).map(move |share| Ratio::new(capacity.into(), share.into())))
        .collect();
    units.sort_unstable();
    units.dedup();
    let count = units.partition_point(|&unit| fits(unit));
    count.checked_sub(1).map(|last| units[last])
}

/// What a set of trees costs beside its rate: a level of depth about as much as one more tree on every GPU.
pub(crate) fn cost(trees: &[Tree], gpus: usize) -> usize {
    trees.iter().map(Tree::depth).max().unwrap_or(0) * gpus + trees.len()
}

/// Trees from each root, in units, on links of `units[from][to]`: splits off the switches, packs, and gives each edge its
/// path. Tries some orders of packing and keeps the cheapest result. `None` where the trees do not fit.
pub(crate) fn out_trees(units: &[Vec<i64>], demand: &[i64], orders: u64) -> Option<Vec<Tree>> {
    let gpus = demand.len();
    let mut routes = Routes::of_links(units);
    if !remove_switches(&mut routes, demand) {
        return None;
    }
    let direct: Vec<Vec<i64>> =
        (0..gpus).map(|from| (0..gpus).map(|to| routes.units(from, to)).collect()).collect();
    let mut best: Option<(usize, Vec<Tree>)> = None;
    for order in Order::some(orders) {
        let trees = with_paths(pack_trees(&direct, demand, order)?, routes.clone())?;
        let cost = cost(&trees, gpus);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, trees));
        }
        // One hop from one tree a root cannot be improved.
        let roots = demand.iter().filter(|trees| **trees > 0).count();
        if best.as_ref().is_some_and(|(cost, _)| *cost == gpus + roots) {
            break;
        }
    }
    best.map(|(_, trees)| trees)
}

/// Gives each edge its path; trees whose edges take several paths become several trees.
fn with_paths(batches: Vec<Batch>, mut routes: Routes) -> Option<Vec<Tree>> {
    let mut trees = Vec::new();
    for batch in batches {
        let mut left = batch.trees;
        while left > 0 {
            let chosen: Option<Vec<_>> =
                batch.edges.iter().map(|&(parent, child)| routes.best(parent, child, left)).collect();
            let chosen = chosen?;
            let weight = chosen.iter().map(|route| route.units).min().map_or(left, |least| least.min(left));
            let edges: Vec<TreeEdge> = batch
                .edges
                .iter()
                .zip(chosen)
                .map(|(&(parent, child), route)| TreeEdge { parent, child, hops: route.path.clone() })
                .collect();
            edges.iter().for_each(|edge| routes.use_path(&edge.hops, weight));
            trees.push(Tree { root: batch.root, weight, edges });
            left -= weight;
        }
    }
    Some(tidy(trees))
}

/// Merges equal trees; orders edges breadth first, and trees by root, then weight.
pub(crate) fn tidy(mut trees: Vec<Tree>) -> Vec<Tree> {
    trees.iter_mut().for_each(Tree::sort_edges);
    trees.sort_by(|a, b| (a.root, &a.edges).cmp(&(b.root, &b.edges)));
    trees.dedup_by(|b, a| {
        let same = a.root == b.root && a.edges == b.edges;
        if same {
            a.weight += b.weight;
        }
        same
    });
    trees.sort_by_key(|tree| (tree.root, std::cmp::Reverse(tree.weight)));
    trees
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
