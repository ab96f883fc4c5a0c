//! What a planner has chosen.

use std::fmt::Write;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::bound::Bound;
use super::candidate::{Candidate, Shape};
use super::cost::Cut;
use super::planner::PlanRequest;
use crate::schedule::{self, Encoding, Request, Schedule};
use crate::topology::PathType;
use crate::{Collective, Result};

/// A proven schedule for a collective, a size and a machine, and why it was chosen.
///
/// Serializes to an object with `collective`, `bytes`, `ranks`, `algorithm`, `encoding`, `channels`, `blocks`, `predicted_us`,
/// `algbw_gbs`, `busbw_gbs`, `bound_algbw_gbs`, `fraction_of_bound`, `certificate`, `verified` and more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// What it does.
    pub collective: Collective,
    /// Bytes of the whole message.
    pub bytes: usize,
    /// The GPU of each rank.
    pub gpus: Vec<usize>,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// The candidate's name: `forest (3 trees)`.
    pub label: String,
    /// How data travel over the links.
    pub encoding: Encoding,
    /// The lanes of each channel. [`Schedule::widened`] turns them into channels, for engines whose workers all have as many.
    pub lanes: Vec<u32>,
    /// Thread blocks of the rank that has most.
    pub blocks: u32,
    /// Bytes of a link's slot.
    pub tile_bytes: usize,
    /// Slots of a link.
    pub depth: u32,
    /// The predicted time, from the launch to the end on the last rank, in microseconds.
    pub predicted_us: f64,
    /// What no schedule can beat; `None` for one rank, which nothing bounds.
    pub bound: Option<Bound>,
    /// Whether the schedule was proven right. A planner returns no other.
    pub verified: bool,
    /// Why this candidate, in a sentence.
    pub reason: String,
    /// What to execute.
    pub schedule: Arc<Schedule>,
    /// Every candidate that was looked at more closely, the chosen one among them.
    pub outlooks: Vec<Outlook>,
    /// The chosen one's place in `outlooks`.
    pub chosen: usize,
    pub(super) shapes: Vec<Shape>,
    pub(super) types: Vec<PathType>,
    pub(super) weights: Vec<u32>,
}

/// A candidate in numbers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Outlook {
    /// Its name: `rings (4)`.
    pub name: String,
    /// The algorithm.
    pub algorithm: &'static str,
    /// How data travel.
    #[serde(serialize_with = "as_text")]
    pub encoding: Encoding,
    /// Channels, before lanes.
    pub channels: u32,
    /// Thread blocks of the rank that has most.
    pub blocks: u32,
    /// The predicted time in microseconds.
    pub predicted_us: f64,
    /// The message over that time, in GB/s.
    pub algbw_gbs: f64,
    /// The same as a part of the bound.
    pub fraction_of_bound: f64,
}

fn as_text<S: Serializer>(encoding: &Encoding, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(encoding.name())
}

impl Outlook {
    pub(crate) fn new(
        request: &PlanRequest,
        candidate: &Candidate,
        cut: &Cut,
        predicted_us: f64,
        bound: &Bound,
    ) -> Outlook {
        let algbw_gbs = request.bytes as f64 / predicted_us / 1e3;
        Outlook {
            name: candidate.label.clone(),
            algorithm: candidate.schedule.algorithm,
            encoding: cut.encoding,
            channels: candidate.schedule.channels,
            blocks: cut.blocks,
            predicted_us,
            algbw_gbs,
            fraction_of_bound: algbw_gbs * 1e3 / bound.algbw.to_f64(),
        }
    }
}

impl Plan {
    /// The copy that is all one rank has to do.
    pub(crate) fn of_one_rank(request: &PlanRequest, gpus: &[usize]) -> Result<Plan> {
        let schedule = schedule::build("direct", &Request::new(Collective::AllReduce, 1, 1))?;
        let schedule = Schedule { collective: request.collective, ..schedule };
        Ok(Plan {
            collective: request.collective,
            bytes: request.bytes,
            gpus: gpus.to_vec(),
            algorithm: "direct",
            label: "copy".into(),
            encoding: Encoding::Bulk,
            lanes: vec![1],
            blocks: 1,
            tile_bytes: request.limits.tile_bytes.unwrap_or(256 << 10),
            depth: request.limits.depth,
            predicted_us: super::CostModel::default().bulk_us,
            bound: None,
            verified: schedule::verify(&schedule, 2).is_ok(),
            reason: "one rank's input is the result".into(),
            schedule: Arc::new(schedule),
            outlooks: Vec::new(),
            chosen: 0,
            shapes: vec![Shape::Mesh],
            types: Vec::new(),
            weights: vec![1],
        })
    }

    /// What each channel looks like.
    #[cfg(feature = "cli")]
    pub(crate) fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// What each channel carries, relative to the others.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// The type of the way of each link of the schedule.
    pub fn ways(&self) -> &[PathType] {
        &self.types
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.gpus.len()
    }

    /// The message over the predicted time, in GB/s.
    pub fn algbw_gbs(&self) -> f64 {
        self.bytes as f64 / self.predicted_us / 1e3
    }

    /// Bus bandwidth, comparable between collectives and numbers of ranks, in GB/s.
    pub fn busbw_gbs(&self) -> f64 {
        self.algbw_gbs() * self.collective.bus_factor(self.ranks())
    }

    /// The bound of the algorithm bandwidth in GB/s; infinite for one rank.
    pub fn bound_algbw_gbs(&self) -> f64 {
        self.bound.as_ref().map_or(f64::INFINITY, |bound| bound.algbw.to_f64() / 1e3)
    }

    /// How near the prediction is to the bound: 1 is optimal. Small messages are far from it, whatever one does: the bound
    /// knows no latency.
    pub fn fraction_of_bound(&self) -> f64 {
        self.algbw_gbs() / self.bound_algbw_gbs()
    }

    /// What proves the bound, in a sentence.
    pub fn certificate(&self) -> String {
        self.bound.as_ref().map_or_else(|| "nothing bounds a single rank".into(), Bound::explain)
    }

    /// The channels in the form of NCCL's log: the ranks of each ring in order, or each rank's children and parent in
    /// each tree, then every connection with the type of its way.
    pub fn channels(&self) -> Vec<String> {
        let count = self.shapes.len();
        let mut lines = Vec::new();
        for (channel, shape) in self.shapes.iter().enumerate() {
            match shape {
                Shape::Ring(order) => {
                    let ranks: Vec<String> = order.iter().map(|rank| format!("{rank:3}")).collect();
                    lines.push(format!("Channel {channel:02}/{count:02} :{}", ranks.join(" ")));
                }
                Shape::Mesh => {
                    lines.push(format!("Channel {channel:02}/{count:02} : every rank to every rank"))
                }
                Shape::Tree(_) => {}
            }
        }
        for rank in 0..self.ranks() {
            let spots: Vec<String> =
                self.shapes.iter().enumerate().filter_map(|(c, s)| tree_spot(c, s, rank)).collect();
            if !spots.is_empty() {
                lines.push(format!("Rank {rank} Trees {}", spots.join(" ")));
            }
        }
        lines
    }

    /// The connections in the form of NCCL's log: `Channel 00 : 0[0] -> 1[1] via NVL`, with the GPU in brackets.
    pub fn connections(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (link, way) in self.schedule.links.iter().zip(&self.types) {
            let (from, to) = (link.from, link.to);
            let line = format!(
                "Channel {:02} : {from}[{}] -> {to}[{}] via {way}",
                link.channel, self.gpus[from], self.gpus[to]
            );
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    /// The schedule with every channel as often as it has lanes: for engines that give all workers as many lanes.
    ///
    /// # Errors
    /// [`crate::Error::InvalidValue`] for shares that do not fit into 32 bits, which small weights exclude.
    pub fn widened(&self) -> Result<Schedule> {
        self.schedule.widened(&self.lanes)
    }

    /// The choice in a line: `all_reduce of 1048576 bytes: direct, bulk, 16 blocks, 22.1 us predicted, because …`.
    pub fn summary(&self) -> String {
        let (what, bytes, label, encoding) = (self.collective.name(), self.bytes, &self.label, self.encoding);
        let (blocks, time, reason) = (self.blocks, self.predicted_us, &self.reason);
        format!(
            "{what} of {bytes} bytes: {label}, {encoding}, {blocks} blocks, {time:.1} us predicted, because {reason}"
        )
    }

    /// The plan as text: the candidates as a table, the choice and its reason, the bound, and the channels.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let root = self.collective.root().map_or(String::new(), |root| format!(" from or to rank {root}"));
        let _ = writeln!(
            text,
            "{}{root} of {} bytes on {} ranks",
            self.collective.name(),
            self.bytes,
            self.ranks()
        );
        let _ = writeln!(
            text,
            "\n    {:<24}{:<11}{:>8}{:>8}{:>12}{:>11}{:>10}",
            "candidate", "encoding", "channels", "blocks", "time us", "algbw GB/s", "of bound"
        );
        let mut order: Vec<usize> = (0..self.outlooks.len()).collect();
        order.sort_by(|&a, &b| self.outlooks[a].predicted_us.total_cmp(&self.outlooks[b].predicted_us));
        for at in order {
            let o = &self.outlooks[at];
            let mark = if at == self.chosen { "->" } else { "" };
            let _ = writeln!(
                text,
                "{mark:>3} {:<24}{:<11}{:>8}{:>8}{:>12.1}{:>11.2}{:>9.1}%",
                o.name,
                o.encoding,
                o.channels,
                o.blocks,
                o.predicted_us,
                o.algbw_gbs,
                100.0 * o.fraction_of_bound
            );
        }
        let _ = writeln!(text, "\nchosen: {}, because {}", self.label, self.reason);
        let _ = writeln!(text, "bound:  {}", self.certificate());
        let _ = writeln!(text, "proven: every rank gets the right result, with {} slots a link or more\n", 2);
        for line in self.channels() {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// A rank's place in a tree as NCCL writes it: up to three children, the rank, the parent.
fn tree_spot(channel: usize, shape: &Shape, rank: usize) -> Option<String> {
    let Shape::Tree(parents) = shape else { return None };
    let mut children: Vec<String> = parents
        .iter()
        .enumerate()
        .filter(|(_, p)| **p == Some(rank))
        .map(|(child, _)| child.to_string())
        .collect();
    while children.len() < 3 {
        children.push("-1".into());
    }
    let parent = parents[rank].map_or("-1".into(), |parent| parent.to_string());
    Some(format!("[{channel}] {}->{rank}->{parent}", children.join("/")))
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let finite = |x: f64| x.is_finite().then_some(x);
        let mut out = s.serialize_struct("Plan", 22)?;
        out.serialize_field("collective", self.collective.name())?;
        out.serialize_field("root", &self.collective.root())?;
        out.serialize_field("bytes", &self.bytes)?;
        out.serialize_field("ranks", &self.ranks())?;
        out.serialize_field("gpus", &self.gpus)?;
        out.serialize_field("algorithm", self.algorithm)?;
        out.serialize_field("name", &self.label)?;
        out.serialize_field("encoding", self.encoding.name())?;
        out.serialize_field("channels", &self.schedule.channels)?;
        out.serialize_field("lanes", &self.lanes)?;
        out.serialize_field("blocks", &self.blocks)?;
        out.serialize_field("tile_bytes", &self.tile_bytes)?;
        out.serialize_field("depth", &self.depth)?;
        out.serialize_field("predicted_us", &self.predicted_us)?;
        out.serialize_field("algbw_gbs", &self.algbw_gbs())?;
        out.serialize_field("busbw_gbs", &self.busbw_gbs())?;
        out.serialize_field("bound_algbw_gbs", &finite(self.bound_algbw_gbs()))?;
        out.serialize_field("fraction_of_bound", &self.fraction_of_bound())?;
        out.serialize_field("certificate", &self.certificate())?;
        out.serialize_field("verified", &self.verified)?;
        out.serialize_field("reason", &self.reason)?;
        out.serialize_field("candidates", &self.outlooks)?;
        out.serialize_field("log", &self.channels())?;
        out.end()
    }
}
