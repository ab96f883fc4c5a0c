//! The view a planner needs: nodes that are GPUs or not, and arcs with whole capacities.

use crate::topology::model::{LinkKind, NodeId, Topology};

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
    /// The link of the topology.
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

impl Topology {
    /// The machine as a flow network in whole MB/s.
    ///
    /// NICs are left out, and so is every switch or CPU that leads nowhere: one that has, after that, fewer than two
    /// neighbours. PCIe behind GPUs that also have NVLink is there; whether to use it is the planner's choice.
    ///
    /// ```
    /// let graph = ringleader::topology::Topology::switch(4, 450.0).graph();
    /// assert_eq!((graph.gpus, graph.nodes.len(), graph.arcs.len()), (4, 5, 8));
    /// assert_eq!(graph.arcs[0].mbs, 450_000);
    /// ```
    pub fn graph(&self) -> CapacityGraph {
        let capacity = |gbs: f64| (gbs * 1000.0).round() as u64;
        let mut kept: Vec<bool> = self.nodes().iter().map(|n| !n.is_nic()).collect();
        loop {
            let neighbours = |node: NodeId| {
                let ends = self.links().iter().filter(|l| capacity(l.gbs) > 0).map(|l| (l.a, l.b));
                let far =
                    ends.filter_map(|(a, b)| if a == node { Some(b) } else { (b == node).then_some(a) });
                let mut far: Vec<_> = far.filter(|&n| kept[n]).collect();
                far.sort_unstable();
                far.dedup();
                far.len()
            };
            let dead = |&n: &NodeId| kept[n] && !self.nodes()[n].is_gpu() && neighbours(n) < 2;
            match (0..kept.len()).find(dead) {
                Some(node) => kept[node] = false,
                None => break,
            }
        }
        let others = (0..kept.len()).filter(|&n| kept[n] && !self.nodes()[n].is_gpu());
        let order: Vec<NodeId> = self.gpus().iter().map(|g| g.node).chain(others).collect();
        let mut place = vec![None; kept.len()];
        let mut graph = CapacityGraph { gpus: self.gpus().len(), nodes: Vec::new(), arcs: Vec::new() };
        for node in order {
            place[node] = Some(graph.nodes.len());
            let named = &self.nodes()[node];
            graph.nodes.push(CapacityNode { name: named.name.clone(), is_gpu: named.is_gpu(), node });
        }
        for (link, l) in self.links().iter().enumerate() {
            let (Some(a), Some(b)) = (place[l.a], place[l.b]) else { continue };
            let (mbs, kind) = (capacity(l.gbs), l.kind);
            if mbs > 0 {
                graph.arcs.push(CapacityArc { from: a, to: b, mbs, kind, link });
                graph.arcs.push(CapacityArc { from: b, to: a, mbs, kind, link });
            }
        }
        graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Nic, NodeKind};

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
