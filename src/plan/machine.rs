//! The machine as the planner sees it: a graph for the bounds and trees, a network for the clock, and which ranks sit where.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::bound::{Bound, Certificate, bound};
use super::graph::Graph;
use super::ratio::Ratio;
use super::rings::{self, Rings};
use super::tree::Forest;
use super::{forest, paths};
use crate::schedule::simulate::{Network, Path, Resource};
use crate::topology::{CapacityGraph, LinkKind, PathType, Topology};
use crate::{Collective, Error, Result};

/// GB/s between two ranks on one GPU: a copy reads and writes the same memory.
const LOCAL_GBS: f64 = 1000.0;

/// From a store to its being seen, on one GPU.
const LOCAL_US: f64 = 0.5;

/// Trees of a forest: as many as the bound needs, or a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trees {
    Best,
    Few(usize),
}

/// The GPUs that take part, what joins them, and the ranks on them.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The GPUs, in the order in which ranks first name them. Where all ranks share one GPU, each rank counts as one and
    /// the GPU's memory joins them.
    pub(crate) graph: Graph,
    /// The GPU of each rank, as a node of the graph.
    pub(crate) place: Vec<usize>,
    /// The ranks on each GPU.
    pub(crate) ranks_on: Vec<Vec<usize>>,
    /// The types of the best way between two GPUs, and of that over PCIe.
    types: Vec<Vec<[PathType; 2]>>,
    /// Whether each arc is NVLink, xGMI, C2C or memory, rather than PCIe or what lies between CPUs.
    near: Vec<bool>,
    /// Ranks and the ways between them that pass no other GPU; resource `i` is arc `i` of the graph.
    pub(crate) network: Network,
    /// Whether there is such a way between two ranks.
    pub(crate) reach: Vec<Vec<bool>>,
    /// Whether every such way is NVLink or memory, so that 128-byte stores arrive whole.
    pub(crate) nvlink_only: bool,
    latency: Vec<f64>,
    rings: OnceLock<[Rings; 2]>,
    forests: Mutex<HashMap<(Collective, Trees), Option<Arc<Forest>>>>,
    bounds: Mutex<HashMap<Collective, Bound>>,
}

/// Microseconds that a link adds from a store to its being seen.
fn latency_us(kind: LinkKind, through_switch: bool) -> f64 {
    match kind {
        LinkKind::NvLink | LinkKind::Xgmi if through_switch => 0.32,
        LinkKind::NvLink | LinkKind::Xgmi => 0.64,
        LinkKind::C2c => 0.4,
        LinkKind::Pcie => 0.5,
        LinkKind::Smp => 0.6,
    }
}

fn is_nvlink(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::NvLink | LinkKind::Xgmi)
}

/// Whether NVLink alone joins every two GPUs without passing a third. Then PCIe is no second way: the driver maps
/// a peer's memory over NVLink where there is one.
fn nvlink_suffices(graph: &CapacityGraph) -> bool {
    let reached = |from: usize| {
        let mut seen = vec![false; graph.nodes.len()];
        let mut open = vec![from];
        seen[from] = true;
        while let Some(node) = open.pop() {
            if node != from && graph.nodes[node].is_gpu {
                continue;
            }
            for arc in graph.arcs.iter().filter(|arc| arc.from == node && is_nvlink(arc.kind)) {
                if !std::mem::replace(&mut seen[arc.to], true) {
                    open.push(arc.to);
                }
            }
        }
        seen[..graph.gpus].iter().all(|&seen| seen)
    };
    (0..graph.gpus).all(reached)
}

impl Machine {
    /// The part of a machine on which ranks run: rank `i` on GPU `ranks[i]`. Without `p2p` GPUs reach each other only through
    /// PCIe and host memory.
    pub(crate) fn new(topology: &Topology, ranks: &[usize], p2p: bool) -> Result<Machine> {
        let mut gpus: Vec<usize> = Vec::new();
        ranks.iter().for_each(|&gpu| {
            if !gpus.contains(&gpu) {
                gpus.push(gpu);
            }
        });
        let part = topology.subset(&gpus)?;
        if gpus.len() == 1 {
            return Machine::on_one_gpu(ranks.len(), gpus[0]);
        }
        let mut capacity = part.graph();
        // Links are called by the GPUs' numbers in the machine, whatever part of it is used.
        capacity.nodes.iter_mut().zip(&gpus).for_each(|(node, gpu)| node.name = format!("GPU{gpu}"));
        if !p2p {
            capacity.arcs.retain(|arc| !is_nvlink(arc.kind));
        }
        let nvlink_only = nvlink_suffices(&capacity);
        let arcs: Vec<_> = capacity.arcs.iter().filter(|arc| !nvlink_only || is_nvlink(arc.kind)).collect();
        let mut graph = Graph::new(capacity.nodes[..capacity.gpus].iter().map(|n| n.name.clone()))?;
        let mut node_of: Vec<Option<usize>> =
            (0..capacity.nodes.len()).map(|i| (i < capacity.gpus).then_some(i)).collect();
        let mut latency = Vec::new();
        let mut near = Vec::new();
        for arc in arcs {
            for end in [arc.from, arc.to] {
                if node_of[end].is_none() {
                    node_of[end] = Some(graph.add_switch(capacity.nodes[end].name.clone())?);
                }
            }
            let (Some(from), Some(to)) = (node_of[arc.from], node_of[arc.to]) else { continue };
            let name = arc_name(
                topology_link(&part, arc.link),
                arc.kind,
                &capacity,
                arc.from.min(arc.to),
                arc.from.max(arc.to),
            );
            graph.add_arc(from, to, i64::try_from(arc.mbs).unwrap_or(i64::MAX), name)?;
            if latency.len() < graph.arcs().len() {
                latency.push(latency_us(arc.kind, graph.is_switch(from) || graph.is_switch(to)));
                near.push(!matches!(arc.kind, LinkKind::Pcie | LinkKind::Smp));
            }
        }
        let place: Vec<usize> =
            ranks.iter().map(|gpu| gpus.iter().position(|known| known == gpu).unwrap_or(0)).collect();
        let pcie = part.pcie_types();
        let both = |(best, pcie): (&crate::topology::Path, &PathType)| [best.kind, *pcie];
        let types = part
            .paths()
            .iter()
            .zip(&pcie)
            .map(|(row, pcie)| row.iter().zip(pcie).map(both).collect())
            .collect();
        Ok(Machine::assemble(graph, latency, near, place, types, nvlink_only))
    }

    fn on_one_gpu(ranks: usize, gpu: usize) -> Result<Machine> {
        let mut graph = Graph::new((0..ranks).map(|rank| format!("rank {rank} on GPU{gpu}")))?;
        if ranks > 1 {
            let memory = graph.add_switch(format!("memory of GPU{gpu}"))?;
            for rank in 0..ranks {
                graph.link(rank, memory, (LOCAL_GBS * 1e3) as i64, format!("memory of GPU{gpu}"))?;
            }
        }
        let latency = vec![LOCAL_US / 2.0; graph.arcs().len()];
        let near = vec![true; latency.len()];
        let types = vec![vec![[PathType::Loc; 2]; ranks]; ranks];
        Ok(Machine::assemble(graph, latency, near, (0..ranks).collect(), types, true))
    }

    fn assemble(
        graph: Graph,
        latency: Vec<f64>,
        near: Vec<bool>,
        place: Vec<usize>,
        types: Vec<Vec<[PathType; 2]>>,
        nvlink_only: bool,
    ) -> Machine {
        let mut ranks_on = vec![Vec::new(); graph.gpus()];
        place.iter().enumerate().for_each(|(rank, &gpu)| ranks_on[gpu].push(rank));
        let mut machine = Machine {
            network: Network::default(),
            reach: Vec::new(),
            rings: OnceLock::new(),
            forests: Mutex::default(),
            bounds: Mutex::default(),
            graph,
            place,
            ranks_on,
            types,
            nvlink_only,
            latency,
            near,
        };
        machine.network.resources = machine
            .graph
            .arcs()
            .iter()
            .map(|arc| Resource { name: arc.name.clone(), gbs: arc.capacity as f64 / 1e3 })
            .collect();
        if machine.place.len() > machine.graph.gpus() {
            let memory = |gpu: usize| Resource {
                name: format!("memory of {}", machine.graph.name(gpu)),
                gbs: LOCAL_GBS,
            };
            let memories: Vec<Resource> = (0..machine.graph.gpus()).map(memory).collect();
            machine.network.resources.extend(memories);
        }
        let direct = paths::direct(&machine.graph);
        let way = |from: usize, to: usize| {
            let (a, b) = (machine.place[from], machine.place[to]);
            if from == to {
                Some(Path::default())
            } else if a == b {
                Some(machine.local(a))
            } else {
                machine.route(direct[a][b].as_deref()?)
            }
        };
        let count = machine.place.len();
        let ways: Vec<Vec<Option<Path>>> =
            (0..count).map(|from| (0..count).map(|to| way(from, to)).collect()).collect();
        machine.reach = ways.iter().map(|row| row.iter().map(Option::is_some).collect()).collect();
        machine.network.paths =
            ways.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()).collect();
        machine
    }

    /// The number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.place.len()
    }

    /// How many ranks each GPU has, if all have as many.
    pub(crate) fn ranks_each(&self) -> Option<usize> {
        let first = self.ranks_on[0].len();
        self.ranks_on.iter().all(|ranks| ranks.len() == first).then_some(first)
    }

    /// Whether all ranks share one GPU.
    pub(crate) fn is_one_gpu(&self) -> bool {
        self.types.len() > 1 && self.types[0][1][0] == PathType::Loc
    }

    /// The type of a way between two ranks.
    pub(crate) fn way_type(&self, from: usize, to: usize, way: &Path) -> PathType {
        let (a, b) = (self.place[from], self.place[to]);
        self.type_of(a, b, way.resources.iter().all(|&arc| self.near.get(arc).copied().unwrap_or(true)))
    }

    /// The type of a way between two GPUs along nodes of the graph.
    pub(crate) fn hops_type(&self, from: usize, to: usize, nodes: &[usize]) -> PathType {
        let near = self.route(nodes).is_some_and(|way| way.resources.iter().all(|&arc| self.near[arc]));
        self.type_of(from, to, near)
    }

    fn type_of(&self, a: usize, b: usize, near: bool) -> PathType {
        match near {
            _ if a == b => PathType::Loc,
            true => self.types[a][b][0],
            false => self.types[a][b][1],
        }
    }

    /// From one rank on a GPU to another on the same.
    pub(crate) fn local(&self, gpu: usize) -> Path {
        Path { resources: vec![self.graph.arcs().len() + gpu], latency_us: LOCAL_US }
    }

    /// The way along nodes of the graph; `None` where two of them have no link.
    pub(crate) fn route(&self, nodes: &[usize]) -> Option<Path> {
        let arc = |step: &[usize]| {
            self.graph.arcs().iter().position(|arc| arc.from == step[0] && arc.to == step[1])
        };
        let resources: Vec<usize> = nodes.windows(2).map(arc).collect::<Option<_>>()?;
        let latency_us = resources.iter().map(|&arc| self.latency[arc]).sum();
        Some(Path { resources, latency_us })
    }

    /// The longest latency between two ranks, in microseconds.
    pub(crate) fn longest_us(&self) -> f64 {
        self.network.paths.iter().flatten().map(|path| path.latency_us).fold(0.0, f64::max)
    }

    /// The best packing of rings, and the best ring alone, between GPUs.
    pub(crate) fn rings(&self) -> &[Rings; 2] {
        self.rings.get_or_init(|| {
            if self.graph.gpus() < 2 {
                Default::default()
            } else {
                [rings::search(&self.graph), rings::single(&self.graph)]
            }
        })
    }

    /// A forest between GPUs; `None` where there is none. The collective's root is a rank.
    pub(crate) fn forest(&self, collective: Collective, trees: Trees) -> Option<Arc<Forest>> {
        let collective = self.between_gpus(collective);
        let mut forests = self.forests.lock().unwrap_or_else(PoisonError::into_inner);
        let found = forests.entry((collective, trees)).or_insert_with(|| {
            let found = match trees {
                Trees::Best => forest::best(&self.graph, collective),
                Trees::Few(count) => forest::few(&self.graph, collective, count),
            };
            found.ok().map(Arc::new)
        });
        found.clone()
    }

    /// The collective with the root's GPU in the place of the root.
    fn between_gpus(&self, collective: Collective) -> Collective {
        match collective {
            Collective::Broadcast { root } => Collective::Broadcast { root: self.place[root] },
            Collective::Reduce { root } => Collective::Reduce { root: self.place[root] },
            other => other,
        }
    }

    /// The bound, of two or more ranks.
    ///
    /// With several ranks on each GPU, GPUs stand for their ranks: what ranks on one GPU tell each other costs nothing.
    pub(crate) fn bound(&self, collective: Collective) -> Result<Bound> {
        if let Some(known) = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).get(&collective) {
            return Ok(known.clone());
        }
        let mut found = bound(&self.graph, self.between_gpus(collective))?;
        let sharded = collective.blocks(2) > 1;
        if sharded && self.ranks_each().is_none() {
            found = self.uneven_bound(collective);
        }
        if found.algbw == Ratio::ZERO {
            return Err(Error::NoPlan {
                request: format!("{} on {} GPUs", collective.name(), self.graph.gpus()),
                reason: format!("no link joins {}", parts(&found.certificate, self.graph.gpus())),
            });
        }
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).insert(collective, found.clone());
        Ok(found)
    }

    /// All_gather and reduce_scatter where GPUs have different numbers of ranks: what a single GPU lacks has to enter it.
    fn uneven_bound(&self, collective: Collective) -> Bound {
        let inward = collective == Collective::AllGather;
        let ranks = self.ranks() as i128;
        let cut = |gpu: usize| {
            let into =
                self.graph.arcs().iter().filter(|arc| if inward { arc.to == gpu } else { arc.from == gpu });
            let capacity: i64 = into.map(|arc| arc.capacity).sum();
            (Ratio::new(i128::from(capacity) * ranks, ranks - self.ranks_on[gpu].len() as i128), gpu)
        };
        let (algbw, gpu) = (0..self.graph.gpus()).map(cut).min().unwrap_or((Ratio::ZERO, 0));
        let others = (0..self.graph.gpus()).filter(|&other| other != gpu).collect();
        let mut links: Vec<String> = Vec::new();
        for arc in self.graph.arcs().iter().filter(|arc| if inward { arc.to == gpu } else { arc.from == gpu })
        {
            if !links.contains(&arc.name) {
                links.push(arc.name.clone());
            }
        }
        Bound {
            collective,
            gpus: self.graph.gpus(),
            algbw,
            certificate: Certificate::Cut { gpus: others },
            links,
        }
    }
}

fn parts(certificate: &Certificate, gpus: usize) -> String {
    match certificate {
        Certificate::Partition { parts } => {
            parts.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>().join(" and ")
        }
        Certificate::Cut { gpus: inside } => {
            let outside: Vec<usize> = (0..gpus).filter(|gpu| !inside.contains(gpu)).collect();
            format!("{inside:?} and {outside:?}")
        }
    }
}

fn topology_link(topology: &Topology, link: usize) -> u32 {
    topology.links().get(link).map_or(1, |l| l.count)
}

/// How messages call a link: `NV2 GPU0-GPU3`, `PCIe GPU3-PCIe switch 0`.
fn arc_name(count: u32, kind: LinkKind, graph: &CapacityGraph, a: usize, b: usize) -> String {
    let kind = match kind {
        LinkKind::NvLink => format!("NV{count}"),
        LinkKind::Xgmi => format!("XGMI{count}"),
        other => other.name().to_string(),
    };
    format!("{kind} {}-{}", graph.nodes[a].name, graph.nodes[b].name)
}
