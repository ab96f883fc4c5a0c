//! Chunks: which part of the message a fold works on.

use std::cmp::Ordering;
use std::ops::Range;

/// Chunk boundaries inside a block are multiples of this many bytes, so that whole 128-byte lines belong to one
/// worker and vector accesses stay aligned.
pub const CHUNK_ALIGN: usize = 128;

/// A part of a block: from `begin / of` to `end / of` of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Numerator of the lower end.
    pub begin: u32,
    /// Numerator of the upper end; greater than `begin`.
    pub end: u32,
    /// The common denominator; at least `end`.
    pub of: u32,
}

impl Share {
    /// The whole block.
    pub const ALL: Share = Share { begin: 0, end: 1, of: 1 };

    /// The `index`-th of `of` equal parts.
    pub const fn part(index: u32, of: u32) -> Share {
        Share { begin: index, end: index + 1, of }
    }
}

/// A share of one block of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// The block; 0 where the collective has only one.
    pub block: u32,
    /// Which part of it.
    pub share: Share,
}

impl Chunk {
    /// The elements of the message this chunk covers, where one block has `block_len` elements of `elem_size` bytes.
    ///
    /// Boundaries are rounded down to [`CHUNK_ALIGN`] bytes from the block's beginning, except the block's end, so the
    /// chunks of a schedule cover the message whatever its length; short messages leave some chunks empty.
    ///
    /// ```
    /// use ringleader::schedule::{Chunk, Share};
    ///
    /// let second_half = Chunk { block: 0, share: Share::part(1, 2) };
    /// assert_eq!(second_half.range(1000, 4), 480..1000);
    /// ```
    pub fn range(&self, block_len: usize, elem_size: usize) -> Range<usize> {
        let at = |numerator: u32| {
            if numerator == self.share.of {
                return block_len;
            }
            let exact = block_len as u128 * u128::from(numerator) / u128::from(self.share.of);
            align_down(exact as usize, elem_size)
        };
        let base = self.block as usize * block_len;
        base + at(self.share.begin)..base + at(self.share.end)
    }
}

impl Ord for Chunk {
    /// Message order.
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: u32, of: u32| u64::from(a) * u64::from(of);
        self.block
            .cmp(&other.block)
            .then(cross(self.share.begin, other.share.of).cmp(&cross(other.share.begin, self.share.of)))
            .then(cross(self.share.end, other.share.of).cmp(&cross(other.share.end, self.share.of)))
    }
}

impl PartialOrd for Chunk {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Rounds a number of elements down to a whole number of aligned units.
fn align_down(elements: usize, elem_size: usize) -> usize {
    let unit = CHUNK_ALIGN / elem_size;
    elements / unit * unit
}

/// The part of a chunk that lane `lane` of `lanes` works on: whole lines, dealt evenly, and the rest of the last one to
/// the last lane. The device program computes the same.
pub fn lane_range(chunk: Range<usize>, lane: usize, lanes: usize, elem_size: usize) -> Range<usize> {
    let unit = CHUNK_ALIGN / elem_size;
    let lines = chunk.len() / unit;
    let (each, extra) = (lines / lanes, lines % lanes);
    let at = |l: usize| chunk.start + (each * l + l.min(extra)) * unit;
    at(lane)..if lane + 1 == lanes { chunk.end } else { at(lane + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_a_block_without_overlap(
            len in 0usize..5000, of in 1u32..40, lanes in 1usize..9, log_size in 0u32..4,
        ) {
            let size = 1usize << log_size;
            let mut next = 0;
            for i in 0..of {
                let chunk = Chunk { block: 0, share: Share::part(i, of) }.range(len, size);
                let mut inner = chunk.start;
                for lane in 0..lanes {
                    let part = lane_range(chunk.clone(), lane, lanes, size);
                    prop_assert_eq!(part.start, inner);
                    inner = part.end;
                }
                prop_assert_eq!(inner, chunk.end);
                prop_assert_eq!(chunk.start, next);
                next = chunk.end;
            }
            prop_assert_eq!(next, len);
        }
    }
}
