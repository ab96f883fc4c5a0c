//! Planning: the bound of a machine, trees that reach it, and rings.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use ringleader::Collective;
use ringleader::plan::{bound, forest, presets, rings};

fn planner(c: &mut Criterion) {
    let machines = [
        ("8 GPUs on a switch", presets::star(8, 450)),
        ("DGX-1 V100", presets::dgx1v()),
        ("8 PCIe GPUs, two sockets", presets::two_sockets(24, 10)),
    ];
    for (name, graph) in &machines {
        let mut group = c.benchmark_group(format!("plan {name}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(500));
        group.bench_function("bound", |b| b.iter(|| bound::bound(black_box(graph), Collective::AllReduce)));
        group.bench_function("forest", |b| b.iter(|| forest::best(black_box(graph), Collective::AllReduce)));
        group.bench_function("rings", |b| b.iter(|| rings::search(black_box(graph))));
        group.finish();
    }
}

criterion_group!(benches, planner);
criterion_main!(benches);
