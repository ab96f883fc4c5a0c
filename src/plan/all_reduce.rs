//! Trees for all_reduce that reach the partition bound on symmetric graphs.
//!
//! A tree that reduces its share towards the root and sends the result back, pipelined, uses each of its links equally
//! in both directions. So the question is how many undirected spanning trees fit: the tree packing number of
//! Nash-Williams and Tutte where there are no switches. The steps:
//!
//! 1. take the bound `L` from the weakest partition, in units that divide it and all capacities;
//! 2. lower the capacity of links, one after the other, as far as every partition still allows `L` trees;
//! 3. direct what is left ([`super::orient`]) for roots of one's choice;
//! 4. split off switches and pack out-trees, as for the other collectives.
//!
//! Where every GPU has the same capacity and no cut is thinner, the trees of all_gather, at half their rate, do as well and
//! are taken if they are shallower or fewer.
//!
//! On graphs with switches it is not proven that step 2 always ends with links that step 3 can direct. Where it does
//! not, it is tried again with finer units, and then with a slightly lower rate.

use super::bound::gpu_hops;
use super::forest::{best_once, cost, floor_units, in_units, largest_unit, orders, out_trees, tidy};
use super::graph::{Arc, Graph};
use super::orient::{Link, orient};
use super::partition::{Cuts, Part, partition_rate, weakest_partition};
use super::paths;
use super::ratio::Ratio;
use super::tree::{Forest, Tree, TreeEdge, unit_in_both_directions};
use crate::Collective;

/// Rates that are tried where the bound is not reached, in percent of it.
const CONCESSIONS: [i128; 5] = [100, 99, 98, 96, 90];

/// The most GPUs for which every GPU is tried as the only root, where there are no switches.
const TRY_ALL_ROOTS: usize = 8;

/// The forest with the best rate on a symmetric graph, or `None` where it is not connected.
pub(crate) fn best(graph: &Graph) -> Option<Forest> {
    let bound = partition_rate(&weakest_partition(graph));
    if bound == Ratio::ZERO {
        return None;
    }
    let packed = CONCESSIONS.iter().find_map(|&percent| {
        let rate = bound * Ratio::new(percent, 100);
        let (unit, units, trees) = in_units(graph, rate);
        // Finer units for the even number of units that switches need, and for what step 2 leaves as a fraction.
        let finer: &[i64] = if graph.nodes() == graph.gpus() { &[1] } else { &[2, 4, 12] };
        finer.iter().find_map(|&finer| {
            let units: Vec<Vec<i64>> =
                units.iter().map(|row| row.iter().map(|units| units * finer).collect()).collect();
            plan(graph, &units, trees * finer, unit / Ratio::from(finer), true)
        })
    });
    // Trees for all_gather at half their rate have room for the way back; on regular graphs that is as fast.
    let mut gathered = best_once(graph, Collective::AllGather);
    if let Some(forest) = &mut gathered {
        (forest.collective, forest.unit) = (Collective::AllReduce, forest.unit / Ratio::from(2));
    }
    let rank = |forest: &Forest| (forest.algbw(), std::cmp::Reverse(cost(&forest.trees, forest.gpus)));
    [gathered, packed].into_iter().flatten().max_by_key(rank)
}

/// The fastest forest of `trees` equal trees that is found on a symmetric graph.
pub(crate) fn few(graph: &Graph, trees: i64) -> Option<Forest> {
    let fits = |unit: Ratio| {
        let units = floor_units(graph, unit);
        Cuts::of(graph, &links(graph, &units)).violated(2 * trees).is_none()
    };
    // Exact where it works out; switches may ask for an even number of units where there is an odd one.
    let unit = largest_unit(graph, trees, fits)?;
    let exact = plan(graph, &floor_units(graph, unit), trees, unit, false);
    let greedy = greedy(graph, trees);
    [greedy, exact].into_iter().flatten().max_by_key(Forest::algbw)
}

/// One tree after the other, each grown along the paths with most room; all from the most central GPU.
fn greedy(graph: &Graph, count: i64) -> Option<Forest> {
    let gpus = graph.gpus();
    let root = central_gpus(graph)[0];
    let mut load = vec![vec![0i64; graph.nodes()]; graph.nodes()];
    let mut trees = Vec::new();
    for _ in 0..count {
        let mut reached = vec![false; gpus];
        reached[root] = true;
        let mut tree = Tree { root, weight: 1, edges: Vec::new() };
        while tree.edges.len() + 1 < gpus {
            // The fourth power makes the most loaded link of a path count for nearly all of its cost.
            let price = |arc: &Arc| ((load[arc.from][arc.to] + 1) as f64 / arc.capacity as f64).powi(4);
            let cost: Vec<f64> = graph.arcs().iter().map(price).collect();
            let steps = (0..gpus).filter(|&gpu| reached[gpu]).flat_map(|parent| {
                let found = paths::cheapest(graph, parent, &cost).into_iter().enumerate();
                found.filter_map(move |(child, step)| step.map(|(cost, hops)| (cost, parent, child, hops)))
            });
            let (_, parent, child, hops) =
                steps.filter(|&(_, _, child, _)| !reached[child]).min_by(|a, b| a.0.total_cmp(&b.0))?;
            for step in hops.windows(2) {
                load[step[0]][step[1]] += 1;
                load[step[1]][step[0]] += 1;
            }
            reached[child] = true;
            tree.edges.push(TreeEdge { parent, child, hops });
        }
        trees.push(tree);
    }
    let trees = tidy(trees);
    let unit = unit_in_both_directions(graph, &trees);
    Some(Forest { collective: Collective::AllReduce, gpus, unit, trees })
}

/// Every link once, with its capacity in one direction.
fn links(graph: &Graph, units: &[Vec<i64>]) -> Vec<Link> {
    let ascending = graph.arcs().iter().filter(|arc| arc.from < arc.to);
    ascending.map(|arc| Link { ends: [arc.from, arc.to], units: units[arc.from][arc.to] }).collect()
}

/// Steps 2 to 4; `divisible` says whether units may be made finer.
fn plan(graph: &Graph, units: &[Vec<i64>], trees: i64, unit: Ratio, divisible: bool) -> Option<Forest> {
    let mut links = links(graph, units);
    lower(graph, &mut links, trees)?;
    let gpus = graph.gpus();
    let attempt = |roots: &[i64], finer: i64, orders: u64| {
        let links: Vec<Link> = links.iter().map(|link| Link { units: link.units * finer, ..*link }).collect();
        let trees = out_trees(&orient(graph, &links, roots)?, roots, orders)?;
        Some(Forest { collective: Collective::AllReduce, gpus, unit: unit / Ratio::from(finer), trees })
    };
    let cost = |forest: &Forest| cost(&forest.trees, gpus);
    let mut candidates: Vec<(Forest, Vec<i64>, i64)> = root_choices(graph, trees)
        .into_iter()
        .filter(|&(_, finer)| divisible || finer == 1)
        .filter_map(|(roots, finer)| Some((attempt(&roots, finer, 2)?, roots, finer)))
        .collect();
    candidates.sort_by_key(|(forest, ..)| cost(forest));
    let (first, roots, finer) = candidates.into_iter().next()?;
    // More orders of packing for the choice of roots that looks best.
    [attempt(&roots, finer, orders(graph)), Some(first)].into_iter().flatten().min_by_key(cost)
}

/// How many trees each GPU is the root of, and by how much the units are made finer for that: evenly, or all at one GPU.
fn root_choices(graph: &Graph, trees: i64) -> Vec<(Vec<i64>, i64)> {
    let gpus = graph.gpus();
    let count = gpus as i64;
    let even = (0..count).map(|gpu| trees * (gpu + 1) / count - trees * gpu / count).collect();
    let mut choices = vec![(even, 1)];
    if trees % count != 0 && trees > 1 {
        choices.push((vec![trees; gpus], count));
    }
    let mut roots = central_gpus(graph);
    roots.truncate(match gpus {
        ..=TRY_ALL_ROOTS if graph.nodes() == gpus => gpus,
        ..=TRY_ALL_ROOTS => 2,
        _ => 1,
    });
    choices.extend(roots.into_iter().map(|root| {
        let only = (0..gpus).map(|gpu| if gpu == root { trees } else { 0 }).collect();
        (only, 1)
    }));
    choices
}

/// All GPUs: first those with few hops to the others, of these the ones with the widest links.
fn central_gpus(graph: &Graph) -> Vec<usize> {
    let mut order: Vec<usize> = (0..graph.gpus()).collect();
    order.sort_by_key(|&gpu| {
        let hops: usize = gpu_hops(graph, gpu).into_iter().flatten().sum();
        let width: i64 = graph.arcs().iter().filter(|arc| arc.from == gpu).map(|arc| arc.capacity).sum();
        (hops, -width)
    });
    order
}

/// Lowers the units of links until GPUs have no more than `trees` trees need: `2 (N - 1)` ends at GPUs each.
///
/// Links that are slow or lead through switches are lowered first. `None` where units remain that no link can give up alone.
fn lower(graph: &Graph, links: &mut [Link], trees: i64) -> Option<()> {
    let gpus = graph.gpus();
    let due = 2 * trees;
    let ends = |link: &Link| link.ends.iter().filter(|&&end| end < gpus).count() as i64;
    let mut excess: i64 =
        links.iter().map(|link| ends(link) * link.units).sum::<i64>() - due * (gpus as i64 - 1);
    let mut cuts = Cuts::of(graph, links);
    let mut order: Vec<usize> = (0..links.len()).filter(|&index| ends(&links[index]) > 0).collect();
    order.sort_by_key(|&index| (ends(&links[index]), links[index].units));
    for index in order {
        if excess <= 0 {
            break;
        }
        let before = links[index].units;
        // Newton's method from below: raise the link to what each violated partition asks for.
        let mut units = (before - excess / ends(&links[index])).max(0);
        while units < before {
            cuts.set_link(index, units);
            let Some(parts) = cuts.violated(due) else { break };
            let crossings = crossings(&parts, links[index].ends);
            let missing = due * (parts.len() as i64 - 1) - parts.iter().map(|part| part.cut).sum::<i64>();
            if crossings == 0 {
                return None;
            }
            units += (missing + crossings - 1) / crossings;
        }
        units = units.min(before);
        cuts.set_link(index, units);
        excess -= ends(&links[index]) * (before - units);
        links[index].units = units;
    }
    (excess == 0).then_some(())
}

/// How many groups' cuts a link is in.
fn crossings(parts: &[Part], ends: [usize; 2]) -> i64 {
    parts.iter().filter(|part| part.side[ends[0]] != part.side[ends[1]]).count() as i64
}

impl Cuts {
    /// Cuts of a graph whose links are given as undirected ones; link `i` is arcs `2i` and `2i + 1`.
    fn of(graph: &Graph, links: &[Link]) -> Cuts {
        let arcs = links.iter().flat_map(|link| {
            let [a, b] = link.ends;
            [(a, b, link.units), (b, a, link.units)]
        });
        Cuts::of_arcs(graph.nodes(), graph.gpus(), arcs)
    }

    fn set_link(&mut self, link: usize, units: i64) {
        self.set_capacity(2 * link, units);
        self.set_capacity(2 * link + 1, units);
    }
}
