//! From a topology and a message size to a schedule.
//!
//! The lower half works on a [`Graph`] of GPUs and switches with integer capacities and knows nothing of devices or
//! schedules. It answers, exactly, how fast each collective can possibly be ([`bound`]).

pub mod bound;
mod flow;
mod graph;
mod partition;
pub mod presets;
mod ratio;
#[cfg(test)]
pub(crate) mod testing;

pub use bound::{Bound, Certificate};
pub use graph::{Arc, Graph, MAX_CAPACITY, MAX_GPUS};
pub use ratio::Ratio;
