//! Schedules that could do a collective on a machine, each with the way its links take.

use std::sync::Arc;

use super::machine::{Machine, Trees};
use super::rings::Rings;
use super::thin::Pool;
use super::tree::{Forest, Tree};
use crate::schedule::forest::TreeSpec;
use crate::schedule::simulate::Path;
use crate::schedule::{self, Request, Schedule};
use crate::{Collective, Result};

/// What a channel of a candidate looks like, for people and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Every rank to every rank.
    Mesh,
    /// The ranks in order.
    Ring(Vec<usize>),
    /// The parent of each rank.
    Tree(Vec<Option<usize>>),
}

/// A schedule, and how it lies on the machine.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// `forest (3 trees)`.
    pub(crate) label: String,
    pub(crate) schedule: Schedule,
    /// The way of each link.
    pub(crate) routes: Vec<Path>,
    /// What each channel carries, relative to the others.
    pub(crate) weights: Vec<u32>,
    pub(crate) shapes: Vec<Shape>,
    /// How many hops of a tile follow each other.
    pub(crate) steps: usize,
}

/// Weights of rings and trees are brought below this sum, so that shares stay numbers of 32 bits.
const MOST_WEIGHT: i64 = 4096;

impl Candidate {
    /// Whether every rank reaches every rank it has to do with in one hop.
    pub(crate) fn is_mesh(&self) -> bool {
        self.shapes.iter().all(|shape| *shape == Shape::Mesh)
    }
}

/// The most blocks of a rank for the smaller and the larger cut of the best forest: what fits into an engine's program,
/// and what fits on a GPU.
const FOREST_BLOCKS: [usize; 2] = [30, 112];

/// Every candidate that the machine has links for. Those of many channels come with more of them for long messages.
pub(crate) fn candidates(machine: &Machine, collective: Collective) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut add = |candidate: Result<Option<Candidate>>| {
        // A builder refuses only what does not exist on this machine, such as trees without weights that fit.
        let Some(candidate) = candidate.ok().flatten() else { return };
        if found.iter().all(|known| known.schedule != candidate.schedule || known.routes != candidate.routes)
        {
            found.push(candidate);
        }
    };
    for channels in [1, 4] {
        add(mesh(machine, collective, "one_shot", channels));
        add(mesh(machine, collective, "direct", channels));
    }
    let [many, single] = machine.rings();
    let one_way = Rings { rings: single.rings.iter().take(1).cloned().collect() };
    add(rings(machine, collective, &one_way, "ring, one way"));
    add(rings(machine, collective, single, "ring"));
    add(rings(machine, collective, many, "rings"));
    add(binary_trees(machine, collective, single));
    let counts: &[usize] = if collective.blocks(2) > 1 { &[1, 2, 3] } else { &[1, 2, 4, 8] };
    let cut_to = |&count: &usize| Some((count, machine.forest(collective, Trees::Few(count))?));
    let few: Vec<(usize, Arc<Forest>)> = counts.iter().filter_map(cut_to).collect();
    for (count, few) in &few {
        let pool = Pool::new(&machine.graph, few, []);
        add(forest(machine, collective, &format!("forest of {count}"), &pool, *count));
    }
    if let Some(best) = machine.forest(collective, Trees::Best) {
        let pool = Pool::new(&machine.graph, &best, few.iter().flat_map(|(_, forest)| &forest.trees));
        // Each unit of a tree's weight costs every rank one block, or two if sums go up and results down; trees of all
        // roots add up.
        let each = match collective {
            Collective::AllReduce => 2,
            Collective::AllGather | Collective::ReduceScatter => machine.ranks(),
            _ => 1,
        };
        for blocks in FOREST_BLOCKS {
            add(forest(machine, collective, "forest", &pool, (blocks / each).max(1)));
        }
    }
    found
}

/// The shortest way of every link; `None` where one has none.
fn direct_routes(machine: &Machine, schedule: &Schedule) -> Option<Vec<Path>> {
    let way =
        |l: &schedule::Link| machine.reach[l.from][l.to].then(|| machine.network.paths[l.from][l.to].clone());
    schedule.links.iter().map(way).collect()
}

fn mesh(
    machine: &Machine,
    collective: Collective,
    algorithm: &'static str,
    channels: usize,
) -> Result<Option<Candidate>> {
    let schedule = schedule::build(algorithm, &Request::new(collective, machine.ranks(), channels))?;
    let steps = if algorithm == "direct" && collective.blocks(2) == 1 { 2 } else { 1 };
    Ok(direct_routes(machine, &schedule).map(|routes| Candidate {
        label: if channels > 1 { format!("{algorithm} ({channels} channels)") } else { algorithm.into() },
        weights: vec![1; channels],
        shapes: vec![Shape::Mesh; channels],
        schedule,
        routes,
        steps,
    }))
}

fn rings(machine: &Machine, collective: Collective, rings: &Rings, label: &str) -> Result<Option<Candidate>> {
    if rings.rings.is_empty() {
        return Ok(None);
    }
    // A ring of GPUs is a ring of ranks that visits all ranks of a GPU before it leaves.
    let order =
        |ring: &super::Ring| ring.order.iter().flat_map(|&gpu| machine.ranks_on[gpu].clone()).collect();
    let orders: Vec<Vec<usize>> = rings.rings.iter().map(order).collect();
    let request = Request { collective, ranks: machine.ranks(), orders: orders.clone() };
    let rates: Vec<i64> = rings.rings.iter().map(|ring| ring.rate).collect();
    let weights = small_weights(&rates);
    let schedule = schedule::build("ring", &request)?.weighted(&weights)?;
    let way = |l: &schedule::Link| {
        let (from, to) = (machine.place[l.from], machine.place[l.to]);
        if from == to {
            return Some(machine.local(from));
        }
        let ring = &rings.rings[l.channel as usize];
        let at = ring.order.iter().position(|&gpu| gpu == from)?;
        machine.route(&ring.hops[at])
    };
    let Some(routes) = schedule.links.iter().map(way).collect() else { return Ok(None) };
    let laps = if collective == Collective::AllReduce { 2 } else { 1 };
    let count = orders.len();
    Ok(Some(Candidate {
        label: if label == "rings" { format!("{label} ({count})") } else { label.into() },
        shapes: orders.into_iter().map(Shape::Ring).collect(),
        steps: laps * (machine.ranks() - 1),
        schedule,
        routes,
        weights,
    }))
}

/// Double binary trees along the best ring, so that neighbours in the trees are near each other.
fn binary_trees(machine: &Machine, collective: Collective, single: &Rings) -> Result<Option<Candidate>> {
    let gpus: Vec<usize> = match single.rings.first() {
        Some(ring) => ring.order.clone(),
        None => (0..machine.graph.gpus()).collect(),
    };
    let order: Vec<usize> = gpus.iter().flat_map(|&gpu| machine.ranks_on[gpu].clone()).collect();
    let root = collective.root().unwrap_or(order[0]);
    let request = Request { collective, ranks: machine.ranks(), orders: vec![order.clone(); 2] };
    let schedule = schedule::build("tree", &request)?;
    let parents = [false, true].map(|second| schedule::tree::parents(&order, root, second));
    let laps = if collective == Collective::AllReduce { 2 } else { 1 };
    let depth = parents.iter().map(|parents| depth(parents)).max().unwrap_or(1);
    Ok(direct_routes(machine, &schedule).map(|routes| Candidate {
        label: "tree".into(),
        weights: vec![1; 2],
        shapes: parents.into_iter().map(Shape::Tree).collect(),
        steps: laps * depth,
        schedule,
        routes,
    }))
}

fn depth(parents: &[Option<usize>]) -> usize {
    let steps = |rank: usize| std::iter::successors(parents[rank], |&at| parents[at]).count();
    (0..parents.len()).map(steps).max().unwrap_or(0)
}

fn forest(
    machine: &Machine,
    collective: Collective,
    label: &str,
    pool: &Pool,
    most: usize,
) -> Result<Option<Candidate>> {
    let weights = pool.weights(most);
    let Some((specs, tree_of)) = rank_trees(machine, collective, &pool.trees, &weights) else {
        return Ok(None);
    };
    let schedule = schedule::forest::build(collective, machine.ranks(), &specs)?;
    let way = |l: &schedule::Link| {
        let (from, to) = (machine.place[l.from], machine.place[l.to]);
        if from == to {
            return Some(machine.local(from));
        }
        let tree = &pool.trees[tree_of[l.channel as usize]];
        let edge =
            tree.edges.iter().find(|e| [(e.parent, e.child), (e.child, e.parent)].contains(&(from, to)))?;
        if edge.parent == from {
            return machine.route(&edge.hops);
        }
        let back: Vec<usize> = edge.hops.iter().rev().copied().collect();
        machine.route(&back)
    };
    let Some(routes) = schedule.links.iter().map(way).collect() else { return Ok(None) };
    let laps = if collective == Collective::AllReduce { 2 } else { 1 };
    let depth = specs.iter().map(|spec| depth(&spec.parent)).max().unwrap_or(1);
    Ok(Some(Candidate {
        label: format!("{label} ({} trees)", specs.len()),
        weights: specs.iter().map(|spec| spec.weight).collect(),
        shapes: specs.into_iter().map(|spec| Shape::Tree(spec.parent)).collect(),
        steps: laps * depth,
        schedule,
        routes,
    }))
}

/// The trees of a forest between GPUs as trees of ranks, and the forest's tree of each.
///
/// One rank of each GPU stands in the tree of GPUs, and the others hang from it; trees take turns with whom that is.
fn rank_trees(
    machine: &Machine,
    collective: Collective,
    trees: &[Tree],
    weights: &[u32],
) -> Option<(Vec<TreeSpec>, Vec<usize>)> {
    let sharded = collective.blocks(2) > 1;
    if sharded {
        machine.ranks_each()?;
    }
    let mut specs = Vec::new();
    let mut tree_of = Vec::new();
    for (index, (tree, &weight)) in
        trees.iter().zip(weights).enumerate().filter(|(_, (_, weight))| **weight > 0)
    {
        let on_root = &machine.ranks_on[tree.root];
        let roots: Vec<usize> = match collective.root() {
            Some(root) => vec![root],
            None if sharded => on_root.clone(),
            None => vec![on_root[index % on_root.len()]],
        };
        for root in roots {
            let parent = expand(machine, tree, root, index);
            specs.push(TreeSpec { root, parent, weight });
            tree_of.push(index);
        }
    }
    Some((specs, tree_of))
}

fn expand(machine: &Machine, tree: &Tree, root: usize, turn: usize) -> Vec<Option<usize>> {
    let heads: Vec<usize> = machine
        .ranks_on
        .iter()
        .enumerate()
        .map(|(gpu, ranks)| if gpu == tree.root { root } else { ranks[turn % ranks.len()] })
        .collect();
    let above = tree.parents(machine.graph.gpus());
    (0..machine.ranks())
        .map(|rank| {
            let gpu = machine.place[rank];
            if heads[gpu] == rank { above[gpu].map(|parent| heads[parent]) } else { Some(heads[gpu]) }
        })
        .collect()
}

/// Rates as small whole numbers in nearly the same proportion, none of them 0.
fn small_weights(rates: &[i64]) -> Vec<u32> {
    let divisor = rates.iter().fold(0, |a, &b| super::ratio::gcd(a, i128::from(b))).max(1) as i64;
    let total: i64 = rates.iter().map(|rate| rate / divisor).sum();
    let scale = |rate: i64| match total <= MOST_WEIGHT {
        true => rate / divisor,
        false => (rate / divisor * MOST_WEIGHT / total).max(1),
    };
    rates.iter().map(|&rate| scale(rate) as u32).collect()
}
