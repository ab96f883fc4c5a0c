//! Measuring ranks on GPUs, beside NCCL where asked for: the same buffers, method and number of calls for both, in turn.

use std::sync::Barrier;
use std::time::Instant;

use cudarc::driver::CudaGraph;

use super::bench::{Mode, Nccl as WithNccl, Setup};
use super::case::Case;
use super::data::{Data, PERIOD, Sample, with_type};
use super::device::{self, Gpu, Memory};
use super::nccl::{Nccl, Operators};
use super::table::{Measured, Row};
use super::{Timing, median};
use crate::comm::{Communicator, Window};
use crate::error::{Error, Result};
use crate::types::Collective;

/// Buffers are at least so long, and messages shorter than them move on through them from call to call, so that what is
/// larger than half of it is not read from a second-level cache (50 MB on an H100, 60 MB on an H200).
const ROTATE_BYTES: usize = 128 << 20;

/// Messages begin at multiples of this.
const ALIGN: usize = 512;

/// How many graphs are launched one after the other for one sample.
const LAUNCHES: usize = 4;

/// How many GPUs there are for us.
pub(super) fn count() -> Result<usize> {
    crate::comm::gpu_count()
}

/// The input and output memory of one rank.
#[derive(Debug)]
struct Buffers {
    send: Memory,
    recv: Memory,
}

/// GPU ranks with their buffers.
#[derive(Debug)]
pub(super) struct GpuRanks {
    // Fields are dropped in this order: communicators first, for they wait for what is in flight.
    pub(super) comms: Vec<Communicator>,
    /// Our outputs, if they are registered.
    _window: Option<Window>,
    pub(super) nccl: Option<Nccl>,
    /// NCCL's own, where they are registered windows; freed once NCCL has let go of them.
    windows: Option<Vec<Buffers>>,
    buffers: Vec<Buffers>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) mode: Mode,
    limit: Option<f64>,
}

/// Which library makes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Ours,
    Nccl,
}

/// Where in the buffers the messages of a batch are: call `i` uses place `i % places`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    stride: usize,
    places: usize,
}

impl Places {
    pub(super) fn new(message_bytes: usize, buffer_bytes: usize, calls: usize) -> Self {
        let stride = message_bytes.next_multiple_of(ALIGN).max(ALIGN);
        Places { stride, places: (buffer_bytes / stride).clamp(1, calls.max(1)) }
    }

    fn byte(&self, call: usize) -> usize {
        call % self.places * self.stride
    }
}

/// A library, with what it needs for the calls of a case.
pub(super) struct Contender<'a> {
    pub(super) library: Library,
    pub(super) operators: Option<Operators<'a>>,
}

/// A batch of captured calls: one graph for each rank, none in stream mode.
type Graphs = Vec<CudaGraph>;

/// Calls in one batch, if not said.
fn batch(bytes: usize) -> usize {
    match bytes >> 10 {
        0..=256 => 100,
        257..=4096 => 50,
        4097..=65_536 => 20,
        _ => 5,
    }
}

impl GpuRanks {
    pub(super) fn new(setup: &Setup, devices: usize) -> Result<Self> {
        // On a single GPU two ranks show more than one.
        let ranks = setup.ranks.unwrap_or(devices.max(2));
        let gpus = (0..ranks).map(|r| Gpu::new(r, r % devices)).collect::<Result<Vec<_>>>()?;
        let contexts: Vec<_> = gpus.iter().map(|g| g.context.clone()).collect();
        let comms = Communicator::cuda(&contexts, &setup.config)?;
        let bytes = setup.most_bytes.max(ROTATE_BYTES).next_multiple_of(ALIGN);
        let buffers = gpus
            .iter()
            .map(|gpu| Ok(Buffers { send: Memory::new(gpu, bytes)?, recv: Memory::new(gpu, bytes)? }))
            .collect::<Result<Vec<_>>>()?;
        let outputs: Vec<&Memory> = buffers.iter().map(|b| &b.recv).collect();
        let window = setup.register.then(|| device::register(&comms, &outputs));
        let window = window.transpose()?;
        let (mut nccl, mut windows) = (None, None);
        if setup.nccl != WithNccl::Off {
            if ranks > devices {
                let reason = format!("it allows one rank on a GPU; {ranks} ranks are on {devices}");
                return Err(Error::Unavailable { what: "a comparison with NCCL".into(), reason });
            }
            let mut opened = Nccl::new(&gpus)?;
            if setup.nccl == WithNccl::Window {
                let (send, recv) = (opened.windows(&gpus, bytes)?, opened.windows(&gpus, bytes)?);
                let pair = |(send, recv)| Buffers { send, recv };
                windows = Some(send.into_iter().zip(recv).map(pair).collect());
            }
            nccl = Some(opened);
        }
        let mut made =
            GpuRanks { comms, _window: window, nccl, windows, buffers, gpus, mode: setup.mode, limit: None };
        made.limit = made.copy_limit(devices)?;
        Ok(made)
    }

    pub(super) fn comms(&self) -> &[Communicator] {
        &self.comms
    }

    pub(super) fn limit(&self) -> Option<f64> {
        self.limit
    }

    pub(super) fn nccl_version(&self) -> Option<String> {
        self.nccl.as_ref().map(Nccl::version)
    }

    /// GPUs, and the software that drives them.
    pub(super) fn machine(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .gpus
            .iter()
            .map(|gpu| {
                let what = gpu.describe().unwrap_or_else(|why| why.to_string());
                format!("rank {} on GPU {} {what}", gpu.rank, gpu.context.ordinal())
            })
            .collect();
        let nvml = nvml_wrapper::Nvml::init().and_then(|nvml| nvml.sys_driver_version());
        let driver = nvml.unwrap_or_else(|_| "unknown".to_owned());
        lines.push(format!("driver {driver}, CUDA {}", device::driver_version()));
        lines
    }

    /// GB/s from each GPU to the next, all at once; none without two GPUs that reach each other.
    fn copy_limit(&self, devices: usize) -> Result<Option<f64>> {
        let used = devices.min(self.gpus.len());
        // A communicator has enabled peer access, unless it was told not to.
        let p2p = self.comms.iter().flat_map(Communicator::channels).any(|line| line.contains("P2P"));
        if used < 2 || !p2p {
            return Ok(None);
        }
        let pair = |r: usize| (&self.buffers[r].send, &self.buffers[(r + 1) % used].recv);
        let pairs: Vec<_> = (0..used).map(pair).collect();
        Ok(Some(device::copy_limit(&pairs)? / 1e9))
    }

    /// Times a call, ours and NCCL's in turn, and checks the results.
    pub(super) fn measure(&self, case: &Case, timing: &Timing) -> Result<Row> {
        with_type!(case.dtype, T => self.measure_type::<T>(case, timing))
    }

    fn measure_type<T: Sample>(&self, case: &Case, timing: &Timing) -> Result<Row> {
        let ranks = self.gpus.len();
        let bytes = case.message_bytes(ranks);
        let calls = timing.calls.unwrap_or_else(|| batch(bytes)).max(1);
        let places = Places::new(bytes, self.buffer_bytes(), calls);
        let data = Data::<T>::new(case, ranks, timing.seed);
        self.comms[0].preload(case.dtype)?;
        let mut contenders = vec![Contender { library: Library::Ours, operators: None }];
        if let Some(nccl) = &self.nccl {
            let operators = Some(nccl.operators(case.dtype, case.op, T::factor(case.op))?);
            contenders.push(Contender { library: Library::Nccl, operators });
        }
        let mut graphs: Vec<Graphs> = Vec::new();
        for contender in &contenders {
            self.fill(contender.library, case, &data, &places)?;
            // Before a capture, too: what a library sets up at its first call cannot be captured.
            self.issue::<T>(contender, case, &places, timing.warmup.max(1))?;
            self.wait(contender.library)?;
            graphs.push(match self.mode {
                Mode::Graph => self.capture::<T>(contender, case, &places, calls)?,
                Mode::OneThread | Mode::ThreadPerGpu => Vec::new(),
            });
        }
        // The first round is not counted.
        let mut times = vec![Vec::new(); contenders.len()];
        for round in 0..timing.samples.max(1) + 1 {
            for ((contender, graphs), times) in contenders.iter().zip(&graphs).zip(&mut times) {
                let seconds = self.sample::<T>(contender, graphs, case, &places, calls)?;
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        let mut measured = Vec::new();
        for ((contender, graphs), times) in contenders.iter().zip(&graphs).zip(times) {
            let wrong =
                if timing.check { Some(self.check(contender, graphs, case, &data, &places)?) } else { None };
            let host_us = self.enqueue_us::<T>(contender, case, &places, calls, timing.samples.max(1))?;
            measured.push(Measured { seconds: median(times), wrong, host_us });
        }
        Ok(Row { case: *case, ours: measured[0], nccl: measured.get(1).copied() })
    }

    fn buffers(&self, library: Library) -> &[Buffers] {
        match (library, &self.windows) {
            (Library::Nccl, Some(windows)) => windows,
            _ => &self.buffers,
        }
    }

    /// How long the buffers are.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffers[0].send.bytes()
    }

    /// The devices in use, each with the first rank on it.
    pub(super) fn devices(&self) -> Vec<(usize, usize)> {
        let mut devices: Vec<(usize, usize)> = Vec::new();
        for gpu in &self.gpus {
            if devices.iter().all(|&(_, d)| d != gpu.context.ordinal()) {
                devices.push((gpu.rank, gpu.context.ordinal()));
            }
        }
        devices
    }

    /// Every rank's contributions, at every place.
    pub(super) fn fill<T: Sample>(
        &self,
        library: Library,
        case: &Case,
        data: &Data<T>,
        places: &Places,
    ) -> Result<()> {
        let (ranks, size) = (self.gpus.len(), size_of::<T>());
        for (rank, buffers) in self.buffers(library).iter().enumerate() {
            let input = case.input(rank, ranks);
            if input.is_empty() {
                continue;
            }
            // In place, the buffer is the message, and the input a part of it.
            let (memory, skip) =
                if case.in_place { (&buffers.recv, input.start * size) } else { (&buffers.send, 0) };
            let mut period = vec![data.filler(); input.len().min(PERIOD)];
            data.fill(rank, input.start, &mut period);
            memory.upload(skip, &period)?;
            memory.repeat(skip, period.len() * size, input.len() * size)?;
            for place in 1..places.places {
                memory.copy_within(skip, places.byte(place) + skip, input.len() * size)?;
            }
            self.gpus[rank].wait()?;
        }
        Ok(())
    }

    /// Enqueues one rank's call number `call`.
    pub(super) fn enqueue<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        rank: usize,
        call: usize,
    ) -> Result<()> {
        let (ranks, buffers) = (self.gpus.len(), &self.buffers(contender.library)[rank]);
        let (stream, byte) = (&self.gpus[rank].stream, places.byte(call));
        let (input, output) = (case.input(rank, ranks), case.output(rank, ranks));
        if let (Library::Nccl, Some(nccl), Some(operators)) =
            (contender.library, &self.nccl, &contender.operators)
        {
            let size = size_of::<T>();
            let Buffers { send, recv } = buffers;
            let (send, recv) = match case.in_place {
                true => ((recv, byte + input.start * size), (recv, byte + output.start * size)),
                false => ((send, byte), (recv, byte)),
            };
            return nccl.enqueue(case, rank, operators, send, recv);
        }
        let on = self.comms[rank].on(stream)?;
        if case.in_place {
            let mut buffer = buffers.recv.view::<T>(byte, case.elements(ranks));
            return match case.collective {
                Collective::AllReduce => on.all_reduce_in_place(&mut buffer, case.op),
                Collective::ReduceScatter => on.reduce_scatter_in_place(&mut buffer, case.op),
                Collective::AllGather => on.all_gather_in_place(&mut buffer),
                Collective::Broadcast { root } => on.broadcast_in_place(&mut buffer, root),
                Collective::Reduce { root } => on.reduce_in_place(&mut buffer, case.op, root),
            };
        }
        let send = buffers.send.view::<T>(byte, input.len());
        let mut recv = buffers.recv.view::<T>(byte, output.len());
        match case.collective {
            Collective::AllReduce => on.all_reduce(&send, &mut recv, case.op),
            Collective::ReduceScatter => on.reduce_scatter(&send, &mut recv, case.op),
            Collective::AllGather => on.all_gather(&send, &mut recv),
            Collective::Broadcast { root } => on.broadcast((rank == root).then_some(&send), &mut recv, root),
            Collective::Reduce { root } => {
                on.reduce(&send, (rank == root).then_some(&mut recv), case.op, root)
            }
        }
    }

    /// Enqueues calls of all ranks from this thread.
    pub(super) fn issue<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        calls: usize,
    ) -> Result<()> {
        let nccl = self.nccl.as_ref().filter(|_| contender.library == Library::Nccl);
        for call in 0..calls {
            nccl.map_or(Ok(()), Nccl::group_start)?;
            for (rank, gpu) in self.gpus.iter().enumerate() {
                gpu.bind()?;
                self.enqueue::<T>(contender, case, places, rank, call)?;
            }
            nccl.map_or(Ok(()), Nccl::group_end)?;
        }
        Ok(())
    }

    /// Waits for all ranks.
    pub(super) fn wait(&self, library: Library) -> Result<()> {
        let waited = self.gpus.iter().try_for_each(Gpu::wait);
        if library == Library::Ours {
            if waited.is_err() {
                // Lets the kernels leave, so that memory can be freed.
                self.comms[0].abort();
            }
            self.comms.iter().try_for_each(Communicator::check)?;
        }
        waited
    }

    fn capture<T: Sample>(
        &self,
        contender: &Contender<'_>,
        case: &Case,
        places: &Places,
        calls: usize,
    ) -> Result<Graphs> {
        self.gpus.iter().try_for_each(Gpu::begin_capture)?;
        let issued = self.issue::<T>(contender, case, places, calls);
        // Captures are ended in any case: a stream in capture cannot be used.
        let graphs: Vec<Result<CudaGraph>> = self.gpus.iter().map(Gpu::end_capture).collect();
        issued?;
        graphs.into_iter().collect()
    }

    fn launch(&self, graphs: &[CudaGraph]) -> Result<()> {
        for (gpu, graph) in self.gpus.iter().zip(graphs) {
            graph.launch().map_err(gpu.error("cuGraphLaunch"))?;
        }
        Ok(())
    }

    /// The time of one call: a batch's, divided by the calls in it.
    fn sample<T: Sample>(
        &self,
        contender: &Contender<'_>,
        graphs: &[CudaGraph],
        case: &Case,
        places: &Places,
        calls: usize,
    ) -> Result<f64> {
        self.wait(contender.library)?;
        match self.mode {
            Mode::OneThread => {
                let started = Instant::now();
                self.issue::<T>(contender, case, places, calls)?;
                self.wait(contender.library)?;
                Ok(started.elapsed().as_secs_f64() / calls as f64)
            }
            Mode::ThreadPerGpu => {
                let barrier = Barrier::new(self.gpus.len());
                let one = |rank: usize| -> Result<(Instant, Instant)> {
                    let bound = self.gpus[rank].bind();
                    barrier.wait();
                    bound?;
                    let started = Instant::now();
                    for call in 0..calls {
                        self.enqueue::<T>(contender, case, places, rank, call)?;
                    }
                    self.gpus[rank].wait()?;
                    Ok((started, Instant::now()))
                };
                let spans: Vec<_> = std::thread::scope(|scope| {
                    let one = &one;
                    let threads: Vec<_> =
                        (0..self.gpus.len()).map(|rank| scope.spawn(move || one(rank))).collect();
                    threads.into_iter().map(|t| t.join().expect("measuring does not panic")).collect()
                });
                self.wait(contender.library)?;
                let spans = spans.into_iter().collect::<Result<Vec<_>>>()?;
                let first = spans.iter().map(|s| s.0).min().expect("at least one rank");
                let last = spans.iter().map(|s| s.1).max().expect("at least one rank");
                Ok((last - first).as_secs_f64() / calls as f64)
            }
            Mode::Graph => {
                // A first one, not timed, brings the ranks together and hides how long the host takes to launch.
                self.launch(graphs)?;
                let starts = self.gpus.iter().map(Gpu::mark).collect::<Result<Vec<_>>>()?;
                for _ in 0..LAUNCHES {
                    self.launch(graphs)?;
                }
                let ends = self.gpus.iter().map(Gpu::mark).collect::<Result<Vec<_>>>()?;
                self.wait(contender.library)?;
                let mut longest = 0.0f64;
                for (gpu, (start, end)) in self.gpus.iter().zip(starts.iter().zip(&ends)) {
                    longest = longest.max(gpu.between(start, end)?);
                }
                Ok(longest / (LAUNCHES * calls) as f64)
            }
        }
    }

    /// Runs a call on fresh data and counts wrong elements in the results of all ranks.
    ///
    /// Out of place a whole replay runs, with everything it overlaps; in place the next call would use the result.
    fn check<T: Sample>(
        &self,
        contender: &Contender<'_>,
        graphs: &[CudaGraph],
        case: &Case,
        data: &Data<T>,
        places: &Places,
    ) -> Result<u64> {
        let (ranks, size) = (self.gpus.len(), size_of::<T>());
        let buffers = self.buffers(contender.library);
        // All ones are NaN, or at least no sum of what we send: what is not written counts as wrong.
        for buffers in buffers {
            buffers.recv.set(0, places.stride * places.places, 0xff)?;
        }
        self.wait(contender.library)?;
        self.fill(contender.library, case, data, places)?;
        if case.in_place || graphs.is_empty() {
            self.issue::<T>(contender, case, places, 1)?;
        } else {
            self.launch(graphs)?;
        }
        self.wait(contender.library)?;
        let count = |rank: usize| -> Result<u64> {
            let output = case.output(rank, ranks);
            let skip = if case.in_place { output.start * size } else { 0 };
            let mut part = vec![data.filler(); output.len().min(16 << 20)];
            let mut wrong = 0;
            for done in (0..output.len()).step_by(part.len().max(1)) {
                let n = part.len().min(output.len() - done);
                buffers[rank].recv.download(skip + done * size, &mut part[..n])?;
                wrong += data.wrong(output.start + done, &part[..n]);
            }
            Ok(wrong)
        };
        std::thread::scope(|scope| {
            let count = &count;
            let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || count(rank))).collect();
            threads.into_iter().map(|t| t.join().expect("checking does not panic")).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_move_through_the_buffer_and_stay_inside() {
        for (message, calls) in [(8, 100), (1 << 20, 50), (60 << 20, 20), (128 << 20, 5), (1 << 30, 5)] {
            let buffer = ROTATE_BYTES.max(message);
            let places = Places::new(message, buffer, calls);
            let last = (0..calls).map(|c| places.byte(c)).max().unwrap();
            assert!(last + message <= buffer, "{message}");
            assert!(places.places <= calls && places.byte(places.places) == 0);
        }
        assert_eq!(Places::new(60 << 20, ROTATE_BYTES, 20).places, 2);
    }
}
