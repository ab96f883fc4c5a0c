//! Ranks on GPUs: what their handles share, and how an operation is enqueued.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::choose_gpu::{Chooser, Way};
use super::copiers::{self, Copiers, Place};
use crate::engine::Call;
use crate::engine::cuda::copies::{self, Work};
use crate::engine::cuda::driver::{self, DeviceMemory, HostMemory, KernelLaunch};
use crate::engine::cuda::kernels::{self, Kernels};
use crate::engine::cuda::{Buffers, Cut, Prepared, abi, exchange};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::schedule::Encoding;
use crate::transport::gpu::{Endpoint, Transport, Wiring};
use crate::types::{Collective, DataType, ReduceOp};

/// What all handles of one communicator share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) endpoints: Vec<Endpoint>,
    /// None for one rank: it needs no links.
    pub(super) wiring: Option<Wiring>,
    /// One `rl_state` a rank; none for one rank.
    pub(super) states: Vec<DeviceMemory>,
    /// The abort word, then one `rl_report` a rank, each on a line of its own. None for one rank.
    pub(super) control: Option<Arc<HostMemory>>,
    /// From the first registration of buffers on.
    pub(super) copiers: OnceLock<Copiers>,
    pub(super) chooser: Chooser,
    /// Whether kernels may be launched before their predecessor has finished: from compute capability 9.0, and with one
    /// rank on a device, so that waiting blocks never keep another rank's from running.
    pub(super) early: bool,
    /// Operations each rank has enqueued, outside captures.
    pub(super) entered: Vec<AtomicU64>,
    /// Handles that were dropped.
    pub(super) dropped: Vec<AtomicBool>,
    /// Where each rank enqueued last.
    pub(super) streams: Mutex<Vec<Option<Arc<CudaStream>>>>,
}

/// One rank's handle.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) shared: Arc<Shared>,
    pub(super) rank: usize,
    pub(super) kernels: Mutex<[Option<Arc<Kernels>>; DataType::ALL.len()]>,
    /// Serialises this rank's enqueues.
    pub(super) enqueue: Mutex<()>,
}

impl Shared {
    pub(super) fn copiers(&self) -> Option<&Copiers> {
        self.copiers.get()
    }

    /// Registers one buffer of each rank, which peers can write.
    pub(super) fn register(&self, addresses: Vec<u64>, bytes: usize) -> Result<u32> {
        let (Some(wiring), Some(control)) = (&self.wiring, &self.control) else {
            // One rank has nobody to exchange anything with.
            return Ok(0);
        };
        if self.copiers.get().is_none() {
            let made = Copiers::new(&self.endpoints, wiring, control.clone())?;
            // Another thread's may have come first; this one's then ends here.
            let _ = self.copiers.set(made);
        }
        Ok(self.copiers.get().map_or(0, |copiers| copiers.register(addresses, bytes)))
    }

    fn ranks(&self) -> usize {
        self.endpoints.len()
    }

    fn abort(&self) {
        if let Some(control) = &self.control {
            control.word(0).store(1, Ordering::Release);
        }
    }

    /// Why the communicator cannot be used any more, if so.
    fn failure(&self, rank: usize) -> Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        if control.word(0).load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let line = abi::RL_LINE as usize;
        for reporter in 0..self.ranks() {
            let report: abi::rl_report = control.read(line * (reporter + 1));
            if report.fault == abi::RL_FAULT_MISMATCH {
                return Err(Error::Mismatch {
                    operation: report.epoch,
                    rank: reporter,
                    call: Call::describe(report.call),
                    peer: report.peer as usize,
                    peer_call: Call::describe(report.peer_call),
                });
            }
        }
        let gone: Vec<_> =
            (0..self.ranks()).filter(|&r| r != rank && self.dropped[r].load(Ordering::Acquire)).collect();
        let reason = match gone[..] {
            [] => "abort() was called".to_owned(),
            _ => format!("the handle of rank {gone:?} was dropped while operations were waiting for it"),
        };
        Err(Error::Aborted { rank, reason })
    }
}

impl Member {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn ranks(&self) -> usize {
        self.shared.ranks()
    }

    /// The plan that calls of this size follow.
    pub(crate) fn explain(&self, collective: Collective, bytes: usize) -> Result<Arc<Plan>> {
        self.shared.chooser.explain(collective, bytes)
    }

    pub(crate) fn memory_used(&self) -> usize {
        let state = self.shared.states.get(self.rank).map_or(0, DeviceMemory::bytes);
        self.shared.wiring.as_ref().map_or(0, |w| w.bytes(self.rank)) + state
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.endpoint().context
    }

    /// The rank's failure, if the communicator has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.failure(self.rank)
    }

    pub(crate) fn abort(&self) {
        self.shared.abort();
    }

    /// How this rank reaches the next one, once for each channel.
    pub(crate) fn channels(&self) -> Vec<String> {
        let (from, ranks) = (self.rank, self.ranks());
        let to = (from + 1) % ranks;
        let channels = if ranks == 1 { 0 } else { self.shared.chooser.config.channels.unwrap_or(1) };
        let transport = self.shared.wiring.as_ref().map_or(Transport::Local, |w| w.transport(from, to));
        let label = |rank: usize| format!("{rank}[{}]", self.shared.endpoints[rank].short_bus());
        let line = |c| format!("Channel {c:02} : {} -> {} via {transport}", label(from), label(to));
        (0..channels).map(line).collect()
    }

    fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoints[self.rank]
    }

    /// Kernels of a type, loaded on every device of the communicator: loading later, while another rank's kernel waits
    /// for this rank, could wait for that kernel.
    fn kernels(&self, dtype: DataType) -> Result<Arc<Kernels>> {
        let mut known = self.kernels.lock();
        let slot = &mut known[dtype as usize];
        if let Some(k) = slot {
            return Ok(k.clone());
        }
        let mut own = None;
        for (rank, e) in self.shared.endpoints.iter().enumerate() {
            let k = kernels::load(e.who, &e.context, dtype)?;
            if rank == self.rank {
                own = Some(k);
            }
        }
        let own = own.expect("this rank is among the ranks");
        *slot = Some(own.clone());
        Ok(own)
    }

    /// Loads the kernels of a type ahead of the first call.
    pub(crate) fn preload(&self, dtype: DataType) -> Result<()> {
        self.kernels(dtype).map(drop)
    }

    /// Enqueues one operation. The caller has checked lengths and contexts.
    ///
    /// # Safety
    /// The buffers hold as many elements as the call says and stay valid until the stream has passed the operation.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &Arc<CudaStream>,
        call: &Call,
        input: u64,
        output: u64,
    ) -> Result<()> {
        let shared = &*self.shared;
        let who = self.endpoint().who;
        let _guard = self.enqueue.lock();
        shared.failure(self.rank)?;
        if call.count == 0 {
            return Ok(());
        }
        self.endpoint().context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        if shared.ranks() == 1 && !matches!(call.op, ReduceOp::PreMulSum(_)) {
            if input == output {
                return Ok(());
            }
            let bytes = call.count * call.dtype.size();
            // SAFETY: the caller vouches for both buffers.
            return unsafe { driver::copy(who, stream, output, input, bytes) };
        }
        if let Some(gone) = (0..shared.ranks()).find(|&r| shared.dropped[r].load(Ordering::Acquire)) {
            let reason = format!("the handle of rank {gone} was dropped");
            return Err(Error::Aborted { rank: self.rank, reason });
        }
        let capturing = driver::is_capturing(who, stream)?;
        // What follows asks the driver about memory, which a capturing thread may otherwise not do.
        let _relaxed = capturing.then(driver::RelaxedCapture::enter);
        let kernels = self.kernels(call.dtype)?;
        if !capturing {
            self.follow_last_stream(stream)?;
        }
        let bytes = call.collective.blocks(shared.ranks()) * call.count * call.dtype.size();
        if let Some((copiers, place)) = self.window(call, bytes, input, output) {
            // SAFETY: the caller vouches for the buffers, and whoever registered the window for its peers'.
            unsafe { self.copy(copiers, &place, stream, &kernels, call, input) }?;
            if !capturing {
                shared.entered[self.rank].fetch_add(1, Ordering::AcqRel);
            }
            return Ok(());
        }
        match shared.chooser.choose(call.collective, bytes)?.way {
            Way::Program(prepared, cut) => {
                let op = self.program(&prepared, cut, call, input, output);
                let blocks = prepared.blocks(self.rank, cut);
                let function = kernels.program.of(call.op);
                let early = shared.early;
                let launch =
                    KernelLaunch { function, blocks, threads: abi::RL_BLOCK, early, parameter: &*op };
                // SAFETY: the program kernels take one rl_op; the communicator's memory outlives the operation because
                // dropping it waits; the caller vouches for the buffers.
                unsafe { launch.enqueue(who, stream) }?;
            }
            Way::Exchange(encoding) => {
                let op = self.exchange(call, encoding, input, output);
                let family = match encoding {
                    Encoding::Packet128 => &kernels.exchange128,
                    _ => &kernels.exchange16,
                };
                let bytes = call.count * call.dtype.size();
                let launch = KernelLaunch {
                    function: family.of(call.op),
                    blocks: exchange::blocks(encoding, bytes, shared.chooser.blocks_per_rank()),
                    threads: abi::RL_EXCHANGE_BLOCK,
                    early: shared.early,
                    parameter: &op,
                };
                // SAFETY: the exchange kernels take one rl_exchange; otherwise as above.
                unsafe { launch.enqueue(who, stream) }?;
            }
        }
        if !capturing {
            shared.entered[self.rank].fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The window that holds a call's output, if copy engines are to carry it out.
    fn window(&self, call: &Call, bytes: usize, input: u64, output: u64) -> Option<(&Copiers, Place)> {
        let (shared, n) = (&*self.shared, self.ranks());
        let copiers = shared.copiers.get()?;
        let block = call.count * call.dtype.size();
        let (own, length) = match call.collective {
            Collective::ReduceScatter => (self.rank * block, block),
            _ => (0, bytes),
        };
        let in_place = input + own as u64 == output;
        // Streams that wait for a peer may hold up the queue that the peer's work is in, if it is on the same device.
        let by_default = shared.chooser.alone().then(|| copiers::copies_from(call.collective));
        let least = shared.chooser.config.copies_from.or(by_default)?;
        if bytes < least || !copies::can(call.collective, call.op, n, in_place) {
            return None;
        }
        Some((copiers, copiers.place(self.rank, output, length)?))
    }

    /// Enqueues an operation that copy engines carry out, behind an exchange of nothing.
    ///
    /// # Safety
    /// As [`enqueue`](Self::enqueue); the outputs in `place` are those of all ranks in this call.
    unsafe fn copy(
        &self,
        copiers: &Copiers,
        place: &Place,
        stream: &CudaStream,
        kernels: &Kernels,
        call: &Call,
        input: u64,
    ) -> Result<()> {
        let shared = &*self.shared;
        let mut op = self.exchange(call, Encoding::Packet16, input, 0);
        // Ranks must agree on the window, too.
        (op.count, op.digest) = (0, op.digest ^ place.fingerprint);
        let launch = KernelLaunch {
            function: kernels.exchange16.of(call.op),
            blocks: 1,
            threads: abi::RL_EXCHANGE_BLOCK,
            early: shared.early,
            parameter: &op,
        };
        // SAFETY: the exchange kernels take one rl_exchange; this one touches link memory alone.
        unsafe { launch.enqueue(self.endpoint().who, stream) }?;
        let work = Work {
            call,
            input,
            outputs: &place.outputs,
            words: copiers.words(self.rank),
            kernels: &kernels.program,
            blocks: shared.chooser.add_blocks(),
        };
        // SAFETY: the caller vouches for the buffers; link memory is there until every stream has passed.
        unsafe { copiers.enqueue(self.rank, stream, &work) }
    }

    /// The parameter of a program kernel.
    fn program(
        &self,
        prepared: &Prepared,
        cut: Cut,
        call: &Call,
        input: u64,
        output: u64,
    ) -> Box<abi::rl_op> {
        let shared = &*self.shared;
        let lent = shared.wiring.as_ref().is_some_and(|w| w.reachable_by_all(self.rank))
            && output != 0
            && self.peers_can_write(output);
        let mut op = prepared.operation(self.rank, call, cut, Buffers { input, output, lent });
        if let (Some(wiring), Some(control)) = (&shared.wiring, &shared.control) {
            op.peers = wiring.peers(self.rank);
            op.fifo = wiring.layout().slots() as u64;
            op.state = shared.states[self.rank].address();
            op.abort_word = control.address();
            op.report = control.address() + u64::from(abi::RL_LINE) * (self.rank as u64 + 1);
        }
        op
    }

    /// The parameter of an exchange kernel. Only for two ranks or more.
    fn exchange(&self, call: &Call, encoding: Encoding, input: u64, output: u64) -> abi::rl_exchange {
        let shared = &*self.shared;
        let mut op = exchange::operation(self.rank, shared.ranks(), call, input, output);
        if let (Some(wiring), Some(control)) = (&shared.wiring, &shared.control) {
            let layout = wiring.layout();
            let (first, size) = match encoding {
                Encoding::Packet128 => (layout.boxes128(), layout.box128),
                _ => (layout.boxes16(), abi::RL_BOX16_BYTES as usize),
            };
            (op.box_, op.box_size, op.boxes16) = (first as u64, size as u64, layout.boxes16() as u64);
            op.peers = wiring.peers(self.rank);
            op.state = shared.states[self.rank].address();
            op.abort_word = control.address();
            op.report = control.address() + u64::from(abi::RL_LINE) * (self.rank as u64 + 1);
        }
        op
    }

    /// Operations of a communicator run one after the other, also when they are enqueued on different streams.
    fn follow_last_stream(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let who = self.endpoint().who;
        let mut streams = self.shared.streams.lock();
        let last = &mut streams[self.rank];
        if let Some(last) = last.as_ref().filter(|l| l.cu_stream() != stream.cu_stream())
            && !driver::is_capturing(who, last)?
        {
            let event = last.record_event(None).map_err(|e| who.error("cuEventRecord", e))?;
            stream.wait(&event).map_err(|e| who.error("cuStreamWaitEvent", e))?;
        }
        if last.as_ref().is_none_or(|l| l.cu_stream() != stream.cu_stream()) {
            *last = Some(stream.clone());
        }
        Ok(())
    }

    /// Whether the kernels of all other devices can write this memory.
    pub(super) fn peers_can_write(&self, address: u64) -> bool {
        let Some(pointer) = driver::describe_pointer(address) else { return false };
        let own = &self.endpoint().bus_id;
        self.shared.endpoints.iter().filter(|e| e.bus_id != *own).all(|e| pointer.writable_by(&e.context))
    }

    /// Waits until everything enqueued on the stream has finished, or the communicator's timeout has passed.
    pub(crate) fn synchronize(&self, stream: &CudaStream) -> Result<()> {
        let who = self.endpoint().who;
        let started = Instant::now();
        while !driver::is_idle(stream) {
            if self.shared.chooser.config.timeout.is_some_and(|t| started.elapsed() > t) {
                let error = self.timeout(started.elapsed());
                self.shared.abort();
                return Err(error);
            }
            // Spin for the length of a small operation, then leave the core to others.
            if started.elapsed() > Duration::from_micros(100) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        stream.synchronize().map_err(|e| who.error("cuStreamSynchronize", e))?;
        self.shared.failure(self.rank)
    }

    fn timeout(&self, waited: Duration) -> Error {
        let counts: Vec<u64> = self.shared.entered.iter().map(|c| c.load(Ordering::Acquire)).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let late: Vec<String> = counts
            .iter()
            .enumerate()
            .filter(|&(_, &c)| c < most)
            .map(|(r, c)| format!("rank {r} has enqueued {c} operations of {most}"))
            .collect();
        let report = if late.is_empty() {
            format!("all ranks have enqueued {most} operations; the GPUs are busy or stuck")
        } else {
            late.join(", ")
        };
        Error::Timeout { operation: most, rank: self.rank, milliseconds: waited.as_millis() as u64, report }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.dropped[self.rank].store(true, Ordering::Release);
        // Operations that others have enqueued and this rank has not can never finish.
        let own = shared.entered[self.rank].load(Ordering::Acquire);
        if shared.entered.iter().any(|c| c.load(Ordering::Acquire) > own) {
            shared.abort();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Memory must outlive the kernels that use it. What every rank has enqueued finishes by itself; the rest was
        // aborted by the handle that left first.
        let counts: Vec<u64> = self.entered.iter().map(|c| c.load(Ordering::Acquire)).collect();
        if counts.iter().any(|&c| c != counts[0]) {
            self.abort();
        }
        let patience = Instant::now();
        for stream in self.streams.lock().iter().flatten() {
            while !driver::is_idle(stream) {
                if patience.elapsed() > Duration::from_secs(30) {
                    self.abort();
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        // Its thread writes link memory.
        drop(self.copiers.take());
    }
}
