//! What the CPU ranks of one communicator share.

use std::sync::OnceLock;
use std::time::Duration;

use super::bell::Bell;
use super::fabric::Fabric;
use super::seat::{Arrival, Stage};
use crate::error::Error;
use crate::sync::{AtomicBool, CachePadded, Mutex, Ordering, fence, lock};
use crate::transport::local::Memory;

/// Messages up to this many bytes are copied when an operation starts, so that ranks need not wait for their readers.
pub(crate) const EAGER_BYTES: usize = 4096;

/// One rank's place.
pub(crate) struct Seat {
    pub(super) arrival: CachePadded<Arrival>,
    pub(super) stage: CachePadded<Stage>,
    pub(super) bell: CachePadded<Bell>,
    /// Two copies of small inputs, for even and odd operations.
    eager: OnceLock<Memory>,
    /// The rank's handle was dropped: it will enter no further operation.
    gone: AtomicBool,
}

/// Why a communicator was aborted.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    /// An operation took longer than the limit.
    Late { operation: u64, rank: usize, milliseconds: u64, report: String },
    /// Anything else.
    Other(String),
}

/// The state shared by all ranks of one communicator.
pub(crate) struct World {
    pub(super) seats: Box<[Seat]>,
    pub(super) aborted: AtomicBool,
    reason: Mutex<Option<Reason>>,
    pub(crate) fabric: Fabric,
    /// How long an operation may wait; for ever without.
    pub(super) timeout: Option<Duration>,
    /// Whether there are more ranks than processors: then a waiting thread is probably in the way of another.
    pub(super) crowded: bool,
}

impl World {
    /// A world of `ranks` ranks.
    pub(crate) fn new(ranks: usize, timeout: Option<Duration>) -> Self {
        let seat = |_| Seat {
            arrival: CachePadded::new(Arrival::new()),
            stage: CachePadded::new(Stage::new()),
            bell: CachePadded::new(Bell::new()),
            eager: OnceLock::new(),
            gone: AtomicBool::new(false),
        };
        World {
            seats: (0..ranks).map(seat).collect(),
            aborted: AtomicBool::new(false),
            reason: Mutex::new(None),
            fabric: Fabric::default(),
            timeout,
            crowded: std::thread::available_parallelism().is_ok_and(|cores| ranks > cores.get()),
        }
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        self.seats.len()
    }

    /// Bytes of memory allocated on behalf of a rank: slots, counters and copies of small inputs.
    pub(crate) fn memory_used(&self, rank: usize) -> usize {
        self.fabric.memory_used(rank) + self.seats[rank].eager.get().map_or(0, Memory::len)
    }

    /// Where a rank copies its small input for an operation.
    pub(super) fn eager(&self, rank: usize, operation: u64) -> *mut u8 {
        let memory = self.seats[rank].eager.get_or_init(|| Memory::new(2 * EAGER_BYTES));
        memory.start().wrapping_add((operation % 2) as usize * EAGER_BYTES)
    }

    /// Wakes every rank that sleeps.
    pub(super) fn ring_all(&self) {
        fence(Ordering::SeqCst);
        self.seats.iter().for_each(|s| s.bell.ring());
    }

    /// Stops every operation, now and later. The first reason stays.
    pub(super) fn abort(&self, reason: Reason) {
        lock(&self.reason).get_or_insert(reason);
        self.aborted.store(true, Ordering::SeqCst);
        self.ring_all();
    }

    /// Whether no rank touches another's buffers any more, after [`abort`](Self::abort). They all notice soon.
    pub(super) fn is_quiet(&self) -> bool {
        self.seats.iter().all(|s| s.stage.is_outside())
    }

    /// The error of a rank that finds the communicator aborted in an operation it takes part in, or before it.
    pub(super) fn abort_error(&self, rank: usize, current: u64) -> Error {
        match lock(&self.reason).clone() {
            Some(Reason::Late { operation, milliseconds, report, .. }) if operation == current => {
                Error::Timeout { operation, rank, milliseconds, report }
            }
            Some(Reason::Late { operation, rank: by, milliseconds, report }) => Error::Aborted {
                rank,
                reason: format!("rank {by} waited {milliseconds} ms for operation {operation}: {report}"),
            },
            Some(Reason::Other(reason)) => Error::Aborted { rank, reason },
            None => Error::Aborted { rank, reason: "no reason was given".into() },
        }
    }

    /// Tells the others that a rank's handle is gone.
    pub(crate) fn leave(&self, rank: usize) {
        self.seats[rank].gone.store(true, Ordering::Release);
        self.ring_all();
    }

    /// Whether a rank will never enter an operation.
    pub(super) fn never_enters(&self, rank: usize, operation: u64) -> bool {
        let seat = &self.seats[rank];
        // In this order: a rank enters its last operation before it leaves.
        seat.gone.load(Ordering::Acquire) && seat.arrival.entered() < operation
    }

    /// Which ranks hold up an operation.
    pub(super) fn report(&self, operation: u64) -> String {
        let mut lines = Vec::new();
        for (r, seat) in self.seats.iter().enumerate() {
            let entered = seat.arrival.entered();
            if entered < operation {
                let last = if entered == 0 { "has entered none".into() } else { format!("is at {entered}") };
                lines.push(format!("rank {r} has not entered operation {operation}, it {last}"));
            }
        }
        if lines.is_empty() {
            let busy = |(r, s): (usize, &Seat)| (!s.stage.is_outside()).then(|| r.to_string());
            let busy: Vec<_> = self.seats.iter().enumerate().filter_map(busy).collect();
            lines.push(format!("all ranks have entered it; not finished: rank {}", busy.join(", ")));
        }
        lines.join("; ")
    }
}
