//! Collective communication for the GPUs, or the CPU ranks, of one host.

pub mod error;
pub mod plan;
pub mod schedule;
pub mod topology;
pub mod types;

pub use error::{Error, Result};
pub use types::{Collective, DataType, Element, ReduceOp, Scalar};
