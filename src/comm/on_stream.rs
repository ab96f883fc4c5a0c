//! Collectives on device buffers: `comm.on(&stream).all_reduce(&send, &mut recv, op)`.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice};

use super::check::Caller;
use super::cuda::Member;
use crate::engine::Call;
use crate::error::{Error, Result};
use crate::types::{Collective, Element, ReduceOp};

/// A communicator's rank together with the stream its operations are enqueued on; made by
/// [`Communicator::on`](super::Communicator::on).
///
/// Every method checks its arguments, enqueues the operation and returns: it never waits for the device, so one thread
/// can drive several ranks one after the other, with or without a [`group`](super::group). Operations run in the order
/// they were enqueued, on whatever streams. Buffers may come from `cuMemAlloc`, from the stream-ordered pool (as
/// cudarc's `alloc` does) or be views of a part of either, at any element offset.
///
/// Calls may be captured into a CUDA graph and replayed; all ranks must then capture, and replay, alike. cudarc's event
/// tracking does not work under capture: switch it off for the context first.
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a> {
    pub(super) member: &'a Member,
    pub(super) stream: &'a Arc<CudaStream>,
}

impl OnStream<'_> {
    /// Every rank ends with the reduction of all inputs. `recv` is as long as `send`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if lengths or contexts do not fit, [`Error::Mismatch`] or [`Error::Aborted`] if the
    /// communicator has failed before, [`Error::Cuda`] if the driver refuses the launch.
    pub fn all_reduce<T, S, R>(&self, send: &S, recv: &mut R, op: ReduceOp) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        self.run("all_reduce", Collective::AllReduce, op, Some(send), Some(recv))
    }

    /// [`all_reduce`](Self::all_reduce) with one buffer for both.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_in_place<T: Element, B: DevicePtrMut<T>>(
        &self,
        buffer: &mut B,
        op: ReduceOp,
    ) -> Result<()> {
        self.run_in_place("all_reduce_in_place", Collective::AllReduce, op, buffer)
    }

    /// Rank `r` ends with block `r` of the reduction of all inputs. `send` is `ranks` times as long as `recv`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<T, S, R>(&self, send: &S, recv: &mut R, op: ReduceOp) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        self.run("reduce_scatter", Collective::ReduceScatter, op, Some(send), Some(recv))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) in one buffer of `ranks` blocks; the result is in the rank's own block,
    /// the others keep their values.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter_in_place<T: Element, B: DevicePtrMut<T>>(
        &self,
        buffer: &mut B,
        op: ReduceOp,
    ) -> Result<()> {
        self.run_in_place("reduce_scatter_in_place", Collective::ReduceScatter, op, buffer)
    }

    /// Every rank ends with all inputs in rank order. `recv` is `ranks` times as long as `send`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T, S, R>(&self, send: &S, recv: &mut R) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        self.run("all_gather", Collective::AllGather, ReduceOp::Sum, Some(send), Some(recv))
    }

    /// [`all_gather`](Self::all_gather) in one buffer of `ranks` blocks, the rank's own block being in place already.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather_in_place<T: Element, B: DevicePtrMut<T>>(&self, buffer: &mut B) -> Result<()> {
        self.run_in_place("all_gather_in_place", Collective::AllGather, ReduceOp::Sum, buffer)
    }

    /// Every rank ends with the root's input, which only the root gives.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and if the root is no rank or gives no input.
    pub fn broadcast<T, S, R>(&self, send: Option<&S>, recv: &mut R, root: usize) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        self.run("broadcast", Collective::Broadcast { root }, ReduceOp::Sum, send, Some(recv))
    }

    /// [`broadcast`](Self::broadcast) of the root's buffer into everybody's.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn broadcast_in_place<T: Element, B: DevicePtrMut<T>>(
        &self,
        buffer: &mut B,
        root: usize,
    ) -> Result<()> {
        self.run_in_place("broadcast_in_place", Collective::Broadcast { root }, ReduceOp::Sum, buffer)
    }

    /// The root ends with the reduction of all inputs; only the root gives an output.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and if the root is no rank or gives no output.
    pub fn reduce<T, S, R>(&self, send: &S, recv: Option<&mut R>, op: ReduceOp, root: usize) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        self.run("reduce", Collective::Reduce { root }, op, Some(send), recv)
    }

    /// [`reduce`](Self::reduce) with one buffer; all but the root's keep their values.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn reduce_in_place<T: Element, B: DevicePtrMut<T>>(
        &self,
        buffer: &mut B,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.run_in_place("reduce_in_place", Collective::Reduce { root }, op, buffer)
    }

    /// Waits until everything enqueued on the stream so far has finished.
    ///
    /// # Errors
    /// [`Error::Timeout`] after [`Config::timeout`](super::Config::timeout), naming the ranks that are late;
    /// [`Error::Mismatch`] or [`Error::Aborted`] if an operation was given up.
    pub fn synchronize(&self) -> Result<()> {
        self.member.synchronize(self.stream)
    }

    fn refuse(&self, call: &'static str, argument: &'static str, value: String, expected: String) -> Error {
        Error::InvalidArgument { call, rank: self.member.rank(), argument, value, expected }
    }

    /// Refuses a buffer of another device.
    fn check_context<T>(
        &self,
        call: &'static str,
        argument: &'static str,
        buffer: &impl DeviceSlice<T>,
    ) -> Result<()> {
        let (theirs, own) = (buffer.stream().context(), self.member.context());
        if theirs.cu_ctx() == own.cu_ctx() {
            return Ok(());
        }
        let value = format!("in a context of device {}", theirs.ordinal());
        Err(self.refuse(call, argument, value, format!("memory of this rank's device {}", own.ordinal())))
    }

    fn check_stream(&self, call: &'static str) -> Result<()> {
        if self.stream.context().cu_ctx() == self.member.context().cu_ctx() {
            return Ok(());
        }
        let value = format!("of a context of device {}", self.stream.context().ordinal());
        let expected = format!("a stream of this rank's device {}", self.member.context().ordinal());
        Err(self.refuse(call, "stream", value, expected))
    }

    fn run<T, S, R>(
        &self,
        call: &'static str,
        collective: Collective,
        op: ReduceOp,
        send: Option<&S>,
        recv: Option<&mut R>,
    ) -> Result<()>
    where
        T: Element,
        S: DevicePtr<T>,
        R: DevicePtrMut<T>,
    {
        let member = self.member;
        self.check_stream(call)?;
        let caller = Caller { call, rank: member.rank(), ranks: member.ranks() };
        caller.operation(collective, T::DTYPE, op)?;
        let count = caller.separate(collective, send.map(|s| s.len()), recv.as_ref().map(|r| r.len()))?;
        // What this rank does not use is not looked at.
        let send =
            send.filter(|_| !matches!(collective, Collective::Broadcast { root } if root != caller.rank));
        let recv = recv.filter(|_| !matches!(collective, Collective::Reduce { root } if root != caller.rank));
        if let Some(s) = send {
            self.check_context(call, "send", s)?;
        }
        if let Some(r) = &recv {
            self.check_context(call, "recv", &**r)?;
        }
        // cudarc's guards make the stream wait for earlier users of the buffers now, and record this use when they are
        // dropped: after the launch.
        let send = send.map(|s| s.device_ptr(self.stream));
        let recv = recv.map(|r| r.device_ptr_mut(self.stream));
        let (input, output) = (send.as_ref().map_or(0, |s| s.0), recv.as_ref().map_or(0, |r| r.0));
        caller.overlap(collective, count * T::DTYPE.size(), input, output)?;
        let call = Call { collective, dtype: T::DTYPE, op, count };
        // SAFETY: the lengths were checked; the guards keep the buffers until the launch is enqueued, and cudarc frees
        // a buffer in stream order after the recorded use.
        unsafe { member.enqueue(self.stream, &call, input, output) }
    }

    fn run_in_place<T: Element, B: DevicePtrMut<T>>(
        &self,
        call: &'static str,
        collective: Collective,
        op: ReduceOp,
        buffer: &mut B,
    ) -> Result<()> {
        let member = self.member;
        let (rank, ranks) = (member.rank(), member.ranks());
        self.check_stream(call)?;
        let caller = Caller { call, rank, ranks };
        caller.operation(collective, T::DTYPE, op)?;
        let count = caller.in_place(collective, buffer.len())?;
        self.check_context(call, "buffer", buffer)?;
        let (address, _guard) = buffer.device_ptr_mut(self.stream);
        let block = (rank * count * T::DTYPE.size()) as u64;
        let (input, output) = match collective {
            Collective::AllGather => (address + block, address),
            Collective::ReduceScatter => (address, address + block),
            Collective::Broadcast { root } if root != rank => (0, address),
            Collective::Reduce { root } if root != rank => (address, 0),
            _ => (address, address),
        };
        let call = Call { collective, dtype: T::DTYPE, op, count };
        // SAFETY: as in `run`.
        unsafe { member.enqueue(self.stream, &call, input, output) }
    }
}
