//! Model-checks the three lock-free protocols of the host engine with loom, as part of a plain `cargo test`.
//!
//! The files under test name only `crate::sync`. Here they are compiled once more with loom's types under that name,
//! and every interleaving loom can find is run. Slots and buffers are loom cells, which fail on any data race.
#![allow(dead_code, reason = "the models use a part of each file")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
    use loom::sync::{Arc, Condvar};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Stands for `std::thread::Thread`, with its token; loom's own mixes it up with waiting in `join`.
    #[derive(Clone)]
    pub(crate) struct Thread(Arc<(Mutex<bool>, Condvar)>);

    loom::thread_local! {
        static CURRENT: Thread = Thread(Arc::new((Mutex::new(false), Condvar::new())));
    }

    pub(crate) fn current() -> Thread {
        CURRENT.with(Thread::clone)
    }

    pub(crate) fn park() {
        let me = current();
        let mut token = lock(&me.0.0);
        while !*token {
            token = me.0.1.wait(token).unwrap();
        }
        *token = false;
    }

    impl Thread {
        pub(crate) fn unpark(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    /// Loom does not model cache lines.
    pub(crate) struct CachePadded<T>(T);

    impl<T> CachePadded<T> {
        pub(crate) fn new(value: T) -> Self {
            CachePadded(value)
        }
    }

    impl<T> std::ops::Deref for CachePadded<T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }
}

#[path = "../src/engine/host/bell.rs"]
mod bell;
#[path = "../src/engine/host/link.rs"]
mod link;
#[path = "../src/engine/host/seat.rs"]
mod seat;

use bell::Bell;
use link::{Counters, Stamp};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use seat::{Arrival, Post, Stage};

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A link with `DEPTH` slots of one number each, and a bell at each end.
struct Fifo {
    counters: Counters,
    slots: [UnsafeCell<u64>; DEPTH as usize],
    producer: Bell,
    consumer: Bell,
}

const DEPTH: u64 = 2;

fn ring(bell: &Bell) {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    bell.ring();
}

// SAFETY: the slots are what the model checks: loom fails when two threads reach one at the same time.
unsafe impl Send for Fifo {}
// SAFETY: as above.
unsafe impl Sync for Fifo {}

impl Fifo {
    fn new() -> Self {
        let slots = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Fifo { counters: Counters::new(), slots, producer: Bell::new(), consumer: Bell::new() }
    }

    /// Waits the way the engine does: looks, arms the bell, looks again, parks.
    fn wait(bell: &Bell, ready: impl Fn() -> bool) {
        while !ready() {
            bell.arm();
            if !ready() {
                sync::park();
            }
            bell.disarm();
        }
    }

    fn push(&self, at: Stamp, value: u64) {
        Self::wait(&self.producer, || self.counters.has_room(at, DEPTH));
        // SAFETY: `has_room` says that the slot is the producer's.
        self.slots[at.index(DEPTH)].with_mut(|slot| unsafe { *slot = value });
        self.counters.publish(at);
        ring(&self.consumer);
    }

    fn pop(&self, at: Stamp) -> u64 {
        Self::wait(&self.consumer, || self.counters.has_data(at));
        // SAFETY: `has_data` says that the slot is the consumer's.
        let value = self.slots[at.index(DEPTH)].with(|slot| unsafe { *slot });
        self.counters.free(at);
        ring(&self.producer);
        value
    }
}

#[test]
fn a_link_hands_over_every_slot_in_order_and_nobody_oversleeps() {
    model(|| {
        let fifo = Arc::new(Fifo::new());
        let other = fifo.clone();
        let producer = thread::spawn(move || {
            for slot in 0..3 {
                other.push(Stamp::new(5, slot), 100 + slot);
            }
        });
        for slot in 0..3 {
            assert_eq!(fifo.pop(Stamp::new(5, slot)), 100 + slot);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_new_operation_finds_all_slots_free_and_none_full() {
    model(|| {
        let c = Counters::new();
        let mut freed = 0;
        for slot in 0..5 {
            let at = Stamp::new(7, slot);
            assert_eq!(c.has_room(at, 2), slot < 2 + freed);
            if !c.has_room(at, 2) {
                assert!(c.has_data(Stamp::new(7, freed)));
                c.free(Stamp::new(7, freed));
                freed += 1;
            }
            assert!(c.has_room(at, 2) && !c.has_data(at));
            c.publish(at);
            assert!(c.has_data(at));
        }
        let next = Stamp::new(8, 0);
        assert!(!c.has_data(next));
        assert!(c.has_room(next, 2) && c.has_room(Stamp::new(8, 1), 2) && !c.has_room(Stamp::new(8, 2), 2));
    });
}

#[test]
fn two_ringers_lose_no_wake_up() {
    model(|| {
        let bell = Arc::new((Bell::new(), [AtomicBool::new(false), AtomicBool::new(false)]));
        let ringers: Vec<_> = (0..2)
            .map(|i| {
                let bell = bell.clone();
                thread::spawn(move || {
                    bell.1[i].store(true, Release);
                    ring(&bell.0);
                })
            })
            .collect();
        let set = |i: usize| bell.1[i].load(Acquire);
        Fifo::wait(&bell.0, || set(0) && set(1));
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

/// A rank of the arrival model: where it posts, and what it shares while it takes part.
struct Place {
    arrival: Arrival,
    stage: Stage,
    buffer: UnsafeCell<u64>,
}

// SAFETY: the buffers are what the model checks.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

fn place() -> Place {
    Place { arrival: Arrival::new(), stage: Stage::new(), buffer: UnsafeCell::new(0) }
}

fn post(operation: u64) -> Post {
    let none = std::ptr::null_mut();
    Post { call: [operation, 7], input: none, output: none, steady: true }
}

#[test]
fn posts_stay_until_everybody_has_read_them() {
    model(|| {
        let places = Arc::new([place(), place()]);
        let run = |me: usize, places: &[Place; 2]| {
            for operation in 1..=3 {
                places[me].arrival.post(operation, &post(operation));
                let peer = &places[1 - me].arrival;
                while peer.entered() < operation {
                    thread::yield_now();
                }
                assert_eq!(peer.read(operation).call, [operation, 7]);
            }
        };
        let other = places.clone();
        let thread = thread::spawn(move || run(1, &other));
        run(0, &places);
        thread.join().unwrap();
    });
}

#[test]
fn an_owner_that_leaves_early_never_races_with_a_borrower() {
    model(|| {
        let places = Arc::new((place(), AtomicBool::new(false)));
        let other = places.clone();
        let borrower = thread::spawn(move || {
            let (place, aborted) = &*other;
            if place.stage.begin(1, aborted) {
                // SAFETY: the owner stays while the stage is even.
                place.buffer.with_mut(|b| unsafe { *b += 1 });
                place.stage.finish(1);
            }
        });
        let (place, aborted) = &*places;
        aborted.store(true, Release);
        while !place.stage.is_outside() {
            thread::yield_now();
        }
        // SAFETY: nobody borrows any more: as good as freeing it.
        place.buffer.with_mut(|b| unsafe { *b = 99 });
        borrower.join().unwrap();
    });
}

#[test]
fn an_owner_that_waits_for_its_borrower_sees_what_it_wrote() {
    model(|| {
        let places = Arc::new((place(), AtomicBool::new(false)));
        let other = places.clone();
        let borrower = thread::spawn(move || {
            let (place, aborted) = &*other;
            assert!(place.stage.begin(1, aborted));
            // SAFETY: the owner stays until the stage says so.
            place.buffer.with_mut(|b| unsafe { *b = 42 });
            place.stage.finish(1);
        });
        let (place, _) = &*places;
        while !place.stage.has_finished(1) {
            thread::yield_now();
        }
        // SAFETY: the borrower has finished.
        assert_eq!(place.buffer.with(|b| unsafe { *b }), 42);
        borrower.join().unwrap();
    });
}
