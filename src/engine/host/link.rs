//! The two counters of a link.
//!
//! A link is a FIFO of `depth` slots. The producer publishes a slot by raising `tail`, the consumer frees it by
//! raising `credit`. Both counters hold *stamps*: the operation's number above, the number of slots so far below. An
//! operation starts only when every rank has finished the one before, so all slots are then free and a counter left
//! over from an earlier operation, or never used, is smaller than any stamp waited for: nothing is ever reset.

use crate::sync::{AtomicU64, CachePadded, Ordering};

/// Low bits of a stamp: slots in one operation.
pub(crate) const SLOT_BITS: u32 = 22;

/// Most slots that can pass through one link in one operation.
pub(crate) const MAX_SLOTS: u64 = (1 << SLOT_BITS) - 1;

/// A position in the stream of slots of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// Slot number `slot`, counted from 0, of an operation numbered from 1.
    pub(crate) fn new(operation: u64, slot: u64) -> Self {
        // More would run into the operation's number. Tiles are chosen large enough for the message.
        assert!(slot < MAX_SLOTS, "more slots in one operation than a stamp can count");
        Stamp(operation << SLOT_BITS | slot)
    }

    /// Which of `depth` slots it is.
    pub(crate) fn index(self, depth: u64) -> usize {
        (self.slot() % depth) as usize
    }

    fn slot(self) -> u64 {
        self.0 & MAX_SLOTS
    }
}

/// The counters of one link. One producer and one consumer use it at a time.
pub(crate) struct Counters {
    /// One more than the stamp of the last published slot. Written by the producer.
    tail: CachePadded<AtomicU64>,
    /// One more than the stamp of the last freed slot. Written by the consumer.
    credit: CachePadded<AtomicU64>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters { tail: CachePadded::new(AtomicU64::new(0)), credit: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Whether the slot that `at` will use, one of `depth`, is free. After `true` the producer may write it.
    pub(crate) fn has_room(&self, at: Stamp, depth: u64) -> bool {
        // The first `depth` slots of an operation are free by the rule above. Acquire: the consumer's reads of the
        // slot's previous contents come before our writes.
        at.slot() < depth || self.credit.load(Ordering::Acquire) > at.0 - depth
    }

    /// Publishes what the producer wrote, to the slot or, before it, to any other memory.
    pub(crate) fn publish(&self, at: Stamp) {
        self.tail.store(at.0 + 1, Ordering::Release);
    }

    /// Whether the slot has been published. After `true` the consumer may read it.
    pub(crate) fn has_data(&self, at: Stamp) -> bool {
        self.tail.load(Ordering::Acquire) > at.0
    }

    /// Frees the slot: the consumer reads it no more.
    pub(crate) fn free(&self, at: Stamp) {
        self.credit.store(at.0 + 1, Ordering::Release);
    }
}
