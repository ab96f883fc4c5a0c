//! Rings: several Hamiltonian cycles that share the links of a graph as well as rings can.
//!
//! The best fractional packing is a linear program with one weight a ring. Rings are used in both directions,
//! so a ring and its mirror image count as one. Up to ten GPUs the packing is optimal to the precision of the arithmetic;
//! with
//! more, rings are found one after the other by local search, and the packing is only good.
//!
//! ```
//! use ringleader::plan::{presets, rings};
//! let found = rings::search(&presets::dgx1v());
//! assert_eq!(found.busbw(), 150_000);
//! ```

use super::graph::Graph;
use super::hamilton::{cheapest_cycle, cycle_cost};
use super::packing_lp::{Column, pack};
use super::paths;

/// The most rings in a packing; lighter ones are dropped.
const MOST_RINGS: usize = 24;

/// The most GPUs for which the linear program is solved.
const MOST_GPUS_FOR_LP: usize = 10;

/// A cycle through all GPUs in one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ring {
    /// The ranks in order, starting with 0; the last sends to the first.
    pub order: Vec<usize>,
    /// The nodes on the way from each of them to the next, both ends included.
    pub hops: Vec<Vec<usize>>,
    /// What it sends on each step, in MB/s.
    pub rate: i64,
}

impl Ring {
    fn reversed(&self) -> Ring {
        let mut order = self.order.clone();
        order[1..].reverse();
        let hops = self.hops.iter().rev().map(|path| path.iter().rev().copied().collect()).collect();
        Ring { order, hops, rate: self.rate }
    }
}

/// Rings that run at the same time, by descending rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// The rings; together they load no link beyond its capacity.
    pub rings: Vec<Ring>,
}

impl Rings {
    /// The bus bandwidth of all_gather, reduce_scatter and all_reduce on them, in MB/s; 0 without a ring.
    pub fn busbw(&self) -> i64 {
        self.rings.iter().map(|ring| ring.rate).sum()
    }

    /// What they load each arc of the graph with, in MB/s.
    ///
    /// `None` where a ring takes a link that the graph does not have, or passes a GPU.
    pub fn loads(&self, graph: &Graph) -> Option<Vec<i64>> {
        let mut loads = vec![0; graph.arcs().len()];
        for ring in &self.rings {
            for path in &ring.hops {
                if path.get(1..path.len() - 1)?.iter().any(|&node| !graph.is_switch(node)) {
                    return None;
                }
                for step in path.windows(2) {
                    let arc = graph.arcs().iter().position(|arc| arc.from == step[0] && arc.to == step[1])?;
                    loads[arc] += ring.rate;
                }
            }
        }
        Some(loads)
    }
}

/// One undirected link for both of its arcs.
struct Links {
    graph: Graph,
    /// The link of each arc.
    of_arc: Vec<usize>,
    capacity: Vec<i64>,
    /// The link between two nodes.
    between: Vec<Vec<Option<usize>>>,
}

impl Links {
    fn new(graph: &Graph) -> Links {
        let graph = graph.symmetric_part();
        let nodes = graph.nodes();
        let mut links = Links {
            of_arc: Vec::new(),
            capacity: Vec::new(),
            between: vec![vec![None; nodes]; nodes],
            graph: graph.clone(),
        };
        for arc in graph.arcs() {
            let link = *links.between[arc.to][arc.from].get_or_insert(links.capacity.len());
            if link == links.capacity.len() {
                links.capacity.push(arc.capacity);
            }
            links.between[arc.from][arc.to] = Some(link);
            links.of_arc.push(link);
        }
        links
    }

    /// The cheapest ring where a link costs `price`, as its order and paths.
    fn ring(&self, price: &[f64]) -> Option<(Vec<usize>, Vec<Vec<usize>>)> {
        let gpus = self.graph.gpus();
        let cost: Vec<f64> = self.of_arc.iter().map(|&link| price[link]).collect();
        let steps: Vec<_> = (0..gpus).map(|from| paths::cheapest(&self.graph, from, &cost)).collect();
        let matrix: Vec<Vec<f64>> = steps
            .iter()
            .map(|row| {
                row.iter().map(|step| step.as_ref().map_or(f64::INFINITY, |(cost, _)| *cost)).collect()
            })
            .collect();
        let order = cheapest_cycle(&matrix).filter(|order| cycle_cost(&matrix, order).is_finite())?;
        let path = |at: usize| Some(steps[order[at]][order[(at + 1) % gpus]].as_ref()?.1.clone());
        let hops: Option<Vec<_>> = (0..gpus).map(path).collect();
        Some((order, hops?))
    }

    /// How often a ring and its mirror image together load each link, per direction.
    fn column(&self, hops: &[Vec<usize>]) -> Column {
        let mut times = vec![0.0; self.capacity.len()];
        for step in hops.iter().flat_map(|path| path.windows(2)) {
            if let Some(link) = self.between[step[0]][step[1]] {
                times[link] += 1.0;
            }
        }
        times.into_iter().enumerate().filter(|&(_, times)| times > 0.0).collect()
    }
}

/// The best packing of rings that is found; without a ring through all GPUs (that passes no GPU twice) it is empty.
///
/// Where links differ by direction, only what they have in both is used.
pub fn search(graph: &Graph) -> Rings {
    let links = Links::new(graph);
    let mut candidates = vec![peel(&links, 1), peel(&links, 2)];
    if graph.gpus() <= MOST_GPUS_FOR_LP {
        candidates.push(optimal(&links));
    }
    candidates.iter_mut().for_each(|rings| fit(&links, rings));
    let total = |rings: &Vec<Ring>| rings.iter().map(|ring| ring.rate).sum::<i64>();
    // Of equal packings the one with fewer rings.
    let best = candidates.into_iter().max_by_key(|rings| (total(rings), std::cmp::Reverse(rings.len())));
    both_directions(best.unwrap_or_default())
}

/// The linear program, its weights rounded; they may load a link a little too much.
fn optimal(links: &Links) -> Vec<Ring> {
    let capacities: Vec<f64> = links.capacity.iter().map(|&capacity| capacity as f64).collect();
    let largest = capacities.iter().copied().fold(1.0, f64::max);
    let rounds = if links.graph.gpus() <= 8 { 600 } else { 150 };
    let packing = pack(&capacities, rounds, |price| {
        // A trace of cost on free links: of equal rings take the one on wide links and short paths.
        let price: Vec<f64> = price
            .iter()
            .zip(&capacities)
            .map(|(price, capacity)| price + 1e-9 * largest / capacity)
            .collect();
        let (order, hops) = links.ring(&price)?;
        Some((links.column(&hops), (order, hops)))
    });
    let mut found: Vec<Ring> = packing
        .columns
        .into_iter()
        .map(|((order, hops), weight)| Ring { order, hops, rate: weight.round() as i64 })
        .collect();
    found.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.order.cmp(&b.order)));
    let total: i64 = found.iter().map(|ring| ring.rate).sum();
    found.retain(|ring| ring.rate * 100 >= total);
    found.truncate(MOST_RINGS / 2);
    found
}

/// One ring after the other through the links with most room, each taking `1/share` of what its narrowest link has left.
fn peel(links: &Links, share: i64) -> Vec<Ring> {
    let mut room = links.capacity.clone();
    let mut found: Vec<Ring> = Vec::new();
    let mut first = 0;
    while found.len() < MOST_RINGS / 2 {
        let most = room.iter().copied().max().unwrap_or(0);
        // The square keeps rings off links that are nearly used up.
        let price: Vec<f64> = room
            .iter()
            .map(|&room| if room == 0 { f64::INFINITY } else { (most as f64 / room as f64).powi(2) })
            .collect();
        let Some((order, hops)) = links.ring(&price) else { break };
        let column = links.column(&hops);
        let limit = column.iter().map(|&(link, times)| room[link] / times as i64).min().unwrap_or(0);
        if limit * 50 < first {
            break;
        }
        first = first.max(limit);
        let rate = (limit + share - 1) / share;
        if rate == 0 {
            break;
        }
        column.iter().for_each(|&(link, times)| room[link] -= rate * times as i64);
        found.push(Ring { order, hops, rate });
    }
    found
}

/// The single ring, used in both directions, with the best rate that is found.
pub fn single(graph: &Graph) -> Rings {
    let links = Links::new(graph);
    let mut candidates: Vec<Ring> = search(graph).rings;
    // Rings of a packing avoid each other's links; one alone may prefer the widest.
    let wide: Vec<f64> = links.capacity.iter().map(|&capacity| 1.0 / (capacity as f64).powi(4)).collect();
    let largest = wide.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let wide: Vec<f64> = wide.into_iter().map(|price| price / largest).collect();
    candidates.extend(links.ring(&wide).map(|(order, hops)| Ring { order, hops, rate: 0 }));
    for ring in &mut candidates {
        let limit = |&(link, times): &(usize, f64)| links.capacity[link] / times as i64;
        ring.rate = links.column(&ring.hops).iter().map(limit).min().unwrap_or(0);
    }
    let best = candidates.into_iter().max_by(|a, b| a.rate.cmp(&b.rate).then_with(|| b.order.cmp(&a.order)));
    both_directions(best.into_iter().filter(|ring| ring.rate > 0).collect())
}

/// Lowers rates that were rounded up until every link has room, then gives away what is left.
fn fit(links: &Links, rings: &mut Vec<Ring>) {
    let columns: Vec<Column> = rings.iter().map(|ring| links.column(&ring.hops)).collect();
    let mut room = links.capacity.clone();
    for (ring, column) in rings.iter_mut().zip(&columns) {
        let most = column.iter().map(|&(link, times)| room[link] / times as i64).min().unwrap_or(0);
        ring.rate = ring.rate.min(most);
        column.iter().for_each(|&(link, times)| room[link] -= ring.rate * times as i64);
    }
    for (ring, column) in rings.iter_mut().zip(&columns) {
        let more = column.iter().map(|&(link, times)| room[link] / times as i64).min().unwrap_or(0);
        ring.rate += more;
        column.iter().for_each(|&(link, times)| room[link] -= more * times as i64);
    }
    rings.retain(|ring| ring.rate > 0);
}

/// Each ring and its mirror image; they are the same on two GPUs.
fn both_directions(rings: Vec<Ring>) -> Rings {
    let mut both: Vec<Ring> = Vec::new();
    for ring in rings.iter().flat_map(|ring| [ring.clone(), ring.reversed()]) {
        match both.iter_mut().find(|known| known.order == ring.order && known.hops == ring.hops) {
            Some(known) => known.rate += ring.rate,
            None => both.push(ring),
        }
    }
    both.sort_by_key(|ring| std::cmp::Reverse(ring.rate));
    Rings { rings: both }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::presets;
    use crate::plan::testing;
    use proptest::prelude::*;

    fn check(graph: &Graph, rings: &Rings) {
        let loads = rings.loads(graph).unwrap();
        assert!(loads.iter().zip(graph.arcs()).all(|(load, arc)| *load <= arc.capacity), "{loads:?}");
        for ring in &rings.rings {
            let mut seen = ring.order.clone();
            seen.sort_unstable();
            assert!(ring.rate > 0 && ring.order[0] == 0 && seen.into_iter().eq(0..graph.gpus()));
            for (at, path) in ring.hops.iter().enumerate() {
                let next = ring.order[(at + 1) % ring.order.len()];
                assert_eq!((path.first(), path.last()), (Some(&ring.order[at]), Some(&next)));
            }
        }
    }

    #[test]
    fn packings_reach_what_rings_can() {
        for known in testing::machines().into_iter().chain(testing::dgx1v_subsets()) {
            let found = search(&known.graph);
            check(&known.graph, &found);
            // Rates are whole MB/s, so each ring may lose up to one.
            let lost = known.ring - found.busbw();
            assert!((0..=found.rings.len() as i64).contains(&lost), "{}: {}", known.name, found.busbw());
        }
        // Optimal where PCIe only joins GPUs without NVLink; paths are free here, so it may be more.
        assert!(search(&presets::dgx1v_with_pcie(12, 10)).busbw() >= 152_500);
    }

    #[test]
    fn one_ring_takes_the_widest_links() {
        let found = single(&presets::dgx1v());
        check(&presets::dgx1v(), &found);
        assert_eq!(found.busbw(), 100_000);
        assert_eq!(single(&presets::mesh(2, 450)).busbw(), 450_000);
        assert_eq!(single(&presets::nv3_pendant()), Rings::default());
    }

    #[test]
    fn sixteen_gpus_get_rings_near_the_limit() {
        for graph in [presets::star(16, 450), presets::mesh(16, 30)] {
            let found = search(&graph);
            check(&graph, &found);
            assert!(found.busbw() >= 360_000, "{}", found.busbw());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn rings_fit_any_graph(graph in prop_oneof![testing::symmetric_graph(), testing::directed_graph()]) {
            check(&graph, &search(&graph));
            check(&graph, &single(&graph));
        }
    }
}
