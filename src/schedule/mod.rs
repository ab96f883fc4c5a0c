//! Schedules: pure data that says which rank moves what, in which order.
//!
//! # The one instruction
//!
//! A [`Schedule`] holds, for each rank, [`Worker`]s. A worker is a list of [`Fold`]s that it repeats for each *tile*
//! of the message. A fold combines all of its sources with the reduction operator and writes the result to all of
//! its sinks. Send, receive, copy, reduce, receive-reduce-forward and put-into-the-peer's-buffer are all this one
//! instruction with different operands.
//!
//! # Coordinates
//!
//! The *message* is the whole buffer of the collective: `count` elements for all_reduce, broadcast and reduce, and
//! `ranks × count` for all_gather (the output) and reduce_scatter (the input), divided into one *block* a rank. The
//! message is divided into [`Chunk`]s, each a share of one block; chunks are disjoint and cover the message. Every
//! operand of a fold means the same chunk, so they have the same length by construction.
//!
//! `Input` and `Output` are the calling rank's own buffers, addressed in message coordinates: in an all_gather rank
//! `r`'s input is block `r` and nothing else; in a reduce_scatter its output is block `r`.
//!
//! # Execution
//!
//! A worker runs `for tile in 0.. { for fold in folds { fold(tile) } }` until every chunk is exhausted; a fold whose
//! chunk has no such tile is skipped, on both ends of its links alike. To run a fold, the worker waits until every
//! source link holds its next slot and every sink link has a free one, combines, then publishes the sinks and frees
//! the sources. Workers run concurrently and meet only through links.
//!
//! # Links
//!
//! A [`Link`] is a FIFO with one producing and one consuming worker. [`Sink::Link`] fills a slot, and
//! [`Source::Link`] reads it. [`Sink::Peer`] and [`Source::Peer`], always paired, do the same unless the consumer has
//! lent its output buffer for the operation: then the producer writes the chunk straight into the consumer's `Output`
//! and only the slot's counter moves. So a fold with a peer source has no other source, and `Output` among its sinks;
//! when the output is lent, that fold reads its own output instead of the slot and has nothing to write there.
//!
//! # Lanes
//!
//! Engines may run every worker on several *lanes*: lane `l` of `L` runs the same folds on the `l`-th part of every
//! chunk, over links of its own. Lanes never meet, so a schedule is verified once for any number of them.

mod chunk;
mod describe;
pub mod direct;
pub mod forest;
pub mod one_shot;
pub mod ring;
pub mod simulate;
pub mod tree;
pub mod verify;
mod weigh;

pub use chunk::{CHUNK_ALIGN, Chunk, Share, lane_range};
pub use verify::verify;

use crate::error::{Error, Result};
use crate::types::Collective;

/// Index of a [`Chunk`] in [`Schedule::chunks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u32);

/// Index of a [`Link`] in [`Schedule::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Where a fold reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank's input buffer. In a reduction this is the rank's contribution, so an engine applies a
    /// pre-multiplication factor here.
    Input,
    /// This rank's output buffer, written by an earlier fold.
    Output,
    /// The next slot of a link that ends at this worker.
    Link(LinkId),
    /// This rank's output buffer where it was lent to the producer, else the next slot of the link.
    Peer(LinkId),
}

impl Source {
    /// The link the source drains, if it is one.
    pub fn link(self) -> Option<LinkId> {
        match self {
            Source::Link(l) | Source::Peer(l) => Some(l),
            Source::Input | Source::Output => None,
        }
    }
}

/// Where a fold writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    /// This rank's output buffer.
    Output,
    /// The next slot of a link that begins at this worker.
    Link(LinkId),
    /// The consumer's output buffer where it is lent, else the next slot of the link.
    Peer(LinkId),
}

impl Sink {
    /// The link the sink fills, if it is one.
    pub fn link(self) -> Option<LinkId> {
        match self {
            Sink::Link(l) | Sink::Peer(l) => Some(l),
            Sink::Output => None,
        }
    }
}

/// Combine all sources with the reduction operator, in the order given, and write the result to all sinks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fold {
    /// The part of the message all operands mean.
    pub chunk: ChunkId,
    /// At least one. Link sources come from different links.
    pub sources: Vec<Source>,
    /// May be empty only if every source is a link (a fold that merely drains).
    pub sinks: Vec<Sink>,
    /// Whether the result is the reduction over all ranks, complete for the first time: the place where `Avg`
    /// divides. Never set in collectives that do not reduce.
    pub finish: bool,
}

impl Fold {
    /// A fold that copies one source to some sinks.
    pub fn copy(chunk: ChunkId, source: Source, sinks: impl Into<Vec<Sink>>) -> Self {
        Fold { chunk, sources: vec![source], sinks: sinks.into(), finish: false }
    }

    /// A fold that combines several sources.
    pub fn reduce(
        chunk: ChunkId,
        sources: impl Into<Vec<Source>>,
        sinks: impl Into<Vec<Sink>>,
        finish: bool,
    ) -> Self {
        Fold { chunk, sources: sources.into(), sinks: sinks.into(), finish }
    }
}

/// What a worker mostly does; for people and plots, never for engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends this rank's data out.
    Push,
    /// Drains links, combines and forwards.
    Reduce,
    /// Both, in turn.
    Relay,
}

/// One sequential executor: a CPU fiber, or a thread block on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    /// The channel this worker belongs to.
    pub channel: u32,
    /// What it mostly does.
    pub role: Role,
    /// What it repeats for each tile.
    pub folds: Vec<Fold>,
}

/// A FIFO between one worker of one rank and one worker of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The producing rank.
    pub from: usize,
    /// The consuming rank.
    pub to: usize,
    /// The channel both ends belong to.
    pub channel: u32,
}

/// A complete plan of who moves what: see the [module documentation](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The algorithm's name: `ring`.
    pub algorithm: &'static str,
    /// What the schedule computes.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: usize,
    /// How many channels (rings, trees) share the message.
    pub channels: u32,
    /// Disjoint parts that cover the message, in message order.
    pub chunks: Vec<Chunk>,
    /// All links, of all ranks.
    pub links: Vec<Link>,
    /// The workers of each rank.
    pub workers: Vec<Vec<Worker>>,
}

impl Schedule {
    /// `ring all_reduce on 4 ranks`.
    pub fn name(&self) -> String {
        format!("{} {} on {} ranks", self.algorithm, self.collective, self.ranks)
    }

    /// The elements of the message that a chunk covers, where one block has `block_len` elements of `elem_size` bytes.
    pub fn chunk_range(&self, chunk: ChunkId, block_len: usize, elem_size: usize) -> std::ops::Range<usize> {
        self.chunks[chunk.0 as usize].range(block_len, elem_size)
    }

    /// For each link its number among the links of the same ordered pair of ranks, counted from 0.
    pub fn link_indices(&self) -> Vec<u32> {
        let mut next = std::collections::HashMap::new();
        self.links
            .iter()
            .map(|l| {
                let n = next.entry((l.from, l.to)).or_insert(0u32);
                *n += 1;
                *n - 1
            })
            .collect()
    }
}

/// How data and its arrival are told apart in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// Data, then a counter stored with release semantics: the fastest for large tiles. NCCL calls it Simple.
    Bulk,
    /// 16 bytes of which 8 are data and 8 flags: no fence at all, for the smallest messages. NCCL calls it LL.
    Packet16,
    /// 128 bytes of which 120 are data and 8 a flag, where the path keeps 128-byte stores whole. NCCL calls it LL128.
    Packet128,
}

impl Encoding {
    /// All of them.
    pub const ALL: [Encoding; 3] = [Encoding::Bulk, Encoding::Packet16, Encoding::Packet128];

    /// Bytes of data for each byte on the wire.
    pub const fn efficiency(self) -> f64 {
        match self {
            Encoding::Bulk => 1.0,
            Encoding::Packet16 => 0.5,
            Encoding::Packet128 => 120.0 / 128.0,
        }
    }

    /// `bulk`, `packet16`, `packet128`.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Bulk => "bulk",
            Encoding::Packet16 => "packet16",
            Encoding::Packet128 => "packet128",
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Encoding {
    type Err = Error;

    /// Accepts the names and NCCL's: `Simple`, `LL`, `LL128`.
    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "bulk" | "simple" => Ok(Encoding::Bulk),
            "packet16" | "ll" => Ok(Encoding::Packet16),
            "packet128" | "ll128" => Ok(Encoding::Packet128),
            _ => Err(Error::invalid_value(
                "encoding",
                text,
                "bulk (Simple), packet16 (LL) or packet128 (LL128)",
            )),
        }
    }
}

/// What a builder is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The collective, with its root.
    pub collective: Collective,
    /// How many ranks.
    pub ranks: usize,
    /// One visiting order of all ranks for each channel. Builders that do not walk an order use only the number of
    /// orders.
    pub orders: Vec<Vec<usize>>,
}

impl Request {
    /// A request for `channels` channels that visit the ranks in numerical order.
    pub fn new(collective: Collective, ranks: usize, channels: usize) -> Self {
        Request { collective, ranks, orders: vec![(0..ranks).collect(); channels] }
    }

    /// Checks what every builder relies on.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] naming the number of ranks, the root, or the order that is not a permutation.
    pub fn check(&self) -> Result<()> {
        let n = self.ranks;
        if n == 0 || n > MAX_RANKS {
            return Err(Error::invalid_value("ranks", n.to_string(), format!("1 to {MAX_RANKS}")));
        }
        if let Some(root) = self.collective.root().filter(|&r| r >= n) {
            return Err(Error::invalid_value("root", root.to_string(), format!("a rank below {n}")));
        }
        if self.orders.is_empty() {
            return Err(Error::invalid_value("channels", "0", "at least 1"));
        }
        for order in &self.orders {
            let mut seen = vec![false; n];
            let ok =
                order.len() == n && order.iter().all(|&r| r < n && !std::mem::replace(&mut seen[r], true));
            if !ok {
                return Err(Error::invalid_value(
                    "order",
                    format!("{order:?}"),
                    format!("each of the ranks 0 to {} once", n - 1),
                ));
            }
        }
        Ok(())
    }
}

/// Most ranks a schedule can have.
pub const MAX_RANKS: usize = 128;

/// A family of schedules: one implementation in one file, listed in [`ALGORITHMS`].
pub trait Algorithm: Sync {
    /// The name users choose it by: `ring`.
    fn name(&self) -> &'static str;

    /// Whether it can do this collective.
    fn supports(&self, collective: Collective) -> bool;

    /// Builds the schedule of a checked request for two or more ranks.
    fn build(&self, request: &Request) -> Schedule;
}

/// Every algorithm, in the order they are offered.
pub const ALGORITHMS: &[&dyn Algorithm] = &[&ring::Ring, &tree::Tree, &direct::Direct, &one_shot::OneShot];

/// Builds a schedule by the algorithm's name. One rank needs no algorithm: its schedule is a copy.
///
/// ```
/// use ringleader::{Collective, schedule};
///
/// let request = schedule::Request::new(Collective::AllReduce, 4, 2);
/// let ring = schedule::build("ring", &request)?;
/// assert_eq!(ring.links.len(), 8);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidValue`] if the request is malformed or no such algorithm exists, [`Error::NoPlan`] if it cannot do
/// the collective.
pub fn build(algorithm: &str, request: &Request) -> Result<Schedule> {
    request.check()?;
    let found = ALGORITHMS.iter().find(|a| a.name() == algorithm).ok_or_else(|| {
        let known: Vec<_> = ALGORITHMS.iter().map(|a| a.name()).collect();
        Error::invalid_value("algorithm", algorithm, known.join(", "))
    })?;
    if !found.supports(request.collective) {
        let able: Vec<_> =
            ALGORITHMS.iter().filter(|a| a.supports(request.collective)).map(|a| a.name()).collect();
        return Err(Error::NoPlan {
            request: format!("{algorithm} {}", request.collective),
            reason: format!("{algorithm} has no such schedule; use {}", able.join(" or ")),
        });
    }
    if request.ranks == 1 {
        return Ok(single(request, found.name()));
    }
    Ok(found.build(request))
}

/// The schedule of one rank: its input is the result.
fn single(request: &Request, algorithm: &'static str) -> Schedule {
    let mut s = Builder::new(algorithm, request);
    let chunk = s.chunk(0, Share::ALL);
    let mut fold = Fold::copy(chunk, Source::Input, [Sink::Output]);
    fold.finish = request.collective.reduces();
    s.worker(0, 0, Role::Push, vec![fold]);
    s.finish()
}

/// Collects the parts of a schedule; what the algorithms build with.
pub(crate) struct Builder {
    schedule: Schedule,
}

impl Builder {
    pub(crate) fn new(algorithm: &'static str, request: &Request) -> Self {
        Builder {
            schedule: Schedule {
                algorithm,
                collective: request.collective,
                ranks: request.ranks,
                channels: request.orders.len() as u32,
                chunks: Vec::new(),
                links: Vec::new(),
                workers: vec![Vec::new(); request.ranks],
            },
        }
    }

    /// Adds a chunk: a share of a block.
    pub(crate) fn chunk(&mut self, block: usize, share: Share) -> ChunkId {
        self.schedule.chunks.push(Chunk { block: block as u32, share });
        ChunkId(self.schedule.chunks.len() as u32 - 1)
    }

    /// Divides the message into one chunk for each rank in one channel: channel `channel`'s share of block `rank`
    /// where the collective has blocks, else the `rank`-th part of the channel's share of the only block.
    pub(crate) fn chunk_per_rank(&mut self, channel: usize) -> Vec<ChunkId> {
        let (n, channels) = (self.schedule.ranks as u32, self.schedule.channels);
        let blocks = self.schedule.collective.blocks(n as usize);
        (0..n)
            .map(|r| {
                if blocks > 1 {
                    self.chunk(r as usize, Share::part(channel as u32, channels))
                } else {
                    self.chunk(0, Share::part(channel as u32 * n + r, channels * n))
                }
            })
            .collect()
    }

    /// Adds a link.
    pub(crate) fn link(&mut self, channel: usize, from: usize, to: usize) -> LinkId {
        self.schedule.links.push(Link { from, to, channel: channel as u32 });
        LinkId(self.schedule.links.len() as u32 - 1)
    }

    /// Adds a link for every ordered pair of different ranks; `links[from][to]`.
    pub(crate) fn links_all_pairs(&mut self, channel: usize) -> Vec<Vec<Option<LinkId>>> {
        let n = self.schedule.ranks;
        let mut all = vec![vec![None; n]; n];
        for (from, row) in all.iter_mut().enumerate() {
            for (to, slot) in row.iter_mut().enumerate().filter(|&(to, _)| to != from) {
                *slot = Some(self.link(channel, from, to));
            }
        }
        all
    }

    /// Adds a worker, unless it would have nothing to do.
    pub(crate) fn worker(&mut self, rank: usize, channel: usize, role: Role, folds: Vec<Fold>) {
        if !folds.is_empty() {
            self.schedule.workers[rank].push(Worker { channel: channel as u32, role, folds });
        }
    }

    /// The finished schedule, with its chunks in message order.
    pub(crate) fn finish(self) -> Schedule {
        let mut s = self.schedule;
        let mut order: Vec<usize> = (0..s.chunks.len()).collect();
        order.sort_by_key(|&i| s.chunks[i]);
        let mut new_id = vec![ChunkId(0); order.len()];
        for (new, &old) in order.iter().enumerate() {
            new_id[old] = ChunkId(new as u32);
        }
        s.chunks = order.iter().map(|&i| s.chunks[i]).collect();
        for fold in s.workers.iter_mut().flatten().flat_map(|w| &mut w.folds) {
            fold.chunk = new_id[fold.chunk.0 as usize];
        }
        s
    }
}

#[cfg(test)]
mod tests;
