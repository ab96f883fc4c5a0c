//! Graphs of well-known machines, as the tests, examples and documentation use them. Rates are GB/s per direction.

use super::graph::Graph;

const GB: i64 = 1000;

/// `(a, b, links)` of the first NVLink mesh of eight GPUs, a link being 25 GB/s.
const DGX1V: [(usize, usize, i64); 16] = [
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 5, 2),
    (2, 3, 2),
    (4, 7, 2),
    (5, 6, 2),
    (6, 7, 2),
    (0, 1, 1),
    (0, 2, 1),
    (1, 3, 1),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (5, 7, 1),
];

fn gpus(count: usize) -> Graph {
    Graph::new((0..count).map(|gpu| format!("GPU{gpu}"))).expect("presets have 1 to 64 GPUs")
}

fn switch(graph: &mut Graph, name: &str) -> usize {
    graph.add_switch(name).expect("presets have few switches")
}

fn link(graph: &mut Graph, a: usize, b: usize, gbs: i64, kind: &str) {
    let name = format!("{kind} {}-{}", graph.name(a), graph.name(b));
    graph.link(a, b, gbs * GB, name).expect("presets have valid links");
}

/// GPUs on one switch, each with a port of `gbs`.
pub fn star(count: usize, gbs: i64) -> Graph {
    let mut graph = gpus(count);
    let center = switch(&mut graph, "NVSwitch");
    (0..count).for_each(|gpu| link(&mut graph, gpu, center, gbs, "NVL"));
    graph
}

/// GPUs with a link of `gbs` between any two.
pub fn mesh(count: usize, gbs: i64) -> Graph {
    let mut graph = gpus(count);
    for a in 0..count {
        (a + 1..count).for_each(|b| link(&mut graph, a, b, gbs, "NVL"));
    }
    graph
}

/// Eight GPUs in the hybrid cube mesh of the DGX-1 with V100, NVLink only.
pub fn dgx1v() -> Graph {
    let mut graph = gpus(8);
    DGX1V.iter().for_each(|&(a, b, links)| link(&mut graph, a, b, 25 * links, &format!("NV{links}")));
    graph
}

/// [`dgx1v`] with its PCIe switches (two GPUs on each, `pcie` GB/s) and CPUs (`qpi` GB/s between them).
pub fn dgx1v_with_pcie(pcie: i64, qpi: i64) -> Graph {
    let mut graph = dgx1v();
    add_two_sockets(&mut graph, 2, pcie, qpi);
    graph
}

/// GPUs 0, 1, 2 joined by three NVLinks a pair, GPU 3 by three to GPU 2 only.
pub fn nv3_pendant() -> Graph {
    let mut graph = gpus(4);
    for (a, b) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
        link(&mut graph, a, b, 75, "NV3");
    }
    graph
}

/// [`nv3_pendant`] with all four GPUs also on one PCIe switch of `pcie` GB/s a port.
pub fn pix_article(pcie: i64) -> Graph {
    let mut graph = nv3_pendant();
    let center = switch(&mut graph, "PCIe switch");
    (0..4).for_each(|gpu| link(&mut graph, gpu, center, pcie, "PIX"));
    graph
}

/// Eight PCIe GPUs, two a switch, two switches a socket: ports and uplinks of `pcie` GB/s, sockets joined by `upi`.
pub fn two_sockets(pcie: i64, upi: i64) -> Graph {
    two_sockets_of(8, 2, pcie, upi)
}

/// As [`two_sockets`], with `count` GPUs, `per_switch` on each switch.
pub fn two_sockets_of(count: usize, per_switch: usize, pcie: i64, upi: i64) -> Graph {
    let mut graph = gpus(count);
    add_two_sockets(&mut graph, per_switch, pcie, upi);
    graph
}

fn add_two_sockets(graph: &mut Graph, per_switch: usize, pcie: i64, upi: i64) {
    let cpus = [switch(graph, "CPU0"), switch(graph, "CPU1")];
    link(graph, cpus[0], cpus[1], upi, "SYS");
    let count = graph.gpus();
    for first in (0..count).step_by(per_switch) {
        let plx = switch(graph, &format!("PCIe switch {}", first / per_switch));
        (first..count.min(first + per_switch)).for_each(|gpu| link(graph, gpu, plx, pcie, "PCIe"));
        link(graph, plx, cpus[2 * first / count], pcie, "PCIe");
    }
}
