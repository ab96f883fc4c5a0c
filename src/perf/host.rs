//! Measuring CPU ranks: one thread a rank.

use std::time::Instant;

use super::case::Case;
use super::data::{Data, Sample, with_type};
use super::{Measured, Timing, median};
use crate::comm::{Communicator, Config};
use crate::error::Result;
use crate::types::Collective;

/// CPU ranks of this process.
#[derive(Debug)]
pub(super) struct HostRanks {
    comms: Vec<Communicator>,
}

/// A rank's buffers; in place, only `recv`, which holds the whole message.
struct Buffers<T> {
    send: Vec<T>,
    recv: Vec<T>,
}

/// Calls in one timed batch, if not said: enough to make about ten milliseconds of small ones.
fn batch(bytes: usize) -> usize {
    ((16 << 20) / bytes.max(32 << 10)).clamp(1, 512)
}

impl HostRanks {
    pub(super) fn new(ranks: usize, config: &Config) -> Result<Self> {
        Ok(HostRanks { comms: Communicator::cpu(ranks, config)? })
    }

    pub(super) fn ranks(&self) -> usize {
        self.comms.len()
    }

    pub(super) fn comms(&self) -> &[Communicator] {
        &self.comms
    }

    /// Times a call and checks its results.
    pub(super) fn measure(&self, case: &Case, timing: &Timing) -> Result<Measured> {
        with_type!(case.dtype, T => self.measure_type::<T>(case, timing))
    }

    fn measure_type<T: Sample>(&self, case: &Case, timing: &Timing) -> Result<Measured> {
        let ranks = self.ranks();
        let data = Data::<T>::new(case, ranks, timing.seed);
        let outcomes: Vec<Result<(Vec<f64>, u64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.comms.iter().map(|comm| scope.spawn(|| one_rank(comm, case, timing, &data))).collect();
            threads.into_iter().map(|t| t.join().expect("measuring does not panic")).collect()
        });
        let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        // A call takes as long as it takes the rank that needs longest.
        let samples = (0..timing.samples.max(1))
            .map(|i| outcomes.iter().map(|(times, _)| times[i]).fold(0.0, f64::max))
            .collect();
        let wrong = timing.check.then(|| outcomes.iter().map(|(_, wrong)| wrong).sum());
        Ok(Measured { seconds: median(samples), wrong })
    }
}

/// One rank's part: the times of its batches, each divided by the calls in it, and its wrong elements.
///
/// Every rank makes the same calls. A call returns when all ranks are done with it, so the one before a batch lets the
/// ranks begin together.
fn one_rank<T: Sample>(
    comm: &Communicator,
    case: &Case,
    timing: &Timing,
    data: &Data<T>,
) -> Result<(Vec<f64>, u64)> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut buffers = fresh(case, data, rank, ranks);
    let calls = timing.calls.unwrap_or_else(|| batch(case.message_bytes(ranks)));
    for _ in 0..timing.warmup {
        call(comm, case, &mut buffers)?;
    }
    let mut times = Vec::with_capacity(timing.samples);
    for _ in 0..timing.samples.max(1) {
        call(comm, case, &mut buffers)?;
        let started = Instant::now();
        for _ in 0..calls {
            call(comm, case, &mut buffers)?;
        }
        times.push(started.elapsed().as_secs_f64() / calls as f64);
    }
    if !timing.check {
        return Ok((times, 0));
    }
    // In place the first result was the next input, so begin anew; out of place look for what is not written, too.
    drop(buffers);
    let mut buffers = fresh(case, data, rank, ranks);
    call(comm, case, &mut buffers)?;
    let output = case.output(rank, ranks);
    let result = if case.in_place { &buffers.recv[output.clone()] } else { &buffers.recv[..] };
    Ok((times, data.wrong(output.start, result)))
}

/// Buffers with this rank's contribution, and no results yet.
fn fresh<T: Sample>(case: &Case, data: &Data<T>, rank: usize, ranks: usize) -> Buffers<T> {
    let input = case.input(rank, ranks);
    if case.in_place {
        let mut recv = vec![data.filler(); case.elements(ranks)];
        data.fill(rank, input.start, &mut recv[input]);
        return Buffers { send: Vec::new(), recv };
    }
    let mut send = vec![data.filler(); input.len()];
    data.fill(rank, input.start, &mut send);
    Buffers { send, recv: vec![data.filler(); case.output(rank, ranks).len()] }
}

fn call<T: Sample>(comm: &Communicator, case: &Case, buffers: &mut Buffers<T>) -> Result<()> {
    let Buffers { send, recv } = buffers;
    let me = comm.rank();
    if case.in_place {
        return match case.collective {
            Collective::AllReduce => comm.all_reduce_in_place(recv, case.op),
            Collective::ReduceScatter => comm.reduce_scatter_in_place(recv, case.op),
            Collective::AllGather => comm.all_gather_in_place(recv),
            Collective::Broadcast { root } => comm.broadcast_in_place(recv, root),
            Collective::Reduce { root } => comm.reduce_in_place(recv, case.op, root),
        };
    }
    match case.collective {
        Collective::AllReduce => comm.all_reduce(send, recv, case.op),
        Collective::ReduceScatter => comm.reduce_scatter(send, recv, case.op),
        Collective::AllGather => comm.all_gather(send, recv),
        Collective::Broadcast { root } => comm.broadcast((me == root).then_some(&send[..]), recv, root),
        Collective::Reduce { root } => {
            comm.reduce(send, (me == root).then_some(&mut recv[..]), case.op, root)
        }
    }
}
