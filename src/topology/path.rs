//! The way data takes between two GPUs.

use std::collections::VecDeque;
use std::fmt;

use crate::error::{Error, Result};
use crate::topology::model::{LinkKind, NodeId, NodeKind, Topology};

/// How far apart two devices are, by NCCL's names; the nearer, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathType {
    /// The same device.
    Loc,
    /// NVLink or xGMI, direct or through NVSwitches.
    Nvl,
    /// NVLink through one other GPU.
    Nvb,
    /// Chip-to-chip links through a shared CPU.
    C2c,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// To a NIC by C2C and then PCIe.
    P2c,
    /// To a NIC by way of another GPU.
    Pxn,
    /// Through a PCIe host bridge, typically the CPU.
    Phb,
    /// Through several host bridges of one NUMA node.
    Node,
    /// Through the bus between NUMA nodes.
    Sys,
    /// Over a network.
    Net,
    /// No way at all.
    Dis,
}

impl PathType {
    /// Every type, nearest first.
    pub const ALL: [PathType; 13] = [
        PathType::Loc,
        PathType::Nvl,
        PathType::Nvb,
        PathType::C2c,
        PathType::Pix,
        PathType::Pxb,
        PathType::P2c,
        PathType::Pxn,
        PathType::Phb,
        PathType::Node,
        PathType::Sys,
        PathType::Net,
        PathType::Dis,
    ];

    /// The name: `NVL`.
    pub const fn name(self) -> &'static str {
        match self {
            PathType::Loc => "LOC",
            PathType::Nvl => "NVL",
            PathType::Nvb => "NVB",
            PathType::C2c => "C2C",
            PathType::Pix => "PIX",
            PathType::Pxb => "PXB",
            PathType::P2c => "P2C",
            PathType::Pxn => "PXN",
            PathType::Phb => "PHB",
            PathType::Node => "NODE",
            PathType::Sys => "SYS",
            PathType::Net => "NET",
            PathType::Dis => "DIS",
        }
    }

    /// Whether it is one of those that tell how the PCIe way runs: PIX, PXB, PHB, NODE, SYS.
    pub const fn is_pcie(self) -> bool {
        matches!(self, PathType::Pix | PathType::Pxb | PathType::Phb | PathType::Node | PathType::Sys)
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for PathType {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl std::str::FromStr for PathType {
    type Err = Error;

    /// Accepts the names in any case, and SOC, an old word for SYS.
    fn from_str(text: &str) -> Result<Self> {
        let upper = text.to_ascii_uppercase();
        if upper == "SOC" {
            return Ok(PathType::Sys);
        }
        PathType::ALL.into_iter().find(|t| t.name() == upper).ok_or_else(|| {
            Error::invalid_value(
                "path type",
                text,
                "LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, NODE, SYS, NET or DIS",
            )
        })
    }
}

/// The best way from one GPU to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// What it has to cross.
    pub kind: PathType,
    /// GB/s in one direction when nobody else uses it: the rate of its narrowest link. 0 if there is no way.
    pub gbs: f64,
    /// The nodes on the way, both ends included. Empty if there is no way.
    pub nodes: Vec<NodeId>,
    /// Of an NVL path: how many NVLinks (or xGMI links) are bonded where it is narrowest.
    pub links: Option<u32>,
}

impl Path {
    /// How many links it crosses.
    pub fn hops(&self) -> usize {
        self.nodes.len().saturating_sub(1)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} GB/s", self.kind, (self.gbs * 100.0).round() / 100.0)
    }
}

/// Within one device: what NCCL calls LOC.
const LOCAL_GBS: f64 = 5000.0;

/// One direction of a link, as the search sees it.
#[derive(Clone, Copy)]
struct Step {
    to: NodeId,
    kind: PathType,
    gbs: f64,
    count: u32,
}

/// Which links a search may use.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    All,
    PcieOnly,
}

impl Topology {
    /// The best path between each two GPUs: `paths()[from][to]`.
    ///
    /// The nearest type wins, then the highest rate, then the fewest hops. A GPU is passed through only over
    /// NVLink, and only one.
    pub fn paths(&self) -> Vec<Vec<Path>> {
        let steps = self.steps(Use::All);
        (0..self.gpus().len()).map(|from| self.paths_from(from, &steps)).collect()
    }

    /// The best path from one GPU to another; `None` if there is no such GPU.
    pub fn path(&self, from: usize, to: usize) -> Option<Path> {
        if from >= self.gpus().len() || to >= self.gpus().len() {
            return None;
        }
        Some(self.paths_from(from, &self.steps(Use::All)).swap_remove(to))
    }

    /// Whether every GPU reaches every other.
    pub fn is_connected(&self) -> bool {
        self.paths().iter().flatten().all(|p| p.kind != PathType::Dis)
    }

    /// The types of the ways that use no NVLink, xGMI or C2C.
    pub(crate) fn pcie_types(&self) -> Vec<Vec<PathType>> {
        let steps = self.steps(Use::PcieOnly);
        let types = |from| self.paths_from(from, &steps).iter().map(|p| p.kind).collect();
        (0..self.gpus().len()).map(types).collect()
    }

    fn steps(&self, links: Use) -> Vec<Vec<Step>> {
        let mut steps = vec![Vec::new(); self.nodes().len()];
        for link in self.links() {
            let cpu = self.nodes()[link.a].is_cpu() || self.nodes()[link.b].is_cpu();
            let is_switch = |n: NodeId| self.nodes()[n].kind == NodeKind::PciSwitch;
            let kind = match link.kind {
                LinkKind::NvLink | LinkKind::Xgmi if cpu => PathType::Phb,
                LinkKind::NvLink | LinkKind::Xgmi => PathType::Nvl,
                LinkKind::C2c => PathType::C2c,
                LinkKind::Pcie if cpu => PathType::Phb,
                LinkKind::Pcie if is_switch(link.a) && is_switch(link.b) => PathType::Pxb,
                LinkKind::Pcie => PathType::Pix,
                LinkKind::Smp => PathType::Sys,
            };
            if links == Use::PcieOnly && !matches!(link.kind, LinkKind::Pcie | LinkKind::Smp) {
                continue;
            }
            let (gbs, count) = (link.gbs, link.count);
            steps[link.a].push(Step { to: link.b, kind, gbs, count });
            steps[link.b].push(Step { to: link.a, kind, gbs, count });
        }
        steps
    }

    fn paths_from(&self, from: usize, steps: &[Vec<Step>]) -> Vec<Path> {
        let source = self.gpus()[from].node;
        let mut found: Vec<Option<Path>> = vec![None; self.gpus().len()];
        found[from] = Some(Path { kind: PathType::Loc, gbs: LOCAL_GBS, nodes: vec![source], links: None });
        // A path's type is the worst of its steps, so: allow steps of one type more in each round, and
        // whoever is reached first in a round has that round's type.
        let rounds = [
            PathType::Nvl,
            PathType::Nvb,
            PathType::C2c,
            PathType::Pix,
            PathType::Pxb,
            PathType::Phb,
            PathType::Sys,
        ];
        for kind in rounds {
            if found.iter().all(Option::is_some) {
                break;
            }
            if kind == PathType::Nvb {
                self.relayed(source, steps, &mut found);
                continue;
            }
            let rate = self.widest(source, kind, steps);
            for gpu in self.gpus() {
                let reached = rate[gpu.node];
                if found[gpu.index].is_none() && reached > 0.0 {
                    found[gpu.index] = self.shortest(source, gpu.node, kind, reached, steps);
                }
            }
        }
        let none = || Path { kind: PathType::Dis, gbs: 0.0, nodes: Vec::new(), links: None };
        let mut paths: Vec<Path> = found.into_iter().map(|p| p.unwrap_or_else(none)).collect();
        for (to, path) in paths.iter_mut().enumerate() {
            // What the source says about PCIe (or NVML about host bridges) is finer than the graph's structure.
            match self.stated(from, to) {
                Some(said) if path.kind.is_pcie() => path.kind = said,
                _ => {}
            }
        }
        paths
    }

    /// Ways over NVLink through exactly one other GPU.
    fn relayed(&self, source: NodeId, steps: &[Vec<Step>], found: &mut [Option<Path>]) {
        let direct = |s: &&Step| s.kind == PathType::Nvl && self.nodes()[s.to].is_gpu();
        for first in steps[source].iter().filter(direct) {
            for second in steps[first.to].iter().filter(direct) {
                let NodeKind::Gpu(to) = self.nodes()[second.to].kind else { continue };
                let gbs = first.gbs.min(second.gbs);
                match &found[to] {
                    Some(p) if p.kind < PathType::Nvb || p.gbs >= gbs => {}
                    _ => {
                        let nodes = vec![source, first.to, second.to];
                        found[to] = Some(Path { kind: PathType::Nvb, gbs, nodes, links: None });
                    }
                }
            }
        }
    }

    /// Whether a path may run through this node.
    fn relays(&self, node: NodeId) -> bool {
        !self.nodes()[node].is_gpu() && !self.nodes()[node].is_nic()
    }

    /// The highest rate at which each node can be reached over steps no worse than `worst` (0 if not at all).
    fn widest(&self, source: NodeId, worst: PathType, steps: &[Vec<Step>]) -> Vec<f64> {
        let mut rate = vec![0.0; steps.len()];
        let mut done = vec![false; steps.len()];
        rate[source] = f64::INFINITY;
        loop {
            let open = (0..steps.len()).filter(|&n| !done[n] && rate[n] > 0.0);
            let Some(node) = open.max_by(|&x, &y| f64::total_cmp(&rate[x], &rate[y])) else { break };
            done[node] = true;
            if node != source && !self.relays(node) {
                continue;
            }
            for step in steps[node].iter().filter(|s| s.kind <= worst) {
                rate[step.to] = f64::max(rate[step.to], f64::min(rate[node], step.gbs));
            }
        }
        rate
    }

    /// A path with the fewest hops over steps no worse than `worst` and no narrower than `gbs`.
    fn shortest(
        &self,
        source: NodeId,
        target: NodeId,
        worst: PathType,
        gbs: f64,
        steps: &[Vec<Step>],
    ) -> Option<Path> {
        let mut before: Vec<Option<(NodeId, u32)>> = vec![None; steps.len()];
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            if node == target {
                break;
            }
            if node != source && !self.relays(node) {
                continue;
            }
            for step in steps[node].iter().filter(|s| s.kind <= worst && s.gbs >= gbs) {
                if step.to != source && before[step.to].is_none() {
                    before[step.to] = Some((node, step.count));
                    queue.push_back(step.to);
                }
            }
        }
        let (mut nodes, mut links) = (vec![target], u32::MAX);
        while *nodes.last()? != source {
            let (node, count) = before[*nodes.last()?]?;
            links = links.min(count);
            nodes.push(node);
        }
        nodes.reverse();
        let links = (worst == PathType::Nvl).then_some(links);
        Some(Path { kind: worst, gbs, nodes, links })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Cpu, Gpu};

    #[test]
    fn names_round_trip() {
        for kind in PathType::ALL {
            assert_eq!(kind.name().parse::<PathType>().unwrap(), kind);
        }
        assert_eq!("soc".parse::<PathType>().unwrap(), PathType::Sys);
        assert!("FAR".parse::<PathType>().unwrap_err().to_string().contains("FAR"));
    }

    #[test]
    fn the_cube_mesh_relays_through_one_gpu() {
        let t = Topology::dgx1v();
        let paths = t.paths();
        assert_eq!((paths[0][3].kind, paths[0][3].gbs, paths[0][3].links), (PathType::Nvl, 50.0, Some(2)));
        assert_eq!((paths[0][1].kind, paths[0][1].gbs, paths[0][1].links), (PathType::Nvl, 25.0, Some(1)));
        // 0 to 5: through 1 (25, 50) or 4 (50, 25): 25 either way.
        assert_eq!((paths[0][5].kind, paths[0][5].gbs, paths[0][5].hops()), (PathType::Nvb, 25.0, 2));
        // 0 to 7: through 3 (50, 25) or 4 (50, 50): the wider one.
        assert_eq!((paths[0][7].gbs, &paths[0][7].nodes[..]), (50.0, &[0, 4, 7][..]));
        assert_eq!(paths[2][2].kind, PathType::Loc);
    }

    #[test]
    fn a_gpu_does_not_relay_over_pcie() {
        let mut t = Topology::new("t");
        let g: Vec<_> = (0..3).map(|_| t.add_gpu(Gpu::default(), None)).collect();
        t.add_link(g[0], g[1], LinkKind::NvLink, 1, 20.0);
        t.add_link(g[1], g[2], LinkKind::Pcie, 1, 24.0);
        let path = t.path(0, 2).unwrap();
        assert_eq!((path.kind, path.gbs, path.hops()), (PathType::Dis, 0.0, 0));
        assert!(!t.is_connected());
        assert_eq!(t.path(0, 3), None);
    }

    #[test]
    fn the_nearest_type_wins_over_the_highest_rate() {
        // One switch at 6 GB/s against a host bridge at 24.
        let mut t = Topology::new("t");
        let (a, b) = (t.add_gpu(Gpu::default(), None), t.add_gpu(Gpu::default(), None));
        let switch = t.add_node(NodeKind::PciSwitch, "switch", None);
        let cpu = t.add_node(NodeKind::Cpu(Cpu::default()), "CPU", None);
        for g in [a, b] {
            t.add_link(g, switch, LinkKind::Pcie, 1, 6.0);
            t.add_link(g, cpu, LinkKind::Pcie, 1, 24.0);
        }
        assert_eq!(t.path(0, 1).unwrap().to_string(), "PIX 6 GB/s");
    }
}
