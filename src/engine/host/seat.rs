//! What a rank shows to its peers: the operation it has entered, with which call and which buffers, and whether it is
//! touching anybody's memory.
//!
//! *Arriving.* A rank enters operation `k` by posting what it called, then `entered = k`. It touches nobody's memory
//! before it has seen every rank enter `k` with the same call. Posts alternate between two places: whoever posts for
//! `k + 2` has seen everybody enter `k + 1`, hence be done with reading the posts for `k`.
//!
//! *Leaving.* The stage is even while a rank may touch its peers' buffers and odd while it does not. A rank lends its
//! buffers by posting them, and takes them back when each borrower's stage says that it has finished; or, to leave
//! early, once the abort flag is up, by waiting until every stage is odd. A borrower raises its stage before it reads the
//! flag, an owner sees the flag before it reads the stages, each with a sequentially consistent fence in between: so
//! either the borrower sees the flag and stays out, or the owner sees the borrower and waits.

use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// What a rank posts when it enters an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// The call, in a form that can be compared: equal on all ranks, or it is a mismatch.
    pub(crate) call: [u64; 2],
    /// What peers read this rank's input from, in message coordinates; null if the rank contributes nothing.
    pub(crate) input: *mut u8,
    /// Where peers write this rank's output, in message coordinates; null if it receives nothing.
    pub(crate) output: *mut u8,
    /// Whether `input` stays as it is until every peer has finished: it is a copy, or it is not the output buffer.
    pub(crate) steady: bool,
}

/// A post in memory.
struct Place {
    call: [AtomicU64; 2],
    input: AtomicPtr<u8>,
    output: AtomicPtr<u8>,
    steady: AtomicBool,
}

impl Place {
    fn new() -> Self {
        Place {
            call: [AtomicU64::new(0), AtomicU64::new(0)],
            input: AtomicPtr::new(std::ptr::null_mut()),
            output: AtomicPtr::new(std::ptr::null_mut()),
            steady: AtomicBool::new(false),
        }
    }
}

/// Where a rank posts.
pub(crate) struct Arrival {
    /// The operation last entered, from 1.
    entered: AtomicU64,
    /// The posts for even and for odd operations; valid up to `entered`.
    places: [Place; 2],
}

impl Arrival {
    pub(crate) fn new() -> Self {
        Arrival { entered: AtomicU64::new(0), places: [Place::new(), Place::new()] }
    }

    /// Enters an operation. Only the owner calls this, for one operation after the other.
    pub(crate) fn post(&self, operation: u64, post: &Post) {
        let place = &self.places[(operation % 2) as usize];
        place.call[0].store(post.call[0], Ordering::Relaxed);
        place.call[1].store(post.call[1], Ordering::Relaxed);
        place.input.store(post.input, Ordering::Relaxed);
        place.output.store(post.output, Ordering::Relaxed);
        place.steady.store(post.steady, Ordering::Relaxed);
        // Release: the post, and whatever bytes it points to, before the number.
        self.entered.store(operation, Ordering::Release);
    }

    /// The operation last entered; 0 before the first.
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Ordering::Acquire)
    }

    /// The post for an operation that the owner has [`entered`](Self::entered) and the reader has not finished.
    pub(crate) fn read(&self, operation: u64) -> Post {
        let place = &self.places[(operation % 2) as usize];
        Post {
            call: [place.call[0].load(Ordering::Relaxed), place.call[1].load(Ordering::Relaxed)],
            input: place.input.load(Ordering::Relaxed),
            output: place.output.load(Ordering::Relaxed),
            steady: place.steady.load(Ordering::Relaxed),
        }
    }
}

/// How far a rank is with touching its peers' buffers.
pub(crate) struct Stage(AtomicU64);

impl Stage {
    pub(crate) fn new() -> Self {
        Stage(AtomicU64::new(1))
    }

    /// Announces that this rank will touch its peers' buffers in this operation. `false` if the communicator was
    /// aborted: then it must not, and has already left.
    pub(crate) fn begin(&self, operation: u64, aborted: &AtomicBool) -> bool {
        self.0.store(2 * operation, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if aborted.load(Ordering::Acquire) {
            self.finish(operation);
            return false;
        }
        true
    }

    /// Announces that this rank will touch no peer's buffer any more in this operation.
    pub(crate) fn finish(&self, operation: u64) {
        self.0.store(2 * operation + 1, Ordering::Release);
    }

    /// Whether the rank has finished touching its peers' buffers in this operation.
    pub(crate) fn has_finished(&self, operation: u64) -> bool {
        self.0.load(Ordering::Acquire) > 2 * operation
    }

    /// Whether the rank is outside its peers' buffers, and will stay so: to be asked after raising the abort flag, or
    /// finding it raised.
    pub(crate) fn is_outside(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Acquire) % 2 == 1
    }
}
