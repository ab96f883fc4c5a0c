//! A schedule lowered for one rank: what it does, on which links, and which copies it can leave out.
//!
//! CPU ranks share an address space, so a fold that only sends a part of its rank's input need not run: the consumer
//! reads the input where it is, once the producer has posted the address. Such a load or store is called *direct*. It is
//! allowed where the input stays as it is until the consumer has read it:
//!
//! - out of place, or from a copy of the input, always: the producer waits for its readers before it returns;
//! - in place, where this rank's part of the chunk is read by this one fold for this one consumer, in a collective
//!   that reduces. Everything written to that chunk of the output holds this rank's contribution, exactly once as the
//!   schedule's proof says, and so was computed from what the consumer read; or else nothing is written there at all.
//!
//! Producer and consumer decide by the same facts, so they agree about which slots there are. A transfer that is left
//! out orders nothing any more, so no schedule may rely on it for being safe in place: see [`orders_by_data`].

use std::collections::HashMap;
use std::sync::Arc;

use super::fabric::{Fabric, Link, LinkKey};
use crate::engine::Launch;
use crate::schedule::{Chunk, ChunkId, Fold, Schedule, Sink, Source};

/// Index of a [`Port`] in [`Program::ports`].
pub(super) type PortId = usize;

/// One rank's end of a link, in one lane.
pub(super) struct Port {
    pub(super) link: Arc<Link>,
    /// The rank at the other end.
    pub(super) peer: usize,
}

/// Whether a transfer may be direct when the producer's input is not steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// It goes through a slot always.
    Never,
    /// Only if the input stays as it is until everybody has finished.
    IfSteady,
    /// Also if the input is the output buffer.
    Always,
}

/// Where a step reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    Input,
    Output,
    /// The next slot, or the producer's input.
    Link {
        port: PortId,
        direct: Direct,
    },
    /// This rank's own output, once the producer has said that it is there.
    Lent {
        port: PortId,
    },
}

/// Where a step writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    Output,
    /// The next slot, or nowhere: the consumer reads the input itself.
    Link {
        port: PortId,
        direct: Direct,
    },
    /// The consumer's output.
    Lent {
        port: PortId,
    },
}

/// A lowered fold.
pub(super) struct Step {
    pub(super) chunk: Chunk,
    pub(super) loads: Vec<Load>,
    pub(super) stores: Vec<Store>,
    pub(super) finish: bool,
}

/// A lowered worker in one lane.
pub(super) struct Code {
    pub(super) lane: u32,
    pub(super) steps: Vec<Step>,
}

/// One rank's part of a launch.
pub(super) struct Program {
    pub(super) workers: Vec<Code>,
    pub(super) ports: Vec<Port>,
    /// Ranks that may read this rank's input directly.
    pub(super) readers: Vec<usize>,
    /// Ranks whose input this rank may read directly.
    pub(super) read_from: Vec<usize>,
    /// Whether this rank writes into outputs of others.
    pub(super) writes_peers: bool,
}

/// Lowers a launch for every rank.
pub(super) fn lower(launch: &Launch, fabric: &Fabric) -> Vec<Program> {
    let schedule = launch.schedule();
    let sends = producers(schedule);
    let indices = schedule.link_indices();
    (0..schedule.ranks).map(|rank| Lowering::new(launch, fabric, &sends, &indices, rank).run()).collect()
}

/// For each link, the chunk of each send in order, with whether it may be direct.
fn producers(schedule: &Schedule) -> Vec<Vec<(ChunkId, Direct)>> {
    let mut sends = vec![Vec::new(); schedule.links.len()];
    let allowed = (0..schedule.ranks).all(|rank| orders_by_data(schedule, rank));
    for workers in &schedule.workers {
        let folds = || workers.iter().flat_map(|w| &w.folds);
        let mut readers: HashMap<ChunkId, usize> = HashMap::new();
        for fold in folds().filter(|f| f.sources.contains(&Source::Input)) {
            *readers.entry(fold.chunk).or_default() += 1;
        }
        for fold in folds() {
            let readers = readers.get(&fold.chunk).copied().unwrap_or(0);
            let direct = if allowed { may_be_direct(schedule, fold, readers) } else { Direct::Never };
            for link in fold.sinks.iter().filter_map(|s| s.link()) {
                sends[link.0 as usize].push((fold.chunk, direct));
            }
        }
    }
    sends
}

/// Whether a rank's output is written in place after its input was read for a reason other than the order of messages.
///
/// The final value of a chunk is computed from every rank's input, so it is written after the read that fed it. Other
/// reads of the same part must then come before it in the order of one worker. Collectives that do not reduce write
/// nothing over an input but itself.
fn orders_by_data(schedule: &Schedule, rank: usize) -> bool {
    if !schedule.collective.reduces() {
        return true;
    }
    let mut readers: HashMap<ChunkId, Vec<usize>> = HashMap::new();
    for (w, worker) in schedule.workers[rank].iter().enumerate() {
        for fold in worker.folds.iter().filter(|f| f.sources.contains(&Source::Input)) {
            readers.entry(fold.chunk).or_default().push(w);
        }
    }
    readers.retain(|_, workers| workers.len() > 1);
    let writes_here = |fold: &Fold, by: usize| {
        fold.sinks.iter().any(|s| match s {
            Sink::Output => by == rank,
            Sink::Peer(l) => schedule.links[l.0 as usize].to == rank,
            Sink::Link(_) => false,
        })
    };
    readers.is_empty()
        || schedule.workers.iter().enumerate().all(|(by, workers)| {
            workers.iter().enumerate().all(|(w, worker)| {
                worker.folds.iter().filter(|f| writes_here(f, by)).all(|f| {
                    readers.get(&f.chunk).is_none_or(|all| by == rank && all.iter().all(|&r| r == w))
                })
            })
        })
}

/// Whether a fold only sends the input on; `readers` folds of its rank read this part of the input.
fn may_be_direct(schedule: &Schedule, fold: &Fold, readers: usize) -> Direct {
    let sends_input = fold.sources == [Source::Input]
        && !fold.finish
        && !fold.sinks.is_empty()
        && fold.sinks.iter().all(|s| matches!(s, Sink::Link(_)));
    match sends_input {
        true if readers == 1 && fold.sinks.len() == 1 && schedule.collective.reduces() => Direct::Always,
        true => Direct::IfSteady,
        false => Direct::Never,
    }
}

struct Lowering<'a> {
    launch: &'a Launch,
    fabric: &'a Fabric,
    sends: &'a [Vec<(ChunkId, Direct)>],
    indices: &'a [u32],
    rank: usize,
    lane: u32,
    port_of: HashMap<(u32, u32), PortId>,
    /// How many sends of each link this rank has met so far, at either end, in this lane.
    met: HashMap<u32, usize>,
    program: Program,
}

impl<'a> Lowering<'a> {
    fn new(
        launch: &'a Launch,
        fabric: &'a Fabric,
        sends: &'a [Vec<(ChunkId, Direct)>],
        indices: &'a [u32],
        rank: usize,
    ) -> Self {
        let program = Program {
            workers: Vec::new(),
            ports: Vec::new(),
            readers: Vec::new(),
            read_from: Vec::new(),
            writes_peers: false,
        };
        let (port_of, met) = (HashMap::new(), HashMap::new());
        Lowering { launch, fabric, sends, indices, rank, lane: 0, port_of, met, program }
    }

    fn run(mut self) -> Program {
        for lane in 0..self.launch.lanes() {
            self.lane = lane;
            self.met.clear();
            for worker in &self.launch.schedule().workers[self.rank] {
                let steps = worker.folds.iter().map(|f| self.step(f)).collect();
                self.program.workers.push(Code { lane, steps });
            }
        }
        for peers in [&mut self.program.readers, &mut self.program.read_from] {
            peers.sort_unstable();
            peers.dedup();
        }
        self.program
    }

    fn step(&mut self, fold: &Fold) -> Step {
        let loads: Vec<Load> = fold.sources.iter().map(|&s| self.load(fold, s)).collect();
        // What was lent is in the output already.
        let lent = loads.iter().any(|l| matches!(l, Load::Lent { .. }));
        let stores = fold.sinks.iter().filter(|s| !(lent && **s == Sink::Output));
        let stores = stores.map(|&s| self.store(fold, s)).collect();
        Step {
            chunk: self.launch.schedule().chunks[fold.chunk.0 as usize],
            loads,
            stores,
            finish: fold.finish,
        }
    }

    fn load(&mut self, fold: &Fold, source: Source) -> Load {
        match source {
            Source::Input => Load::Input,
            Source::Output => Load::Output,
            Source::Link(link) | Source::Peer(link) => {
                let port = self.port(link.0);
                let direct = self.next_send(link.0, fold.chunk);
                if let Source::Peer(_) = source {
                    return Load::Lent { port };
                }
                if direct != Direct::Never {
                    self.program.read_from.push(self.program.ports[port].peer);
                }
                Load::Link { port, direct }
            }
        }
    }

    fn store(&mut self, fold: &Fold, sink: Sink) -> Store {
        match sink {
            Sink::Output => Store::Output,
            Sink::Peer(link) => {
                self.next_send(link.0, fold.chunk);
                self.program.writes_peers = true;
                Store::Lent { port: self.port(link.0) }
            }
            Sink::Link(link) => {
                let port = self.port(link.0);
                let direct = self.next_send(link.0, fold.chunk);
                if direct != Direct::Never {
                    self.program.readers.push(self.program.ports[port].peer);
                }
                Store::Link { port, direct }
            }
        }
    }

    /// The next send of a link, in the order both ends count in.
    fn next_send(&mut self, link: u32, chunk: ChunkId) -> Direct {
        let nth = self.met.entry(link).or_default();
        let send = self.sends[link as usize].get(*nth);
        *nth += 1;
        match send {
            Some(&(sent, direct)) if sent == chunk => direct,
            _ => Direct::Never,
        }
    }

    /// This rank's end of a link.
    fn port(&mut self, link: u32) -> PortId {
        let (schedule, lane) = (self.launch.schedule(), self.lane);
        let program = &mut self.program;
        *self.port_of.entry((link, lane)).or_insert_with(|| {
            let ends = schedule.links[link as usize];
            let key = LinkKey {
                from: ends.from,
                to: ends.to,
                index: self.indices[link as usize],
                lane,
                bytes: self.launch.tile_bytes() * self.launch.depth() as usize,
            };
            let peer = if ends.from == self.rank { ends.to } else { ends.from };
            program.ports.push(Port { link: self.fabric.link(key), peer });
            program.ports.len() - 1
        })
    }
}
