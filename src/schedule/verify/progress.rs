//! Freedom from deadlock, by running the schedule on FIFOs of the real depth.
//!
//! Workers are sequential and meet only through FIFOs, so the order in which they happen to run decides nothing: if
//! one execution ends, every execution does (G. Kahn, *The semantics of a simple language for parallel programming*,
//! IFIP 1974; a bounded FIFO is two unbounded ones, of data and of credits).
//!
//! # Why two tiles decide for any number
//!
//! Let the instances of the folds, one for each tile, be the nodes of a graph with an edge from each to those it
//! waits for: the fold before it in its worker (or the last one in the tile before), the fold that fills the slot it
//! drains, and the fold that drained the slot it fills, `depth` uses ago. All of them belong to the same tile or to
//! an earlier one. So on a cycle, which is what a deadlock is, no edge leads to an earlier tile: the cycle lies
//! within one tile, and it is there in the first. One tile is enough; the second guards the argument.
//!
//! # Why unequal chunks change nothing
//!
//! Where a chunk has no such tile, its folds are skipped at both ends of their links. What is left waits for the
//! same data as before, in the same order. A fold that fills a slot now waits for a drain that is `depth`
//! *remaining* uses ago, which in the full schedule is at least `depth` uses ago: something that it had to wait for
//! in any case. So the remaining graph has no edge that the full graph does not imply, and no cycle if that has none.
//!
//! A lent output only removes waiting: its writer needs no slot.

use super::Verdict;
use super::wiring::{FoldIndex, Wiring};

const TILES: usize = 2;

/// At most so many blocked folds are named in a message.
const NAMED: usize = 4;

/// One worker's position.
struct Position {
    first: FoldIndex,
    len: usize,
    /// Folds done so far, over all tiles.
    done: usize,
}

impl Position {
    fn current(&self) -> Option<FoldIndex> {
        (self.done < self.len * TILES).then(|| self.first + self.done % self.len)
    }
}

/// What a worker waits for.
enum Wait {
    Data(usize),
    Room(usize),
}

/// Slots filled and drained so far.
#[derive(Clone, Copy, Default)]
struct Fifo {
    filled: usize,
    drained: usize,
}

/// Runs the schedule; returns the folds of the first tile in an order in which they can run.
pub(super) fn run(wiring: &Wiring, depth: u32) -> Verdict<Vec<FoldIndex>> {
    let mut positions = positions(wiring);
    let owner = owners(wiring, &positions);
    let mut fifos = vec![Fifo::default(); wiring.uses.len()];
    let mut order = Vec::with_capacity(wiring.places.len());
    let mut ready: Vec<usize> = (0..positions.len()).rev().collect();
    while let Some(worker) = ready.pop() {
        while let Some(index) = positions[worker].current() {
            if blocked(wiring, &fifos, depth, index).is_some() {
                break;
            }
            if positions[worker].done < positions[worker].len {
                order.push(index);
            }
            positions[worker].done += 1;
            let fold = wiring.fold(index);
            for l in fold.sources.iter().filter_map(|s| s.link()).map(|l| l.0 as usize) {
                fifos[l].drained += 1;
                ready.push(owner[wiring.uses[l].fills[0]]);
            }
            for l in fold.sinks.iter().filter_map(|s| s.link()).map(|l| l.0 as usize) {
                fifos[l].filled += 1;
                ready.push(owner[wiring.uses[l].drains[0]]);
            }
        }
    }
    let stuck: Vec<FoldIndex> = positions.iter().filter_map(Position::current).collect();
    if stuck.is_empty() {
        return Ok(order);
    }
    let mut reasons: Vec<String> = stuck
        .iter()
        .take(NAMED)
        .filter_map(|&index| {
            let why = match blocked(wiring, &fifos, depth, index)? {
                Wait::Data(l) => {
                    format!("data on {}", wiring.schedule.link_name(crate::schedule::LinkId(l as u32)))
                }
                Wait::Room(l) => {
                    format!("a free slot on {}", wiring.schedule.link_name(crate::schedule::LinkId(l as u32)))
                }
            };
            Some(format!("{} waits for {why}", wiring.name(index)))
        })
        .collect();
    if stuck.len() > NAMED {
        reasons.push(format!("and {} more workers wait", stuck.len() - NAMED));
    }
    Err(format!("with {depth} slots a link it never ends: {}", reasons.join("; ")))
}

fn positions(wiring: &Wiring) -> Vec<Position> {
    let mut first = 0;
    let lens = wiring.schedule.workers.iter().flatten().map(|w| w.folds.len());
    lens.map(|len| {
        first += len;
        Position { first: first - len, len, done: 0 }
    })
    .collect()
}

/// For each fold the number of its worker.
fn owners(wiring: &Wiring, positions: &[Position]) -> Vec<usize> {
    let mut owner = vec![0; wiring.places.len()];
    for (w, p) in positions.iter().enumerate() {
        owner[p.first..p.first + p.len].fill(w);
    }
    owner
}

/// The first thing that a fold has to wait for.
fn blocked(wiring: &Wiring, fifos: &[Fifo], depth: u32, index: FoldIndex) -> Option<Wait> {
    let fold = wiring.fold(index);
    let mut drained = fold.sources.iter().filter_map(|s| s.link()).map(|l| l.0 as usize);
    let mut filled = fold.sinks.iter().filter_map(|s| s.link()).map(|l| l.0 as usize);
    let empty = drained.find(|&l| fifos[l].filled == fifos[l].drained).map(Wait::Data);
    empty.or_else(|| filled.find(|&l| fifos[l].filled - fifos[l].drained >= depth as usize).map(Wait::Room))
}
