//! Buffers with canaries around them, and what must be true of them after a call.

use super::number::{Number, random};
use ringleader::Collective;

/// Canaries on each side of a buffer, at least.
const GUARD: usize = 16;

/// A buffer inside a larger allocation whose other elements nobody may write.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<T> {
    /// The whole allocation, canaries and buffer.
    pub(crate) all: Vec<T>,
    /// Where the buffer begins.
    pub(crate) begin: usize,
    /// Its length.
    pub(crate) len: usize,
    before: Vec<T>,
}

impl<T: Number> Guarded<T> {
    /// A buffer of `len` elements that begins `offset` elements after a boundary of `GUARD` elements. All of the
    /// allocation holds arbitrary bits.
    fn new(len: usize, offset: usize, seed: u64) -> Self {
        let begin = GUARD + offset;
        let all: Vec<T> =
            (0..begin + len + GUARD).map(|i| T::from_bits(random(seed ^ ((i as u64) << 8)))).collect();
        Guarded { before: all.clone(), all, begin, len }
    }

    fn fill(&mut self, at: usize, data: &[T]) {
        let begin = self.begin + at;
        self.all[begin..begin + data.len()].copy_from_slice(data);
        self.before[begin..begin + data.len()].copy_from_slice(data);
    }

    /// Checks that nothing but elements `written` of the buffer changed, and returns those.
    fn finish(&self, written: std::ops::Range<usize>) -> Result<&[T], String> {
        let written = self.begin + written.start..self.begin + written.end;
        let changed = (0..self.all.len())
            .filter(|i| !written.contains(i))
            .find(|&i| self.all[i].bits() != self.before[i].bits());
        match changed {
            Some(i) => Err(format!(
                "element {} of a buffer of {} changed from {:?} to {:?}",
                i as isize - self.begin as isize,
                self.len,
                self.before[i],
                self.all[i]
            )),
            None => Ok(&self.all[written]),
        }
    }
}

impl<T> Guarded<T> {
    /// The buffer.
    pub(crate) fn slice(&self) -> &[T] {
        &self.all[self.begin..self.begin + self.len]
    }

    /// The buffer.
    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        &mut self.all[self.begin..self.begin + self.len]
    }
}

/// The buffers that one rank passes to a call.
#[derive(Clone, Debug)]
pub(crate) struct Memory<T> {
    /// The argument `send`; `None` in place, and for ranks that send nothing.
    pub(crate) send: Option<Guarded<T>>,
    /// The argument `recv`, or in place `buffer`; `None` for ranks that receive nothing.
    pub(crate) recv: Option<Guarded<T>>,
    /// Whether to make the in-place call.
    pub(crate) in_place: bool,
}

/// How the buffers of a call are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) in_place: bool,
    /// Elements by which the send buffer is off alignment.
    pub(crate) send_offset: usize,
    /// Elements by which the receive buffer, or the buffer in place, is off alignment.
    pub(crate) recv_offset: usize,
}

impl Layout {
    pub(crate) const OUT_OF_PLACE: Layout = Layout { in_place: false, send_offset: 0, recv_offset: 0 };
    pub(crate) const IN_PLACE: Layout = Layout { in_place: true, send_offset: 0, recv_offset: 0 };
}

/// Elements that one rank contributes.
pub(crate) fn input_len(collective: Collective, ranks: usize, count: usize) -> usize {
    if collective == Collective::ReduceScatter { ranks * count } else { count }
}

impl<T: Number> Memory<T> {
    /// Lays out the buffers of one rank with its input in them.
    pub(crate) fn new(
        collective: Collective,
        rank: usize,
        ranks: usize,
        count: usize,
        input: &[T],
        layout: Layout,
    ) -> Self {
        let seed = random(rank as u64 ^ 0xca7a_5e00);
        let receives = !matches!(collective, Collective::Reduce { root } if root != rank);
        let sends = !matches!(collective, Collective::Broadcast { root } if root != rank);
        let gathered = if collective == Collective::AllGather { ranks * count } else { count };
        if layout.in_place {
            let len = gathered.max(input_len(collective, ranks, count));
            let mut buffer = Guarded::new(len, layout.recv_offset, seed);
            if sends {
                buffer.fill(if collective == Collective::AllGather { rank * count } else { 0 }, input);
            }
            return Memory { send: None, recv: Some(buffer), in_place: true };
        }
        let send = sends.then(|| {
            let mut send = Guarded::new(input.len(), layout.send_offset, seed);
            send.fill(0, input);
            send
        });
        let recv = receives.then(|| Guarded::new(gathered, layout.recv_offset, !seed));
        Memory { send, recv, in_place: false }
    }

    /// The result on this rank, if it gets one, after a check that nothing else was written.
    pub(crate) fn finish(
        &self,
        collective: Collective,
        rank: usize,
        count: usize,
    ) -> Result<Option<&[T]>, String> {
        if let Some(send) = &self.send {
            send.finish(0..0).map_err(|why| format!("send: {why}"))?;
        }
        let Some(recv) = &self.recv else { return Ok(None) };
        let (gets, result) = match collective {
            Collective::Reduce { root } if root != rank => (false, 0..0),
            Collective::ReduceScatter if self.in_place => (true, rank * count..(rank + 1) * count),
            _ => (true, 0..recv.len),
        };
        let result = recv.finish(result).map_err(|why| format!("recv: {why}"))?;
        Ok(gets.then_some(result))
    }
}
