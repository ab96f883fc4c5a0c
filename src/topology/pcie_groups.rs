//! A PCIe structure made up from pairwise distances, where nobody tells the real one.
//!
//! A matrix of PIX, PXB, PHB, NODE and SYS does not determine the machine. The simplest machine that has
//! these distances is built: a port for each GPU, a switch for each group that is PIX to one another, a
//! switch above those that are PXB to one another, a host bridge for each group of PHB and NODE, and a bus
//! between two host bridges where a SYS crosses. Pairs whose cell says NVLink hide their PCIe distance;
//! nothing is added for them.

use crate::topology::model::{Cpu, LinkKind, NodeId, NodeKind, Topology};
use crate::topology::path::PathType;
use crate::topology::rates::{LinkRates, UNKNOWN_PCIE_GBS, UNKNOWN_SMP_GBS};

/// What is known about where a GPU sits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Placement {
    pub(crate) numa: Option<i32>,
    /// Its CPU affinity, in whatever spelling: only compared.
    pub(crate) cpus: Option<String>,
    /// GB/s of its PCIe port.
    pub(crate) port_gbs: Option<f64>,
}

/// Disjoint sets of GPU numbers.
struct Groups(Vec<usize>);

impl Groups {
    fn new(n: usize) -> Groups {
        Groups((0..n).collect())
    }

    fn of(&self, mut i: usize) -> usize {
        while self.0[i] != i {
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, i: usize, j: usize) {
        let (i, j) = (self.of(i), self.of(j));
        let (low, high) = (i.min(j), i.max(j));
        self.0[high] = low;
    }

    fn together(&self, i: usize, j: usize) -> bool {
        self.of(i) == self.of(j)
    }

    fn members(&self, i: usize) -> Vec<usize> {
        (0..self.0.len()).filter(|&j| self.together(i, j)).collect()
    }
}

/// Adds ports, switches, host bridges and buses for the GPUs of `t`. `cells[i][j]` is symmetric, `None` where
/// NVLink hides the distance. Returns for each GPU the node its port leads to, `None` if it has no port.
pub(crate) fn build(
    t: &mut Topology,
    cells: &[Vec<Option<PathType>>],
    places: &[Placement],
    rates: &LinkRates,
) -> Vec<Option<NodeId>> {
    let n = cells.len();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect();
    let joined_up_to = |worst: PathType| {
        let mut groups = Groups::new(n);
        for &(i, j) in &pairs {
            if cells[i][j].is_some_and(|c| c.is_pcie() && c <= worst) {
                groups.join(i, j);
            }
        }
        groups
    };
    let has_port: Vec<bool> = cells.iter().map(|row| row.iter().flatten().any(|c| c.is_pcie())).collect();
    let (switches, trees) = (joined_up_to(PathType::Pix), joined_up_to(PathType::Pxb));
    let mut bridges = joined_up_to(PathType::Node);
    for &(i, j) in &pairs {
        let Some(said) = cells[i][j] else { continue };
        t.state(i, j, said);
        let built = if switches.together(i, j) {
            PathType::Pix
        } else if trees.together(i, j) {
            PathType::Pxb
        } else if bridges.together(i, j) {
            PathType::Node
        } else {
            PathType::Sys
        };
        if built < said {
            t.warn(format!(
                "The distances contradict one another: GPU{i} and GPU{j} are {said} apart, but {built} by way of \
                 other GPUs; the links are built for {built}."
            ));
        }
    }
    join_hidden(t, cells, places, &has_port, &pairs, &mut bridges);

    let crossed = |i: usize, j: usize| cells[i][j] == Some(PathType::Sys) && !bridges.together(i, j);
    let mut ports = vec![None; n];
    let mut hosts: Vec<(usize, NodeId)> = Vec::new();
    for host in (0..n).filter(|&i| has_port[i] && bridges.of(i) == i) {
        let members: Vec<usize> = bridges.members(host).into_iter().filter(|&i| has_port[i]).collect();
        let crosses = members.iter().any(|&i| (0..n).any(|j| crossed(i, j)));
        let one_tree = members.iter().all(|&i| trees.together(i, host));
        let bridge = (crosses || !one_tree).then(|| add_host_bridge(t, &members, places, hosts.len()));
        if let Some(bridge) = bridge {
            hosts.push((host, bridge));
        }
        // The rate to the host bridge: that of the nearest distance that uses it.
        let up = |of: &[usize]| {
            let far = |kind| of.iter().any(|&i| cells[i].contains(&Some(kind)));
            let rate = if !far(PathType::Phb) && far(PathType::Node) { rates.node } else { rates.phb };
            rate.unwrap_or(UNKNOWN_PCIE_GBS)
        };
        for tree in members.iter().copied().filter(|&i| trees.of(i) == i) {
            let in_tree = trees.members(tree);
            let top = (!switches.members(tree).iter().eq(&in_tree)).then(|| add_switch(t));
            if let (Some(top), Some(bridge)) = (top, bridge) {
                t.add_link(top, bridge, LinkKind::Pcie, 1, up(&in_tree));
            }
            for first in in_tree.iter().copied().filter(|&i| switches.of(i) == i) {
                let under = switches.members(first);
                let switch = (under.len() > 1).then(|| add_switch(t));
                match (switch, top, bridge) {
                    (Some(switch), Some(top), _) => {
                        t.add_link(switch, top, LinkKind::Pcie, 1, rates.pxb.unwrap_or(UNKNOWN_PCIE_GBS));
                    }
                    (Some(switch), None, Some(bridge)) => {
                        t.add_link(switch, bridge, LinkKind::Pcie, 1, up(&under));
                    }
                    _ => {}
                }
                let Some(parent) = switch.or(top).or(bridge) else { continue };
                for &i in &under {
                    let rate =
                        if Some(parent) == bridge { up(&[i]) } else { rates.pix.unwrap_or(UNKNOWN_PCIE_GBS) };
                    let gpu = t.gpus()[i].node;
                    t.add_link(gpu, parent, LinkKind::Pcie, 1, places[i].port_gbs.unwrap_or(rate));
                    ports[i] = Some(parent);
                }
            }
        }
    }
    for (at, &(i, a)) in hosts.iter().enumerate() {
        for &(j, b) in &hosts[at + 1..] {
            let across = pairs.iter().any(|&(x, y)| {
                let sides = (bridges.of(x), bridges.of(y));
                crossed(x, y) && (sides == (i, j) || sides == (j, i))
            });
            if across {
                t.add_link(a, b, LinkKind::Smp, 1, rates.sys.unwrap_or(UNKNOWN_SMP_GBS));
            }
        }
    }
    ports
}

/// Puts GPUs whose distance NVLink hides under one host bridge, unless something speaks against it.
fn join_hidden(
    t: &mut Topology,
    cells: &[Vec<Option<PathType>>],
    places: &[Placement],
    has_port: &[bool],
    pairs: &[(usize, usize)],
    bridges: &mut Groups,
) {
    for &(i, j) in pairs {
        if cells[i][j].is_some() || !has_port[i] || !has_port[j] || bridges.together(i, j) {
            continue;
        }
        let apart = bridges
            .members(i)
            .iter()
            .any(|&x| bridges.members(j).iter().any(|&y| cells[x][y] == Some(PathType::Sys)));
        let (a, b) = (&places[i], &places[j]);
        let known = match (a.numa, b.numa) {
            (Some(x), Some(y)) if x >= 0 && y >= 0 => Some(x == y),
            _ => a.cpus.as_ref().zip(b.cpus.as_ref()).map(|(x, y)| x == y),
        };
        if !apart && known != Some(false) {
            if known.is_none() {
                t.warn(format!(
                    "Nothing tells where GPU{i} and GPU{j} sit relative to each other on PCIe; they are taken to \
                     share a host bridge."
                ));
            }
            bridges.join(i, j);
        }
    }
}

fn add_switch(t: &mut Topology) -> NodeId {
    let number = t.nodes().iter().filter(|n| n.kind == NodeKind::PciSwitch).count();
    t.add_node(NodeKind::PciSwitch, format!("PCIe switch {number}"), None)
}

fn add_host_bridge(t: &mut Topology, members: &[usize], places: &[Placement], number: usize) -> NodeId {
    let numa = members.iter().find_map(|&i| places[i].numa.filter(|&numa| numa >= 0));
    let name = match numa {
        Some(numa) => format!("CPU{numa}"),
        None => format!("host bridge {number}"),
    };
    t.add_node(NodeKind::Cpu(Cpu { numa: numa.unwrap_or(-1), ..Cpu::default() }), name, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Gpu;

    fn built(rows: &[&str]) -> Topology {
        let mut t = Topology::new("t");
        for _ in rows {
            t.add_gpu(Gpu::default(), None);
        }
        let cell = |word: &str| word.parse::<PathType>().ok().filter(|c| c.is_pcie());
        let cells: Vec<Vec<_>> = rows.iter().map(|r| r.split_whitespace().map(cell).collect()).collect();
        build(&mut t, &cells, &vec![Placement::default(); rows.len()], &LinkRates::default());
        t
    }

    fn counts(t: &Topology) -> (usize, usize) {
        let switches = t.nodes().iter().filter(|n| n.kind == NodeKind::PciSwitch).count();
        (switches, t.nodes().iter().filter(|n| n.is_cpu()).count())
    }

    #[test]
    fn paths_are_as_stated() {
        let rows = [
            "X PIX PXB NODE SYS",
            "PIX X PXB NODE SYS",
            "PXB PXB X PHB SYS",
            "NODE NODE PHB X SYS",
            "SYS SYS SYS SYS X",
        ];
        let t = built(&rows);
        assert_eq!(t.warnings(), &[] as &[String]);
        for (i, row) in rows.iter().enumerate() {
            for (j, word) in row.split_whitespace().enumerate().filter(|&(j, _)| j != i) {
                assert_eq!(t.path(i, j).unwrap().kind.name(), word, "{i} {j}");
            }
        }
        assert_eq!(counts(&t), (2, 2));
    }

    #[test]
    fn one_pix_group_needs_no_host_bridge() {
        assert_eq!(counts(&built(&["X PIX", "PIX X"])), (1, 0));
        assert_eq!(counts(&built(&["X PHB", "PHB X"])), (0, 1));
        assert_eq!(counts(&built(&["X SYS", "SYS X"])), (0, 2));
        assert_eq!(counts(&built(&["X NV4", "NV4 X"])), (0, 0));
    }

    #[test]
    fn a_contradiction_is_told() {
        let t = built(&["X PIX SYS", "PIX X PIX", "SYS PIX X"]);
        assert_eq!(t.warnings().len(), 1);
        assert!(t.warnings()[0].contains("GPU0 and GPU2 are SYS apart"), "{:?}", t.warnings());
        assert_eq!(t.path(0, 2).unwrap().kind, PathType::Sys);
    }
}
