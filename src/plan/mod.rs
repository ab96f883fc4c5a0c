//! From a topology and a message size to a schedule.
//!
//! The lower half works on a [`Graph`] of GPUs and switches with integer capacities and knows nothing of devices or
//! schedules. It answers, exactly, how fast each collective can possibly be ([`bound`]), and builds trees
//! that are as fast ([`forest`]).

mod all_reduce;
pub mod bound;
mod flow;
pub mod forest;
mod graph;
mod orient;
mod pack;
mod partition;
pub mod presets;
mod ratio;
mod routes;
mod split;
#[cfg(test)]
pub(crate) mod testing;
mod tree;

pub use bound::{Bound, Certificate};
pub use graph::{Arc, Graph, MAX_CAPACITY, MAX_GPUS};
pub use ratio::Ratio;
pub use tree::{Forest, Tree, TreeEdge};
