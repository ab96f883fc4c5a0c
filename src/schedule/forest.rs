//! Forest: explicit spanning trees, each with its share of the message.
//!
//! This is how a planner reaches the optimum on an irregular machine: it packs spanning trees into the graph of links
//! (J. Edmonds, *Edge-disjoint branchings*, 1973) so that each link is loaded in proportion to its bandwidth, and the
//! trees' weights become shares of the message. The trees of an all_gather or reduce_scatter carry the block of their
//! root; those of an all_reduce may have any roots.
//!
//! Each tree is a channel. Data flow down a tree, sums flow up. An all_reduce does both in the same tree at the same
//! time, one tile up while an earlier one goes down: two workers a rank, so that neither waits for the other, except
//! at the root, where one fold adds up and sends down at once.

use super::{Builder, ChunkId, Fold, LinkId, Request, Role, Schedule, Share, Sink, Source};
use crate::error::{Error, Result};
use crate::types::Collective;

/// One spanning tree and how much it carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeSpec {
    /// The rank where sums arrive and from where results leave.
    pub root: usize,
    /// For each rank the next one on its way to the root; `None` for the root alone.
    pub parent: Vec<Option<usize>>,
    /// The tree's share, relative to the others; at least 1.
    pub weight: u32,
}

/// Builds a schedule from trees.
///
/// ```
/// use ringleader::Collective;
/// use ringleader::schedule::{self, forest};
///
/// // Two chains in opposite directions; the first carries twice as much.
/// let down = forest::TreeSpec { root: 0, parent: vec![None, Some(0), Some(1)], weight: 2 };
/// let up = forest::TreeSpec { root: 2, parent: vec![Some(1), Some(2), None], weight: 1 };
/// let schedule = forest::build(Collective::AllReduce, 3, &[down, up])?;
/// schedule::verify(&schedule, 1)?;
/// assert_eq!(schedule.chunk_range(schedule::ChunkId(0), 3072, 4), 0..2048);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidValue`] naming the tree that does not span all ranks, has a root that does not suit the collective,
/// or has no weight; or the rank whose block the trees do not carry at the same rate as the others'.
pub fn build(collective: Collective, ranks: usize, trees: &[TreeSpec]) -> Result<Schedule> {
    let request = Request::new(collective, ranks, trees.len());
    request.check()?;
    for (i, tree) in trees.iter().enumerate() {
        check_tree(i, tree, collective, ranks)?;
    }
    let totals = totals(collective, ranks, trees)?;
    let mut s = Builder::new("forest", &request);
    let mut begins = vec![0; totals.len()];
    for (channel, tree) in trees.iter().enumerate() {
        let block = block_of(collective, tree);
        let (begin, of) = (begins[block], totals[block]);
        begins[block] += tree.weight;
        let chunk = s.chunk(block, Share { begin, end: begin + tree.weight, of });
        add_tree(&mut s, channel, chunk, &tree.parent);
    }
    Ok(s.finish())
}

/// The block a tree carries.
fn block_of(collective: Collective, tree: &TreeSpec) -> usize {
    match collective {
        Collective::AllGather | Collective::ReduceScatter => tree.root,
        _ => 0,
    }
}

/// The sum of the weights for each block: all the same, or the planner's rates are not what the message needs.
fn totals(collective: Collective, ranks: usize, trees: &[TreeSpec]) -> Result<Vec<u32>> {
    let mut totals = vec![0u32; collective.blocks(ranks)];
    for (i, tree) in trees.iter().enumerate() {
        let total = &mut totals[block_of(collective, tree)];
        *total = total.checked_add(tree.weight).ok_or_else(|| {
            Error::invalid_value(format!("tree {i} weight"), tree.weight.to_string(), "a sum below 2^32")
        })?;
    }
    for (root, &total) in totals.iter().enumerate() {
        if total != totals[0] || total == 0 {
            return Err(Error::invalid_value(
                format!("weight of the trees of root {root}"),
                total.to_string(),
                format!("the same as for every root, above 0 (root 0 has {})", totals[0]),
            ));
        }
    }
    Ok(totals)
}

fn check_tree(i: usize, tree: &TreeSpec, collective: Collective, ranks: usize) -> Result<()> {
    if tree.weight == 0 {
        return Err(Error::invalid_value(format!("tree {i} weight"), "0", "at least 1"));
    }
    if tree.root >= ranks || collective.root().is_some_and(|r| r != tree.root) {
        let want = collective.root().map_or(format!("a rank below {ranks}"), |r| r.to_string());
        return Err(Error::invalid_value(format!("tree {i} root"), tree.root.to_string(), want));
    }
    let bad = |why: String| Err(Error::invalid_value(format!("tree {i}"), format!("{:?}", tree.parent), why));
    if tree.parent.len() != ranks {
        return bad(format!("a parent for each of {ranks} ranks"));
    }
    for start in 0..ranks {
        // From a rank of a tree it takes fewer steps than there are ranks to reach the root.
        let mut at = start;
        let mut steps = 0;
        while let Some(next) = tree.parent[at].filter(|&p| p < ranks && steps < ranks) {
            (at, steps) = (next, steps + 1);
        }
        if at != tree.root || tree.parent[at].is_some() {
            return bad(format!("a way from rank {start} to root {}", tree.root));
        }
    }
    Ok(())
}

/// One rank's place in a tree: the links to its neighbours.
#[derive(Clone, Default)]
struct Spot {
    /// The link to the parent and the one from it.
    parent: (Option<LinkId>, Option<LinkId>),
    /// For each child its rank, the link from it and the link to it, in rank order.
    children: Vec<(usize, Option<LinkId>, Option<LinkId>)>,
}

/// Adds the workers of one tree that carries one chunk. `parent` describes a spanning tree.
pub(crate) fn add_tree(s: &mut Builder, channel: usize, chunk: ChunkId, parent: &[Option<usize>]) {
    let collective = s.schedule.collective;
    let sums = collective.reduces();
    let results = !matches!(collective, Collective::ReduceScatter | Collective::Reduce { .. });
    let mut spots = vec![Spot::default(); parent.len()];
    for (rank, up) in parent.iter().enumerate() {
        let Some(p) = *up else { continue };
        let upward = sums.then(|| s.link(channel, rank, p));
        let downward = results.then(|| s.link(channel, p, rank));
        spots[rank].parent = (upward, downward);
        spots[p].children.push((rank, upward, downward));
    }
    for (rank, spot) in spots.iter().enumerate() {
        let mut down_sinks = vec![Sink::Output];
        down_sinks.extend(spot.children.iter().filter_map(|c| c.2).map(Sink::Peer));
        if parent[rank].is_none() {
            let sources = if sums { contributions(rank, spot) } else { vec![Source::Input] };
            let role = if sums { Role::Reduce } else { Role::Push };
            s.worker(rank, channel, role, vec![Fold::reduce(chunk, sources, down_sinks, sums)]);
            continue;
        }
        if let Some(up) = spot.parent.0 {
            let role = if spot.children.is_empty() { Role::Push } else { Role::Reduce };
            let fold = Fold::reduce(chunk, contributions(rank, spot), [Sink::Link(up)], false);
            s.worker(rank, channel, role, vec![fold]);
        }
        if let Some(down) = spot.parent.1 {
            s.worker(rank, channel, Role::Relay, vec![Fold::copy(chunk, Source::Peer(down), down_sinks)]);
        }
    }
}

/// A rank's own input and its children's sums, in rank order.
fn contributions(rank: usize, spot: &Spot) -> Vec<Source> {
    let mut all: Vec<(usize, Source)> =
        spot.children.iter().filter_map(|&(child, up, _)| Some((child, Source::Link(up?)))).collect();
    all.push((rank, Source::Input));
    all.sort_by_key(|&(r, _)| r);
    all.into_iter().map(|(_, source)| source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::verify;
    use proptest::prelude::*;

    /// A random tree: each rank hangs from one that is nearer to the root in a random order.
    fn tree(ranks: usize, root: usize) -> impl Strategy<Value = TreeSpec> {
        let order = Just((0..ranks).filter(|&r| r != root).collect::<Vec<_>>()).prop_shuffle();
        (order, prop::collection::vec(any::<prop::sample::Index>(), ranks), 1u32..9).prop_map(
            move |(order, picks, weight)| {
                let mut parent = vec![None; ranks];
                let mut inside = vec![root];
                for (rank, pick) in order.into_iter().zip(picks) {
                    parent[rank] = Some(inside[pick.index(inside.len())]);
                    inside.push(rank);
                }
                TreeSpec { root, parent, weight }
            },
        )
    }

    /// One to three trees for each root that the collective needs, the last weight of each root filled up.
    fn forest() -> impl Strategy<Value = (Collective, usize, Vec<TreeSpec>)> {
        (1usize..8, 0usize..5, any::<prop::sample::Index>()).prop_flat_map(|(ranks, which, pick)| {
            let root = pick.index(ranks);
            let collective = [
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root },
                Collective::Reduce { root },
            ][which];
            let roots: Vec<usize> =
                if collective.blocks(ranks) > 1 { (0..ranks).collect() } else { vec![root] };
            let each: Vec<_> = roots.iter().map(|&r| prop::collection::vec(tree(ranks, r), 1..4)).collect();
            each.prop_map(move |mut groups| {
                for group in &mut groups {
                    let others: u32 = group.iter().skip(1).map(|t| t.weight).sum();
                    group[0].weight = 30 - others;
                }
                (collective, ranks, groups.concat())
            })
        })
    }

    proptest! {
        #[test]
        fn any_forest_verifies((collective, ranks, trees) in forest()) {
            let schedule = build(collective, ranks, &trees).unwrap();
            verify(&schedule, 1).unwrap();
            verify(&schedule, 2).unwrap();
            let folds = || schedule.workers.iter().flatten().flat_map(|worker| &worker.folds);
            for link in (0..schedule.links.len() as u32).map(LinkId) {
                prop_assert!(folds().any(|f| f.sinks.iter().any(|s| s.link() == Some(link))), "link {} is unused", link.0);
            }
        }
    }

    #[test]
    fn bad_trees_are_named() {
        let good = TreeSpec { root: 0, parent: vec![None, Some(0), Some(1)], weight: 1 };
        let refuse = |collective, trees: &[TreeSpec], word: &str| {
            let message = build(collective, 3, trees).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        };
        let cycle = TreeSpec { parent: vec![None, Some(2), Some(1)], ..good.clone() };
        refuse(Collective::AllReduce, &[good.clone(), cycle], "tree 1");
        let outside = TreeSpec { parent: vec![None, Some(3), Some(1)], ..good.clone() };
        refuse(Collective::AllReduce, &[outside], "from rank 1 to root 0");
        let rootless = TreeSpec { parent: vec![Some(1), Some(0), Some(1)], ..good.clone() };
        refuse(Collective::AllReduce, &[rootless], "from rank 0");
        let short = TreeSpec { parent: vec![None], ..good.clone() };
        refuse(Collective::AllReduce, &[short], "each of 3 ranks");
        refuse(Collective::AllReduce, &[TreeSpec { weight: 0, ..good.clone() }], "weight");
        refuse(Collective::Broadcast { root: 1 }, std::slice::from_ref(&good), "tree 0 root");
        refuse(Collective::AllGather, std::slice::from_ref(&good), "root 1");
        refuse(Collective::AllReduce, &[], "channels");
    }
}
