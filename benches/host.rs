//! CPU ranks: all_reduce between two ranks of this process, from 8 bytes to 16 MiB.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringleader::perf::{Bench, Case, Device, Mode, Nccl, Setup, Timing, format_bytes};
use ringleader::{Collective, Config, DataType, ReduceOp};

fn all_reduce(c: &mut Criterion) {
    let setup = Setup {
        device: Device::Cpu,
        ranks: Some(2),
        config: Config::new(),
        most_bytes: 0,
        mode: Mode::ThreadPerGpu,
        register: false,
        nccl: Nccl::Off,
    };
    let mut bench = Bench::new(&setup).expect("two CPU ranks");
    let mut group = c.benchmark_group("host all_reduce f32, 2 ranks");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    for bytes in [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let (collective, dtype, op) = (Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        let case = Case { collective, dtype, op, bytes, in_place: false };
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(format_bytes(bytes)), |b| {
            b.iter_custom(|calls| {
                let calls = calls as usize;
                let timing = Timing { calls: Some(calls), samples: 1, warmup: 1, check: false, seed: 0 };
                let row = bench.measure(&case, &timing).expect("the call works");
                Duration::from_secs_f64(row.ours.seconds * calls as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
