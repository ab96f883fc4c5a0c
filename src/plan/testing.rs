//! Graphs for the planner's tests: the reference table and random ones.

use super::graph::Graph;
use super::presets;
use proptest::prelude::*;

/// A graph, its name, and its exact rates in MB/s: all_gather, broadcast from the worst root, all_reduce, and the bus
/// bandwidth of the best packing of rings.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    pub(crate) gather: (i128, i128),
    pub(crate) broadcast: i64,
    pub(crate) reduce: (i128, i128),
    pub(crate) ring: i64,
}

type Row = (&'static str, Graph, (i128, i128), i64, (i128, i128), i64);

/// The named machines.
pub(crate) fn machines() -> Vec<Known> {
    let dgx = presets::dgx1v();
    let rows: Vec<Row> = vec![
        ("2 GPUs, NV18", presets::mesh(2, 450), (900_000, 1), 450_000, (450_000, 1), 450_000),
        ("8 GPUs, switch 450", presets::star(8, 450), (3_600_000, 7), 450_000, (1_800_000, 7), 450_000),
        ("8 GPUs, switch 300", presets::star(8, 300), (2_400_000, 7), 300_000, (1_200_000, 7), 300_000),
        ("4 GPUs, switch 450", presets::star(4, 450), (600_000, 1), 450_000, (300_000, 1), 450_000),
        ("4 GPUs, mesh 100", presets::mesh(4, 100), (400_000, 1), 300_000, (200_000, 1), 300_000),
        ("DGX-1V", dgx.clone(), (1_200_000, 7), 150_000, (600_000, 7), 150_000),
        ("NV3 pendant", presets::nv3_pendant(), (100_000, 1), 75_000, (75_000, 1), 0),
        ("NV3 + PIX 24", presets::pix_article(24), (132_000, 1), 99_000, (99_000, 1), 48_000),
        ("NV3 + PIX 32", presets::pix_article(32), (428_000, 3), 107_000, (107_000, 1), 64_000),
        ("8 PCIe 24, UPI 20", presets::two_sockets(24, 20), (192_000, 7), 20_000, (96_000, 7), 20_000),
        ("8 PCIe 32, UPI 20", presets::two_sockets(32, 20), (256_000, 7), 20_000, (128_000, 7), 20_000),
        ("8 PCIe 24, UPI 10", presets::two_sockets(24, 10), (20_000, 1), 10_000, (10_000, 1), 10_000),
        ("4 GPUs, PCIe switch 24", presets::star(4, 24), (32_000, 1), 24_000, (16_000, 1), 24_000),
    ];
    let mut known: Vec<Known> = rows
        .into_iter()
        .map(|(name, graph, gather, broadcast, reduce, ring)| Known {
            name: name.into(),
            graph,
            gather,
            broadcast,
            reduce,
            ring,
        })
        .collect();
    for left_out in 0..8 {
        let chosen: Vec<usize> = (0..8).filter(|&gpu| gpu != left_out).collect();
        known.push(Known {
            name: format!("DGX-1V without {left_out}"),
            graph: dgx.induced(&chosen).unwrap(),
            gather: (350_000, 3),
            broadcast: 100_000,
            reduce: (75_000, 1),
            ring: 100_000,
        });
    }
    known
}

/// The subsets of the DGX-1V.
pub(crate) fn dgx1v_subsets() -> Vec<Known> {
    type Subset = (&'static [usize], (i128, i128), i64, (i128, i128), i64);
    let rows: &[Subset] = &[
        (&[0, 3], (100_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1], (50_000, 1), 25_000, (25_000, 1), 25_000),
        (&[0, 2, 3], (112_500, 1), 75_000, (62_500, 1), 50_000),
        (&[0, 1, 2], (75_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1, 3], (75_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 3, 4], (75_000, 1), 50_000, (50_000, 1), 0),
        (&[0, 1, 4], (37_500, 1), 25_000, (25_000, 1), 0),
        (&[0, 2, 6], (37_500, 1), 25_000, (25_000, 1), 0),
        (&[0, 1, 2, 3], (400_000, 3), 100_000, (75_000, 1), 100_000),
        (&[0, 3, 4, 7], (100_000, 1), 75_000, (175_000, 3), 50_000),
        (&[0, 1, 4, 5], (100_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1, 2, 4], (200_000, 3), 50_000, (50_000, 1), 0),
        (&[0, 1, 2, 5], (200_000, 3), 50_000, (50_000, 1), 0),
        (&[0, 2, 3, 4], (200_000, 3), 50_000, (50_000, 1), 0),
        (&[0, 2, 4, 6], (200_000, 3), 50_000, (37_500, 1), 50_000),
        (&[0, 3, 6, 7], (50_000, 1), 25_000, (25_000, 1), 0),
        (&[0, 1, 2, 6], (100_000, 3), 25_000, (25_000, 1), 0),
        (&[0, 2, 3, 4, 6, 7], (120_000, 1), 100_000, (70_000, 1), 100_000),
        (&[1, 2, 3, 5, 6, 7], (120_000, 1), 100_000, (70_000, 1), 100_000),
        (&[0, 1, 2, 4, 5, 6], (120_000, 1), 100_000, (65_000, 1), 100_000),
        (&[0, 1, 2, 3, 4, 5], (90_000, 1), 75_000, (62_500, 1), 50_000),
        (&[0, 1, 2, 3, 4, 7], (90_000, 1), 75_000, (62_500, 1), 50_000),
        (&[0, 1, 2, 4, 5, 7], (90_000, 1), 75_000, (60_000, 1), 50_000),
        (&[0, 1, 2, 4, 6, 7], (90_000, 1), 75_000, (175_000, 3), 50_000),
        (&[0, 2, 3, 5, 6, 7], (90_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1, 2, 3, 6, 7], (75_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1, 2, 3, 4, 6], (60_000, 1), 50_000, (50_000, 1), 50_000),
        (&[0, 1, 2, 5, 6, 7], (60_000, 1), 50_000, (50_000, 1), 50_000),
    ];
    rows.iter()
        .map(|&(chosen, gather, broadcast, reduce, ring)| Known {
            name: format!("DGX-1V {chosen:?}"),
            graph: presets::dgx1v().induced(chosen).unwrap(),
            gather,
            broadcast,
            reduce,
            ring,
        })
        .collect()
}

/// Symmetric graphs of 2 to 8 GPUs and 0 to 3 switches; not always connected.
pub(crate) fn symmetric_graph() -> impl Strategy<Value = Graph> {
    symmetric_graph_up_to(12)
}

/// As [`symmetric_graph`], with capacities up to `most`.
pub(crate) fn symmetric_graph_up_to(most: i64) -> impl Strategy<Value = Graph> {
    (2usize..9, 0usize..4).prop_flat_map(move |(gpus, switches)| {
        let nodes = gpus + switches;
        let pairs = nodes * (nodes - 1) / 2;
        prop::collection::vec(prop_oneof![2 => Just(0i64), 3 => 1..=most], pairs).prop_map(
            move |capacities| {
                let mut graph = Graph::new((0..gpus).map(|gpu| format!("GPU{gpu}"))).unwrap();
                (0..switches).for_each(|switch| assert!(graph.add_switch(format!("SW{switch}")).is_ok()));
                let pairs = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b)));
                for ((a, b), capacity) in pairs.zip(capacities) {
                    graph.link(a, b, capacity, format!("{a}-{b}")).unwrap();
                }
                graph
            },
        )
    })
}

/// Graphs of 2 to 6 GPUs and 0 to 2 switches whose links differ by direction.
pub(crate) fn directed_graph() -> impl Strategy<Value = Graph> {
    (2usize..7, 0usize..3).prop_flat_map(|(gpus, switches)| {
        let nodes = gpus + switches;
        prop::collection::vec(prop_oneof![1 => Just(0i64), 3 => 1i64..10], nodes * nodes).prop_map(
            move |capacities| {
                let mut graph = Graph::new((0..gpus).map(|gpu| format!("GPU{gpu}"))).unwrap();
                (0..switches).for_each(|switch| assert!(graph.add_switch(format!("SW{switch}")).is_ok()));
                for (index, capacity) in capacities.into_iter().enumerate() {
                    let (from, to) = (index / nodes, index % nodes);
                    if from != to {
                        graph.add_arc(from, to, capacity, format!("{from}>{to}")).unwrap();
                    }
                }
                graph
            },
        )
    })
}
