//! The CUDA engine as the suite sees it, and the GPUs of this machine.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use ringleader::{Collective, Communicator, Config, Element, OnStream, ReduceOp, Result};

use super::{Engine, Fleet, Job, Memory};

/// How many GPUs there are. Panics where `RINGLEADER_REQUIRE_GPU=1` and there are fewer than needed, so that a GPU
/// test run cannot pass by skipping.
pub(crate) fn found(needed: usize) -> bool {
    let count = match ringleader::gpu_count() {
        Ok(n) => n,
        Err(why) => {
            assert!(!required(), "RINGLEADER_REQUIRE_GPU=1, but {why}");
            println!("skipped: {why}");
            return false;
        }
    };
    if count < needed {
        assert!(!required(), "RINGLEADER_REQUIRE_GPU=1: {needed} GPUs are needed, there are {count}");
        println!("skipped: {needed} GPUs are needed, there are {count}");
    }
    count >= needed
}

fn required() -> bool {
    std::env::var("RINGLEADER_REQUIRE_GPU").is_ok_and(|v| v == "1")
}

/// Tests take turns: kernels of too many communicators at once would not fit on a device together.
static TURN: ReentrantMutex<()> = ReentrantMutex::new(());

/// Waits for this test's turn.
pub(crate) fn turn() -> ReentrantMutexGuard<'static, ()> {
    TURN.lock()
}

/// A context for each of `ranks` ranks, spread over the first `devices` GPUs.
pub(crate) fn contexts(ranks: usize, devices: usize) -> Vec<Arc<CudaContext>> {
    (0..ranks).map(|r| CudaContext::new(r % devices).expect("the device was counted")).collect()
}

/// GPU ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu {
    /// Over how many devices the ranks are spread.
    pub(crate) devices: usize,
    /// Whether peers may write each other's memory.
    pub(crate) p2p: bool,
    /// Whether each rank has a thread of its own.
    pub(crate) threads: bool,
    /// The numbers of ranks to test.
    pub(crate) ranks: &'static [usize],
}

/// `communicators[c][rank]`, and a stream a rank.
pub(crate) struct GpuFleet {
    communicators: Vec<Vec<Communicator>>,
    streams: Vec<Arc<CudaStream>>,
    threads: bool,
    _turn: ReentrantMutexGuard<'static, ()>,
}

impl Engine for Gpu {
    type Fleet = GpuFleet;

    fn fleet(&self, ranks: usize, communicators: usize, config: &Config) -> GpuFleet {
        let turn = turn();
        let contexts = contexts(ranks, self.devices);
        let config = config.clone().p2p(self.p2p).timeout(std::time::Duration::from_secs(20));
        let create = |_| Communicator::cuda(&contexts, &config).expect("the GPUs can be used");
        GpuFleet {
            communicators: (0..communicators).map(create).collect(),
            streams: contexts.iter().map(|c| c.new_stream().expect("a stream")).collect(),
            threads: self.threads,
            _turn: turn,
        }
    }

    fn rank_counts(&self) -> Vec<usize> {
        self.ranks.to_vec()
    }
}

/// The memory of one rank's call on its device.
struct Buffers {
    send: Option<CudaSlice<u8>>,
    recv: Option<CudaSlice<u8>>,
}

impl Buffers {
    fn upload<T: Element>(stream: &Arc<CudaStream>, memory: &Memory<T>) -> Self {
        let copy = |data: &[T]| stream.clone_htod(bytes(data)).expect("a copy to the device");
        Buffers {
            send: memory.send.as_ref().map(|b| copy(&b.all)),
            recv: memory.recv.as_ref().map(|b| copy(&b.all)),
        }
    }

    fn download<T: Element>(&self, stream: &Arc<CudaStream>, memory: &mut Memory<T>) {
        let pairs = [(&self.send, &mut memory.send), (&self.recv, &mut memory.recv)];
        for (device, host) in pairs {
            if let (Some(device), Some(host)) = (device, host) {
                stream.memcpy_dtoh(device, bytes_mut(&mut host.all)).expect("a copy from the device");
            }
        }
    }
}

/// The bytes of elements.
pub(crate) fn bytes<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of elements, any of which may be written.
pub(crate) fn bytes_mut<T: Element>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: elements are plain numbers without padding; any bits are valid.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

impl Fleet for GpuFleet {
    fn run<T: Element>(&mut self, jobs: &mut [Job<T>]) {
        let ranks = self.streams.len();
        let mut buffers: Vec<Vec<Buffers>> = (0..ranks)
            .map(|r| jobs.iter().map(|job| Buffers::upload(&self.streams[r], &job.memory[r])).collect())
            .collect();
        let communicators = &self.communicators;
        let enqueue = |rank: usize, stream: &Arc<CudaStream>, buffers: &mut [Buffers]| {
            for (job, buffers) in jobs.iter().zip(buffers) {
                let on = communicators[job.communicator][rank].on(stream).expect("a GPU communicator");
                call(&on, job.collective, job.ops[rank], &job.memory[rank], buffers)
                    .unwrap_or_else(|why| panic!("{}: {why}", job.collective));
            }
        };
        if self.threads {
            std::thread::scope(|scope| {
                for (rank, buffers) in buffers.iter_mut().enumerate() {
                    let (enqueue, stream) = (&enqueue, &self.streams[rank]);
                    scope.spawn(move || enqueue(rank, stream, buffers));
                }
            });
        } else {
            for (rank, buffers) in buffers.iter_mut().enumerate() {
                enqueue(rank, &self.streams[rank], buffers);
            }
        }
        for (rank, stream) in self.streams.iter().enumerate() {
            for ranks in communicators {
                ranks[rank].on(stream).and_then(|on| on.synchronize()).expect("the operations finish");
            }
        }
        for (rank, buffers) in buffers.iter().enumerate() {
            for (job, buffers) in jobs.iter_mut().zip(buffers) {
                buffers.download(&self.streams[rank], &mut job.memory[rank]);
            }
            self.streams[rank].synchronize().expect("the copies finish");
        }
    }
}

/// Makes one rank's call on the device buffers.
fn call<T: Element>(
    on: &OnStream<'_>,
    collective: Collective,
    op: ReduceOp,
    memory: &Memory<T>,
    buffers: &mut Buffers,
) -> Result<()> {
    let range = |b: &super::memory::Guarded<T>| b.begin * size_of::<T>()..(b.begin + b.len) * size_of::<T>();
    let send = buffers.send.as_ref().map(|d| d.slice(range(memory.send.as_ref().expect("as uploaded"))));
    let mut recv =
        buffers.recv.as_mut().map(|d| d.slice_mut(range(memory.recv.as_ref().expect("as uploaded"))));
    // SAFETY: the allocation is aligned for every element, and begins and ends between elements.
    let send = send.as_ref().map(|s| unsafe { s.transmute::<T>(s.len() / size_of::<T>()) }.expect("fits"));
    let mut recv = recv.as_mut().map(|r| {
        let len = r.len() / size_of::<T>();
        // SAFETY: as above.
        unsafe { r.transmute_mut::<T>(len) }.expect("fits")
    });
    if memory.in_place {
        let buffer = recv.as_mut().expect("a call in place has a buffer");
        return match collective {
            Collective::AllReduce => on.all_reduce_in_place(buffer, op),
            Collective::ReduceScatter => on.reduce_scatter_in_place(buffer, op),
            Collective::AllGather => on.all_gather_in_place(buffer),
            Collective::Broadcast { root } => on.broadcast_in_place(buffer, root),
            Collective::Reduce { root } => on.reduce_in_place(buffer, op, root),
        };
    }
    match (collective, send.as_ref(), recv.as_mut()) {
        (Collective::AllReduce, Some(send), Some(recv)) => on.all_reduce(send, recv, op),
        (Collective::ReduceScatter, Some(send), Some(recv)) => on.reduce_scatter(send, recv, op),
        (Collective::AllGather, Some(send), Some(recv)) => on.all_gather(send, recv),
        (Collective::Broadcast { root }, send, Some(recv)) => on.broadcast(send, recv, root),
        (Collective::Reduce { root }, Some(send), recv) => on.reduce(send, recv, op, root),
        _ => unreachable!("Memory::new lays out what the collective needs"),
    }
}
