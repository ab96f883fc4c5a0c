//! The test functions. [`conformance_tests!`](crate::conformance_tests) lists them.

use super::memory::Layout;
use super::number::{Number, random};
use super::reference::run_and_check;
use super::{Engine, Fleet, Job};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ringleader::topology::Topology;
use ringleader::{Collective, Config, ReduceOp, Scalar, schedule};

/// Lengths around zero, around a vector, and with a ragged end.
const SHORT: [usize; 5] = [0, 1, 2, 7, 1000];
/// Many tiles on any engine, and one more element.
const LONG: usize = 65_537;

/// All collectives, with some root.
pub(crate) fn collectives(root: usize) -> [Collective; 5] {
    [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ]
}

/// All operators. The factor is one that every element type can hold.
pub(crate) fn operators<T: Number>() -> [ReduceOp; 6] {
    let factor = if T::DTYPE.is_float() { Scalar::Float(0.75) } else { Scalar::Int(3) };
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum(factor)]
}

/// The operators that make a difference to a collective.
fn operators_for<T: Number>(collective: Collective) -> Vec<ReduceOp> {
    if collective.reduces() { operators::<T>().to_vec() } else { vec![ReduceOp::Sum] }
}

/// Every collective and operator, at every number of ranks and a range of lengths, in and out of place.
pub(crate) fn every_call<T: Number, E: Engine>(engine: &E) {
    for ranks in engine.rank_counts() {
        let mut fleet = engine.fleet(ranks, 1, &Config::new());
        for collective in collectives(ranks / 2) {
            for (index, op) in operators_for::<T>(collective).into_iter().enumerate() {
                // The long message tests tiling, not arithmetic: a sixth of the combinations is enough.
                let long = (index + ranks + T::DTYPE as usize).is_multiple_of(6).then_some(LONG);
                let mut jobs = Vec::new();
                for count in SHORT.into_iter().chain(long) {
                    for layout in [Layout::OUT_OF_PLACE, Layout::IN_PLACE] {
                        jobs.push(Job::<T>::sampled(collective, op, ranks, count, layout, count as u64));
                    }
                }
                run_and_check(&mut fleet, jobs);
            }
        }
    }
}

/// Broadcast and reduce with each rank as the root.
pub(crate) fn every_root<E: Engine>(engine: &E) {
    fn with<T: Number>(fleet: &mut impl Fleet, ranks: usize) {
        for root in 0..ranks {
            for collective in [Collective::Broadcast { root }, Collective::Reduce { root }] {
                let mut jobs = Vec::new();
                for count in [1, 1000] {
                    for layout in [Layout::OUT_OF_PLACE, Layout::IN_PLACE] {
                        let seed = root as u64;
                        jobs.push(Job::<T>::sampled(collective, ReduceOp::Sum, ranks, count, layout, seed));
                    }
                }
                run_and_check(fleet, jobs);
            }
        }
    }
    for ranks in engine.rank_counts() {
        let mut fleet = engine.fleet(ranks, 1, &Config::new());
        with::<f32>(&mut fleet, ranks);
        with::<u8>(&mut fleet, ranks);
    }
}

/// Buffers that begin at any element, not only where a vector may, and not both at the same distance from one.
pub(crate) fn any_offset<E: Engine>(engine: &E) {
    fn with<T: Number>(fleet: &mut impl Fleet, ranks: usize) {
        for collective in collectives(0) {
            let mut jobs = Vec::new();
            for (send_offset, recv_offset) in [(1, 0), (0, 1), (1, 1), (3, 5), (7, 2)] {
                for in_place in [false, true] {
                    let layout = Layout { in_place, send_offset, recv_offset };
                    for count in [1, 2, 15, 17, 63, 129, 1000, 4099] {
                        let seed = (send_offset * 8 + recv_offset) as u64;
                        jobs.push(Job::<T>::sampled(collective, ReduceOp::Sum, ranks, count, layout, seed));
                    }
                }
            }
            run_and_check(fleet, jobs);
        }
    }
    for ranks in engine.some_rank_counts() {
        let mut fleet = engine.fleet(ranks, 1, &Config::new());
        with::<u8>(&mut fleet, ranks);
        with::<f16>(&mut fleet, ranks);
        with::<f32>(&mut fleet, ranks);
        with::<f64>(&mut fleet, ranks);
    }
}

/// Each algorithm by name, with several channels, for each collective it can do.
pub(crate) fn any_algorithm_and_channels<E: Engine>(engine: &E) {
    for ranks in engine.some_rank_counts() {
        for algorithm in schedule::ALGORITHMS {
            for channels in [1, 2, 3] {
                let config = Config::new().algorithm(algorithm.name()).channels(channels);
                let mut fleet = engine.fleet(ranks, 1, &config);
                for collective in collectives(ranks - 1) {
                    if !algorithm.supports(collective) {
                        continue;
                    }
                    for layout in [Layout::OUT_OF_PLACE, Layout::IN_PLACE] {
                        let jobs = [1, 7, 1000, LONG].map(|count| {
                            let (op, seed) = (ReduceOp::Sum, u64::from(layout.in_place));
                            Job::<f32>::sampled(collective, op, ranks, count, layout, seed)
                        });
                        run_and_check(&mut fleet, jobs.into());
                        let job = Job::<i8>::sampled(collective, ReduceOp::Avg, ranks, 5000, layout, 1);
                        run_and_check(&mut fleet, vec![job]);
                    }
                }
            }
        }
    }
}

/// Trees, forests and rings as they are planned for other machines, on whose GPUs the ranks are said to be.
pub(crate) fn plans_for_other_machines<E: Engine>(engine: &E) {
    let folder = tempfile::tempdir().expect("a folder for topology files");
    let machines = [
        ("dgx1v", Topology::dgx1v()),
        ("pendant", Topology::pendant(Some(24.0))),
        ("two-sockets", Topology::pcie_two_sockets(24.0, 16.0)),
    ];
    for (name, topology) in machines {
        let file = folder.path().join(name);
        std::fs::write(&file, topology.to_xml()).expect("a topology file");
        for ranks in engine.rank_counts().into_iter().filter(|ranks| [3, 4, 8].contains(ranks)) {
            for algorithm in ["forest", "tree", "ring"] {
                let config = Config::new().topology_file(&file).algorithms([algorithm]);
                let mut fleet = engine.fleet(ranks, 1, &config);
                for collective in collectives(ranks - 1) {
                    for layout in [Layout::OUT_OF_PLACE, Layout::IN_PLACE] {
                        let jobs = [1, 1000, LONG].map(|count| {
                            Job::<f32>::sampled(collective, ReduceOp::Sum, ranks, count, layout, count as u64)
                        });
                        run_and_check(&mut fleet, jobs.into());
                        let job = Job::<i8>::sampled(collective, ReduceOp::Avg, ranks, 70_001, layout, 1);
                        run_and_check(&mut fleet, vec![job]);
                    }
                }
            }
        }
    }
}

/// `direct` and `one_shot` combine in rank order and round once, so that the bits depend on nothing else.
pub(crate) fn rank_order_whatever_the_channels<E: Engine>(engine: &E) {
    fn with<T: Number>(fleet: &mut impl Fleet, collective: Collective) {
        // An average over 4 ranks divides by a power of two: multiplying by the reciprocal is the same.
        let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::PreMulSum(Scalar::Float(2.0))];
        for op in ops {
            for recv_offset in [0, 3] {
                for in_place in [false, true] {
                    let layout = Layout { in_place, send_offset: 1, recv_offset };
                    let mut jobs = [3, 2500].map(|n| Job::<T>::sampled(collective, op, 4, n, layout, 9));
                    fleet.run(&mut jobs);
                    jobs.iter().for_each(Job::check_rank_order);
                }
            }
        }
    }
    for algorithm in ["direct", "one_shot"] {
        for channels in [1, 2, 4] {
            let config = Config::new().algorithm(algorithm).channels(channels);
            let mut fleet = engine.fleet(4, 1, &config);
            let both = [Collective::AllReduce, Collective::ReduceScatter];
            for collective in both.into_iter().take(if algorithm == "direct" { 2 } else { 1 }) {
                with::<f32>(&mut fleet, collective);
                with::<f64>(&mut fleet, collective);
                with::<f16>(&mut fleet, collective);
                with::<bf16>(&mut fleet, collective);
                with::<F8E4M3>(&mut fleet, collective);
                with::<F8E5M2>(&mut fleet, collective);
            }
        }
    }
}

/// A call of a random kind.
fn random_job<T: Number>(ranks: usize, seed: u64) -> Job<T> {
    let pick = |salt: u64, choices: usize| (random(seed ^ (salt << 56)) % choices as u64) as usize;
    let layout = Layout { in_place: pick(1, 2) == 0, send_offset: pick(2, 4), recv_offset: pick(3, 4) };
    let count = if pick(4, 20) == 0 { 20_000 + pick(5, 20_000) } else { pick(5, 700) };
    Job::sampled(
        collectives(pick(6, ranks))[pick(7, 5)],
        operators::<T>()[pick(8, 6)],
        ranks,
        count,
        layout,
        seed,
    )
}

/// A thousand calls of all kinds and types on one communicator, ten at a time.
pub(crate) fn a_thousand_mixed_calls<E: Engine>(engine: &E) {
    fn ten<T: Number>(fleet: &mut impl Fleet, round: u64) {
        run_and_check(fleet, (0..10).map(|i| random_job::<T>(3, round * 10 + i)).collect());
    }
    let mut fleet = engine.fleet(3, 1, &Config::new());
    for round in 0..20 {
        ten::<f32>(&mut fleet, round * 5);
        ten::<u8>(&mut fleet, round * 5 + 1);
        ten::<bf16>(&mut fleet, round * 5 + 2);
        ten::<i64>(&mut fleet, round * 5 + 3);
        ten::<F8E5M2>(&mut fleet, round * 5 + 4);
    }
}

/// Calls on two communicators of the same ranks, taking turns.
pub(crate) fn two_communicators_interleaved<E: Engine>(engine: &E) {
    for ranks in engine.some_rank_counts() {
        let mut fleet = engine.fleet(ranks, 2, &Config::new());
        let jobs = (0..60).map(|i| random_job::<f32>(ranks, 77 + i).on(i as usize % 2));
        run_and_check(&mut fleet, jobs.collect());
    }
}

/// NaN, infinities, signed zeros, and both ends of each type's range, all against all. Copies keep every bit.
pub(crate) fn special_values<E: Engine>(engine: &E) {
    fn with<T: Number>(two: &mut impl Fleet, three: &mut impl Fleet) {
        let mut values = T::special();
        // With two ranks there is one combination, so the result is exact whatever the algorithm.
        let first: Vec<T> = values.iter().flat_map(|&x| vec![x; values.len()]).collect();
        let second: Vec<T> = values.iter().flat_map(|_| values.clone()).collect();
        let (count, inputs) = (first.len(), vec![first, second]);
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
            let mut jobs = [Layout::OUT_OF_PLACE, Layout::IN_PLACE]
                .map(|layout| Job::new(Collective::AllReduce, vec![op; 2], count, inputs.clone(), layout));
            two.run(&mut jobs);
            jobs.iter().for_each(Job::check_rank_order);
        }
        // The smallest and the largest of three do not depend on the order either.
        let step = values.len().div_ceil(20);
        values = values.into_iter().step_by(step).collect();
        let n = values.len();
        let digit = |power: usize| (0..n.pow(3)).map(|i| values[i / n.pow(power as u32) % n]).collect();
        let inputs: Vec<Vec<T>> = (0..3).map(digit).collect();
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let job =
                Job::new(Collective::AllReduce, vec![op; 3], n.pow(3), inputs.clone(), Layout::OUT_OF_PLACE);
            run_and_check(three, vec![job]);
        }
        let any_bits = |rank: u64| (0..999).map(|i| T::from_bits(random(rank << 32 | i))).collect();
        let inputs: Vec<Vec<T>> = (0..3).map(any_bits).collect();
        for collective in [Collective::AllGather, Collective::Broadcast { root: 1 }] {
            let job = Job::new(collective, vec![ReduceOp::Sum; 3], 999, inputs.clone(), Layout::OUT_OF_PLACE);
            run_and_check(three, vec![job]);
        }
    }
    let mut two = engine.fleet(2, 1, &Config::new());
    let mut three = engine.fleet(3, 1, &Config::new());
    with::<f16>(&mut two, &mut three);
    with::<bf16>(&mut two, &mut three);
    with::<f32>(&mut two, &mut three);
    with::<f64>(&mut two, &mut three);
    with::<F8E4M3>(&mut two, &mut three);
    with::<F8E5M2>(&mut two, &mut three);
    with::<i8>(&mut two, &mut three);
    with::<u8>(&mut two, &mut three);
    with::<i64>(&mut two, &mut three);
    with::<u64>(&mut two, &mut three);
}

/// Pre-multiplied sums in which each rank has a factor of its own.
pub(crate) fn factors_may_differ_by_rank<E: Engine>(engine: &E) {
    fn with<T: Number>(fleet: &mut impl Fleet, ranks: usize) {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce { root: 0 }] {
            let sampled = Job::<T>::sampled(collective, ReduceOp::Sum, ranks, 777, Layout::IN_PLACE, 5);
            let factor = |rank: usize| ReduceOp::PreMulSum(Scalar::Int(rank as i64 + 1));
            let ops = (0..ranks).map(factor).collect();
            run_and_check(fleet, vec![Job::new(collective, ops, 777, sampled.inputs, Layout::IN_PLACE)]);
        }
    }
    for ranks in engine.some_rank_counts() {
        let mut fleet = engine.fleet(ranks, 1, &Config::new());
        with::<f32>(&mut fleet, ranks);
        with::<i8>(&mut fleet, ranks);
        with::<u64>(&mut fleet, ranks);
    }
}
