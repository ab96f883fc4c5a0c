//! Ring: every rank talks to the next and the previous one only.
//!
//! All_reduce is a reduce_scatter followed by an all_gather around the ring, `2(n-1)` steps in which each rank sends
//! `2(n-1)/n` of the message: the least any algorithm can (P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce
//! algorithms for clusters of workstations*, JPDC 2009). Broadcast and reduce are pipelines along the ring.

use super::{Algorithm, Builder, ChunkId, Fold, LinkId, Request, Role, Schedule, Share, Sink, Source};
use crate::types::Collective;

/// The ring algorithm; see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn supports(&self, _: Collective) -> bool {
        true
    }

    fn build(&self, request: &Request) -> Schedule {
        let mut s = Builder::new(self.name(), request);
        for (channel, order) in request.orders.iter().enumerate() {
            let ring = Walk::new(&mut s, channel, order, request.collective);
            match request.collective {
                Collective::AllReduce => all_reduce(&mut s, &ring),
                Collective::ReduceScatter => reduce_scatter(&mut s, &ring),
                Collective::AllGather => all_gather(&mut s, &ring),
                Collective::Broadcast { root } => broadcast(&mut s, &ring, root),
                Collective::Reduce { root } => reduce(&mut s, &ring, root),
            }
        }
        s.finish()
    }
}

/// One ring: the order of the ranks and the links between neighbours.
struct Walk<'a> {
    channel: usize,
    order: &'a [usize],
    /// `links[p]` leads from position `p` to the next; a pipeline has none from its end back to its beginning.
    links: Vec<Option<LinkId>>,
}

impl<'a> Walk<'a> {
    fn new(s: &mut Builder, channel: usize, order: &'a [usize], collective: Collective) -> Self {
        let n = order.len();
        let links = (0..n)
            .map(|p| {
                let (from, to) = (order[p], order[(p + 1) % n]);
                let closes = match collective {
                    Collective::Broadcast { root } => to == root,
                    Collective::Reduce { root } => from == root,
                    _ => false,
                };
                (!closes).then(|| s.link(channel, from, to))
            })
            .collect();
        Walk { channel, order, links }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    /// The link into a position.
    fn inward(&self, position: usize) -> LinkId {
        self.outward((position + self.len() - 1) % self.len())
    }

    /// The link out of a position.
    fn outward(&self, position: usize) -> LinkId {
        self.links[position].expect("nothing goes from the end of a pipeline to its beginning")
    }

    /// The chunk of the rank `steps` positions before `position`.
    fn behind(&self, chunks: &[ChunkId], position: usize, steps: usize) -> ChunkId {
        chunks[self.order[(position + self.len() - steps) % self.len()]]
    }

    fn relay(&self, s: &mut Builder, position: usize, folds: Vec<Fold>) {
        s.worker(self.order[position], self.channel, Role::Relay, folds);
    }
}

/// Partial sums travel once around: the rank at position `p` starts with the chunk of the rank before it, and what
/// arrives last is its own chunk, complete.
fn all_reduce(s: &mut Builder, ring: &Walk) {
    let n = ring.len();
    let chunks = s.chunk_per_rank(ring.channel);
    for p in 0..n {
        let (from, to) = (ring.inward(p), ring.outward(p));
        let mut folds = reduce_steps(ring, &chunks, p);
        let own = ring.behind(&chunks, p, 0);
        let sources = [Source::Link(from), Source::Input];
        folds.push(Fold::reduce(own, sources, [Sink::Output, Sink::Peer(to)], true));
        folds.extend(forward_steps(ring, &chunks, p));
        ring.relay(s, p, folds);
    }
}

fn reduce_scatter(s: &mut Builder, ring: &Walk) {
    let chunks = s.chunk_per_rank(ring.channel);
    for p in 0..ring.len() {
        let mut folds = reduce_steps(ring, &chunks, p);
        let own = ring.behind(&chunks, p, 0);
        folds.push(Fold::reduce(own, [Source::Link(ring.inward(p)), Source::Input], [Sink::Output], true));
        ring.relay(s, p, folds);
    }
}

fn all_gather(s: &mut Builder, ring: &Walk) {
    let chunks = s.chunk_per_rank(ring.channel);
    for p in 0..ring.len() {
        let own = ring.behind(&chunks, p, 0);
        let mut folds = vec![Fold::copy(own, Source::Input, [Sink::Output, Sink::Peer(ring.outward(p))])];
        folds.extend(forward_steps(ring, &chunks, p));
        ring.relay(s, p, folds);
    }
}

/// Send the previous rank's chunk, then add to each partial sum that comes by and pass it on.
fn reduce_steps(ring: &Walk, chunks: &[ChunkId], p: usize) -> Vec<Fold> {
    let (from, to) = (ring.inward(p), ring.outward(p));
    let mut folds = vec![Fold::copy(ring.behind(chunks, p, 1), Source::Input, [Sink::Link(to)])];
    for step in 2..ring.len() {
        let sources = [Source::Link(from), Source::Input];
        folds.push(Fold::reduce(ring.behind(chunks, p, step), sources, [Sink::Link(to)], false));
    }
    folds
}

/// Keep each finished chunk that comes by and pass it on, except to the rank it started from.
fn forward_steps(ring: &Walk, chunks: &[ChunkId], p: usize) -> Vec<Fold> {
    let (from, to) = (ring.inward(p), ring.outward(p));
    (1..ring.len())
        .map(|step| {
            let mut sinks = vec![Sink::Output];
            if step + 1 < ring.len() {
                sinks.push(Sink::Peer(to));
            }
            Fold::copy(ring.behind(chunks, p, step), Source::Peer(from), sinks)
        })
        .collect()
}

fn broadcast(s: &mut Builder, ring: &Walk, root: usize) {
    let chunk = s.chunk(0, Share::part(ring.channel as u32, channels(s)));
    let start = position_of(ring, root);
    for step in 0..ring.len() {
        let p = (start + step) % ring.len();
        let source = if step == 0 { Source::Input } else { Source::Peer(ring.inward(p)) };
        let mut sinks = vec![Sink::Output];
        if step + 1 < ring.len() {
            sinks.push(Sink::Peer(ring.outward(p)));
        }
        ring.relay(s, p, vec![Fold::copy(chunk, source, sinks)]);
    }
}

fn reduce(s: &mut Builder, ring: &Walk, root: usize) {
    let chunk = s.chunk(0, Share::part(ring.channel as u32, channels(s)));
    let start = position_of(ring, root) + 1;
    for step in 0..ring.len() {
        let p = (start + step) % ring.len();
        let last = step + 1 == ring.len();
        let mut sources = vec![Source::Input];
        if step > 0 {
            sources.insert(0, Source::Link(ring.inward(p)));
        }
        let sink = if last { Sink::Output } else { Sink::Link(ring.outward(p)) };
        ring.relay(s, p, vec![Fold::reduce(chunk, sources, [sink], last)]);
    }
}

fn channels(s: &Builder) -> u32 {
    s.schedule.channels
}

fn position_of(ring: &Walk, rank: usize) -> usize {
    ring.order.iter().position(|&r| r == rank).expect("a checked order holds every rank")
}
