//! Ranks on GPUs: what their handles share, and how an operation is enqueued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::choose_gpu::{Chooser, Way};
use super::config::{Config, Subsystem};
use super::log::Log;
use super::machine::Machine;
use super::survey::survey;
use crate::engine::Call;
use crate::engine::cuda::driver::{self, DeviceMemory, HostMemory, KernelLaunch, Who};
use crate::engine::cuda::kernels::{self, Kernels};
use crate::engine::cuda::{self, Buffers, Cut, Prepared, abi, exchange};
use crate::error::{Error, Result};
use crate::plan::{Limits, Plan};
use crate::schedule::Encoding;
use crate::topology::{Gpu, Topology};
use crate::transport::gpu::{Allowed, Endpoint, Layout, Transport, Wiring};
use crate::types::{Collective, DataType, ReduceOp};

/// Most blocks of all ranks on one device together. They must all be resident at once, so it is also at most one for each
/// multiprocessor, which every kernel is compiled to fit; most fit two, which leaves room for a second communicator.
const BLOCKS_PER_DEVICE: u32 = 128;

/// What all handles of one communicator share.
#[derive(Debug)]
struct Shared {
    endpoints: Vec<Endpoint>,
    /// None for one rank: it needs no links.
    wiring: Option<Wiring>,
    /// One `rl_state` a rank; none for one rank.
    states: Vec<DeviceMemory>,
    /// The abort word, then one `rl_report` a rank, each on a line of its own. None for one rank.
    control: Option<HostMemory>,
    chooser: Chooser,
    /// Whether kernels may be launched before their predecessor has finished: from compute capability 9.0, and with one
    /// rank on a device, so that waiting blocks never keep another rank's from running.
    early: bool,
    /// Operations each rank has enqueued, outside captures.
    entered: Vec<AtomicU64>,
    /// Handles that were dropped.
    dropped: Vec<AtomicBool>,
    /// Where each rank enqueued last.
    streams: Mutex<Vec<Option<Arc<CudaStream>>>>,
}

/// One rank's handle.
#[derive(Debug)]
pub(crate) struct Member {
    shared: Arc<Shared>,
    rank: usize,
    kernels: Mutex<[Option<Arc<Kernels>>; DataType::ALL.len()]>,
    /// Serialises this rank's enqueues.
    enqueue: Mutex<()>,
}

/// Creates one handle for each context; the same context may be given more than once.
pub(crate) fn create(contexts: &[Arc<CudaContext>], config: &Config) -> Result<Vec<Member>> {
    config.check()?;
    cuda::available()?;
    let n = contexts.len();
    if n == 0 || n > abi::RL_MAX_RANKS as usize {
        let expected = format!("1 to {} contexts, one for each rank", abi::RL_MAX_RANKS);
        return Err(Error::invalid_value("contexts", n.to_string(), expected));
    }
    let endpoints = contexts
        .iter()
        .enumerate()
        .map(|(rank, context)| {
            let who = Who { rank, device: context.ordinal() };
            Ok(Endpoint { who, context: context.clone(), bus_id: driver::bus_id(who, context)? })
        })
        .collect::<Result<Vec<_>>>()?;
    let crowd = |e: &Endpoint| endpoints.iter().filter(|o| o.bus_id == e.bus_id).count() as u32;
    let mut device_blocks = BLOCKS_PER_DEVICE;
    for e in &endpoints {
        let count = cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = e.context.attribute(count).map_err(|error| e.who.error("cuDeviceGetAttribute", error))?;
        device_blocks = device_blocks.min(count as u32);
        // A rank's share is set by hand.
        device_blocks =
            device_blocks.min(config.max_blocks.unwrap_or(BLOCKS_PER_DEVICE).saturating_mul(crowd(e)));
    }
    let mut early = endpoints.iter().all(|e| crowd(e) == 1);
    for e in &endpoints {
        early &=
            e.context.compute_capability().map_err(|error| e.who.error("cuDeviceGetAttribute", error))?.0
                >= 9;
    }
    let log = Log::new(config)?;
    log.version();
    let (machine, wiring) = wire(&endpoints, config, device_blocks)?;
    machine.publish(config, &log)?;
    let (mut states, mut control) = (Vec::new(), None);
    if n > 1 {
        for e in &endpoints {
            states.push(DeviceMemory::zeroed(e.who, &e.context, size_of::<abi::rl_state>())?);
        }
        let line = abi::RL_LINE as usize;
        control = Some(HostMemory::zeroed(endpoints[0].who, &endpoints[0].context, line * (n + 1))?);
        for (e, state) in endpoints.iter().zip(&states) {
            let done = config.operations_done;
            let start = abi::rl_state { epoch: done, packet_epoch: done, ..Default::default() };
            state.write(e.who, 0, &start)?;
        }
        // cuMemsetD8 may run behind the host: no kernel may see memory before it is cleared.
        for e in &endpoints {
            e.context.synchronize().map_err(|error| e.who.error("cuCtxSynchronize", error))?;
        }
    }
    let mut crowds: Vec<Vec<usize>> = Vec::new();
    for e in &endpoints {
        match crowds.iter_mut().find(|crowd| endpoints[crowd[0]].bus_id == e.bus_id) {
            Some(crowd) => crowd.push(e.who.rank),
            None => crowds.push(vec![e.who.rank]),
        }
    }
    let chooser = Chooser {
        machine,
        config: config.clone(),
        log,
        layout: wiring.as_ref().map(Wiring::layout),
        keeps_lines: wiring.as_ref().is_some_and(Wiring::keeps_lines),
        crowds,
        device_blocks,
        known: Mutex::default(),
        prepared: Mutex::default(),
    };
    let shared = Arc::new(Shared {
        endpoints,
        wiring,
        states,
        control,
        chooser,
        early,
        entered: (0..n).map(|_| AtomicU64::new(0)).collect(),
        dropped: (0..n).map(|_| AtomicBool::new(false)).collect(),
        streams: Mutex::new(vec![None; n]),
    });
    let member =
        |rank| Member { shared: shared.clone(), rank, kernels: Mutex::default(), enqueue: Mutex::default() };
    let members: Vec<Member> = (0..n).map(member).collect();
    let lines = || members.iter().flat_map(Member::channels);
    shared.chooser.log.info(Subsystem::Init, lines);
    let memory = |m: &Member| format!("rank {} holds {} bytes of link memory", m.rank, m.memory_used());
    shared.chooser.log.info(Subsystem::Alloc, || members.iter().map(memory));
    Ok(members)
}

/// Finds out what machine the ranks are on while their link memory is allocated.
fn wire(endpoints: &[Endpoint], config: &Config, device_blocks: u32) -> Result<(Machine, Option<Wiring>)> {
    let n = endpoints.len();
    if n == 1 && config.topology_path().is_none() {
        // Nothing joins one rank to anything: there is nothing to be found out.
        let mut alone = Topology::new("one GPU");
        alone.add_gpu(Gpu { bus_id: Some(endpoints[0].bus_id.clone()), ..Gpu::default() }, None);
        return Ok((Machine::new(&alone, vec![0], config.limits()), None));
    }
    let mut allowed = Allowed { p2p: !config.p2p_disabled, shm: !config.shm_disabled, level: None };
    let wiring = |allowed: &Allowed| {
        let layout = Layout::for_ranks(n);
        (n > 1).then(|| Wiring::new(endpoints, allowed, layout, config.operations_done)).transpose()
    };
    let (found, wiring) = match config.p2p_level {
        None => std::thread::scope(|scope| {
            let found = scope.spawn(|| survey(endpoints, config));
            let wiring = wiring(&allowed);
            (found.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), wiring)
        }),
        Some(level) => {
            let (topology, gpus) = survey(endpoints, config)?;
            let paths = topology.paths();
            let kinds = |&from: &usize| gpus.iter().map(|&to| paths[from][to].kind).collect();
            allowed.level = Some((gpus.iter().map(kinds).collect(), level));
            (Ok((topology, gpus)), wiring(&allowed))
        }
    };
    let ((topology, gpus), wiring) = (found?, wiring?);
    // Where no two devices write each other's memory, data pass through the host's, which NVLinks do not reach.
    let mapped = wiring.as_ref().is_none_or(Wiring::maps_any_peer);
    // Where the machine is another one, ranks share a device that are said to be on several.
    let most = |count: &dyn Fn(usize) -> usize| (0..n).map(count).max().unwrap_or(1).max(1) as u32;
    let planned = most(&|rank| gpus.iter().filter(|&&gpu| gpu == gpus[rank]).count());
    let real = most(&|rank| endpoints.iter().filter(|e| e.bus_id == endpoints[rank].bus_id).count());
    let limits = Limits {
        max_blocks: (device_blocks * planned / real).max(1),
        max_workers: Some((device_blocks / real).clamp(1, abi::RL_MAX_WORKERS) as usize),
        p2p: mapped,
        ..config.limits()
    };
    Ok((Machine::new(&topology, gpus, limits), wiring))
}

impl Shared {
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
    fn peers_can_write(&self, address: u64) -> bool {
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
    }
}
