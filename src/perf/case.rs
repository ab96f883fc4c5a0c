//! What is measured: a collective call, and the lengths and ranges it means for each rank.

use std::ops::Range;

use crate::types::{Collective, DataType, ReduceOp};

/// One row of a table: a collective of so many bytes, in place or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The collective, with its root.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// The operator, where the collective reduces.
    pub op: ReduceOp,
    /// The bytes asked for: the larger of a rank's input and output.
    pub bytes: usize,
    /// Whether input and output are one buffer.
    pub in_place: bool,
}

impl Case {
    /// Elements of one block, `count` in NCCL's calls. At least one, unless no bytes were asked for.
    pub fn count(&self, ranks: usize) -> usize {
        let block = self.dtype.size() * self.collective.blocks(ranks);
        if self.bytes == 0 { 0 } else { (self.bytes / block).max(1) }
    }

    /// Elements of the whole message.
    pub fn elements(&self, ranks: usize) -> usize {
        self.count(ranks) * self.collective.blocks(ranks)
    }

    /// Bytes of the whole message: what the table shows.
    pub fn message_bytes(&self, ranks: usize) -> usize {
        self.elements(ranks) * self.dtype.size()
    }

    /// The elements of the message that are a rank's input; empty if it has none.
    pub fn input(&self, rank: usize, ranks: usize) -> Range<usize> {
        match self.collective {
            Collective::AllGather => self.block(rank, ranks),
            Collective::Broadcast { root } if rank != root => 0..0,
            _ => 0..self.elements(ranks),
        }
    }

    /// The elements of the message that are a rank's output; empty if it has none.
    pub fn output(&self, rank: usize, ranks: usize) -> Range<usize> {
        match self.collective {
            Collective::ReduceScatter => self.block(rank, ranks),
            Collective::Reduce { root } if rank != root => 0..0,
            _ => 0..self.elements(ranks),
        }
    }

    fn block(&self, rank: usize, ranks: usize) -> Range<usize> {
        let count = self.count(ranks);
        rank * count..(rank + 1) * count
    }

    /// GB/s (10^9 bytes) that a time means: bytes of the message over the time.
    pub fn algorithm_bandwidth(&self, ranks: usize, seconds: f64) -> f64 {
        if seconds > 0.0 { self.message_bytes(ranks) as f64 / seconds / 1e9 } else { 0.0 }
    }

    /// What each direction of each rank's wire carries, in GB/s.
    pub fn bus_bandwidth(&self, ranks: usize, seconds: f64) -> f64 {
        self.algorithm_bandwidth(ranks, seconds) * self.collective.bus_factor(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_collective() {
        let case = |collective| Case {
            collective,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            bytes: 100,
            in_place: false,
        };
        let gather = case(Collective::AllGather);
        assert_eq!((gather.count(3), gather.message_bytes(3)), (8, 96));
        assert_eq!((gather.input(1, 3), gather.output(1, 3)), (8..16, 0..24));
        let scatter = case(Collective::ReduceScatter);
        assert_eq!((scatter.input(2, 3), scatter.output(2, 3)), (0..24, 16..24));
        let broadcast = case(Collective::Broadcast { root: 1 });
        assert_eq!(
            (broadcast.input(0, 3), broadcast.input(1, 3), broadcast.output(0, 3)),
            (0..0, 0..25, 0..25)
        );
        let reduce = case(Collective::Reduce { root: 1 });
        assert_eq!((reduce.output(0, 3), reduce.output(1, 3)), (0..0, 0..25));
        let tiny = Case { bytes: 1, ..gather };
        assert_eq!(tiny.message_bytes(3), 12);
        assert_eq!(Case { bytes: 0, ..gather }.message_bytes(3), 0);
        assert_eq!(case(Collective::AllReduce).bus_bandwidth(4, 1e-7), 1.5);
    }
}
