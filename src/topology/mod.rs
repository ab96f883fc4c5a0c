//! The machine as a graph: GPUs, switches, CPUs and NICs, and what the links between them carry.
//!
//! A [`Topology`] comes from one of four places, and is the same kind of value whatever its source:
//!
//! * the running machine: [`Facts::gather`] asks NVML and sysfs, [`Topology::from_facts`] interprets the answers.
//!   The two steps are apart so that facts can be recorded on one machine and replayed on another;
//! * an NCCL topology XML file: [`Topology::from_xml`];
//! * the text that `nvidia-smi topo -m` prints: [`Topology::from_smi`];
//! * a constructor for a known shape, such as [`Topology::switch`] or [`Topology::dgx1v`].
//!
//! [`Topology::load`] reads a file of any of the first three kinds.
//!
//! All rates are in GB/s (10⁹ bytes a second) and count one direction; every link is full duplex.
//! Whatever had to be assumed is in [`Topology::warnings`], one sentence each.
//!
//! ```
//! use ringleader::topology::{PathType, Topology};
//!
//! let text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSYS\nGPU1\tNV4\tX\tSYS\nGPU2\tSYS\tSYS\tX\n";
//! let machine = Topology::from_smi(text, "matrix", &Default::default())?;
//! let paths = machine.paths();
//! assert_eq!((paths[0][1].kind, paths[0][1].gbs), (PathType::Nvl, 80.0));
//! assert_eq!((paths[0][2].kind, paths[0][2].gbs), (PathType::Sys, 16.0));
//! # Ok::<(), ringleader::Error>(())
//! ```

mod bus_id;
mod detect;
mod facts;
mod gather;
mod graph;
mod json;
mod load;
mod matrix;
mod model;
mod path;
mod pcie_groups;
mod presets;
mod rates;
mod smi;
mod sysfs;
mod tree;
mod visible;
mod xml;

pub use facts::{
    CudaFacts, CudaGpu, FACTS_VERSION, Facts, HostFacts, NetFacts, NumaFacts, NvmlFacts, NvmlGpu, NvmlLink,
    NvmlPair, PciFacts, SysfsFacts,
};
pub use graph::{CapacityArc, CapacityGraph, CapacityNode};
pub use matrix::Cells;
pub use model::{Cpu, Gpu, Link, LinkKind, Net, Nic, Node, NodeId, NodeKind, Pci, Topology};
pub use path::{Path, PathType};
pub use rates::LinkRates;
pub use smi::SmiOptions;
