//! Registered buffers and the copy engines that move what is in them. Without a GPU these tests say so and pass; with
//! `RINGLEADER_REQUIRE_GPU=1` they fail.

#![cfg(feature = "cuda")]

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::gpu;
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys};
use ringleader::comm::Window;
use ringleader::{Collective, Communicator, Config, Element, Error, ReduceOp, Result, Scalar};

/// Ranks spread over two GPUs, or on the one there is; none without.
fn ranks(ranks: usize, config: &Config) -> Option<(Vec<Communicator>, Vec<Arc<CudaStream>>)> {
    if !gpu::found(1) {
        return None;
    }
    let devices = ringleader::gpu_count().expect("they were counted").min(2);
    let contexts = gpu::contexts(ranks, devices);
    let comms = Communicator::cuda(&contexts, config).expect("the GPUs can be used");
    Some((comms, contexts.iter().map(|c| c.new_stream().expect("a stream")).collect()))
}

fn config() -> Config {
    Config::new().copies_from(0).timeout(Duration::from_secs(20))
}

fn call<T: Element + DeviceRepr>(
    comm: &Communicator,
    stream: &Arc<CudaStream>,
    collective: Collective,
    op: ReduceOp,
    send: &CudaSlice<T>,
    (recv, first, count): (&mut CudaSlice<T>, usize, usize),
) -> Result<()> {
    let (on, n) = (comm.on(stream)?, comm.ranks());
    let part = |blocks: usize| first..first + blocks * count;
    match collective {
        Collective::AllReduce => on.all_reduce(&send.slice(..count), &mut recv.slice_mut(part(1)), op),
        Collective::ReduceScatter => {
            on.reduce_scatter(&send.slice(..n * count), &mut recv.slice_mut(part(1)), op)
        }
        Collective::AllGather => on.all_gather(&send.slice(..count), &mut recv.slice_mut(part(n))),
        Collective::Broadcast { root } => {
            on.broadcast(Some(&send.slice(..count)), &mut recv.slice_mut(part(1)), root)
        }
        Collective::Reduce { .. } => unreachable!("copies never reduce to one rank"),
    }
}

/// Copies come to the same bits as kernels do, and touch nothing beside.
#[test]
fn copies_do_what_kernels_do() {
    fn with<T: Element + DeviceRepr + ValidAsZeroBits>(
        n: usize,
        make: impl Fn(usize) -> T,
        ops: &[ReduceOp],
    ) {
        let Some((comms, streams)) = ranks(n, &config()) else { return };
        let most = 3 << 20;
        let data: Vec<Vec<T>> =
            (0..n).map(|r| (0..n * most).map(|i| make(i * 7 + r * 3)).collect()).collect();
        let pairs = streams.iter().zip(&data);
        let send: Vec<CudaSlice<T>> = pairs.map(|(s, d)| s.clone_htod(d).unwrap()).collect();
        let mut results: Vec<Vec<CudaSlice<T>>> = Vec::new();
        let mut windows: Vec<Window> = Vec::new();
        for registered in [false, true] {
            let room = n * most + 64;
            let recv: Vec<CudaSlice<T>> = streams.iter().map(|s| s.alloc_zeros::<T>(room).unwrap()).collect();
            streams.iter().for_each(|s| s.synchronize().unwrap());
            if registered {
                // SAFETY: the buffers live as long as the window.
                windows.push(unsafe { Communicator::register(&comms, &recv) }.unwrap());
            }
            results.push(recv);
        }
        let collectives = [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root: n - 1 },
        ];
        for collective in collectives {
            for &op in if collective.reduces() { ops } else { &ops[..1] } {
                for (first, count) in [(0, 1), (1, 1000), (3, 4097), (8, most)] {
                    for recv in &mut results {
                        for ((comm, stream), (send, recv)) in
                            comms.iter().zip(&streams).zip(send.iter().zip(recv.iter_mut()))
                        {
                            call(comm, stream, collective, op, send, (recv, first, count)).unwrap();
                        }
                    }
                    for (rank, stream) in streams.iter().enumerate() {
                        comms[rank].on(stream).unwrap().synchronize().unwrap();
                        let [kernels, copies] = [0, 1].map(|i| stream.clone_dtoh(&results[i][rank]).unwrap());
                        let same = gpu::bytes(&kernels) == gpu::bytes(&copies);
                        assert!(same, "{collective} {op:?} of {count} from {first} on rank {rank} of {n}");
                    }
                }
            }
        }
    }
    let _turn = gpu::turn();
    let sums = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::PreMulSum(Scalar::Float(0.5))];
    for n in [2, 3] {
        with::<f32>(n, |i| (i % 1013) as f32 * 0.37 - 100.0, &sums);
    }
    with::<half::bf16>(2, |i| half::bf16::from_f32((i % 511) as f32 * 0.11), &sums);
    with::<u8>(2, |i| (i % 251) as u8, &sums[..3]);
    with::<f64>(2, |i| (i % 10007) as f64 / 3.0, &sums);
}

/// A captured graph of copies replays.
#[test]
fn copies_are_captured_and_replayed() {
    let _turn = gpu::turn();
    let Some((comms, streams)) = ranks(2, &config()) else { return };
    let count = 12 << 20;
    let (mut send, mut recv, mut graphs) = (Vec::new(), Vec::new(), Vec::new());
    for (comm, stream) in comms.iter().zip(&streams) {
        comm.preload(ringleader::DataType::I32).unwrap();
        // SAFETY: each buffer is used on one stream only, so nothing needs tracking, which capture does not allow.
        unsafe { stream.context().disable_event_tracking() };
        send.push(stream.alloc_zeros::<i32>(count).unwrap());
        recv.push(stream.alloc_zeros::<i32>(count).unwrap());
        stream.synchronize().unwrap();
    }
    // SAFETY: the buffers live as long as the window.
    let _window = unsafe { Communicator::register(&comms, &recv) }.unwrap();
    for (((comm, stream), send), recv) in comms.iter().zip(&streams).zip(&send).zip(&mut recv) {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        let on = comm.on(stream).unwrap();
        for _ in 0..3 {
            on.all_reduce(send, recv, ReduceOp::Sum).unwrap();
        }
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        graphs.push(stream.end_capture(flags).unwrap().expect("a graph"));
    }
    for round in 0..20 {
        for (rank, (stream, send)) in streams.iter().zip(&mut send).enumerate() {
            stream.memcpy_htod(&vec![round * 10 + rank as i32; count], send).unwrap();
        }
        for graph in &graphs {
            graph.launch().unwrap();
        }
        for ((comm, stream), recv) in comms.iter().zip(&streams).zip(&recv) {
            comm.on(stream).unwrap().synchronize().unwrap();
            let got = stream.clone_dtoh(recv).unwrap();
            assert!(got.iter().all(|&x| x == round * 20 + 1), "round {round}: {}", got[0]);
        }
    }
}

/// Many operations may be enqueued for one rank before the other's: nothing waits on the host.
#[test]
fn ranks_may_run_ahead() {
    let _turn = gpu::turn();
    let Some((comms, streams)) = ranks(2, &config()) else { return };
    let count = 1 << 20;
    let send: Vec<_> = streams.iter().map(|s| s.clone_htod(&vec![1u32; count]).unwrap()).collect();
    let mut recv: Vec<_> = streams.iter().map(|s| s.alloc_zeros::<u32>(count).unwrap()).collect();
    streams.iter().for_each(|s| s.synchronize().unwrap());
    // SAFETY: the buffers live as long as the window.
    let window = unsafe { Communicator::register(&comms, &recv) }.unwrap();
    for (((comm, stream), send), recv) in comms.iter().zip(&streams).zip(&send).zip(&mut recv) {
        for _ in 0..20 {
            comm.on(stream).unwrap().all_reduce(send, recv, ReduceOp::Sum).unwrap();
            comm.on(stream).unwrap().all_reduce_in_place(recv, ReduceOp::Max).unwrap();
        }
    }
    for (comm, stream) in comms.iter().zip(&streams) {
        comm.on(stream).unwrap().synchronize().unwrap();
    }
    drop(window);
    for (stream, recv) in streams.iter().zip(&recv) {
        assert!(stream.clone_dtoh(recv).unwrap().iter().all(|&x| x == 2));
    }
}

/// Ranks that mean different windows, or none, are told so; streams that wait for a rank that left are let go.
#[test]
fn failures_are_named_and_end() {
    let _turn = gpu::turn();
    let Some((comms, streams)) = ranks(2, &config()) else { return };
    let count = 1 << 20;
    let buffer = |s: &Arc<CudaStream>| s.alloc_zeros::<u32>(2 * count).unwrap();
    let mut recv: Vec<_> = streams.iter().map(buffer).collect();
    let send: Vec<_> = streams.iter().map(buffer).collect();
    streams.iter().for_each(|s| s.synchronize().unwrap());
    // SAFETY: the buffers live as long as the window.
    let _window = unsafe { Communicator::register(&comms, &recv) }.unwrap();
    for (rank, first) in [(0, 0), (1, 512)] {
        let part = (&mut recv[rank], first, count);
        call(&comms[rank], &streams[rank], Collective::AllReduce, ReduceOp::Sum, &send[rank], part).unwrap();
    }
    let started = Instant::now();
    let results = comms.iter().zip(&streams).map(|(c, s)| c.on(s)?.synchronize());
    let error = results.collect::<Result<Vec<_>>>().unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains("register"), "{error}");
    streams.iter().for_each(|s| s.synchronize().unwrap());

    let Some((mut comms, streams)) = ranks(2, &config()) else { return };
    // SAFETY: the buffers live as long as the window.
    let _window = unsafe { Communicator::register(&comms, &recv) }.unwrap();
    let part = (&mut recv[0], 0, count);
    call(&comms[0], &streams[0], Collective::AllReduce, ReduceOp::Sum, &send[0], part).unwrap();
    drop(comms.pop());
    streams[0].synchronize().unwrap();
    assert!(comms[0].check().unwrap_err().to_string().contains("rank [1] was dropped"));
    assert!(started.elapsed() < Duration::from_secs(8));
}

/// What cannot be a window is refused.
#[test]
fn wrong_windows_are_refused() {
    let _turn = gpu::turn();
    let Some((comms, streams)) = ranks(2, &config()) else { return };
    let buffers: Vec<_> = [8, 9].iter().map(|&n| streams[0].alloc_zeros::<u8>(n).unwrap()).collect();
    // SAFETY: nothing is registered.
    unsafe {
        let text = Communicator::register(&comms, &buffers[..1]).unwrap_err().to_string();
        assert!(text.contains("2 ranks"), "{text}");
        assert!(Communicator::register(&comms[..1], &buffers[..1]).is_err());
        assert!(Communicator::register(&comms, &buffers).is_err());
        let none: [CudaSlice<u8>; 0] = [];
        assert!(Communicator::register(&[], &none).is_err());
        let cpu = Communicator::cpu(2, &Config::new()).unwrap();
        let text = Communicator::register(&cpu, &buffers).unwrap_err().to_string();
        assert!(text.contains("CPU ranks"), "{text}");
    }
}
