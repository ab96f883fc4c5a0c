//! The one place atomics, locks and parking come from.
//!
//! The lock-free protocols of the host engine (`engine/host/link.rs`, `bell.rs` and `seat.rs`) name nothing but
//! `crate::sync`. `tests/loom_protocols.rs` compiles the same files once more with a `sync` of its own that re-exports
//! loom's types, so a plain `cargo test` model-checks the code that runs here.

pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use std::thread::{Thread, current};

/// Locks a mutex, also after a thread panicked while holding it: the data guarded here is never left half-changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
