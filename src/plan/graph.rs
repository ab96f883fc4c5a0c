//! What the planner sees of a machine: GPUs, switches and directed links with integer capacities.

use super::flow::FlowNetwork;
use crate::{Error, Result};

/// The largest number of GPUs in a graph.
pub const MAX_GPUS: usize = 64;

/// The largest number of nodes in a graph.
const MAX_NODES: usize = 1024;

/// The largest capacity of a link, in MB/s; keeps every product in the planner within 64 bits.
pub const MAX_CAPACITY: i64 = 1 << 27;

/// A directed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arc {
    /// The node that sends.
    pub from: usize,
    /// The node that receives.
    pub to: usize,
    /// MB/s in this direction.
    pub capacity: i64,
    /// How messages call the link: `NV2 GPU0-GPU3`.
    pub name: String,
}

/// A directed graph of GPUs and switches.
///
/// Nodes are numbered: the GPUs first, in rank order, so that a GPU's node is its rank; then the switches, in the order
/// they were added. A switch forwards each byte to one neighbour; it neither copies nor adds. At most one arc joins two
/// nodes in a direction; parallel links are added up.
///
/// ```
/// use ringleader::plan::Graph;
/// let mut graph = Graph::new(["GPU0", "GPU1"])?;
/// let switch = graph.add_switch("NVSwitch")?;
/// graph.link(0, switch, 450_000, "GPU0 to NVSwitch")?;
/// graph.link(1, switch, 450_000, "GPU1 to NVSwitch")?;
/// assert_eq!(graph.capacity(0, switch), 450_000);
/// # Ok::<(), ringleader::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    names: Vec<String>,
    gpus: usize,
    arcs: Vec<Arc>,
}

impl Graph {
    /// A graph of GPUs without links.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for no GPU, or more than [`MAX_GPUS`].
    pub fn new<I: IntoIterator<Item: Into<String>>>(gpus: I) -> Result<Graph> {
        let names: Vec<String> = gpus.into_iter().map(Into::into).collect();
        if names.is_empty() || names.len() > MAX_GPUS {
            return Err(Error::invalid_value(
                "number of GPUs in the graph",
                names.len().to_string(),
                format!("1 to {MAX_GPUS}"),
            ));
        }
        Ok(Graph { gpus: names.len(), names, arcs: Vec::new() })
    }

    /// Adds a switch (PCIe switch, host bridge, CPU, NVSwitch fabric) and returns its node.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] when the graph has too many nodes.
    pub fn add_switch(&mut self, name: impl Into<String>) -> Result<usize> {
        if self.names.len() == MAX_NODES {
            let found = format!("{}", MAX_NODES + 1);
            return Err(Error::invalid_value("nodes in the graph", found, format!("at most {MAX_NODES}")));
        }
        self.names.push(name.into());
        Ok(self.names.len() - 1)
    }

    /// Adds a link in one direction, or widens the one that is there.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for an unknown node, a link to itself, or a capacity that is negative or above
    /// [`MAX_CAPACITY`]. A capacity of 0 adds nothing.
    pub fn add_arc(&mut self, from: usize, to: usize, capacity: i64, name: impl Into<String>) -> Result<()> {
        let name = name.into();
        let nodes = self.names.len();
        if from >= nodes || to >= nodes || from == to {
            return Err(Error::invalid_value(
                format!("link {name}"),
                format!("{from} to {to}"),
                format!("two different nodes below {nodes}"),
            ));
        }
        let total = self.capacity(from, to).checked_add(capacity);
        if capacity < 0 || total.is_none_or(|total| total > MAX_CAPACITY) {
            return Err(Error::invalid_value(
                format!("capacity of link {name}"),
                format!("{capacity} MB/s"),
                format!("0 to {MAX_CAPACITY} MB/s in all between two nodes"),
            ));
        }
        match self.arcs.iter_mut().find(|arc| arc.from == from && arc.to == to) {
            Some(arc) => arc.capacity += capacity,
            None if capacity > 0 => self.arcs.push(Arc { from, to, capacity, name }),
            None => {}
        }
        Ok(())
    }

    /// Adds a link with the same capacity in both directions.
    ///
    /// # Errors
    /// As [`Graph::add_arc`].
    pub fn link(&mut self, a: usize, b: usize, capacity: i64, name: impl Into<String>) -> Result<()> {
        let name = name.into();
        self.add_arc(a, b, capacity, name.clone())?;
        self.add_arc(b, a, capacity, name)
    }

    /// The number of GPUs; they are nodes `0..gpus()`.
    pub const fn gpus(&self) -> usize {
        self.gpus
    }

    /// The number of GPUs and switches.
    pub fn nodes(&self) -> usize {
        self.names.len()
    }

    /// Whether a node is a switch.
    pub const fn is_switch(&self, node: usize) -> bool {
        node >= self.gpus
    }

    /// A node's name.
    pub fn name(&self, node: usize) -> &str {
        &self.names[node]
    }

    /// All links, one entry a direction.
    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// MB/s from one node straight to another; 0 without a link.
    pub fn capacity(&self, from: usize, to: usize) -> i64 {
        self.arcs.iter().find(|arc| arc.from == from && arc.to == to).map_or(0, |arc| arc.capacity)
    }

    /// The graph that a communicator of some GPUs may use: rank `i` is `chosen[i]`, the other GPUs and their links are
    /// gone (they must not relay), all switches stay.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for an empty choice, an unknown GPU, or one chosen twice.
    pub fn induced(&self, chosen: &[usize]) -> Result<Graph> {
        let mut place = vec![None; self.nodes()];
        for (rank, &gpu) in chosen.iter().enumerate() {
            if gpu >= self.gpus || place[gpu].is_some() {
                return Err(Error::invalid_value(
                    "chosen GPUs",
                    format!("{chosen:?}"),
                    format!("different GPUs below {}", self.gpus),
                ));
            }
            place[gpu] = Some(rank);
        }
        let mut graph = Graph::new(chosen.iter().map(|&gpu| self.names[gpu].clone()))?;
        for (place, name) in place.iter_mut().zip(&self.names).skip(self.gpus) {
            *place = Some(graph.add_switch(name.clone())?);
        }
        graph.arcs = self
            .arcs
            .iter()
            .filter_map(|arc| Some(Arc { from: place[arc.from]?, to: place[arc.to]?, ..arc.clone() }))
            .collect();
        Ok(graph)
    }

    /// The same graph with every link turned round.
    pub fn reversed(&self) -> Graph {
        let mut graph = self.clone();
        graph.arcs.iter_mut().for_each(|arc| (arc.from, arc.to) = (arc.to, arc.from));
        graph
    }

    /// Whether every link has the same capacity both ways.
    pub fn is_symmetric(&self) -> bool {
        self.arcs.iter().all(|arc| self.capacity(arc.to, arc.from) == arc.capacity)
    }

    /// The part of every link that is there in both directions.
    pub fn symmetric_part(&self) -> Graph {
        let mut graph = self.clone();
        graph
            .arcs
            .iter_mut()
            .for_each(|arc| arc.capacity = arc.capacity.min(self.capacity(arc.to, arc.from)));
        graph.arcs.retain(|arc| arc.capacity > 0);
        graph
    }

    /// Capacity as a matrix, `[from][to]`.
    pub(crate) fn matrix(&self) -> Vec<Vec<i64>> {
        let mut matrix = vec![vec![0; self.nodes()]; self.nodes()];
        self.arcs.iter().for_each(|arc| matrix[arc.from][arc.to] = arc.capacity);
        matrix
    }

    /// A flow network of `nodes() + extra` nodes whose arcs `0..arcs().len()` are the graph's, capacities times `scale`.
    pub(crate) fn network(&self, extra: usize, scale: i64) -> FlowNetwork {
        let mut net = FlowNetwork::new(self.nodes() + extra);
        for arc in &self.arcs {
            net.add_arc(arc.from, arc.to, arc.capacity * scale);
        }
        net
    }

    /// The names of the links that leave a set of nodes, each once.
    pub(crate) fn links_leaving(&self, side: &[bool]) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for arc in self.arcs.iter().filter(|arc| side[arc.from] && !side[arc.to]) {
            if !names.contains(&arc.name) {
                names.push(arc.name.clone());
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::presets;

    #[test]
    fn induced_graphs_keep_switches_and_drop_relays() {
        let graph = presets::pix_article(24).induced(&[3, 2]).unwrap();
        assert_eq!((graph.gpus(), graph.nodes()), (2, 3));
        assert_eq!(graph.capacity(0, 1), 75_000);
        assert_eq!(graph.capacity(0, 2), 24_000);
        assert_eq!(graph.name(0), "GPU3");
        assert!(graph.is_symmetric());
    }

    #[test]
    fn bad_links_are_refused_with_their_name() {
        let mut graph = Graph::new(["GPU0", "GPU1"]).unwrap();
        for (from, to, capacity) in [(0, 0, 1), (0, 2, 1), (0, 1, -1), (0, 1, i64::MAX)] {
            let error = graph.add_arc(from, to, capacity, "NV1").unwrap_err();
            assert!(error.to_string().contains("NV1"), "{error}");
        }
        assert!(
            graph.induced(&[0, 0]).is_err() && graph.induced(&[]).is_err() && graph.induced(&[2]).is_err()
        );
        assert!(Graph::new(Vec::<String>::new()).is_err());
    }
}
