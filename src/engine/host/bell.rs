//! Sleeping until another thread has done something.
//!
//! The sleeper arms its bell, looks once more for work, then parks. Whoever publishes something rings the bell, which
//! costs a fence and a load unless somebody sleeps. On Linux a parked thread waits on a futex.

use crate::sync::{AtomicBool, Mutex, Ordering, Thread, current, fence, lock};

/// One rank's bell.
pub(crate) struct Bell {
    armed: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Bell { armed: AtomicBool::new(false), sleeper: Mutex::new(None) }
    }

    /// Announces that this thread is about to park. It must look for work once more between this and parking, and
    /// [`disarm`](Self::disarm) afterwards.
    pub(crate) fn arm(&self) {
        *lock(&self.sleeper) = Some(current());
        self.armed.store(true, Ordering::Relaxed);
        // Pairs with the fence before `ring`: either the ringer sees `armed`, or we see what it published.
        fence(Ordering::SeqCst);
    }

    /// Ends what [`arm`](Self::arm) began.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Wakes the sleeper, if there is one. The caller has published something the sleeper may wait for and then issued
    /// a sequentially consistent fence, one for all the bells it rings.
    pub(crate) fn ring(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.armed.store(false, Ordering::Relaxed);
        let sleeper = lock(&self.sleeper).take();
        if let Some(thread) = sleeper {
            thread.unpark();
        }
    }
}
