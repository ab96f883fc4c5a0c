//! Direct: every pair of ranks has links, and every byte takes one hop.
//!
//! All_reduce is the two-shot form: everybody sends each rank the chunk it is responsible for, each rank adds them up
//! and puts the result into everybody's output. Two steps, and no more traffic than a ring. Pushing and reducing are
//! different workers, so that both directions of every wire stay busy.
//!
//! The sources of a reduction are combined in rank order: the result is the same bits whatever the number of
//! channels, the tile size or the position in the buffer.

use super::{Algorithm, Builder, ChunkId, Fold, LinkId, Request, Role, Schedule, Sink, Source};
use crate::types::Collective;

/// The direct algorithm; see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn supports(&self, collective: Collective) -> bool {
        !matches!(collective, Collective::Reduce { .. })
    }

    fn build(&self, request: &Request) -> Schedule {
        let mut s = Builder::new(self.name(), request);
        for channel in 0..request.orders.len() {
            match request.collective {
                Collective::AllReduce => all_reduce(&mut s, channel),
                Collective::ReduceScatter => reduce_scatter(&mut s, channel),
                Collective::AllGather => all_gather(&mut s, channel),
                Collective::Broadcast { root } => broadcast(&mut s, channel, root),
                Collective::Reduce { .. } => unreachable!("build() asks supports() first"),
            }
        }
        s.finish()
    }
}

/// `links[from][to]`.
type Mesh = Vec<Vec<Option<LinkId>>>;

/// The other ranks, starting after `rank`, so that no two ranks send to the same one at the same time.
fn peers(rank: usize, n: usize) -> impl Iterator<Item = usize> {
    (1..n).map(move |i| (rank + i) % n)
}

fn link(mesh: &Mesh, from: usize, to: usize) -> LinkId {
    mesh[from][to].expect("every pair of different ranks has a link")
}

/// Sends to each peer the chunk the peer reduces.
fn push(mesh: &Mesh, chunks: &[ChunkId], rank: usize) -> Vec<Fold> {
    peers(rank, chunks.len())
        .map(|p| Fold::copy(chunks[p], Source::Input, [Sink::Link(link(mesh, rank, p))]))
        .collect()
}

/// Adds up everybody's part of this rank's chunk, in rank order.
fn gather(mesh: &Mesh, chunks: &[ChunkId], rank: usize, sinks: Vec<Sink>) -> Fold {
    let sources: Vec<_> = (0..chunks.len())
        .map(|p| if p == rank { Source::Input } else { Source::Link(link(mesh, p, rank)) })
        .collect();
    Fold::reduce(chunks[rank], sources, sinks, true)
}

/// Output plus every peer's output.
fn everywhere(mesh: &Mesh, rank: usize) -> Vec<Sink> {
    let n = mesh.len();
    std::iter::once(Sink::Output).chain(peers(rank, n).map(|p| Sink::Peer(link(mesh, rank, p)))).collect()
}

/// Takes the chunk of each peer.
fn receive(mesh: &Mesh, chunks: &[ChunkId], rank: usize) -> impl Iterator<Item = Fold> {
    let n = chunks.len();
    (1..n)
        .map(move |i| (rank + n - i) % n)
        .map(move |p| Fold::copy(chunks[p], Source::Peer(link(mesh, p, rank)), [Sink::Output]))
}

fn all_reduce(s: &mut Builder, channel: usize) {
    let chunks = s.chunk_per_rank(channel);
    let scatter = s.links_all_pairs(channel);
    let back = s.links_all_pairs(channel);
    for rank in 0..chunks.len() {
        let mut folds = push(&scatter, &chunks, rank);
        folds.extend(receive(&back, &chunks, rank));
        s.worker(rank, channel, Role::Push, folds);
        let fold = gather(&scatter, &chunks, rank, everywhere(&back, rank));
        s.worker(rank, channel, Role::Reduce, vec![fold]);
    }
}

fn reduce_scatter(s: &mut Builder, channel: usize) {
    let chunks = s.chunk_per_rank(channel);
    let mesh = s.links_all_pairs(channel);
    for rank in 0..chunks.len() {
        s.worker(rank, channel, Role::Push, push(&mesh, &chunks, rank));
        let fold = gather(&mesh, &chunks, rank, vec![Sink::Output]);
        s.worker(rank, channel, Role::Reduce, vec![fold]);
    }
}

fn all_gather(s: &mut Builder, channel: usize) {
    let chunks = s.chunk_per_rank(channel);
    let mesh = s.links_all_pairs(channel);
    for rank in 0..chunks.len() {
        let mut folds = vec![Fold::copy(chunks[rank], Source::Input, everywhere(&mesh, rank))];
        folds.extend(receive(&mesh, &chunks, rank));
        s.worker(rank, channel, Role::Push, folds);
    }
}

/// The root hands a different part to each rank, and each rank passes its part on to the others: the root sends the
/// message once, not once for each rank.
fn broadcast(s: &mut Builder, channel: usize, root: usize) {
    let n = s.schedule.ranks;
    let parts = n as u32 - 1;
    let channels = s.schedule.channels;
    let heirs: Vec<usize> = peers(root, n).collect();
    let chunks: Vec<ChunkId> = (0..parts)
        .map(|i| s.chunk(0, super::Share::part(channel as u32 * parts + i, channels * parts)))
        .collect();
    let first: Vec<LinkId> = heirs.iter().map(|&h| s.link(channel, root, h)).collect();
    let mut onward = vec![vec![None; n]; n];
    for (&a, row) in heirs.iter().map(|h| (h, &heirs)) {
        for &b in row.iter().filter(|&&b| b != a) {
            onward[a][b] = Some(s.link(channel, a, b));
        }
    }
    // One worker for each heir: a single one would serve them in turn, and leave all ways but one idle.
    for (&chunk, &l) in chunks.iter().zip(&first) {
        let fold = Fold::copy(chunk, Source::Input, [Sink::Output, Sink::Peer(l)]);
        s.worker(root, channel, Role::Push, vec![fold]);
    }
    for (i, &h) in heirs.iter().enumerate() {
        let others = || (1..heirs.len()).map(|d| (i + d) % heirs.len());
        let mut sinks = vec![Sink::Output];
        sinks.extend(others().map(|o| Sink::Peer(link(&onward, h, heirs[o]))));
        let mut folds = vec![Fold::copy(chunks[i], Source::Peer(first[i]), sinks)];
        folds.extend(
            others().map(|o| Fold::copy(chunks[o], Source::Peer(link(&onward, heirs[o], h)), [Sink::Output])),
        );
        s.worker(h, channel, Role::Relay, folds);
    }
}
