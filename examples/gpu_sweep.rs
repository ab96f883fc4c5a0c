//! Sweeps algorithm, lanes and tile size of the collectives on two GPUs, beside what the copy engines can do.
//!
//! `gpu_sweep [quick]`; prints one line for each combination: time and algorithm bandwidth.

#[cfg(feature = "cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    sweep::run()
}

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("this example needs the feature `cuda`");
}

#[cfg(feature = "cuda")]
mod sweep {
    use std::sync::Arc;
    use std::time::Instant;

    use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
    use ringleader::{Communicator, Config, ReduceOp};

    type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

    struct Gpus {
        streams: Vec<Arc<CudaStream>>,
        send: Vec<CudaSlice<f32>>,
        recv: Vec<CudaSlice<f32>>,
        addresses: Vec<(u64, u64)>,
    }

    const MOST: usize = 1 << 30;

    pub(crate) fn run() -> Outcome {
        let quick = std::env::args().any(|a| a == "quick");
        let second = (CudaContext::device_count()? > 1) as usize;
        let contexts = [CudaContext::new(0)?, CudaContext::new(second)?];
        let mut gpus =
            Gpus { streams: Vec::new(), send: Vec::new(), recv: Vec::new(), addresses: Vec::new() };
        for c in &contexts {
            let stream = c.new_stream()?;
            gpus.send.push(stream.alloc_zeros::<f32>(MOST / 4)?);
            gpus.recv.push(stream.alloc_zeros::<f32>(MOST / 4)?);
            // SAFETY: each buffer is used on one stream, and copies between devices are synchronised by hand.
            unsafe { c.disable_event_tracking() };
            let index = gpus.streams.len();
            gpus.addresses
                .push((gpus.send[index].device_ptr(&stream).0, gpus.recv[index].device_ptr(&stream).0));
            gpus.streams.push(stream);
        }
        let started = Instant::now();
        let first = Communicator::cuda(&contexts, &Config::new())?;
        println!(
            "create {:.1} ms, {} bytes a rank",
            started.elapsed().as_secs_f64() * 1e3,
            first[0].memory_used()
        );
        let started = Instant::now();
        first[0].preload(ringleader::DataType::F32)?;
        println!("load f32 kernels {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
        println!("copy engines, both directions: {:.1} GB/s", copy_limit(&gpus)?);
        let sizes: &[usize] = if quick { &[MOST] } else { &[1 << 20, 4 << 20, 16 << 20, 64 << 20, MOST] };
        for name in [
            "all_reduce/direct",
            "all_reduce/ring",
            "reduce_scatter/direct",
            "all_gather/direct",
            "broadcast/direct",
        ] {
            let (collective, algorithm) = name.split_once('/').expect("two names");
            for &bytes in sizes {
                let mut best: Vec<(f64, u32, usize)> = Vec::new();
                for lanes in [4, 8, 16, 32, 64, 128] {
                    for tile in [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10] {
                        let per_lane = bytes / 2 / lanes as usize;
                        if per_lane * 2 < tile && tile > 16 << 10 {
                            continue;
                        }
                        let config = Config::new().algorithm(algorithm).lanes(lanes).tile_bytes(tile);
                        let comms = Communicator::cuda(&contexts, &config)?;
                        best.push((time(&mut gpus, &comms, collective, bytes)?, lanes, tile));
                    }
                }
                best.sort_by(|a, b| a.0.total_cmp(&b.0));
                for (seconds, lanes, tile) in best.iter().take(4) {
                    println!(
                        "{name:24} {bytes:11} {:9.2} us {:6.1} GB/s lanes {lanes:3} tile {tile}",
                        seconds * 1e6,
                        bytes as f64 / seconds / 1e9
                    );
                }
                for few in [8, 16] {
                    if let Some((seconds, lanes, tile)) = best.iter().find(|b| b.1 == few) {
                        println!(
                            "{name:24} {bytes:11} {:9.2} us {:6.1} GB/s lanes {lanes:3} tile {tile} (few)",
                            seconds * 1e6,
                            bytes as f64 / seconds / 1e9
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn synchronize(gpus: &Gpus) -> Outcome {
        for s in &gpus.streams {
            s.synchronize()?;
        }
        Ok(())
    }

    fn copy_limit(gpus: &Gpus) -> Outcome<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            synchronize(gpus)?;
            let started = Instant::now();
            for _ in 0..5 {
                for d in 0..2 {
                    gpus.streams[d].context().bind_to_thread()?;
                    let (from, to) = (gpus.addresses[d].0, gpus.addresses[1 - d].1);
                    // SAFETY: both buffers hold MOST bytes and live until the streams are synchronised.
                    unsafe {
                        cudarc::driver::result::memcpy_dtod_async(
                            to,
                            from,
                            MOST,
                            gpus.streams[d].cu_stream(),
                        )?
                    };
                }
            }
            synchronize(gpus)?;
            best = best.min(started.elapsed().as_secs_f64() / 5.0);
        }
        Ok(MOST as f64 / best / 1e9)
    }

    fn time(gpus: &mut Gpus, comms: &[Communicator], collective: &str, bytes: usize) -> Outcome<f64> {
        let len = bytes / 4;
        let rounds = if bytes >= 256 << 20 { 5 } else { 40 };
        let mut times = Vec::new();
        for repeat in 0..4 {
            synchronize(gpus)?;
            let started = Instant::now();
            for _ in 0..rounds {
                for (rank, comm) in comms.iter().enumerate() {
                    let on = comm.on(&gpus.streams[rank])?;
                    let send = gpus.send[rank].slice(..len);
                    let half = gpus.send[rank].slice(..len / 2);
                    let mut recv = gpus.recv[rank].slice_mut(..len);
                    match collective {
                        "all_reduce" => on.all_reduce(&send, &mut recv, ReduceOp::Sum)?,
                        "reduce_scatter" => {
                            on.reduce_scatter(&send, &mut recv.slice_mut(..len / 2), ReduceOp::Sum)?
                        }
                        "all_gather" => on.all_gather(&half, &mut recv)?,
                        _ => on.broadcast(Some(&send), &mut recv, 0)?,
                    }
                }
            }
            synchronize(gpus)?;
            if repeat > 0 {
                times.push(started.elapsed().as_secs_f64() / rounds as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}
