//! A tiny executor of schedules for tests: numbers in the place of elements, a random choice of the worker that runs
//! next, chunks of random lengths, buffers in place, and outputs lent at random.

use std::collections::VecDeque;

use ringleader::Collective;
use ringleader::schedule::{Schedule, Sink, Source};

/// A small generator (splitmix64), so that a failing seed can be replayed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// What rank `rank` contributes to a tile of a chunk.
fn contribution(rank: usize, chunk: usize, tile: usize) -> u64 {
    Random((rank * 1_000_003 + chunk * 1009 + tile) as u64).below(usize::MAX) as u64
}

struct Cursor {
    rank: usize,
    worker: usize,
    tile: usize,
    fold: usize,
}

/// Runs the schedule with FIFOs of `depth` slots and checks the results.
pub(crate) fn execute(schedule: &Schedule, depth: usize, seed: u64) {
    let mut random = Random(seed);
    let tiles: Vec<usize> = schedule.chunks.iter().map(|_| random.below(4)).collect();
    let most = tiles.iter().copied().max().unwrap_or(0);
    let lent: Vec<bool> = (0..schedule.ranks).map(|_| random.below(2) == 1).collect();
    // One buffer a rank: the output is the input.
    let mut memory: Vec<Vec<Vec<u64>>> = (0..schedule.ranks)
        .map(|r| {
            let chunk = |(c, &len): (usize, &usize)| (0..len).map(|t| contribution(r, c, t)).collect();
            tiles.iter().enumerate().map(chunk).collect()
        })
        .collect();
    let mut fifos: Vec<VecDeque<u64>> = vec![VecDeque::new(); schedule.links.len()];
    let mut running: Vec<Cursor> = Vec::new();
    for (rank, workers) in schedule.workers.iter().enumerate() {
        running.extend((0..workers.len()).map(|worker| Cursor { rank, worker, tile: 0, fold: 0 }));
    }
    let mut idle = 0;
    while !running.is_empty() {
        assert!(idle < 400 * running.len(), "stuck: {}\n{schedule}", schedule.name());
        let at = random.below(running.len());
        let c = &mut running[at];
        let folds = &schedule.workers[c.rank][c.worker].folds;
        if c.tile == most || folds.is_empty() {
            running.swap_remove(at);
            continue;
        }
        let fold = &folds[c.fold];
        let (chunk, tile, rank) = (fold.chunk.0 as usize, c.tile, c.rank);
        if tile < tiles[chunk] {
            let empty = fold.sources.iter().filter_map(|s| s.link()).any(|l| fifos[l.0 as usize].is_empty());
            let full = fold.sinks.iter().filter_map(|s| s.link()).any(|l| fifos[l.0 as usize].len() >= depth);
            if empty || full {
                idle += 1;
                continue;
            }
            idle = 0;
            let mut sum = 0u64;
            let mut wrote_by_peer = false;
            for source in &fold.sources {
                let value = match source {
                    Source::Input | Source::Output => memory[rank][chunk][tile],
                    Source::Link(l) => fifos[l.0 as usize].pop_front().unwrap(),
                    Source::Peer(l) => {
                        let slot = fifos[l.0 as usize].pop_front().unwrap();
                        wrote_by_peer = lent[rank];
                        if lent[rank] { memory[rank][chunk][tile] } else { slot }
                    }
                };
                sum = sum.wrapping_add(value);
            }
            for sink in &fold.sinks {
                match sink {
                    Sink::Output if wrote_by_peer => {}
                    Sink::Output => memory[rank][chunk][tile] = sum,
                    Sink::Link(l) => fifos[l.0 as usize].push_back(sum),
                    Sink::Peer(l) => {
                        let to = schedule.links[l.0 as usize].to;
                        if lent[to] {
                            memory[to][chunk][tile] = sum;
                        }
                        // Only the counter moves where the output is lent; nobody may look at this value.
                        fifos[l.0 as usize].push_back(if lent[to] { 0xdead } else { sum });
                    }
                }
            }
        }
        c.fold += 1;
        if c.fold == folds.len() {
            (c.fold, c.tile) = (0, c.tile + 1);
        }
    }
    for (rank, buffer) in memory.iter().enumerate() {
        for (chunk, cells) in buffer.iter().enumerate() {
            let block = schedule.chunks[chunk].block as usize;
            for (tile, &got) in cells.iter().enumerate() {
                let all =
                    || (0..schedule.ranks).fold(0u64, |a, r| a.wrapping_add(contribution(r, chunk, tile)));
                let want = match schedule.collective {
                    Collective::AllReduce => all(),
                    Collective::ReduceScatter if block == rank => all(),
                    Collective::Reduce { root } if root == rank => all(),
                    Collective::AllGather => contribution(block, chunk, tile),
                    Collective::Broadcast { root } => contribution(root, chunk, tile),
                    // A rank without an output there keeps its input as it was.
                    _ => contribution(rank, chunk, tile),
                };
                assert_eq!(got, want, "rank {rank} chunk {chunk} tile {tile} of {}", schedule.name());
            }
        }
    }
}
