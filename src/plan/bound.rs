//! How fast a collective can possibly be on a graph, exactly, each with the cut or partition that proves it.
//!
//! Rates are *algorithm bandwidth*: the size of the whole buffer over the time, in MB/s. No schedule in which switches
//! only forward can beat them:
//!
//! - all_gather, reduce_scatter: a set `S` of GPUs holds `|S|/N` of the data that somebody outside needs, so
//!   `N · B+(S) / |S|`, least over all sets (the bottleneck cut of ForestColl, Zhao et al. 2024); reached by packed trees.
//! - broadcast, reduce: the least max-flow from the root to another GPU (Edmonds 1973); reached by packed trees.
//! - all_reduce: for any partition of the GPUs into `p` groups, `Σ cut(Vi) / (2 (p - 1))`. With single GPUs this is the
//!   bound of Patarasuk and Yuan (2009); on symmetric graphs without switches it is the tree packing number of
//!   Nash-Williams and Tutte (1961) and reached by using each tree in both directions. With switches, or where links
//!   differ by direction, it remains a valid upper bound, but is not proven to be reached everywhere.
//!
//! ```
//! use ringleader::plan::{bound, presets, Ratio};
//! use ringleader::Collective;
//! let bound = bound::bound(&presets::dgx1v(), Collective::AllReduce)?;
//! assert_eq!(bound.algbw, Ratio::new(600_000, 7));
//! assert_eq!(bound.busbw(), Ratio::from(150_000));
//! # Ok::<(), ringleader::Error>(())
//! ```

use super::flow::INFINITE;
use super::graph::Graph;
use super::partition::{Cuts, Part, partition_rate, weakest_partition};
use super::ratio::Ratio;
use crate::{Collective, Error, Result};

/// What proves a [`Bound`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// A set of GPUs. All_gather and broadcast: what the others need must leave it; broadcast's root is in it.
    /// Reduce_scatter and reduce: what it needs must enter it; reduce's root is in it.
    Cut {
        /// The ranks, ascending.
        gpus: Vec<usize>,
    },
    /// Groups of GPUs that together have too little capacity to each other.
    Partition {
        /// The groups; each rank is in one.
        parts: Vec<Vec<usize>>,
    },
}

/// The best rate that any schedule can have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Of what.
    pub collective: Collective,
    /// On how many GPUs.
    pub gpus: usize,
    /// Whole buffer over time, in MB/s; 0 where the graph is not connected.
    pub algbw: Ratio,
    /// The cut or partition whose capacity this is.
    pub certificate: Certificate,
    /// The names of the links in it: widen these, and nothing else, to go faster.
    pub links: Vec<String>,
}

impl Bound {
    /// The bound as bus bandwidth, comparable between collectives and sizes, in MB/s.
    pub fn busbw(&self) -> Ratio {
        let n = self.gpus as i128;
        let factor = match self.collective {
            Collective::AllReduce => Ratio::new(2 * (n - 1), n),
            Collective::AllGather | Collective::ReduceScatter => Ratio::new(n - 1, n),
            Collective::Broadcast { .. } | Collective::Reduce { .. } => Ratio::from(1),
        };
        self.algbw * factor
    }

    /// The bound and its proof in a sentence, for people.
    ///
    /// ```
    /// use ringleader::plan::{bound, presets};
    /// let bound = bound::bound(&presets::pix_article(24), ringleader::Collective::AllReduce)?;
    /// assert_eq!(
    ///     bound.explain(),
    ///     "all_reduce cannot exceed 99.00 GB/s (bus 148.50): the groups {0 1 2} {3} exchange all they need over \
    ///      NV3 GPU2-GPU3, PIX GPU3-PCIe switch"
    /// );
    /// # Ok::<(), ringleader::Error>(())
    /// ```
    pub fn explain(&self) -> String {
        let set = |gpus: &Vec<usize>| {
            let ranks: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            format!("{{{}}}", ranks.join(" "))
        };
        let inward = matches!(self.collective, Collective::ReduceScatter | Collective::Reduce { .. });
        let reason = match &self.certificate {
            Certificate::Cut { gpus } if inward => format!("what {} needs comes in over", set(gpus)),
            Certificate::Cut { gpus } => format!("what the others need leaves {} over", set(gpus)),
            Certificate::Partition { parts } => {
                let groups: Vec<String> = parts.iter().map(set).collect();
                format!("the groups {} exchange all they need over", groups.join(" "))
            }
        };
        let links = match self.links.len() {
            0 => "no link at all".to_string(),
            1..=8 => self.links.join(", "),
            count => format!("{} and {} other links", self.links[..6].join(", "), count - 6),
        };
        format!(
            "{} cannot exceed {:.2} GB/s (bus {:.2}): {reason} {links}",
            self.collective.name(),
            self.algbw.to_f64() / 1e3,
            self.busbw().to_f64() / 1e3
        )
    }

    /// Computes the rate again from the certificate alone; equal to [`Bound::algbw`] on the graph it came from.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] where the certificate does not fit the graph or the collective.
    pub fn recompute(&self, graph: &Graph) -> Result<Ratio> {
        let misfit = || {
            Error::invalid_value(
                "certificate",
                format!("{:?}", self.certificate),
                format!("one of {} on {} GPUs", self.collective.name(), graph.gpus()),
            )
        };
        let n = graph.gpus();
        match (&self.certificate, self.collective) {
            (Certificate::Partition { parts }, Collective::AllReduce) => {
                let mut seen = parts.concat();
                seen.sort_unstable();
                if parts.len() < 2 || parts.contains(&vec![]) || !seen.into_iter().eq(0..n) {
                    return Err(misfit());
                }
                let mut cuts = Cuts::new(graph, 1);
                let parts: Vec<Part> = parts.iter().map(|gpus| cuts.part(gpus.clone())).collect();
                let rate = partition_rate(&parts);
                if parts.len() > 2 {
                    return Ok(rate);
                }
                Ok(rate.min(Ratio::from(parts[0].cut.min(parts[1].cut))))
            }
            (Certificate::Cut { gpus }, collective) if collective != Collective::AllReduce => {
                let outside = (0..n).any(|gpu| !gpus.contains(&gpu));
                let rooted = collective.root().is_none_or(|root| gpus.contains(&root));
                if gpus.is_empty() || !outside || !rooted || gpus.iter().any(|&gpu| gpu >= n) {
                    return Err(misfit());
                }
                let inward = matches!(collective, Collective::ReduceScatter | Collective::Reduce { .. });
                let turned = if inward { graph.reversed() } else { graph.clone() };
                let (cut, _) = Cuts::new(&turned, 1).separate(|gpu| gpus.contains(&gpu));
                let shards = collective.root().map_or((n as i128, gpus.len() as i128), |_| (1, 1));
                Ok(Ratio::new(i128::from(cut) * shards.0, shards.1))
            }
            _ => Err(misfit()),
        }
    }
}

/// The best rate of a collective on a graph.
///
/// # Errors
/// [`Error::InvalidValue`] for fewer than two GPUs (nothing moves, so nothing bounds it) or a root that is not there.
pub fn bound(graph: &Graph, collective: Collective) -> Result<Bound> {
    let n = graph.gpus();
    if n < 2 {
        return Err(Error::invalid_value(
            "number of GPUs in the graph",
            n.to_string(),
            "at least 2 for a bound",
        ));
    }
    if let Some(root) = collective.root().filter(|&root| root >= n) {
        return Err(Error::invalid_value("root", root.to_string(), format!("a rank below {n}")));
    }
    let reversed;
    let turned = match collective {
        Collective::ReduceScatter | Collective::Reduce { .. } => {
            reversed = graph.reversed();
            &reversed
        }
        _ => graph,
    };
    let (algbw, certificate, links) = match collective {
        Collective::AllReduce => all_reduce(graph),
        Collective::AllGather | Collective::ReduceScatter => {
            let (rate, side) = gather_rate(turned);
            (rate * Ratio::from(n as i64), cut_certificate(turned, &side), turned.links_leaving(&side))
        }
        Collective::Broadcast { root } | Collective::Reduce { root } => {
            let (rate, side) = rooted_rate(turned, root);
            (Ratio::from(rate), cut_certificate(turned, &side), turned.links_leaving(&side))
        }
    };
    Ok(Bound { collective, gpus: n, algbw, certificate, links })
}

fn cut_certificate(graph: &Graph, side: &[bool]) -> Certificate {
    Certificate::Cut { gpus: (0..graph.gpus()).filter(|&gpu| side[gpu]).collect() }
}

/// The rate per GPU at which all can broadcast at once, in MB/s, and the nodes whose exits limit it.
///
/// Newton's method on cuts: from the cuts that isolate one GPU, each flow that falls short gives a cut with a strictly
/// smaller ratio.
pub(crate) fn gather_rate(graph: &Graph) -> (Ratio, Vec<bool>) {
    let (n, nodes) = (graph.gpus(), graph.nodes());
    let into =
        |gpu: usize| graph.arcs().iter().filter(|arc| arc.to == gpu).map(|arc| arc.capacity).sum::<i64>();
    let thinnest = (0..n).min_by_key(|&gpu| into(gpu)).unwrap_or(0);
    let mut rate = Ratio::new(into(thinnest).into(), n as i128 - 1);
    let mut side: Vec<bool> = (0..nodes).map(|node| node != thinnest).collect();
    let mut clean = 0;
    let mut target = 0;
    while clean < n {
        let (num, den) = (rate.num() as i64, rate.den() as i64);
        let mut net = graph.network(1, den);
        (0..n).for_each(|gpu| {
            net.add_arc(nodes, gpu, num);
        });
        while clean < n {
            let due = num * n as i64;
            if net.max_flow(nodes, target, due) < due {
                side = net.source_side();
                side.truncate(nodes);
                let exits: i64 = graph
                    .arcs()
                    .iter()
                    .filter(|arc| side[arc.from] && !side[arc.to])
                    .map(|arc| arc.capacity)
                    .sum();
                rate = Ratio::new(exits.into(), side[..n].iter().filter(|&&inside| inside).count() as i128);
                clean = 0;
                break;
            }
            clean += 1;
            target = (target + 1) % n;
        }
    }
    (rate, side)
}

/// The rate at which `root` can broadcast, in MB/s, and its side of the cut that limits it.
pub(crate) fn rooted_rate(graph: &Graph, root: usize) -> (i64, Vec<bool>) {
    let mut net = graph.network(0, 1);
    let mut best = (INFINITE, Vec::new());
    for gpu in (0..graph.gpus()).filter(|&gpu| gpu != root) {
        let flow = net.max_flow(root, gpu, best.0);
        if flow < best.0 {
            best = (flow, net.source_side());
        }
    }
    best
}

fn all_reduce(graph: &Graph) -> (Ratio, Certificate, Vec<String>) {
    let mut parts = weakest_partition(graph);
    let mut rate = partition_rate(&parts);
    // Two groups: the data crosses each way, so the thinner direction counts, not the mean of both.
    for turned in [graph.clone(), graph.reversed()] {
        let (cut, side) = rooted_rate(&turned, 0);
        if Ratio::from(cut) < rate {
            let (one, other) = (0..graph.gpus()).partition(|&gpu| side[gpu]);
            let mut cuts = Cuts::new(graph, 1);
            parts = vec![cuts.part(one), cuts.part(other)];
            rate = Ratio::from(cut);
        }
    }
    let mut links: Vec<String> = Vec::new();
    for name in parts.iter().flat_map(|part| graph.links_leaving(&part.side)) {
        if !links.contains(&name) {
            links.push(name);
        }
    }
    (rate, Certificate::Partition { parts: parts.into_iter().map(|part| part.gpus).collect() }, links)
}

/// The least number of dependent hops between GPUs (a path through switches is one hop), which times the cost of a hop
/// bounds the time from below: the eccentricity of the root, or the diameter where there is none. `None` where some GPU
/// cannot be reached.
///
/// # Errors
/// As [`bound`].
pub fn latency_hops(graph: &Graph, collective: Collective) -> Result<Option<usize>> {
    if let Some(root) = collective.root().filter(|&root| root >= graph.gpus()) {
        return Err(Error::invalid_value("root", root.to_string(), format!("a rank below {}", graph.gpus())));
    }
    let turned = match collective {
        Collective::Reduce { .. } => graph.reversed(),
        _ => graph.clone(),
    };
    let worst =
        |from: usize| gpu_hops(&turned, from).into_iter().try_fold(0, |most, hops| Some(hops?.max(most)));
    Ok(match collective.root() {
        Some(root) => worst(root),
        None => (0..graph.gpus()).try_fold(0, |most, from| Some(worst(from)?.max(most))),
    })
}

/// Hops from a GPU to every GPU; passing a switch is free.
pub(crate) fn gpu_hops(graph: &Graph, from: usize) -> Vec<Option<usize>> {
    let mut hops = vec![None; graph.nodes()];
    hops[from] = Some(0);
    let mut ring = vec![from];
    let mut depth = 0;
    while !ring.is_empty() {
        depth += 1;
        let mut next = Vec::new();
        while let Some(node) = ring.pop() {
            for arc in graph.arcs().iter().filter(|arc| arc.from == node) {
                if hops[arc.to].is_none() {
                    hops[arc.to] = Some(depth);
                    if graph.is_switch(arc.to) { ring.push(arc.to) } else { next.push(arc.to) }
                }
            }
        }
        ring = next;
    }
    hops.truncate(graph.gpus());
    hops
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
