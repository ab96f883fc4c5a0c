//! The copy engines' side of a communicator: each rank's streams, the buffers they may write, and who lets streams go when
//! the communicator has failed.
//!
//! A kernel that waits for a peer looks at the abort word now and then; a stream that waits for a word of link memory looks
//! at nothing else. So a thread looks for it, from the first registration until the communicator is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use parking_lot::{Condvar, Mutex};

use crate::engine::cuda::copies::{Copier, Words, Work};
use crate::engine::cuda::driver::HostMemory;
use crate::error::{Error, Result};
use crate::transport::gpu::{Endpoint, Wiring};
use crate::types::Collective;

/// How often the abort word is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long streams are let go of: what they wait for on the devices besides is not this communicator's.
const PATIENCE: Duration = Duration::from_secs(10);

/// From so many bytes on copies are quicker than kernels: measured with prototypes, for reductions and for the others.
const REDUCED_FROM: usize = 256 << 20;
const SPREAD_FROM: usize = 64 << 20;

/// One buffer of each rank, all of one length.
#[derive(Clone, Debug)]
struct Registered {
    addresses: Vec<u64>,
    bytes: usize,
}

/// Where a call's outputs are: at the same place of every rank's buffer.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// By rank.
    pub(super) outputs: Vec<u64>,
    /// Which window, and where in it: the same number on all ranks if they mean the same.
    pub(super) fingerprint: u32,
}

/// All ranks' copiers.
#[derive(Debug)]
pub(super) struct Copiers {
    ranks: Arc<Ranks>,
    windows: Mutex<BTreeMap<u32, Registered>>,
    watch: Option<JoinHandle<()>>,
}

/// What the watching thread shares with the communicator.
#[derive(Debug)]
struct Ranks {
    copiers: Vec<Copier>,
    words: Vec<Vec<Words>>,
    control: Arc<HostMemory>,
    over: Mutex<bool>,
    changed: Condvar,
}

impl Copiers {
    /// For all ranks of a communicator, whose abort word is the first of `control`.
    pub(super) fn new(endpoints: &[Endpoint], wiring: &Wiring, control: Arc<HostMemory>) -> Result<Copiers> {
        let copiers = endpoints.iter().map(|e| Copier::new(e.who, &e.context)).collect::<Result<_>>()?;
        let words = (0..endpoints.len()).map(|rank| wiring.words(rank)).collect();
        let (over, changed) = (Mutex::new(false), Condvar::new());
        let ranks = Arc::new(Ranks { copiers, words, control, over, changed });
        let watched = ranks.clone();
        let named = std::thread::Builder::new().name("ringleader-watch".into());
        let watch = named.spawn(move || watched.watch()).map_err(|why| Error::System {
            action: "start the thread that watches copies".into(),
            reason: why.to_string(),
        })?;
        Ok(Copiers { ranks, windows: Mutex::default(), watch: Some(watch) })
    }

    /// Remembers one buffer of each rank.
    pub(super) fn register(&self, addresses: Vec<u64>, bytes: usize) -> u32 {
        let mut windows = self.windows.lock();
        let id = windows.last_key_value().map_or(1, |(last, _)| last + 1);
        windows.insert(id, Registered { addresses, bytes });
        id
    }

    pub(super) fn forget(&self, id: u32) {
        self.windows.lock().remove(&id);
    }

    /// Where all ranks' outputs are if this rank's is `bytes` at `address`.
    pub(super) fn place(&self, rank: usize, address: u64, bytes: usize) -> Option<Place> {
        let windows = self.windows.lock();
        let (id, window) = windows.iter().find(|(_, w)| {
            let first = w.addresses[rank];
            address >= first && address + bytes as u64 <= first + w.bytes as u64
        })?;
        let offset = address - window.addresses[rank];
        let outputs = window.addresses.iter().map(|first| first + offset).collect();
        // Odd, so that it never cancels out, and different for neighbouring windows and offsets.
        let fingerprint = (id.wrapping_mul(0x9e37_79b1) ^ (offset >> 3) as u32).wrapping_mul(2) | 1;
        Some(Place { outputs, fingerprint })
    }

    /// The words of a rank and each peer.
    pub(super) fn words(&self, rank: usize) -> &[Words] {
        &self.ranks.words[rank]
    }

    /// Enqueues a rank's part.
    ///
    /// # Safety
    /// As [`Copier::enqueue`].
    pub(super) unsafe fn enqueue(&self, rank: usize, stream: &CudaStream, work: &Work<'_>) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.ranks.copiers[rank].enqueue(stream, work) }
    }
}

/// From how many bytes on copies are used if nothing is set.
pub(super) fn copies_from(collective: Collective) -> usize {
    if collective.reduces() { REDUCED_FROM } else { SPREAD_FROM }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        *self.ranks.over.lock() = true;
        self.ranks.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            // It has nothing to say.
            let _ = watch.join();
        }
    }
}

impl Ranks {
    /// Waits for the end of the communicator, or for its failure, after which all streams are let go.
    fn watch(&self) {
        let mut over = self.over.lock();
        while !*over {
            if self.control.word(0).load(Ordering::Acquire) != 0 {
                drop(over);
                return self.rescue();
            }
            self.changed.wait_for(&mut over, LOOK);
        }
    }

    fn rescue(&self) {
        let started = Instant::now();
        // Streams wait for words of their own, and calls' streams do too, which nobody here knows: they are let go as long
        // as patience lasts or the communicator does.
        while started.elapsed() < PATIENCE && !(*self.over.lock() && self.copiers.iter().all(Copier::idle)) {
            for (rank, copier) in self.copiers.iter().enumerate() {
                let others = self.words[rank].iter().enumerate().filter(|(peer, _)| *peer != rank);
                // SAFETY: regions are freed after the communicator's copiers, which join this thread first.
                unsafe { copier.rescue(others.map(|(_, words)| words.own)) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
