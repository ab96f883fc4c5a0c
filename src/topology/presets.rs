//! Machines of known shape, for tests, documentation and planning without a file.

use crate::topology::model::{Cpu, Gpu, LinkKind, NodeId, NodeKind, Topology};

/// The NVLink pairs of a DGX-1 with V100s and how many links each has: two fully connected groups of four,
/// and a pair of links or one between opposite corners, six at each GPU.
const DGX1V: [(usize, usize, u32); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

impl Topology {
    fn with_gpus(name: String, n: usize) -> (Topology, Vec<NodeId>) {
        let mut t = Topology::new(name);
        let gpus = (0..n).map(|_| t.add_gpu(Gpu::default(), None)).collect();
        (t, gpus)
    }

    /// `n` GPUs on one NVSwitch fabric, each with `gbs` GB/s in each direction.
    ///
    /// ```
    /// use ringleader::topology::{PathType, Topology};
    ///
    /// let path = Topology::switch(8, 450.0).path(2, 5).unwrap();
    /// assert_eq!((path.kind, path.gbs), (PathType::Nvl, 450.0));
    /// ```
    pub fn switch(n: usize, gbs: f64) -> Topology {
        let (mut t, gpus) = Self::with_gpus(format!("{n} GPUs on NVSwitch at {gbs} GB/s"), n);
        let fabric = t.add_node(NodeKind::NvSwitch, "NVSwitch", None);
        for gpu in gpus {
            t.add_link(gpu, fabric, LinkKind::NvLink, (gbs / 25.0).round().max(1.0) as u32, gbs);
        }
        t
    }

    /// `n` GPUs, each pair joined by `links` NVLinks of `link_gbs` GB/s.
    pub fn mesh(n: usize, links: u32, link_gbs: f64) -> Topology {
        let (mut t, gpus) = Self::with_gpus(format!("{n} GPUs, NV{links} between all"), n);
        for (i, &a) in gpus.iter().enumerate() {
            for &b in &gpus[i + 1..] {
                t.add_link(a, b, LinkKind::NvLink, links, f64::from(links) * link_gbs);
            }
        }
        t
    }

    /// The NVLinks of a DGX-1 with eight V100s, 25 GB/s a link, without its PCIe.
    pub fn dgx1v() -> Topology {
        let (mut t, gpus) = Self::with_gpus("DGX-1V".into(), 8);
        for (a, b, links) in DGX1V {
            t.add_link(gpus[a], gpus[b], LinkKind::NvLink, links, f64::from(links) * 25.0);
        }
        t
    }

    /// Four GPUs of which one is poor: 0, 1 and 2 form a triangle of NV3 (25 GB/s a link) and GPU 3 hangs on
    /// GPU 2 by NV3. With `pcie`, all four also sit on one PCIe switch with a port of so many GB/s each.
    pub fn pendant(pcie: Option<f64>) -> Topology {
        let (mut t, gpus) = Self::with_gpus("NV3 triangle with a pendant GPU".into(), 4);
        for (a, b) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
            t.add_link(gpus[a], gpus[b], LinkKind::NvLink, 3, 75.0);
        }
        if let Some(gbs) = pcie {
            t.behind_switch(&gpus, gbs);
        }
        t
    }

    /// `n` GPUs on one PCIe switch with a port of `gbs` GB/s each.
    pub fn pcie_switch(n: usize, gbs: f64) -> Topology {
        let (mut t, gpus) = Self::with_gpus(format!("{n} GPUs on one PCIe switch"), n);
        t.behind_switch(&gpus, gbs);
        t
    }

    /// Eight GPUs in two sockets: two PCIe switches a socket with two GPUs each. Every PCIe link carries
    /// `pcie` GB/s, the bus between the sockets `smp`.
    pub fn pcie_two_sockets(pcie: f64, smp: f64) -> Topology {
        let (mut t, gpus) = Self::with_gpus("8 PCIe GPUs in 2 sockets".into(), 8);
        let cpus = [0, 1].map(|numa| {
            t.add_node(NodeKind::Cpu(Cpu { numa, ..Cpu::default() }), format!("CPU{numa}"), None)
        });
        for (socket, gpus) in gpus.chunks(4).enumerate() {
            for pair in gpus.chunks(2) {
                let switch = t.behind_switch(pair, pcie);
                t.add_link(switch, cpus[socket], LinkKind::Pcie, 1, pcie);
            }
        }
        t.add_link(cpus[0], cpus[1], LinkKind::Smp, 1, smp);
        t
    }

    fn behind_switch(&mut self, gpus: &[NodeId], gbs: f64) -> NodeId {
        let number = self.nodes().iter().filter(|n| n.kind == NodeKind::PciSwitch).count();
        let switch = self.add_node(NodeKind::PciSwitch, format!("PCIe switch {number}"), None);
        for &gpu in gpus {
            self.add_link(gpu, switch, LinkKind::Pcie, 1, gbs);
        }
        switch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PathType;

    #[test]
    fn every_v100_of_a_dgx1_has_six_links() {
        let t = Topology::dgx1v();
        for gpu in t.gpus() {
            let links = t.links().iter().filter(|l| l.a == gpu.node || l.b == gpu.node);
            assert_eq!(links.map(|l| l.count).sum::<u32>(), 6, "GPU {}", gpu.index);
        }
    }

    #[test]
    fn two_sockets_have_all_pcie_distances() {
        let t = Topology::pcie_two_sockets(24.0, 20.0);
        let kinds: Vec<_> = t.paths()[0].iter().map(|p| p.kind).collect();
        use PathType::{Loc, Phb, Pix, Sys};
        assert_eq!(kinds, [Loc, Pix, Phb, Phb, Sys, Sys, Sys, Sys]);
        assert_eq!(t.path(0, 7).unwrap().gbs, 20.0);
        assert_eq!(Topology::pendant(Some(24.0)).path(0, 3).unwrap().kind, PathType::Nvb);
        assert_eq!(Topology::pcie_switch(4, 24.0).path(0, 3).unwrap().kind, PathType::Pix);
        assert_eq!(Topology::mesh(4, 4, 25.0).path(0, 3).unwrap().gbs, 100.0);
    }
}
