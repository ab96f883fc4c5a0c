//! How long the host takes to enqueue a call: what a program that makes many of them pays for each.

use std::sync::Barrier;
use std::time::Instant;

use super::bench::Mode;
use super::case::Case;
use super::data::Sample;
use super::gpu::{Contender, GpuRanks, Library, Places};
use super::median;
use super::nccl::Nccl;
use crate::error::Result;

/// Most calls of a rank that are enqueued before the GPUs are waited for: the driver's queues hold about a thousand, and
/// where they are full the host waits for the GPU.
const AHEAD: usize = 100;

impl GpuRanks {
    /// The median time to enqueue one rank's call, in microseconds, over all ranks and `rounds` batches of calls, which are
    /// not those whose duration is measured. `None` where graphs are launched instead.
    ///
    /// One thread that drives several of NCCL's ranks makes their calls in a group: of a group's time each rank has an equal
    /// part.
    pub(super) fn enqueue_us<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        calls: usize,
        rounds: usize,
    ) -> Result<Option<f64>> {
        let calls = calls.clamp(1, AHEAD);
        let mut times = Vec::new();
        for _ in 0..rounds {
            self.wait(contender.library)?;
            match self.mode {
                Mode::Graph => return Ok(None),
                Mode::OneThread => self.enqueue_from_one::<T>(contender, case, places, calls, &mut times)?,
                Mode::ThreadPerGpu => {
                    times.extend(self.enqueue_from_each::<T>(contender, case, places, calls)?)
                }
            }
            self.wait(contender.library)?;
        }
        Ok(Some(median(times) * 1e6))
    }

    /// Enqueues calls of all ranks from this thread, and notes what each took.
    fn enqueue_from_one<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        calls: usize,
        times: &mut Vec<f64>,
    ) -> Result<()> {
        let nccl = self.nccl.as_ref().filter(|_| contender.library == Library::Nccl);
        for call in 0..calls {
            let group = Instant::now();
            nccl.map_or(Ok(()), Nccl::group_start)?;
            for (rank, gpu) in self.gpus.iter().enumerate() {
                gpu.bind()?;
                let started = Instant::now();
                self.enqueue::<T>(contender, case, places, rank, call)?;
                if nccl.is_none() {
                    times.push(started.elapsed().as_secs_f64());
                }
            }
            if let Some(nccl) = nccl {
                nccl.group_end()?;
                times.push(group.elapsed().as_secs_f64() / self.gpus.len() as f64);
            }
        }
        Ok(())
    }

    /// The same from a thread for each rank.
    fn enqueue_from_each<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        calls: usize,
    ) -> Result<Vec<f64>> {
        let barrier = Barrier::new(self.gpus.len());
        let one = |rank: usize| -> Result<Vec<f64>> {
            let bound = self.gpus[rank].bind();
            barrier.wait();
            bound?;
            let timed = |call| {
                let started = Instant::now();
                self.enqueue::<T>(contender, case, places, rank, call)?;
                Ok(started.elapsed().as_secs_f64())
            };
            (0..calls).map(timed).collect()
        };
        let times: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = (0..self.gpus.len()).map(|rank| scope.spawn(move || one(rank))).collect();
            threads.into_iter().map(|t| t.join().expect("measuring does not panic")).collect()
        });
        Ok(times.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }
}
