//! From a topology and a message size to a schedule.
//!
//! A [`Planner`] knows one machine and answers a [`PlanRequest`] with the [`Plan`] that it predicts to be fastest, proven
//! right, with the reason for the choice and the bound that no other could beat.
//!
//! The lower half works on a [`Graph`] of GPUs and switches with integer capacities and knows nothing of devices or
//! schedules. It answers, exactly, how fast each collective can possibly be ([`bound`]), and builds trees
//! that are as fast ([`forest`]).

mod all_reduce;
pub mod binary_tree;
pub mod bound;
mod candidate;
mod chosen;
mod cost;
mod explain;
mod flow;
pub mod forest;
mod graph;
mod hamilton;
mod machine;
mod model;
mod orient;
mod pack;
mod packing_lp;
mod partition;
mod paths;
mod planner;
pub mod presets;
mod ratio;
pub mod rings;
mod routes;
mod split;
#[cfg(test)]
pub(crate) mod testing;
mod thin;
mod tree;

pub use bound::{Bound, Certificate};
#[cfg(feature = "cli")]
pub(crate) use candidate::Shape;
pub use chosen::{Outlook, Plan};
pub use graph::{Arc, Graph, MAX_CAPACITY, MAX_GPUS};
pub use model::CostModel;
pub use planner::{Limits, PlanRequest, Planner};
pub use ratio::Ratio;
pub use rings::{Ring, Rings};
pub use tree::{Forest, Tree, TreeEdge};
