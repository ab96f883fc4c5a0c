//! GPU ranks: this library, NCCL where it can be opened, and what copy engines could do. Nothing without two GPUs.
//!
//! The calls are captured in graphs. `ringleader perf all_reduce --graph --compare nccl` measures the same in one table.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringleader::perf::{Bench, Case, Device, Mode, Nccl, Setup, Timing, format_bytes};
use ringleader::{Collective, Config, DataType, ReduceOp, Result};

const SIZES: [usize; 6] = [8, 8 << 10, 512 << 10, 16 << 20, 128 << 20, 1 << 30];

/// Most calls captured in one graph; more are extrapolated.
const CAPTURED: usize = 50;

fn ranks(nccl: Nccl) -> Result<Bench> {
    let most_bytes = SIZES.into_iter().max().unwrap_or(0);
    let config = Config::new().timeout(Duration::from_secs(60));
    Bench::new(&Setup {
        device: Device::Cuda,
        ranks: None,
        config,
        most_bytes,
        mode: Mode::Graph,
        register: false,
        nccl,
    })
}

fn collectives(c: &mut Criterion) {
    let mut bench = match ranks(Nccl::Plain).or_else(|why| {
        println!("without NCCL: {why}");
        ranks(Nccl::Off)
    }) {
        Ok(bench) => bench,
        Err(why) => return println!("no GPU benchmarks: {why}"),
    };
    let libraries: &[&str] = if bench.nccl_version().is_some() {
        &["ringleader", "nccl", "limit"]
    } else {
        &["ringleader", "limit"]
    };
    let n = bench.ranks();
    for collective in [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root: 0 },
    ] {
        let mut group = c.benchmark_group(format!("GPU {} f32, {n} ranks", collective.name()));
        group.sample_size(10).warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(500));
        for bytes in SIZES {
            let case = Case { collective, dtype: DataType::F32, op: ReduceOp::Sum, bytes, in_place: false };
            group.throughput(Throughput::Bytes(bytes as u64));
            for &library in libraries {
                let limit = bench.limit();
                if library == "limit" && limit.is_none() {
                    continue;
                }
                group.bench_function(BenchmarkId::new(library, format_bytes(bytes)), |b| {
                    b.iter_custom(|calls| {
                        let captured = (calls as usize).clamp(1, CAPTURED);
                        let timing =
                            Timing { calls: Some(captured), samples: 1, warmup: 1, check: false, seed: 0 };
                        let seconds = match (library, limit) {
                            // What each wire must carry, at the rate of the copy engines.
                            ("limit", Some(limit)) => {
                                case.message_bytes(n) as f64 * collective.bus_factor(n) / limit / 1e9
                            }
                            _ => {
                                let row = bench.measure(&case, &timing).expect("the call works");
                                let nccl = row.nccl.filter(|_| library == "nccl");
                                nccl.unwrap_or(row.ours).seconds
                            }
                        };
                        Duration::from_secs_f64(seconds * calls as f64)
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, collectives);
criterion_main!(benches);
