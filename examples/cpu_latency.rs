//! Times all_reduce of f32 on CPU ranks, one thread each: `cpu_latency [RANKS [LARGEST_BYTES [ALGORITHM]]]`.
//!
//! Prints bytes and median microseconds, measured like `scripts/mpi_allreduce.c` does for Open MPI;
//! `scripts/compare-mpi.sh` prints both side by side.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use ringleader::{Communicator, Config, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let ranks: usize = arguments.next().map_or(Ok(2), |a| a.parse())?;
    let largest: usize = arguments.next().map_or(Ok(64 << 20), |a| a.parse())?;
    let config = arguments.next().into_iter().fold(Config::new(), |c, a| c.algorithm(a));
    let comms = Communicator::cpu(ranks, &config)?;
    let barrier = Barrier::new(ranks);
    let barrier = &barrier;
    thread::scope(|scope| {
        let threads: Vec<_> =
            comms.iter().map(|comm| scope.spawn(move || measure(comm, largest, barrier))).collect();
        for thread in threads {
            thread.join().expect("a rank panicked")?;
        }
        Ok::<(), ringleader::Error>(())
    })?;
    Ok(())
}

/// Measures all sizes as one rank; rank 0 prints.
fn measure(comm: &Communicator, largest: usize, barrier: &Barrier) -> ringleader::Result<()> {
    let send: Vec<f32> = (0..largest / 4).map(|i| (i % 97) as f32 + comm.rank() as f32).collect();
    let mut recv = vec![0.5f32; largest / 4];
    let mut bytes = 8;
    while bytes <= largest {
        let batch = if bytes <= 4096 { 50 } else { 1 };
        let samples = match bytes {
            0..=0x1_0000 => 200,
            0x1_0001..=0x10_0000 => 100,
            0x10_0001..=0x100_0000 => 15,
            _ => 7,
        };
        let mut times = Vec::new();
        for sample in -2..samples {
            barrier.wait();
            // The barrier wakes its threads one after the other; this operation brings them close together.
            comm.all_reduce_in_place(&mut [0u8; 1], ReduceOp::Sum)?;
            let start = Instant::now();
            for _ in 0..batch {
                comm.all_reduce(&send[..bytes / 4], &mut recv[..bytes / 4], ReduceOp::Sum)?;
            }
            if sample >= 0 {
                times.push(start.elapsed().as_secs_f64() / f64::from(batch));
            }
        }
        times.sort_by(f64::total_cmp);
        if comm.rank() == 0 {
            println!("{bytes:12} {:12.2}", times[times.len() / 2] * 1e6);
        }
        bytes *= if bytes < 1 << 18 { 8 } else { 4 };
    }
    Ok(())
}
