//! Collectives whose bytes are moved by copy engines: no multiprocessor is held while they travel.
//!
//! The folds are those of `direct`, in few large pieces. A rank copies its input straight into its peers' outputs, whose
//! addresses it knows because they are registered windows. What is to be reduced is added there by a short kernel, and the
//! result goes back the same way. For each piece there is a *word* in the receiver's link memory, which the sender's stream
//! raises and the receiver's waits for and lowers: after an operation all words are as before it, so a captured one can be
//! replayed, and no rank waits for another on the host.
//!
//! An operation begins with an exchange of nothing: when it is over, every peer has begun the operation as well, on the same
//! window, so its output may be written.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::driver::{self, KernelLaunch, Who, WordOp};
use super::kernels::Family;
use super::{abi, scale};
use crate::engine::Call;
use crate::error::Result;
use crate::types::{Collective, ReduceOp};

/// Bytes of the words of one region.
pub(crate) const WORD_BYTES: usize = 2 * MOST_PIECES * WORD_STRIDE as usize;

/// Most pieces of what one rank sends another.
const MOST_PIECES: usize = 8;

/// Words stand so far apart that neighbours do not share a sector.
const WORD_STRIDE: u64 = 32;

/// While one piece is added the next is on its way; each costs a wait on both sides. Prototypes were fastest with two to four
/// pieces from 64 MiB to 1 GiB.
const PIECE_BYTES: usize = 64 << 20;

/// The words of a pair of ranks, as one of them addresses them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// What the peer raises and this rank waits for.
    pub(crate) own: u64,
    /// What this rank raises.
    pub(crate) peer: u64,
}

/// What a word says has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Input: a contribution to a reduction, or what is gathered.
    Input = 0,
    /// What a reduction came to.
    Result = 1,
}

fn word(first: u64, kind: Kind, piece: usize) -> u64 {
    first + (kind as usize * MOST_PIECES + piece) as u64 * WORD_STRIDE
}

/// The pieces of a chunk: number, first byte, length. The same on both sides.
fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    // Two at least, so that the kernel that adds one runs beside the copy of the other.
    let count = bytes.div_ceil(PIECE_BYTES).clamp(2, MOST_PIECES);
    let piece = bytes.div_ceil(count).next_multiple_of(4096).max(4096);
    (0..bytes.div_ceil(piece)).map(move |k| (k, k * piece, piece.min(bytes - k * piece)))
}

/// A rank's streams for copies.
#[derive(Debug)]
pub(crate) struct Copier {
    who: Who,
    /// Pushes inputs; adds, and pushes results.
    sides: [Arc<CudaStream>; 2],
    begun: CudaEvent,
    pushed: CudaEvent,
    ended: [CudaEvent; 2],
    /// For [`rescue`](Self::rescue).
    spare: Arc<CudaStream>,
}

/// One rank's part of one operation.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) call: &'a Call,
    pub(crate) input: u64,
    /// Every rank's output.
    pub(crate) outputs: &'a [u64],
    /// By rank; this rank's own are not looked at.
    pub(crate) words: &'a [Words],
    /// The program kernels of the type.
    pub(crate) kernels: &'a Family,
    /// Blocks of the kernel that adds.
    pub(crate) blocks: u32,
}

/// Whether copies can carry a call out. What peers contribute to a reduction comes into the output, where there is room for
/// one other rank's, and only beside the input; a factor is applied where kernels read the input.
pub(crate) fn can(collective: Collective, op: ReduceOp, ranks: usize, in_place: bool) -> bool {
    match collective {
        Collective::AllReduce | Collective::ReduceScatter => {
            ranks == 2 && !in_place && !matches!(op, ReduceOp::PreMulSum(_))
        }
        Collective::AllGather | Collective::Broadcast { .. } => ranks > 1,
        Collective::Reduce { .. } => false,
    }
}

impl Copier {
    /// Makes a rank's streams.
    pub(crate) fn new(who: Who, context: &Arc<CudaContext>) -> Result<Copier> {
        let stream = || context.new_stream().map_err(|e| who.error("cuStreamCreate", e));
        let event = || context.new_event(None).map_err(|e| who.error("cuEventCreate", e));
        let (sides, ended) = ([stream()?, stream()?], [event()?, event()?]);
        Ok(Copier { who, sides, begun: event()?, pushed: event()?, ended, spare: stream()? })
    }

    /// Enqueues a rank's part behind what is in `stream`, which ends with the exchange of nothing; what follows in it
    /// comes after.
    ///
    /// Copies of inputs wait for nothing, kernels that add wait for those alone, and `stream` waits for both: they end also
    /// if the device takes all of them from one queue. Ranks that share a device do not have that order among them.
    ///
    /// # Safety
    /// The buffers hold what the call says, and they and the words stay valid until the stream has passed.
    pub(crate) unsafe fn enqueue(&self, stream: &CudaStream, work: &Work<'_>) -> Result<()> {
        self.record(&self.begun, stream)?;
        for side in &self.sides {
            self.wait(side, &self.begun)?;
        }
        // SAFETY: passed on to the caller.
        let expected = unsafe {
            match work.call.collective {
                Collective::AllReduce | Collective::ReduceScatter => self.reduce(work)?,
                _ => self.spread(stream, work)?,
            }
        };
        for (event, side) in self.ended.iter().zip(&self.sides) {
            self.record(event, side)?;
            self.wait(stream, event)?;
        }
        self.take(stream, &expected)
    }

    /// All_gather and broadcast. Returns the words that say that everything has come.
    unsafe fn spread(&self, stream: &CudaStream, work: &Work<'_>) -> Result<Vec<u64>> {
        let (me, n) = (self.who.rank, work.outputs.len());
        let bytes = work.call.count * work.call.dtype.size();
        let root = work.call.collective.root();
        let gives = |rank: usize| root.is_none_or(|root| root == rank);
        // Where a rank's input goes in every output.
        let place = |rank: usize| if root.is_some() { 0 } else { (rank * bytes) as u64 };
        let mut expected = Vec::new();
        for distance in 1..n {
            let (to, from) = ((me + distance) % n, (me + n - distance) % n);
            for (k, begin, length) in pieces(bytes) {
                if gives(me) {
                    let side = &self.sides[(k + distance) % 2];
                    let target = work.outputs[to] + place(me) + begin as u64;
                    // SAFETY: the caller vouches for the buffers.
                    unsafe { driver::copy(self.who, side, target, work.input + begin as u64, length) }?;
                    self.raise(side, word(work.words[to].peer, Kind::Input, k))?;
                }
                if gives(from) {
                    expected.push(word(work.words[from].own, Kind::Input, k));
                }
            }
        }
        let own = work.outputs[me] + place(me);
        if gives(me) && work.input != own {
            // SAFETY: the caller vouches for the buffers.
            unsafe { driver::copy(self.who, stream, own, work.input, bytes) }?;
        }
        Ok(expected)
    }

    /// All_reduce and reduce_scatter of two ranks. Returns the words that say that all results have come.
    unsafe fn reduce(&self, work: &Work<'_>) -> Result<Vec<u64>> {
        let (me, peer) = (self.who.rank, 1 - self.who.rank);
        let block = work.call.count * work.call.dtype.size();
        let whole = work.call.collective == Collective::AllReduce;
        // Each rank's part of the input: half of it, at a whole line, or its block.
        let middle = (block / 2).next_multiple_of(abi::RL_LINE as usize).min(block);
        let part = |rank: usize| match (whole, rank) {
            (true, 0) => (0, middle),
            (true, _) => (middle, block - middle),
            (false, rank) => (rank * block, block),
        };
        let ((mine, my_bytes), (theirs, their_bytes)) = (part(me), part(peer));
        // A reduce_scatter's output is a rank's part alone.
        let in_output = |part: usize| if whole { part as u64 } else { 0 };
        let [push, add] = &self.sides;
        let mut expected = Vec::new();
        let mut pushes = pieces(their_bytes);
        for (k, begin, length) in pieces(my_bytes) {
            // What this rank waits for comes when its own push is done, or nearly: waiting for that first costs little, and
            // then no order in which a device may take up the two streams' work can keep the ranks waiting for each other.
            if let Some((k, begin, length)) = pushes.next() {
                // SAFETY: passed on to the caller.
                unsafe {
                    self.push_input(work, (theirs + begin, in_output(theirs) + begin as u64), length, k)
                }?;
                self.record(&self.pushed, push)?;
                self.wait(add, &self.pushed)?;
            }
            self.take(add, &[word(work.words[peer].own, Kind::Input, k)])?;
            let at = in_output(mine) + begin as u64;
            // SAFETY: the caller vouches for the buffers.
            unsafe { self.add(work, work.input + (mine + begin) as u64, work.outputs[me] + at, length) }?;
            if whole {
                // SAFETY: as above.
                unsafe {
                    driver::copy(self.who, add, work.outputs[peer] + at, work.outputs[me] + at, length)
                }?;
                self.raise(add, word(work.words[peer].peer, Kind::Result, k))?;
            }
        }
        for (k, begin, length) in pushes {
            // SAFETY: passed on to the caller.
            unsafe { self.push_input(work, (theirs + begin, in_output(theirs) + begin as u64), length, k) }?;
        }
        if whole {
            let results = pieces(their_bytes).map(|(k, ..)| word(work.words[peer].own, Kind::Result, k));
            expected.extend(results);
        }
        Ok(expected)
    }

    /// Copies a piece of the input, from one byte of it to another of the peer's output.
    unsafe fn push_input(
        &self,
        work: &Work<'_>,
        (from, to): (usize, u64),
        length: usize,
        k: usize,
    ) -> Result<()> {
        let (peer, push) = (1 - self.who.rank, &self.sides[0]);
        // SAFETY: the caller vouches for the buffers.
        unsafe { driver::copy(self.who, push, work.outputs[peer] + to, work.input + from as u64, length) }?;
        self.raise(push, word(work.words[peer].peer, Kind::Input, k))
    }

    /// Adds this rank's input to what the peer has put into the output: a program of one fold and no links.
    unsafe fn add(&self, work: &Work<'_>, input: u64, output: u64, bytes: usize) -> Result<()> {
        let op = sum_of_two(self.who.rank, work, input, output, bytes / work.call.dtype.size());
        let launch = KernelLaunch {
            function: work.kernels.of(work.call.op),
            blocks: work.blocks,
            threads: abi::RL_BLOCK,
            early: false,
            parameter: &*op,
        };
        // SAFETY: the program kernels take one rl_op; without state it needs nothing but its two buffers, for which the
        // caller vouches.
        unsafe { launch.enqueue(self.who, &self.sides[1]) }
    }

    fn raise(&self, stream: &CudaStream, word: u64) -> Result<()> {
        // SAFETY: words are link memory, which outlives everything that the communicator has enqueued.
        unsafe { driver::word_ops(self.who, stream, &[WordOp::Raise(word)]) }
    }

    /// Waits for words and lowers them again.
    fn take(&self, stream: &CudaStream, words: &[u64]) -> Result<()> {
        let ops: Vec<WordOp> = words.iter().flat_map(|&w| [WordOp::Wait(w), WordOp::Lower(w)]).collect();
        ops.chunks(MOST_WORD_OPS).try_for_each(|ops| {
            // SAFETY: as in `raise`.
            unsafe { driver::word_ops(self.who, stream, ops) }
        })
    }

    fn record(&self, event: &CudaEvent, stream: &CudaStream) -> Result<()> {
        event.record(stream).map_err(|e| self.who.error("cuEventRecord", e))
    }

    fn wait(&self, stream: &CudaStream, event: &CudaEvent) -> Result<()> {
        stream.wait(event).map_err(|e| self.who.error("cuStreamWaitEvent", e))
    }

    /// Lets streams go that wait for words which nobody will raise any more, because the communicator has failed: raises
    /// all of them. The streams lower what they waited for, so this has to be repeated until [`idle`](Self::idle).
    ///
    /// # Safety
    /// `words` are the first addresses of this rank's own words, in memory that is still there.
    pub(crate) unsafe fn rescue(&self, words: impl Iterator<Item = u64>) {
        let all =
            |first: u64| (0..2 * MOST_PIECES as u64).map(move |i| WordOp::Raise(first + i * WORD_STRIDE));
        let raise: Vec<WordOp> = words.flat_map(all).collect();
        for part in raise.chunks(MOST_WORD_OPS) {
            // SAFETY: passed on to the caller. Whether it works shows in the streams.
            let _ = unsafe { driver::word_ops(self.who, &self.spare, part) };
        }
    }

    /// Whether nothing is in flight on the side streams.
    pub(crate) fn idle(&self) -> bool {
        self.sides.iter().chain([&self.spare]).all(|stream| driver::is_idle(stream))
    }
}

/// Most operations on words that are handed to the driver at once.
const MOST_WORD_OPS: usize = 64;

/// The parameter of a program kernel that replaces what is in the output, the other rank's contribution, by the reduction of
/// both, combined in rank order.
fn sum_of_two(rank: usize, work: &Work<'_>, input: u64, output: u64, count: usize) -> Box<abi::rl_op> {
    let operand = |kind: u32| (kind << 8) as u16;
    let sources = match rank {
        0 => [operand(abi::RL_KIND_INPUT), operand(abi::RL_KIND_OUTPUT)],
        _ => [operand(abi::RL_KIND_OUTPUT), operand(abi::RL_KIND_INPUT)],
    };
    // No link ends; one fold of two sources into one sink.
    let head = 2 | 1 << 5 | abi::RL_FOLD_FINISH as u16;
    let words = [0, 1, head, 0, sources[0], sources[1], operand(abi::RL_KIND_OUTPUT)];
    let call = work.call;
    let mut op = Box::<abi::rl_op>::default();
    (op.input, op.output) = (input, output);
    op.call = call.words();
    (op.scale, _) = scale(call.op, call.dtype);
    op.flags = if call.op == ReduceOp::Avg { abi::RL_OP_DIVIDE } else { 0 };
    (op.rank, op.ranks) = (rank as u32, 2);
    (op.workers, op.lanes) = (1, work.blocks);
    op.tile = (64 << 10) / call.dtype.size() as u32;
    op.bounds[1] = count as u64;
    op.words[..words.len()].copy_from_slice(&words);
    op
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_chunk() {
        for bytes in [0, 1, 4096, 4097, 3 << 20, (200 << 20) + 12, 5 << 30] {
            let (mut at, mut count) = (0, 0);
            for (k, begin, length) in pieces(bytes) {
                assert!(k == count && begin == at && length > 0);
                (at, count) = (at + length, count + 1);
            }
            assert!(at == bytes && count <= MOST_PIECES);
            assert!(bytes <= 8192 || count >= 2);
        }
    }

    #[test]
    fn every_piece_has_a_word_of_its_own() {
        let kinds = [Kind::Input, Kind::Result];
        let all = kinds.into_iter().flat_map(|kind| (0..MOST_PIECES).map(move |k| word(0, kind, k)));
        let seen: std::collections::BTreeSet<u64> = all.collect();
        assert_eq!(seen.len(), 2 * MOST_PIECES);
        assert!(seen.iter().all(|word| word + 4 <= WORD_BYTES as u64));
    }
}
