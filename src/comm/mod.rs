//! Communicators: what the user holds.
//!
//! A communicator is made for all its ranks at once, and every rank gets a handle. Every rank must make the same calls
//! in the same order, each from its own thread, or several from one thread in a [`group`].
//!
//! ```
//! use ringleader::{Communicator, Config, ReduceOp};
//!
//! let ranks = Communicator::cpu(2, &Config::new())?;
//! std::thread::scope(|scope| {
//!     for comm in &ranks {
//!         scope.spawn(move || {
//!             let send = [comm.rank() as f32; 3];
//!             let mut recv = [0.0; 3];
//!             comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
//!             assert_eq!(recv, [1.0; 3]);
//!             Ok::<(), ringleader::Error>(())
//!         });
//!     }
//! });
//! # Ok::<(), ringleader::Error>(())
//! ```

mod check;
mod choose;
#[cfg(feature = "cuda")]
mod choose_gpu;
mod config;
#[cfg(feature = "cuda")]
mod copiers;
mod cpu;
#[cfg(feature = "cuda")]
mod create;
#[cfg(feature = "cuda")]
mod cuda;
mod env;
mod group;
mod log;
mod machine;
#[cfg(feature = "cuda")]
mod on_stream;
#[cfg(feature = "cuda")]
mod survey;
#[cfg(feature = "cuda")]
mod window;

pub use config::{Config, DebugLevel, Subsystem};
pub use group::{Group, group};
#[cfg(feature = "cuda")]
pub use on_stream::OnStream;
#[cfg(feature = "cuda")]
pub use window::Window;

/// What `perf` needs of the compiled kernels: a unit that is no collective's.
#[cfg(all(feature = "cuda", feature = "cli"))]
pub(crate) use crate::engine::cuda::kernels::image as kernel_image;

use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::error::Error;
use crate::error::Result;
use crate::plan::Plan;
#[cfg(feature = "cuda")]
use crate::types::DataType;
use crate::types::{Collective, Element, ReduceOp};

/// One rank's handle of a communicator.
///
/// Calls block until the result is there and no other rank uses the buffers any more. They return an error, rather than
/// wait for ever or give a wrong result, if an argument is wrong ([`Error::InvalidArgument`], before anything starts),
/// if the ranks called different things ([`Error::Mismatch`], on every rank; nothing was written), if a rank was dropped
/// ([`Error::Aborted`]), or if a rank does not come within [`Config::timeout`] ([`Error::Timeout`]). After `Timeout` and
/// `Aborted` the communicator can only be dropped, and what is in the output buffers is unspecified.
///
/// Zero elements are allowed: nothing is written, and the call still counts as an operation, on every rank.
///
/// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
/// [`Error::Mismatch`]: crate::Error::Mismatch
/// [`Error::Aborted`]: crate::Error::Aborted
/// [`Error::Timeout`]: crate::Error::Timeout
#[derive(Debug)]
pub struct Communicator {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Cpu(cpu::Member),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Member),
}

impl Communicator {
    /// Makes a communicator of `ranks` CPU ranks in this process, 1 to 128, and returns the handle of each in order.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if the number of ranks or a setting is out of range.
    pub fn cpu(ranks: usize, config: &Config) -> Result<Vec<Communicator>> {
        let members = cpu::Member::create(ranks, config)?;
        Ok(members.into_iter().map(|m| Communicator { inner: Inner::Cpu(m) }).collect())
    }

    /// This handle's rank.
    pub fn rank(&self) -> usize {
        match &self.inner {
            Inner::Cpu(m) => m.rank(),
            #[cfg(feature = "cuda")]
            Inner::Cuda(m) => m.rank(),
        }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        match &self.inner {
            Inner::Cpu(m) => m.ranks(),
            #[cfg(feature = "cuda")]
            Inner::Cuda(m) => m.ranks(),
        }
    }

    /// How this rank reaches the next one, a line for each channel, in NCCL's form:
    /// `Channel 00 : 0[06] -> 1[07] via P2P/NVL`. None if it is the only rank.
    pub fn channels(&self) -> Vec<String> {
        match &self.inner {
            Inner::Cpu(m) => m.channels(),
            #[cfg(feature = "cuda")]
            Inner::Cuda(m) => m.channels(),
        }
    }

    /// The plan that calls follow whose message has `bytes`: the output of all_gather, the input of reduce_scatter, the
    /// buffer of the others. [`Plan::explain`] says in words why it was chosen.
    ///
    /// Sizes are planned in classes, four from one power of two to the next; [`Plan::bytes`] is the largest of the class.
    /// The first call for a class makes its plan, as the first collective of that size would.
    ///
    /// ```
    /// use ringleader::{Collective, Communicator, Config, topology::Topology};
    ///
    /// let file = std::env::temp_dir().join(format!("dgx1v-{}.xml", std::process::id()));
    /// std::fs::write(&file, Topology::dgx1v().to_xml())?;
    /// // CPU ranks follow the plans of whatever machine they are told of.
    /// let ranks = Communicator::cpu(8, &Config::new().topology_file(&file))?;
    /// let plan = ranks[0].explain(Collective::AllReduce, 1 << 30)?;
    /// assert!(plan.verified && plan.fraction_of_bound() > 0.95);
    /// # std::fs::remove_file(&file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for a root that is no rank;
    /// [`Error::Unavailable`] where calls follow no plan: on CPU ranks without
    /// [`Config::topology_file`], and where [`Config::channels`] sets the schedule's shape by hand.
    pub fn explain(&self, collective: Collective, bytes: usize) -> Result<Arc<Plan>> {
        match &self.inner {
            Inner::Cpu(m) => m.explain(collective, bytes),
            #[cfg(feature = "cuda")]
            Inner::Cuda(m) => m.explain(collective, bytes),
        }
    }

    /// Bytes of link memory held for this rank.
    pub fn memory_used(&self) -> usize {
        match &self.inner {
            Inner::Cpu(m) => m.memory_used(),
            #[cfg(feature = "cuda")]
            Inner::Cuda(m) => m.memory_used(),
        }
    }

    /// Every rank receives the reduction of all ranks' `send`. All slices have one length.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.separate("all_reduce", Collective::AllReduce, op, Some(send), Some(recv))?)
    }

    /// [`all_reduce`](Self::all_reduce) of `buffer` into itself.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.in_place("all_reduce_in_place", Collective::AllReduce, op, buffer)?)
    }

    /// Rank `r` receives block `r` of the reduction of all ranks' `send`, which is `ranks` blocks as long as `recv`.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.separate("reduce_scatter", Collective::ReduceScatter, op, Some(send), Some(recv))?)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with the result in block `rank` of `buffer`, which is `ranks` blocks
    /// long. The other blocks keep their values.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.in_place("reduce_scatter_in_place", Collective::ReduceScatter, op, buffer)?)
    }

    /// Every rank receives all ranks' `send`, one after the other. `recv` is `ranks` times as long as `send`.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.separate("all_gather", Collective::AllGather, ReduceOp::Sum, Some(send), Some(recv))?)
    }

    /// [`all_gather`](Self::all_gather) where this rank's part is already in block `rank` of `buffer`, which is `ranks`
    /// blocks long.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.in_place("all_gather_in_place", Collective::AllGather, ReduceOp::Sum, buffer)?)
    }

    /// Every rank receives the root's `send`, which other ranks leave out; if they give one, it is not looked at.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn broadcast<T: Element>(&self, send: Option<&[T]>, recv: &mut [T], root: usize) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.separate("broadcast", Collective::Broadcast { root }, ReduceOp::Sum, send, Some(recv))?)
    }

    /// [`broadcast`](Self::broadcast) of the root's `buffer` into everybody's.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn broadcast_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.in_place("broadcast_in_place", Collective::Broadcast { root }, ReduceOp::Sum, buffer)?)
    }

    /// The root receives the reduction of all ranks' `send`. Other ranks leave `recv` out; if they give one, it keeps
    /// its values.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.separate("reduce", Collective::Reduce { root }, op, Some(send), recv)?)
    }

    /// [`reduce`](Self::reduce) into the root's `buffer`. The other ranks' buffers keep their values.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let m = self.cpu_member()?;
        m.run(m.in_place("reduce_in_place", Collective::Reduce { root }, op, buffer)?)
    }

    /// The CPU side, for calls on slices.
    fn cpu_member(&self) -> Result<&cpu::Member> {
        match &self.inner {
            Inner::Cpu(member) => Ok(member),
            #[cfg(feature = "cuda")]
            Inner::Cuda(member) => Err(Error::Unavailable {
                what: format!("a collective on slices for rank {}", member.rank()),
                reason: "this communicator's ranks are on GPUs; call comm.on(&stream) with device buffers"
                    .into(),
            }),
        }
    }
}

/// How many GPUs this program can use.
///
/// # Errors
/// [`Error::Unavailable`] if there are none, saying whether the driver, the devices or this build's kernels are missing,
/// and what to do.
#[cfg(feature = "cuda")]
pub fn gpu_count() -> Result<usize> {
    crate::engine::cuda::available()
}

/// GPU ranks.
#[cfg(feature = "cuda")]
impl Communicator {
    /// Makes a communicator with one rank for each context, 1 to 16, and returns the handle of each in order. The same
    /// context may be given several times: its ranks then share the device, four at most unless `CUDA_DEVICE_MAX_CONNECTIONS`
    /// gives it more than 8 queues.
    ///
    /// All link memory is allocated here; the kernels of a type are loaded on first use. Peer access is enabled between
    /// the devices, also for their default stream-ordered pools.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver or this build has no kernels, [`Error::NoTransport`] if two ranks
    /// cannot reach each other, [`Error::Cuda`] if the driver refuses something.
    pub fn cuda(contexts: &[Arc<cudarc::driver::CudaContext>], config: &Config) -> Result<Vec<Communicator>> {
        let members = create::create(contexts, config)?;
        Ok(members.into_iter().map(|m| Communicator { inner: Inner::Cuda(m) }).collect())
    }

    /// The rank's operations on device buffers, enqueued on a stream of its device.
    ///
    /// # Panics
    /// Never; on a communicator of CPU ranks it is an error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the communicator's ranks are CPU ranks.
    pub fn on<'a>(&'a self, stream: &'a Arc<cudarc::driver::CudaStream>) -> Result<OnStream<'a>> {
        match &self.inner {
            Inner::Cuda(member) => Ok(OnStream { member, stream }),
            Inner::Cpu(member) => Err(Error::Unavailable {
                what: format!("a stream for rank {}", member.rank()),
                reason: "this communicator's ranks are CPU ranks; call its methods with slices".into(),
            }),
        }
    }

    /// Loads the kernels for a type on every device of the communicator now, rather than at the first call.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the driver refuses; nothing happens for CPU ranks.
    pub fn preload(&self, dtype: DataType) -> Result<()> {
        match &self.inner {
            Inner::Cuda(member) => member.preload(dtype),
            Inner::Cpu(_) => Ok(()),
        }
    }

    /// Gives up everything that is in flight, on every rank: kernels leave within microseconds, results are
    /// unspecified, and further calls return [`Error::Aborted`]. Nothing happens for CPU ranks, whose calls block.
    pub fn abort(&self) {
        if let Inner::Cuda(member) = &self.inner {
            member.abort();
        }
    }

    /// Whether an operation has failed on a device since: [`Error::Mismatch`] if the ranks called different things.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<()> {
        match &self.inner {
            Inner::Cuda(member) => member.check(),
            Inner::Cpu(_) => Ok(()),
        }
    }
}
