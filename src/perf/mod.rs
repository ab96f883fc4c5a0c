//! Measuring collectives: what `ringleader perf`, the examples and the benchmarks share.
//!
//! A [`Bench`] holds ranks on CPUs or GPUs and measures one [`Case`] after the other: random data, results checked
//! against a reference in 64-bit floats, medians of several batches.

mod bench;
mod case;
mod data;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod enqueue;
#[cfg(feature = "cuda")]
mod gpu;
mod host;
mod memory;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(feature = "cuda")]
mod overlap;
mod progress;
mod sizes;
mod table;

pub use bench::{Bench, Device, Mode, Nccl, Setup};
pub use case::Case;
#[cfg(feature = "cuda")]
pub use overlap::Overlap;
pub use progress::Progress;
pub use sizes::{Step, format_bytes, parse_bytes, parse_list, size_range};
pub use table::{Measured, Row, Table};

/// How calls are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Calls in one timed batch; without, chosen by size on GPUs, and by time on CPU ranks.
    pub calls: Option<usize>,
    /// Timed batches; their median counts. Fewer, but three, where CPU ranks are slow and `calls` is not given.
    pub samples: usize,
    /// Calls made before.
    pub warmup: usize,
    /// Whether results are checked.
    pub check: bool,
    /// Other seeds make other data.
    pub seed: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { calls: None, samples: 5, warmup: 3, check: true, seed: 0 }
    }
}

/// The middle of the values, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
