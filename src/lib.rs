//! Collective communication for the GPUs, or the CPU ranks, of one host.

#[cfg(feature = "cli")]
pub mod cli;
pub mod comm;
pub(crate) mod engine;
pub mod error;
#[cfg(feature = "cli")]
pub mod perf;
pub mod plan;
pub mod schedule;
pub(crate) mod sync;
pub mod topology;
pub(crate) mod transport;
pub mod types;

pub use comm::{Communicator, Config, Group, group};
#[cfg(feature = "cuda")]
pub use comm::{OnStream, gpu_count};
pub use error::{Error, Result};
pub use types::{Collective, DataType, Element, ReduceOp, Scalar};
