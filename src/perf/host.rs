//! Measuring CPU ranks: one thread a rank.

use std::time::Instant;

use super::case::Case;
use super::data::{Data, Sample, with_type};
use super::{Measured, Timing, format_bytes, median, memory};
use crate::comm::{Communicator, Config};
use crate::error::Result;
use crate::types::{Collective, ReduceOp};

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

/// How long a timed batch takes, if the calls in it are not given.
const BATCH_SECONDS: f64 = 0.01;

/// Most calls in such a batch.
const BATCH_CALLS: f64 = 512.0;

/// How long a row's batches may take together where calls are slow; three are timed all the same.
const ROW_SECONDS: f64 = 5.0;

/// Calls of one row.
struct Plan {
    warmup: usize,
    /// In one batch.
    calls: usize,
    batches: usize,
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

    /// Checks that there is memory for a call's buffers.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if there is not.
    pub(super) fn check(&self, case: &Case) -> Result<()> {
        let ranks = self.ranks();
        let elements = |rank| {
            let (send, recv) = lengths(case, rank, ranks);
            send + recv
        };
        let buffers = (0..ranks).map(elements).sum::<usize>() * case.dtype.size();
        let reference = with_type!(case.dtype, T => Data::<T>::bytes(case, ranks));
        memory::check((buffers + reference) as u64, || about(case, ranks))
    }

    fn measure_type<T: Sample>(&self, case: &Case, timing: &Timing) -> Result<Measured> {
        let ranks = self.ranks();
        let buffers =
            (0..ranks).map(|rank| Buffers::reserve(case, rank, ranks)).collect::<Result<Vec<_>>>()?;
        let data = &Data::<T>::new(case, ranks, timing.seed);
        let outcomes: Vec<Result<(Vec<f64>, u64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .comms
                .iter()
                .zip(buffers)
                .map(|(comm, buffers)| scope.spawn(move || one_rank(comm, case, timing, data, buffers)))
                .collect();
            threads.into_iter().map(|t| t.join().expect("measuring does not panic")).collect()
        });
        let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        // A call takes as long as it takes the rank that needs longest. All ranks have timed as many batches.
        let samples = (0..outcomes[0].0.len())
            .map(|i| outcomes.iter().map(|(times, _)| times[i]).fold(0.0, f64::max))
            .collect();
        let wrong = timing.check.then(|| outcomes.iter().map(|(_, wrong)| wrong).sum());
        Ok(Measured { seconds: median(samples), wrong, host_us: None })
    }
}

/// Elements of a rank's send and receive buffer.
fn lengths(case: &Case, rank: usize, ranks: usize) -> (usize, usize) {
    match case.in_place {
        true => (0, case.elements(ranks)),
        false => (case.input(rank, ranks).len(), case.output(rank, ranks).len()),
    }
}

/// `the buffers of 2 ranks for all_reduce of 64M`.
fn about(case: &Case, ranks: usize) -> String {
    format!(
        "the buffers of {ranks} ranks for {} of {}",
        case.collective.name(),
        format_bytes(case.message_bytes(ranks))
    )
}

/// One rank's part: the times of its batches, each divided by the calls in it, and its wrong elements.
///
/// Every rank makes the same calls. A call returns when all ranks are done with it, so whatever comes before a batch lets
/// the ranks begin it together.
fn one_rank<T: Sample>(
    comm: &Communicator,
    case: &Case,
    timing: &Timing,
    data: &Data<T>,
    mut buffers: Buffers<T>,
) -> Result<(Vec<f64>, u64)> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    buffers.fill(case, data, rank, ranks);
    let plan = plan(comm, case, timing, &mut buffers)?;
    for _ in 0..plan.warmup {
        call(comm, case, &mut buffers)?;
    }
    let mut times = Vec::with_capacity(plan.batches);
    for _ in 0..plan.batches {
        let started = Instant::now();
        for _ in 0..plan.calls {
            call(comm, case, &mut buffers)?;
        }
        times.push(started.elapsed().as_secs_f64() / plan.calls as f64);
    }
    if !timing.check {
        return Ok((times, 0));
    }
    // In place the first result was the next input, so begin anew; out of place look for what is not written, too.
    buffers.fill(case, data, rank, ranks);
    call(comm, case, &mut buffers)?;
    let output = case.output(rank, ranks);
    let result = if case.in_place { &buffers.recv[output.clone()] } else { &buffers.recv[..] };
    Ok((times, data.wrong(output.start, result)))
}

/// How many calls to make: as given, else as many as fit the time there is. All ranks come to the same numbers, since
/// they ask each other which of them is slowest.
fn plan<T: Sample>(
    comm: &Communicator,
    case: &Case,
    timing: &Timing,
    buffers: &mut Buffers<T>,
) -> Result<Plan> {
    let batches = timing.samples.max(1);
    if let Some(calls) = timing.calls {
        // One at least: it lets the ranks begin together.
        return Ok(Plan { warmup: timing.warmup.max(1), calls: calls.max(1), batches });
    }
    // The first call may have something to set up, and lets the ranks begin together.
    call(comm, case, buffers)?;
    let (mut calls, mut slowest) = (1, [0.0f64]);
    // One call is a rough measure; a few more make it a better one.
    for target in [BATCH_SECONDS / 8.0, BATCH_SECONDS] {
        let started = Instant::now();
        for _ in 0..calls {
            call(comm, case, buffers)?;
        }
        let own = started.elapsed().as_secs_f64() / calls as f64;
        comm.all_reduce(&[own], &mut slowest, ReduceOp::Max)?;
        calls = (target / slowest[0]).clamp(1.0, BATCH_CALLS) as usize;
        if slowest[0] > target {
            break;
        }
    }
    let most = |seconds: f64| (seconds / slowest[0]) as usize;
    let batches = batches.min((most(ROW_SECONDS) / calls).max(3));
    Ok(Plan { warmup: timing.warmup.min(most(ROW_SECONDS / 10.0)), calls, batches })
}

impl<T: Sample> Buffers<T> {
    /// Buffers that have room for a rank's part of a call, and nothing in them.
    fn reserve(case: &Case, rank: usize, ranks: usize) -> Result<Self> {
        let what = || about(case, ranks);
        let (send, recv) = lengths(case, rank, ranks);
        Ok(Buffers { send: memory::reserve(send, what)?, recv: memory::reserve(recv, what)? })
    }

    /// Puts this rank's contribution into them, and no results.
    fn fill(&mut self, case: &Case, data: &Data<T>, rank: usize, ranks: usize) {
        let (input, (send, recv)) = (case.input(rank, ranks), lengths(case, rank, ranks));
        let empty = |buffer: &mut Vec<T>, len: usize| {
            buffer.clear();
            buffer.resize(len, data.filler());
        };
        empty(&mut self.send, send);
        empty(&mut self.recv, recv);
        let own = if case.in_place { &mut self.recv[input.clone()] } else { &mut self.send[..] };
        data.fill(rank, input.start, own);
    }
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
