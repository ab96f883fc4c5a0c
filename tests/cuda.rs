//! The CUDA engine on real GPUs. Without one these tests say so and pass; with `RINGLEADER_REQUIRE_GPU=1` they fail.

#![cfg(feature = "cuda")]

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::gpu::{self, Gpu};
use cudarc::driver::{CudaSlice, CudaStream};
use ringleader::{Communicator, Config, Error, ReduceOp};

const ALL: &[usize] = &[1, 2, 3, 4, 5, 8];

conformance_tests!(p2p, Gpu { devices: 2, p2p: true, threads: false, ranks: ALL }, only if gpu::found(2));
conformance_tests!(shm, Gpu { devices: 2, p2p: false, threads: true, ranks: &[2, 3, 4] }, only if gpu::found(2));
conformance_tests!(one_gpu, Gpu { devices: 1, p2p: true, threads: true, ranks: &[1, 2, 3, 4] }, only if gpu::found(1));

/// Ranks on the first `devices` GPUs, each with a stream.
struct Ranks {
    comms: Vec<Communicator>,
    streams: Vec<Arc<CudaStream>>,
}

impl Ranks {
    fn new(ranks: usize, devices: usize, config: &Config) -> Self {
        let contexts = gpu::contexts(ranks, devices);
        let comms = Communicator::cuda(&contexts, config).unwrap();
        let streams = contexts.iter().map(|c| c.new_stream().unwrap()).collect();
        Ranks { comms, streams }
    }

    fn each(&self) -> impl Iterator<Item = (&Communicator, &Arc<CudaStream>)> {
        self.comms.iter().zip(&self.streams)
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.each().try_for_each(|(c, s)| c.on(s)?.synchronize())
    }
}

fn devices() -> usize {
    if gpu::found(1) { ringleader::gpu_count().unwrap().min(2) } else { 0 }
}

/// A message of more than 2 GiB and more than 2^31 elements.
#[test]
fn three_gib_of_bytes() {
    if !gpu::found(2) {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, 2, &Config::new());
    let len = (3 << 30) + 5;
    let pattern: Vec<i8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as i8).collect();
    let mut buffers: Vec<CudaSlice<i8>> = Vec::new();
    for stream in &ranks.streams {
        let mut buffer = stream.alloc_zeros::<i8>(len).unwrap();
        for begin in (0..len).step_by(pattern.len()) {
            let end = len.min(begin + pattern.len());
            stream.memcpy_htod(&pattern[..end - begin], &mut buffer.slice_mut(begin..end)).unwrap();
        }
        buffers.push(buffer);
    }
    for ((c, s), b) in ranks.each().zip(&mut buffers) {
        c.on(s).unwrap().all_reduce_in_place(b, ReduceOp::Sum).unwrap();
    }
    ranks.synchronize().unwrap();
    let expected: Vec<i8> = pattern.iter().map(|x| x.wrapping_mul(2)).collect();
    for (stream, buffer) in ranks.streams.iter().zip(&buffers) {
        for begin in (0..len).step_by(pattern.len()) {
            let end = len.min(begin + pattern.len());
            let part = stream.clone_dtoh(&buffer.slice(begin..end)).unwrap();
            assert!(part == expected[..end - begin], "wrong data after byte {begin}");
        }
    }
}

/// One capture, a hundred replays, with new data each time.
#[test]
fn a_graph_replays_with_new_data() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    for count in [3, 4096, 1 << 20] {
        let ranks = Ranks::new(2, devices, &Config::new());
        let mut buffers = Vec::new();
        let mut results = Vec::new();
        for (c, s) in ranks.each() {
            c.preload(ringleader::DataType::F32).unwrap();
            // SAFETY: each buffer is used on one stream only, so nothing needs tracking, which capture does not allow.
            unsafe { s.context().disable_event_tracking() };
            buffers.push(s.alloc_zeros::<f32>(count).unwrap());
            results.push(s.alloc_zeros::<f32>(count).unwrap());
            s.synchronize().unwrap();
        }
        let mut graphs = Vec::new();
        for (((c, s), b), r) in ranks.each().zip(&buffers).zip(&mut results) {
            let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            s.begin_capture(mode).unwrap();
            c.on(s).unwrap().all_reduce(b, r, ReduceOp::Sum).unwrap();
            c.on(s).unwrap().all_reduce_in_place(r, ReduceOp::Max).unwrap();
            let flags = cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            graphs.push(s.end_capture(flags).unwrap().expect("a graph"));
        }
        for round in 0..100 {
            for (rank, (s, b)) in ranks.streams.iter().zip(&mut buffers).enumerate() {
                let data: Vec<f32> = (0..count).map(|i| (i % 1000 + rank * 10 + round) as f32).collect();
                s.memcpy_htod(&data, b).unwrap();
            }
            for graph in &graphs {
                graph.launch().unwrap();
            }
            for (s, r) in ranks.streams.iter().zip(&results) {
                let got = s.clone_dtoh(r).unwrap();
                let wrong = (0..count).find(|&i| got[i] != (2 * (i % 1000) + 10 + 2 * round) as f32);
                assert_eq!(wrong, None, "count {count}, round {round}");
            }
        }
        ranks.synchronize().unwrap();
    }
}

/// Operations of one communicator stay in order across streams.
#[test]
fn streams_may_change() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new());
    let others: Vec<_> = ranks.streams.iter().map(|s| s.context().new_stream().unwrap()).collect();
    let count = 1 << 18;
    let mut buffers: Vec<_> =
        ranks.streams.iter().map(|s| s.clone_htod(&vec![1f64; count]).unwrap()).collect();
    for round in 0..20 {
        for (((c, s), other), b) in ranks.each().zip(&others).zip(&mut buffers) {
            let stream = if round % 2 == 0 { s } else { other };
            c.on(stream).unwrap().all_reduce_in_place(b, ReduceOp::Sum).unwrap();
        }
    }
    for ((c, s), b) in ranks.comms.iter().zip(&others).zip(&buffers) {
        c.on(s).unwrap().synchronize().unwrap();
        let got = s.clone_dtoh(b).unwrap();
        assert!(got.iter().all(|&x| x == f64::from(1 << 20)), "{}", got[0]);
    }
}

/// Ranks that call different things get an error with both calls in it; nothing hangs.
#[test]
fn different_calls_are_reported() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let config = Config::new().timeout(Duration::from_secs(10));
    let ranks = Ranks::new(2, devices, &config);
    let mut buffers: Vec<_> = ranks.streams.iter().map(|s| s.alloc_zeros::<f32>(1024).unwrap()).collect();
    let (first, second) = buffers.split_at_mut(1);
    ranks.comms[0].on(&ranks.streams[0]).unwrap().all_reduce_in_place(&mut first[0], ReduceOp::Sum).unwrap();
    let mut half = second[0].slice_mut(..512);
    ranks.comms[1].on(&ranks.streams[1]).unwrap().all_reduce_in_place(&mut half, ReduceOp::Sum).unwrap();
    let error = ranks.synchronize().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Mismatch { .. }), "{text}");
    assert!(text.contains("1024") && text.contains("512"), "{text}");
    let again =
        ranks.comms[0].on(&ranks.streams[0]).unwrap().all_reduce_in_place(&mut first[0], ReduceOp::Sum);
    assert!(again.is_err(), "the communicator has failed");
}

/// A rank that never comes is named, in time, and the kernel that waited for it leaves.
#[test]
fn a_missing_rank_is_named() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new().timeout(Duration::from_millis(300)));
    let mut buffer = ranks.streams[0].alloc_zeros::<f32>(1 << 20).unwrap();
    let on = ranks.comms[0].on(&ranks.streams[0]).unwrap();
    on.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let started = Instant::now();
    let text = on.synchronize().unwrap_err().to_string();
    assert!(text.contains("rank 1 has enqueued 0 operations of 1"), "{text}");
    ranks.streams[0].synchronize().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// Dropping the handles, in whatever state, neither hangs nor leaves a kernel behind.
#[test]
fn dropping_a_rank_ends_what_waits_for_it() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let mut ranks = Ranks::new(2, devices, &Config::new());
    let mut buffer = ranks.streams[0].alloc_zeros::<f32>(1 << 20).unwrap();
    ranks.comms[0].on(&ranks.streams[0]).unwrap().all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let started = Instant::now();
    drop(ranks.comms.pop());
    ranks.streams[0].synchronize().unwrap();
    let text = ranks.comms[0].check().unwrap_err().to_string();
    assert!(text.contains("rank [1] was dropped"), "{text}");
    drop(ranks.comms.pop());
    assert!(started.elapsed() < Duration::from_secs(2));
    // What every rank has enqueued still finishes.
    let ranks = Ranks::new(2, devices, &Config::new());
    let mut buffers: Vec<_> =
        ranks.streams.iter().map(|s| s.clone_htod(&vec![2i32; 1 << 20]).unwrap()).collect();
    for ((c, s), b) in ranks.each().zip(&mut buffers) {
        c.on(s).unwrap().all_reduce_in_place(b, ReduceOp::Prod).unwrap();
    }
    drop(ranks.comms);
    for (s, b) in ranks.streams.iter().zip(&buffers) {
        assert!(s.clone_dtoh(b).unwrap().iter().all(|&x| x == 4));
    }
}

/// Wrong arguments are refused before anything is enqueued.
#[test]
fn wrong_arguments_are_refused() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new());
    let (comm, stream) = (&ranks.comms[0], &ranks.streams[0]);
    let on = comm.on(stream).unwrap();
    let send = stream.alloc_zeros::<f32>(8).unwrap();
    let mut recv = stream.alloc_zeros::<f32>(4).unwrap();
    let text = on.all_reduce(&send, &mut recv, ReduceOp::Sum).unwrap_err().to_string();
    assert!(text.contains("4 elements") && text.contains("8 elements"), "{text}");
    assert!(on.broadcast_in_place(&mut recv, 2).unwrap_err().to_string().contains("root is 2"));
    assert!(on.broadcast(None::<&CudaSlice<f32>>, &mut recv, 0).is_err(), "the root must give its input");
    assert!(on.reduce(&send, None::<&mut CudaSlice<f32>>, ReduceOp::Sum, 0).is_err());
    let text = comm.all_reduce(&[1f32], &mut [0f32], ReduceOp::Sum).unwrap_err().to_string();
    assert!(text.contains("comm.on(&stream)"), "{text}");
    if devices == 2 {
        let mut foreign = ranks.streams[1].alloc_zeros::<f32>(8).unwrap();
        let text = on.all_reduce(&send, &mut foreign, ReduceOp::Sum).unwrap_err().to_string();
        assert!(text.contains("device 1") && text.contains("device 0"), "{text}");
        let wrong = comm.on(&ranks.streams[1]).unwrap();
        assert!(wrong.all_reduce_in_place(&mut foreign, ReduceOp::Sum).is_err());
    }
    // Nothing was enqueued, so nothing is left waiting, and zero elements are no operation.
    let mut none = recv.slice_mut(..0);
    on.all_reduce_in_place(&mut none, ReduceOp::Sum).unwrap();
    on.synchronize().unwrap();
}

/// What a communicator costs.
#[test]
fn memory_is_bounded_and_one_rank_needs_none() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    assert_eq!(Ranks::new(1, 1, &Config::new()).comms[0].memory_used(), 0);
    assert!(Ranks::new(2, devices, &Config::new()).comms[0].memory_used() <= 32 << 20);
    if devices == 2 {
        assert!(Ranks::new(8, devices, &Config::new()).comms[0].memory_used() <= 64 << 20);
    } else {
        // The driver has 8 queues a device, unless it is told otherwise.
        let crowd = Communicator::cuda(&gpu::contexts(8, 1), &Config::new());
        let roomy = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").is_ok();
        assert!(roomy || crowd.unwrap_err().to_string().contains("CUDA_DEVICE_MAX_CONNECTIONS"));
    }
    let refused = Communicator::cuda(&[], &Config::new()).unwrap_err().to_string();
    assert!(refused.contains("contexts"), "{refused}");
}

#[test]
fn no_transport_is_an_error_that_says_why() {
    if !gpu::found(2) {
        return;
    }
    let _turn = gpu::turn();
    let config = Config::new().p2p(false).shm(false);
    let text = Communicator::cuda(&gpu::contexts(2, 2), &config).unwrap_err().to_string();
    assert!(text.contains("NCCL_P2P_DISABLE") && text.contains("NCCL_SHM_DISABLE"), "{text}");
}

/// Every encoding, forced, at sizes around its limits; and the flags' wrap-around.
#[test]
fn every_encoding_is_right_and_wraps_around() {
    use conformance::{Engine, Job, memory::Layout, reference::run_and_check, suite::collectives};
    use ringleader::schedule::Encoding;

    let devices = devices();
    if devices == 0 {
        return;
    }
    for encoding in [Encoding::Bulk, Encoding::Packet16, Encoding::Packet128] {
        // Two operations before the low half of the counter turns over, and long before.
        for done in [0, (1 << 31) - 4, (1 << 32) - 4] {
            for ranks in [2, 3, 4] {
                let config = Config::new().encoding(encoding).operations_done(done);
                let engine = Gpu { devices, p2p: true, threads: true, ranks: ALL };
                let mut fleet = engine.fleet(ranks, 1, &config);
                for collective in collectives(ranks - 1) {
                    let jobs = [1, 14, 15, 16, 31, 1000, 16 << 10, 30_001].map(|count| {
                        let layout = if count % 2 == 0 { Layout::IN_PLACE } else { Layout::OUT_OF_PLACE };
                        Job::<f32>::sampled(collective, ReduceOp::Sum, ranks, count, layout, count as u64)
                    });
                    run_and_check(&mut fleet, jobs.into());
                }
            }
        }
    }
}

/// Packets and bulk operations take turns on one communicator.
#[test]
fn encodings_mix() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new().timeout(Duration::from_secs(10)));
    let counts = [1, 100_000, 3_000_000, 7, 7, 2_000_000, 5000, 1];
    let mut buffers: Vec<_> =
        ranks.streams.iter().map(|s| s.clone_htod(&vec![1i32; 3_000_000]).unwrap()).collect();
    for round in 0..8 {
        for ((c, s), b) in ranks.each().zip(&mut buffers) {
            for count in counts {
                let on = c.on(s).unwrap();
                let mut part = b.slice_mut(..count);
                match round % 4 {
                    0 => on.all_reduce_in_place(&mut part, ReduceOp::Max).unwrap(),
                    1 => on.broadcast_in_place(&mut part, round as usize % 2).unwrap(),
                    2 => on.reduce_in_place(&mut part, ReduceOp::Max, 1).unwrap(),
                    _ if count % 2 == 0 => on.all_gather_in_place(&mut part).unwrap(),
                    _ => on.all_reduce_in_place(&mut part, ReduceOp::Min).unwrap(),
                }
            }
        }
    }
    ranks.synchronize().unwrap();
    for (s, b) in ranks.streams.iter().zip(&buffers) {
        assert!(s.clone_dtoh(b).unwrap().iter().all(|&x| x == 1));
    }
}

/// Memory that `cuMemAlloc` made, beside the stream-ordered pool that cudarc uses by itself.
#[test]
fn plain_allocations_work_too() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new());
    let count = 1 << 20;
    let mut buffers = Vec::new();
    for s in &ranks.streams {
        s.context().bind_to_thread().unwrap();
        // SAFETY: the context is current; the slice takes the allocation over and frees it.
        let mut buffer = unsafe {
            let address = cudarc::driver::result::malloc_sync(count * 4).unwrap();
            s.upgrade_device_ptr::<u32>(address, count)
        };
        s.memcpy_htod(&vec![3u32; count], &mut buffer).unwrap();
        buffers.push(buffer);
    }
    for ((c, s), b) in ranks.each().zip(&mut buffers) {
        c.on(s).unwrap().all_reduce_in_place(b, ReduceOp::Sum).unwrap();
    }
    ranks.synchronize().unwrap();
    for (s, b) in ranks.streams.iter().zip(&buffers) {
        assert!(s.clone_dtoh(b).unwrap().iter().all(|&x| x == 6));
    }
}

/// For `direct` and `one_shot` the bits depend on nothing but the inputs: not on blocks, tiles, encodings or addresses.
#[test]
fn bits_do_not_depend_on_the_cut() {
    use conformance::{Engine, Fleet, Job, memory::Layout};
    use ringleader::Collective;
    use ringleader::schedule::Encoding;

    let devices = devices();
    if devices == 0 {
        return;
    }
    let ranks = 4;
    let mut configs = Vec::new();
    for algorithm in ["direct", "one_shot"] {
        for (lanes, tile) in [(1, 512), (5, 4096), (16, 64 << 10)] {
            let config = Config::new().algorithm(algorithm).encoding(Encoding::Bulk);
            configs.push(config.lanes(lanes).tile_bytes(tile));
        }
    }
    for encoding in [Encoding::Packet16, Encoding::Packet128] {
        configs.push(Config::new().algorithm("one_shot").encoding(encoding));
    }
    for config in configs {
        let mut fleet = Gpu { devices, p2p: true, threads: true, ranks: ALL }.fleet(ranks, 1, &config);
        for collective in [Collective::AllReduce, Collective::ReduceScatter] {
            for (send_offset, recv_offset) in [(0, 0), (1, 3)] {
                let layout = Layout { in_place: false, send_offset, recv_offset };
                for op in [ReduceOp::Sum, ReduceOp::Prod] {
                    let mut jobs = [3, 2500, 12_001]
                        .map(|n| Job::<f32>::sampled(collective, op, ranks, n, layout, n as u64));
                    fleet.run(&mut jobs);
                    jobs.iter().for_each(Job::check_rank_order);
                    let mut jobs = [Job::<half::bf16>::sampled(collective, op, ranks, 4097, layout, 3)];
                    fleet.run(&mut jobs);
                    jobs.iter().for_each(Job::check_rank_order);
                }
            }
        }
    }
}

/// A communicator follows the plan that it explains, for the machine that its GPUs are in.
#[test]
fn plans_are_explained() {
    use ringleader::Collective;

    let devices = devices();
    if devices == 0 {
        return;
    }
    let _turn = gpu::turn();
    let ranks = Ranks::new(2, devices, &Config::new());
    for bytes in [8, 1 << 20, 1 << 30] {
        let plans: Vec<_> =
            ranks.comms.iter().map(|c| c.explain(Collective::AllReduce, bytes).unwrap()).collect();
        assert!(plans[0].verified && plans[0].blocks <= 128 && plans[0].ranks() == 2);
        let text = plans[0].explain();
        assert_eq!(text, plans[1].explain());
        println!("{text}");
    }
    let most = ranks.comms[0].explain(Collective::AllReduce, 1 << 30).unwrap();
    let few = Ranks::new(2, devices, &Config::new().blocks(1, 16));
    let few = few.comms[0].explain(Collective::AllReduce, 1 << 30).unwrap();
    assert!(few.blocks <= 16 && most.blocks > 16, "{} {}", few.blocks, most.blocks);
    let by_hand = Ranks::new(2, devices, &Config::new().channels(2));
    let text = by_hand.comms[0].explain(Collective::AllReduce, 8).unwrap_err().to_string();
    assert!(text.contains("Config::channels"), "{text}");
}
