//! The view a planner needs: nodes that are GPUs or not, and arcs with whole capacities.

use crate::topology::model::{Link, LinkKind, NodeId, NodeKind, Topology};

/// A node of a [`CapacityGraph`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityNode {
    /// The name to print.
    pub name: String,
    /// Whether it is a GPU. Others only pass data on.
    pub is_gpu: bool,
    /// The node of the topology.
    pub node: NodeId,
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityArc {
    /// Where it starts, in [`CapacityGraph::nodes`].
    pub from: usize,
    /// Where it ends.
    pub to: usize,
    /// Capacity in MB/s (10⁶ bytes a second), above 0.
    pub mbs: u64,
    /// What the link is.
    pub kind: LinkKind,
    /// The link of the topology; of a chain of links, the narrowest.
    pub link: usize,
}

/// Nodes and arcs, GPUs first: node `i` is GPU `i` for every `i` below `gpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityGraph {
    /// How many of the nodes are GPUs.
    pub gpus: usize,
    /// The GPUs in rank order, then switches and CPUs.
    pub nodes: Vec<CapacityNode>,
    /// Both directions of every link.
    pub arcs: Vec<CapacityArc>,
}

/// A link while the graph is being simplified.
struct Wire {
    a: NodeId,
    b: NodeId,
    mbs: u64,
    link: usize,
}

impl Wire {
    fn far(&self, node: NodeId) -> Option<NodeId> {
        if self.a == node { Some(self.b) } else { (self.b == node).then_some(self.a) }
    }
}

impl Topology {
    /// The machine as a flow network in whole MB/s.
    ///
    /// NICs are left out, and what cannot matter: switches and CPUs that lead nowhere, CPUs with nothing but
    /// other CPUs around (data does not change direction there), and PCIe switches and CPUs in the middle of
    /// a chain, where the narrowest link of the chain stands for all. PCIe behind GPUs that also have NVLink
    /// is there; whether to use it is the planner's choice.
    ///
    /// ```
    /// let graph = ringleader::topology::Topology::switch(4, 450.0).graph();
    /// assert_eq!((graph.gpus, graph.nodes.len(), graph.arcs.len()), (4, 5, 8));
    /// assert_eq!(graph.arcs[0].mbs, 450_000);
    /// ```
    pub fn graph(&self) -> CapacityGraph {
        let capacity = |gbs: f64| (gbs * 1000.0).round() as u64;
        let wire = |(link, l): (usize, &Link)| Wire { a: l.a, b: l.b, mbs: capacity(l.gbs), link };
        let mut wires: Vec<Wire> = self.links().iter().enumerate().map(wire).collect();
        wires.retain(|w| w.mbs > 0 && !self.nodes()[w.a].is_nic() && !self.nodes()[w.b].is_nic());
        let inner: Vec<NodeId> = (0..self.nodes().len()).filter(|&n| !self.nodes()[n].is_gpu()).collect();
        while inner.iter().any(|&node| self.simplify(node, &mut wires)) {}
        let others = inner.into_iter().filter(|&n| wires.iter().any(|w| w.far(n).is_some()));
        let order: Vec<NodeId> = self.gpus().iter().map(|g| g.node).chain(others).collect();
        let mut place = vec![None; self.nodes().len()];
        let mut graph = CapacityGraph { gpus: self.gpus().len(), nodes: Vec::new(), arcs: Vec::new() };
        for node in order {
            place[node] = Some(graph.nodes.len());
            let named = &self.nodes()[node];
            graph.nodes.push(CapacityNode { name: named.name.clone(), is_gpu: named.is_gpu(), node });
        }
        for Wire { a, b, mbs, link } in wires {
            let (Some(a), Some(b)) = (place[a], place[b]) else { continue };
            let kind = self.links()[link].kind;
            graph.arcs.push(CapacityArc { from: a, to: b, mbs, kind, link });
            graph.arcs.push(CapacityArc { from: b, to: a, mbs, kind, link });
        }
        graph
    }

    /// Takes a node that is no GPU out of the graph if flows are the same without it. Returns whether it did.
    fn simplify(&self, node: NodeId, wires: &mut Vec<Wire>) -> bool {
        let at: Vec<usize> = (0..wires.len()).filter(|&w| wires[w].far(node).is_some()).collect();
        let far: Vec<NodeId> = at.iter().filter_map(|&w| wires[w].far(node)).collect();
        let Some(&first) = far.first() else { return false };
        let leads_nowhere = far.iter().all(|&n| n == first);
        let only_cpus = self.nodes()[node].is_cpu() && far.iter().all(|&n| self.nodes()[n].is_cpu());
        if leads_nowhere || only_cpus {
            wires.retain(|w| w.far(node).is_none());
            return true;
        }
        // A chain: one wire in, one out, and not the only switch between two GPUs, which is worth its name.
        let [one, other] = at[..] else { return false };
        let switch_of_two = far.iter().all(|&n| self.nodes()[n].is_gpu());
        if self.nodes()[node].kind == NodeKind::NvSwitch || switch_of_two {
            return false;
        }
        let narrow = if wires[one].mbs <= wires[other].mbs { one } else { other };
        let (mbs, link) = (wires[narrow].mbs, wires[narrow].link);
        wires[one] = Wire { a: far[0], b: far[1], mbs, link };
        wires.remove(other);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Cpu, Gpu, Nic, NodeKind};

    #[test]
    fn chains_are_as_narrow_as_their_narrowest_link() {
        // GPU - switch - switch - CPU, twice, and a CPU that only other CPUs know.
        let mut t = Topology::new("t");
        let cpus = [0, 1].map(|numa| {
            t.add_node(NodeKind::Cpu(Cpu { numa, ..Cpu::default() }), format!("CPU{numa}"), None)
        });
        t.add_link(cpus[0], cpus[1], LinkKind::Smp, 1, 16.0);
        for rates in [[48.0, 24.0, 12.0], [24.0, 24.0, 24.0], [6.0, 24.0, 24.0]] {
            let mut below = t.add_gpu(Gpu::default(), None);
            for (level, gbs) in rates.into_iter().enumerate() {
                let above = match level {
                    2 => cpus[0],
                    _ => t.add_node(NodeKind::PciSwitch, "switch", None),
                };
                t.add_link(below, above, LinkKind::Pcie, 1, gbs);
                below = above;
            }
        }
        let graph = t.graph();
        let names: Vec<_> = graph.nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["GPU0", "GPU1", "GPU2", "CPU0"]);
        let out: Vec<_> = graph.arcs.iter().filter(|a| a.to == 3).map(|a| (a.from, a.mbs)).collect();
        assert_eq!(out, [(0, 12_000), (1, 24_000), (2, 6_000)]);
    }

    #[test]
    fn nics_and_dead_ends_are_left_out() {
        let mut t = Topology::pcie_two_sockets(24.0, 20.0);
        let full = t.graph();
        assert_eq!((full.gpus, full.nodes.len()), (8, 14));
        // A switch with nothing but a NIC behind it.
        let nic = t.add_node(NodeKind::Nic(Nic::default()), "mlx5_0", None);
        let switch = t.add_node(NodeKind::PciSwitch, "PCIe switch 4", None);
        let cpu = t.nodes().iter().position(|n| n.is_cpu()).unwrap();
        t.add_link(nic, switch, LinkKind::Pcie, 1, 24.0);
        t.add_link(switch, cpu, LinkKind::Pcie, 1, 24.0);
        assert_eq!(t.graph(), full);
        // Only two GPUs under one switch: the CPUs above it lead nowhere.
        let part = t.subset(&[0, 1]).unwrap().graph();
        assert_eq!(
            part.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(),
            ["GPU0", "GPU1", "PCIe switch 0"]
        );
        assert!(part.arcs.iter().all(|a| a.mbs == 24_000));
    }
}
