//! One rank's part in one operation, as a state machine that never blocks.

use std::ops::Range;
use std::sync::Arc;

use super::Prepared;
use super::buffers::{Job, Kernel, Operand, kernel};
use super::link::Stamp;
use super::order::{Order, input_range};
use super::program::{Code, Direct, Load, Program, Step, Store};
use super::seat::Post;
use super::world::{EAGER_BYTES, Reason, World};
use crate::engine::Call;
use crate::error::{Error, Result};
use crate::schedule::lane_range;
use crate::sync::{Ordering, fence};
use crate::types::{ReduceOp, Scalar};

/// What a step of a [`Task`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It did something.
    Moved,
    /// It waits for others.
    Blocked,
    /// It is over; the result can be taken.
    Done,
}

enum Phase {
    /// Waiting for everybody to enter; so many have been seen.
    Arrive(usize),
    /// Running the workers.
    Run,
    /// Waiting for peers that read this rank's input; so many have finished.
    Linger(usize),
    /// Waiting, after an abort, until nobody touches anybody's memory.
    Leave,
    Done(Result<()>),
}

/// Where one worker is.
struct Cursor {
    tile: usize,
    step: usize,
    /// How many tiles its longest chunk has.
    tiles: usize,
    /// Where its steps' ranges begin in [`Scratch::ranges`].
    ranges: usize,
}

/// What a rank needs to know of a peer; addresses of element 0 of the message.
#[derive(Clone, Copy)]
struct Peer {
    input: *const u8,
    output: *mut u8,
    steady: bool,
}

/// Memory that a rank's tasks use one after the other, so that starting one allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    cursors: Vec<Cursor>,
    /// Elements of each step's chunk, worker by worker.
    ranges: Vec<Range<usize>>,
    /// Slots used so far at each port.
    slots: Vec<u64>,
    peers: Vec<Peer>,
    sources: Vec<Operand>,
    sinks: Vec<*mut u8>,
}

// SAFETY: the addresses are left over from finished tasks; each task clears them before it uses the vectors.
unsafe impl Send for Scratch {}

/// One rank's part in one operation.
pub(super) struct Task<'b> {
    world: Arc<World>,
    rank: usize,
    operation: u64,
    order: Order<'b>,
    prepared: Arc<Prepared>,
    phase: Phase,
    /// Whether inputs were copied when posted.
    eager: bool,
    /// Whether peers may read inputs where they are.
    direct: bool,
    /// Whether this rank's own posted input is steady.
    steady: bool,
    /// Whether this rank touches its peers' buffers.
    touches: bool,
    elem_size: usize,
    kernel: Kernel,
    factor: Option<Scalar>,
    pub(super) scratch: Scratch,
}

impl<'b> Task<'b> {
    /// Enters an operation.
    pub(super) fn start(
        world: Arc<World>,
        rank: usize,
        operation: u64,
        order: Order<'b>,
        prepared: Arc<Prepared>,
        scratch: Scratch,
    ) -> Self {
        let call = order.call;
        let factor = match call.op {
            ReduceOp::PreMulSum(factor) if call.collective.reduces() => Some(factor),
            _ => None,
        };
        let elem_size = call.dtype.size();
        let input = input_range(&call, rank, world.ranks());
        let eager = prepared.any_direct && input.len() * elem_size <= EAGER_BYTES;
        let program = &prepared.programs[rank];
        let direct = eager || factor.is_none();
        let touches = program.writes_peers || (direct && !eager && !program.read_from.is_empty());
        let steady = eager || !order.in_place;
        let kernel = kernel(call.dtype, call.op);
        let mut task = Task {
            world,
            rank,
            operation,
            order,
            phase: Phase::Arrive(0),
            eager,
            direct,
            steady,
            touches,
            elem_size,
            kernel,
            factor,
            scratch,
            prepared,
        };
        task.enter(&call, input);
        task
    }

    /// Posts the call and the buffers.
    fn enter(&mut self, call: &Call, input: Range<usize>) {
        let mut lent = self.order.input.cast_mut();
        if self.eager && !lent.is_null() {
            let copy = self.world.eager(self.rank, self.operation);
            let at = input.start * self.elem_size;
            let source = Operand { address: self.order.input.wrapping_add(at), raw: true };
            self.run_kernel(&[source], &[copy], input.len(), false);
            lent = copy.wrapping_sub(at);
        }
        let output = self.order.output;
        let post = Post { call: call.words(), input: lent, output, steady: self.steady };
        self.world.seats[self.rank].arrival.post(self.operation, &post);
        self.world.ring_all();
    }

    /// Does what can be done without waiting.
    pub(super) fn step(&mut self) -> Progress {
        if self.world.aborted.load(Ordering::Relaxed) {
            self.leave();
        }
        let mut moved = false;
        loop {
            let next = match self.phase {
                Phase::Arrive(seen) => self.arrive(seen),
                Phase::Run => self.run_workers(&mut moved),
                Phase::Linger(finished) => self.linger(finished),
                Phase::Leave => self
                    .world
                    .is_quiet()
                    .then(|| Phase::Done(Err(self.world.abort_error(self.rank, self.operation)))),
                Phase::Done(_) => return Progress::Done,
            };
            match next {
                Some(phase) => self.phase = phase,
                None if moved => return Progress::Moved,
                None => return Progress::Blocked,
            }
            moved = true;
        }
    }

    /// The result of a task that is [`Progress::Done`].
    pub(super) fn finish(self) -> (Result<()>, Scratch) {
        match self.phase {
            Phase::Done(result) => (result, self.scratch),
            _ => unreachable!("only finished tasks are taken apart"),
        }
    }

    /// Gives up after a wait of so long.
    pub(super) fn give_up(&mut self, milliseconds: u64) {
        if !matches!(self.phase, Phase::Done(_) | Phase::Leave) {
            let report = self.world.report(self.operation);
            self.world.abort(Reason::Late {
                operation: self.operation,
                rank: self.rank,
                milliseconds,
                report,
            });
        }
    }

    /// Notices that the communicator was aborted: touches nothing any more, and waits until nobody does.
    pub(super) fn leave(&mut self) {
        match self.phase {
            Phase::Done(_) | Phase::Leave => return,
            Phase::Run if self.touches => {
                self.world.seats[self.rank].stage.finish(self.operation);
                self.world.ring_all();
            }
            _ => {}
        }
        self.phase = Phase::Leave;
    }

    fn program(&self) -> &Program {
        &self.prepared.programs[self.rank]
    }

    /// Sees the others enter, then compares the calls.
    fn arrive(&mut self, seen: usize) -> Option<Phase> {
        let world = &self.world;
        for (peer, seat) in world.seats.iter().enumerate().skip(seen) {
            if seat.arrival.entered() < self.operation {
                self.phase = Phase::Arrive(peer);
                if world.never_enters(peer, self.operation) {
                    let last = seat.arrival.entered();
                    world.abort(Reason::Other(format!(
                        "rank {peer} was dropped after operation {last}, and operation {} needs it",
                        self.operation
                    )));
                    return Some(Phase::Leave);
                }
                return None;
            }
        }
        let mine = self.order.call.words();
        self.scratch.peers.clear();
        for (peer, seat) in world.seats.iter().enumerate() {
            let post = seat.arrival.read(self.operation);
            if post.call != mine {
                return Some(Phase::Done(Err(Error::Mismatch {
                    operation: self.operation,
                    rank: self.rank,
                    call: Call::describe(mine),
                    peer,
                    peer_call: Call::describe(post.call),
                })));
            }
            self.scratch.peers.push(Peer { input: post.input, output: post.output, steady: post.steady });
        }
        if self.touches && !world.seats[self.rank].stage.begin(self.operation, &world.aborted) {
            return Some(Phase::Leave);
        }
        self.prepare_run();
        Some(Phase::Run)
    }

    /// Sets the cursors to the beginning.
    fn prepare_run(&mut self) {
        let call = self.order.call;
        let launch = &self.prepared.launch;
        let program = &self.prepared.programs[self.rank];
        let tile = launch.tile_bytes() / self.elem_size;
        let scratch = &mut self.scratch;
        scratch.cursors.clear();
        scratch.ranges.clear();
        scratch.slots.clear();
        scratch.slots.resize(program.ports.len(), 0);
        for code in &program.workers {
            let first = scratch.ranges.len();
            let range = |step: &Step| {
                let chunk = step.chunk.range(call.count, self.elem_size);
                match launch.lanes() {
                    1 => chunk,
                    lanes => lane_range(chunk, code.lane as usize, lanes as usize, self.elem_size),
                }
            };
            scratch.ranges.extend(code.steps.iter().map(range));
            let tiles = scratch.ranges[first..].iter().map(|r| r.len().div_ceil(tile)).max().unwrap_or(0);
            scratch.cursors.push(Cursor { tile: 0, step: 0, tiles, ranges: first });
        }
    }

    /// Runs every worker until it waits.
    fn run_workers(&mut self, moved: &mut bool) -> Option<Phase> {
        let prepared = self.prepared.clone();
        let program = &prepared.programs[self.rank];
        let mut all_finished = true;
        for (w, code) in program.workers.iter().enumerate() {
            all_finished &= self.run_worker(w, code, program, moved);
        }
        if !all_finished {
            return None;
        }
        if self.touches {
            self.world.seats[self.rank].stage.finish(self.operation);
            fence(Ordering::SeqCst);
            for &peer in &program.read_from {
                self.world.seats[peer].bell.ring();
            }
        }
        Some(Phase::Linger(0))
    }

    /// Waits for those who read this rank's input where it is.
    fn linger(&mut self, finished: usize) -> Option<Phase> {
        if self.eager || !self.direct {
            return Some(Phase::Done(Ok(())));
        }
        for (i, &reader) in self.program().readers.iter().enumerate().skip(finished) {
            if !self.world.seats[reader].stage.has_finished(self.operation) {
                self.phase = Phase::Linger(i);
                return None;
            }
        }
        Some(Phase::Done(Ok(())))
    }

    /// Runs one worker until it waits; whether it has finished.
    fn run_worker(&mut self, w: usize, code: &Code, program: &Program, moved: &mut bool) -> bool {
        let tile_len = self.prepared.launch.tile_bytes() / self.elem_size;
        let Cursor { mut tile, mut step, tiles, ranges } = self.scratch.cursors[w];
        let mut finished = tile == tiles;
        while !finished {
            let chunk = &self.scratch.ranges[ranges + step];
            let start = chunk.start + tile * tile_len;
            if start < chunk.end {
                let range = start..chunk.end.min(start + tile_len);
                if !self.run_step(&code.steps[step], program, range) {
                    break;
                }
                *moved = true;
            }
            step += 1;
            if step == code.steps.len() {
                (tile, step) = (tile + 1, 0);
                finished = tile == tiles || self.world.aborted.load(Ordering::Relaxed);
            }
        }
        let cursor = &mut self.scratch.cursors[w];
        (cursor.tile, cursor.step) = (tile, step);
        tile == tiles
    }

    /// Whether a transfer of an input with that steadiness is left out.
    fn is_direct(&self, direct: Direct, steady: bool) -> bool {
        self.direct && (direct == Direct::Always || direct == Direct::IfSteady && steady)
    }

    fn stamp(&self, port: usize) -> Stamp {
        Stamp::new(self.operation, self.scratch.slots[port])
    }

    /// Runs one step on some elements, if it does not have to wait.
    fn run_step(&mut self, step: &Step, program: &Program, range: Range<usize>) -> bool {
        let at = range.start * self.elem_size;
        let depth = u64::from(self.prepared.launch.depth());
        let tile_bytes = self.prepared.launch.tile_bytes();
        let mut sinks = std::mem::take(&mut self.scratch.sinks);
        let mut sources = std::mem::take(&mut self.scratch.sources);
        sinks.clear();
        sources.clear();
        let slot = |stamp: Stamp, port: usize| {
            program.ports[port].link.slots().wrapping_add(stamp.index(depth) * tile_bytes)
        };
        let mut left_out = false;
        let ready = 'ready: {
            for store in &step.stores {
                match *store {
                    Store::Output => sinks.push(self.order.output.wrapping_add(at)),
                    Store::Lent { port } => {
                        let peer = program.ports[port].peer;
                        sinks.push(self.scratch.peers[peer].output.wrapping_add(at));
                    }
                    Store::Link { direct, .. } if self.is_direct(direct, self.steady) => left_out = true,
                    Store::Link { port, .. } => {
                        let stamp = self.stamp(port);
                        if !program.ports[port].link.counters.has_room(stamp, depth) {
                            break 'ready false;
                        }
                        sinks.push(slot(stamp, port));
                    }
                }
            }
            if left_out && sinks.is_empty() {
                break 'ready true;
            }
            for load in &step.loads {
                match *load {
                    Load::Input => {
                        sources.push(Operand { address: self.order.input.wrapping_add(at), raw: true })
                    }
                    Load::Output => {
                        sources.push(Operand { address: self.order.output.wrapping_add(at), raw: false });
                    }
                    Load::Lent { port } => {
                        if !program.ports[port].link.counters.has_data(self.stamp(port)) {
                            break 'ready false;
                        }
                        sources.push(Operand { address: self.order.output.wrapping_add(at), raw: false });
                    }
                    Load::Link { port, direct } => {
                        let peer = self.scratch.peers[program.ports[port].peer];
                        let address = if self.is_direct(direct, peer.steady) {
                            peer.input.wrapping_add(at)
                        } else {
                            let stamp = self.stamp(port);
                            if !program.ports[port].link.counters.has_data(stamp) {
                                break 'ready false;
                            }
                            slot(stamp, port).cast_const()
                        };
                        sources.push(Operand { address, raw: false });
                    }
                }
            }
            true
        };
        if ready && !(left_out && sinks.is_empty()) {
            if !sinks.is_empty() {
                self.run_kernel(&sources, &sinks, range.len(), step.finish);
            }
            self.pass_on(step, program);
        }
        self.scratch.sinks = sinks;
        self.scratch.sources = sources;
        ready
    }

    /// Publishes what a step has written and frees what it has read.
    fn pass_on(&mut self, step: &Step, program: &Program) {
        let mut told = false;
        for store in &step.stores {
            match *store {
                Store::Output => continue,
                Store::Link { direct, .. } if self.is_direct(direct, self.steady) => continue,
                Store::Link { port, .. } | Store::Lent { port } => {
                    program.ports[port].link.counters.publish(self.stamp(port));
                    self.scratch.slots[port] += 1;
                }
            }
            told = true;
        }
        for load in &step.loads {
            let port = match *load {
                Load::Link { port, direct } => {
                    let peer = program.ports[port].peer;
                    if self.is_direct(direct, self.scratch.peers[peer].steady) {
                        continue;
                    }
                    port
                }
                Load::Lent { port } => port,
                Load::Input | Load::Output => continue,
            };
            program.ports[port].link.counters.free(self.stamp(port));
            self.scratch.slots[port] += 1;
            told = true;
        }
        if told {
            fence(Ordering::SeqCst);
            let stores = step.stores.iter().filter_map(|s| match s {
                Store::Link { port, .. } | Store::Lent { port } => Some(*port),
                Store::Output => None,
            });
            let loads = step.loads.iter().filter_map(|l| match l {
                Load::Link { port, .. } => Some(*port),
                _ => None,
            });
            for port in stores.chain(loads) {
                self.world.seats[program.ports[port].peer].bell.ring();
            }
        }
    }

    fn run_kernel(&self, sources: &[Operand], sinks: &[*mut u8], len: usize, finish: bool) {
        let average = finish && self.order.call.op == ReduceOp::Avg;
        let divisor = average.then_some(self.world.ranks() as u64);
        let job = Job { sources, sinks, len, factor: self.factor, divisor };
        // SAFETY: the addresses lie in buffers that their owners lend until this operation is over, or in slots, and the
        // ranges within the message. Every rank has entered with the same call, so the buffers have the lengths it means.
        // The schedule was proven to write nothing twice, and nothing that is still read; see `program` for reads that
        // leave a link out. A copy at entry goes to this rank's own memory, which nobody has read since operation - 2.
        unsafe { (self.kernel)(&job) };
    }
}
