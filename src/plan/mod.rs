//! From a topology and a message size to a schedule.
//!
//! The lower half works on a [`Graph`] of GPUs and switches with integer capacities and knows nothing of devices or
//! schedules. It answers, exactly, how fast each collective can possibly be ([`bound`]), and builds trees
//! that are as fast ([`forest`]).

mod all_reduce;
pub mod binary_tree;
pub mod bound;
mod flow;
pub mod forest;
mod graph;
mod hamilton;
mod orient;
mod pack;
mod packing_lp;
mod partition;
mod paths;
pub mod presets;
mod ratio;
pub mod rings;
mod routes;
mod split;
#[cfg(test)]
pub(crate) mod testing;
mod tree;

pub use bound::{Bound, Certificate};
pub use graph::{Arc, Graph, MAX_CAPACITY, MAX_GPUS};
pub use ratio::Ratio;
pub use rings::{Ring, Rings};
pub use tree::{Forest, Tree, TreeEdge};
