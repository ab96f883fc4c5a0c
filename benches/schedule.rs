//! Building and verifying schedules.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ringleader::Collective;
use ringleader::schedule::{Request, build, verify};

/// (algorithm, ranks, channels): what a host has, and the largest that must stay quick.
const SHAPES: [(&str, usize, usize); 5] =
    [("ring", 8, 8), ("direct", 8, 1), ("one_shot", 8, 1), ("tree", 8, 2), ("ring", 64, 2)];

fn schedules(c: &mut Criterion) {
    for (what, checks) in [("schedule build", false), ("schedule verify", true)] {
        let mut group = c.benchmark_group(what);
        group.sample_size(10).warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(500));
        for (algorithm, ranks, channels) in SHAPES {
            let request = Request::new(Collective::AllReduce, ranks, channels);
            let id = BenchmarkId::new(algorithm, format!("{ranks} ranks, {channels} channels"));
            let schedule = build(algorithm, &request).expect("every algorithm does all_reduce");
            group.bench_function(id, |b| match checks {
                false => b.iter(|| build(algorithm, black_box(&request))),
                true => b.iter(|| verify(black_box(&schedule), 1)),
            });
        }
        group.finish();
    }
}

criterion_group!(benches, schedules);
criterion_main!(benches);
