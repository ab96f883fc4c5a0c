//! Whatever is asked for, the schedule that comes back is right: it verifies, and a small executor of its own kind,
//! which shares nothing with the verifier or the engines, gets the right numbers from it.

mod support;

use proptest::prelude::*;
use ringleader::Collective;
use ringleader::schedule::{ALGORITHMS, Request, Schedule, Worker, build, verify};
use support::{Random, execute};

fn collective(which: usize, root: usize) -> Collective {
    [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ][which]
}

/// A request with up to `most` ranks, any collective and root, and random visiting orders.
fn request(most: usize, channels: usize) -> impl Strategy<Value = Request> {
    (1..=most, 0usize..5, any::<prop::sample::Index>(), 1..=channels).prop_flat_map(
        |(ranks, which, root, channels)| {
            let order = Just((0..ranks).collect::<Vec<_>>()).prop_shuffle();
            prop::collection::vec(order, channels).prop_map(move |orders| Request {
                collective: collective(which, root.index(ranks)),
                ranks,
                orders,
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_verifies_and_computes(
        request in request(16, 4), depth in 2u32..5, seed in any::<u64>(),
    ) {
        for algorithm in ALGORITHMS.iter().filter(|a| a.supports(request.collective)) {
            let schedule = build(algorithm.name(), &request).unwrap();
            verify(&schedule, 2).unwrap();
            verify(&schedule, depth).unwrap();
            prop_assert!(unused_links(&schedule).is_empty(), "{}: {:?}", schedule.name(), unused_links(&schedule));
            if request.ranks <= 8 {
                execute(&schedule, depth as usize, seed);
            }
        }
    }

    #[test]
    fn what_verifies_computes_however_folds_are_dealt_to_workers(
        request in request(5, 2), depth in 1u32..4, seed in any::<u64>(),
    ) {
        for algorithm in ALGORITHMS.iter().filter(|a| a.supports(request.collective)) {
            let mut schedule = build(algorithm.name(), &request).unwrap();
            deal_again(&mut schedule, &mut Random(seed));
            if verify(&schedule, depth).is_ok() {
                execute(&schedule, depth as usize, seed);
            }
        }
    }
}

/// Links that no fold uses: an engine would hold memory for them all the same.
fn unused_links(schedule: &Schedule) -> Vec<usize> {
    let mut used = vec![false; schedule.links.len()];
    for fold in schedule.workers.iter().flatten().flat_map(|worker| &worker.folds) {
        let links =
            fold.sources.iter().filter_map(|s| s.link()).chain(fold.sinks.iter().filter_map(|s| s.link()));
        links.for_each(|link| used[link.0 as usize] = true);
    }
    (0..used.len()).filter(|&link| !used[link]).collect()
}

/// Deals the folds of some ranks to their workers anew: merges the workers of a channel at random, or cuts one in two.
fn deal_again(schedule: &mut Schedule, random: &mut Random) {
    for workers in &mut schedule.workers {
        match random.below(3) {
            0 => {
                let mut merged: Vec<Worker> = Vec::new();
                for worker in workers.drain(..) {
                    let Some(to) = merged.iter_mut().find(|m| m.channel == worker.channel) else {
                        merged.push(worker);
                        continue;
                    };
                    let mut at = 0;
                    for fold in worker.folds {
                        at += random.below(to.folds.len() - at + 1);
                        to.folds.insert(at, fold);
                        at += 1;
                    }
                }
                *workers = merged;
            }
            1 => {
                let at = random.below(workers.len().max(1));
                if let Some(worker) = workers.get_mut(at) {
                    let cut = random.below(worker.folds.len() + 1);
                    let folds = worker.folds.split_off(cut);
                    let (channel, role) = (worker.channel, worker.role);
                    workers.push(Worker { channel, role, folds });
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn many_ranks_verify(request in request(128, 2)) {
        for algorithm in ALGORITHMS.iter().filter(|a| a.supports(request.collective)) {
            let schedule = build(algorithm.name(), &request).unwrap();
            verify(&schedule, 2).unwrap();
        }
    }
}

/// Rings that start full need a second slot to turn; everything else flows through one.
#[test]
fn one_slot_a_link_is_enough_for_all_but_full_rings() {
    for which in 0..5 {
        let request = Request::new(collective(which, 3), 8, 2);
        for algorithm in ALGORITHMS.iter().filter(|a| a.supports(request.collective)) {
            let full = algorithm.name() == "ring" && request.collective.root().is_none();
            let schedule = build(algorithm.name(), &request).unwrap();
            assert_eq!(verify(&schedule, 1).is_ok(), !full, "{}", schedule.name());
        }
    }
}

#[test]
fn sixty_four_ranks_verify_in_under_a_second() {
    for algorithm in ALGORITHMS {
        let schedule = build(algorithm.name(), &Request::new(Collective::AllReduce, 64, 2)).unwrap();
        // The best of three: other tests share the processors.
        let best = (0..3)
            .map(|_| {
                let start = std::time::Instant::now();
                verify(&schedule, 2).unwrap();
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(best.as_millis() < 1000, "{} took {best:?}", schedule.name());
    }
}

#[test]
fn schedules_read_as_their_description() {
    let show = |algorithm, collective, ranks, channels| {
        build(algorithm, &Request::new(collective, ranks, channels)).unwrap().to_string()
    };
    insta::assert_snapshot!("ring_all_reduce_3", show("ring", Collective::AllReduce, 3, 1));
    insta::assert_snapshot!("ring_broadcast_4_from_2", show("ring", Collective::Broadcast { root: 2 }, 4, 1));
    insta::assert_snapshot!("direct_all_reduce_3", show("direct", Collective::AllReduce, 3, 1));
    insta::assert_snapshot!(
        "direct_broadcast_3_from_1",
        show("direct", Collective::Broadcast { root: 1 }, 3, 1)
    );
    insta::assert_snapshot!("tree_all_reduce_4x2", show("tree", Collective::AllReduce, 4, 2));
    insta::assert_snapshot!("one_shot_all_reduce_2x2", show("one_shot", Collective::AllReduce, 2, 2));
}
