//! Several ranks' calls from one thread.

use super::Communicator;
use super::cpu::{Member, Ready};
use crate::engine::host::{Queue, run_group};
use crate::error::Result;
use crate::types::{Collective, Element, ReduceOp};

/// Collects calls in [`group`]. Each method is the one of [`Communicator`] with that name, for the handle given first.
#[derive(Default)]
pub struct Group<'b> {
    queues: Vec<(&'b Member, Vec<Ready<'b>>)>,
}

/// Makes several ranks' calls from one thread: they are collected by `f` and carried out together when it returns.
///
/// Each rank's calls are carried out in the order they were made. Handles of several communicators can take part, and
/// ranks whose calls are not in the group are waited for. If `f` fails, or a call's arguments are refused, nothing is
/// carried out.
///
/// ```
/// use ringleader::{Communicator, Config, ReduceOp, group};
///
/// let ranks = Communicator::cpu(3, &Config::new())?;
/// let mut buffers = vec![vec![1u32; 4]; 3];
/// group(|g| {
///     for (comm, buffer) in ranks.iter().zip(&mut buffers) {
///         g.all_reduce_in_place(comm, buffer, ReduceOp::Sum)?;
///     }
///     Ok(())
/// })?;
/// assert_eq!(buffers, vec![vec![3; 4]; 3]);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// What `f` returns, or the first error of a call; see [`Communicator`].
pub fn group<'b>(f: impl FnOnce(&mut Group<'b>) -> Result<()>) -> Result<()> {
    let mut group = Group::default();
    f(&mut group)?;
    let queue = |(member, orders): (&'b Member, Vec<Ready<'b>>)| Queue { rank: member.engine(), orders };
    run_group(group.queues.into_iter().map(queue).collect())
}

impl<'b> Group<'b> {
    fn add(&mut self, member: &'b Member, ready: Ready<'b>) {
        match self.queues.iter_mut().find(|q| std::ptr::eq(q.0, member)) {
            Some(queue) => queue.1.push(ready),
            None => self.queues.push((member, vec![ready])),
        }
    }

    fn separate<T: Element>(
        &mut self,
        comm: &'b Communicator,
        name: &'static str,
        collective: Collective,
        op: ReduceOp,
        buffers: (Option<&'b [T]>, Option<&'b mut [T]>),
    ) -> Result<()> {
        let member = comm.cpu_member()?;
        let ready = member.separate(name, collective, op, buffers.0, buffers.1)?;
        self.add(member, ready);
        Ok(())
    }

    fn in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        name: &'static str,
        collective: Collective,
        op: ReduceOp,
        buffer: &'b mut [T],
    ) -> Result<()> {
        let member = comm.cpu_member()?;
        let ready = member.in_place(name, collective, op, buffer)?;
        self.add(member, ready);
        Ok(())
    }

    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn all_reduce<T: Element>(
        &mut self,
        comm: &'b Communicator,
        send: &'b [T],
        recv: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.separate(comm, "all_reduce", Collective::AllReduce, op, (Some(send), Some(recv)))
    }

    /// [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        buffer: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.in_place(comm, "all_reduce_in_place", Collective::AllReduce, op, buffer)
    }

    /// [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        comm: &'b Communicator,
        send: &'b [T],
        recv: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.separate(comm, "reduce_scatter", Collective::ReduceScatter, op, (Some(send), Some(recv)))
    }

    /// [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        buffer: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.in_place(comm, "reduce_scatter_in_place", Collective::ReduceScatter, op, buffer)
    }

    /// [`Communicator::all_gather`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn all_gather<T: Element>(
        &mut self,
        comm: &'b Communicator,
        send: &'b [T],
        recv: &'b mut [T],
    ) -> Result<()> {
        let buffers = (Some(send), Some(recv));
        self.separate(comm, "all_gather", Collective::AllGather, ReduceOp::Sum, buffers)
    }

    /// [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        buffer: &'b mut [T],
    ) -> Result<()> {
        self.in_place(comm, "all_gather_in_place", Collective::AllGather, ReduceOp::Sum, buffer)
    }

    /// [`Communicator::broadcast`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn broadcast<T: Element>(
        &mut self,
        comm: &'b Communicator,
        send: Option<&'b [T]>,
        recv: &'b mut [T],
        root: usize,
    ) -> Result<()> {
        let buffers = (send, Some(recv));
        self.separate(comm, "broadcast", Collective::Broadcast { root }, ReduceOp::Sum, buffers)
    }

    /// [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn broadcast_in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        buffer: &'b mut [T],
        root: usize,
    ) -> Result<()> {
        self.in_place(comm, "broadcast_in_place", Collective::Broadcast { root }, ReduceOp::Sum, buffer)
    }

    /// [`Communicator::reduce`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn reduce<T: Element>(
        &mut self,
        comm: &'b Communicator,
        send: &'b [T],
        recv: Option<&'b mut [T]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.separate(comm, "reduce", Collective::Reduce { root }, op, (Some(send), recv))
    }

    /// [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// If an argument is refused.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        comm: &'b Communicator,
        buffer: &'b mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.in_place(comm, "reduce_in_place", Collective::Reduce { root }, op, buffer)
    }
}
