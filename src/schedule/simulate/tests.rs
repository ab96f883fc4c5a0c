use super::*;
use crate::schedule::{ALGORITHMS, Request, build, forest};
use crate::types::Collective;
use proptest::prelude::*;

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 0 },
];

fn schedule(algorithm: &str, collective: Collective, ranks: usize, channels: usize) -> Schedule {
    build(algorithm, &Request::new(collective, ranks, channels)).unwrap()
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance * want, "{got} is not within {tolerance} of {want}");
}

#[test]
fn one_transfer_takes_overhead_wire_and_latency() {
    let s = schedule("ring", Collective::Broadcast { root: 0 }, 2, 1);
    let network = Network::switch(2, 10.0, 3.0);
    let setup = Setup { fold_us: 0.5, ..Setup::new(100_000) };
    // 100 kB at 10 GB/s are 10 µs; both folds pay their overhead.
    let seen = simulate(&s, &network, &setup).unwrap();
    close(seen.time_us, 0.5 + 10.0 + 3.0 + 0.5, 1e-9);
    close(seen.bound_us, 10.0, 1e-9);
    close(seen.busy[0], 10.0 / 14.0, 1e-9);
    assert_eq!(seen.busy[1], 0.0);
    // Half of each packet is flags; a slow lane copies in 20 µs what the wire moves in 10.
    let packets = simulate(&s, &network, &Setup { wire_efficiency: 0.5, ..setup }).unwrap();
    close(packets.time_us, 0.5 + 20.0 + 3.0 + 0.5, 1e-9);
    let slow = Setup { lane_gbs: 10.0, ..setup };
    close(simulate(&s, &network, &slow).unwrap().time_us, 0.5 + 20.0 + 3.0 + 0.5 + 10.0, 1e-9);
    let lanes = Setup { lane_gbs: 10.0, lanes: 4, ..setup };
    close(simulate(&s, &network, &lanes).unwrap().time_us, 0.5 + 10.0 + 3.0 + 0.5 + 2.5, 1e-9);
}

#[test]
fn transfers_share_what_they_have_in_common() {
    // Rank 0 sends to 1 and 2 through its one port, and 2 has a thin way in.
    let mut network = Network::switch(3, 10.0, 0.0);
    network.resources[5].gbs = 2.0;
    let trees = [forest::TreeSpec { root: 0, parent: vec![None, Some(0), Some(0)], weight: 1 }];
    let star = forest::build(Collective::Broadcast { root: 0 }, 3, &trees).unwrap();
    let seen = simulate(&star, &network, &Setup::new(100_000)).unwrap();
    close(seen.time_us, 50.0, 1e-6);
    network.resources[5].gbs = 10.0;
    close(simulate(&star, &network, &Setup::new(100_000)).unwrap().time_us, 20.0, 1e-6);
}

#[test]
fn long_messages_reach_the_bound_on_a_switch() {
    let network = Network::switch(8, 450.0, 1.0);
    for collective in COLLECTIVES {
        for algorithm in ["ring", "direct"] {
            if algorithm == "direct" && matches!(collective, Collective::Reduce { .. }) {
                continue;
            }
            let s = schedule(algorithm, collective, 8, 4);
            let seen = simulate(&s, &network, &Setup { depth: 8, ..Setup::new(1 << 30) }).unwrap();
            assert!(seen.time_us >= seen.bound_us);
            let share = seen.bound_us / seen.time_us;
            assert!(share > 0.95, "{}: {share} of the bound", s.name());
        }
    }
}

/// Four GPUs: an NVLink triangle of 75 GB/s, one more GPU behind 75 GB/s, and PCIe ports of 24 GB/s for the rest.
#[test]
fn a_forest_reaches_the_bound_where_links_are_uneven() {
    let mut network = Network { resources: Vec::new(), paths: vec![vec![Path::default(); 4]; 4] };
    for gpu in 0..4 {
        for way in ["out", "in"] {
            network.resources.push(Resource { name: format!("PCIe {gpu} {way}"), gbs: 24.0 });
        }
    }
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let nvlink = from.min(to) == 2 || from.max(to) < 3;
            network.paths[from][to].latency_us = 1.0;
            network.paths[from][to].resources = if nvlink {
                network.resources.push(Resource { name: format!("NVLink {from}-{to}"), gbs: 75.0 });
                vec![network.resources.len() - 1]
            } else {
                vec![2 * from, 2 * to + 1]
            };
        }
    }
    let tree =
        |weight, parent: [Option<usize>; 4]| forest::TreeSpec { root: 2, parent: parent.into(), weight };
    let trees = [
        tree(40, [Some(2), Some(0), None, Some(2)]),
        tree(35, [Some(1), Some(2), None, Some(2)]),
        tree(24, [Some(2), Some(2), None, Some(0)]),
    ];
    let s = forest::build(Collective::AllReduce, 4, &trees).unwrap();
    let seen = simulate(&s, &network, &Setup::new(1 << 30)).unwrap();
    close(seen.bound_us, (1u64 << 30) as f64 / 99e3, 1e-3);
    assert!(seen.algorithm_gbs(1 << 30) > 0.97 * 99.0, "{} GB/s", seen.algorithm_gbs(1 << 30));
    // No ring can do better than 32: it has to pass PCIe both ways.
    let ring = schedule("ring", Collective::AllReduce, 4, 2);
    let seen = simulate(&ring, &network, &Setup::new(1 << 30)).unwrap();
    assert!(seen.algorithm_gbs(1 << 30) < 32.0, "{} GB/s", seen.algorithm_gbs(1 << 30));
}

/// One tree of depth 1 for each root: what a planner gives for sixteen GPUs on a switch.
#[test]
fn sixteen_gpus_with_many_trees_take_milliseconds() {
    let star = |root| forest::TreeSpec {
        root,
        parent: (0..16).map(|r| (r != root).then_some(root)).collect(),
        weight: 1,
    };
    let trees: Vec<_> = (0..16).map(star).collect();
    let s = forest::build(Collective::AllReduce, 16, &trees).unwrap();
    let network = Network::switch(16, 450.0, 1.0);
    let start = std::time::Instant::now();
    let seen = simulate(&s, &network, &Setup { depth: 8, ..Setup::new(1 << 30) }).unwrap();
    let took = start.elapsed();
    println!("16 trees on 16 ranks: {took:?}, {} of the bound", seen.bound_us / seen.time_us);
    assert!(took.as_millis() < 500, "{took:?}");
    assert!(seen.bound_us > 0.9 * seen.time_us, "{} of the bound", seen.bound_us / seen.time_us);
}

#[test]
fn a_shallow_fifo_costs_where_latency_is_long() {
    let s = schedule("ring", Collective::Broadcast { root: 0 }, 3, 1);
    let network = Network::switch(3, 100.0, 20.0);
    let time = |depth| simulate(&s, &network, &Setup { depth, ..Setup::new(64 << 20) }).unwrap().time_us;
    let times: Vec<f64> = [1, 2, 4, 16].into_iter().map(time).collect();
    assert!(times.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-9)), "{times:?}");
    // One slot of 512 KiB: 5.2 µs of wire into it and as much out of it, and 40 µs until the credit is back.
    close(times[0], 128.0 * (2.0 * 512.0 * 1.024e-2 + 40.0), 0.01);
    assert!(times[0] > 4.0 * times[3], "{times:?}");
}

#[test]
fn time_grows_with_the_message() {
    let network = Network::switch(4, 100.0, 1.0);
    for algorithm in ALGORITHMS {
        let s = schedule(algorithm.name(), Collective::AllReduce, 4, 2);
        let mut before = 0.0;
        for log in 3..=30 {
            let setup = Setup { fold_us: 0.3, ..Setup::new(1 << log) };
            let seen = simulate(&s, &network, &setup).unwrap().time_us;
            assert!(seen >= before, "{} of {} bytes: {seen} after {before}", s.name(), setup.bytes);
            before = seen;
        }
    }
}

#[test]
fn eight_gpus_and_a_gibibyte_take_milliseconds() {
    let network = Network::switch(8, 450.0, 1.0);
    for algorithm in ALGORITHMS {
        let s = schedule(algorithm.name(), Collective::AllReduce, 8, 4);
        let run = || {
            let start = std::time::Instant::now();
            simulate(&s, &network, &Setup::new(1 << 30)).unwrap();
            start.elapsed()
        };
        let best = (0..3).map(|_| run()).min().unwrap();
        println!("{}: {best:?}", s.name());
        assert!(best.as_millis() < 60, "{} took {best:?}", s.name());
    }
}

#[test]
fn bad_figures_are_named() {
    let s = schedule("ring", Collective::AllReduce, 2, 1);
    let good = Network::switch(2, 10.0, 0.0);
    let refuse = |network: &Network, setup: Setup, word: &str| {
        let message = simulate(&s, network, &setup).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    };
    refuse(&Network::switch(3, 10.0, 0.0), Setup::new(8), "2 × 2");
    refuse(&Network::switch(2, 0.0, 0.0), Setup::new(8), "rank 0 out");
    refuse(&Network::switch(2, 1.0, f64::NAN), Setup::new(8), "path from 0 to 0");
    let mut foreign = good.clone();
    foreign.paths[1][0].resources = vec![4];
    refuse(&foreign, Setup::new(8), "path from 1 to 0");
    refuse(&good, Setup { depth: 0, ..Setup::new(8) }, "depth");
    refuse(&good, Setup { lanes: 0, ..Setup::new(8) }, "lanes");
    refuse(&good, Setup { tile_bytes: 0, ..Setup::new(8) }, "tile_bytes");
    refuse(&good, Setup { fold_us: -1.0, ..Setup::new(8) }, "fold_us");
    refuse(&good, Setup { wire_efficiency: 0.0, ..Setup::new(8) }, "wire_efficiency");
    // A ring does not turn with one slot.
    refuse(&good, Setup { depth: 1, ..Setup::new(1 << 20) }, "rank 0 worker 0 fold 1 (finish chunk 0");
    assert_eq!(simulate(&s, &good, &Setup::new(0)).unwrap().time_us, 0.0);
}

/// A random machine: up to four shared resources besides a port for each rank.
fn network(ranks: usize) -> impl Strategy<Value = Network> {
    let gbs = prop::collection::vec(1u32..100, ranks * 2 + 4);
    let extra = prop::collection::vec((0usize..6, 0u32..20), ranks * ranks);
    (gbs, extra).prop_map(move |(gbs, extra)| {
        let mut network = Network::switch(ranks, 1.0, 0.0);
        network.resources.resize(ranks * 2 + 4, Resource { name: "bus".into(), gbs: 1.0 });
        for (r, gbs) in network.resources.iter_mut().zip(gbs) {
            r.gbs = f64::from(gbs);
        }
        for (path, (bus, latency)) in network.paths.iter_mut().flatten().zip(extra) {
            path.resources.extend((bus < 4).then_some(ranks * 2 + bus));
            path.latency_us = f64::from(latency) / 10.0;
        }
        network
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn no_prediction_is_below_the_bound_and_skipping_changes_little(
        (ranks, network) in (2usize..6).prop_flat_map(|n| (Just(n), network(n))),
        which in 0usize..5, channels in 1usize..4, depth in 2u32..6, lanes in 1u32..3, fold in 0u32..30,
        kib in 1usize..40_000,
    ) {
        for algorithm in ALGORITHMS.iter().filter(|a| a.supports(COLLECTIVES[which])) {
            let s = schedule(algorithm.name(), COLLECTIVES[which], ranks, channels);
            let setup = Setup {
                depth, lanes, fold_us: f64::from(fold) / 10.0, tile_bytes: 64 << 10, ..Setup::new(kib << 10)
            };
            let quick = simulate(&s, &network, &setup).unwrap();
            let full = simulate_with(&s, &network, &Placement::default(), &setup, false).unwrap();
            prop_assert!(quick.time_us >= quick.bound_us);
            prop_assert!(quick.busy.iter().all(|&b| b <= 1.0 + 1e-9));
            let ratio = quick.time_us / full.time_us;
            // Of 20 000 random cases with all algorithms each, 34 were more than 2 % off, none more than 10.8 %: uneven machines
            // whose pace changes only after hundreds of tiles.
            prop_assert!((0.86..1.16).contains(&ratio), "{}: {ratio}", s.name());
        }
    }
}

/// Two trees on one wire that are to carry 3 : 1, and take it at that ratio only if their lanes say so.
#[test]
fn lanes_divide_a_wire_and_routes_choose_it() {
    let network = Network {
        resources: ["wide", "thin"].map(|name| Resource { name: name.into(), gbs: 10.0 }).into(),
        paths: vec![vec![Path { resources: vec![0], latency_us: 0.0 }; 2]; 2],
    };
    let tree = |weight| forest::TreeSpec { root: 0, parent: vec![None, Some(0)], weight };
    let s = forest::build(Collective::Broadcast { root: 0 }, 2, &[tree(3), tree(1)]).unwrap();
    let setup = Setup { tile_bytes: 4 << 10, ..Setup::new(40_960_000) };
    let time = |lanes: &[u32], routes: &[usize]| {
        let routes = routes.iter().map(|&r| Path { resources: vec![r], latency_us: 0.0 }).collect();
        let placement = Placement { routes, lanes: lanes.into() };
        simulate_placed(&s, &network, &placement, &setup).unwrap().time_us
    };
    close(time(&[], &[]), 4096.0, 0.01);
    close(time(&[3, 1], &[]), 4096.0, 0.01);
    // Each tree on a wire of its own: the heavy one decides, and then both decide alike.
    close(time(&[], &[0, 1]), 3072.0, 0.01);
    let bad = Placement { lanes: vec![1], ..Placement::default() };
    assert!(simulate_placed(&s, &network, &bad, &setup).unwrap_err().to_string().contains("none or 2"));
    let bad = Placement { routes: vec![Path { resources: vec![9], latency_us: 0.0 }; 2], ..bad };
    assert!(simulate_placed(&s, &network, &bad, &setup).is_err());
}
