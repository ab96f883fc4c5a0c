//! The conformance suite: what every engine must do, as test functions that are generic over the engine.
//!
//! An engine joins by implementing [`Engine`] and [`Fleet`] (a page of code: see [`cpu`]) and calling
//! [`conformance_tests!`](crate::conformance_tests). The suite lays out the memory, fills it, and checks every byte
//! afterwards against a scalar reference; the engine only makes the calls.

// Several test executables include this module, and none uses all of it.
#![allow(dead_code, unused_macros, unused_imports)]

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod memory;
pub(crate) mod number;
pub(crate) mod reference;
pub(crate) mod suite;

use ringleader::{Collective, Config, Element, ReduceOp};

pub(crate) use memory::Memory;
pub(crate) use number::Number;

/// One collective call on all ranks, with the memory it works on.
pub(crate) struct Job<T> {
    /// Which of the fleet's communicators makes the call.
    pub(crate) communicator: usize,
    /// What is called.
    pub(crate) collective: Collective,
    /// The operator of each rank; they differ in the factor of `PreMulSum` at most.
    pub(crate) ops: Vec<ReduceOp>,
    /// Elements of one block.
    pub(crate) count: usize,
    /// The memory of each rank.
    pub(crate) memory: Vec<Memory<T>>,
    /// Each rank's contribution; where only the root has one, the others' are ignored.
    pub(crate) inputs: Vec<Vec<T>>,
}

/// Communicators over the same ranks.
pub(crate) trait Fleet {
    /// Makes the calls of all jobs on all ranks, in order, and returns when their memory holds the results.
    fn run<T: Element>(&mut self, jobs: &mut [Job<T>]);
}

/// Makes fleets.
pub(crate) trait Engine {
    type Fleet: Fleet;

    /// `communicators` communicators of `ranks` ranks.
    fn fleet(&self, ranks: usize, communicators: usize, config: &Config) -> Self::Fleet;

    /// The numbers of ranks to test.
    fn rank_counts(&self) -> Vec<usize> {
        vec![1, 2, 3, 4, 5, 8]
    }

    /// Of those, for tests that need few of them.
    fn some_rank_counts(&self) -> Vec<usize> {
        self.rank_counts().into_iter().filter(|n| [2, 3, 8].contains(n)).collect()
    }
}

/// One `#[test]` for each function of the suite, and for each element type where the function is generic over it.
/// Takes the name of the module to make, an expression that makes the engine, and if it may be missing one that says
/// whether it is there.
#[macro_export]
macro_rules! conformance_tests {
    ($module:ident, $engine:expr $(, only if $guard:expr)?) => {
        mod $module {
            use super::*;
            use $crate::conformance::suite;

            $crate::conformance_tests!(@typed [$($guard)?] $engine, i8: i8, u8: u8, i32: i32, u32: u32, i64: i64, u64: u64, f32: f32, f64: f64,
                f16: half::f16, bf16: half::bf16, f8e4m3: float8::F8E4M3, f8e5m2: float8::F8E5M2);
            $crate::conformance_tests!(@plain [$($guard)?] $engine, every_root, any_offset, any_algorithm_and_channels,
                plans_for_other_machines, rank_order_whatever_the_channels, a_thousand_mixed_calls, two_communicators_interleaved,
                special_values, factors_may_differ_by_rank);
        }
    };
    (@typed $guard:tt $engine:expr, $($name:ident: $t:ty),*) => {
        mod every_call {
            use super::*;
            $(#[test] fn $name() {
                $crate::conformance_tests!(@guard $guard);
                suite::every_call::<$t, _>(&$engine)
            })*
        }
    };
    (@plain $guard:tt $engine:expr, $($name:ident),*) => {
        $(#[test] fn $name() {
            $crate::conformance_tests!(@guard $guard);
            suite::$name(&$engine)
        })*
    };
    (@guard []) => {};
    (@guard [$guard:expr]) => {
        if !$guard { return; }
    };
}
