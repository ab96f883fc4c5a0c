//! The machine as a graph.
