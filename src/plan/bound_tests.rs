use super::*;
use crate::plan::presets;
use crate::plan::testing::{self, Known};
use proptest::prelude::*;

fn check(known: &Known) {
    let Known { name, graph, .. } = known;
    let value = |collective| {
        let bound = bound(graph, collective).unwrap();
        assert_eq!(bound.recompute(graph).unwrap(), bound.algbw, "{name}: certificate of {collective:?}");
        assert!(!bound.links.is_empty(), "{name}: {collective:?} names no link");
        bound.algbw
    };
    let gather = Ratio::new(known.gather.0, known.gather.1);
    assert_eq!(value(Collective::AllGather), gather, "{name}: all_gather");
    assert_eq!(value(Collective::ReduceScatter), gather, "{name}: reduce_scatter");
    let reduce = Ratio::new(known.reduce.0, known.reduce.1);
    assert_eq!(value(Collective::AllReduce), reduce, "{name}: all_reduce");
    let roots = 0..graph.gpus();
    let broadcast = roots.clone().map(|root| value(Collective::Broadcast { root })).min().unwrap();
    assert_eq!(broadcast, Ratio::from(known.broadcast), "{name}: broadcast");
    let reduce = roots.map(|root| value(Collective::Reduce { root })).min().unwrap();
    assert_eq!(reduce, Ratio::from(known.broadcast), "{name}: reduce");
}

#[test]
fn named_machines_have_their_exact_rates() {
    testing::machines().iter().for_each(check);
}

#[test]
fn subsets_of_the_dgx1v_have_their_exact_rates() {
    testing::dgx1v_subsets().iter().for_each(check);
}

#[test]
fn pcie_adds_a_little_to_the_dgx1v() {
    let graph = presets::dgx1v_with_pcie(12, 10);
    let gather = bound(&graph, Collective::AllGather).unwrap().algbw;
    assert_eq!(gather, Ratio::new(1_296_000, 7));
    assert_eq!(bound(&graph, Collective::AllReduce).unwrap().algbw, gather / Ratio::from(2));
}

#[test]
fn certificates_name_what_limits() {
    let graph = presets::pix_article(24);
    let all_reduce = bound(&graph, Collective::AllReduce).unwrap();
    assert_eq!(all_reduce.certificate, Certificate::Partition { parts: vec![vec![0, 1, 2], vec![3]] });
    assert!(all_reduce.links.contains(&"NV3 GPU2-GPU3".to_string()), "{:?}", all_reduce.links);
    assert_eq!(all_reduce.busbw(), Ratio::from(148_500));
    let sockets = bound(&presets::two_sockets(24, 10), Collective::AllReduce).unwrap();
    assert_eq!(
        sockets.certificate,
        Certificate::Partition { parts: vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]] }
    );
    assert_eq!(sockets.links, ["SYS CPU0-CPU1"]);
}

#[test]
fn certificates_of_something_else_are_refused() {
    let graph = presets::star(4, 24);
    let mut bound = bound(&graph, Collective::AllReduce).unwrap();
    bound.certificate = Certificate::Cut { gpus: vec![0] };
    assert!(bound.recompute(&graph).is_err());
    bound.collective = Collective::Broadcast { root: 1 };
    assert!(bound.recompute(&graph).is_err(), "the root is not in the cut");
    bound.collective = Collective::AllReduce;
    bound.certificate = Certificate::Partition { parts: vec![vec![0, 1], vec![1, 2, 3]] };
    assert!(bound.recompute(&graph).is_err());
}

#[test]
fn graphs_in_pieces_have_rate_zero() {
    let graph = presets::dgx1v().induced(&[0, 5]).unwrap();
    for collective in [Collective::AllGather, Collective::AllReduce, Collective::Broadcast { root: 1 }] {
        let bound = bound(&graph, collective).unwrap();
        assert_eq!(bound.algbw, Ratio::ZERO);
        assert_eq!(bound.recompute(&graph).unwrap(), Ratio::ZERO);
    }
    assert_eq!(latency_hops(&graph, Collective::AllReduce).unwrap(), None);
}

#[test]
fn senseless_questions_are_refused() {
    assert!(bound(&presets::star(1, 24), Collective::AllGather).is_err());
    assert!(bound(&presets::star(2, 24), Collective::Reduce { root: 2 }).is_err());
    assert!(latency_hops(&presets::star(2, 24), Collective::Reduce { root: 2 }).is_err());
}

#[test]
fn hops_count_gpus_not_switches() {
    let hops = |graph: &Graph, collective| latency_hops(graph, collective).unwrap().unwrap();
    assert_eq!(hops(&presets::two_sockets(24, 20), Collective::AllReduce), 1);
    assert_eq!(hops(&presets::dgx1v(), Collective::AllGather), 2);
    assert_eq!(hops(&presets::nv3_pendant(), Collective::Broadcast { root: 2 }), 1);
    assert_eq!(hops(&presets::nv3_pendant(), Collective::Reduce { root: 3 }), 2);
}

/// Every way to put the nodes on two sides; what leaves each.
fn all_sides(graph: &Graph) -> Vec<(usize, i64)> {
    (0..1usize << graph.nodes())
        .map(|side| {
            let leaving =
                graph.arcs().iter().filter(|arc| side >> arc.from & 1 == 1 && side >> arc.to & 1 == 0);
            (side, leaving.map(|arc| arc.capacity).sum())
        })
        .collect()
}

/// The least cut out of each set of GPUs, switches placed freely.
fn brute_cuts(graph: &Graph) -> Vec<i64> {
    let mut cuts = vec![i64::MAX; 1 << graph.gpus()];
    for (side, leaving) in all_sides(graph) {
        let gpus = side & ((1 << graph.gpus()) - 1);
        cuts[gpus] = cuts[gpus].min(leaving);
    }
    cuts
}

fn brute_gather(graph: &Graph) -> Ratio {
    let cuts = brute_cuts(graph);
    let ratio = |gpus: usize| Ratio::new(cuts[gpus] as i128 * graph.gpus() as i128, gpus.count_ones().into());
    (1..cuts.len() - 1).map(ratio).min().unwrap()
}

/// The partition bound by trying all partitions.
fn brute_all_reduce(graph: &Graph) -> Ratio {
    fn extend(cuts: &[i64], left: usize, parts: i128, total: i128, best: &mut Option<Ratio>) {
        if left == 0 {
            if parts >= 2 {
                let rate = Ratio::new(total, 2 * (parts - 1));
                *best = Some(best.map_or(rate, |least| least.min(rate)));
            }
            return;
        }
        let lowest = left & left.wrapping_neg();
        let mut part = left;
        while part > 0 {
            if part & lowest != 0 {
                extend(cuts, left & !part, parts + 1, total + i128::from(cuts[part]), best);
            }
            part = (part - 1) & left;
        }
    }
    let cuts = brute_cuts(graph);
    let all = cuts.len() - 1;
    let mut best = None;
    extend(&cuts, all, 0, 0, &mut best);
    let two = (1..all).map(|part| Ratio::from(cuts[part])).min();
    best.unwrap().min(two.unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn rates_equal_brute_force(graph in prop_oneof![testing::symmetric_graph(), testing::directed_graph()]) {
        for (collective, expected) in [
            (Collective::AllGather, brute_gather(&graph)),
            (Collective::ReduceScatter, brute_gather(&graph.reversed())),
            (Collective::AllReduce, brute_all_reduce(&graph)),
        ] {
            let found = bound(&graph, collective).unwrap();
            prop_assert_eq!(found.algbw, expected, "{:?}", collective);
            prop_assert_eq!(found.recompute(&graph).unwrap(), expected);
        }
        let cuts = brute_cuts(&graph);
        for root in 0..graph.gpus() {
            let expected = (1..cuts.len() - 1).filter(|gpus| gpus >> root & 1 == 1).map(|gpus| cuts[gpus]).min();
            let found = bound(&graph, Collective::Broadcast { root }).unwrap();
            prop_assert_eq!(found.algbw, Ratio::from(expected.unwrap()));
            prop_assert_eq!(found.recompute(&graph).unwrap(), found.algbw);
        }
    }
}
