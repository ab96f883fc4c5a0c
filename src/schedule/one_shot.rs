//! One-shot: everybody sends everything to everybody, and each rank adds it all up by itself; in a reduce only
//! the root does, and in a broadcast only the root sends.
//!
//! One step instead of two, for `n/2` times the traffic of [`direct`](super::direct) in an all_reduce: the choice for small
//! messages.
//! Each rank combines the inputs in rank order, so all ranks get the same bits.

use super::{Algorithm, Builder, ChunkId, Fold, Request, Role, Schedule, Share, Sink, Source};
use crate::types::Collective;

/// The one-shot algorithm; see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct OneShot;

impl Algorithm for OneShot {
    fn name(&self) -> &'static str {
        "one_shot"
    }

    fn supports(&self, collective: Collective) -> bool {
        matches!(collective, Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. })
    }

    fn build(&self, request: &Request) -> Schedule {
        let mut s = Builder::new(self.name(), request);
        for channel in 0..request.orders.len() {
            let chunk = s.chunk(0, Share::part(channel as u32, request.orders.len() as u32));
            match request.collective {
                Collective::Broadcast { root } => broadcast(&mut s, channel, chunk, (root, request.ranks)),
                Collective::Reduce { root } => reduce(&mut s, channel, chunk, (root, request.ranks)),
                _ => all_reduce(&mut s, channel, chunk),
            }
        }
        s.finish()
    }
}

fn all_reduce(s: &mut Builder, channel: usize, chunk: ChunkId) {
    let mesh = s.links_all_pairs(channel);
    let n = mesh.len();
    for rank in 0..n {
        let to_all: Vec<_> = (1..n).filter_map(|i| mesh[rank][(rank + i) % n]).map(Sink::Link).collect();
        let from_all: Vec<_> = (0..n).map(|p| mesh[p][rank].map_or(Source::Input, Source::Link)).collect();
        // One worker does both: in place, the input must have left before the output is written.
        let folds = vec![
            Fold::copy(chunk, Source::Input, to_all),
            Fold::reduce(chunk, from_all, [Sink::Output], true),
        ];
        s.worker(rank, channel, Role::Relay, folds);
    }
}

/// The root puts everything into everybody's output.
fn broadcast(s: &mut Builder, channel: usize, chunk: ChunkId, (root, n): (usize, usize)) {
    let links: Vec<_> = (0..n).map(|rank| (rank != root).then(|| s.link(channel, root, rank))).collect();
    for (rank, link) in links.iter().enumerate() {
        let fold = match link {
            Some(link) => Fold::copy(chunk, Source::Peer(*link), [Sink::Output]),
            None => {
                let peers = (1..n).filter_map(|i| links[(root + i) % n]).map(Sink::Peer);
                let sinks: Vec<_> = std::iter::once(Sink::Output).chain(peers).collect();
                Fold::copy(chunk, Source::Input, sinks)
            }
        };
        s.worker(rank, channel, if rank == root { Role::Push } else { Role::Relay }, vec![fold]);
    }
}

/// Everybody sends everything to the root, which adds it up.
fn reduce(s: &mut Builder, channel: usize, chunk: ChunkId, (root, n): (usize, usize)) {
    let links: Vec<_> = (0..n).map(|rank| (rank != root).then(|| s.link(channel, rank, root))).collect();
    for (rank, link) in links.iter().enumerate() {
        let (role, fold) = match link {
            Some(link) => (Role::Push, Fold::copy(chunk, Source::Input, [Sink::Link(*link)])),
            None => {
                let all: Vec<_> = links.iter().map(|l| l.map_or(Source::Input, Source::Link)).collect();
                (Role::Reduce, Fold::reduce(chunk, all, [Sink::Output], true))
            }
        };
        s.worker(rank, channel, role, vec![fold]);
    }
}
