//! The host engine as the suite sees it.

use super::{Engine, Fleet, Job, Memory};
use ringleader::{Collective, Communicator, Config, Element, ReduceOp, Result, group};

/// CPU ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    /// Whether one thread makes the calls of all ranks, in a group, rather than each rank's thread its own.
    pub(crate) grouped: bool,
}

/// `communicators[c][rank]`.
pub(crate) struct CpuFleet {
    communicators: Vec<Vec<Communicator>>,
    grouped: bool,
}

impl Engine for Cpu {
    type Fleet = CpuFleet;

    fn fleet(&self, ranks: usize, communicators: usize, config: &Config) -> CpuFleet {
        let create = |_| Communicator::cpu(ranks, config).expect("CPU ranks need nothing special");
        CpuFleet { communicators: (0..communicators).map(create).collect(), grouped: self.grouped }
    }
}

impl Fleet for CpuFleet {
    fn run<T: Element>(&mut self, jobs: &mut [Job<T>]) {
        if self.grouped {
            // All jobs in one group: each rank's calls are carried out in the order they were made.
            let communicators = &self.communicators;
            group(|g| {
                for job in jobs {
                    let ranks = communicators[job.communicator].iter().zip(&mut job.memory).zip(&job.ops);
                    for ((communicator, memory), &op) in ranks {
                        call_in_group(g, communicator, job.collective, op, memory)?;
                    }
                }
                Ok(())
            })
            .unwrap_or_else(|why| panic!("group: {why}"));
            return;
        }
        let ranks = self.communicators[0].len();
        let mut by_rank: Vec<Vec<_>> = (0..ranks).map(|_| Vec::with_capacity(jobs.len())).collect();
        for job in jobs {
            for (rank, memory) in job.memory.iter_mut().enumerate() {
                let communicator = &self.communicators[job.communicator][rank];
                by_rank[rank].push((communicator, job.collective, job.ops[rank], memory));
            }
        }
        std::thread::scope(|scope| {
            for calls in by_rank {
                scope.spawn(move || {
                    for (communicator, collective, op, memory) in calls {
                        call(communicator, collective, op, memory)
                            .unwrap_or_else(|why| panic!("{collective}: {why}"));
                    }
                });
            }
        });
    }
}

/// Makes one rank's call.
pub(crate) fn call<T: Element>(
    c: &Communicator,
    collective: Collective,
    op: ReduceOp,
    memory: &mut Memory<T>,
) -> Result<()> {
    let send = memory.send.as_ref().map(|buffer| buffer.slice());
    let recv = memory.recv.as_mut().map(|buffer| buffer.slice_mut());
    if memory.in_place {
        let buffer = recv.expect("a call in place has a buffer");
        return match collective {
            Collective::AllReduce => c.all_reduce_in_place(buffer, op),
            Collective::ReduceScatter => c.reduce_scatter_in_place(buffer, op),
            Collective::AllGather => c.all_gather_in_place(buffer),
            Collective::Broadcast { root } => c.broadcast_in_place(buffer, root),
            Collective::Reduce { root } => c.reduce_in_place(buffer, op, root),
        };
    }
    match (collective, send, recv) {
        (Collective::AllReduce, Some(send), Some(recv)) => c.all_reduce(send, recv, op),
        (Collective::ReduceScatter, Some(send), Some(recv)) => c.reduce_scatter(send, recv, op),
        (Collective::AllGather, Some(send), Some(recv)) => c.all_gather(send, recv),
        (Collective::Broadcast { root }, send, Some(recv)) => c.broadcast(send, recv, root),
        (Collective::Reduce { root }, Some(send), recv) => c.reduce(send, recv, op, root),
        _ => unreachable!("Memory::new lays out what the collective needs"),
    }
}

/// Adds one rank's call to a group.
fn call_in_group<'b, T: Element>(
    g: &mut ringleader::Group<'b>,
    c: &'b Communicator,
    collective: Collective,
    op: ReduceOp,
    memory: &'b mut Memory<T>,
) -> Result<()> {
    let send = memory.send.as_ref().map(|buffer| buffer.slice());
    let recv = memory.recv.as_mut().map(|buffer| buffer.slice_mut());
    if memory.in_place {
        let buffer = recv.expect("a call in place has a buffer");
        return match collective {
            Collective::AllReduce => g.all_reduce_in_place(c, buffer, op),
            Collective::ReduceScatter => g.reduce_scatter_in_place(c, buffer, op),
            Collective::AllGather => g.all_gather_in_place(c, buffer),
            Collective::Broadcast { root } => g.broadcast_in_place(c, buffer, root),
            Collective::Reduce { root } => g.reduce_in_place(c, buffer, op, root),
        };
    }
    match (collective, send, recv) {
        (Collective::AllReduce, Some(send), Some(recv)) => g.all_reduce(c, send, recv, op),
        (Collective::ReduceScatter, Some(send), Some(recv)) => g.reduce_scatter(c, send, recv, op),
        (Collective::AllGather, Some(send), Some(recv)) => g.all_gather(c, send, recv),
        (Collective::Broadcast { root }, send, Some(recv)) => g.broadcast(c, send, recv, root),
        (Collective::Reduce { root }, Some(send), recv) => g.reduce(c, send, recv, op, root),
        _ => unreachable!("Memory::new lays out what the collective needs"),
    }
}
