//! Random calls of every kind on CPU ranks, against the scalar reference.

mod conformance;

use conformance::cpu::Cpu;
use conformance::memory::Layout;
use conformance::reference::run_and_check;
use conformance::suite::{collectives, operators};
use conformance::{Engine, Job, Number};
use proptest::prelude::*;
use ringleader::{Config, schedule};

/// What does not depend on the element type.
#[derive(Clone, Debug)]
struct Parameters {
    ranks: usize,
    root: usize,
    collective: usize,
    op: usize,
    counts: Vec<usize>,
    layout: Layout,
    algorithm: Option<usize>,
    channels: usize,
    grouped: bool,
    seed: u64,
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let count = prop_oneof![4 => 0..40usize, 4 => 0..3000usize, 1 => 3000..60_000usize];
    let layout = (any::<bool>(), 0..9usize, 0..9usize)
        .prop_map(|(in_place, send_offset, recv_offset)| Layout { in_place, send_offset, recv_offset });
    let algorithm = proptest::option::of(0..schedule::ALGORITHMS.len());
    (1..9usize).prop_flat_map(move |ranks| {
        let call = (0..ranks, 0..5usize, 0..6usize, proptest::collection::vec(count.clone(), 1..4));
        (call, layout.clone(), algorithm.clone(), 1..5usize, any::<bool>(), any::<u64>()).prop_map(
            move |((root, collective, op, counts), layout, algorithm, channels, grouped, seed)| Parameters {
                ranks,
                root,
                collective,
                op,
                counts,
                layout,
                algorithm,
                channels,
                grouped,
                seed,
            },
        )
    })
}

fn check<T: Number>(p: &Parameters) {
    let collective = collectives(p.root)[p.collective];
    let mut config = Config::new().channels(p.channels);
    if let Some(algorithm) = p.algorithm.map(|i| schedule::ALGORITHMS[i])
        && algorithm.supports(collective)
    {
        config = config.algorithm(algorithm.name());
    }
    let mut fleet = Cpu { grouped: p.grouped }.fleet(p.ranks, 1, &config);
    let op = operators::<T>()[p.op];
    let job = |&count| Job::<T>::sampled(collective, op, p.ranks, count, p.layout, p.seed);
    run_and_check(&mut fleet, p.counts.iter().map(job).collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integers(p in parameters(), wide: bool, signed: bool) {
        match (wide, signed) {
            (false, true) => check::<i8>(&p),
            (false, false) => check::<u32>(&p),
            (true, true) => check::<i64>(&p),
            (true, false) => check::<u64>(&p),
        }
    }

    #[test]
    fn floats(p in parameters(), double: bool) {
        if double { check::<f64>(&p) } else { check::<f32>(&p) }
    }

    #[test]
    fn narrow_floats(p in parameters(), kind in 0..4) {
        match kind {
            0 => check::<half::f16>(&p),
            1 => check::<half::bf16>(&p),
            2 => check::<float8::F8E4M3>(&p),
            _ => check::<float8::F8E5M2>(&p),
        }
    }
}
