//! What a topology is made of.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::topology::path::PathType;

/// The place of a node in [`Topology::nodes`].
pub type NodeId = usize;

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Its place in [`Topology::gpus`]: the rank it has when every GPU has one rank.
    pub index: usize,
    /// PCI bus id in the kernel's form, `0000:3b:00.0`. With the UUID it is the GPU's identity; ordinals are
    /// not.
    pub bus_id: Option<String>,
    /// UUID as NVML writes it, `GPU-…`.
    pub uuid: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Compute capability as one number: `90` for 9.0. In AMD files: the number of compute units.
    pub sm: Option<u32>,
    /// AMD's architecture name, `gfx942`.
    pub arch: Option<String>,
    /// NVML's index of the GPU.
    pub dev: Option<u32>,
    /// NUMA node it sits on, where known.
    pub numa: Option<i32>,
    /// CPUs near it, as a list: `0-31,64-95`.
    pub cpus: Option<String>,
    /// Its node.
    pub node: NodeId,
}

/// A CPU: one for each NUMA node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cpu {
    /// NUMA node; −1 where the machine does not say.
    pub numa: i32,
    /// `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<String>,
    /// `GenuineIntel`, `AuthenticAMD`, …
    pub vendor: Option<String>,
    /// CPU family.
    pub family: Option<u32>,
    /// CPU model.
    pub model: Option<u32>,
    /// Mask of its CPUs: hexadecimal, in groups of 32 bits separated by commas.
    pub affinity: Option<String>,
    /// Which host it belongs to, where a file says.
    pub host: Option<String>,
}

/// One port of a NIC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Net {
    /// Device name, `mlx5_0`.
    pub name: String,
    /// Mb/s.
    pub speed_mbps: Option<u64>,
    /// Every attribute as the file has it, so that it can be written back.
    pub attributes: Vec<(String, String)>,
}

/// A NIC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nic {
    /// Its ports.
    pub nets: Vec<Net>,
}

/// What a PCI device says of itself, as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pci {
    /// Bus id in the kernel's form, or as the file has it if that is no bus id.
    pub bus_id: Option<String>,
    /// Class code, `0x030200`.
    pub class: Option<String>,
    /// Vendor, `0x10de`.
    pub vendor: Option<String>,
    /// Device.
    pub device: Option<String>,
    /// Vendor of the board.
    pub subsystem_vendor: Option<String>,
    /// The board.
    pub subsystem_device: Option<String>,
    /// Speed of the link upwards, `32.0 GT/s PCIe`.
    pub link_speed: Option<String>,
    /// Lanes of that link.
    pub link_width: Option<u32>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// A GPU; the number is its place in [`Topology::gpus`].
    Gpu(usize),
    /// The NVSwitches of the machine, all of them merged: hardware spreads traffic over them by itself.
    NvSwitch,
    /// A PCIe switch or bridge.
    PciSwitch,
    /// A CPU with its host bridges.
    Cpu(Cpu),
    /// A network card.
    Nic(Nic),
}

/// A node of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// A name to print: `GPU3`, `NVSwitch`, `PCI 0000:08:00.0`, `CPU0`, `mlx5_0`.
    pub name: String,
    /// Its PCI device, where it has one.
    pub pci: Option<Pci>,
}

impl Node {
    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        matches!(self.kind, NodeKind::Gpu(_))
    }

    /// Whether it is a CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self.kind, NodeKind::Cpu(_))
    }

    /// Whether it is a NIC.
    pub fn is_nic(&self) -> bool {
        matches!(self.kind, NodeKind::Nic(_))
    }
}

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkKind {
    /// NVLink.
    NvLink,
    /// AMD's link between GPUs.
    Xgmi,
    /// Chip-to-chip link of a GPU and its CPU.
    C2c,
    /// PCI Express.
    Pcie,
    /// The bus between CPUs.
    Smp,
}

impl LinkKind {
    /// The name to print: `NVLink`, `xGMI`, `C2C`, `PCIe`, `SMP`.
    pub const fn name(self) -> &'static str {
        match self {
            LinkKind::NvLink => "NVLink",
            LinkKind::Xgmi => "xGMI",
            LinkKind::C2c => "C2C",
            LinkKind::Pcie => "PCIe",
            LinkKind::Smp => "SMP",
        }
    }
}

/// A full-duplex link between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// One end. Of a PCIe link: the end away from the CPU.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
    /// What it is.
    pub kind: LinkKind,
    /// How many physical links are bonded in it; 1 for PCIe and SMP.
    pub count: u32,
    /// GB/s in each direction, all bonded links together: what copies can reach.
    pub gbs: f64,
    /// GB/s in each direction that the hardware signals, where it says.
    pub nominal_gbs: Option<f64>,
    /// Of a GPU's link to the NVSwitches: each switch's bus id and how many of the links lead there.
    pub targets: Vec<(String, u32)>,
}

/// The machine as a graph. See the [module documentation](crate::topology).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    name: String,
    gpus: Vec<Gpu>,
    nodes: Vec<Node>,
    links: Vec<Link>,
    warnings: Vec<String>,
    /// What the source says about the PCIe way between two GPUs (lower index first), where its structure is
    /// not known.
    stated: BTreeMap<(usize, usize), PathType>,
    /// What the source says about the way from each NIC to each GPU.
    stated_nics: BTreeMap<NodeId, Vec<PathType>>,
    /// Which GPU may access which GPU's memory, where that is known.
    peer_access: Option<Vec<Vec<bool>>>,
}

impl Topology {
    /// An empty topology, to be filled with [`add_gpu`](Self::add_gpu), [`add_node`](Self::add_node) and
    /// [`add_link`](Self::add_link).
    ///
    /// ```
    /// use ringleader::topology::{Gpu, LinkKind, Topology};
    ///
    /// let mut pair = Topology::new("pair");
    /// let a = pair.add_gpu(Gpu::default(), None);
    /// let b = pair.add_gpu(Gpu::default(), None);
    /// pair.add_link(a, b, LinkKind::NvLink, 4, 80.0);
    /// assert_eq!(pair.path(0, 1).unwrap().to_string(), "NVL 80 GB/s");
    /// ```
    pub fn new(name: impl Into<String>) -> Topology {
        Topology { name: name.into(), ..Topology::default() }
    }

    /// What the machine, or the file it came from, is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GPUs, in rank order.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Every node. A [`NodeId`] is a place in this list.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Every link. At most one for each pair of nodes and kind.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// What is odd about the source, and what was assumed for it. Each is a sentence.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether GPU `from` may access the memory of GPU `to`; `None` if nobody has asked the driver.
    pub fn peer_access(&self, from: usize, to: usize) -> Option<bool> {
        self.peer_access.as_ref()?.get(from)?.get(to).copied()
    }

    /// Whether the GPUs are joined by an NVSwitch fabric.
    pub fn has_nvswitch(&self) -> bool {
        self.nodes.iter().any(|n| n.kind == NodeKind::NvSwitch)
    }

    /// Adds a GPU as the last one; its `index` and `node` are set here.
    pub fn add_gpu(&mut self, gpu: Gpu, pci: Option<Pci>) -> NodeId {
        let (index, node) = (self.gpus.len(), self.nodes.len());
        self.nodes.push(Node { kind: NodeKind::Gpu(index), name: format!("GPU{index}"), pci });
        self.gpus.push(Gpu { index, node, ..gpu });
        node
    }

    /// Adds a node that is no GPU.
    ///
    /// # Panics
    /// If `kind` is [`NodeKind::Gpu`]: use [`add_gpu`](Self::add_gpu).
    pub fn add_node(&mut self, kind: NodeKind, name: impl Into<String>, pci: Option<Pci>) -> NodeId {
        assert!(!matches!(kind, NodeKind::Gpu(_)), "GPUs are added with add_gpu");
        self.nodes.push(Node { kind, name: name.into(), pci });
        self.nodes.len() - 1
    }

    /// Adds a link; `gbs` is the rate in each direction of all `count` bonded links together. A second link
    /// of the same kind between the same nodes widens the first. A rate that is not above 0, or a link from a
    /// node to itself, adds nothing.
    ///
    /// # Panics
    /// If `a` or `b` is no node of this topology.
    pub fn add_link(&mut self, a: NodeId, b: NodeId, kind: LinkKind, count: u32, gbs: f64) {
        assert!(a < self.nodes.len() && b < self.nodes.len(), "a link needs two nodes of this topology");
        if a == b || gbs <= 0.0 || !gbs.is_finite() {
            return;
        }
        match self.link_position(a, b, kind) {
            Some(at) => {
                self.links[at].count = self.links[at].count.saturating_add(count);
                self.links[at].gbs += gbs;
            }
            None => {
                self.links.push(Link { a, b, kind, count, gbs, nominal_gbs: None, targets: Vec::new() });
            }
        }
    }

    /// Notes something odd or assumed, once.
    pub fn warn(&mut self, sentence: impl Into<String>) {
        let sentence = sentence.into();
        if !self.warnings.contains(&sentence) {
            self.warnings.push(sentence);
        }
    }

    /// The machine with only these GPUs, in this order: GPU `ranks[i]` becomes GPU `i`. The others, and their
    /// links, are gone: they do not relay. Switches and CPUs stay.
    ///
    /// Fails if a number is out of range or given twice, or if there is none.
    pub fn subset(&self, ranks: &[usize]) -> Result<Topology> {
        let bad = |value: String| {
            let expected = format!("GPU numbers from 0 to {}, each once", self.gpus.len().saturating_sub(1));
            Err(Error::invalid_value("ranks", value, expected))
        };
        if ranks.is_empty() {
            return bad("an empty list".into());
        }
        for (at, &r) in ranks.iter().enumerate() {
            if r >= self.gpus.len() || ranks[..at].contains(&r) {
                return bad(r.to_string());
            }
        }
        let place = |gpu: usize| ranks.iter().position(|&r| r == gpu);
        let mut part = Topology::new(self.name.clone());
        part.warnings = self.warnings.clone();
        let mut renamed = vec![None; self.nodes.len()];
        for &r in ranks {
            let gpu = &self.gpus[r];
            renamed[gpu.node] = Some(part.add_gpu(gpu.clone(), self.nodes[gpu.node].pci.clone()));
        }
        for (id, node) in self.nodes.iter().enumerate().filter(|(_, n)| !n.is_gpu()) {
            part.nodes.push(node.clone());
            renamed[id] = Some(part.nodes.len() - 1);
        }
        for link in &self.links {
            if let (Some(a), Some(b)) = (renamed[link.a], renamed[link.b]) {
                part.links.push(Link { a, b, ..link.clone() });
            }
        }
        for (&(i, j), &kind) in &self.stated {
            if let (Some(i), Some(j)) = (place(i), place(j)) {
                part.state(i, j, kind);
            }
        }
        for (&nic, distances) in &self.stated_nics {
            if let Some(nic) = renamed[nic] {
                part.state_nic(nic, ranks.iter().map(|&r| distances[r]).collect());
            }
        }
        part.peer_access = self
            .peer_access
            .as_ref()
            .map(|m| ranks.iter().map(|&i| ranks.iter().map(|&j| m[i][j]).collect()).collect());
        Ok(part)
    }

    /// Takes over GPUs, NVSwitches and the links between these from a topology that has the same GPUs.
    pub(crate) fn adopt_without_pcie(&mut self, other: &Topology) {
        for sentence in &other.warnings {
            self.warn(sentence.clone());
        }
        let mut place = vec![None; other.nodes.len()];
        for gpu in &other.gpus {
            place[gpu.node] = Some(self.add_gpu(gpu.clone(), other.nodes[gpu.node].pci.clone()));
        }
        for (id, node) in other.nodes.iter().enumerate().filter(|(_, n)| n.kind == NodeKind::NvSwitch) {
            place[id] = Some(self.add_node(NodeKind::NvSwitch, node.name.clone(), None));
        }
        for link in &other.links {
            if let (Some(a), Some(b)) = (place[link.a], place[link.b]) {
                self.links.push(Link { a, b, ..link.clone() });
            }
        }
    }

    pub(crate) fn link_position(&self, a: NodeId, b: NodeId, kind: LinkKind) -> Option<usize> {
        let joins = |l: &Link| (l.a == a && l.b == b) || (l.a == b && l.b == a);
        self.links.iter().position(|l| l.kind == kind && joins(l))
    }

    pub(crate) fn link_mut(&mut self, at: usize) -> &mut Link {
        &mut self.links[at]
    }

    pub(crate) fn set_rate(&mut self, link: usize, gbs: f64) {
        self.links[link].gbs = gbs;
    }

    /// Keeps what the source says about the PCIe way between two GPUs.
    pub(crate) fn state(&mut self, i: usize, j: usize, kind: PathType) {
        self.stated.insert((i.min(j), i.max(j)), kind);
    }

    pub(crate) fn stated(&self, i: usize, j: usize) -> Option<PathType> {
        self.stated.get(&(i.min(j), i.max(j))).copied()
    }

    /// Keeps what the source says about the way from a NIC to each GPU.
    pub(crate) fn state_nic(&mut self, nic: NodeId, distances: Vec<PathType>) {
        self.stated_nics.insert(nic, distances);
    }

    /// Name of each NIC of which the source tells the distances, and these.
    pub(crate) fn nic_distances(&self) -> Vec<(String, Vec<PathType>)> {
        let complete = |d: &[PathType]| d.len() == self.gpus.len() && d.iter().all(|k| k.is_pcie());
        let told = self.stated_nics.iter().filter(|(_, d)| complete(d));
        told.map(|(&nic, d)| (self.nodes[nic].name.clone(), d.clone())).collect()
    }

    /// `matrix` is square with one row for each GPU.
    pub(crate) fn set_peer_access(&mut self, matrix: Vec<Vec<bool>>) {
        self.peer_access = Some(matrix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_the_same_nodes_are_bonded() {
        let mut t = Topology::new("t");
        let a = t.add_gpu(Gpu::default(), None);
        let b = t.add_gpu(Gpu::default(), None);
        t.add_link(a, b, LinkKind::NvLink, 1, 20.0);
        t.add_link(b, a, LinkKind::NvLink, 2, 40.0);
        t.add_link(a, a, LinkKind::NvLink, 2, 40.0);
        t.add_link(a, b, LinkKind::Pcie, 1, 0.0);
        assert_eq!(t.links().len(), 1);
        assert_eq!((t.links()[0].count, t.links()[0].gbs), (3, 60.0));
    }

    #[test]
    fn a_subset_is_in_the_order_asked_for() {
        let t = Topology::dgx1v();
        let part = t.subset(&[3, 0, 4]).unwrap();
        assert_eq!(part.gpus().iter().map(|g| g.index).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(part.path(0, 1).unwrap().gbs, t.path(3, 0).unwrap().gbs);
        // 3 and 4 are not neighbours; 0 relays.
        assert_eq!(part.path(0, 2).unwrap().kind, PathType::Nvb);
        for bad in [&[0, 0][..], &[8], &[]] {
            assert!(t.subset(bad).unwrap_err().to_string().contains("each once"));
        }
    }
}
